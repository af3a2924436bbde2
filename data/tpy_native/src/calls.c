/* Calls that plug-ins make of other models: requests, allocators, responses. The inputs of a request are copied when it is sent. */
#include <stdio.h>

#include "host.h"

struct TRITONSERVER_ResponseAllocator {
    uint32_t live;
    TRITONSERVER_ResponseAllocatorAllocFn_t allocate;
    TRITONSERVER_ResponseAllocatorReleaseFn_t release;
    TRITONSERVER_ResponseAllocatorStartFn_t start;
    TRITONSERVER_ResponseAllocatorBufferAttributesFn_t attributes;
    TRITONSERVER_ResponseAllocatorQueryFn_t query;
};

typedef struct Part {
    struct Part* next;
    const void* base;
    size_t size;
} Part;

typedef struct CallInput {
    struct CallInput* next;
    Output* tensor;
    Part* parts;
} CallInput;

typedef struct Name {
    struct Name* next;
    char text[];
} Name;

struct TRITONSERVER_InferenceRequest {
    uint32_t live;
    TRITONSERVER_Server* server;
    char* model;
    int64_t version;
    char* id;
    uint32_t flags;
    uint64_t correlation;
    char* correlation_text;
    uint64_t priority;
    uint64_t timeout_us;
    CallInput* inputs;
    Name* outputs;
    TRITONSERVER_Parameter* parameters;
    TRITONSERVER_InferenceRequestReleaseFn_t release;
    void* release_userp;
    TRITONSERVER_ResponseAllocator* allocator;
    void* allocator_userp;
    TRITONSERVER_InferenceResponseCompleteFn_t complete;
    void* complete_userp;
    PyObject* call; /* of the Python side, while it is under way */
    atomic_bool cancelled;
    atomic_bool under_way;
};

typedef struct {
    char* name;
    DataType datatype;
    int64_t* shape;
    uint32_t dims;
    void* base;
    size_t size;
    TRITONSERVER_MemoryType memory;
    int64_t memory_id;
    void* userp;
} CallOutput;

struct TRITONSERVER_InferenceResponse {
    uint32_t live;
    TRITONSERVER_ResponseAllocator* allocator;
    char* model;
    int64_t version;
    char* id;
    Error* error;
    CallOutput* outputs;
    uint32_t output_count;
    TRITONSERVER_Parameter* parameters;
};

/* ---- allocators */

Error* TRITONSERVER_ResponseAllocatorNew(
    TRITONSERVER_ResponseAllocator** made, TRITONSERVER_ResponseAllocatorAllocFn_t allocate,
    TRITONSERVER_ResponseAllocatorReleaseFn_t release, TRITONSERVER_ResponseAllocatorStartFn_t start) {
    *made = calloc(1, sizeof **made);
    **made = (TRITONSERVER_ResponseAllocator){LIVE_ALLOCATOR, allocate, release, start, NULL, NULL};
    return NULL;
}

Error* TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    TRITONSERVER_ResponseAllocator* allocator, TRITONSERVER_ResponseAllocatorBufferAttributesFn_t function) {
    REQUIRE(allocator, LIVE_ALLOCATOR);
    allocator->attributes = function;
    return NULL;
}

Error* TRITONSERVER_ResponseAllocatorSetQueryFunction(
    TRITONSERVER_ResponseAllocator* allocator, TRITONSERVER_ResponseAllocatorQueryFn_t function) {
    REQUIRE(allocator, LIVE_ALLOCATOR);
    allocator->query = function;
    return NULL;
}

Error* TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator* allocator) {
    REQUIRE(allocator, LIVE_ALLOCATOR);
    allocator->live = 0;
    free(allocator);
    return NULL;
}

/* ---- requests */

#define CALL_GET(name, type, field)                                                                      \
    Error* TRITONSERVER_InferenceRequest##name(TRITONSERVER_InferenceRequest* request, type* value) {    \
        REQUIRE(request, LIVE_CALL);                                                                     \
        *value = (field);                                                                                \
        return NULL;                                                                                     \
    }
#define CALL_SET(name, type, statement)                                                                  \
    Error* TRITONSERVER_InferenceRequest##name(TRITONSERVER_InferenceRequest* request, type value) {     \
        REQUIRE(request, LIVE_CALL);                                                                     \
        statement;                                                                                       \
        return NULL;                                                                                     \
    }

static void replace(char** field, const char* text) {
    free(*field);
    *field = tpy_copy(text);
}

