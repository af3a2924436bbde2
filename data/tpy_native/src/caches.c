/* Response caches, TRITONCACHE_*, and what the Python side calls of them. As entry.c.
 *
 * An answer is one run of bytes. At an insertion the entry has one buffer of that size; the cache puts memory of its own in its
 * place and calls TRITONCACHE_Copy, which fills it, or reads the buffer itself. At a lookup the cache adds its buffers to an
 * empty entry and calls TRITONCACHE_Copy, which takes what is in them. */
#include <dlfcn.h>
#include <stdio.h>

#include "host.h"
#include "triton/core/tritoncache.h"

enum { BUFFERS_MAX = 64 };

typedef struct {
    void* base;
    TRITONSERVER_BufferAttributes attributes;
} Buffer;

struct TRITONCACHE_CacheEntry {
    uint32_t live;
    size_t count;
    Buffer buffers[BUFFERS_MAX];
};

/* `source` is what is inserted, `found` what a lookup gave. */
struct TRITONCACHE_Allocator {
    uint32_t live;
    const char* source;
    size_t source_size;
    char* found;
    size_t found_size, found_max;
};

typedef struct {
    TRITONCACHE_Cache* cache;
    Error* (*finalize)(TRITONCACHE_Cache*);
    Error* (*insert)(TRITONCACHE_Cache*, const char*, TRITONCACHE_CacheEntry*, TRITONCACHE_Allocator*);
    Error* (*lookup)(TRITONCACHE_Cache*, const char*, TRITONCACHE_CacheEntry*, TRITONCACHE_Allocator*);
} Cache;

/* ---- what caches call */

Error* TRITONCACHE_ApiVersion(uint32_t* major, uint32_t* minor) {
    *major = TRITONCACHE_API_VERSION_MAJOR;
    *minor = TRITONCACHE_API_VERSION_MINOR;
    return NULL;
}

Error* TRITONCACHE_CacheEntryBufferCount(TRITONCACHE_CacheEntry* entry, size_t* count) {
    REQUIRE(entry, LIVE_CACHE_ENTRY);
    *count = entry->count;
    return NULL;
}

static Error* only_cpu(const TRITONSERVER_BufferAttributes* attributes) {
    if (attributes->memory != TRITONSERVER_MEMORY_GPU) return NULL;
    return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "Only buffers in CPU memory are allowed in cache currently");
}

Error* TRITONCACHE_CacheEntryAddBuffer(
    TRITONCACHE_CacheEntry* entry, void* base, TRITONSERVER_BufferAttributes* attributes) {
    REQUIRE(entry, LIVE_CACHE_ENTRY);
    if (base == NULL || attributes == NULL)
        return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "a buffer of a cache entry needs an address and attributes");
    if (entry->count == BUFFERS_MAX)
        return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "a cache entry has at most %d buffers", BUFFERS_MAX);
    Error* error = only_cpu(attributes);
    if (error != NULL) return error;
    entry->buffers[entry->count++] = (Buffer){base, *attributes};
    return NULL;
}

static Error* require_index(const TRITONCACHE_CacheEntry* entry, size_t index) {
    if (index < entry->count) return NULL;
    return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "index was greater than count of buffers in the cache entry");
}

Error* TRITONCACHE_CacheEntryGetBuffer(
    TRITONCACHE_CacheEntry* entry, size_t index, void** base, TRITONSERVER_BufferAttributes* attributes) {
    REQUIRE(entry, LIVE_CACHE_ENTRY);
    Error* error = require_index(entry, index);
    if (error != NULL) return error;
    if (base == NULL || attributes == NULL)
        return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "base and buffer attributes must not be null");
    *base = entry->buffers[index].base;
    *attributes = entry->buffers[index].attributes;
    return NULL;
}

Error* TRITONCACHE_CacheEntrySetBuffer(
    TRITONCACHE_CacheEntry* entry, size_t index, void* base, TRITONSERVER_BufferAttributes* attributes) {
    REQUIRE(entry, LIVE_CACHE_ENTRY);
    Error* error = require_index(entry, index);
    if (error == NULL && attributes != NULL) error = only_cpu(attributes);
    if (error != NULL) return error;
    if (base == NULL) return tpy_error(TRITONSERVER_ERROR_INVALID_ARG, "base must not be null");
    entry->buffers[index].base = base;
    if (attributes != NULL) entry->buffers[index].attributes = *attributes;
    return NULL;
}

static Error* copy_in(const TRITONCACHE_Allocator* allocator, const TRITONCACHE_CacheEntry* entry) {
    if (entry->count != 1)
        return tpy_error(
            TRITONSERVER_ERROR_INTERNAL, "Expected number of buffers in cache does not match. Expected: 1, received: %zu",
            entry->count);
    if (entry->buffers[0].attributes.size != allocator->source_size)
        return tpy_error(
            TRITONSERVER_ERROR_INTERNAL, "Expected size of buffer in cache does not match. Expected: %zu, received: %zu",
            allocator->source_size, entry->buffers[0].attributes.size);
    memmove(entry->buffers[0].base, allocator->source, allocator->source_size); /* its own, if the cache set none */
    return NULL;
}

