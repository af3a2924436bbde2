/* Statistics that plug-ins report. The engine counts requests and responses itself, at the moment that each is answered; of the
 * reports it takes what only the plug-in knows: when the inputs of a batch were there, and when its outputs began. */
#include "host.h"

struct TRITONBACKEND_ModelInstanceResponseStatistics {
    uint32_t live;
    TRITONBACKEND_ModelInstance* instance;
    TRITONBACKEND_ResponseFactory* factory;
    uint64_t start_ns, output_start_ns, end_ns;
    Error* error;
};

static void keep_times(TRITONBACKEND_ModelInstance* instance, uint64_t compute_start_ns, uint64_t compute_end_ns) {
    instance->compute_start_ns = compute_start_ns;
    instance->compute_end_ns = compute_end_ns;
}

Error* TRITONBACKEND_ModelInstanceReportStatistics(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request* request, bool success, uint64_t start_ns,
    uint64_t compute_start_ns, uint64_t compute_end_ns, uint64_t end_ns) {
    REQUIRE(instance, LIVE_INSTANCE);
    (void)start_ns, (void)end_ns;
    if (request == NULL || (request->live != LIVE_REQUEST && request->live != RELEASED_REQUEST)) return tpy_refuse_object(__func__);
    if (success && instance->compute_start_ns == 0) keep_times(instance, compute_start_ns, compute_end_ns);
    return NULL;
}

Error* TRITONBACKEND_ModelInstanceReportBatchStatistics(
    TRITONBACKEND_ModelInstance* instance, uint64_t batch_size, uint64_t start_ns, uint64_t compute_start_ns,
    uint64_t compute_end_ns, uint64_t end_ns) {
    REQUIRE(instance, LIVE_INSTANCE);
    (void)batch_size, (void)start_ns, (void)end_ns;
    keep_times(instance, compute_start_ns, compute_end_ns);
    return NULL;
}

Error* TRITONBACKEND_ModelInstanceResponseStatisticsNew(TRITONBACKEND_ModelInstanceResponseStatistics** made) {
    *made = calloc(1, sizeof **made);
    (*made)->live = LIVE_STATISTICS;
    return NULL;
}

Error* TRITONBACKEND_ModelInstanceResponseStatisticsDelete(TRITONBACKEND_ModelInstanceResponseStatistics* statistics) {
    REQUIRE(statistics, LIVE_STATISTICS);
    statistics->live = 0;
    free(statistics);
    return NULL;
}

#define FIELD(name, type, field)                                                      \
    Error* TRITONBACKEND_ModelInstanceResponseStatisticsSet##name(                    \
        TRITONBACKEND_ModelInstanceResponseStatistics* statistics, type value) {      \
        REQUIRE(statistics, LIVE_STATISTICS);                                         \
        statistics->field = value;                                                    \
        return NULL;                                                                  \
    }

FIELD(ModelInstance, TRITONBACKEND_ModelInstance*, instance)
FIELD(ResponseFactory, TRITONBACKEND_ResponseFactory*, factory)
FIELD(ResponseStart, uint64_t, start_ns)
FIELD(ComputeOutputStart, uint64_t, output_start_ns)
FIELD(ResponseEnd, uint64_t, end_ns)
FIELD(Error, Error*, error)

Error* TRITONBACKEND_ModelInstanceReportResponseStatistics(TRITONBACKEND_ModelInstanceResponseStatistics* statistics) {
    REQUIRE(statistics, LIVE_STATISTICS);
    REQUIRE(statistics->instance, LIVE_INSTANCE);
    REQUIRE(statistics->factory, LIVE_FACTORY);
    return NULL;
}

/* The server measures a model's memory itself. */
Error* TRITONBACKEND_ModelReportMemoryUsage(TRITONBACKEND_Model* model, TRITONSERVER_BufferAttributes** usage, uint32_t count) {
    (void)usage, (void)count;
    REQUIRE(model, LIVE_MODEL);
    return NULL;
}

Error* TRITONBACKEND_ModelInstanceReportMemoryUsage(
    TRITONBACKEND_ModelInstance* instance, TRITONSERVER_BufferAttributes** usage, uint32_t count) {
    (void)usage, (void)count;
    REQUIRE(instance, LIVE_INSTANCE);
    return NULL;
}
