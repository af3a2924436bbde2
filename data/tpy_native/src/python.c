/* Values of C as values of Python, and the other way round. Everything here is called with the interpreter lock. */
#include <stdio.h>

#include "host.h"

PythonSide tpy_python;

/* ---- memory of outputs as an object with a buffer */

typedef struct {
    PyObject head;
    Memory* memory;
} Block;

static int block_buffer(PyObject* self, Py_buffer* view, int flags) {
    Memory* memory = ((Block*)self)->memory;
    return PyBuffer_FillInfo(view, self, MEMORY_DATA(memory), (Py_ssize_t)memory->size, 0, flags);
}

static void block_dealloc(PyObject* self) {
    PyTypeObject* type = self->type;
    tpy_memory_let_go(((Block*)self)->memory);
    PyObject_Free(self);
    Py_DecRef((PyObject*)type);
}

static PyTypeObject* block_type(void) {
    static PyTypeObject* type;
    static PyType_Slot slots[] = {{Py_bf_getbuffer, block_buffer}, {Py_tp_dealloc, block_dealloc}, {0, NULL}};
    static PyType_Spec spec = {"tpy_native.Block", sizeof(Block), 0, Py_TPFLAGS_DEFAULT, slots};
    if (type == NULL) type = (PyTypeObject*)PyType_FromSpec(&spec);
    return type;
}

static PyObject* block_of(Memory* memory) {
    PyTypeObject* type = block_type();
    Block* block = type == NULL ? NULL : (Block*)PyType_GenericAlloc(type, 0);
    if (block == NULL) return NULL;
    atomic_fetch_add(&memory->references, 1);
    block->memory = memory;
    return (PyObject*)block;
}

/* ---- to Python */

