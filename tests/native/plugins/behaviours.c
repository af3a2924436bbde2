/* A backend that does what its model's parameter `behaviour` says, from the good to the very bad. It looks for the word in the text of
 * the configuration. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "triton/core/tritonbackend.h"

#define TRY(call)                                                   \
    do {                                                            \
        TRITONSERVER_Error* error_ = (call);                        \
        if (error_ != NULL) return error_;                          \
    } while (0)

typedef struct {
    char behaviour[64];
    TRITONSERVER_MetricFamily* family;
    TRITONSERVER_Metric* metric;
} State;

/* The last model's, for the end of the backend. */
static char last[64];

static TRITONSERVER_Error* failure(const char* where) {
    char text[128];
    snprintf(text, sizeof text, "%s was told to fail", where);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, text);
}

static void log_refusal(TRITONSERVER_Error* error) {
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, error == NULL ? "accepted" : TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
}

static bool is(const State* state, const char* behaviour) { return strcmp(state->behaviour, behaviour) == 0; }

static TRITONSERVER_Error* read_behaviour(TRITONBACKEND_Model* model, State* state) {
    TRITONSERVER_Message* message;
    const char* text;
    size_t size;
    TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
    TRY(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
    const char* found = strstr(text, "\"behaviour\"");
    if (found != NULL) sscanf(strstr(found, "string_value\""), "string_value\":\"%63[a-z-]", state->behaviour);
    return TRITONSERVER_MessageDelete(message);
}

/* Set a configuration with an input and an output, if there is none. */
static TRITONSERVER_Error* complete(TRITONBACKEND_Model* model) {
    bool wanted;
    TRY(TRITONBACKEND_ModelAutoCompleteConfig(model, &wanted));
    if (!wanted) return NULL;
    const char* text =
        "{\"name\":\"m\",\"backend\":\"behaviours\",\"max_batch_size\":4,"
        "\"parameters\":{\"behaviour\":{\"string_value\":\"completes\"}},"
        "\"input\":[{\"name\":\"X\",\"data_type\":\"TYPE_FP32\",\"dims\":[2]}],"
        "\"output\":[{\"name\":\"Y\",\"data_type\":\"TYPE_FP32\",\"dims\":[2]}]}";
    TRITONSERVER_Message* message;
    TRY(TRITONSERVER_MessageNewFromSerializedJson(&message, text, strlen(text)));
    TRITONSERVER_Error* error = TRITONBACKEND_ModelSetConfig(model, 1, message);
    TRITONSERVER_MessageDelete(message);
    return error;
}

static TRITONSERVER_Error* count(State* state) {
    TRITONSERVER_Parameter* label = TRITONSERVER_ParameterNew("kind", TRITONSERVER_PARAMETER_STRING, "plug-in");
    const TRITONSERVER_Parameter* labels[] = {label};
    TRY(TRITONSERVER_MetricFamilyNew(&state->family, TRITONSERVER_METRIC_KIND_COUNTER, "behaviours_total", "Batches."));
    TRITONSERVER_Error* error = TRITONSERVER_MetricNew(&state->metric, state->family, labels, 1);
    TRITONSERVER_ParameterDelete(label);
    return error;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
    State* state = calloc(1, sizeof *state);
    TRY(TRITONBACKEND_ModelSetState(model, state));
    TRY(read_behaviour(model, state));
    memcpy(last, state->behaviour, sizeof last);
    if (is(state, "fails-model")) return failure("ModelInitialize");
    if (is(state, "crashes-model")) abort();
    if (is(state, "completes")) TRY(complete(model));
    if (is(state, "counts")) TRY(count(state));
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
    State* state;
    TRY(TRITONBACKEND_ModelState(model, (void**)&state));
    if (state->metric != NULL) TRY(TRITONSERVER_MetricDelete(state->metric));
    if (state->family != NULL) TRY(TRITONSERVER_MetricFamilyDelete(state->family));
    if (is(state, "crashes-model-end")) abort();
    bool fails = is(state, "fails-model-end");
    free(state);
    return fails ? failure("ModelFinalize") : NULL;
}

TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
    if (strcmp(last, "crashes-backend-end") == 0) abort();
    return strcmp(last, "fails-backend-end") == 0 ? failure("Finalize") : NULL;
}

static TRITONSERVER_Error* state_of(TRITONBACKEND_ModelInstance* instance, State** state) {
    TRITONBACKEND_Model* model;
    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    return TRITONBACKEND_ModelState(model, (void**)state);
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
    State* state;
    TRY(state_of(instance, &state));
    if (is(state, "fails-instance")) return failure("ModelInstanceInitialize");
    if (is(state, "crashes-instance")) abort();
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
    State* state;
    TRY(state_of(instance, &state));
    if (is(state, "crashes-instance-end")) abort();
    return is(state, "fails-instance-end") ? failure("ModelInstanceFinalize") : NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance* instance) {
    State* state;
    TRY(state_of(instance, &state));
    return is(state, "not-ready") ? failure("ModelInstanceReady") : NULL;
}

