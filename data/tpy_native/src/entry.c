/* What the Python side calls, by ctypes: open and close backends, models and instances. With the interpreter lock, which the
 * plug-in's own functions run without. Pointers cross as integers; an error as a tuple of its code and text. */
#include <dlfcn.h>
#include <stdio.h>

#include "host.h"

PyObject* tpy_error_pair(Error* error) {
    PyObject* pair = PyTuple_New(2);
    PyTuple_SetItem(pair, 0, PyLong_FromLongLong(error->code));
    PyTuple_SetItem(pair, 1, tpy_text_of(error->message));
    TRITONSERVER_ErrorDelete(error);
    return pair;
}

static PyObject* pointer(void* object) { return PyLong_FromVoidPtr(object); }

static void keep(PyObject** field, PyObject* value) {
    Py_IncRef(value);
    *field = value;
}

/* Take what every kind of plug-in needs of the Python side, once. */
TPY_API void tpy_start(PyObject* log, PyObject* metric, PyObject* code) {
    keep(&tpy_python.log, log);
    keep(&tpy_python.metric, metric);
    keep(&tpy_python.code, code);
}

/* Take the callables and tables that batches are made with, and the capsule with NumPy's functions, once. False for a NumPy whose
 * interface is another one. */
TPY_API int tpy_start_batches(PyObject* tuple, PyObject* numpy) {
    void** functions = PyCapsule_GetPointer(numpy, NULL);
    unsigned (*version)(void) = NULL;
    if (functions != NULL) *(void**)&version = functions[NUMPY_GET_VERSION];
    PyErr_Clear();
    if (version == NULL || (version() != NUMPY_ABI_1 && version() != NUMPY_ABI_2)) return 0;
    tpy_python.array_type = functions[NUMPY_ARRAY_TYPE];
    *(void**)&tpy_python.new_array = functions[NUMPY_NEW_FROM_DESCRIPTOR];
    *(void**)&tpy_python.set_base = functions[NUMPY_SET_BASE];
    PyObject** fields[] = {
        &tpy_python.result, &tpy_python.failure, &tpy_python.tensor, &tpy_python.bytes_array, &tpy_python.datatypes,
        &tpy_python.dtypes, &tpy_python.prepare, &tpy_python.send, &tpy_python.later, &tpy_python.empty,
        &tpy_python.reschedule,
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) keep(fields[i], PyTuple_GetItem(tuple, (Py_ssize_t)i));
    return 1;
}

/* ---- backends */

Error* tpy_load_library(const char* path, const char* kind, void** library) {
    tpy_last_version[0] = 0;
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*library != NULL) return NULL;
    const char* reason = dlerror();
    const char* missing = strstr(reason, "undefined symbol: TRITON");
    if (missing != NULL)
        return tpy_error(
            TRITONSERVER_ERROR_UNSUPPORTED,
            "unable to load %s library '%s': it needs %s, which is not in TRITONBACKEND API %d.%d of this server: it was "
            "built for a newer one",
            kind, path, missing + strlen("undefined symbol: "), TRITONBACKEND_API_VERSION_MAJOR, TRITONBACKEND_API_VERSION_MINOR);
    return tpy_error(TRITONSERVER_ERROR_NOT_FOUND, "unable to load shared library: %s", reason);
}

static Error* load(TRITONBACKEND_Backend* backend, const char* path) {
    Error* error = tpy_load_library(path, "backend", &backend->library);
    if (error != NULL) return error;
#define ENTRY(field, name) *(void**)&backend->field = dlsym(backend->library, "TRITONBACKEND_" name)
    ENTRY(finalize, "Finalize");
    ENTRY(attribute, "GetBackendAttribute");
    ENTRY(model_initialize, "ModelInitialize");
    ENTRY(model_finalize, "ModelFinalize");
    ENTRY(instance_initialize, "ModelInstanceInitialize");
    ENTRY(instance_finalize, "ModelInstanceFinalize");
    ENTRY(instance_ready, "ModelInstanceReady");
    ENTRY(execute, "ModelInstanceExecute");
    if (backend->execute == NULL)
        return tpy_error(
            TRITONSERVER_ERROR_NOT_FOUND,
            "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in backend library '%s'", path);
    return NULL;
}

