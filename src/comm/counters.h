/* counters.h - counts calls and bytes, for a group and for its context at once.
 *
 * The counters are public and always on: every run reports what a step sends. So they are no subscriber (base/probe.h),
 * which would have to be told of every call for as long as there are groups. */
#pragma once

#include "comm/comm.h"

/* Counts one call of `kind` and the bytes that a ring would send for it. Groups of one count nothing. Any thread. */
void fsdp__comm_count(fsdp_process_group *group, fsdp_collective kind, int64_t bytes_sent);
/* Does the same for a reduction by `op`. */
void fsdp__comm_count_reduction(fsdp_process_group *group, fsdp_collective kind, fsdp_reduce_op op, int64_t bytes_sent);
/* Adds what a call that began at `start_ns` has done. With FSDP_COLLECTIVES as `kind` only its time is added. Any
 * thread. */
void fsdp__comm_account(fsdp_process_group *group, fsdp_collective kind, const fsdp__traffic *traffic,
                        int64_t start_ns);
