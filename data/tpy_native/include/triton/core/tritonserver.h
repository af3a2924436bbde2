/* Triton's C interface as plug-ins see it: the part that is called TRITONSERVER_*.
 *
 * Written for this server from the interface's facts: names, values and signatures are those that plug-ins are compiled against.
 * Functions that this server does not offer are here all the same and return TRITONSERVER_ERROR_UNSUPPORTED; which ones is in
 * docs/reference/compatibility.md.
 */
#ifndef TRITON_CORE_TRITONSERVER_H
#define TRITON_CORE_TRITONSERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TRITON_API __attribute__((visibility("default")))

/* Names that sources which are written for Triton mark their own entry points with. */
#define TRITONSERVER_DECLSPEC TRITON_API
#define TRITONSERVER_ISPEC TRITON_API

#define TRITONSERVER_API_VERSION_MAJOR 1
#define TRITONSERVER_API_VERSION_MINOR 34

/* Objects behind pointers. The tags are as in Triton: `struct TRITONSERVER_Error` is a name of the same type. */
typedef struct TRITONSERVER_BufferAttributes TRITONSERVER_BufferAttributes;
typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONSERVER_InferenceRequest TRITONSERVER_InferenceRequest;
typedef struct TRITONSERVER_InferenceResponse TRITONSERVER_InferenceResponse;
typedef struct TRITONSERVER_InferenceTrace TRITONSERVER_InferenceTrace;
typedef struct TRITONSERVER_Message TRITONSERVER_Message;
typedef struct TRITONSERVER_Metric TRITONSERVER_Metric;
typedef struct TRITONSERVER_MetricArgs TRITONSERVER_MetricArgs;
typedef struct TRITONSERVER_MetricFamily TRITONSERVER_MetricFamily;
typedef struct TRITONSERVER_Metrics TRITONSERVER_Metrics;
typedef struct TRITONSERVER_Parameter TRITONSERVER_Parameter;
typedef struct TRITONSERVER_ResponseAllocator TRITONSERVER_ResponseAllocator;
typedef struct TRITONSERVER_Server TRITONSERVER_Server;
typedef struct TRITONSERVER_ServerOptions TRITONSERVER_ServerOptions;

/* Datatypes of tensors. */
typedef enum TRITONSERVER_datatype_enum {
    TRITONSERVER_TYPE_INVALID = 0,
    TRITONSERVER_TYPE_BOOL,
    TRITONSERVER_TYPE_UINT8,
    TRITONSERVER_TYPE_UINT16,
    TRITONSERVER_TYPE_UINT32,
    TRITONSERVER_TYPE_UINT64,
    TRITONSERVER_TYPE_INT8,
    TRITONSERVER_TYPE_INT16,
    TRITONSERVER_TYPE_INT32,
    TRITONSERVER_TYPE_INT64,
    TRITONSERVER_TYPE_FP16,
    TRITONSERVER_TYPE_FP32,
    TRITONSERVER_TYPE_FP64,
    TRITONSERVER_TYPE_BYTES,
    TRITONSERVER_TYPE_BF16
} TRITONSERVER_DataType;

/* Kinds of memory. */
typedef enum TRITONSERVER_memorytype_enum {
    TRITONSERVER_MEMORY_CPU = 0,
    TRITONSERVER_MEMORY_CPU_PINNED,
    TRITONSERVER_MEMORY_GPU
} TRITONSERVER_MemoryType;

/* Types of parameters. */
typedef enum TRITONSERVER_parametertype_enum {
    TRITONSERVER_PARAMETER_STRING = 0,
    TRITONSERVER_PARAMETER_INT,
    TRITONSERVER_PARAMETER_BOOL,
    TRITONSERVER_PARAMETER_DOUBLE,
    TRITONSERVER_PARAMETER_BYTES
} TRITONSERVER_ParameterType;

/* Kinds of instances. */
typedef enum TRITONSERVER_instancegroupkind_enum {
    TRITONSERVER_INSTANCEGROUPKIND_AUTO = 0,
    TRITONSERVER_INSTANCEGROUPKIND_CPU,
    TRITONSERVER_INSTANCEGROUPKIND_GPU,
    TRITONSERVER_INSTANCEGROUPKIND_MODEL
} TRITONSERVER_InstanceGroupKind;

