/* Custom metrics and log lines: both go to the Python side as they are made. */
#include <stdio.h>

#include "host.h"

struct TRITONSERVER_MetricFamily {
    uint32_t live;
    TRITONSERVER_MetricKind kind;
    PyObject* family;
};

struct TRITONSERVER_Metric {
    uint32_t live;
    TRITONSERVER_MetricKind kind;
    PyObject* metric;
};

struct TRITONSERVER_MetricArgs {
    double* buckets;
    uint64_t count;
};

/* Call metric(operation, ...) of the Python side. Takes the references of the values. */
static PyObject* ask(const char* operation, PyObject* first, PyObject* second, PyObject* third, Error** error) {
    PyObject* name = PyUnicode_FromString(operation);
    PyObject* answer =
        tpy_python.metric == NULL ? NULL : PyObject_CallFunctionObjArgs(tpy_python.metric, name, first, second, third, NULL);
    Py_DecRef(name);
    Py_DecRef(first);
    Py_DecRef(second);
    Py_DecRef(third);
    *error = answer == NULL ? tpy_exception(TRITONSERVER_ERROR_INVALID_ARG) : NULL;
    return answer;
}

Error* TRITONSERVER_MetricFamilyNew(
    TRITONSERVER_MetricFamily** made, TRITONSERVER_MetricKind kind, const char* name, const char* description) {
    *made = NULL;
    Error* error;
    int state = PyGILState_Ensure();
    PyObject* family = ask("family", PyLong_FromLongLong(kind), tpy_text_of(name), tpy_text_of(description), &error);
    PyGILState_Release(state);
    if (error != NULL) return error;
    *made = calloc(1, sizeof **made);
    **made = (TRITONSERVER_MetricFamily){LIVE_FAMILY, kind, family};
    return NULL;
}

static void give_back(PyObject* object) {
    Error* error;
    int state = PyGILState_Ensure();
    Py_DecRef(ask("close", object, NULL, NULL, &error));
    TRITONSERVER_ErrorDelete(error);
    PyGILState_Release(state);
}

Error* TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily* family) {
    REQUIRE(family, LIVE_FAMILY);
    family->live = 0;
    give_back(family->family);
    free(family);
    return NULL;
}

Error* TRITONSERVER_GetMetricFamilyKind(TRITONSERVER_MetricFamily* family, TRITONSERVER_MetricKind* kind) {
    REQUIRE(family, LIVE_FAMILY);
    *kind = family->kind;
    return NULL;
}

Error* TRITONSERVER_MetricArgsNew(TRITONSERVER_MetricArgs** args) {
    *args = calloc(1, sizeof **args);
    return NULL;
}

Error* TRITONSERVER_MetricArgsSetHistogram(TRITONSERVER_MetricArgs* args, const double* buckets, uint64_t count) {
    free(args->buckets);
    args->buckets = malloc(sizeof *buckets * (count + 1));
    memcpy(args->buckets, buckets, sizeof *buckets * count);
    args->count = count;
    return NULL;
}

Error* TRITONSERVER_MetricArgsDelete(TRITONSERVER_MetricArgs* args) {
    free(args->buckets);
    free(args);
    return NULL;
}

Error* TRITONSERVER_MetricNewWithArgs(
    TRITONSERVER_Metric** made, TRITONSERVER_MetricFamily* family, const TRITONSERVER_Parameter** labels, uint64_t count,
    const TRITONSERVER_MetricArgs* args) {
    *made = NULL;
    REQUIRE(family, LIVE_FAMILY);
    if (family->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM && args == NULL)
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "a histogram needs arguments with its buckets");
    for (uint64_t i = 0; i < count; i++)
        if (labels[i]->type != TRITONSERVER_PARAMETER_STRING)
            return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "Parameter [%s] must have a type of TRITONSERVER_PARAMETER_STRING to be added as a label.", labels[i]->name);
    Error* error;
    int state = PyGILState_Ensure();
    PyObject* values = PyDict_New();
    for (uint64_t i = 0; i < count; i++) {
        PyObject* text = tpy_text_of(labels[i]->bytes);
        PyDict_SetItemString(values, labels[i]->name, text);
        Py_DecRef(text);
    }
    PyObject* buckets = PyList_New(args == NULL ? 0 : (Py_ssize_t)args->count);
    for (uint64_t i = 0; args != NULL && i < args->count; i++)
        PyList_SetItem(buckets, (Py_ssize_t)i, PyFloat_FromDouble(args->buckets[i]));
    Py_IncRef(family->family);
    PyObject* metric = ask("metric", family->family, values, buckets, &error);
    PyGILState_Release(state);
    if (error != NULL) return error;
    *made = calloc(1, sizeof **made);
    **made = (TRITONSERVER_Metric){LIVE_METRIC, family->kind, metric};
    return NULL;
}

