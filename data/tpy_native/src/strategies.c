/* Custom batching strategies, TRITONBACKEND_ModelBatch*: what the Python side calls of them. As entry.c.
 *
 * A strategy is asked when a batch is formed, in the thread of the scheduler, for some microseconds: with the interpreter lock. */
#include <dlfcn.h>

#include "host.h"

typedef struct {
    TRITONBACKEND_Backend backend; /* of nobody: what a strategy sees of the model needs one */
    TRITONBACKEND_Model model;
    TRITONBACKEND_ModelInstance instance;
    TRITONBACKEND_Batcher* batcher;
    void* forming; /* what the strategy knows of the batch that is formed */
    Error* (*initialize)(TRITONBACKEND_Batcher**, TRITONBACKEND_Model*);
    Error* (*finalize)(TRITONBACKEND_Batcher*);
    Error* (*include)(TRITONBACKEND_Request*, void*, bool*);
    Error* (*begin)(const TRITONBACKEND_Batcher*, void**);
    Error* (*end)(void*);
} Strategy;

static Error* load(Strategy* strategy, const char* path) {
    Error* error = tpy_load_library(path, "batching", &strategy->backend.library);
    if (error != NULL) return error;
    struct {
        const char* name;
        void** function;
    } entries[] = {
        {"TRITONBACKEND_ModelBatcherInitialize", (void**)&strategy->initialize},
        {"TRITONBACKEND_ModelBatcherFinalize", (void**)&strategy->finalize},
        {"TRITONBACKEND_ModelBatchIncludeRequest", (void**)&strategy->include},
        {"TRITONBACKEND_ModelBatchInitialize", (void**)&strategy->begin},
        {"TRITONBACKEND_ModelBatchFinalize", (void**)&strategy->end},
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        *entries[i].function = dlsym(strategy->backend.library, entries[i].name);
        if (*entries[i].function == NULL)
            return tpy_error(
                TRITONSERVER_ERROR_INVALID_ARG,
                "%s does not define all required custom batching functions for model %s: '%s' is missing", path,
                strategy->model.name, entries[i].name);
    }
    return tpy_with_version(
        strategy->initialize(&strategy->batcher, &strategy->model), "TRITONBACKEND", TRITONBACKEND_API_VERSION_MAJOR,
        TRITONBACKEND_API_VERSION_MINOR);
}

static void strategy_free(Strategy* strategy) {
    tpy_batch_free(strategy->instance.idle);
    tpy_batch_free(strategy->instance.last);
    tpy_free_texts(strategy->model.outputs, strategy->model.output_count);
    free(strategy->model.name);
    free(strategy->model.repository);
    free(strategy->model.config);
    Py_DecRef(strategy->model.server.calls);
    strategy->backend.live = strategy->model.live = strategy->instance.live = 0;
    free(strategy);
}

TPY_API PyObject* tpy_strategy_open(
    const char* path, const char* name, uint64_t version, const char* repository, const char* config, PyObject* outputs) {
    Strategy* strategy = calloc(1, sizeof *strategy);
    strategy->backend.live = strategy->backend.memory.live = LIVE_BACKEND;
    strategy->backend.name = strategy->backend.directory = strategy->backend.config = (char*)"";
    TRITONBACKEND_Model* model = &strategy->model;
    model->live = LIVE_MODEL;
    model->backend = &strategy->backend;
    model->name = tpy_copy(name);
    model->version = version;
    model->repository = tpy_copy(repository);
    model->config = tpy_copy(config);
    model->initialized = true;
    model->outputs = tpy_copy_texts(outputs, &model->output_count);
    model->server.live = LIVE_SERVER;
    model->server.calls = Py_None;
    Py_IncRef(Py_None);
    strategy->instance.live = LIVE_INSTANCE;
    strategy->instance.model = model;
    strategy->instance.name = "";
    PyThreadState* state = PyEval_SaveThread();
    Error* error = load(strategy, path);
    PyEval_RestoreThread(state);
    if (error == NULL) return PyLong_FromVoidPtr(strategy);
    strategy_free(strategy);
    return tpy_error_pair(error);
}

TPY_API PyObject* tpy_strategy_begin(Strategy* strategy) {
    strategy->forming = NULL;
    return tpy_none_or(strategy->begin(strategy->batcher, &strategy->forming));
}

/* Whether the request belongs to the batch, and the error or None. NULL with an exception when the request cannot be shown. */
TPY_API PyObject* tpy_strategy_include(Strategy* strategy, PyObject* python) {
    Batch* batch = tpy_batch_open(&strategy->instance, 1);
    TRITONBACKEND_Request* request = &batch->requests[0];
    Py_IncRef(python);
    bool included = true;
    int failed = tpy_request_fill(request, batch, python);
    PyObject *type, *value, *trace;
    if (failed) PyErr_Fetch(&type, &value, &trace);
    Error* error = failed ? NULL : strategy->include(request, strategy->forming, &included);
    request->answer_state = OVER;
    tpy_request_drop(request);
    if (failed) {
        PyErr_Restore(type, value, trace);
        return NULL;
    }
    PyObject* pair = PyTuple_New(2);
    PyTuple_SetItem(pair, 0, PyBool_FromLong(included));
    PyTuple_SetItem(pair, 1, error == NULL ? tpy_none_or(NULL) : tpy_error_pair(error));
    return pair;
}

TPY_API PyObject* tpy_strategy_end(Strategy* strategy) { return tpy_none_or(strategy->end(strategy->forming)); }

TPY_API PyObject* tpy_strategy_close(Strategy* strategy) {
    PyThreadState* state = PyEval_SaveThread();
    Error* error = strategy->finalize(strategy->batcher);
    PyEval_RestoreThread(state);
    strategy_free(strategy);
    return tpy_none_or(error);
}
