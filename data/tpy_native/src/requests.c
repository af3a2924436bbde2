/* Requests of a batch and their inputs, as plug-ins see them; their memory, and how long they live. */
#include <stdio.h>

#include "host.h"

#define GET(name, type, expression)                                                       \
    Error* TRITONBACKEND_##name(TRITONBACKEND_Request* request, type* value) {            \
        REQUIRE(request, LIVE_REQUEST);                                                   \
        *value = (expression);                                                            \
        return NULL;                                                                      \
    }

GET(RequestId, const char*, request->id)
GET(RequestFlags, uint32_t, request->flags)
GET(InferenceRequestTimeoutMicroseconds, uint64_t, request->timeout_us)
GET(RequestParameterCount, uint32_t, request->parameter_count)
GET(RequestInputCount, uint32_t, request->input_count)
GET(RequestOutputCount, uint32_t, request->output_count)
GET(RequestTrace, TRITONSERVER_InferenceTrace*, NULL)

Error* TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request* request, uint64_t* id) {
    REQUIRE(request, LIVE_REQUEST);
    if (request->correlation_text != NULL)
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "given request's correlation id is not an unsigned int");
    *id = request->correlation;
    return NULL;
}

Error* TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request* request, const char** id) {
    REQUIRE(request, LIVE_REQUEST);
    if (request->correlation_text == NULL)
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "given request's correlation id is not a string");
    *id = request->correlation_text;
    return NULL;
}

Error* tpy_request_is_cancelled(TRITONBACKEND_Request* request, bool* is_cancelled) {
    int state = PyGILState_Ensure();
    PyObject* method = PyObject_GetAttrString(request->python, "is_cancelled");
    PyObject* answer = method == NULL ? NULL : PyObject_CallFunctionObjArgs(method, NULL);
    Error* error = answer == NULL ? tpy_exception(TRITONSERVER_ERROR_INTERNAL) : NULL;
    *is_cancelled = answer != NULL && PyObject_IsTrue(answer) == 1;
    Py_DecRef(answer);
    Py_DecRef(method);
    PyGILState_Release(state);
    return error;
}

Error* TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request* request, bool* is_cancelled) {
    REQUIRE(request, LIVE_REQUEST);
    return tpy_request_is_cancelled(request, is_cancelled);
}

static Error* bounds(const char* what, uint32_t index, uint32_t count) {
    return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u, request has %u %s", index, count, what);
}

Error* TRITONBACKEND_RequestParameter(
    TRITONBACKEND_Request* request, uint32_t index, const char** key, TRITONSERVER_ParameterType* type, const void** value) {
    REQUIRE(request, LIVE_REQUEST);
    *key = NULL;
    *value = NULL;
    if (index >= request->parameter_count) return bounds("parameters", index, request->parameter_count);
    *key = request->parameters[index]->name;
    *type = request->parameters[index]->type;
    *value = tpy_parameter_value(request->parameters[index]);
    return NULL;
}

Error* TRITONBACKEND_RequestInputName(TRITONBACKEND_Request* request, uint32_t index, const char** name) {
    REQUIRE(request, LIVE_REQUEST);
    *name = NULL;
    if (index >= request->input_count) return bounds("inputs", index, request->input_count);
    *name = request->inputs[index].name;
    return NULL;
}

Error* TRITONBACKEND_RequestInput(TRITONBACKEND_Request* request, const char* name, TRITONBACKEND_Input** input) {
    REQUIRE(request, LIVE_REQUEST);
    for (uint32_t i = 0; i < request->input_count; i++)
        if (strcmp(request->inputs[i].name, name) == 0) {
            *input = &request->inputs[i];
            return NULL;
        }
    *input = NULL;
    return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "unknown request input name %s", name);
}

Error* TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request* request, uint32_t index, TRITONBACKEND_Input** input) {
    REQUIRE(request, LIVE_REQUEST);
    *input = NULL;
    if (index >= request->input_count) return bounds("inputs", index, request->input_count);
    *input = &request->inputs[index];
    return NULL;
}

Error* TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request* request, uint32_t index, const char** name) {
    REQUIRE(request, LIVE_REQUEST);
    *name = NULL;
    if (index >= request->output_count) return bounds("requested outputs", index, request->output_count);
    *name = request->outputs[index];
    return NULL;
}

