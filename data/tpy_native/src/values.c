/* Errors, messages, parameters, attributes of buffers, names of enum values. */
#include <stdarg.h>
#include <stdio.h>

#include "host.h"

char* tpy_copy(const char* text) { return text == NULL ? NULL : strdup(text); }

/* ---- errors */

Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* message) {
    size_t size = message == NULL ? 0 : strlen(message);
    Error* error = malloc(sizeof(Error) + size + 1);
    error->code = code;
    memcpy(error->message, message == NULL ? "" : message, size);
    error->message[size] = 0;
    return error;
}

Error* tpy_error(TRITONSERVER_Error_Code code, const char* format, ...) {
    char text[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return TRITONSERVER_ErrorNew(code, text);
}

Error* tpy_refuse_object(const char* function) {
    return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "%s: the object was deleted, or is of another kind", function);
}

Error* tpy_unsupported(const char* function) {
    return tpy_error(TRITONSERVER_ERROR_UNSUPPORTED, "%s is not offered by this server", function);
}

void TRITONSERVER_ErrorDelete(Error* error) { free(error); }

TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(Error* error) { return error->code; }

const char* TRITONSERVER_ErrorMessage(Error* error) { return error->message; }

const char* TRITONSERVER_ErrorCodeString(Error* error) {
    static const char* names[] = {
        "Unknown", "Internal", "Not found", "Invalid argument", "Unavailable", "Unsupported", "Already exists", "Cancelled",
    };
    return (unsigned)error->code < sizeof names / sizeof *names ? names[error->code] : "<invalid code>";
}

/* ---- enums */

static const char* DATATYPES[] = {
    "<invalid>", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16",
    "INT32", "INT64", "FP16", "FP32", "FP64", "BYTES", "BF16",
};
static const uint32_t SIZES[] = {0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2};

const char* TRITONSERVER_DataTypeString(DataType datatype) {
    return (unsigned)datatype < sizeof SIZES / sizeof *SIZES ? DATATYPES[datatype] : DATATYPES[0];
}

DataType TRITONSERVER_StringToDataType(const char* text) {
    for (unsigned i = 1; i < sizeof SIZES / sizeof *SIZES; i++)
        if (strcmp(text, DATATYPES[i]) == 0) return (DataType)i;
    return TRITONSERVER_TYPE_INVALID;
}

uint32_t TRITONSERVER_DataTypeByteSize(DataType datatype) {
    return (unsigned)datatype < sizeof SIZES / sizeof *SIZES ? SIZES[datatype] : 0;
}

const char* TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType memory) {
    switch (memory) {
        case TRITONSERVER_MEMORY_CPU: return "CPU";
        case TRITONSERVER_MEMORY_CPU_PINNED: return "CPU_PINNED";
        case TRITONSERVER_MEMORY_GPU: return "GPU";
    }
    return "<invalid>";
}

const char* TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType type) {
    static const char* names[] = {"STRING", "INT", "BOOL", "DOUBLE", "BYTES"};
    return (unsigned)type < sizeof names / sizeof *names ? names[type] : "<invalid>";
}

const char* TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind kind) {
    static const char* names[] = {"AUTO", "CPU", "GPU", "MODEL"};
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "<invalid>";
}

uint64_t tpy_element_count(const int64_t* shape, uint32_t dims) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < dims; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(count, (uint64_t)shape[i], &count)) return UINT64_MAX;
    }
    return count;
}

/* ---- versions */

Error* TRITONSERVER_ApiVersion(uint32_t* major, uint32_t* minor) {
    *major = TRITONSERVER_API_VERSION_MAJOR;
    *minor = TRITONSERVER_API_VERSION_MINOR;
    return NULL;
}

Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor) {
    *major = TRITONBACKEND_API_VERSION_MAJOR;
    *minor = TRITONBACKEND_API_VERSION_MINOR;
    return NULL;
}

/* ---- messages */

TRITONSERVER_Message* tpy_message(const char* text, size_t size) {
    TRITONSERVER_Message* message = malloc(sizeof *message + size + 1);
    message->live = LIVE_MESSAGE;
    message->size = size;
    memcpy(message->text, text, size);
    message->text[size] = 0;
    return message;
}

