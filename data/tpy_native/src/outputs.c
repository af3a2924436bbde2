/* Outputs of responses and states, and their memory. */
#include "host.h"

/* ---- memory of outputs: a header of 64 bytes, the data, a guard of 16 bytes; the data at a multiple of 64 */

static const unsigned char GUARD[16] = {0xa5, 0x5a, 0xc3, 0x3c, 0x96, 0x69, 0xf0, 0x0f, 0xa5, 0x5a, 0xc3, 0x3c, 0x96, 0x69, 0xf0, 0x0f};

Memory* tpy_memory_new(size_t size) {
    void* made = size > SIZE_MAX / 2 ? NULL : malloc(63 + 64 + size + sizeof GUARD); /* posix_memalign takes longer */
    if (made == NULL) return NULL;
    Memory* memory = (Memory*)(((uintptr_t)made + 63) & ~(uintptr_t)63);
    memory->allocated = made;
    memory->size = size;
    atomic_init(&memory->references, 1);
    memcpy(MEMORY_DATA(memory) + size, GUARD, sizeof GUARD);
    return memory;
}

bool tpy_memory_is_whole(const Memory* memory) { return memcmp(MEMORY_DATA(memory) + memory->size, GUARD, sizeof GUARD) == 0; }

void tpy_memory_let_go(Memory* memory) {
    if (memory != NULL && atomic_fetch_sub(&memory->references, 1) == 1) free(memory->allocated);
}

/* ---- outputs */

Output* tpy_output_new(const char* name, DataType datatype, const int64_t* shape, uint32_t dims) {
    size_t length = strlen(name) + 1;
    Output* output = calloc(1, sizeof *output + dims * sizeof *shape + length);
    output->live = LIVE_OUTPUT;
    output->datatype = datatype;
    output->dims = dims;
    memcpy(output->shape, shape, dims * sizeof *shape);
    output->name = memcpy((char*)(output->shape + dims), name, length);
    return output;
}

void tpy_output_delete(Output* output, TRITONBACKEND_ModelInstance* instance) {
    if (instance != NULL && output->memory != NULL && !tpy_memory_is_whole(output->memory)) atomic_store(&instance->damaged, true);
    tpy_memory_let_go(output->memory);
    output->live = 0;
    free(output);
}

void tpy_response_delete(TRITONBACKEND_Response* response) {
    for (Output *output = response->outputs, *next; output != NULL; output = next) {
        next = output->next;
        tpy_output_delete(output, response->request->batch->instance);
    }
    tpy_parameters_delete(response->parameters);
    TRITONSERVER_ErrorDelete(response->error);
    response->live = 0;
    free(response);
}