CALL_GET(Id, const char*, request->id == NULL ? "" : request->id)
CALL_SET(SetId, const char*, replace(&request->id, value))
CALL_GET(Flags, uint32_t, request->flags)
CALL_SET(SetFlags, uint32_t, request->flags = value)
CALL_GET(Priority, uint32_t, (uint32_t)request->priority)
CALL_GET(PriorityUInt64, uint64_t, request->priority)
CALL_SET(SetPriority, uint32_t, request->priority = value)
CALL_SET(SetPriorityUInt64, uint64_t, request->priority = value)
CALL_GET(TimeoutMicroseconds, uint64_t, request->timeout_us)
CALL_SET(SetTimeoutMicroseconds, uint64_t, request->timeout_us = value)
CALL_GET(IsCancelled, bool, atomic_load(&request->cancelled))
CALL_SET(SetCorrelationId, uint64_t, replace(&request->correlation_text, NULL); request->correlation = value)
CALL_SET(SetCorrelationIdString, const char*, replace(&request->correlation_text, value); request->correlation = 0)

Error* TRITONSERVER_InferenceRequestCorrelationId(TRITONSERVER_InferenceRequest* request, uint64_t* id) {
    REQUIRE(request, LIVE_CALL);
    if (request->correlation_text != NULL)
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "given request's correlation id is not an unsigned int");
    *id = request->correlation;
    return NULL;
}

Error* TRITONSERVER_InferenceRequestCorrelationIdString(TRITONSERVER_InferenceRequest* request, const char** id) {
    REQUIRE(request, LIVE_CALL);
    if (request->correlation_text == NULL)
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "given request's correlation id is not a string");
    *id = request->correlation_text;
    return NULL;
}

Error* TRITONSERVER_InferenceRequestNew(
    TRITONSERVER_InferenceRequest** made, TRITONSERVER_Server* server, const char* model, int64_t version) {
    *made = NULL;
    REQUIRE(server, LIVE_SERVER);
    TRITONSERVER_InferenceRequest* request = calloc(1, sizeof *request);
    request->live = LIVE_CALL;
    request->server = server;
    request->model = tpy_copy(model);
    request->version = version;
    *made = request;
    return NULL;
}

static void free_parts(CallInput* input) {
    for (Part *part = input->parts, *next; part != NULL; part = next) {
        next = part->next;
        free(part);
    }
    input->parts = NULL;
}

static void free_input(CallInput* input) {
    free_parts(input);
    tpy_output_delete(input->tensor, NULL);
    free(input);
}

static CallInput** find_input(TRITONSERVER_InferenceRequest* request, const char* name) {
    CallInput** at = &request->inputs;
    while (*at != NULL && strcmp((*at)->tensor->name, name) != 0) at = &(*at)->next;
    return at;
}

static Name** find_output(TRITONSERVER_InferenceRequest* request, const char* name) {
    Name** at = &request->outputs;
    while (*at != NULL && strcmp((*at)->text, name) != 0) at = &(*at)->next;
    return at;
}

Error* TRITONSERVER_InferenceRequestRemoveAllInputs(TRITONSERVER_InferenceRequest* request) {
    REQUIRE(request, LIVE_CALL);
    while (request->inputs != NULL) {
        CallInput* next = request->inputs->next;
        free_input(request->inputs);
        request->inputs = next;
    }
    return NULL;
}

Error* TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(TRITONSERVER_InferenceRequest* request) {
    REQUIRE(request, LIVE_CALL);
    while (request->outputs != NULL) {
        Name* next = request->outputs->next;
        free(request->outputs);
        request->outputs = next;
    }
    return NULL;
}

Error* TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest* request) {
    REQUIRE(request, LIVE_CALL);
    if (atomic_load(&request->under_way))
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the request is under way; it may be deleted when it is released");
    TRITONSERVER_InferenceRequestRemoveAllInputs(request);
    TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(request);
    tpy_parameters_delete(request->parameters);
    free(request->model);
    free(request->id);
    free(request->correlation_text);
    request->live = 0;
    free(request);
    return NULL;
}

Error* TRITONSERVER_InferenceRequestAddInput(
    TRITONSERVER_InferenceRequest* request, const char* name, DataType datatype, const int64_t* shape, uint64_t dims) {
    REQUIRE(request, LIVE_CALL);
    CallInput** at = find_input(request, name);
    if (*at != NULL) return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' already exists in request", name);
    if (dims > 64 || tpy_element_count(shape, (uint32_t)dims) == UINT64_MAX)
        return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' has no valid shape", name);
    *at = calloc(1, sizeof **at);
    (*at)->tensor = tpy_output_new(name, datatype, shape, (uint32_t)dims);
    return NULL;
}

