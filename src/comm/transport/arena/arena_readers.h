/* arena_readers.h - keeps track of who still reads a shared region. */
#ifndef COMM_ARENA_ARENA_READERS_H
#define COMM_ARENA_ARENA_READERS_H

#include "comm/transport/arena/arena_group.h"

/* How far a rank is in its reads of a shared region. */
typedef struct fsdp__reader {
    _Alignas(64) _Atomic uint64_t done; /* number of reads that are over, as peers see it */
    _Atomic uint64_t ended;             /* reads that the program has ended: they will be over by themselves */
    _Atomic uint64_t awaited[2]; /* it waits until all are done with the reads up to this one; 0: it does not wait */
    uint64_t begun;
    _Atomic uint64_t worker; /* where a worker waits: its stream, by the process's own number. */
    _Atomic uint64_t issued; /* All calls after this number, */
    _Atomic uint32_t in;     /* of this group (1 + its number), stand behind the wait on that stream */
    bool member;             /* of the region's group */
} fsdp__reader;

/* Lies in front of a shared region. */
typedef struct fsdp__shared_header {
    struct fsdp__shared_header *next; /* only the owner follows it */
    _Atomic int32_t given_back;
    int32_t ranks;
    _Atomic uint32_t moved; /* grows when a reader is done and somebody sleeps on it */
    _Atomic uint32_t sleepers;
    fsdp__reader readers[]; /* by the rank's number in the arena */
} fsdp__shared_header;

size_t fsdp__shared_header_bytes(const fsdp__symmetric_group *group);
fsdp__shared_header *fsdp__shared_header_of(const fsdp__symmetric_group *group, void *pointer);

/* Slots of a transport's table. */
void fsdp__symmetric_read_begin(void *group, void *pointer);
uint64_t fsdp__symmetric_read_end(void *group, void *pointer);
void fsdp__symmetric_read_done(void *group, void *pointer, uint64_t number);
uint64_t fsdp__symmetric_reads_ended(void *group, void *pointer);
bool fsdp__symmetric_readers_done(void *group, void *pointer, uint64_t number);
fsdp_status fsdp__symmetric_await_readers(void *group, void *pointer, uint64_t number, const fsdp_stream *worker,
                                          uint64_t issued);

#endif