/* Levels of log lines. */
typedef enum TRITONSERVER_loglevel_enum {
    TRITONSERVER_LOG_INFO = 0,
    TRITONSERVER_LOG_WARN,
    TRITONSERVER_LOG_ERROR,
    TRITONSERVER_LOG_VERBOSE
} TRITONSERVER_LogLevel;

/* Formats of log lines. */
typedef enum TRITONSERVER_logformat_enum {
    TRITONSERVER_LOG_DEFAULT = 0,
    TRITONSERVER_LOG_ISO8601
} TRITONSERVER_LogFormat;

/* Codes of errors. */
typedef enum TRITONSERVER_errorcode_enum {
    TRITONSERVER_ERROR_UNKNOWN = 0,
    TRITONSERVER_ERROR_INTERNAL,
    TRITONSERVER_ERROR_NOT_FOUND,
    TRITONSERVER_ERROR_INVALID_ARG,
    TRITONSERVER_ERROR_UNAVAILABLE,
    TRITONSERVER_ERROR_UNSUPPORTED,
    TRITONSERVER_ERROR_ALREADY_EXISTS,
    TRITONSERVER_ERROR_CANCELLED
} TRITONSERVER_Error_Code;

/* Kinds of metrics. */
typedef enum TRITONSERVER_metrickind_enum {
    TRITONSERVER_METRIC_KIND_COUNTER = 0,
    TRITONSERVER_METRIC_KIND_GAUGE,
    TRITONSERVER_METRIC_KIND_HISTOGRAM
} TRITONSERVER_MetricKind;

/* Formats of all metrics. */
typedef enum tritonserver_metricformat_enum {
    TRITONSERVER_METRIC_PROMETHEUS = 0
} TRITONSERVER_MetricFormat;

/* What a trace records. */
typedef enum tritonserver_tracelevel_enum {
    TRITONSERVER_TRACE_LEVEL_DISABLED = 0,
    TRITONSERVER_TRACE_LEVEL_MIN = 1,
    TRITONSERVER_TRACE_LEVEL_MAX = 2,
    TRITONSERVER_TRACE_LEVEL_TIMESTAMPS = 4,
    TRITONSERVER_TRACE_LEVEL_TENSORS = 8
} TRITONSERVER_InferenceTraceLevel;

/* Moments that a trace records. */
typedef enum tritonserver_traceactivity_enum {
    TRITONSERVER_TRACE_REQUEST_START = 0,
    TRITONSERVER_TRACE_QUEUE_START,
    TRITONSERVER_TRACE_COMPUTE_START,
    TRITONSERVER_TRACE_COMPUTE_INPUT_END,
    TRITONSERVER_TRACE_COMPUTE_OUTPUT_START,
    TRITONSERVER_TRACE_COMPUTE_END,
    TRITONSERVER_TRACE_REQUEST_END,
    TRITONSERVER_TRACE_TENSOR_QUEUE_INPUT,
    TRITONSERVER_TRACE_TENSOR_BACKEND_INPUT,
    TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT,
    TRITONSERVER_TRACE_CUSTOM_ACTIVITY
} TRITONSERVER_InferenceTraceActivity;

/* Flags, which may be added. */
typedef enum tritonserver_requestflag_enum {
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1,
    TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
} TRITONSERVER_RequestFlag;

/* What becomes of a request that is released. */
typedef enum tritonserver_requestreleaseflag_enum {
    TRITONSERVER_REQUEST_RELEASE_ALL = 1,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2
} TRITONSERVER_RequestReleaseFlag;

/* Of the last response to a request. */
typedef enum tritonserver_responsecompleteflag_enum {
    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
} TRITONSERVER_ResponseCompleteFlag;

/* Ways in which models are loaded and unloaded. */
typedef enum tritonserver_modelcontrolmode_enum {
    TRITONSERVER_MODEL_CONTROL_NONE = 0,
    TRITONSERVER_MODEL_CONTROL_POLL,
    TRITONSERVER_MODEL_CONTROL_EXPLICIT
} TRITONSERVER_ModelControlMode;

/* Rate limiters. */
typedef enum tritonserver_ratelimitmode_enum {
    TRITONSERVER_RATE_LIMIT_OFF = 0,
    TRITONSERVER_RATE_LIMIT_EXEC_COUNT
} TRITONSERVER_RateLimitMode;

/* Batching of a model. */
typedef enum tritonserver_batchflag_enum {
    TRITONSERVER_BATCH_UNKNOWN = 1,
    TRITONSERVER_BATCH_FIRST_DIM = 2
} TRITONSERVER_ModelBatchFlag;