/* A response with output Y, which is input X. */
static TRITONSERVER_Error* copy(TRITONBACKEND_Request* request, TRITONBACKEND_Response* response, size_t too_far) {
    TRITONBACKEND_Input* input;
    TRITONBACKEND_Output* output;
    TRITONSERVER_DataType datatype;
    const int64_t* shape;
    uint32_t dims;
    uint64_t size;
    const void* source;
    void* target;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_GPU; /* preferred, and not had */
    int64_t memory_id = 0;
    TRY(TRITONBACKEND_RequestInput(request, "X", &input));
    TRY(TRITONBACKEND_InputProperties(input, NULL, &datatype, &shape, &dims, &size, NULL));
    TRY(TRITONBACKEND_InputBuffer(input, 0, &source, &size, &memory, &memory_id));
    TRY(TRITONBACKEND_ResponseOutput(response, &output, "Y", datatype, shape, dims));
    memory = TRITONSERVER_MEMORY_GPU;
    TRY(TRITONBACKEND_OutputBuffer(output, &target, size, &memory, &memory_id));
    if (memory != TRITONSERVER_MEMORY_CPU) return failure("memory");
    memcpy(target, source, size);
    memset((char*)target + size, 1, too_far);
    return NULL;
}

static void answer(TRITONBACKEND_Request* request, size_t too_far) {
    TRITONBACKEND_Response* response;
    TRITONBACKEND_ResponseNew(&response, request);
    TRITONSERVER_Error* error = copy(request, response, too_far);
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    TRITONSERVER_ErrorDelete(error);
}

static void release(TRITONBACKEND_Request* request) {
    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
}

static void* answer_late(void* request) {
    usleep(20000);
    answer(request, 0);
    release(request);
    return NULL;
}

/* Three responses and an end without data, from a thread of its own. */
static void* stream(void* userp) {
    TRITONBACKEND_ResponseFactory* factory = userp;
    for (int32_t i = 0; i < 3; i++) {
        TRITONBACKEND_Response* response;
        TRITONBACKEND_Output* output;
        int64_t shape[] = {1};
        void* target;
        TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
        int64_t memory_id = 0;
        TRITONBACKEND_ResponseNewFromFactory(&response, factory);
        TRITONBACKEND_ResponseOutput(response, &output, "Y", TRITONSERVER_TYPE_INT32, shape, 1);
        TRITONBACKEND_OutputBuffer(output, &target, sizeof i, &memory, &memory_id);
        memcpy(target, &i, sizeof i);
        TRITONBACKEND_ResponseSetIntParameter(response, "index", i);
        TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, 0, NULL));
    }
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseFactorySendFlags(factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL));
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseFactoryDelete(factory));
    return NULL;
}

static void in_thread(void* (*function)(void*), void* argument) {
    pthread_t thread;
    pthread_create(&thread, NULL, function, argument);
    pthread_detach(thread);
}

/* The facts of a request, as a text in output Y: what the interface says of it. */
static void describe(TRITONBACKEND_Request* request, TRITONBACKEND_ModelInstance* instance) {
    const char *id, *name, *key, *correlation_text = "-";
    uint64_t correlation = 0, timeout;
    uint32_t flags, parameters, outputs;
    bool cancelled;
    TRITONBACKEND_RequestId(request, &id);
    TRITONSERVER_Error* error = TRITONBACKEND_RequestCorrelationId(request, &correlation);
    if (error != NULL) TRITONBACKEND_RequestCorrelationIdString(request, &correlation_text);
    TRITONSERVER_ErrorDelete(error);
    TRITONBACKEND_RequestFlags(request, &flags);
    TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout);
    TRITONBACKEND_RequestOutputCount(request, &outputs);
    TRITONBACKEND_RequestOutputName(request, 0, &name);
    TRITONBACKEND_RequestIsCancelled(request, &cancelled);
    const char* instance_name;
    TRITONBACKEND_ModelInstanceName(instance, &instance_name);
    char text[512];
    int at = snprintf(
        text + 4, 400, "id=%s correlation=%llu/%s flags=%u timeout=%llu outputs=%u:%s cancelled=%d instance=%s", id,
        (unsigned long long)correlation, correlation_text, flags, (unsigned long long)timeout, outputs, name, cancelled,
        instance_name);
    TRITONBACKEND_RequestParameterCount(request, &parameters);
    for (uint32_t i = 0; i < parameters; i++) {
        TRITONSERVER_ParameterType type;
        const void* value;
        TRITONBACKEND_RequestParameter(request, i, &key, &type, &value);
        if (type == TRITONSERVER_PARAMETER_STRING) at += snprintf(text + 4 + at, 64, " %s='%s'", key, (const char*)value);
        if (type == TRITONSERVER_PARAMETER_INT) at += snprintf(text + 4 + at, 64, " %s=%lld", key, *(const long long*)value);
        if (type == TRITONSERVER_PARAMETER_BOOL) at += snprintf(text + 4 + at, 64, " %s=%s", key, *(const bool*)value ? "yes" : "no");
        if (type == TRITONSERVER_PARAMETER_DOUBLE) at += snprintf(text + 4 + at, 64, " %s=%.2f", key, *(const double*)value);
    }
    uint32_t length = (uint32_t)at;
    memcpy(text, &length, 4);
    TRITONBACKEND_Response* response;
    TRITONBACKEND_Output* output;
    int64_t shape[] = {1, 1};
    void* target;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    int64_t memory_id = 0;
    TRITONBACKEND_ResponseNew(&response, request);
    TRITONBACKEND_ResponseOutput(response, &output, "Y", TRITONSERVER_TYPE_BYTES, shape, 2);
    TRITONBACKEND_OutputBuffer(output, &target, length + 4, &memory, &memory_id);
    memcpy(target, text, length + 4);
    TRITONBACKEND_ResponseSetStringParameter(response, "word", "said");
    TRITONBACKEND_ResponseSetBoolParameter(response, "truth", true);
    TRITONBACKEND_ResponseSetDoubleParameter(response, "half", 0.5);
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL));
}