Error* tpy_with_version(Error* error, const char* interface, int major, int minor) {
    if (error == NULL || error->code != TRITONSERVER_ERROR_UNSUPPORTED) return error;
    char built_for[sizeof tpy_last_version + 40] = "";
    if (tpy_last_version[0]) snprintf(built_for, sizeof built_for, "; the library was built for %s", tpy_last_version);
    Error* fuller = tpy_error(
        TRITONSERVER_ERROR_UNSUPPORTED, "%s (this server has %s API %d.%d%s)", error->message, interface, major, minor,
        built_for);
    TRITONSERVER_ErrorDelete(error);
    return fuller;
}

static Error* initialize(TRITONBACKEND_Backend* backend) {
    BackendFunction function;
    *(void**)&function = dlsym(backend->library, "TRITONBACKEND_Initialize");
    Error* error = function == NULL ? NULL : function(backend);
    return tpy_with_version(error, "TRITONBACKEND", TRITONBACKEND_API_VERSION_MAJOR, TRITONBACKEND_API_VERSION_MINOR);
}

/* Libraries stay loaded: threads of theirs may still run their code. */
static void backend_free(TRITONBACKEND_Backend* backend) {
    if (backend->pinned) return;
    backend->live = 0;
    free(backend->name);
    free(backend->directory);
    free(backend->config);
    free(backend);
}

TPY_API PyObject* tpy_backend_open(const char* name, const char* path, const char* directory, const char* config) {
    TRITONBACKEND_Backend* backend = calloc(1, sizeof *backend);
    backend->live = backend->memory.live = LIVE_BACKEND;
    backend->name = tpy_copy(name);
    backend->directory = tpy_copy(directory);
    backend->config = tpy_copy(config);
    PyThreadState* state = PyEval_SaveThread();
    Error* error = load(backend, path);
    if (error == NULL) error = initialize(backend);
    PyEval_RestoreThread(state);
    if (error == NULL) return pointer(backend);
    backend_free(backend);
    return tpy_error_pair(error);
}

/* A list of preferred instance groups, (kind, count, devices). */
TPY_API PyObject* tpy_backend_attribute(TRITONBACKEND_Backend* backend) {
    TRITONBACKEND_BackendAttribute attribute = {PyList_New(0), false};
    if (backend->attribute == NULL) return attribute.groups;
    PyThreadState* state = PyEval_SaveThread();
    Error* error = backend->attribute(backend, &attribute);
    PyEval_RestoreThread(state);
    if (error == NULL) return attribute.groups;
    Py_DecRef(attribute.groups);
    return tpy_error_pair(error);
}

PyObject* tpy_none_or(Error* error) {
    if (error != NULL) return tpy_error_pair(error);
    Py_IncRef(Py_None);
    return Py_None;
}

TPY_API PyObject* tpy_backend_close(TRITONBACKEND_Backend* backend) {
    PyThreadState* state = PyEval_SaveThread();
    Error* error = backend->finalize == NULL ? NULL : backend->finalize(backend);
    PyEval_RestoreThread(state);
    backend_free(backend);
    return tpy_none_or(error);
}

/* ---- models */

char** tpy_copy_texts(PyObject* tuple, uint32_t* count) {
    *count = (uint32_t)PyTuple_Size(tuple);
    char** texts = calloc(*count + 1, sizeof *texts);
    for (uint32_t i = 0; i < *count; i++) texts[i] = tpy_copy(PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, i), NULL));
    return texts;
}

void tpy_free_texts(char** texts, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) free(texts[i]);
    free(texts);
}

static void model_free(TRITONBACKEND_Model* model) {
    if (model->pinned) return;
    model->live = model->server.live = 0;
    tpy_free_texts(model->outputs, model->output_count);
    Py_DecRef(model->output_names);
    free(model->name);
    free(model->repository);
    free(model->config);
    free(model->completed);
    Py_DecRef(model->server.calls);
    free(model);
}

