/* Responses, factories and state tensors, as plug-ins see them. */
#include <stdio.h>

#include "host.h"

static Error* buffer_of(Output* output, void** buffer, uint64_t size, TRITONSERVER_MemoryType* memory, int64_t* memory_id) {
    *buffer = NULL;
    if (output->memory != NULL)
        return tpy_error(TRITONSERVER_ERROR_ALREADY_EXISTS, "allocated buffer for output '%s' already exists", output->name);
    output->memory = tpy_memory_new(size);
    if (output->memory == NULL)
        return tpy_error(
            TRITONSERVER_ERROR_UNAVAILABLE, "no %llu bytes of memory for output '%s'", (unsigned long long)size, output->name);
    output->attributes.size = size;
    *buffer = MEMORY_DATA(output->memory);
    *memory = TRITONSERVER_MEMORY_CPU; /* whatever was preferred */
    *memory_id = 0;
    return NULL;
}

static Error* require_tensor(const char* name, DataType datatype, const int64_t* shape, uint32_t dims) {
    if (name == NULL || (dims && shape == NULL)) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "an output needs a name and a shape");
    if (datatype <= TRITONSERVER_TYPE_INVALID || datatype > TRITONSERVER_TYPE_BF16)
        return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "output '%s' has no valid datatype: %d", name, (int)datatype);
    if (dims > 64 || tpy_element_count(shape, dims) == UINT64_MAX)
        return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "output '%s' has no valid shape", name);
    return NULL;
}

/* ---- responses */

static TRITONBACKEND_Response* response_new(TRITONBACKEND_Request* request) {
    TRITONBACKEND_Response* response = calloc(1, sizeof *response);
    response->live = LIVE_RESPONSE;
    response->request = request;
    response->outputs_end = &response->outputs;
    tpy_request_hold(request);
    return response;
}

Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response** response, TRITONBACKEND_Request* request) {
    *response = NULL;
    REQUIRE(request, LIVE_REQUEST);
    *response = response_new(request);
    return NULL;
}

Error* TRITONBACKEND_ResponseNewFromFactory(TRITONBACKEND_Response** response, TRITONBACKEND_ResponseFactory* factory) {
    *response = NULL;
    REQUIRE(factory, LIVE_FACTORY);
    *response = response_new(factory->request);
    return NULL;
}

Error* TRITONBACKEND_ResponseDelete(TRITONBACKEND_Response* response) {
    REQUIRE(response, LIVE_RESPONSE);
    TRITONBACKEND_Request* request = response->request;
    tpy_response_delete(response);
    tpy_request_let_go(request);
    return NULL;
}

static Error* add_parameter(
    TRITONBACKEND_Response* response, const char* name, TRITONSERVER_ParameterType type, const void* value) {
    REQUIRE(response, LIVE_RESPONSE);
    TRITONSERVER_Parameter* parameter = tpy_parameter(name, type, value);
    parameter->next = response->parameters;
    response->parameters = parameter;
    return NULL;
}

Error* TRITONBACKEND_ResponseSetStringParameter(TRITONBACKEND_Response* response, const char* name, const char* value) {
    return add_parameter(response, name, TRITONSERVER_PARAMETER_STRING, value);
}

Error* TRITONBACKEND_ResponseSetIntParameter(TRITONBACKEND_Response* response, const char* name, int64_t value) {
    return add_parameter(response, name, TRITONSERVER_PARAMETER_INT, &value);
}

Error* TRITONBACKEND_ResponseSetBoolParameter(TRITONBACKEND_Response* response, const char* name, bool value) {
    return add_parameter(response, name, TRITONSERVER_PARAMETER_BOOL, &value);
}

Error* TRITONBACKEND_ResponseSetDoubleParameter(TRITONBACKEND_Response* response, const char* name, double value) {
    return add_parameter(response, name, TRITONSERVER_PARAMETER_DOUBLE, &value);
}

