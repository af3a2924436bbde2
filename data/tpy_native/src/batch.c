/* One execution: requests of the engine become a batch of the plug-in, and its responses results of the engine. With the
 * interpreter lock, but for the plug-in's own part. */
#include <stdio.h>
#include <time.h>

#include "host.h"

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- requests */

static struct {
    PyObject *id, *inputs, *requested_outputs, *parameters, *sequence, *timeout_us, *sender, *correlation_id, *start, *end;
    PyObject *input_end_ns, *output_start_ns;
} names;

static void intern_names(void) {
    if (names.id != NULL) return;
#define INTERN(name) names.name = PyUnicode_InternFromString(#name)
    INTERN(inputs), INTERN(requested_outputs), INTERN(parameters), INTERN(sequence), INTERN(timeout_us), INTERN(sender);
    INTERN(correlation_id), INTERN(start), INTERN(end), INTERN(input_end_ns), INTERN(output_start_ns), INTERN(id);
}

/* Text of a str that `request` keeps, or of a copy. */
static const char* keep_text(TRITONBACKEND_Request* request, PyObject* text) {
    if (request->strings == NULL) request->strings = PyList_New(0);
    PyList_Append(request->strings, text);
    return PyUnicode_AsUTF8AndSize(text, NULL);
}

static int fill_id(TRITONBACKEND_Request* request) {
    PyObject* id = PyObject_GetAttr(request->python, names.id);
    Py_ssize_t size = 0;
    const char* text = id == NULL ? NULL : PyUnicode_AsUTF8AndSize(id, &size);
    request->id = text == NULL || size == 0 ? "" : keep_text(request, id);
    Py_DecRef(id);
    return text == NULL ? -1 : 0;
}

static int fill_sequence(TRITONBACKEND_Request* request) {
    PyObject* position = PyObject_GetAttr(request->python, names.sequence);
    if (position == NULL || position == Py_None) {
        Py_DecRef(position);
        return position == NULL ? -1 : 0;
    }
    PyObject* id = PyObject_GetAttr(position, names.correlation_id);
    PyObject* start = PyObject_GetAttr(position, names.start);
    PyObject* end = PyObject_GetAttr(position, names.end);
    int failed = id == NULL || start == NULL || end == NULL;
    if (!failed) {
        if (PY_IS_STR(id)) {
            request->correlation_text = keep_text(request, id);
        } else {
            request->correlation = PyLong_AsUnsignedLongLongMask(id);
        }
        if (PyObject_IsTrue(start) == 1) request->flags |= TRITONSERVER_REQUEST_FLAG_SEQUENCE_START;
        if (PyObject_IsTrue(end) == 1) request->flags |= TRITONSERVER_REQUEST_FLAG_SEQUENCE_END;
    }
    Py_DecRef(end);
    Py_DecRef(start);
    Py_DecRef(id);
    Py_DecRef(position);
    return failed ? -1 : 0;
}

static int fill_timeout(TRITONBACKEND_Request* request) {
    PyObject* timeout = PyObject_GetAttr(request->python, names.timeout_us);
    if (timeout == NULL) return -1;
    request->timeout_us = PyLong_AsUnsignedLongLongMask(timeout);
    Py_DecRef(timeout);
    return 0;
}

/* A new reference to a dict of the attribute, whatever mapping it is; `*items` is the list of its items where it is no dict. */
static PyObject* mapping(TRITONBACKEND_Request* request, PyObject* name, PyObject** items, Py_ssize_t* count) {
    PyObject* found = PyObject_GetAttr(request->python, name);
    *items = NULL;
    if (found == NULL) return NULL;
    if (PY_IS_DICT(found)) {
        *count = PyDict_Size(found);
        return found;
    }
    *items = PyMapping_Items(found);
    Py_DecRef(found);
    if (*items != NULL) *count = PyList_Size(*items);
    return *items;
}

static bool next_item(PyObject* dict, PyObject* items, Py_ssize_t* at, PyObject** key, PyObject** value) {
    if (items == NULL) return PyDict_Next(dict, at, key, value);
    if (*at >= PyList_Size(items)) return false;
    PyObject* pair = PyList_GetItem(items, (*at)++);
    *key = PyTuple_GetItem(pair, 0);
    *value = PyTuple_GetItem(pair, 1);
    return true;
}

static int fill_inputs(TRITONBACKEND_Request* request) {
    PyObject *items, *key, *value;
    Py_ssize_t count = 0, at = 0;
    PyObject* inputs = mapping(request, names.inputs, &items, &count);
    if (inputs == NULL) return -1;
    request->inputs = tpy_batch_memory(request->batch, (size_t)count * sizeof *request->inputs);
    memset(request->inputs, 0, (size_t)count * sizeof *request->inputs);
    int failed = 0;
    while (!failed && request->input_count < count && next_item(inputs, items, &at, &key, &value)) {
        TRITONBACKEND_Input* input = &request->inputs[request->input_count++];
        Py_IncRef(key);
        input->key = key;
        input->name = PyUnicode_AsUTF8AndSize(key, NULL);
        failed = input->name == NULL || tpy_input_fill(input, value) != 0;
    }
    Py_DecRef(inputs);
    return failed ? -1 : 0;
}

