/* support/heap.h - what tests allocate. support/test.h gives these functions the names of the C library's. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Has all that is allocated from now on in memory that processes forked later share. Returns 0 on success. */
int test_heap_share(void);

void *heap_malloc(size_t bytes);
void *heap_calloc(size_t count, size_t bytes);
void *heap_realloc(void *memory, size_t bytes);
/* Also frees what the C library, or another process, has allocated. */
void heap_free(void *memory);