static Error* no_input(const char* name) {
    return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "input '%s' does not exist in request", name);
}

Error* TRITONSERVER_InferenceRequestRemoveInput(TRITONSERVER_InferenceRequest* request, const char* name) {
    REQUIRE(request, LIVE_CALL);
    CallInput** at = find_input(request, name);
    if (*at == NULL) return no_input(name);
    CallInput* found = *at;
    *at = found->next;
    free_input(found);
    return NULL;
}

Error* TRITONSERVER_InferenceRequestAppendInputData(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base, size_t size, TRITONSERVER_MemoryType memory,
    int64_t memory_id) {
    (void)memory_id;
    REQUIRE(request, LIVE_CALL);
    if (memory == TRITONSERVER_MEMORY_GPU)
        return tpy_error(TRITONSERVER_ERROR_UNSUPPORTED, "input '%s' is in memory of a GPU, which calls do not take here", name);
    CallInput** at = find_input(request, name);
    if (*at == NULL) return no_input(name);
    Part** end = &(*at)->parts;
    while (*end != NULL) end = &(*end)->next;
    *end = calloc(1, sizeof **end);
    **end = (Part){NULL, base, size};
    return NULL;
}

Error* TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base, size_t size, TRITONSERVER_MemoryType memory,
    int64_t memory_id, const char* policy) {
    (void)policy;
    return TRITONSERVER_InferenceRequestAppendInputData(request, name, base, size, memory, memory_id);
}

Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base, TRITONSERVER_BufferAttributes* attributes) {
    return TRITONSERVER_InferenceRequestAppendInputData(
        request, name, base, attributes->size, attributes->memory, attributes->memory_id);
}

Error* TRITONSERVER_InferenceRequestRemoveAllInputData(TRITONSERVER_InferenceRequest* request, const char* name) {
    REQUIRE(request, LIVE_CALL);
    CallInput** at = find_input(request, name);
    if (*at == NULL) return no_input(name);
    free_parts(*at);
    return NULL;
}

Error* TRITONSERVER_InferenceRequestAddRequestedOutput(TRITONSERVER_InferenceRequest* request, const char* name) {
    REQUIRE(request, LIVE_CALL);
    Name** at = find_output(request, name);
    if (*at != NULL) return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "output '%s' already requested", name);
    *at = calloc(1, sizeof **at + strlen(name) + 1);
    strcpy((*at)->text, name);
    return NULL;
}

Error* TRITONSERVER_InferenceRequestRemoveRequestedOutput(TRITONSERVER_InferenceRequest* request, const char* name) {
    REQUIRE(request, LIVE_CALL);
    Name** at = find_output(request, name);
    if (*at == NULL) return NULL;
    Name* found = *at;
    *at = found->next;
    free(found);
    return NULL;
}

static Error* add_parameter(
    TRITONSERVER_InferenceRequest* request, const char* name, TRITONSERVER_ParameterType type, const void* value) {
    REQUIRE(request, LIVE_CALL);
    TRITONSERVER_Parameter* parameter = tpy_parameter(name, type, value);
    parameter->next = request->parameters;
    request->parameters = parameter;
    return NULL;
}

Error* TRITONSERVER_InferenceRequestSetStringParameter(TRITONSERVER_InferenceRequest* request, const char* name, const char* value) {
    return add_parameter(request, name, TRITONSERVER_PARAMETER_STRING, value);
}

Error* TRITONSERVER_InferenceRequestSetIntParameter(TRITONSERVER_InferenceRequest* request, const char* name, int64_t value) {
    return add_parameter(request, name, TRITONSERVER_PARAMETER_INT, &value);
}

Error* TRITONSERVER_InferenceRequestSetBoolParameter(TRITONSERVER_InferenceRequest* request, const char* name, bool value) {
    return add_parameter(request, name, TRITONSERVER_PARAMETER_BOOL, &value);
}

Error* TRITONSERVER_InferenceRequestSetDoubleParameter(TRITONSERVER_InferenceRequest* request, const char* name, double value) {
    return add_parameter(request, name, TRITONSERVER_PARAMETER_DOUBLE, &value);
}

