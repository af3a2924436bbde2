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
    static PyType_Spec spec = {"tpy_data.native.Block", sizeof(Block), 0, Py_TPFLAGS_DEFAULT, slots};
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
    PyObject* dimensions = tpy_shape_of(shape, dims);
    PyObject* array = NULL;
    if (datatype == TRITONSERVER_TYPE_BYTES) {
        PyObject* list = elements_of(owned, count, name);
        if (list != NULL) array = PyObject_CallFunctionObjArgs(tpy_python.bytes_array, dimensions, list, NULL);
        Py_DecRef(list);
    } else {
        PyObject* block = block_of(owned);
        PyObject* dtype = PyList_GetItem(tpy_python.dtypes, datatype);
        if (block != NULL) array = PyObject_CallFunctionObjArgs(tpy_python.array, dimensions, dtype, block, NULL);
        Py_DecRef(block);
    }
    Py_DecRef(dimensions);
    if (memory == NULL) tpy_memory_let_go(owned);
    return array;
}

PyObject* tpy_tensor_of(Output* output) {
    PyObject* array = tpy_array_of(output->memory, output->datatype, output->shape, output->dims, output->name);
    if (array == NULL) return NULL;
    PyObject* name = tpy_text_of(output->name);
    PyObject* datatype = PyList_GetItem(tpy_python.datatypes, output->datatype);
    PyObject* tensor = PyObject_CallFunctionObjArgs(tpy_python.tensor, name, datatype, array, NULL);
    Py_DecRef(name);
    Py_DecRef(array);
    return tensor;
}

static int append_tensor(PyObject* list, Output* output) {
    PyObject* tensor = tpy_tensor_of(output);
    if (tensor == NULL) return -1;
    int failed = PyList_Append(list, tensor);
    Py_DecRef(tensor);
    return failed;
}

/* An ExecutionResult; one with an error where the response cannot be one. NULL with an exception when even that fails. */
PyObject* tpy_result_of(TRITONBACKEND_Response* response, TRITONBACKEND_State* states) {
    if (response->error != NULL) return tpy_failure_of(response->error->code, response->error->message);
    PyObject* outputs = PyList_New(0);
    int failed = outputs == NULL;
    for (Output* output = response->outputs; output != NULL && !failed; output = output->next)
        failed = append_tensor(outputs, output);
    for (TRITONBACKEND_State* state = states; state != NULL && !failed; state = state->next)
        if (state->updated) failed = append_tensor(outputs, state->output);
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
    PyObject** elements = input->view.buf;
    uint64_t count = tpy_element_count(input->shape, input->dims);
    uint64_t size = 0;
    for (uint64_t i = 0; i < count; i++) {
        char* bytes;
        Py_ssize_t length;
        if (!PY_IS_BYTES(elements[i]) || PyBytes_AsStringAndSize(elements[i], &bytes, &length) != 0) return false;
        if (length > UINT32_MAX) return false;
        size += 4 + (uint64_t)length;
    }
    input->text = malloc(size ? size : 1);
    char* at = input->text;
    for (uint64_t i = 0; i < count; i++) {
        char* bytes;
        Py_ssize_t length;
        PyBytes_AsStringAndSize(elements[i], &bytes, &length);
        uint32_t length_32 = (uint32_t)length;
        memcpy(at, &length_32, 4);
        memcpy(at + 4, bytes, (size_t)length);
        at += 4 + length;
    }
    input->base = input->text;
    input->attributes.size = size;
    return true;
}

static int take_view(TRITONBACKEND_Input* input, PyObject* source) {
    if (PyObject_GetBuffer(source, &input->view, PyBUF_C_CONTIGUOUS) != 0) return -1;
    input->has_view = true;
    input->base = input->view.buf;
    input->attributes.size = (size_t)input->view.len;
    return 0;
}

/* Fill in an input from a Tensor. Its array is not copied where a buffer of its elements can be had. -1 with an exception. */
int tpy_input_fill(TRITONBACKEND_Input* input, PyObject* tensor) {
    static PyObject *number_name, *array_name, *datatype_name;
    if (number_name == NULL) {
        number_name = PyUnicode_InternFromString("number");
        array_name = PyUnicode_InternFromString("array");
        datatype_name = PyUnicode_InternFromString("datatype");
    }
    PyObject* datatype = PyObject_GetAttr(tensor, datatype_name);
    PyObject* number = datatype == NULL ? NULL : PyObject_GetAttr(datatype, number_name);
    input->datatype = number == NULL ? TRITONSERVER_TYPE_INVALID : (DataType)PyLong_AsLongLong(number);
    Py_DecRef(number);
    Py_DecRef(datatype);
    input->owner = PyObject_GetAttr(tensor, array_name);
    if (input->owner == NULL || number == NULL) return -1;
    if (input->datatype != TRITONSERVER_TYPE_BF16 && take_view(input, input->owner) == 0) {
        input->shape = (const int64_t*)input->view.shape;
        input->dims = (uint32_t)input->view.ndim;
        if (input->datatype != TRITONSERVER_TYPE_BYTES || serialise(input)) return 0;
    }
    PyErr_Clear();
    tpy_input_clear(input);
    /* not contiguous, or of a dtype that has no buffers: prepared in Python, as bytes and a list of extents */
    PyObject* pair = PyObject_CallFunctionObjArgs(tpy_python.prepare, tensor, NULL);
    if (pair == NULL) return -1;
    input->owner = pair;
    PyObject* shape = PyTuple_GetItem(pair, 1);
    input->dims = (uint32_t)PyTuple_Size(shape);
    int64_t* extents = malloc(sizeof *extents * (input->dims + 1));
    for (uint32_t i = 0; i < input->dims; i++) extents[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    input->text = (char*)extents;
    input->shape = extents;
    return take_view(input, PyTuple_GetItem(pair, 0));
}

void tpy_input_clear(TRITONBACKEND_Input* input) {
    if (input->has_view) PyBuffer_Release(&input->view);
    input->has_view = false;
    Py_DecRef(input->owner);
    input->owner = NULL;
    free(input->text);
    input->text = NULL;
}
