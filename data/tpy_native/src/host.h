/* What the files of the host share: objects behind the pointers that plug-ins hold. */
#ifndef TPY_HOST_H
#define TPY_HOST_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "numpy_abi.h"
#include "triton/core/tritonbackend.h"

#define TPY_API TRITON_API

typedef TRITONSERVER_Error Error;
typedef TRITONSERVER_DataType DataType;

/* The first field of objects that have a life of their own; 0 in those that are gone. A pointer of another kind, or to what was
 * deleted a moment ago, is refused in this way in place of being followed. */
enum {
    LIVE_BACKEND = 0x74707901,
    LIVE_MODEL,
    LIVE_INSTANCE,
    LIVE_REQUEST,
    RELEASED_REQUEST,
    LIVE_RESPONSE,
    LIVE_OUTPUT,
    LIVE_FACTORY,
    LIVE_STATE,
    LIVE_STATISTICS,
    LIVE_CALL,
    LIVE_CALL_RESPONSE,
    LIVE_ALLOCATOR,
    LIVE_FAMILY,
    LIVE_METRIC,
    LIVE_MESSAGE,
    LIVE_SERVER,
    LIVE_AGENT,
    LIVE_AGENT_MODEL,
    LIVE_CACHE_ENTRY,
    LIVE_CACHE_ALLOCATOR,
};

#define REQUIRE(object, kind)                                                                      \
    do {                                                                                           \
        if ((object) == NULL || (object)->live != (kind)) return tpy_refuse_object(__func__);      \
    } while (0)

struct TRITONSERVER_Error {
    TRITONSERVER_Error_Code code;
    char message[];
};

struct TRITONSERVER_Message {
    uint32_t live;
    size_t size;
    char text[];
};

/* A parameter, of a request, a response or a label. `value` points into the struct or to what it owns. */
struct TRITONSERVER_Parameter {
    TRITONSERVER_Parameter* next;
    char* name;
    TRITONSERVER_ParameterType type;
    char* bytes;
    uint64_t size;
    int64_t number;
    double real;
    bool truth;
};

struct TRITONSERVER_BufferAttributes {
    TRITONSERVER_MemoryType memory;
    int64_t memory_id;
    void* cuda_ipc;
    size_t size;
};

struct TRITONBACKEND_MemoryManager {
    uint32_t live;
};

struct TRITONBACKEND_BackendAttribute {
    PyObject* groups; /* a list of (kind, count, device ids) */
    bool parallel_loading;
};

typedef Error* (*BackendFunction)(TRITONBACKEND_Backend*);
typedef Error* (*ModelFunction)(TRITONBACKEND_Model*);
typedef Error* (*InstanceFunction)(TRITONBACKEND_ModelInstance*);
typedef Error* (*ExecuteFunction)(TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request**, const uint32_t);
typedef Error* (*AttributeFunction)(TRITONBACKEND_Backend*, TRITONBACKEND_BackendAttribute*);

struct TRITONBACKEND_Backend {
    uint32_t live;
    void* library;
    char* name;
    char* directory;
    char* config;
    void* state;
    bool pinned;
    TRITONBACKEND_ExecutionPolicy policy;
    TRITONBACKEND_MemoryManager memory;
    BackendFunction finalize;
    ModelFunction model_initialize, model_finalize;
    InstanceFunction instance_initialize, instance_finalize, instance_ready;
    ExecuteFunction execute;
    AttributeFunction attribute;
};

struct TRITONSERVER_Server {
    uint32_t live;
    PyObject* calls; /* of the Python side: infer, load, unload, is_ready; None where there is no server around the model */
};

struct TRITONBACKEND_Model {
    uint32_t live;
    TRITONBACKEND_Backend* backend;
    char* name;
    uint64_t version;
    char* repository;
    char* config;
    char* completed; /* what SetConfig was given, or NULL */
    bool auto_complete;
    bool decoupled;
    bool initialized;
    bool pinned; /* an instance of it is still held by the plug-in: it is never freed */
    void* state;
    TRITONSERVER_Server server;
    char** outputs; /* of the configuration: what a request wants that names none */
    uint32_t output_count;
    PyObject* output_names; /* the same, as the Python side has them */
};

typedef struct Batch Batch;