Error* TRITONSERVER_InferenceRequestSetReleaseCallback(
    TRITONSERVER_InferenceRequest* request, TRITONSERVER_InferenceRequestReleaseFn_t release, void* userp) {
    REQUIRE(request, LIVE_CALL);
    request->release = release;
    request->release_userp = userp;
    return NULL;
}

Error* TRITONSERVER_InferenceRequestSetResponseCallback(
    TRITONSERVER_InferenceRequest* request, TRITONSERVER_ResponseAllocator* allocator, void* allocator_userp,
    TRITONSERVER_InferenceResponseCompleteFn_t complete, void* userp) {
    REQUIRE(request, LIVE_CALL);
    REQUIRE(allocator, LIVE_ALLOCATOR);
    request->allocator = allocator;
    request->allocator_userp = allocator_userp;
    request->complete = complete;
    request->complete_userp = userp;
    return NULL;
}

/* ---- sending */

/* The bytes of an input, as one piece. */
static Error* gather(CallInput* input) {
    size_t size = 0;
    for (Part* part = input->parts; part != NULL; part = part->next) size += part->size;
    tpy_memory_let_go(input->tensor->memory);
    input->tensor->memory = tpy_memory_new(size);
    if (input->tensor->memory == NULL)
        return tpy_error(TRITONSERVER_ERROR_UNAVAILABLE, "no %zu bytes of memory for input '%s'", size, input->tensor->name);
    char* at = MEMORY_DATA(input->tensor->memory);
    for (Part* part = input->parts; part != NULL; part = part->next) {
        memcpy(at, part->base, part->size);
        at += part->size;
    }
    return NULL;
}

static PyObject* inputs_of(TRITONSERVER_InferenceRequest* request) {
    PyObject* list = PyList_New(0);
    for (CallInput* input = request->inputs; list != NULL && input != NULL; input = input->next) {
        PyObject* tensor = tpy_tensor_of(input->tensor, NULL);
        if (tensor == NULL || PyList_Append(list, tensor) != 0) {
            Py_DecRef(list);
            list = NULL;
        }
        Py_DecRef(tensor);
    }
    return list;
}

static PyObject* outputs_of(TRITONSERVER_InferenceRequest* request) {
    PyObject* list = PyList_New(0);
    for (Name* output = request->outputs; output != NULL; output = output->next) {
        PyObject* name = tpy_text_of(output->text);
        PyList_Append(list, name);
        Py_DecRef(name);
    }
    return list;
}

/* Call calls.infer(handle, model, version, id, correlation id, flags, priority, timeout, inputs, outputs, parameters). */
static PyObject* submit(TRITONSERVER_InferenceRequest* request) {
    PyObject* inputs = inputs_of(request);
    PyObject* method = inputs == NULL ? NULL : PyObject_GetAttrString(request->server->calls, "infer");
    if (method == NULL) {
        Py_DecRef(inputs);
        return NULL;
    }
    PyObject* values[] = {
        PyLong_FromVoidPtr(request),
        tpy_text_of(request->model),
        PyLong_FromLongLong(request->version),
        tpy_text_of(request->id == NULL ? "" : request->id),
        request->correlation_text == NULL ? PyLong_FromUnsignedLongLong(request->correlation) : tpy_text_of(request->correlation_text),
        PyLong_FromLongLong(request->flags),
        PyLong_FromUnsignedLongLong(request->priority),
        PyLong_FromUnsignedLongLong(request->timeout_us),
        inputs,
        outputs_of(request),
        tpy_parameters_of(request->parameters),
    };
    PyObject* call = PyObject_CallFunctionObjArgs(
        method, values[0], values[1], values[2], values[3], values[4], values[5], values[6], values[7], values[8], values[9],
        values[10], NULL);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) Py_DecRef(values[i]);
    Py_DecRef(method);
    return call;
}

Error* TRITONSERVER_ServerInferAsync(
    TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request, TRITONSERVER_InferenceTrace* trace) {
    (void)trace;
    REQUIRE(server, LIVE_SERVER);
    REQUIRE(request, LIVE_CALL);
    if (request->complete == NULL || request->release == NULL)
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the request has no response callback, or no release callback");
    if (atomic_exchange(&request->under_way, true))
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the request is under way");
    Error* error = NULL;
    for (CallInput* input = request->inputs; error == NULL && input != NULL; input = input->next) error = gather(input);
    atomic_store(&request->cancelled, false);
    if (error == NULL) {
        int state = PyGILState_Ensure();
        request->call = submit(request);
        if (request->call == NULL) error = tpy_call_exception();
        PyGILState_Release(state);
    }
    if (error != NULL) atomic_store(&request->under_way, false);
    return error;
}

