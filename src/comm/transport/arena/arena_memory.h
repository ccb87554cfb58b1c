/* arena_memory.h - memory that peers see. */
#pragma once

#include "comm/transport/arena/arena_group.h"

/* Opens and closes the heap of this rank. */
fsdp_status fsdp__arena_memory_open(fsdp__arena_view *view);
void fsdp__arena_memory_close(fsdp__arena_view *view);

/* Fill slots of a transport's table. */
fsdp_status fsdp__arena_alloc(void *transport, size_t bytes, void **out);
void fsdp__arena_free(void *transport, void *pointer);
fsdp_status fsdp__arena_alloc_shared(void *group, const fsdp__call *call, fsdp__traffic *traffic, void **out);
void fsdp__arena_free_shared(void *group, void *pointer);

/* Gives back to the system the pages that lie wholly in these bytes, which are not needed any more; they come back as
 * zeros. */
void fsdp__arena_give_pages(const fsdp__arena_view *world, void *memory, size_t bytes);