static Error* copy_out(TRITONCACHE_Allocator* allocator, const TRITONCACHE_CacheEntry* entry) {
    size_t size = 0;
    for (size_t i = 0; i < entry->count; i++)
        if (__builtin_add_overflow(size, entry->buffers[i].attributes.size, &size) || size > allocator->found_max)
            return tpy_error(
                TRITONSERVER_ERROR_INTERNAL, "the cache entry is larger than the %zu bytes that one may have",
                allocator->found_max);
    char* found = malloc(size + 1);
    if (found == NULL) return tpy_error(TRITONSERVER_ERROR_INTERNAL, "no memory for a cache entry of %zu bytes", size);
    free(allocator->found);
    allocator->found = found;
    allocator->found_size = size;
    for (size_t i = 0; i < entry->count; i++) {
        memcpy(found, entry->buffers[i].base, entry->buffers[i].attributes.size);
        found += entry->buffers[i].attributes.size;
    }
    return NULL;
}

Error* TRITONCACHE_Copy(TRITONCACHE_Allocator* allocator, TRITONCACHE_CacheEntry* entry) {
    REQUIRE(allocator, LIVE_CACHE_ALLOCATOR);
    REQUIRE(entry, LIVE_CACHE_ENTRY);
    return allocator->source != NULL ? copy_in(allocator, entry) : copy_out(allocator, entry);
}

/* ---- what the Python side calls */

static Error* open_cache(Cache* cache, const char* path, const char* config) {
    void* library;
    Error* error = tpy_load_library(path, "cache", &library);
    if (error != NULL) return error;
    Error* (*initialize)(TRITONCACHE_Cache**, const char*);
    struct {
        const char* name;
        void** function;
    } entries[] = {
        {"TRITONCACHE_CacheInitialize", (void**)&initialize},
        {"TRITONCACHE_CacheFinalize", (void**)&cache->finalize},
        {"TRITONCACHE_CacheInsert", (void**)&cache->insert},
        {"TRITONCACHE_CacheLookup", (void**)&cache->lookup},
    };
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        *entries[i].function = dlsym(library, entries[i].name);
        if (*entries[i].function == NULL)
            return tpy_error(
                TRITONSERVER_ERROR_NOT_FOUND, "unable to find required entrypoint '%s' in cache library '%s'", entries[i].name,
                path);
    }
    error = tpy_with_version(
        initialize(&cache->cache, config), "TRITONCACHE", TRITONCACHE_API_VERSION_MAJOR, TRITONCACHE_API_VERSION_MINOR);
    if (error == NULL && cache->cache == NULL)
        return tpy_error(TRITONSERVER_ERROR_INTERNAL, "Failed to initialize cache implementation");
    return error;
}

TPY_API PyObject* tpy_cache_open(const char* path, const char* config) {
    Cache* cache = calloc(1, sizeof *cache);
    PyThreadState* state = PyEval_SaveThread();
    Error* error = open_cache(cache, path, config);
    PyEval_RestoreThread(state);
    if (error == NULL) return PyLong_FromVoidPtr(cache);
    free(cache);
    return tpy_error_pair(error);
}

TPY_API PyObject* tpy_cache_insert(Cache* cache, const char* key, PyObject* bytes) {
    TRITONCACHE_Allocator allocator = {.live = LIVE_CACHE_ALLOCATOR};
    Py_ssize_t size;
    char* source;
    PyBytes_AsStringAndSize(bytes, &source, &size);
    allocator.source = source;
    allocator.source_size = (size_t)size;
    TRITONCACHE_CacheEntry* entry = calloc(1, sizeof *entry);
    entry->live = LIVE_CACHE_ENTRY;
    entry->count = 1;
    entry->buffers[0].base = source;
    entry->buffers[0].attributes.size = (size_t)size;
    PyThreadState* state = PyEval_SaveThread();
    Error* error = cache->insert(cache->cache, key, entry, &allocator);
    PyEval_RestoreThread(state);
    entry->live = allocator.live = 0;
    free(entry);
    return tpy_none_or(error);
}

/* The bytes that were inserted, or the error; of a cache that says that it found something and gave nothing, no bytes. */
TPY_API PyObject* tpy_cache_lookup(Cache* cache, const char* key, size_t size_max) {
    TRITONCACHE_Allocator allocator = {.live = LIVE_CACHE_ALLOCATOR, .found_max = size_max};
    TRITONCACHE_CacheEntry* entry = calloc(1, sizeof *entry);
    entry->live = LIVE_CACHE_ENTRY;
    PyThreadState* state = PyEval_SaveThread();
    Error* error = cache->lookup(cache->cache, key, entry, &allocator);
    PyEval_RestoreThread(state);
    entry->live = allocator.live = 0;
    free(entry);
    PyObject* result =
        error != NULL ? tpy_error_pair(error) : PyBytes_FromStringAndSize(allocator.found, (Py_ssize_t)allocator.found_size);
    free(allocator.found);
    return result;
}

TPY_API PyObject* tpy_cache_close(Cache* cache) {
    PyThreadState* state = PyEval_SaveThread();
    Error* error = cache->finalize(cache->cache);
    PyEval_RestoreThread(state);
    free(cache);
    return tpy_none_or(error);
}
