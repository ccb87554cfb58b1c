/* support/thread_network.h - a carrier between ranks that are threads of this process: mailboxes, and what a test does
 * to them.
 *
 * Messages are copied when they are sent, and arrive when the receiver next calls. A rank that cannot open it, or
 * closes it in a broken world, ends the exchanges of all, as mpirun ends all processes. */
#pragma once

#include "comm/transport/network/network.h"

typedef struct thread_network thread_network;

/* Ranks 0 to ranks - 1, of which rank r is on the machine that machine_of[r] numbers; machines are called "a", "b", ...
 * in the order of these numbers. NULL: `machines` of them, equal parts one after the other. */
thread_network *thread_network_new(int ranks, int machines, const int *machine_of);
/* When all that was opened has been closed. */
void thread_network_free(thread_network *network);

/* Messages that were sent and taken by nobody, or sends that were not waited for, where all ranks have closed it as a
 * whole: MPI forbids any. Else 0. When all have closed it. */
int thread_network_unread(const thread_network *network);

/* The table is the same for all; what `open` opens is the rank that the calling thread has chosen. */
extern const fsdp__network_ops thread_network_ops;
void thread_network_choose(thread_network *network, int rank);

/* ---- faults ---- any time, any thread */

/* Nothing gets from one machine to the other any more, in either direction. */
void thread_network_cut(thread_network *network, int machine, int other);
/* What is sent from now on arrives when the receiver has called so many times more. */
void thread_network_delay(thread_network *network, int calls);
/* The n-th call of `rank` from now on fails, the first is 1. */
void thread_network_fail(thread_network *network, int rank, int n);
/* Every call of the rank waits, until it is let go on. */
void thread_network_stop(thread_network *network, int rank);
/* Do the same for those that test several messages: a thread that waits for them does not come back, others do. */
void thread_network_hold(thread_network *network, int rank);
/* What one rank sends to another does not arrive, and its sends are not done, as where a connection loses packets. */
void thread_network_stall(thread_network *network, int from, int to);
void thread_network_go_on(thread_network *network); /* all of these */

/* Bytes of all messages that ranks of one machine have sent to those of another. */
long long thread_network_bytes(const thread_network *network, int from_machine, int to_machine);

/* Messages with tag 0 to 3 that a rank has sent to another. */
int thread_network_messages(thread_network *network, int from, int to, int tag);