/* What an index is restricted to. */
typedef enum tritonserver_modelindexflag_enum {
    TRITONSERVER_INDEX_FLAG_READY = 1
} TRITONSERVER_ModelIndexFlag;

/* How a model answers. */
typedef enum tritonserver_txn_property_flag_enum {
    TRITONSERVER_TXN_ONE_TO_ONE = 1,
    TRITONSERVER_TXN_DECOUPLED = 2
} TRITONSERVER_ModelTxnPropertyFlag;

/* Functions of plug-ins. Userps are theirs, and handed on as they are. */
typedef TRITONSERVER_Error* (*TRITONSERVER_ResponseAllocatorAllocFn_t)(
    TRITONSERVER_ResponseAllocator*, const char* tensor, size_t byte_size, TRITONSERVER_MemoryType, int64_t memory_type_id,
    void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id);
typedef TRITONSERVER_Error* (*TRITONSERVER_ResponseAllocatorBufferAttributesFn_t)(
    TRITONSERVER_ResponseAllocator*, const char* tensor, TRITONSERVER_BufferAttributes*, void* userp, void* buffer_userp);
typedef TRITONSERVER_Error* (*TRITONSERVER_ResponseAllocatorQueryFn_t)(
    TRITONSERVER_ResponseAllocator*, void* userp, const char* tensor, size_t* byte_size, TRITONSERVER_MemoryType*, int64_t*);
typedef TRITONSERVER_Error* (*TRITONSERVER_ResponseAllocatorReleaseFn_t)(
    TRITONSERVER_ResponseAllocator*, void* buffer, void* buffer_userp, size_t byte_size, TRITONSERVER_MemoryType, int64_t);
typedef TRITONSERVER_Error* (*TRITONSERVER_ResponseAllocatorStartFn_t)(TRITONSERVER_ResponseAllocator*, void* userp);
typedef void (*TRITONSERVER_InferenceRequestReleaseFn_t)(TRITONSERVER_InferenceRequest*, const uint32_t flags, void* userp);
typedef void (*TRITONSERVER_InferenceResponseCompleteFn_t)(TRITONSERVER_InferenceResponse*, const uint32_t flags, void* userp);
typedef void (*TRITONSERVER_InferenceTraceActivityFn_t)(
    TRITONSERVER_InferenceTrace*, TRITONSERVER_InferenceTraceActivity, uint64_t timestamp_ns, void* userp);
typedef void (*TRITONSERVER_InferenceTraceTensorActivityFn_t)(
    TRITONSERVER_InferenceTrace*, TRITONSERVER_InferenceTraceActivity, const char* name, TRITONSERVER_DataType, const void* base,
    size_t byte_size, const int64_t* shape, uint64_t dim_count, TRITONSERVER_MemoryType, int64_t memory_type_id, void* userp);
typedef void (*TRITONSERVER_InferenceTraceReleaseFn_t)(TRITONSERVER_InferenceTrace*, void* userp);

/* Version, and names of the values of enums; the strings belong to the library. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_ApiVersion(uint32_t*, uint32_t*);
TRITON_API const char* TRITONSERVER_DataTypeString(TRITONSERVER_DataType);
TRITON_API TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char*);
TRITON_API uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType);
TRITON_API const char* TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType);
TRITON_API const char* TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType);
TRITON_API const char* TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind);
TRITON_API const char* TRITONSERVER_InferenceTraceLevelString(TRITONSERVER_InferenceTraceLevel);
TRITON_API const char* TRITONSERVER_InferenceTraceActivityString(TRITONSERVER_InferenceTraceActivity);

/* Errors: whoever is handed one deletes it. NULL is success. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code, const char*);
TRITON_API void TRITONSERVER_ErrorDelete(TRITONSERVER_Error*);
TRITON_API TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error*);
TRITON_API const char* TRITONSERVER_ErrorCodeString(TRITONSERVER_Error*);
TRITON_API const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error*);

/* Log lines. */
TRITON_API bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel);
TRITON_API TRITONSERVER_Error* TRITONSERVER_LogMessage(TRITONSERVER_LogLevel, const char*, int, const char*);

/* Parameters: the caller keeps and deletes them. */
TRITON_API TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(const char*, TRITONSERVER_ParameterType, const void*);
TRITON_API TRITONSERVER_Parameter* TRITONSERVER_ParameterBytesNew(const char*, const void*, uint64_t);
TRITON_API void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter*);