struct TRITONBACKEND_ModelInstance {
    uint32_t live;
    TRITONBACKEND_Model* model;
    char* name;
    TRITONSERVER_InstanceGroupKind kind;
    int32_t device;
    bool passive;
    char* host_policy_name;
    char* host_policy;
    char** profiles;
    uint32_t profile_count;
    char** secondary_kinds;
    int64_t* secondary_ids;
    uint32_t secondary_count;
    void* state;
    uint64_t compute_start_ns, compute_end_ns; /* of the batch at hand, as it was reported */
    Batch* idle; /* memory of an earlier batch, for the next one */
    Batch* last; /* that of the last one, whose requests are still known as released */
    int held; /* requests that the plug-in, or the host, still has; changed with the interpreter lock */
    atomic_bool damaged; /* something was written behind the end of a buffer */
};

struct TRITONBACKEND_Input {
    const char* name;
    DataType datatype;
    const int64_t* shape;
    uint32_t dims;
    const void* base;
    TRITONSERVER_BufferAttributes attributes;
    PyObject* owner;
    PyObject* key; /* what `name` points into */
    Py_buffer view;
    bool has_view;
    bool is_deferred;   /* `owner` has the elements fetched when they are asked for */
    int64_t extents[8]; /* the shape, where it has no more */
    void* allocated; /* elements of BYTES, one behind the other; or the extents */
};

/* Memory of an output. Behind `size` bytes there is a guard. */
typedef struct {
    void* allocated;
    size_t size;
    atomic_int references;
} Memory;

typedef struct Output {
    uint32_t live;
    struct Output* next;
    TRITONBACKEND_Response* response;
    DataType datatype;
    uint32_t dims;
    Memory* memory;
    TRITONSERVER_BufferAttributes attributes;
    char* name;
    int64_t shape[];
} Output;

struct TRITONBACKEND_Output {
    Output output;
};

struct TRITONBACKEND_State {
    uint32_t live;
    bool updated;
    Output* output;
    TRITONBACKEND_State* next;
};

struct TRITONBACKEND_Response {
    uint32_t live;
    TRITONBACKEND_Request* request;
    Output* outputs;
    Output** outputs_end;
    TRITONSERVER_Parameter* parameters;
    Error* error;
};

struct TRITONBACKEND_ResponseFactory {
    uint32_t live;
    TRITONBACKEND_Request* request;
};

/* Where the one response of a request that is answered once is, or will be. */
typedef enum { WAITING, ANSWERED, LATE, OVER } AnswerState;

struct TRITONBACKEND_Request {
    uint32_t live;
    Batch* batch;
    PyObject* python; /* the ExecutionRequest */
    PyObject* sender; /* of a decoupled model, or the LateAnswer */
    const char* id;
    const char* correlation_text;
    uint64_t correlation;
    uint32_t flags;
    uint64_t timeout_us;
    TRITONBACKEND_Input* inputs;
    uint32_t input_count;
    const char** outputs;
    uint32_t output_count;
    TRITONSERVER_Parameter** parameters;
    uint32_t parameter_count;
    PyObject* strings; /* what the names above point into */
    int references;    /* one of the host, one until it is released, one for each factory and response */
    bool rescheduled;
    AnswerState answer_state;
    TRITONBACKEND_Response* answer;
    TRITONBACKEND_State* states;
};

/* The requests of one execute. `lock` guards references and answers. */
struct Batch {
    TRITONBACKEND_ModelInstance* instance;
    pthread_mutex_t lock;
    int open; /* requests that somebody still holds */
    bool collected; /* execute is over: what is sent from now on is late */
    Error* error;   /* what execute returned */
    uint32_t count;
    TRITONBACKEND_Request** pointers;
    TRITONBACKEND_Request* requests;
    char* arena;
    size_t arena_size, arena_used;
    void* overflow; /* a list of what did not fit */
};

/* values.c */
Error* tpy_error(TRITONSERVER_Error_Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));
Error* tpy_refuse_object(const char* function);
Error* tpy_unsupported(const char* function);
char* tpy_copy(const char* text);
TRITONSERVER_Message* tpy_message(const char* text, size_t size);
TRITONSERVER_Parameter* tpy_parameter(const char* name, TRITONSERVER_ParameterType type, const void* value);
void tpy_parameters_delete(TRITONSERVER_Parameter* first);
const void* tpy_parameter_value(const TRITONSERVER_Parameter* parameter);

/* entry.c */
Error* tpy_load_library(const char* path, const char* kind, void** library);
Error* tpy_with_version(Error* error, const char* interface, int major, int minor); /* of an initialise: with the versions */
PyObject* tpy_error_pair(Error* error);
PyObject* tpy_none_or(Error* error);
char** tpy_copy_texts(PyObject* tuple, uint32_t* count);
void tpy_free_texts(char** texts, uint32_t count);

