/* The few functions of Python's stable ABI (3.11 and newer) that the host uses. Declared here, so that it compiles where the
 * headers of Python are not installed, and one build serves every version. The interpreter has them; nothing is linked. */
#ifndef TPY_PYTHON_ABI_H
#define TPY_PYTHON_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef intptr_t Py_ssize_t;
typedef struct PyTypeObject PyTypeObject;
typedef struct PyThreadState PyThreadState;
typedef struct PyObject {
    Py_ssize_t count;
    PyTypeObject* type;
} PyObject;

typedef struct {
    void* buf;
    PyObject* obj;
    Py_ssize_t len;
    Py_ssize_t itemsize;
    int readonly;
    int ndim;
    char* format;
    Py_ssize_t* shape;
    Py_ssize_t* strides;
    Py_ssize_t* suboffsets;
    void* internal;
} Py_buffer;

typedef struct {
    const char* name;
    void* function;
    int flags;
    const char* text;
} PyMethodDef;

typedef struct {
    int slot;
    void* function;
} PyType_Slot;

typedef struct {
    const char* name;
    int basicsize;
    int itemsize;
    unsigned int flags;
    PyType_Slot* slots;
} PyType_Spec;

enum {
    Py_bf_getbuffer = 1,
    Py_tp_dealloc = 52,
    Py_TPFLAGS_DEFAULT = 1 << 18,
    PyBUF_WRITABLE = 1,
    PyBUF_ND = 8,
    PyBUF_C_CONTIGUOUS = 0x38,
    METH_FASTCALL = 0x80,
};

extern PyObject _Py_NoneStruct;
#define Py_None (&_Py_NoneStruct)

void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);

int PyGILState_Ensure(void);
void PyGILState_Release(int);
PyThreadState* PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState*);
int Py_IsInitialized(void);

PyObject* PyErr_Occurred(void);
void PyErr_Clear(void);
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_NormalizeException(PyObject**, PyObject**, PyObject**);
void PyErr_Restore(PyObject*, PyObject*, PyObject*);
void PyErr_SetString(PyObject*, const char*);
extern PyObject* PyExc_BufferError;
extern PyObject* PyExc_MemoryError;
extern PyObject* PyExc_TypeError;

PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
int PyObject_SetAttr(PyObject*, PyObject*, PyObject*);
int PyObject_IsTrue(PyObject*);
PyObject* PyObject_Str(PyObject*);
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
PyObject* PyObject_CallMethodObjArgs(PyObject*, PyObject*, ...);
int PyObject_GetBuffer(PyObject*, Py_buffer*, int);
void PyBuffer_Release(Py_buffer*);
int PyBuffer_FillInfo(Py_buffer*, PyObject*, void*, Py_ssize_t, int, int);
void PyObject_Free(void*);

PyObject* PyUnicode_InternFromString(const char*);
PyObject* PyUnicode_FromString(const char*);
PyObject* PyUnicode_DecodeUTF8(const char*, Py_ssize_t, const char*);
const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*);
PyObject* PyBytes_FromStringAndSize(const char*, Py_ssize_t);
int PyBytes_AsStringAndSize(PyObject*, char**, Py_ssize_t*);
PyObject* PyLong_FromLongLong(long long);
PyObject* PyLong_FromUnsignedLongLong(unsigned long long);
PyObject* PyLong_FromVoidPtr(void*);
void* PyLong_AsVoidPtr(PyObject*);
long long PyLong_AsLongLong(PyObject*);
unsigned long long PyLong_AsUnsignedLongLongMask(PyObject*);
PyObject* PyFloat_FromDouble(double);
double PyFloat_AsDouble(PyObject*);
PyObject* PyBool_FromLong(long);

Py_ssize_t PySequence_Size(PyObject*);
PyObject* PySequence_GetItem(PyObject*, Py_ssize_t);
PyObject* PyMapping_Items(PyObject*);
PyObject* PyDict_New(void);
int PyDict_Next(PyObject*, Py_ssize_t*, PyObject**, PyObject**);
int PyDict_SetItemString(PyObject*, const char*, PyObject*);
Py_ssize_t PyDict_Size(PyObject*);
PyObject* PyList_New(Py_ssize_t);
PyObject* PyList_GetItem(PyObject*, Py_ssize_t);
Py_ssize_t PyList_Size(PyObject*);
int PyList_SetItem(PyObject*, Py_ssize_t, PyObject*);
int PyList_Append(PyObject*, PyObject*);
PyObject* PyTuple_New(Py_ssize_t);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);
Py_ssize_t PyTuple_Size(PyObject*);
int PyTuple_SetItem(PyObject*, Py_ssize_t, PyObject*);

PyObject* PyType_FromSpec(PyType_Spec*);
int PyType_IsSubtype(PyTypeObject*, PyTypeObject*);
PyObject* PyCFunction_NewEx(PyMethodDef*, PyObject*, PyObject*);
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyType_GenericAlloc(PyTypeObject*, Py_ssize_t);
unsigned long PyType_GetFlags(PyTypeObject*);

#define PY_IS_LIST(object) (PyType_GetFlags((object)->type) & (1UL << 25))
#define PY_IS_BYTES(object) (PyType_GetFlags((object)->type) & (1UL << 27))
#define PY_IS_STR(object) (PyType_GetFlags((object)->type) & (1UL << 28))
#define PY_IS_DICT(object) (PyType_GetFlags((object)->type) & (1UL << 29))
#define PY_IS_INT(object) (PyType_GetFlags((object)->type) & (1UL << 24))

#endif