/* Messages: JSON documents. The text lives as long as its message. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_MessageNewFromSerializedJson(TRITONSERVER_Message**, const char*, size_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message*, const char**, size_t*);

/* Facts of a buffer. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_BufferAttributesNew(TRITONSERVER_BufferAttributes**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_BufferAttributesDelete(TRITONSERVER_BufferAttributes*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetMemoryTypeId(TRITONSERVER_BufferAttributes*, int64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetMemoryType(
    TRITONSERVER_BufferAttributes*, TRITONSERVER_MemoryType);
TRITON_API TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetCudaIpcHandle(TRITONSERVER_BufferAttributes*, void*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetByteSize(TRITONSERVER_BufferAttributes*, size_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_BufferAttributesMemoryTypeId(TRITONSERVER_BufferAttributes*, int64_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_BufferAttributesMemoryType(
    TRITONSERVER_BufferAttributes*, TRITONSERVER_MemoryType*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_BufferAttributesCudaIpcHandle(TRITONSERVER_BufferAttributes*, void**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_BufferAttributesByteSize(TRITONSERVER_BufferAttributes*, size_t*);

/* Allocators of the buffers that responses to a call are put into. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorNew(
    TRITONSERVER_ResponseAllocator**, TRITONSERVER_ResponseAllocatorAllocFn_t, TRITONSERVER_ResponseAllocatorReleaseFn_t,
    TRITONSERVER_ResponseAllocatorStartFn_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    TRITONSERVER_ResponseAllocator*, TRITONSERVER_ResponseAllocatorBufferAttributesFn_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorSetQueryFunction(
    TRITONSERVER_ResponseAllocator*, TRITONSERVER_ResponseAllocatorQueryFn_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator*);

/* Requests that a plug-in makes itself. It owns them until ServerInferAsync succeeds, and again when the release function is called. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestNew(
    TRITONSERVER_InferenceRequest**, TRITONSERVER_Server*, const char*, int64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestId(TRITONSERVER_InferenceRequest*, const char**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetId(TRITONSERVER_InferenceRequest*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestFlags(TRITONSERVER_InferenceRequest*, uint32_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetFlags(TRITONSERVER_InferenceRequest*, uint32_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestCorrelationId(TRITONSERVER_InferenceRequest*, uint64_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestCorrelationIdString(TRITONSERVER_InferenceRequest*, const char**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetCorrelationId(TRITONSERVER_InferenceRequest*, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetCorrelationIdString(TRITONSERVER_InferenceRequest*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestIsCancelled(TRITONSERVER_InferenceRequest*, bool*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestPriority(TRITONSERVER_InferenceRequest*, uint32_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestPriorityUInt64(TRITONSERVER_InferenceRequest*, uint64_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetPriority(TRITONSERVER_InferenceRequest*, uint32_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetPriorityUInt64(TRITONSERVER_InferenceRequest*, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestTimeoutMicroseconds(TRITONSERVER_InferenceRequest*, uint64_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(TRITONSERVER_InferenceRequest*, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddInput(
    TRITONSERVER_InferenceRequest*, const char*, TRITONSERVER_DataType, const int64_t*, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRawInput(TRITONSERVER_InferenceRequest*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveInput(TRITONSERVER_InferenceRequest*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllInputs(TRITONSERVER_InferenceRequest*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputData(
    TRITONSERVER_InferenceRequest*, const char*, const void*, size_t, TRITONSERVER_MemoryType, int64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
    TRITONSERVER_InferenceRequest*, const char*, const void*, size_t, TRITONSERVER_MemoryType, int64_t, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    TRITONSERVER_InferenceRequest*, const char*, const void*, TRITONSERVER_BufferAttributes*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllInputData(TRITONSERVER_InferenceRequest*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRequestedOutput(TRITONSERVER_InferenceRequest*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveRequestedOutput(TRITONSERVER_InferenceRequest*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(TRITONSERVER_InferenceRequest*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetReleaseCallback(
    TRITONSERVER_InferenceRequest*, TRITONSERVER_InferenceRequestReleaseFn_t, void*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetResponseCallback(
    TRITONSERVER_InferenceRequest*, TRITONSERVER_ResponseAllocator*, void*, TRITONSERVER_InferenceResponseCompleteFn_t, void*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetStringParameter(
    TRITONSERVER_InferenceRequest*, const char*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetIntParameter(
    TRITONSERVER_InferenceRequest*, const char*, int64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetBoolParameter(TRITONSERVER_InferenceRequest*, const char*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetDoubleParameter(
    TRITONSERVER_InferenceRequest*, const char*, double);

/* Responses to such requests: the complete function owns each one that it is given. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceResponseModel(TRITONSERVER_InferenceResponse*, const char**, int64_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceResponseId(TRITONSERVER_InferenceResponse*, const char**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceResponseParameterCount(TRITONSERVER_InferenceResponse*, uint32_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceResponseParameter(
    TRITONSERVER_InferenceResponse*, uint32_t, const char**, TRITONSERVER_ParameterType*, const void**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutputCount(TRITONSERVER_InferenceResponse*, uint32_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutput(
    TRITONSERVER_InferenceResponse*, uint32_t, const char**, TRITONSERVER_DataType*, const int64_t**, uint64_t*, const void**,
    size_t*, TRITONSERVER_MemoryType*, int64_t*, void**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutputClassificationLabel(
    TRITONSERVER_InferenceResponse*, uint32_t, size_t, const char**);

/* Traces. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceNew(
    TRITONSERVER_InferenceTrace**, TRITONSERVER_InferenceTraceLevel, uint64_t, TRITONSERVER_InferenceTraceActivityFn_t,
    TRITONSERVER_InferenceTraceReleaseFn_t, void*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceTensorNew(
    TRITONSERVER_InferenceTrace**, TRITONSERVER_InferenceTraceLevel, uint64_t, TRITONSERVER_InferenceTraceActivityFn_t,
    TRITONSERVER_InferenceTraceTensorActivityFn_t, TRITONSERVER_InferenceTraceReleaseFn_t, void*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceReportActivity(TRITONSERVER_InferenceTrace*, uint64_t, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceDelete(TRITONSERVER_InferenceTrace*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceId(TRITONSERVER_InferenceTrace*, uint64_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceParentId(TRITONSERVER_InferenceTrace*, uint64_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceModelName(TRITONSERVER_InferenceTrace*, const char**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceModelVersion(TRITONSERVER_InferenceTrace*, int64_t*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceRequestId(TRITONSERVER_InferenceTrace*, const char**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceSpawnChildTrace(
    TRITONSERVER_InferenceTrace*, TRITONSERVER_InferenceTrace**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceSetContext(TRITONSERVER_InferenceTrace*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_InferenceTraceContext(TRITONSERVER_InferenceTrace*, const char**);

/* Custom metrics. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricFamilyNew(
    TRITONSERVER_MetricFamily**, TRITONSERVER_MetricKind, const char*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_GetMetricFamilyKind(TRITONSERVER_MetricFamily*, TRITONSERVER_MetricKind*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricArgsNew(TRITONSERVER_MetricArgs**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricArgsSetHistogram(TRITONSERVER_MetricArgs*, const double*, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricArgsDelete(TRITONSERVER_MetricArgs*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricNew(
    TRITONSERVER_Metric**, TRITONSERVER_MetricFamily*, const TRITONSERVER_Parameter**, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricNewWithArgs(
    TRITONSERVER_Metric**, TRITONSERVER_MetricFamily*, const TRITONSERVER_Parameter**, uint64_t,
    const TRITONSERVER_MetricArgs*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricDelete(TRITONSERVER_Metric*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricValue(TRITONSERVER_Metric*, double*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricIncrement(TRITONSERVER_Metric*, double);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricSet(TRITONSERVER_Metric*, double);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricObserve(TRITONSERVER_Metric*, double);
TRITON_API TRITONSERVER_Error* TRITONSERVER_GetMetricKind(TRITONSERVER_Metric*, TRITONSERVER_MetricKind*);

/* The document of all metrics. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricsDelete(TRITONSERVER_Metrics*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_MetricsFormatted(
    TRITONSERVER_Metrics*, TRITONSERVER_MetricFormat, const char**, size_t*);

/* Options of a server that a program starts. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsNew(TRITONSERVER_ServerOptions**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsDelete(TRITONSERVER_ServerOptions*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetServerId(TRITONSERVER_ServerOptions*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelRepositoryPath(TRITONSERVER_ServerOptions*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelControlMode(
    TRITONSERVER_ServerOptions*, TRITONSERVER_ModelControlMode);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetStartupModel(TRITONSERVER_ServerOptions*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetStrictModelConfig(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelConfigName(TRITONSERVER_ServerOptions*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetRateLimiterMode(
    TRITONSERVER_ServerOptions*, TRITONSERVER_RateLimitMode);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsAddRateLimiterResource(
    TRITONSERVER_ServerOptions*, const char*, size_t, int);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetPinnedMemoryPoolByteSize(TRITONSERVER_ServerOptions*, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(TRITONSERVER_ServerOptions*, int, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(TRITONSERVER_ServerOptions*, int, size_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetResponseCacheByteSize(TRITONSERVER_ServerOptions*, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCacheConfig(TRITONSERVER_ServerOptions*, const char*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCacheDirectory(TRITONSERVER_ServerOptions*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(TRITONSERVER_ServerOptions*, double);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetExitOnError(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetStrictReadiness(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetExitTimeout(TRITONSERVER_ServerOptions*, unsigned int);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetBufferManagerThreadCount(TRITONSERVER_ServerOptions*, unsigned int);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelLoadThreadCount(TRITONSERVER_ServerOptions*, unsigned int);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelLoadRetryCount(TRITONSERVER_ServerOptions*, unsigned int);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelNamespacing(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetEnablePeerAccess(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogFile(TRITONSERVER_ServerOptions*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogInfo(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogWarn(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogError(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogFormat(TRITONSERVER_ServerOptions*, TRITONSERVER_LogFormat);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogVerbose(TRITONSERVER_ServerOptions*, int);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetMetrics(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetGpuMetrics(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCpuMetrics(TRITONSERVER_ServerOptions*, bool);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetMetricsInterval(TRITONSERVER_ServerOptions*, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetBackendDirectory(TRITONSERVER_ServerOptions*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetRepoAgentDirectory(TRITONSERVER_ServerOptions*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
    TRITONSERVER_ServerOptions*, TRITONSERVER_InstanceGroupKind, int, double);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetBackendConfig(
    TRITONSERVER_ServerOptions*, const char*, const char*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetHostPolicy(
    TRITONSERVER_ServerOptions*, const char*, const char*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetMetricsConfig(
    TRITONSERVER_ServerOptions*, const char*, const char*, const char*);

/* The server. A plug-in gets it from TRITONBACKEND_ModelServer. */
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerNew(TRITONSERVER_Server**, TRITONSERVER_ServerOptions*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerDelete(TRITONSERVER_Server*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerStop(TRITONSERVER_Server*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerSetExitTimeout(TRITONSERVER_Server*, unsigned int);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerRegisterModelRepository(
    TRITONSERVER_Server*, const char*, const TRITONSERVER_Parameter**, uint32_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerUnregisterModelRepository(TRITONSERVER_Server*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerPollModelRepository(TRITONSERVER_Server*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerIsLive(TRITONSERVER_Server*, bool*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerIsReady(TRITONSERVER_Server*, bool*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server*, const char*, int64_t, bool*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerModelBatchProperties(
    TRITONSERVER_Server*, const char*, int64_t, uint32_t*, void**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerModelTransactionProperties(
    TRITONSERVER_Server*, const char*, int64_t, uint32_t*, void**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerMetadata(TRITONSERVER_Server*, TRITONSERVER_Message**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerModelMetadata(
    TRITONSERVER_Server*, const char*, int64_t, TRITONSERVER_Message**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerModelStatistics(
    TRITONSERVER_Server*, const char*, int64_t, TRITONSERVER_Message**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerModelConfig(
    TRITONSERVER_Server*, const char*, int64_t, uint32_t, TRITONSERVER_Message**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerModelIndex(TRITONSERVER_Server*, uint32_t, TRITONSERVER_Message**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerLoadModel(TRITONSERVER_Server*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerLoadModelWithParameters(
    TRITONSERVER_Server*, const char*, const TRITONSERVER_Parameter**, uint64_t);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerUnloadModelAndDependents(TRITONSERVER_Server*, const char*);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerMetrics(TRITONSERVER_Server*, TRITONSERVER_Metrics**);
TRITON_API TRITONSERVER_Error* TRITONSERVER_ServerInferAsync(
    TRITONSERVER_Server*, TRITONSERVER_InferenceRequest*, TRITONSERVER_InferenceTrace*);
#ifdef __cplusplus
}
#endif

#endif
