/* OUTPUT<n> is INPUT<n>: a backend with nothing in it that is not needed. One response for each request, in host memory. */
#include <string.h>
#include <time.h>

#include "triton/core/tritonbackend.h"

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#define TRY(call)                                                   \
    do {                                                            \
        TRITONSERVER_Error* error_ = (call);                        \
        if (error_ != NULL) return error_;                          \
    } while (0)

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
    const char* name;
    uint32_t major, minor;
    TRY(TRITONBACKEND_BackendName(backend, &name));
    TRY(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != TRITONBACKEND_API_VERSION_MAJOR || minor < TRITONBACKEND_API_VERSION_MINOR)
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "the server's API is older than this backend's");
    return NULL;
}

/* Copy input `index` into a response. */
static TRITONSERVER_Error* copy_input(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, uint32_t index) {
    TRITONBACKEND_Input* input;
    TRITONBACKEND_Output* output;
    const char* name;
    TRITONSERVER_DataType datatype;
    const int64_t* shape;
    uint32_t dims, buffers;
    uint64_t size;
    TRY(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    TRY(TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, &size, &buffers));
    if (strncmp(name, "INPUT", 5) != 0) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "inputs are called INPUT<n>");
    char output_name[64] = "OUTPUT";
    strncat(output_name, name + 5, sizeof output_name - 8);
    TRY(TRITONBACKEND_ResponseOutput(response, &output, output_name, datatype, shape, dims));
    void* target;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    TRY(TRITONBACKEND_OutputBuffer(output, &target, size, &memory, &memory_id));
    for (uint32_t i = 0; i < buffers; i++) {
        const void* source;
        uint64_t part;
        TRY(TRITONBACKEND_InputBuffer(input, i, &source, &part, &memory, &memory_id));
        memcpy(target, source, part);
        target = (char*)target + part;
    }
    return NULL;
}

static TRITONSERVER_Error* answer(TRITONBACKEND_Request* request) {
    TRITONBACKEND_Response* response;
    uint32_t inputs;
    TRY(TRITONBACKEND_ResponseNew(&response, request));
    TRITONSERVER_Error* error = TRITONBACKEND_RequestInputCount(request, &inputs);
    for (uint32_t i = 0; error == NULL && i < inputs; i++) error = copy_input(request, response, i);
    TRITONSERVER_Error* unsent = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error);
    TRITONSERVER_ErrorDelete(error);
    return unsent;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
    uint64_t start_ns = now_ns();
    for (uint32_t i = 0; i < count; i++) {
        TRITONSERVER_ErrorDelete(answer(requests[i]));
    }
    uint64_t end_ns = now_ns();
    for (uint32_t i = 0; i < count; i++) {
        TRITONSERVER_ErrorDelete(
            TRITONBACKEND_ModelInstanceReportStatistics(instance, requests[i], true, start_ns, start_ns, end_ns, end_ns));
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
    }
    TRITONSERVER_ErrorDelete(
        TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, count, start_ns, start_ns, end_ns, end_ns));
    return NULL;
}