static int fill_parameters(TRITONBACKEND_Request* request) {
    PyObject *items, *key, *value;
    Py_ssize_t count = 0, at = 0;
    PyObject* parameters = mapping(request, names.parameters, &items, &count);
    if (parameters == NULL) return -1;
    if (count > 0) request->parameters = tpy_batch_memory(request->batch, (size_t)count * sizeof *request->parameters);
    int failed = 0;
    while (!failed && request->parameter_count < count && next_item(parameters, items, &at, &key, &value)) {
        const char* name = PyUnicode_AsUTF8AndSize(key, NULL);
        TRITONSERVER_Parameter* parameter = name == NULL ? NULL : tpy_parameter_from(name, value);
        failed = parameter == NULL;
        if (!failed) request->parameters[request->parameter_count++] = parameter;
    }
    Py_DecRef(parameters);
    return failed ? -1 : 0;
}

static int fill_outputs(TRITONBACKEND_Request* request) {
    TRITONBACKEND_Model* model = request->batch->instance->model;
    PyObject* wanted = PyObject_GetAttr(request->python, names.requested_outputs);
    Py_ssize_t count = wanted == NULL ? -1 : PySequence_Size(wanted);
    if (count > 0) {
        request->outputs = tpy_batch_memory(request->batch, (size_t)count * sizeof *request->outputs);
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject* name = PySequence_GetItem(wanted, i);
            request->outputs[i] = keep_text(request, name);
            Py_DecRef(name);
        }
        request->output_count = (uint32_t)count;
    } else {
        request->outputs = (const char**)model->outputs;
        request->output_count = model->output_count;
    }
    Py_DecRef(wanted);
    return count < 0 ? -1 : 0;
}

int tpy_request_fill(TRITONBACKEND_Request* request, Batch* batch, PyObject* python) {
    intern_names();
    request->live = LIVE_REQUEST;
    request->batch = batch;
    request->python = python; /* the reference is taken over */
    request->references = 2;
    batch->open++;
    batch->instance->held++;
    if (batch->instance->model->decoupled) {
        request->sender = PyObject_GetAttr(python, names.sender);
        if (request->sender == NULL) return -1;
    }
    return fill_id(request) || fill_inputs(request) || fill_outputs(request) || fill_parameters(request) ||
                   fill_sequence(request) || fill_timeout(request)
               ? -1
               : 0;
}

/* ---- results */

/* For requests that are not answered yet and still held: the objects that wait for their answers. They are made before the lock is
 * taken, as making them may let other threads run. */
static PyObject** make_later(Batch* batch) {
    PyObject** later = NULL;
    if (batch->instance->model->decoupled || batch->error != NULL) return NULL;
    for (uint32_t i = 0; i < batch->count; i++) {
        TRITONBACKEND_Request* request = &batch->requests[i];
        pthread_mutex_lock(&batch->lock);
        bool open = request->answer_state == WAITING && request->references > 1;
        pthread_mutex_unlock(&batch->lock);
        if (!open) continue;
        if (later == NULL) later = calloc(batch->count, sizeof *later);
        PyObject* pair = PyObject_CallFunctionObjArgs(tpy_python.later, NULL);
        if (pair == NULL) {
            PyErr_Clear();
            continue;
        }
        request->sender = PyTuple_GetItem(pair, 0);
        later[i] = PyTuple_GetItem(pair, 1);
        Py_IncRef(request->sender);
        Py_IncRef(later[i]);
        Py_DecRef(pair);
    }
    return later;
}

static PyObject* result_for(TRITONBACKEND_Request* request, PyObject* later, TRITONBACKEND_Response* answer) {
    Batch* batch = request->batch;
    if (answer != NULL) return tpy_result_of(answer, request->states);
    if (later != NULL) {
        Py_IncRef(later);
        return later;
    }
    if (batch->error != NULL) return tpy_failure_of(batch->error->code, batch->error->message);
    if (request->rescheduled) {
        Py_IncRef(tpy_python.reschedule);
        return tpy_python.reschedule;
    }
    char text[256];
    snprintf(
        text, sizeof text, "backend '%.100s' released the request without a response", batch->instance->model->backend->name);
    return tpy_failure_of(TRITONSERVER_ERROR_INTERNAL, text);
}

