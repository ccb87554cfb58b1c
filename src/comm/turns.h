/* turns.h - decides when a numbered call may run. */
#ifndef COMM_TURNS_H
#define COMM_TURNS_H

#include "comm/comm.h"

/* [Note: turns]
 * Calls are numbered when they are issued and run in that order, one at a time, even on different streams: a call waits
 * until its predecessor has run. This cannot deadlock, as a stream waits only for what was issued before. */

/* Waits, in the work of a stream (NULL: in the host's), until the first `sequence` calls of the group have run here.
 * [blocks] */
void fsdp__comm_wait_done(fsdp_process_group *group, uint64_t sequence, fsdp_stream *stream);
/* Says that the next call has run. */
void fsdp__turn_end(fsdp_process_group *group, fsdp_stream *stream);

#endif
