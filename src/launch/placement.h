/* placement.h - the cores on which a rank computes: its share of those that the ranks of its machine may use. */
#pragma once

#include <sched.h>

#include "fsdp/context.h"

/* Gets share `rank` of `ranks` of these cores, which are divided one after the other. Returns false if there are too
 * few, or OpenMP was told where to run (OMP_PROC_BIND and the like). */
bool fsdp__share_of_cores(const cpu_set_t *all, int rank, int ranks, cpu_set_t *out);

/* Holds what a rank finds when it starts. */
typedef struct fsdp__seat {
    int machine, local_rank;
    int online;      /* number of cores of the machine */
    cpu_set_t cores; /* those that it may use */
    bool told;       /* OpenMP was told where to run */
} fsdp__seat;

typedef struct fsdp__place_of_rank {
    bool binds;
    cpu_set_t cores; /* those that it binds itself to */
    int threads;     /* 1 or more */
} fsdp__place_of_rank;

/* Chooses where rank `rank` goes. It binds itself if all ranks of its machine may use all of its cores, since then
 * nobody has bound them. Otherwise cores that several ranks may use count for each of them in part. */
void fsdp__place_choose(const fsdp__seat *seats, int count, int rank, fsdp__place_of_rank *out);

/* Places a rank that fsdp_launch has not started, and so not bound. `threads`: the context's threads stay as they are.
 * [collective] */
fsdp_status fsdp__place_rank(fsdp_context *context, bool threads);
