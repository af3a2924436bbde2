/* A batching strategy for tests: batches of requests whose inputs together have at most as many bytes as the model's parameter
 * MAX_BATCH_VOLUME_BYTES says; or one that misbehaves as its parameter `behaviour` says. */
#include <signal.h>
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
    unsigned long volume_max;
} Strategy;

typedef struct {
    const Strategy* strategy;
    unsigned long volume_left;
} Forming;

static TRITONSERVER_Error* failure(const char* where) {
    char text[128];
    snprintf(text, sizeof text, "%s was told to fail", where);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, text);
}

static bool is(const Strategy* strategy, const char* behaviour) { return strcmp(strategy->behaviour, behaviour) == 0; }

static void find(const char* json, const char* key, const char* format, void* value) {
    char quoted[80];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char* found = strstr(json, quoted);
    const char* text = found == NULL ? NULL : strstr(found, "string_value\":\"");
    if (text != NULL) sscanf(text + 15, format, value);
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model) {
    TRITONSERVER_Message* message;
    const char* json;
    size_t size;
    TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
    TRY(TRITONSERVER_MessageSerializeToJson(message, &json, &size));
    Strategy* strategy = calloc(1, sizeof *strategy);
    strategy->volume_max = ~0UL;
    find(json, "behaviour", "%63[a-z-]", strategy->behaviour);
    find(json, "MAX_BATCH_VOLUME_BYTES", "%lu", &strategy->volume_max);
    TRY(TRITONSERVER_MessageDelete(message));
    *batcher = (TRITONBACKEND_Batcher*)strategy;
    if (is(strategy, "crashes-batcher")) abort();
    if (is(strategy, "crashes-once")) { /* the first time that this model's batcher is made */
        char path[512];
        TRITONBACKEND_ArtifactType type;
        const char* location;
        TRY(TRITONBACKEND_ModelRepository(model, &type, &location));
        snprintf(path, sizeof path, "%s/crashed", location);
        if (access(path, F_OK) != 0) {
            fclose(fopen(path, "w"));
            abort();
        }
    }
    if (is(strategy, "hangs-batcher")) pause();
    return is(strategy, "fails-batcher") ? failure("ModelBatcherInitialize") : NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher) {
    free(batcher);
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** userp) {
    const Strategy* strategy = (const Strategy*)batcher;
    Forming* forming = malloc(sizeof *forming);
    *forming = (Forming){strategy, strategy->volume_max};
    *userp = forming;
    return is(strategy, "fails") ? failure("ModelBatchInitialize") : NULL;
}

/* Include no request with an input whose last byte is 7. */
static TRITONSERVER_Error* look(TRITONBACKEND_Input* input, bool* included) {
    const void* buffer;
    uint64_t size;
    TRITONSERVER_MemoryType memory;
    int64_t memory_id;
    TRITONSERVER_BufferAttributes* attributes;
    TRY(TRITONBACKEND_InputBufferAttributes(input, 0, &buffer, &attributes));
    TRY(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &memory, &memory_id));
    *included = size == 0 || ((const char*)buffer)[size - 1] != 7;
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request, void* userp, bool* included) {
    Forming* forming = userp;
    const Strategy* strategy = forming->strategy;
    const char* id;
    TRY(TRITONBACKEND_RequestId(request, &id));
    if (strcmp(id, "bad") == 0 && is(strategy, "crashes")) raise(SIGSEGV);
    if (strcmp(id, "bad") == 0 && is(strategy, "hangs")) pause();
    if (is(strategy, "slow")) usleep(30000);
    if (is(strategy, "releases")) TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL);
    if (is(strategy, "releases")) TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL);
    if (is(strategy, "never")) *included = false;
    if (is(strategy, "never") || is(strategy, "releases")) return NULL;
    if (is(strategy, "fails")) return failure("ModelBatchIncludeRequest");
    uint32_t count;
    unsigned long volume = 0;
    TRY(TRITONBACKEND_RequestInputCount(request, &count));
    for (uint32_t i = 0; i < count; i++) {
        TRITONBACKEND_Input* input;
        uint64_t size;
        TRY(TRITONBACKEND_RequestInputByIndex(request, i, &input));
        TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, NULL, NULL, &size, NULL));
        volume += size;
        if (is(strategy, "looks")) TRY(look(input, included));
        if (is(strategy, "looks") && !*included) return NULL;
    }
    *included = volume <= forming->volume_left;
    if (*included) forming->volume_left -= volume;
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp) {
    free(userp);
    return NULL;
}