Error* TRITONSERVER_MetricNew(
    TRITONSERVER_Metric** made, TRITONSERVER_MetricFamily* family, const TRITONSERVER_Parameter** labels, uint64_t count) {
    return TRITONSERVER_MetricNewWithArgs(made, family, labels, count, NULL);
}

Error* TRITONSERVER_MetricDelete(TRITONSERVER_Metric* metric) {
    REQUIRE(metric, LIVE_METRIC);
    metric->live = 0;
    int state = PyGILState_Ensure();
    Py_DecRef(metric->metric);
    PyGILState_Release(state);
    free(metric);
    return NULL;
}

static Error* change(TRITONSERVER_Metric* metric, const char* operation, double by, double* value) {
    Error* error;
    int state = PyGILState_Ensure();
    Py_IncRef(metric->metric);
    PyObject* answer = ask(operation, metric->metric, PyFloat_FromDouble(by), NULL, &error);
    if (answer != NULL && value != NULL) *value = PyFloat_AsDouble(answer);
    Py_DecRef(answer);
    PyGILState_Release(state);
    return error;
}

Error* TRITONSERVER_MetricValue(TRITONSERVER_Metric* metric, double* value) {
    REQUIRE(metric, LIVE_METRIC);
    return change(metric, "value", 0, value);
}

Error* TRITONSERVER_MetricIncrement(TRITONSERVER_Metric* metric, double value) {
    REQUIRE(metric, LIVE_METRIC);
    return change(metric, "increment", value, NULL);
}

Error* TRITONSERVER_MetricSet(TRITONSERVER_Metric* metric, double value) {
    REQUIRE(metric, LIVE_METRIC);
    return change(metric, "set", value, NULL);
}

Error* TRITONSERVER_MetricObserve(TRITONSERVER_Metric* metric, double value) {
    REQUIRE(metric, LIVE_METRIC);
    return change(metric, "observe", value, NULL);
}

Error* TRITONSERVER_GetMetricKind(TRITONSERVER_Metric* metric, TRITONSERVER_MetricKind* kind) {
    REQUIRE(metric, LIVE_METRIC);
    *kind = metric->kind;
    return NULL;
}

/* ---- log */

atomic_int tpy_log_levels = (1 << TRITONSERVER_LOG_INFO) | (1 << TRITONSERVER_LOG_WARN) | (1 << TRITONSERVER_LOG_ERROR);
__thread char tpy_last_version[64];

TPY_API void tpy_set_log_levels(int levels) { atomic_store(&tpy_log_levels, levels); }

bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel level) { return (atomic_load(&tpy_log_levels) >> level) & 1; }

/* Backends write "'x' TRITONBACKEND API version: 1.25": the only place where it is said what they were built for. */
static void note_version(const char* text) {
    static const char mark[] = "TRITONBACKEND API version: ";
    const char* found = strstr(text, mark);
    if (found != NULL && strncmp(text, "Triton ", 7) != 0)
        snprintf(tpy_last_version, sizeof tpy_last_version, "%s", found + sizeof mark - 1);
}

Error* TRITONSERVER_LogMessage(TRITONSERVER_LogLevel level, const char* file, const int line, const char* text) {
    if (text == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "a log line without a text");
    note_version(text);
    if (!TRITONSERVER_LogIsEnabled(level) || tpy_python.log == NULL || !Py_IsInitialized()) return NULL;
    int state = PyGILState_Ensure();
    PyObject* number = PyLong_FromLongLong(level);
    PyObject* name = tpy_text_of(file == NULL ? "" : file);
    PyObject* position = PyLong_FromLongLong(line);
    PyObject* string = tpy_text_of(text);
    PyObject* done = PyObject_CallFunctionObjArgs(tpy_python.log, number, name, position, string, NULL);
    if (done == NULL) PyErr_Clear();
    Py_DecRef(done);
    Py_DecRef(string);
    Py_DecRef(position);
    Py_DecRef(name);
    Py_DecRef(number);
    PyGILState_Release(state);
    return NULL;
}
