/* trace_names.h - the names that a trace tells, each of which has a number: modules and groups may be gone when it is
 * written. */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "fsdp/comm.h"

/* The members of a group are `first`, `first + step`, and so on, in that order. step 0: they follow no such rule. */
typedef struct fsdp__traced_ranks {
    int count, first, step;
} fsdp__traced_ranks;

typedef struct fsdp__trace_name {
    uint64_t hash;
    uint32_t at, number; /* 0: free */
    fsdp__traced_ranks of;
} fsdp__trace_name;

typedef struct fsdp__trace_names {
    pthread_mutex_t mutex;   /* guards what follows */
    fsdp__trace_name *table; /* by hash; NULL: there is no room */
    uint32_t *number_at;     /* index in the table by number */
    char *text;
    size_t text_used;
    uint32_t count; /* numbers are 1 to this */
} fsdp__trace_names;

void fsdp__trace_names_init(fsdp__trace_names *names);
void fsdp__trace_names_destroy(fsdp__trace_names *names);
/* Makes room for names; drops them and it. */
fsdp_status fsdp__trace_names_open(fsdp__trace_names *names);
void fsdp__trace_names_close(fsdp__trace_names *names);

/* Returns the number of a name, which gets one if it has none; 0: it is empty or NULL, or has no room. `group`: whose
 * name it is, or NULL. [thread-safe] */
uint32_t fsdp__trace_names_number(fsdp__trace_names *names, const char *text, const fsdp_process_group *group);
const char *fsdp__trace_names_text(const fsdp__trace_names *names, uint32_t number); /* "" for 0 */
fsdp__traced_ranks fsdp__trace_names_ranks(const fsdp__trace_names *names, uint32_t number);