/* The results of the batch, in order. From here on what is sent is late, and requests end when the plug-in lets go of them. */
static PyObject* collect(Batch* batch) {
    bool decoupled = batch->instance->model->decoupled;
    PyObject** later = make_later(batch);
    TRITONBACKEND_Response** answers = tpy_batch_memory(batch, batch->count * sizeof *answers);
    bool* ended = tpy_batch_memory(batch, batch->count * sizeof *ended);
    bool any_rescheduled = false;
    batch->open++; /* for this function */
    pthread_mutex_lock(&batch->lock);
    batch->collected = true;
    for (uint32_t i = 0; i < batch->count; i++) {
        TRITONBACKEND_Request* request = &batch->requests[i];
        ended[i] = request->references == 1;
        any_rescheduled |= request->rescheduled;
        answers[i] = request->answer;
        request->answer = NULL;
        if (later != NULL && later[i] != NULL && request->answer_state == WAITING && !ended[i]) {
            request->answer_state = LATE;
        } else {
            if (later != NULL && later[i] != NULL) {
                Py_DecRef(later[i]);
                later[i] = NULL;
            }
            if (!decoupled) request->answer_state = OVER;
        }
    }
    pthread_mutex_unlock(&batch->lock);
    uint32_t count = batch->count;
    PyObject* results = PyList_New(decoupled && !any_rescheduled ? 0 : count);
    bool failed = results == NULL;
    for (uint32_t i = 0; i < count; i++) {
        TRITONBACKEND_Request* request = &batch->requests[i];
        if (!failed && (!decoupled || any_rescheduled)) {
            PyObject* result;
            if (decoupled) {
                result = request->rescheduled ? tpy_python.reschedule : tpy_python.empty;
                Py_IncRef(result);
            } else {
                result = result_for(request, later == NULL ? NULL : later[i], answers[i]);
            }
            failed = result == NULL || PyList_SetItem(results, i, result) != 0;
        }
        if (answers[i] != NULL) tpy_response_delete(answers[i]);
        if (later != NULL) Py_DecRef(later[i]);
    }
    for (uint32_t i = 0; i < count; i++)
        if (ended[i]) tpy_request_drop(&batch->requests[i]);
    if (--batch->open == 0) tpy_batch_close(batch);
    free(later);
    if (failed) {
        Py_DecRef(results);
        return NULL;
    }
    return results;
}

/* Execute returned an error: the requests are the host's again. */
static void take_back(Batch* batch, Error* error) {
    pthread_mutex_lock(&batch->lock);
    batch->error = error;
    for (uint32_t i = 0; i < batch->count; i++) {
        TRITONBACKEND_Request* request = &batch->requests[i];
        if (request->live != LIVE_REQUEST) continue;
        request->live = RELEASED_REQUEST;
        request->references--;
    }
    pthread_mutex_unlock(&batch->lock);
}

static void set_times(TRITONBACKEND_ModelInstance* instance, PyObject* times, uint64_t start_ns) {
    uint64_t inputs = instance->compute_start_ns, outputs = instance->compute_end_ns, end_ns = now_ns();
    if (inputs < start_ns || outputs < inputs || end_ns < outputs) return;
    PyObject* input_end = PyLong_FromUnsignedLongLong(inputs);
    PyObject* output_start = PyLong_FromUnsignedLongLong(outputs);
    PyObject_SetAttr(times, names.input_end_ns, input_end);
    PyObject_SetAttr(times, names.output_start_ns, output_start);
    Py_DecRef(output_start);
    Py_DecRef(input_end);
}

/* (requests, times) -> a list of results; None when the plug-in has written beyond a buffer. */
static PyObject* execute(PyObject* self, PyObject* const* arguments, Py_ssize_t argument_count) {
    if (argument_count != 2) {
        PyErr_SetString(PyExc_TypeError, "execute takes the requests of a batch and its times");
        return NULL;
    }
    TRITONBACKEND_ModelInstance* instance = PyLong_AsVoidPtr(self);
    PyObject *requests = arguments[0], *times = arguments[1];
    uint64_t start_ns = now_ns();
    uint32_t count = (uint32_t)PySequence_Size(requests);
    Batch* batch = tpy_batch_open(instance, count);
    int failed = 0;
    for (uint32_t i = 0; i < count && !failed; i++) {
        batch->pointers[i] = &batch->requests[i];
        failed = tpy_request_fill(&batch->requests[i], batch, PySequence_GetItem(requests, i));
    }
    if (failed) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        for (uint32_t i = 0; i < count; i++)
            if (batch->requests[i].live == LIVE_REQUEST) {
                batch->requests[i].answer_state = OVER;
                tpy_request_drop(&batch->requests[i]);
            }
        PyErr_Restore(type, value, trace);
        return NULL;
    }
    PyThreadState* state = PyEval_SaveThread();
    Error* error = instance->model->backend->execute(instance, batch->pointers, count);
    PyEval_RestoreThread(state);
    set_times(instance, times, start_ns);
    if (error != NULL) take_back(batch, error);
    PyObject* results = collect(batch);
    if (results != NULL && atomic_load(&instance->damaged)) {
        Py_DecRef(results);
        Py_IncRef(Py_None);
        return Py_None;
    }
    return results;
}

/* `execute` of an instance as a function of Python's own: a call by ctypes takes longer than all of it. */
TPY_API PyObject* tpy_instance_executor(TRITONBACKEND_ModelInstance* instance) {
    static PyMethodDef definition = {"execute", (void*)execute, METH_FASTCALL, NULL};
    PyObject* self = PyLong_FromVoidPtr(instance);
    PyObject* function = PyCFunction_NewEx(&definition, self, NULL);
    Py_DecRef(self);
    return function;
}
