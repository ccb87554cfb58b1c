/* turns.h - decides when a numbered call may run. */
#ifndef COMM_TURNS_H
#define COMM_TURNS_H

#include "comm/comm.h"

/* [Note: turns]
 * Calls are numbered when they are issued and run in that order, one at a time, even on different streams: a call waits
 * until its predecessor has run. This cannot deadlock, as a stream waits only for what was issued before. */

/* Bracket the running of call `sequence` in the work of a stream; NULL: in the host's. [blocks] */
void fsdp__turn_begin(fsdp_process_group *group, uint64_t sequence, fsdp_stream *stream);
void fsdp__turn_end(fsdp_process_group *group, fsdp_stream *stream);
/* Waits on the host until the first `sequence` calls of the group have run here. [blocks] */
void fsdp__comm_wait_done(fsdp_process_group *group, uint64_t sequence);

#endif