Error* TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest* request) {
    REQUIRE(request, LIVE_CALL);
    if (atomic_exchange(&request->cancelled, true) || !atomic_load(&request->under_way)) return NULL;
    int state = PyGILState_Ensure();
    PyObject* method = request->call == NULL ? NULL : PyObject_GetAttrString(request->call, "cancel");
    PyObject* done = method == NULL ? NULL : PyObject_CallFunctionObjArgs(method, NULL);
    if (done == NULL) PyErr_Clear();
    Py_DecRef(done);
    Py_DecRef(method);
    PyGILState_Release(state);
    return NULL;
}

/* ---- responses */

static Error* allocate(
    TRITONSERVER_InferenceRequest* request, TRITONSERVER_InferenceResponse* response, CallOutput* output,
    const TRITONBACKEND_Input* tensor) {
    output->name = tpy_copy(tensor->name);
    output->datatype = tensor->datatype;
    output->dims = tensor->dims;
    output->size = tensor->attributes.size;
    output->shape = calloc(tensor->dims + 1, sizeof *output->shape);
    for (uint32_t i = 0; i < tensor->dims; i++) output->shape[i] = tensor->shape[i];
    Error* error = response->allocator->allocate(
        response->allocator, output->name, output->size, TRITONSERVER_MEMORY_CPU, 0, request->allocator_userp, &output->base,
        &output->userp, &output->memory, &output->memory_id);
    if (error != NULL) return error;
    response->output_count++;
    if (output->size > 0 && (output->base == NULL || output->memory == TRITONSERVER_MEMORY_GPU))
        return tpy_error(TRITONSERVER_ERROR_UNSUPPORTED, "output '%s' was given no buffer in host memory", output->name);
    if (output->size > 0) memcpy(output->base, tensor->base, output->size);
    return NULL;
}

static Error* fill_response(
    TRITONSERVER_InferenceRequest* request, TRITONSERVER_InferenceResponse* response, TRITONBACKEND_Input* tensors,
    uint32_t count) {
    TRITONSERVER_ResponseAllocator* allocator = response->allocator;
    Error* error = allocator->start == NULL ? NULL : allocator->start(allocator, request->allocator_userp);
    for (uint32_t i = 0; error == NULL && i < count; i++) error = allocate(request, response, &response->outputs[i], &tensors[i]);
    return error;
}

/* One response to a call, `final` or not; None in place of a list of tensors for the flag alone. Gives the request back with the last
 * one. Called in a thread of the Python side. */
TPY_API void tpy_call_answer(
    TRITONSERVER_InferenceRequest* request, const char* model, int64_t version, const char* id, PyObject* tensors,
    PyObject* parameters, int code, const char* error, int final) {
    TRITONSERVER_InferenceResponse* response = NULL;
    TRITONBACKEND_Input* inputs = NULL;
    uint32_t count = 0;
    if (tensors != Py_None || error != NULL) {
        response = calloc(1, sizeof *response);
        response->live = LIVE_CALL_RESPONSE;
        response->allocator = request->allocator;
        response->model = tpy_copy(model);
        response->version = version;
        response->id = tpy_copy(id);
        if (error != NULL) response->error = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)code, error);
    }
    if (tensors != Py_None) {
        count = (uint32_t)PyList_Size(tensors);
        inputs = calloc(count + 1, sizeof *inputs);
        response->outputs = calloc(count + 1, sizeof *response->outputs);
        for (uint32_t i = 0; i < count && response->error == NULL; i++) {
            PyObject* tensor = PyList_GetItem(tensors, i);
            PyObject* name = PyObject_GetAttrString(tensor, "name");
            inputs[i].name = name == NULL ? "" : PyUnicode_AsUTF8AndSize(name, NULL); /* which the tensor keeps */
            if (tpy_input_fill(&inputs[i], tensor) != 0) response->error = tpy_exception(TRITONSERVER_ERROR_INTERNAL);
            Py_DecRef(name);
        }
        PyObject *key, *value;
        Py_ssize_t at = 0;
        while (PY_IS_DICT(parameters) && PyDict_Next(parameters, &at, &key, &value)) {
            TRITONSERVER_Parameter* parameter = tpy_parameter_from(PyUnicode_AsUTF8AndSize(key, NULL), value);
            if (parameter == NULL) continue;
            parameter->next = response->parameters;
            response->parameters = parameter;
        }
        PyErr_Clear();
    }
    PyThreadState* state = PyEval_SaveThread();
    if (response != NULL && response->error == NULL) response->error = fill_response(request, response, inputs, count);
    PyEval_RestoreThread(state);
    for (uint32_t i = 0; i < count; i++) tpy_input_clear(&inputs[i]);
    free(inputs);
    if (final) {
        Py_DecRef(request->call);
        request->call = NULL;
    }
    state = PyEval_SaveThread();
    TRITONSERVER_InferenceRequestReleaseFn_t release = request->release;
    void* userp = request->release_userp;
    request->complete(response, final ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, request->complete_userp);
    if (final) {
        atomic_store(&request->under_way, false);
        release(request, TRITONSERVER_REQUEST_RELEASE_ALL, userp);
    }
    PyEval_RestoreThread(state);
}