static void use_output_of_deleted_response(TRITONBACKEND_Request* request) {
    TRITONBACKEND_Response* response;
    TRITONBACKEND_Output* output;
    TRITONSERVER_BufferAttributes* attributes;
    int64_t shape[] = {1, 2}, memory_id = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    void* target;
    TRITONBACKEND_ResponseNew(&response, request);
    TRITONBACKEND_ResponseOutput(response, &output, "Y", TRITONSERVER_TYPE_FP32, shape, 2);
    TRITONBACKEND_ResponseDelete(response);
    log_refusal(TRITONBACKEND_OutputBuffer(output, &target, 8, &memory, &memory_id));
    log_refusal(TRITONBACKEND_OutputBufferAttributes(output, &attributes));
}

static void write_beyond_a_state(TRITONBACKEND_Request* request) {
    TRITONBACKEND_State* made;
    int64_t shape[] = {1, 2}, memory_id = 0;
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    void* target;
    TRITONBACKEND_StateNew(&made, request, "S", TRITONSERVER_TYPE_FP32, shape, 2);
    TRITONBACKEND_StateBuffer(made, &target, 8, &memory, &memory_id);
    memset(target, 1, 16);
}

static void write_beyond_an_output_that_is_not_sent(TRITONBACKEND_Request* request) {
    TRITONBACKEND_Response* response;
    TRITONBACKEND_ResponseNew(&response, request);
    copy(request, response, 8);
    TRITONBACKEND_ResponseDelete(response);
}

static void execute_one(State* state, TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request) {
    if (is(state, "answers-late")) {
        in_thread(answer_late, request);
    } else if (is(state, "streams")) {
        TRITONBACKEND_ResponseFactory* factory;
        TRITONBACKEND_ResponseFactoryNew(&factory, request);
        release(request);
        in_thread(stream, factory);
    } else if (is(state, "describes")) {
        describe(request, instance);
        release(request);
    } else if (is(state, "never-answers")) {
        release(request);
    } else if (is(state, "writes-too-far")) {
        answer(request, 8);
        release(request);
    } else if (is(state, "writes-beyond-a-state")) {
        write_beyond_a_state(request);
        answer(request, 0);
        release(request);
    } else if (is(state, "writes-beyond-what-is-not-sent")) {
        write_beyond_an_output_that_is_not_sent(request);
        answer(request, 0);
        release(request);
    } else if (is(state, "releases-twice")) {
        answer(request, 0);
        release(request);
        log_refusal(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL));
    } else if (is(state, "keeps-an-output")) {
        use_output_of_deleted_response(request);
        answer(request, 0);
        release(request);
    } else if (is(state, "never-releases")) {
        answer(request, 0);
    } else if (is(state, "answers-twice")) {
        answer(request, 0);
        answer(request, 0);
        release(request);
    } else {
        answer(request, 0);
        release(request);
    }
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
    State* state;
    TRY(state_of(instance, &state));
    if (is(state, "fails-execute")) return failure("ModelInstanceExecute");
    if (is(state, "crashes")) abort();
    if (is(state, "hangs")) pause();
    if (state->metric != NULL) TRY(TRITONSERVER_MetricIncrement(state->metric, 1));
    for (uint32_t i = 0; i < count; i++) execute_one(state, instance, requests[i]);
    return NULL;
}
