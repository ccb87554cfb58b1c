/* arena_readers.h - keeps track of who still reads a shared region. */
#ifndef COMM_ARENA_ARENA_READERS_H
#define COMM_ARENA_ARENA_READERS_H

#include "comm/health/region.h"
#include "comm/transport/arena/arena_group.h"

size_t fsdp__shared_header_bytes(const fsdp__arena_group *group);
fsdp__shared_header *fsdp__shared_header_of(const fsdp__arena_group *group, void *pointer);

/* Slots of a transport's table. */
void fsdp__arena_read_begin(void *group, void *pointer);
uint64_t fsdp__arena_read_end(void *group, void *pointer);
void fsdp__arena_read_done(void *group, void *pointer, uint64_t number);
uint64_t fsdp__arena_reads_ended(void *group, void *pointer);
bool fsdp__arena_readers_done(void *group, void *pointer, uint64_t number);
fsdp_status fsdp__arena_await_readers(void *group, void *pointer, uint64_t number, const fsdp_stream *worker,
                                      uint64_t issued);

#endif
