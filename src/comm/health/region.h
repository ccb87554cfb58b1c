/* region.h - the counters in front of a region of shared memory: how far each rank is in its reads there. The head of
 * comm/readers.c says what they are for. Those of memory of a device lie in the arena alone
 * (transport/arena/device_region.h). */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Says how far a rank is in its reads of a shared region. */
typedef struct fsdp__reader {
    _Alignas(64) _Atomic uint64_t done; /* number of reads that are over, as peers see it */
    _Atomic uint64_t ended;             /* reads that the program has ended: they will be over by themselves */
    _Atomic uint64_t awaited[2]; /* it waits until all are done with the reads up to this one; 0: it does not wait */
    uint64_t begun;
    /* Where a worker waits: its stream, by the process's own number. All calls of group `in` - 1 after number `issued`
     * stand behind that wait on the stream. */
    _Atomic uint64_t worker;
    _Atomic uint64_t issued;
    _Atomic uint32_t in;
    bool member;            /* of the region's group */
    _Atomic bool gave_back; /* it has freed the region */
} fsdp__reader;

/* Lies in front of a shared region. */
typedef struct fsdp__shared_header {
    struct fsdp__shared_header *next; /* only the owner follows it, and the next */
    struct fsdp__device_memory *made; /* of a device, where the region lies; NULL: it lies behind the header */
    _Atomic int32_t given_back;
    int32_t ranks;
    _Atomic uint32_t moved; /* grows when a reader is done and somebody sleeps on it */
    _Atomic uint32_t sleepers;
    fsdp__reader readers[]; /* by the rank's number on this machine */
} fsdp__shared_header;
