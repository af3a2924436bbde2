/* A backend that was built for a newer interface, as all of Triton's own find out: they compare, and say what they were built for. */
#include <stdio.h>

#include "triton/core/tritonbackend.h"

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
    uint32_t major, minor;
    TRITONBACKEND_ApiVersion(&major, &minor);
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, "'newer' TRITONBACKEND API version: 1.99");
    if (minor < 99) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "triton backend API version does not support this backend");
    return NULL;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
    return NULL;
}
