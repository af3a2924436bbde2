/* Backends, models and instances: what plug-ins ask of them. */
#include "host.h"

#define GET(function, kind, object_type, value_type, expression)             \
    Error* function(object_type* object, value_type* value) {                \
        REQUIRE(object, kind);                                               \
        *value = (expression);                                               \
        return NULL;                                                         \
    }

#define BACKEND(name, type, expression) \
    GET(TRITONBACKEND_Backend##name, LIVE_BACKEND, TRITONBACKEND_Backend, type, expression)
#define MODEL(name, type, expression) GET(TRITONBACKEND_Model##name, LIVE_MODEL, TRITONBACKEND_Model, type, expression)
#define INSTANCE(name, type, expression) \
    GET(TRITONBACKEND_ModelInstance##name, LIVE_INSTANCE, TRITONBACKEND_ModelInstance, type, expression)

BACKEND(Name, const char*, object->name)
BACKEND(Config, TRITONSERVER_Message*, tpy_message(object->config, strlen(object->config)))
BACKEND(ExecutionPolicy, TRITONBACKEND_ExecutionPolicy, object->policy)
BACKEND(MemoryManager, TRITONBACKEND_MemoryManager*, &object->memory)
BACKEND(State, void*, object->state)

Error* TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend* backend, void* state) {
    REQUIRE(backend, LIVE_BACKEND);
    backend->state = state;
    return NULL;
}

Error* TRITONBACKEND_BackendSetExecutionPolicy(TRITONBACKEND_Backend* backend, TRITONBACKEND_ExecutionPolicy policy) {
    REQUIRE(backend, LIVE_BACKEND);
    backend->policy = policy;
    return NULL;
}

Error* TRITONBACKEND_BackendArtifacts(TRITONBACKEND_Backend* backend, TRITONBACKEND_ArtifactType* type, const char** location) {
    REQUIRE(backend, LIVE_BACKEND);
    *type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
    *location = backend->directory;
    return NULL;
}

Error* TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    TRITONBACKEND_BackendAttribute* attribute, TRITONSERVER_InstanceGroupKind kind, uint64_t count, const uint64_t* devices,
    uint64_t device_count) {
    int state = PyGILState_Ensure();
    PyObject* ids = PyList_New((Py_ssize_t)device_count);
    for (uint64_t i = 0; i < device_count; i++) PyList_SetItem(ids, (Py_ssize_t)i, PyLong_FromUnsignedLongLong(devices[i]));
    PyObject* group = PyTuple_New(3);
    PyTuple_SetItem(group, 0, PyLong_FromLongLong(kind));
    PyTuple_SetItem(group, 1, PyLong_FromUnsignedLongLong(count));
    PyTuple_SetItem(group, 2, ids);
    PyList_Append(attribute->groups, group);
    Py_DecRef(group);
    PyGILState_Release(state);
    return NULL;
}

Error* TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(TRITONBACKEND_BackendAttribute* attribute, bool enabled) {
    attribute->parallel_loading = enabled;
    return NULL;
}

/* ---- memory */

Error* TRITONBACKEND_MemoryManagerAllocate(
    TRITONBACKEND_MemoryManager* manager, void** buffer, TRITONSERVER_MemoryType memory, int64_t memory_id, uint64_t size) {
    (void)memory_id;
    REQUIRE(manager, LIVE_BACKEND);
    if (memory != TRITONSERVER_MEMORY_CPU)
        return tpy_error(TRITONSERVER_ERROR_UNAVAILABLE, "%s memory is not offered to plug-ins", TRITONSERVER_MemoryTypeString(memory));
    *buffer = malloc(size ? size : 1);
    if (*buffer == NULL) return tpy_error(TRITONSERVER_ERROR_UNAVAILABLE, "no %llu bytes of memory", (unsigned long long)size);
    return NULL;
}