/* batch.c */
int tpy_request_fill(TRITONBACKEND_Request* request, Batch* batch, PyObject* python); /* takes the reference; -1 with an exception */

/* requests.c */
Batch* tpy_batch_open(TRITONBACKEND_ModelInstance* instance, uint32_t count);
void tpy_batch_close(Batch* batch);
void tpy_batch_free(Batch* batch);
void* tpy_batch_memory(Batch* batch, size_t size);
Error* tpy_request_is_cancelled(TRITONBACKEND_Request* request, bool* is_cancelled);
void tpy_request_hold(TRITONBACKEND_Request* request);
void tpy_request_let_go(TRITONBACKEND_Request* request); /* without the interpreter lock */
void tpy_request_drop(TRITONBACKEND_Request* request);   /* with it */

/* outputs.c */
Output* tpy_output_new(const char* name, DataType datatype, const int64_t* shape, uint32_t dims);
void tpy_output_delete(Output* output, TRITONBACKEND_ModelInstance* instance); /* damaged, if it was written beyond; or NULL */
void tpy_response_delete(TRITONBACKEND_Response* response);
bool tpy_memory_is_whole(const Memory* memory);
Memory* tpy_memory_new(size_t size);
void tpy_memory_let_go(Memory* memory);
#define MEMORY_DATA(memory) ((char*)(memory) + 64)

/* python.c: what the host calls on the Python side (tpy_native.surroundings, tpy_native.backend.python_side) */
typedef struct {
    PyObject* result;      /* ExecutionResult(outputs, error, parameters) */
    PyObject* failure;     /* (code, text) -> ExecutionResult */
    PyObject* tensor;      /* Tensor(name, datatype, array) */
    PyObject* bytes_array; /* (shape, list of bytes) -> array */
    PyObject* datatypes;   /* a list of DataType, by number */
    PyObject* dtypes;      /* a list of dtypes, by number */
    PyObject* prepare;     /* (tensor) -> a contiguous array or bytes, and its shape: of what is no contiguous array */
    PyObject* send;        /* (sender, result or None, final) */
    PyObject* later;       /* () -> (LateAnswer, AnswerLater) */
    PyObject* empty;       /* the ExecutionResult of a request of a decoupled model that goes on */
    PyObject* reschedule;  /* the ExecutionResult of a request that goes back to its scheduler */
    PyObject* log;         /* (level, file, line, text) */
    PyObject* code;        /* (exception) -> its code */
    PyObject* metric;      /* (operation, object, value, ...) */
    PyTypeObject* array_type;  /* numpy.ndarray, and two functions of NumPy's */
    PyObject* (*new_array)(PyTypeObject*, PyObject*, int, const int64_t*, const int64_t*, void*, int, PyObject*);
    int (*set_base)(PyObject*, PyObject*);
} PythonSide;
extern PythonSide tpy_python;
extern atomic_int tpy_log_levels; /* a bit for each level that is wanted */

PyObject* tpy_result_of(TRITONBACKEND_Response* response, TRITONBACKEND_State* states);
PyObject* tpy_array_of(Memory* memory, DataType datatype, const int64_t* shape, uint32_t dims, const char* name);
PyObject* tpy_shape_of(const int64_t* shape, uint32_t dims);
PyObject* tpy_tensor_of(Output* output, const TRITONBACKEND_Model* model);
PyObject* tpy_parameters_of(TRITONSERVER_Parameter* first);
PyObject* tpy_text_of(const char* text);
PyObject* tpy_failure_of(TRITONSERVER_Error_Code code, const char* text);
Error* tpy_exception(TRITONSERVER_Error_Code code); /* the exception that was raised, as an error */
Error* tpy_call_exception(void); /* the same, with the code that it has itself */
TRITONSERVER_Parameter* tpy_parameter_from(const char* name, PyObject* value);
int tpy_input_fill(TRITONBACKEND_Input* input, PyObject* tensor);
Error* tpy_input_fetch(TRITONBACKEND_Input* input);
void tpy_input_clear(TRITONBACKEND_Input* input);
extern __thread char tpy_last_version[64]; /* "1.25", of the last log line of this thread that says what a library was built for */
uint64_t tpy_element_count(const int64_t* shape, uint32_t dims);

#endif
