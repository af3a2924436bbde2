/* A response cache for tests: a table in memory, that misbehaves as its setting `behaviour` says. Insertions and lookups of a key go
 * through the buffers as Triton's own cache does it: memory of its own in place of the server's, then TRITONCACHE_Copy. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "triton/core/tritoncache.h"

#define TRY(call)                                                   \
    do {                                                            \
        TRITONSERVER_Error* error_ = (call);                        \
        if (error_ != NULL) return error_;                          \
    } while (0)

typedef struct Kept {
    struct Kept* next;
    char* key;
    void* base;
    size_t size;
} Kept;

typedef struct {
    char behaviour[64];
    Kept* kept;
    TRITONSERVER_MetricFamily* family;
    TRITONSERVER_Metric* metric;
} Cache;

static TRITONSERVER_Error* failure(const char* where) {
    char text[128];
    snprintf(text, sizeof text, "%s was told to fail", where);
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, text);
}

static bool is(const Cache* cache, const char* behaviour) { return strcmp(cache->behaviour, behaviour) == 0; }

TRITONSERVER_Error* TRITONCACHE_CacheInitialize(TRITONCACHE_Cache** made, const char* config) {
    uint32_t major, minor;
    TRY(TRITONCACHE_ApiVersion(&major, &minor));
    if (major != TRITONCACHE_API_VERSION_MAJOR) return failure("the version");
    Cache* cache = calloc(1, sizeof *cache);
    const char* found = strstr(config, "\"behaviour\":\"");
    if (found != NULL) sscanf(found + 13, "%63[a-z-]", cache->behaviour);
    if (is(cache, "newer")) {
        TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, "TRITONBACKEND API version: 9.1");
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED, "this cache needs a newer server");
    }
    if (is(cache, "fails-initialize")) return failure("CacheInitialize");
    if (is(cache, "crashes-initialize")) abort();
    if (is(cache, "gives-nothing")) return NULL;
    TRY(TRITONSERVER_MetricFamilyNew(&cache->family, TRITONSERVER_METRIC_KIND_GAUGE, "nv_cache_num_entries", "Entries."));
    TRY(TRITONSERVER_MetricNew(&cache->metric, cache->family, NULL, 0));
    *made = (TRITONCACHE_Cache*)cache;
    return NULL;
}

TRITONSERVER_Error* TRITONCACHE_CacheFinalize(TRITONCACHE_Cache* given) {
    Cache* cache = (Cache*)given;
    if (is(cache, "hangs-finalize")) pause();
    TRITONSERVER_MetricDelete(cache->metric);
    TRITONSERVER_MetricFamilyDelete(cache->family);
    for (Kept *each = cache->kept, *next; each != NULL; each = next) {
        next = each->next;
        free(each->key);
        free(each->base);
        free(each);
    }
    bool fails = is(cache, "fails-finalize");
    free(cache);
    return fails ? failure("CacheFinalize") : NULL;
}

static Kept* find(Cache* cache, const char* key) {
    Kept* each = cache->kept;
    while (each != NULL && strcmp(each->key, key) != 0) each = each->next;
    return each;
}

TRITONSERVER_Error* TRITONCACHE_CacheLookup(
    TRITONCACHE_Cache* given, const char* key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
    Cache* cache = (Cache*)given;
    if (is(cache, "fails-lookup") || is(cache, "fails")) return failure("CacheLookup");
    Kept* kept = find(cache, key);
    if (kept == NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "no such key");
    if (is(cache, "crashes")) raise(SIGSEGV);
    if (is(cache, "hangs")) pause();
    if (is(cache, "finds-nothing")) return NULL;
    TRITONSERVER_BufferAttributes* attributes;
    TRY(TRITONSERVER_BufferAttributesNew(&attributes));
    TRITONSERVER_BufferAttributesSetByteSize(attributes, is(cache, "endless") ? (size_t)1 << 40 : kept->size);
    TRITONSERVER_BufferAttributesSetMemoryType(attributes, is(cache, "on-gpu") ? TRITONSERVER_MEMORY_GPU : TRITONSERVER_MEMORY_CPU);
    if (is(cache, "garbage")) memset(kept->base, 'x', kept->size);
    TRITONSERVER_Error* error = TRITONCACHE_CacheEntryAddBuffer(entry, kept->base, attributes);
    TRITONSERVER_BufferAttributesDelete(attributes);
    if (error != NULL) return error;
    return TRITONCACHE_Copy(allocator, entry);
}

TRITONSERVER_Error* TRITONCACHE_CacheInsert(
    TRITONCACHE_Cache* given, const char* key, TRITONCACHE_CacheEntry* entry, TRITONCACHE_Allocator* allocator) {
    Cache* cache = (Cache*)given;
    if (is(cache, "fails")) return failure("CacheInsert");
    if (is(cache, "leaks")) memset(malloc(1 << 20), 1, 1 << 20);
    if (find(cache, key) != NULL) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_ALREADY_EXISTS, "key exists");
    size_t count, size;
    void* base;
    TRY(TRITONCACHE_CacheEntryBufferCount(entry, &count));
    if (count != 1) return failure("the count of buffers");
    TRITONSERVER_BufferAttributes* attributes;
    TRY(TRITONSERVER_BufferAttributesNew(&attributes));
    TRY(TRITONCACHE_CacheEntryGetBuffer(entry, 0, &base, attributes));
    TRY(TRITONSERVER_BufferAttributesByteSize(attributes, &size));
    Kept* kept = calloc(1, sizeof *kept);
    *kept = (Kept){cache->kept, strdup(key), malloc(size), size};
    TRY(TRITONCACHE_CacheEntrySetBuffer(entry, 0, kept->base, NULL));
    TRITONSERVER_BufferAttributesDelete(attributes);
    TRY(TRITONCACHE_Copy(allocator, entry));
    cache->kept = kept;
    double entries = 0;
    for (Kept* each = cache->kept; each != NULL; each = each->next) entries++;
    return TRITONSERVER_MetricSet(cache->metric, entries);
}