/* Outputs are always made in host memory; how large they may be is not known before. */
Error* TRITONBACKEND_RequestOutputBufferProperties(
    TRITONBACKEND_Request* request, const char* name, size_t* size, TRITONSERVER_MemoryType* memory, int64_t* memory_id) {
    REQUIRE(request, LIVE_REQUEST);
    (void)name, (void)size;
    *memory = TRITONSERVER_MEMORY_CPU;
    *memory_id = 0;
    return NULL;
}

/* ---- inputs: each has one buffer, in host memory */

Error* TRITONBACKEND_InputProperties(
    TRITONBACKEND_Input* input, const char** name, DataType* datatype, const int64_t** shape, uint32_t* dims, uint64_t* size,
    uint32_t* buffers) {
    if (name != NULL) *name = input->name;
    if (datatype != NULL) *datatype = input->datatype;
    if (shape != NULL) *shape = input->shape;
    if (dims != NULL) *dims = input->dims;
    if (size != NULL) *size = input->attributes.size;
    if (buffers != NULL) *buffers = 1;
    return NULL;
}

Error* TRITONBACKEND_InputPropertiesForHostPolicy(
    TRITONBACKEND_Input* input, const char* policy, const char** name, DataType* datatype, const int64_t** shape, uint32_t* dims,
    uint64_t* size, uint32_t* buffers) {
    (void)policy; /* data of one host policy only is a thing of Triton's C interface to programs */
    return TRITONBACKEND_InputProperties(input, name, datatype, shape, dims, size, buffers);
}

Error* TRITONBACKEND_InputBuffer(
    TRITONBACKEND_Input* input, uint32_t index, const void** buffer, uint64_t* size, TRITONSERVER_MemoryType* memory,
    int64_t* memory_id) {
    if (index > 0) {
        *buffer = NULL;
        *size = 0;
        return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u, input '%s' has 1 buffer", index, input->name);
    }
    Error* error = input->is_deferred ? tpy_input_fetch(input) : NULL;
    if (error != NULL) return error;
    *buffer = input->base;
    *size = input->attributes.size;
    *memory = TRITONSERVER_MEMORY_CPU;
    *memory_id = 0;
    return NULL;
}

Error* TRITONBACKEND_InputBufferForHostPolicy(
    TRITONBACKEND_Input* input, const char* policy, uint32_t index, const void** buffer, uint64_t* size,
    TRITONSERVER_MemoryType* memory, int64_t* memory_id) {
    (void)policy;
    return TRITONBACKEND_InputBuffer(input, index, buffer, size, memory, memory_id);
}

Error* TRITONBACKEND_InputBufferAttributes(
    TRITONBACKEND_Input* input, uint32_t index, const void** buffer, TRITONSERVER_BufferAttributes** attributes) {
    uint64_t size;
    TRITONSERVER_MemoryType memory;
    int64_t memory_id;
    *attributes = &input->attributes;
    return TRITONBACKEND_InputBuffer(input, index, buffer, &size, &memory, &memory_id);
}

/* ---- memory: of two batches in turn, so that a request which is released twice is still known as released */

void* tpy_batch_memory(Batch* batch, size_t size) {
    size = (size + 15) & ~(size_t)15;
    if (batch->arena_used + size <= batch->arena_size) {
        void* memory = batch->arena + batch->arena_used;
        batch->arena_used += size;
        return memory;
    }
    void** block = malloc(sizeof(void*) * 2 + size);
    block[0] = batch->overflow;
    batch->overflow = block;
    return block + 2;
}

Batch* tpy_batch_open(TRITONBACKEND_ModelInstance* instance, uint32_t count) {
    Batch* batch = instance->idle;
    if (batch == NULL) {
        batch = calloc(1, sizeof *batch);
        pthread_mutex_init(&batch->lock, NULL);
        batch->instance = instance;
        batch->arena_size = 4096;
        batch->arena = malloc(batch->arena_size);
    }
    instance->idle = NULL;
    batch->arena_used = 0;
    batch->collected = false;
    batch->error = NULL;
    batch->count = count;
    batch->open = 0;
    batch->requests = tpy_batch_memory(batch, count * sizeof *batch->requests);
    batch->pointers = tpy_batch_memory(batch, count * sizeof *batch->pointers);
    memset(batch->requests, 0, count * sizeof *batch->requests);
    instance->compute_start_ns = instance->compute_end_ns = 0;
    return batch;
}