/* JSON is checked by whoever reads it; here only that it is one document in braces, brackets, quotes or a bare word. */
Error* TRITONSERVER_MessageNewFromSerializedJson(TRITONSERVER_Message** message, const char* base, size_t size) {
    size_t begin = 0;
    while (begin < size && strchr(" \t\r\n", base[begin]) != NULL && base[begin]) begin++;
    if (begin == size || memchr(base, 0, size) != NULL)
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "failed to parse the request JSON buffer: The document is empty. at 0");
    *message = tpy_message(base, size);
    return NULL;
}

Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message) {
    REQUIRE(message, LIVE_MESSAGE);
    message->live = 0;
    free(message);
    return NULL;
}

Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** base, size_t* size) {
    REQUIRE(message, LIVE_MESSAGE);
    *base = message->text;
    *size = message->size;
    return NULL;
}

/* ---- parameters */

TRITONSERVER_Parameter* tpy_parameter(const char* name, TRITONSERVER_ParameterType type, const void* value) {
    TRITONSERVER_Parameter* made = calloc(1, sizeof *made);
    made->name = tpy_copy(name);
    made->type = type;
    switch (type) {
        case TRITONSERVER_PARAMETER_STRING:
            made->bytes = tpy_copy(value);
            made->size = strlen(value);
            break;
        case TRITONSERVER_PARAMETER_INT: made->number = *(const int64_t*)value; break;
        case TRITONSERVER_PARAMETER_BOOL: made->truth = *(const bool*)value; break;
        case TRITONSERVER_PARAMETER_DOUBLE: made->real = *(const double*)value; break;
        default:
            free(made->name);
            free(made);
            return NULL;
    }
    return made;
}

TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(const char* name, TRITONSERVER_ParameterType type, const void* value) {
    return tpy_parameter(name, type, value);
}

TRITONSERVER_Parameter* TRITONSERVER_ParameterBytesNew(const char* name, const void* bytes, uint64_t size) {
    TRITONSERVER_Parameter* made = calloc(1, sizeof *made);
    made->name = tpy_copy(name);
    made->type = TRITONSERVER_PARAMETER_BYTES;
    made->bytes = malloc(size + 1);
    memcpy(made->bytes, bytes, size);
    made->size = size;
    return made;
}

const void* tpy_parameter_value(const TRITONSERVER_Parameter* parameter) {
    switch (parameter->type) {
        case TRITONSERVER_PARAMETER_INT: return &parameter->number;
        case TRITONSERVER_PARAMETER_BOOL: return &parameter->truth;
        case TRITONSERVER_PARAMETER_DOUBLE: return &parameter->real;
        default: return parameter->bytes;
    }
}

void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter) {
    if (parameter == NULL) return;
    free(parameter->name);
    free(parameter->bytes);
    free(parameter);
}

void tpy_parameters_delete(TRITONSERVER_Parameter* first) {
    while (first != NULL) {
        TRITONSERVER_Parameter* next = first->next;
        TRITONSERVER_ParameterDelete(first);
        first = next;
    }
}

/* ---- attributes of buffers */

Error* TRITONSERVER_BufferAttributesNew(TRITONSERVER_BufferAttributes** made) {
    *made = calloc(1, sizeof **made);
    return NULL;
}

Error* TRITONSERVER_BufferAttributesDelete(TRITONSERVER_BufferAttributes* attributes) {
    free(attributes);
    return NULL;
}

#define ATTRIBUTE(name, type, field)                                                                              \
    Error* TRITONSERVER_BufferAttributesSet##name(TRITONSERVER_BufferAttributes* attributes, type value) {        \
        attributes->field = value;                                                                                \
        return NULL;                                                                                              \
    }                                                                                                             \
    Error* TRITONSERVER_BufferAttributes##name(TRITONSERVER_BufferAttributes* attributes, type* value) {          \
        *value = attributes->field;                                                                               \
        return NULL;                                                                                              \
    }

ATTRIBUTE(MemoryTypeId, int64_t, memory_id)
ATTRIBUTE(MemoryType, TRITONSERVER_MemoryType, memory)
ATTRIBUTE(CudaIpcHandle, void*, cuda_ipc)
ATTRIBUTE(ByteSize, size_t, size)