PyObject* tpy_text_of(const char* text) { return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"); }

PyObject* tpy_shape_of(const int64_t* shape, uint32_t dims) {
    PyObject* tuple = PyTuple_New(dims);
    for (uint32_t i = 0; tuple != NULL && i < dims; i++) PyTuple_SetItem(tuple, i, PyLong_FromLongLong(shape[i]));
    return tuple;
}

PyObject* tpy_failure_of(TRITONSERVER_Error_Code code, const char* text) {
    PyObject* number = PyLong_FromLongLong(code);
    PyObject* string = tpy_text_of(text);
    PyObject* failure = PyObject_CallFunctionObjArgs(tpy_python.failure, number, string, NULL);
    Py_DecRef(string);
    Py_DecRef(number);
    return failure;
}

PyObject* tpy_parameters_of(TRITONSERVER_Parameter* parameter) {
    PyObject* values = PyDict_New();
    for (; parameter != NULL; parameter = parameter->next) {
        PyObject* value = NULL;
        switch (parameter->type) {
            case TRITONSERVER_PARAMETER_INT: value = PyLong_FromLongLong(parameter->number); break;
            case TRITONSERVER_PARAMETER_BOOL: value = PyBool_FromLong(parameter->truth); break;
            case TRITONSERVER_PARAMETER_DOUBLE: value = PyFloat_FromDouble(parameter->real); break;
            case TRITONSERVER_PARAMETER_STRING: value = tpy_text_of(parameter->bytes); break;
            default: value = PyBytes_FromStringAndSize(parameter->bytes, (Py_ssize_t)parameter->size);
        }
        PyDict_SetItemString(values, parameter->name, value);
        Py_DecRef(value);
    }
    return values;
}

/* The elements of BYTES, each behind its length in 4 bytes. NULL with an exception when they do not fill the memory. */
static PyObject* elements_of(const Memory* memory, uint64_t count, const char* name) {
    const unsigned char* at = (const unsigned char*)MEMORY_DATA(memory);
    const unsigned char* end = at + memory->size;
    PyObject* list = count > memory->size / 4 ? NULL : PyList_New((Py_ssize_t)count);
    for (uint64_t i = 0; list != NULL && i < count; i++) {
        uint32_t size = 0;
        if (end - at >= 4) memcpy(&size, at, 4);
        if (end - at < 4 || (uint64_t)(end - at) - 4 < size) {
            Py_DecRef(list);
            list = NULL;
            break;
        }
        PyList_SetItem(list, (Py_ssize_t)i, PyBytes_FromStringAndSize((const char*)at + 4, size));
        at += 4 + size;
    }
    if (list == NULL || at != end) {
        Py_DecRef(list);
        char text[512];
        snprintf(
            text, sizeof text, "output '%s' has a shape of %llu elements of BYTES, which its %llu bytes are not", name,
            (unsigned long long)count, (unsigned long long)memory->size);
        PyErr_SetString(PyExc_BufferError, text);
        return NULL;
    }
    return list;
}

/* An array over the memory, which it keeps. */
static PyObject* array_over(Memory* memory, DataType datatype, const int64_t* shape, uint32_t dims) {
    PyObject* dtype = PyList_GetItem(tpy_python.dtypes, datatype);
    Py_IncRef(dtype); /* which the array takes */
    PyObject* array = tpy_python.new_array(
        tpy_python.array_type, dtype, (int)dims, shape, NULL, MEMORY_DATA(memory), NUMPY_CARRAY, NULL);
    PyObject* block = array == NULL ? NULL : block_of(memory);
    if (block == NULL || tpy_python.set_base(array, block) != 0) {
        Py_DecRef(array);
        return NULL;
    }
    return array;
}

PyObject* tpy_array_of(Memory* memory, DataType datatype, const int64_t* shape, uint32_t dims, const char* name) {
    uint64_t count = tpy_element_count(shape, dims);
    uint64_t expected = count * TRITONSERVER_DataTypeByteSize(datatype);
    size_t size = memory == NULL ? 0 : memory->size;
    if (datatype != TRITONSERVER_TYPE_BYTES && expected != size) {
        char text[512];
        snprintf(
            text, sizeof text, "output '%s' has %llu bytes, expected %llu for its shape and datatype", name,
            (unsigned long long)size, (unsigned long long)expected);
        PyErr_SetString(PyExc_BufferError, text);
        return NULL;
    }
    Memory* owned = memory == NULL ? tpy_memory_new(0) : memory;
    PyObject* array = NULL;
    if (datatype == TRITONSERVER_TYPE_BYTES) {
        PyObject* dimensions = tpy_shape_of(shape, dims);
        PyObject* list = elements_of(owned, count, name);
        if (list != NULL) array = PyObject_CallFunctionObjArgs(tpy_python.bytes_array, dimensions, list, NULL);
        Py_DecRef(list);
        Py_DecRef(dimensions);
    } else {
        array = array_over(owned, datatype, shape, dims);
    }
    if (memory == NULL) tpy_memory_let_go(owned);
    return array;
}

/* A new reference to the name, which is most often one of the model's outputs. */
static PyObject* name_of(const Output* output, const TRITONBACKEND_Model* model) {
    for (uint32_t i = 0; model != NULL && i < model->output_count; i++)
        if (strcmp(output->name, model->outputs[i]) == 0) {
            PyObject* name = PyTuple_GetItem(model->output_names, i);
            Py_IncRef(name);
            return name;
        }
    return tpy_text_of(output->name);
}

/* A Tensor. `model` may be NULL: of none. */
PyObject* tpy_tensor_of(Output* output, const TRITONBACKEND_Model* model) {
    PyObject* array = tpy_array_of(output->memory, output->datatype, output->shape, output->dims, output->name);
    if (array == NULL) return NULL;
    PyObject* name = name_of(output, model);
    PyObject* datatype = PyList_GetItem(tpy_python.datatypes, output->datatype);
    PyObject* tensor = PyObject_CallFunctionObjArgs(tpy_python.tensor, name, datatype, array, NULL);
    Py_DecRef(name);
    Py_DecRef(array);
    return tensor;
}

static int append_tensor(PyObject* list, Output* output, const TRITONBACKEND_Model* model) {
    PyObject* tensor = tpy_tensor_of(output, model);
    if (tensor == NULL) return -1;
    int failed = PyList_Append(list, tensor);
    Py_DecRef(tensor);
    return failed;
}

/* An ExecutionResult; one with an error where the response cannot be one. NULL with an exception when even that fails. */
PyObject* tpy_result_of(TRITONBACKEND_Response* response, TRITONBACKEND_State* states) {
    if (response->error != NULL) return tpy_failure_of(response->error->code, response->error->message);
    const TRITONBACKEND_Model* model = response->request->batch->instance->model;
    PyObject* outputs = PyList_New(0);
    int failed = outputs == NULL;
    for (Output* output = response->outputs; output != NULL && !failed; output = output->next)
        failed = append_tensor(outputs, output, model);
    for (TRITONBACKEND_State* state = states; state != NULL && !failed; state = state->next)
        if (state->updated) failed = append_tensor(outputs, state->output, model);
    PyObject* result = NULL;
    if (failed) {
        Error* reason = tpy_exception(TRITONSERVER_ERROR_INTERNAL);
        result = tpy_failure_of(reason->code, reason->message);
        TRITONSERVER_ErrorDelete(reason);
    } else if (response->parameters == NULL) {
        result = PyObject_CallFunctionObjArgs(tpy_python.result, outputs, NULL);
    } else {
        PyObject* parameters = tpy_parameters_of(response->parameters);
        result = PyObject_CallFunctionObjArgs(tpy_python.result, outputs, Py_None, parameters, NULL);
        Py_DecRef(parameters);
    }
    Py_DecRef(outputs);
    return result;
}

/* ---- from Python */

Error* tpy_exception(TRITONSERVER_Error_Code code) {
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject* text = value == NULL ? NULL : PyObject_Str(value);
    const char* chars = text == NULL ? NULL : PyUnicode_AsUTF8AndSize(text, NULL);
    Error* error = TRITONSERVER_ErrorNew(code, chars == NULL ? "an exception without a text" : chars);
    PyErr_Clear();
    Py_DecRef(text);
    Py_DecRef(type);
    Py_DecRef(value);
    Py_DecRef(trace);
    return error;
}

TRITONSERVER_Parameter* tpy_parameter_from(const char* name, PyObject* value) {
    static PyObject *yes, *no;
    if (yes == NULL) yes = PyBool_FromLong(1), no = PyBool_FromLong(0);
    if (value == yes || value == no) {
        bool truth = value == yes;
        return tpy_parameter(name, TRITONSERVER_PARAMETER_BOOL, &truth);
    }
    if (PY_IS_STR(value)) {
        const char* text = PyUnicode_AsUTF8AndSize(value, NULL);
        return text == NULL ? NULL : tpy_parameter(name, TRITONSERVER_PARAMETER_STRING, text);
    }
    if (PY_IS_INT(value)) {
        int64_t number = (int64_t)PyLong_AsUnsignedLongLongMask(value);
        return tpy_parameter(name, TRITONSERVER_PARAMETER_INT, &number);
    }
    double real = PyFloat_AsDouble(value);
    return PyErr_Occurred() ? NULL : tpy_parameter(name, TRITONSERVER_PARAMETER_DOUBLE, &real);
}

/* The elements of an array of `bytes` objects, each behind its length. False for other objects. */
static bool serialise(TRITONBACKEND_Input* input) {
    PyObject** elements = (PyObject**)input->base;
    uint64_t count = tpy_element_count(input->shape, input->dims);
    uint64_t size = 0;
    for (uint64_t i = 0; i < count; i++) {
        char* bytes;
        Py_ssize_t length;
        if (!PY_IS_BYTES(elements[i]) || PyBytes_AsStringAndSize(elements[i], &bytes, &length) != 0) return false;
        if (length > UINT32_MAX) return false;
        size += 4 + (uint64_t)length;
    }
    char* at = input->allocated = malloc(size ? size : 1);
    for (uint64_t i = 0; i < count; i++) {
        char* bytes;
        Py_ssize_t length;
        PyBytes_AsStringAndSize(elements[i], &bytes, &length);
        uint32_t length_32 = (uint32_t)length;
        memcpy(at, &length_32, 4);
        memcpy(at + 4, bytes, (size_t)length);
        at += 4 + length;
    }
    input->base = input->allocated;
    input->attributes.size = size;
    return true;
}

static void take_shape(TRITONBACKEND_Input* input, const Py_ssize_t* extents, int dims) {
    int64_t* shape = input->extents;
    if ((size_t)dims > sizeof input->extents / sizeof *input->extents) {
        shape = malloc((size_t)dims * sizeof *shape);
        input->allocated = shape;
    }
    for (int i = 0; i < dims; i++) shape[i] = extents[i];
    input->shape = shape;
    input->dims = (uint32_t)dims;
}

/* Look at the elements of a contiguous array where they are. False for anything else. The shape is copied, as that of an array may
 * be changed in place. */
static bool take_array(TRITONBACKEND_Input* input, PyObject* source) {
    if (source->type != tpy_python.array_type && !PyType_IsSubtype(source->type, tpy_python.array_type)) return false;
    NumpyArray* array = (NumpyArray*)source;
    if (!(array->flags & NUMPY_C_CONTIGUOUS) || array->descriptor != PyList_GetItem(tpy_python.dtypes, input->datatype))
        return false;
    input->base = array->data;
    if (input->datatype == TRITONSERVER_TYPE_BYTES) {
        if ((size_t)array->dims > sizeof input->extents / sizeof *input->extents) return false; /* no place for both */
        take_shape(input, array->shape, array->dims);
        return serialise(input);
    }
    take_shape(input, array->shape, array->dims);
    input->attributes.size = tpy_element_count(input->shape, input->dims) * TRITONSERVER_DataTypeByteSize(input->datatype);
    return true;
}

static void take_tuple(TRITONBACKEND_Input* input, PyObject* shape) {
    Py_ssize_t extents[64];
    Py_ssize_t dims = PyTuple_Size(shape);
    for (Py_ssize_t i = 0; i < dims && i < 64; i++) extents[i] = (Py_ssize_t)PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    take_shape(input, extents, dims < 64 ? (int)dims : 64); /* NumPy has no more */
}

/* Look at what has a buffer. -1 with an exception. */
static int take_view(TRITONBACKEND_Input* input, PyObject* source) {
    if (PyObject_GetBuffer(source, &input->view, PyBUF_C_CONTIGUOUS) != 0) return -1;
    input->has_view = true;
    input->base = input->view.buf;
    input->attributes.size = (size_t)input->view.len;
    return 0;
}

/* A bytes object, or a contiguous array, and a tuple of extents, as the Python side makes them of other arrays. -1 with an exception. */
static int take_prepared(TRITONBACKEND_Input* input, PyObject* pair) {
    take_tuple(input, PyTuple_GetItem(pair, 1));
    return take_view(input, PyTuple_GetItem(pair, 0));
}

static DataType datatype_of(PyObject* member) {
    for (int i = TRITONSERVER_TYPE_BOOL; i <= TRITONSERVER_TYPE_BF16; i++)
        if (PyList_GetItem(tpy_python.datatypes, i) == member) return (DataType)i;
    return TRITONSERVER_TYPE_INVALID; /* in whose place in the list there is no dtype that an array has */
}

static struct {
    PyObject *array, *datatype, *shape, *size, *fetch;
} names;

/* Shape and size of a tensor whose elements are elsewhere. -1 with an exception. */
static int defer(TRITONBACKEND_Input* input, PyObject* tensor) {
    PyObject* shape = PyObject_GetAttr(tensor, names.shape);
    PyObject* size = shape == NULL ? NULL : PyObject_GetAttr(tensor, names.size);
    if (size != NULL) {
        take_tuple(input, shape);
        input->attributes.size = (size_t)PyLong_AsUnsignedLongLongMask(size);
        Py_IncRef(tensor);
        input->owner = tensor;
        input->is_deferred = true;
    }
    Py_DecRef(size);
    Py_DecRef(shape);
    return input->is_deferred ? 0 : -1;
}

/* Get the elements of a deferred input, which are bytes. */
Error* tpy_input_fetch(TRITONBACKEND_Input* input) {
    size_t expected = input->attributes.size;
    int state = PyGILState_Ensure();
    PyObject* bytes = PyObject_CallMethodObjArgs(input->owner, names.fetch, NULL);
    Error* error = NULL;
    if (bytes == NULL || take_view(input, bytes) != 0) error = tpy_exception(TRITONSERVER_ERROR_INTERNAL);
    Py_DecRef(bytes); /* which the view keeps */
    PyGILState_Release(state);
    if (error == NULL && input->attributes.size != expected)
        error = tpy_error(
            TRITONSERVER_ERROR_INTERNAL, "input '%s' has %zu bytes, expected %zu", input->name, input->attributes.size, expected);
    if (error == NULL) input->is_deferred = false;
    return error;
}

/* Fill in an input from a Tensor: the elements of a contiguous array are not copied, but for BYTES; or from what stands for one that
 * is elsewhere: `shape`, `size` in bytes, and `fetch`, which returns them. -1 with an exception. */
int tpy_input_fill(TRITONBACKEND_Input* input, PyObject* tensor) {
    if (names.array == NULL) {
        names.datatype = PyUnicode_InternFromString("datatype");
        names.shape = PyUnicode_InternFromString("shape");
        names.size = PyUnicode_InternFromString("size");
        names.fetch = PyUnicode_InternFromString("fetch");
        names.array = PyUnicode_InternFromString("array");
    }
    PyObject* datatype = PyObject_GetAttr(tensor, names.datatype);
    if (datatype == NULL) return -1;
    input->datatype = datatype_of(datatype);
    Py_DecRef(datatype);
    if ((PyObject*)tensor->type != tpy_python.tensor) return defer(input, tensor);
    input->owner = PyObject_GetAttr(tensor, names.array);
    if (input->owner == NULL) return -1;
    if (take_array(input, input->owner)) return 0;
    tpy_input_clear(input);
    PyObject* pair = PyObject_CallFunctionObjArgs(tpy_python.prepare, tensor, NULL);
    if (pair == NULL) return -1;
    input->owner = pair;
    return take_prepared(input, pair);
}

void tpy_input_clear(TRITONBACKEND_Input* input) {
    if (input->has_view) PyBuffer_Release(&input->view);
    input->has_view = false;
    Py_DecRef(input->owner);
    input->owner = NULL;
    free(input->allocated);
    input->allocated = NULL;
}
