/* support/heap.c - what tests allocate, where ranks are processes: in memory that all of them share, so that one may
 * keep or free what another has made. Elsewhere it is the C library's. */
#include "support/heap.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t heap_bytes = (size_t)64 << 30; /* of which only what is touched takes memory */

typedef struct heap {
    pthread_mutex_t mutex; /* of all processes */
    size_t used;           /* begins anew when nothing lives */
    long live;
} heap;

typedef struct block {
    _Alignas(16) size_t bytes;
} block;

static heap *shared; /* NULL: no ranks are processes */

int test_heap_share(void)
{
    pthread_mutexattr_t attributes;
    void *memory = mmap(NULL, heap_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (memory == MAP_FAILED)
        return -1;
    shared = memory;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    return pthread_mutex_init(&shared->mutex, &attributes);
}

static bool is_shared(const void *memory)
{
    return shared && (uintptr_t)memory - (uintptr_t)shared < heap_bytes;
}

void *heap_malloc(size_t bytes)
{
    size_t all = sizeof(block) + (bytes + 15) / 16 * 16;
    block *made = NULL;

    if (!shared)
        return malloc(bytes);
    pthread_mutex_lock(&shared->mutex);
    if (shared->live == 0)
        shared->used = (sizeof *shared + 15) / 16 * 16;
    if (all <= heap_bytes - shared->used) {
        made = (block *)((char *)shared + shared->used);
        made->bytes = bytes;
        shared->used += all;
        shared->live++;
    }
    pthread_mutex_unlock(&shared->mutex);
    return made ? made + 1 : NULL;
}

void heap_free(void *memory)
{
    if (!is_shared(memory)) {
        free(memory);
        return;
    }
    pthread_mutex_lock(&shared->mutex);
    shared->live--;
    pthread_mutex_unlock(&shared->mutex);
}

void *heap_calloc(size_t count, size_t bytes)
{
    void *memory;

    if (!shared)
        return calloc(count, bytes);
    if (__builtin_mul_overflow(count, bytes, &bytes))
        return NULL;
    memory = heap_malloc(bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

void *heap_realloc(void *memory, size_t bytes)
{
    size_t before;
    void *made;

    if (memory ? !is_shared(memory) : !shared)
        return realloc(memory, bytes);
    made = heap_malloc(bytes);
    if (!made || !memory)
        return made;
    before = ((block *)memory - 1)->bytes;
    memcpy(made, memory, before < bytes ? before : bytes);
    heap_free(memory);
    return made;
}