Error* TRITONBACKEND_MemoryManagerFree(
    TRITONBACKEND_MemoryManager* manager, void* buffer, TRITONSERVER_MemoryType memory, int64_t memory_id) {
    (void)memory_id;
    REQUIRE(manager, LIVE_BACKEND);
    if (memory != TRITONSERVER_MEMORY_CPU)
        return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "no %s memory was given out", TRITONSERVER_MemoryTypeString(memory));
    free(buffer);
    return NULL;
}

/* ---- models */

MODEL(Name, const char*, object->name)
MODEL(Version, uint64_t, object->version)
MODEL(AutoCompleteConfig, bool, object->auto_complete)
MODEL(Server, TRITONSERVER_Server*, &object->server)
MODEL(Backend, TRITONBACKEND_Backend*, object->backend)
MODEL(State, void*, object->state)

Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model* model, void* state) {
    REQUIRE(model, LIVE_MODEL);
    model->state = state;
    return NULL;
}

Error* TRITONBACKEND_ModelRepository(TRITONBACKEND_Model* model, TRITONBACKEND_ArtifactType* type, const char** location) {
    REQUIRE(model, LIVE_MODEL);
    *type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
    *location = model->repository;
    return NULL;
}

static Error* require_version(uint32_t version) {
    return version == 1 ? NULL
                        : tpy_error(
                              TRITONSERVER_ERROR_UNSUPPORTED,
                              "model configuration version %u not supported, supported versions are: 1", version);
}

Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t version, TRITONSERVER_Message** config) {
    REQUIRE(model, LIVE_MODEL);
    Error* error = require_version(version);
    if (error != NULL) return error;
    const char* text = model->completed != NULL ? model->completed : model->config;
    *config = tpy_message(text, strlen(text));
    return NULL;
}

Error* TRITONBACKEND_ModelSetConfig(TRITONBACKEND_Model* model, uint32_t version, TRITONSERVER_Message* config) {
    REQUIRE(model, LIVE_MODEL);
    REQUIRE(config, LIVE_MESSAGE);
    Error* error = require_version(version);
    if (error != NULL) return error;
    if (model->initialized)
        return tpy_error(
            TRITONSERVER_ERROR_UNAVAILABLE, "TRITONBACKEND_ModelSetConfig of model '%s': only in TRITONBACKEND_ModelInitialize",
            model->name);
    free(model->completed);
    model->completed = tpy_copy(config->text);
    return NULL;
}

/* ---- instances */

INSTANCE(Name, const char*, object->name)
INSTANCE(Kind, TRITONSERVER_InstanceGroupKind, object->kind)
INSTANCE(DeviceId, int32_t, object->device)
INSTANCE(HostPolicy, TRITONSERVER_Message*, tpy_message(object->host_policy, strlen(object->host_policy)))
INSTANCE(IsPassive, bool, object->passive)
INSTANCE(ProfileCount, uint32_t, object->profile_count)
INSTANCE(SecondaryDeviceCount, uint32_t, object->secondary_count)
INSTANCE(Model, TRITONBACKEND_Model*, object->model)
INSTANCE(State, void*, object->state)

Error* TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance* instance, void* state) {
    REQUIRE(instance, LIVE_INSTANCE);
    instance->state = state;
    return NULL;
}

Error* TRITONBACKEND_ModelInstanceProfileName(TRITONBACKEND_ModelInstance* instance, uint32_t index, const char** name) {
    REQUIRE(instance, LIVE_INSTANCE);
    *name = NULL;
    if (index >= instance->profile_count)
        return tpy_error(
            TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index for profile name inquiry: index %u, expected below %u", index,
            instance->profile_count);
    *name = instance->profiles[index];
    return NULL;
}

Error* TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
    TRITONBACKEND_ModelInstance* instance, uint32_t index, const char** kind, int64_t* id) {
    REQUIRE(instance, LIVE_INSTANCE);
    if (index >= instance->secondary_count)
        return tpy_error(
            TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index for secondary device: index %u, expected below %u", index,
            instance->secondary_count);
    *kind = instance->secondary_kinds[index];
    *id = instance->secondary_ids[index];
    return NULL;
}
