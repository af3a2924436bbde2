/* What plug-ins ask of the server around their model: its repository, and traces, which there are none of. */
#include "host.h"

/* The exception that the Python side raised, with its own code. */
Error* tpy_call_exception(void) {
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject* number = value == NULL ? NULL : PyObject_CallFunctionObjArgs(tpy_python.code, value, NULL);
    TRITONSERVER_Error_Code code = number == NULL ? TRITONSERVER_ERROR_INTERNAL : (TRITONSERVER_Error_Code)PyLong_AsLongLong(number);
    Py_DecRef(number);
    PyErr_Restore(type, value, trace);
    return tpy_exception(code);
}

/* calls.<method>(first, second); takes the references of the values. */
static Error* ask(TRITONSERVER_Server* server, const char* method, PyObject* first, PyObject* second, int64_t* answer) {
    PyObject* function = PyObject_GetAttrString(server->calls, method);
    PyObject* result = function == NULL ? NULL : PyObject_CallFunctionObjArgs(function, first, second, NULL);
    if (result != NULL && answer != NULL) *answer = PyLong_AsLongLong(result);
    Error* error = result == NULL ? tpy_call_exception() : NULL;
    Py_DecRef(result);
    Py_DecRef(function);
    Py_DecRef(first);
    Py_DecRef(second);
    return error;
}

Error* TRITONSERVER_ServerIsLive(TRITONSERVER_Server* server, bool* live) {
    REQUIRE(server, LIVE_SERVER);
    *live = true;
    return NULL;
}

Error* TRITONSERVER_ServerModelIsReady(TRITONSERVER_Server* server, const char* model, const int64_t version, bool* ready) {
    REQUIRE(server, LIVE_SERVER);
    int64_t answer = 0;
    int state = PyGILState_Ensure();
    Error* error = ask(server, "is_model_ready", tpy_text_of(model), PyLong_FromLongLong(version), &answer);
    PyGILState_Release(state);
    *ready = answer != 0;
    return error;
}

Error* TRITONSERVER_ServerModelTransactionProperties(
    TRITONSERVER_Server* server, const char* model, const int64_t version, uint32_t* flags, void** userp) {
    REQUIRE(server, LIVE_SERVER);
    int64_t answer = 0;
    int state = PyGILState_Ensure();
    Error* error = ask(server, "transaction_flags", tpy_text_of(model), PyLong_FromLongLong(version), &answer);
    PyGILState_Release(state);
    *flags = (uint32_t)answer;
    if (userp != NULL) *userp = NULL;
    return error;
}

static Error* load(
    TRITONSERVER_Server* server, const char* model, const TRITONSERVER_Parameter** parameters, uint64_t count) {
    int state = PyGILState_Ensure();
    PyObject* values = PyDict_New();
    for (uint64_t i = 0; i < count; i++) {
        TRITONSERVER_Parameter one = *parameters[i];
        one.next = NULL;
        PyObject* single = tpy_parameters_of(&one);
        PyObject *key, *value;
        Py_ssize_t at = 0;
        if (PyDict_Next(single, &at, &key, &value)) PyDict_SetItemString(values, one.name, value);
        Py_DecRef(single);
    }
    Error* error = ask(server, "load_model", tpy_text_of(model), values, NULL);
    PyGILState_Release(state);
    return error;
}

Error* TRITONSERVER_ServerLoadModel(TRITONSERVER_Server* server, const char* model) {
    REQUIRE(server, LIVE_SERVER);
    return load(server, model, NULL, 0);
}

Error* TRITONSERVER_ServerLoadModelWithParameters(
    TRITONSERVER_Server* server, const char* model, const TRITONSERVER_Parameter** parameters, const uint64_t count) {
    REQUIRE(server, LIVE_SERVER);
    return load(server, model, parameters, count);
}

static Error* unload(TRITONSERVER_Server* server, const char* model, bool dependents) {
    int state = PyGILState_Ensure();
    Error* error = ask(server, "unload_model", tpy_text_of(model), PyBool_FromLong(dependents), NULL);
    PyGILState_Release(state);
    return error;
}

Error* TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server* server, const char* model) {
    REQUIRE(server, LIVE_SERVER);
    return unload(server, model, false);
}

Error* TRITONSERVER_ServerUnloadModelAndDependents(TRITONSERVER_Server* server, const char* model) {
    REQUIRE(server, LIVE_SERVER);
    return unload(server, model, true);
}

/* ---- traces: requests have none, so what is asked of one is answered with nothing */

const char* TRITONSERVER_InferenceTraceLevelString(TRITONSERVER_InferenceTraceLevel level) {
    switch (level) {
        case TRITONSERVER_TRACE_LEVEL_DISABLED: return "DISABLED";
        case TRITONSERVER_TRACE_LEVEL_MIN: return "MIN";
        case TRITONSERVER_TRACE_LEVEL_MAX: return "MAX";
        case TRITONSERVER_TRACE_LEVEL_TIMESTAMPS: return "TIMESTAMPS";
        case TRITONSERVER_TRACE_LEVEL_TENSORS: return "TENSORS";
    }
    return "<unknown>";
}

const char* TRITONSERVER_InferenceTraceActivityString(TRITONSERVER_InferenceTraceActivity activity) {
    static const char* names[] = {
        "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END",
        "TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_INPUT", "TENSOR_BACKEND_OUTPUT", "CUSTOM_ACTIVITY",
    };
    return (unsigned)activity < sizeof names / sizeof *names ? names[activity] : "<unknown>";
}

Error* TRITONSERVER_InferenceTraceSpawnChildTrace(TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTrace** child) {
    (void)trace;
    *child = NULL;
    return NULL;
}
