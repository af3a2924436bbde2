/* A hostile backend: what it calls, and of what, is written in the bytes of its request's input: groups of a function, an object and
 * an argument. Handles are those that it has been given at any time, also those that are gone; names may be NULL, enums may be none. */
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonbackend.h"

enum { HANDLES = 8 };

static struct {
    TRITONBACKEND_Request* requests[HANDLES];
    TRITONBACKEND_Response* responses[HANDLES];
    TRITONBACKEND_ResponseFactory* factories[HANDLES];
    TRITONSERVER_Message* messages[HANDLES];
    TRITONSERVER_MetricFamily* families[HANDLES];
    TRITONSERVER_Metric* metrics[HANDLES];
    TRITONBACKEND_Output* outputs[HANDLES];
    TRITONBACKEND_State* states[HANDLES];
    void* buffers[HANDLES];
    uint64_t sizes[HANDLES];
} had;

static const char* const NAMES[] = {"Y", "", "Z", NULL};
static int64_t shapes[][2] = {{1, 4}, {-1, 4}, {1LL << 40, 1LL << 40}, {0, 0}};

static void call(TRITONBACKEND_ModelInstance* instance, unsigned function, unsigned of, unsigned value) {
    unsigned at = of % HANDLES;
    const char* name = NAMES[value % 4];
    TRITONBACKEND_Request* request = had.requests[at];
    TRITONBACKEND_Response* response = had.responses[at];
    TRITONSERVER_MemoryType memory = (TRITONSERVER_MemoryType)(value % 5);
    TRITONSERVER_Error *error = NULL, *own = NULL;
    TRITONBACKEND_Input* input = NULL;
    TRITONSERVER_BufferAttributes* attributes;
    TRITONBACKEND_Model* model;
    const char* text;
    const void* data;
    uint32_t number;
    uint64_t size;
    int64_t memory_id = (int64_t)value;
    bool truth;
    switch (function % 33) {
        case 0: error = TRITONBACKEND_RequestRelease(request, value); break;
        case 1: error = TRITONBACKEND_ResponseNew(&had.responses[value % HANDLES], request); break;
        case 2: error = TRITONBACKEND_ResponseSend(response, value & 1, NULL); break;
        case 3:
            own = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)value, name);
            error = TRITONBACKEND_ResponseSend(response, value & 1, own);
            TRITONSERVER_ErrorDelete(own);
            break;
        case 4: error = TRITONBACKEND_ResponseDelete(response); break;
        case 5: error = TRITONBACKEND_ResponseFactoryNew(&had.factories[value % HANDLES], request); break;
        case 6: error = TRITONBACKEND_ResponseFactoryDelete(had.factories[at]); break;
        case 7: error = TRITONBACKEND_ResponseNewFromFactory(&had.responses[value % HANDLES], had.factories[at]); break;
        case 8: error = TRITONBACKEND_ResponseFactorySendFlags(had.factories[at], value); break;
        case 9:
            error = TRITONBACKEND_ResponseOutput(
                response, &had.outputs[value % HANDLES], name == NULL ? "Y" : name, (TRITONSERVER_DataType)(value % 20), shapes[value % 4], 2);
            break;
        case 10:
            if (had.outputs[at] == NULL) break;
            error = TRITONBACKEND_OutputBuffer(had.outputs[at], &had.buffers[at], value, &memory, &memory_id);
            had.sizes[at] = error == NULL ? value : 0;
            break;
        case 11: /* beyond its end */
            if (had.buffers[at] != NULL) memset((char*)had.buffers[at] + had.sizes[at], 1, value % 16);
            break;
        case 12: /* within, perhaps when it is gone */
            if (had.buffers[at] != NULL) memset(had.buffers[at], 1, had.sizes[at]);
            break;
        case 13: error = TRITONBACKEND_ResponseSetStringParameter(response, name == NULL ? "p" : name, "text"); break;
        case 14: error = TRITONBACKEND_RequestInputName(request, value, &text); break;
        case 15: error = TRITONBACKEND_RequestInputByIndex(request, value % 3, &input); break;
        case 16:
            error = TRITONBACKEND_RequestInputByIndex(request, 0, &input);
            if (error == NULL) error = TRITONBACKEND_InputBuffer(input, value % 3, &data, &size, &memory, &memory_id);
            break;
        case 17: error = TRITONBACKEND_RequestIsCancelled(request, &truth); break;
        case 18: error = TRITONBACKEND_RequestOutputName(request, value, &text); break;
        case 19: error = TRITONBACKEND_RequestParameterCount(request, &number); break;
        case 20:
            error = TRITONBACKEND_ModelInstanceModel(instance, &model);
            if (error == NULL) error = TRITONBACKEND_ModelConfig(model, value % 3, &had.messages[at]);
            break;
        case 21: error = TRITONSERVER_MessageDelete(had.messages[at]); break;
        case 22: error = TRITONBACKEND_ModelInstanceReportStatistics(instance, request, true, value, 0, value, 1); break;
        case 23: error = TRITONSERVER_LogMessage((TRITONSERVER_LogLevel)(value % 9), name, (int)value, name); break;
        case 24:
            error = TRITONSERVER_MetricFamilyNew(
                &had.families[at], (TRITONSERVER_MetricKind)(value % 5), name == NULL ? "nv_hostile" : name, "help");
            break;
        case 25: error = TRITONSERVER_MetricFamilyDelete(had.families[at]); break;
        case 26: error = TRITONSERVER_MetricNew(&had.metrics[at], had.families[value % HANDLES], NULL, 0); break;
        case 27: error = TRITONSERVER_MetricSet(had.metrics[at], value); break;
        case 28:
            error = TRITONBACKEND_StateNew(
                &had.states[value % HANDLES], request, name, (TRITONSERVER_DataType)(value % 20), shapes[value % 4], 2);
            break;
        case 29:
            error = TRITONBACKEND_StateBuffer(had.states[at], &had.buffers[at], value, &memory, &memory_id);
            had.sizes[at] = error == NULL ? value : 0;
            break;
        case 30: error = TRITONBACKEND_StateUpdate(had.states[at]); break;
        case 31: error = TRITONBACKEND_OutputBufferAttributes(had.outputs[at], &attributes); break;
        case 32: error = TRITONBACKEND_ResponseFactoryIsCancelled(had.factories[at], &truth); break;
    }
    TRITONSERVER_ErrorDelete(error);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
    TRITONBACKEND_Input* input;
    const unsigned char* script;
    uint64_t size;
    TRITONSERVER_MemoryType memory;
    int64_t memory_id;
    TRITONSERVER_Error* error = TRITONBACKEND_RequestInput(requests[0], "X", &input);
    if (error == NULL) error = TRITONBACKEND_InputBuffer(input, 0, (const void**)&script, &size, &memory, &memory_id);
    if (error != NULL) return error;
    unsigned char* copy = malloc(size + 1);
    memcpy(copy, script, size);
    memmove(had.requests + 1, had.requests, sizeof had.requests - sizeof *had.requests);
    had.requests[0] = requests[count - 1];
    if (size > 0 && copy[0] == 255) { /* a sound execution: answer and release each */
        for (uint32_t i = 0; i < count; i++) {
            TRITONBACKEND_Response* response;
            TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseNew(&response, requests[i]));
            TRITONBACKEND_Output* output;
            void* target;
            memory = TRITONSERVER_MEMORY_CPU;
            TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseOutput(response, &output, "Y", TRITONSERVER_TYPE_UINT8, shapes[0], 2));
            TRITONSERVER_ErrorDelete(TRITONBACKEND_OutputBuffer(output, &target, 4, &memory, &memory_id));
            memcpy(target, "done", 4);
            TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
            TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(requests[i], TRITONSERVER_REQUEST_RELEASE_ALL));
        }
    } else {
        for (uint64_t i = 0; i + 2 < size; i += 3) call(instance, copy[i], copy[i + 1], copy[i + 2]);
        if (size % 3 == 1) error = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)copy[0], "hostile");
    }
    free(copy);
    return error;
}