static void free_overflow(Batch* batch) {
    while (batch->overflow != NULL) {
        void* block = batch->overflow;
        batch->overflow = *(void**)block;
        free(block);
    }
}

void tpy_batch_free(Batch* batch) {
    if (batch == NULL) return;
    free_overflow(batch);
    pthread_mutex_destroy(&batch->lock);
    free(batch->arena);
    free(batch);
}

void tpy_batch_close(Batch* batch) {
    TRITONBACKEND_ModelInstance* instance = batch->instance;
    TRITONSERVER_ErrorDelete(batch->error);
    batch->error = NULL;
    if (instance->last == batch) return;
    if (instance->idle != NULL) tpy_batch_free(instance->idle);
    instance->idle = instance->last;
    if (instance->idle != NULL) free_overflow(instance->idle);
    instance->last = batch;
}

/* ---- life */

void tpy_request_hold(TRITONBACKEND_Request* request) {
    pthread_mutex_lock(&request->batch->lock);
    request->references++;
    pthread_mutex_unlock(&request->batch->lock);
}

static void send_failure(TRITONBACKEND_Request* request, TRITONSERVER_Error_Code code, const char* text) {
    PyObject* failure = tpy_failure_of(code, text);
    PyObject* final = PyBool_FromLong(1);
    PyObject* done = failure == NULL ? NULL : PyObject_CallFunctionObjArgs(tpy_python.send, request->sender, failure, final, NULL);
    if (done == NULL) PyErr_Clear(); /* it has ended in another way */
    Py_DecRef(done);
    Py_DecRef(final);
    Py_DecRef(failure);
}

void tpy_request_drop(TRITONBACKEND_Request* request) {
    Batch* batch = request->batch;
    TRITONBACKEND_Model* model = batch->instance->model;
    bool waited_for = model->decoupled ? request->answer_state != OVER : request->answer_state == LATE;
    if (waited_for && !request->rescheduled && request->sender != NULL) {
        char text[256];
        snprintf(text, sizeof text, "backend '%.100s' released the request without its final response", model->backend->name);
        if (batch->error != NULL) {
            send_failure(request, batch->error->code, batch->error->message);
        } else {
            send_failure(request, TRITONSERVER_ERROR_INTERNAL, text);
        }
    }
    request->answer_state = OVER;
    if (request->answer != NULL) tpy_response_delete(request->answer);
    request->answer = NULL;
    for (TRITONBACKEND_State *state = request->states, *next; state != NULL; state = next) {
        next = state->next;
        tpy_output_delete(state->output, batch->instance);
        state->live = 0;
        free(state);
    }
    request->states = NULL;
    for (uint32_t i = 0; i < request->input_count; i++) {
        tpy_input_clear(&request->inputs[i]);
        Py_DecRef(request->inputs[i].key);
    }
    for (uint32_t i = 0; i < request->parameter_count; i++) TRITONSERVER_ParameterDelete(request->parameters[i]);
    request->input_count = request->parameter_count = 0;
    Py_DecRef(request->python);
    Py_DecRef(request->sender);
    Py_DecRef(request->strings);
    request->python = request->sender = request->strings = NULL;
    request->references = 0;
    request->live = RELEASED_REQUEST;
    batch->instance->held--;
    if (--batch->open == 0) tpy_batch_close(batch);
}

/* When nobody of the plug-in's side holds the request any more, nothing can answer it; and when the host does not either, it ends. */
void tpy_request_let_go(TRITONBACKEND_Request* request) {
    Batch* batch = request->batch;
    pthread_mutex_lock(&batch->lock);
    int left = --request->references;
    bool collected = batch->collected;
    pthread_mutex_unlock(&batch->lock);
    if (left > 1 || !collected) return;
    int state = PyGILState_Ensure();
    tpy_request_drop(request);
    PyGILState_Release(state);
}

Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request* request, uint32_t flags) {
    if (request != NULL && request->live == RELEASED_REQUEST)
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "TRITONBACKEND_RequestRelease: the request was released before");
    REQUIRE(request, LIVE_REQUEST);
    request->live = RELEASED_REQUEST;
    if (flags & TRITONSERVER_REQUEST_RELEASE_RESCHEDULE) request->rescheduled = true;
    tpy_request_let_go(request);
    return NULL;
}
