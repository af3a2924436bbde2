/* A backend: output Y is input X times the model's parameter "factor". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonbackend.h"

/* Functions of the interface return NULL, or an error, which goes to whoever called us. */
#define TRY(call)                                   \
    do {                                            \
        TRITONSERVER_Error* error_ = (call);        \
        if (error_ != NULL) return error_;          \
    } while (0)

/* Called when a model is loaded: read the configuration, and keep what the instances need. */
TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
    TRITONSERVER_Message* config;
    const char* json;
    size_t size;
    TRY(TRITONBACKEND_ModelConfig(model, 1, &config));
    TRY(TRITONSERVER_MessageSerializeToJson(config, &json, &size));
    float* factor = malloc(sizeof *factor);
    const char* found = strstr(json, "\"factor\":{\"string_value\":\""); /* a real backend has a JSON library */
    bool is_number = found != NULL && sscanf(found + 26, "%f", factor) == 1;
    TRY(TRITONSERVER_MessageDelete(config));
    if (!is_number) {
        free(factor);
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "parameter 'factor' has to be a number");
    }
    return TRITONBACKEND_ModelSetState(model, factor);
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
    void* factor;
    TRY(TRITONBACKEND_ModelState(model, &factor));
    free(factor);
    return NULL;
}

static TRITONSERVER_Error* scale(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, float factor) {
    TRITONBACKEND_Input* input;
    TRITONBACKEND_Output* output;
    TRITONSERVER_DataType datatype;
    const int64_t* shape;
    uint32_t dims, buffers;
    uint64_t size;
    TRY(TRITONBACKEND_RequestInput(request, "X", &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, &size, &buffers));
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "Y", datatype, shape, dims));
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    void* target;
    TRY(TRITONBACKEND_OutputBuffer(output, &target, size, &memory, &memory_id));
    float* to = target;
    for (uint32_t i = 0; i < buffers; i++) { /* an input may be in several pieces */
        const void* source;
        TRY(TRITONBACKEND_InputBuffer(input, i, &source, &size, &memory, &memory_id));
        for (const float* from = source; from < (const float*)source + size / sizeof *from; from++) *to++ = *from * factor;
    }
    return NULL;
}

/* The one function that has to be there: answer and release every request of a batch. */
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
    TRITONBACKEND_Model* model;
    void* factor;
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    TRY(TRITONBACKEND_ModelState(model, &factor)); /* up to here an error is every request's, and they are still the server's */
    for (uint32_t i = 0; i < count; i++) {
        TRITONBACKEND_Response* response;
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseNew(&response, requests[i]));
        TRITONSERVER_Error* error = scale(requests[i], response, *(float*)factor);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
        TRITONSERVER_ErrorDelete(error);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
    }
    return NULL;
}