Error* TRITONBACKEND_ResponseOutput(
    TRITONBACKEND_Response* response, TRITONBACKEND_Output** made, const char* name, DataType datatype, const int64_t* shape,
    uint32_t dims) {
    *made = NULL;
    REQUIRE(response, LIVE_RESPONSE);
    Error* error = require_tensor(name, datatype, shape, dims);
    if (error != NULL) return error;
    Output* output = tpy_output_new(name, datatype, shape, dims);
    output->response = response;
    *response->outputs_end = output;
    response->outputs_end = &output->next;
    *made = (TRITONBACKEND_Output*)output;
    return NULL;
}

Error* TRITONBACKEND_OutputBuffer(
    TRITONBACKEND_Output* output, void** buffer, uint64_t size, TRITONSERVER_MemoryType* memory, int64_t* memory_id) {
    *buffer = NULL;
    REQUIRE((Output*)output, LIVE_OUTPUT);
    return buffer_of(&output->output, buffer, size, memory, memory_id);
}

Error* TRITONBACKEND_OutputBufferAttributes(TRITONBACKEND_Output* output, TRITONSERVER_BufferAttributes** attributes) {
    *attributes = NULL;
    REQUIRE((Output*)output, LIVE_OUTPUT);
    *attributes = &output->output.attributes;
    return NULL;
}

Error* TRITONBACKEND_InferenceResponseOutput(
    TRITONBACKEND_Response* response, uint32_t index, const char** name, DataType* datatype, const int64_t** shape,
    uint64_t* dims) {
    REQUIRE(response, LIVE_RESPONSE);
    uint32_t at = 0;
    for (Output* output = response->outputs; output != NULL; output = output->next, at++)
        if (at == index) {
            *name = output->name;
            *datatype = output->datatype;
            *shape = output->shape;
            *dims = output->dims;
            return NULL;
        }
    return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "out of bounds index %u, response has %u outputs", index, at);
}

Error* TRITONBACKEND_InferenceResponseOutputByName(
    TRITONBACKEND_Response* response, const char* name, DataType* datatype, const int64_t** shape, uint64_t* dims) {
    REQUIRE(response, LIVE_RESPONSE);
    for (Output* output = response->outputs; output != NULL; output = output->next)
        if (strcmp(output->name, name) == 0) {
            *datatype = output->datatype;
            *shape = output->shape;
            *dims = output->dims;
            return NULL;
        }
    return tpy_error(TRITONSERVER_ERROR_NOT_FOUND, "output name %s not found", name);
}

/* ---- sending */

/* Hand a response (or none, with `final`) to whoever waits on the Python side. Takes the response, but not what it holds of the
 * request. */
static Error* deliver(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, bool final) {
    int state = PyGILState_Ensure();
    PyObject* result = response == NULL ? Py_None : tpy_result_of(response, request->states);
    PyObject* flag = PyBool_FromLong(final);
    PyObject* done = result == NULL ? NULL : PyObject_CallFunctionObjArgs(tpy_python.send, request->sender, result, flag, NULL);
    Error* error = done == NULL ? tpy_exception(TRITONSERVER_ERROR_INVALID_ARG) : NULL;
    Py_DecRef(done);
    Py_DecRef(flag);
    if (response != NULL) {
        Py_DecRef(result);
        tpy_response_delete(response);
    }
    PyGILState_Release(state);
    return error;
}

static Error* answered_before(void) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "the request was answered before");
}