Error* TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse* response) {
    REQUIRE(response, LIVE_CALL_RESPONSE);
    Error* error = NULL;
    for (uint32_t i = 0; i < response->output_count; i++) {
        CallOutput* output = &response->outputs[i];
        Error* unreleased = response->allocator->release == NULL
                                ? NULL
                                : response->allocator->release(
                                      response->allocator, output->base, output->userp, output->size, output->memory, output->memory_id);
        TRITONSERVER_ErrorDelete(error);
        error = unreleased;
        free(output->name);
        free(output->shape);
    }
    free(response->outputs);
    tpy_parameters_delete(response->parameters);
    TRITONSERVER_ErrorDelete(response->error);
    free(response->model);
    free(response->id);
    response->live = 0;
    free(response);
    return error;
}

/* The error is the response's, and stays so. */
Error* TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse* response) {
    REQUIRE(response, LIVE_CALL_RESPONSE);
    return response->error;
}

Error* TRITONSERVER_InferenceResponseModel(TRITONSERVER_InferenceResponse* response, const char** model, int64_t* version) {
    REQUIRE(response, LIVE_CALL_RESPONSE);
    *model = response->model;
    *version = response->version;
    return NULL;
}

Error* TRITONSERVER_InferenceResponseId(TRITONSERVER_InferenceResponse* response, const char** id) {
    REQUIRE(response, LIVE_CALL_RESPONSE);
    *id = response->id;
    return NULL;
}

Error* TRITONSERVER_InferenceResponseParameterCount(TRITONSERVER_InferenceResponse* response, uint32_t* count) {
    REQUIRE(response, LIVE_CALL_RESPONSE);
    *count = 0;
    for (TRITONSERVER_Parameter* at = response->parameters; at != NULL; at = at->next) ++*count;
    return NULL;
}

Error* TRITONSERVER_InferenceResponseParameter(
    TRITONSERVER_InferenceResponse* response, uint32_t index, const char** name, TRITONSERVER_ParameterType* type,
    const void** value) {
    REQUIRE(response, LIVE_CALL_RESPONSE);
    TRITONSERVER_Parameter* at = response->parameters;
    for (uint32_t i = 0; at != NULL && i < index; i++) at = at->next;
    if (at == NULL) return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u of a response's parameters", index);
    *name = at->name;
    *type = at->type;
    *value = tpy_parameter_value(at);
    return NULL;
}

Error* TRITONSERVER_InferenceResponseOutputCount(TRITONSERVER_InferenceResponse* response, uint32_t* count) {
    REQUIRE(response, LIVE_CALL_RESPONSE);
    *count = response->output_count;
    return NULL;
}

Error* TRITONSERVER_InferenceResponseOutput(
    TRITONSERVER_InferenceResponse* response, uint32_t index, const char** name, DataType* datatype, const int64_t** shape,
    uint64_t* dims, const void** base, size_t* size, TRITONSERVER_MemoryType* memory, int64_t* memory_id, void** userp) {
    REQUIRE(response, LIVE_CALL_RESPONSE);
    if (index >= response->output_count)
        return tpy_error(
            TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u, response has %u outputs", index, response->output_count);
    const CallOutput* output = &response->outputs[index];
    *name = output->name;
    *datatype = output->datatype;
    *shape = output->shape;
    *dims = output->dims;
    *base = output->base;
    *size = output->size;
    *memory = output->memory;
    *memory_id = output->memory_id;
    *userp = output->userp;
    return NULL;
}
