/* turns.h - decides when a numbered call may run. */
#pragma once

#include "comm/comm.h"

/* [Note: turns]
 * Calls are numbered when they are issued and run in that order, one at a time, even on different streams: a call waits
 * until its predecessor has run. This cannot deadlock, as a stream waits only for what was issued before.
 *
 * [Note: one order on a device]
 * Calls of carriers take turns over all groups of the rank, too, whatever streams they are on: they are given to the
 * device in the order of the program. A driver may put several streams into one queue of the hardware, where a stream
 * that waits for other ranks holds up what came later for another stream. If two groups' calls came in one order on one
 * rank and in the other order on another, each device could then wait for the other. As it is a rank's calls wait, even
 * so, only for what its program issued before; so devices cannot wait in a circle where all programs issue the calls of
 * the groups that they have in common in one order. Where they do not, hosts wait, and comm.timeout names them. Calls
 * through the host need no such order on different streams. */

/* Waits, in the work of a stream (NULL: in the host's), until the first `sequence` calls of the group have run here.
 * [blocks] */
void fsdp__comm_wait_done(fsdp_process_group *group, uint64_t sequence, fsdp_stream *stream);
/* Says that the next call has run. */
void fsdp__turn_end(fsdp_process_group *group, fsdp_stream *stream);

/* Do the same for the first `number` calls of carriers, and the next one. */
void fsdp__carried_wait_done(fsdp__comm *comm, uint64_t number);
void fsdp__carried_turn_end(fsdp__comm *comm);
/* Returns whether they have been given to the device. */
bool fsdp__carried_is_done(fsdp__comm *comm, uint64_t number);
