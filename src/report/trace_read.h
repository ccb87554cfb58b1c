/* trace_read.h - reads a trace that fsdp has written (watch/trace_text.h). The file is taken for anybody's: all that is
 * used of it is checked. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "fsdp/status.h"

/* Says what a span is, by its category. */
typedef enum fsdp__traced_sort {
    FSDP__TRACED_KERNEL,
    FSDP__TRACED_COPY,
    FSDP__TRACED_COLLECTIVE,
    FSDP__TRACED_OPTIMIZER,
    FSDP__TRACED_DATA,
    FSDP__TRACED_CHECKPOINT,
    FSDP__TRACED_STAGE,
    FSDP__TRACED_WAIT,
    FSDP__TRACED_UNIT,  /* its forward or backward */
    FSDP__TRACED_WHOLE, /* its parameters are whole */
    FSDP__TRACED_SORTS
} fsdp__traced_sort;

typedef struct fsdp__traced_span {
    int64_t begin, end;    /* nanoseconds from the beginning of the trace */
    int64_t bytes, number; /* number: of a kernel its FLOPs */
    int32_t rank, lane;
    uint32_t name;
    int32_t group; /* of a collective; -1: it has none */
    uint8_t sort;
    uint8_t kind; /* of a kernel: fsdp__kernel_class; of a collective, and of a wait for one: fsdp_collective */
} fsdp__traced_span;

/* A group of ranks: first, first + step, and so on. step 0: these are not known. */
typedef struct fsdp__traced_group {
    uint32_t name;
    int32_t count, first, step;
} fsdp__traced_group;

/* Bytes of a kind that are live on a rank's device from a time on. */
typedef struct fsdp__traced_bytes {
    int64_t at, bytes;
    int32_t rank;
    uint8_t kind;   /* fsdp_memory_kind; FSDP_MEMORY_KINDS: all */
    uint8_t device; /* of the trace's */
} fsdp__traced_bytes;

enum {
    FSDP__TRACED_DEVICES = 64
};

typedef struct fsdp__traced_rank {
    char *host;
    int machine;
    int64_t uncertain, dropped; /* nanoseconds of its clock; events that had no room */
} fsdp__traced_rank;

typedef struct fsdp__trace {
    const char *path;         /* borrowed */
    char *incomplete;         /* why ranks are missing; NULL: they are not */
    char *run, *started;      /* whose it is, and when it was begun; NULL: it does not say */
    int world;                /* ranks of the run */
    fsdp__traced_rank *ranks; /* from 0 */
    int rank_count;
    fsdp__traced_span *spans;
    int64_t span_count, span_capacity;
    fsdp__traced_bytes *bytes;
    int64_t bytes_count, bytes_capacity;
    fsdp__traced_group *groups;
    int64_t group_count, group_capacity;
    uint32_t devices[FSDP__TRACED_DEVICES]; /* names, of those whose memory is counted; "": the only one of its rank */
    int device_count;
    char **names;
    int64_t name_count, name_capacity;
    uint32_t *table; /* of names, by hash; numbers from 1 */
    int64_t table_size;
} fsdp__trace;

/* Reads the file, packed or not. Release the trace, also after a failure. */
fsdp_status fsdp__trace_read(const char *path, fsdp__trace *out);
void fsdp__trace_release(fsdp__trace *trace);
/* Says whether the file begins as a trace does; a file that cannot be read does not. Fails only without memory. */
fsdp_status fsdp__is_trace(const char *path, bool *out);
