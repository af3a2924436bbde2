/* Triton's C interface as plug-ins see it: response caches, TRITONCACHE_*. As tritonserver.h. */
#ifndef TRITON_CORE_TRITONCACHE_H
#define TRITON_CORE_TRITONCACHE_H

#include "triton/core/tritonserver.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TRITONCACHE_DECLSPEC TRITON_API
#define TRITONCACHE_ISPEC TRITON_API

#define TRITONCACHE_API_VERSION_MAJOR 0
#define TRITONCACHE_API_VERSION_MINOR 1

typedef struct TRITONCACHE_Cache TRITONCACHE_Cache;
typedef struct TRITONCACHE_CacheEntry TRITONCACHE_CacheEntry;
typedef struct TRITONCACHE_Allocator TRITONCACHE_Allocator;

/* Functions of the server. */
TRITON_API TRITONSERVER_Error* TRITONCACHE_ApiVersion(uint32_t*, uint32_t*);
TRITON_API TRITONSERVER_Error* TRITONCACHE_CacheEntryBufferCount(TRITONCACHE_CacheEntry*, size_t*);
TRITON_API TRITONSERVER_Error* TRITONCACHE_CacheEntryAddBuffer(
    TRITONCACHE_CacheEntry*, void*, TRITONSERVER_BufferAttributes*);
TRITON_API TRITONSERVER_Error* TRITONCACHE_CacheEntryGetBuffer(
    TRITONCACHE_CacheEntry*, size_t, void**, TRITONSERVER_BufferAttributes*);
TRITON_API TRITONSERVER_Error* TRITONCACHE_CacheEntrySetBuffer(
    TRITONCACHE_CacheEntry*, size_t, void*, TRITONSERVER_BufferAttributes*);
TRITON_API TRITONSERVER_Error* TRITONCACHE_Copy(TRITONCACHE_Allocator*, TRITONCACHE_CacheEntry*);

/* Functions of the cache, all of them. */
TRITON_API TRITONSERVER_Error* TRITONCACHE_CacheInitialize(TRITONCACHE_Cache**, const char*);
TRITON_API TRITONSERVER_Error* TRITONCACHE_CacheFinalize(TRITONCACHE_Cache*);
TRITON_API TRITONSERVER_Error* TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache*, const char*, TRITONCACHE_CacheEntry*, TRITONCACHE_Allocator*);
TRITON_API TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache*, const char*, TRITONCACHE_CacheEntry*, TRITONCACHE_Allocator*);

#ifdef __cplusplus
}
#endif

#endif
