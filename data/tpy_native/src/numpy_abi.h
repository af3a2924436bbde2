/* The few things of NumPy's binary interface that the host uses. Declared here as those of Python are. The layout is the same in
 * NumPy 1 and 2; which interface a NumPy has, its table of functions says. */
#ifndef TPY_NUMPY_ABI_H
#define TPY_NUMPY_ABI_H

#include "python_abi.h"

typedef struct {
    PyObject head;
    char* data;
    int dims;
    Py_ssize_t* shape;
    Py_ssize_t* strides;
    PyObject* base;
    PyObject* descriptor;
    int flags;
} NumpyArray;

enum {
    NUMPY_C_CONTIGUOUS = 0x1,
    NUMPY_CARRAY = 0x501, /* contiguous, aligned, may be written */
};

/* Places in the table of functions. */
enum { NUMPY_GET_VERSION = 0, NUMPY_ARRAY_TYPE = 2, NUMPY_NEW_FROM_DESCRIPTOR = 94, NUMPY_SET_BASE = 282 };

enum { NUMPY_ABI_1 = 0x01000009, NUMPY_ABI_2 = 0x02000000 };

#endif
