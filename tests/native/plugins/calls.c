/* Calls model "callee" with its own input X as INPUT0, waits, and answers with what OUTPUT0 was: calls of models from C. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonbackend.h"

#define TRY(call)                                                   \
    do {                                                            \
        TRITONSERVER_Error* error_ = (call);                        \
        if (error_ != NULL) return error_;                          \
    } while (0)

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    TRITONSERVER_InferenceResponse* response;
    bool ended, released;
} Call;

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size, TRITONSERVER_MemoryType memory, int64_t memory_id,
    void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id) {
    *buffer = malloc(size ? size : 1);
    *buffer_userp = NULL;
    *actual = TRITONSERVER_MEMORY_CPU;
    *actual_id = 0;
    return NULL;
}

static TRITONSERVER_Error* give_back(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* userp, size_t size, TRITONSERVER_MemoryType memory, int64_t id) {
    free(buffer);
    return NULL;
}

static void complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp) {
    Call* call = userp;
    pthread_mutex_lock(&call->lock);
    if (response != NULL) call->response = response;
    if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) call->ended = true;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

static void released(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp) {
    Call* call = userp;
    TRITONSERVER_ErrorDelete(TRITONSERVER_InferenceRequestDelete(request));
    pthread_mutex_lock(&call->lock);
    call->released = true;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

static TRITONSERVER_Error* send(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, TRITONSERVER_ResponseAllocator* allocator, Call* call) {
    TRITONBACKEND_Model* model;
    TRITONSERVER_Server* server;
    TRITONSERVER_InferenceRequest* made;
    TRITONBACKEND_Input* input;
    TRITONSERVER_DataType datatype;
    const int64_t* shape;
    uint32_t dims;
    uint64_t size;
    const void* data;
    TRITONSERVER_MemoryType memory;
    int64_t memory_id;
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    TRY(TRITONBACKEND_ModelServer(model, &server));
    TRY(TRITONBACKEND_RequestInput(request, "X", &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, NULL, NULL));
    TRY(TRITONBACKEND_InputBuffer(input, 0, &data, &size, &memory, &memory_id));
    TRY(TRITONSERVER_InferenceRequestNew(&made, server, "callee", -1));
    TRY(TRITONSERVER_InferenceRequestSetId(made, "called"));
    TRY(TRITONSERVER_InferenceRequestAddInput(made, "INPUT0", datatype, shape, dims));
    TRY(TRITONSERVER_InferenceRequestAppendInputData(made, "INPUT0", data, size / 2, memory, memory_id)); /* in two parts */
    TRY(TRITONSERVER_InferenceRequestAppendInputData(made, "INPUT0", (const char*)data + size / 2, size - size / 2, memory, memory_id));
    TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(made, "OUTPUT0"));
    TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(made, released, call));
    TRY(TRITONSERVER_InferenceRequestSetResponseCallback(made, allocator, NULL, complete, call));
    return TRITONSERVER_ServerInferAsync(server, made, NULL);
}

static TRITONSERVER_Error* answer(TRITONBACKEND_Response* response, TRITONSERVER_InferenceResponse* called) {
    const char* name;
    TRITONSERVER_DataType datatype;
    const int64_t* shape;
    uint64_t dims;
    const void* base;
    size_t size;
    TRITONSERVER_MemoryType memory;
    int64_t memory_id;
    void *userp, *target;
    TRITONBACKEND_Output* output;
    TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(called);
    if (error != NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
    TRY(TRITONSERVER_InferenceResponseOutput(
        called, 0, &name, &datatype, &shape, &dims, &base, &size, &memory, &memory_id, &userp));
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "Y", datatype, shape, (uint32_t)dims));
    TRY(TRITONBACKEND_OutputBuffer(output, &target, size, &memory, &memory_id));
    memcpy(target, base, size);
    return NULL;
}

static TRITONSERVER_Error* execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, TRITONBACKEND_Response* response) {
    Call call = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, false, false};
    TRITONSERVER_ResponseAllocator* allocator;
    TRY(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, give_back, NULL));
    TRY(send(instance, request, allocator, &call));
    pthread_mutex_lock(&call.lock);
    while (!call.ended || !call.released) pthread_cond_wait(&call.changed, &call.lock);
    pthread_mutex_unlock(&call.lock);
    TRITONSERVER_Error* error = answer(response, call.response);
    TRITONSERVER_ErrorDelete(TRITONSERVER_InferenceResponseDelete(call.response));
    TRITONSERVER_ErrorDelete(TRITONSERVER_ResponseAllocatorDelete(allocator));
    return error;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        TRITONBACKEND_Response* response;
        TRY(TRITONBACKEND_ResponseNew(&response, requests[i]));
        TRITONSERVER_Error* error = execute(instance, requests[i], response);
        TRY(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
        TRITONSERVER_ErrorDelete(error);
        TRY(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
    }
    return NULL;
}