TPY_API PyObject* tpy_model_open(
    TRITONBACKEND_Backend* backend, const char* name, uint64_t version, const char* repository, const char* config,
    int auto_complete, int decoupled, PyObject* outputs, PyObject* calls) {
    TRITONBACKEND_Model* model = calloc(1, sizeof *model);
    model->live = LIVE_MODEL;
    model->backend = backend;
    model->name = tpy_copy(name);
    model->version = version;
    model->repository = tpy_copy(repository);
    model->config = tpy_copy(config);
    model->auto_complete = auto_complete;
    model->decoupled = decoupled;
    model->outputs = tpy_copy_texts(outputs, &model->output_count);
    keep(&model->output_names, outputs);
    model->server.live = LIVE_SERVER;
    model->server.calls = calls;
    Py_IncRef(calls);
    PyThreadState* state = PyEval_SaveThread();
    Error* error = backend->model_initialize == NULL ? NULL : backend->model_initialize(model);
    PyEval_RestoreThread(state);
    model->initialized = true;
    if (error == NULL) return pointer(model);
    model_free(model);
    return tpy_error_pair(error);
}

/* The configuration that the plug-in has set, or None. */
TPY_API PyObject* tpy_model_completed(TRITONBACKEND_Model* model) {
    return model->completed == NULL ? tpy_none_or(NULL) : tpy_text_of(model->completed);
}

TPY_API PyObject* tpy_model_close(TRITONBACKEND_Model* model) {
    PyThreadState* state = PyEval_SaveThread();
    Error* error = model->backend->model_finalize == NULL ? NULL : model->backend->model_finalize(model);
    PyEval_RestoreThread(state);
    model_free(model);
    return tpy_none_or(error);
}

/* ---- instances */

static void instance_free(TRITONBACKEND_ModelInstance* instance) {
    if (instance->held > 0) {
        instance->model->pinned = instance->model->backend->pinned = true; /* what the plug-in holds of it must stay */
        return;
    }
    instance->live = 0;
    tpy_batch_free(instance->idle);
    tpy_batch_free(instance->last);
    tpy_free_texts(instance->profiles, instance->profile_count);
    tpy_free_texts(instance->secondary_kinds, instance->secondary_count);
    free(instance->secondary_ids);
    free(instance->name);
    free(instance->host_policy_name);
    free(instance->host_policy);
    free(instance);
}

TPY_API PyObject* tpy_instance_open(
    TRITONBACKEND_Model* model, const char* name, int kind, int device, const char* policy_name, const char* policy,
    PyObject* profiles, PyObject* secondary_kinds, PyObject* secondary_ids) {
    TRITONBACKEND_ModelInstance* instance = calloc(1, sizeof *instance);
    instance->live = LIVE_INSTANCE;
    instance->model = model;
    instance->name = tpy_copy(name);
    instance->kind = (TRITONSERVER_InstanceGroupKind)kind;
    instance->device = device;
    instance->host_policy_name = tpy_copy(policy_name);
    instance->host_policy = tpy_copy(policy);
    instance->profiles = tpy_copy_texts(profiles, &instance->profile_count);
    instance->secondary_kinds = tpy_copy_texts(secondary_kinds, &instance->secondary_count);
    instance->secondary_ids = calloc(instance->secondary_count + 1, sizeof(int64_t));
    for (uint32_t i = 0; i < instance->secondary_count; i++)
        instance->secondary_ids[i] = PyLong_AsLongLong(PyTuple_GetItem(secondary_ids, i));
    PyThreadState* state = PyEval_SaveThread();
    InstanceFunction initialize_instance = model->backend->instance_initialize;
    Error* error = initialize_instance == NULL ? NULL : initialize_instance(instance);
    PyEval_RestoreThread(state);
    if (error == NULL) return pointer(instance);
    instance_free(instance);
    return tpy_error_pair(error);
}

TPY_API int tpy_instance_has_ready(TRITONBACKEND_ModelInstance* instance) {
    return instance->model->backend->instance_ready != NULL;
}

TPY_API PyObject* tpy_instance_ready(TRITONBACKEND_ModelInstance* instance) {
    PyThreadState* state = PyEval_SaveThread();
    Error* error = instance->model->backend->instance_ready(instance);
    PyEval_RestoreThread(state);
    return tpy_none_or(error);
}

/* How many requests the plug-in has and did not let go of. */
TPY_API int tpy_instance_held(TRITONBACKEND_ModelInstance* instance) { return instance->held; }

TPY_API PyObject* tpy_instance_close(TRITONBACKEND_ModelInstance* instance) {
    PyThreadState* state = PyEval_SaveThread();
    InstanceFunction finalize_instance = instance->model->backend->instance_finalize;
    Error* error = finalize_instance == NULL ? NULL : finalize_instance(instance);
    PyEval_RestoreThread(state);
    instance_free(instance);
    return tpy_none_or(error);
}