static Error* send(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, bool final) {
    Batch* batch = request->batch;
    if (batch->instance->model->decoupled) {
        pthread_mutex_lock(&batch->lock);
        bool over = request->answer_state == OVER;
        if (final) request->answer_state = OVER;
        pthread_mutex_unlock(&batch->lock);
        if (!over) return deliver(request, response, final);
        if (response != NULL) tpy_response_delete(response);
        return answered_before();
    }
    if (response == NULL) return NULL; /* of a model that answers once, the response itself is the end */
    pthread_mutex_lock(&batch->lock);
    AnswerState before = request->answer_state;
    if (before == WAITING) {
        request->answer_state = ANSWERED;
        request->answer = response;
    } else if (before == LATE) {
        request->answer_state = OVER;
    }
    pthread_mutex_unlock(&batch->lock);
    if (before == WAITING) return NULL;
    if (before == LATE) return deliver(request, response, true);
    tpy_response_delete(response);
    return answered_before();
}

Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response* response, uint32_t flags, Error* error) {
    REQUIRE(response, LIVE_RESPONSE);
    TRITONBACKEND_Request* request = response->request;
    response->live = 0; /* it may not be touched from here on */
    if (error != NULL) response->error = TRITONSERVER_ErrorNew(error->code, error->message);
    for (Output* output = response->outputs; output != NULL; output = output->next)
        if (output->memory != NULL && !tpy_memory_is_whole(output->memory)) {
            atomic_store(&request->batch->instance->damaged, true);
            TRITONSERVER_ErrorDelete(response->error);
            response->error = tpy_error(TRITONSERVER_ERROR_INTERNAL, "output '%s' was written beyond its buffer", output->name);
        }
    Error* refused = send(request, response, (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0);
    tpy_request_let_go(request);
    return refused;
}

/* ---- factories */

Error* TRITONBACKEND_ResponseFactoryNew(TRITONBACKEND_ResponseFactory** factory, TRITONBACKEND_Request* request) {
    *factory = NULL;
    REQUIRE(request, LIVE_REQUEST);
    TRITONBACKEND_ResponseFactory* made = calloc(1, sizeof *made);
    made->live = LIVE_FACTORY;
    made->request = request;
    tpy_request_hold(request);
    *factory = made;
    return NULL;
}

Error* TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory* factory) {
    REQUIRE(factory, LIVE_FACTORY);
    TRITONBACKEND_Request* request = factory->request;
    factory->live = 0;
    free(factory);
    tpy_request_let_go(request);
    return NULL;
}

Error* TRITONBACKEND_ResponseFactorySendFlags(TRITONBACKEND_ResponseFactory* factory, uint32_t flags) {
    REQUIRE(factory, LIVE_FACTORY);
    if (!(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)) return NULL;
    return send(factory->request, NULL, true);
}

Error* TRITONBACKEND_ResponseFactoryIsCancelled(TRITONBACKEND_ResponseFactory* factory, bool* is_cancelled) {
    REQUIRE(factory, LIVE_FACTORY);
    return tpy_request_is_cancelled(factory->request, is_cancelled);
}

/* ---- implicit state: what is updated goes to the Python side among the outputs */

Error* TRITONBACKEND_StateNew(
    TRITONBACKEND_State** made, TRITONBACKEND_Request* request, const char* name, DataType datatype, const int64_t* shape,
    uint32_t dims) {
    *made = NULL;
    REQUIRE(request, LIVE_REQUEST);
    Error* error = require_tensor(name, datatype, shape, dims);
    if (error != NULL) return error;
    TRITONBACKEND_State* state = calloc(1, sizeof *state);
    state->live = LIVE_STATE;
    state->output = tpy_output_new(name, datatype, shape, dims);
    state->next = request->states;
    request->states = state;
    *made = state;
    return NULL;
}

Error* TRITONBACKEND_StateBuffer(
    TRITONBACKEND_State* state, void** buffer, uint64_t size, TRITONSERVER_MemoryType* memory, int64_t* memory_id) {
    REQUIRE(state, LIVE_STATE);
    return buffer_of(state->output, buffer, size, memory, memory_id);
}

Error* TRITONBACKEND_StateBufferAttributes(TRITONBACKEND_State* state, TRITONSERVER_BufferAttributes** attributes) {
    REQUIRE(state, LIVE_STATE);
    *attributes = &state->output->attributes;
    return NULL;
}

Error* TRITONBACKEND_StateUpdate(TRITONBACKEND_State* state) {
    REQUIRE(state, LIVE_STATE);
    state->updated = true;
    return NULL;
}
