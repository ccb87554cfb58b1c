/* readers.h - who still reads a shared region. */
#ifndef COMM_SYMMETRIC_READERS_H
#define COMM_SYMMETRIC_READERS_H

#include "comm/symmetric/group.h"

/* Where a rank is in its reads of a shared region. */
typedef struct fsdp__reader {
    _Alignas(64) _Atomic uint64_t done; /* reads that are over, as peers see it */
    _Atomic uint64_t ended;             /* that the program has ended: they will be over by themselves */
    _Atomic uint64_t awaited[2];        /* this rank waits for all to be done with reads up to this; 0: it does not */
    uint64_t begun;
    _Atomic uint64_t worker; /* the stream in whose work it waits, where a worker does: as its process calls it; */
    _Atomic uint64_t issued; /* all calls behind this one, */
    _Atomic uint32_t in;     /* 1 + of this group, stand there behind the wait */
    bool member;             /* of the region's group */
} fsdp__reader;

/* In front of a shared region. */
typedef struct fsdp__shared_header {
    struct fsdp__shared_header *next; /* only the owner follows it */
    _Atomic int32_t given_back;
    int32_t ranks;
    _Atomic uint32_t moved; /* steps when a reader is done and somebody sleeps */
    _Atomic uint32_t sleepers;
    fsdp__reader readers[]; /* by the arena's rank */
} fsdp__shared_header;

size_t fsdp__shared_header_bytes(const fsdp__symmetric_group *group);
fsdp__shared_header *fsdp__shared_header_of(const fsdp__symmetric_group *group, void *pointer);

/* Of the table of a transport. */
void fsdp__symmetric_read_begin(void *group, void *pointer);
uint64_t fsdp__symmetric_read_end(void *group, void *pointer);
void fsdp__symmetric_read_done(void *group, void *pointer, uint64_t number);
uint64_t fsdp__symmetric_reads_ended(void *group, void *pointer);
bool fsdp__symmetric_readers_done(void *group, void *pointer, uint64_t number);
fsdp_status fsdp__symmetric_await_readers(void *group, void *pointer, uint64_t number, const fsdp_stream *worker,
                                          uint64_t issued);

#endif
