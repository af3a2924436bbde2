/* A library that needs a function of a later interface. */
#include "triton/core/tritonbackend.h"

TRITONSERVER_Error* TRITONBACKEND_OfTheFuture(TRITONBACKEND_ModelInstance*);

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
    return TRITONBACKEND_OfTheFuture(instance);
}
