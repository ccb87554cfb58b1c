/* peer.h - the carrier by memory of devices that ranks of one machine read from each other ([Note: carriers] in
 * comm/carrier.h).
 *
 * [Note: outboxes]
 * Each rank has an outbox in the memory of its device, in two halves, which its peers' devices read: what the staging
 * halves of an arena are for the host. A call is packed there in pieces (transport/packed.h), so its bits are those of
 * the host's calls. For each piece the ranks' streams meet: each writes how many meetings it has come to, into its word
 * of the arena, and waits until its peers have come to as many. What a rank has packed for the n-th meeting lies in
 * half n % 2. It packs for n + 2 after the meeting of n + 1, to which its peers come after they have read what was
 * packed for n: [Note: parity] in rendezvous.h, by the order of streams. Calls on different streams are in order
 * because each begins by waiting until this rank's device has done the one before.
 *
 * No kernel waits, so ranks may share a GPU. A stream that waits for a word is released by whoever writes it. Where the
 * driver has no such waits, the hosts meet for each piece.
 *
 * [Note: released]
 * When the world has ended each rank writes the words that its streams wait for. Its peers' streams wait for some of
 * the same words, so what any of them computes from then on may be anything. The world has ended before, in memory that
 * all see, and whoever waits for a device looks there after the wait (fsdp__device_judge): nobody takes it for a
 * result, not even a rank that was stopped meanwhile. */
#pragma once

#include "comm/transport/arena/arena_group.h"

/* Do what fsdp__carrier_ops says; `group` is an fsdp__arena_group. `half_bytes`: 0 for the usual size. */
fsdp_status fsdp__peer_create(fsdp__arena_group *group, fsdp_device *device, int64_t half_bytes, void *facts);
fsdp_status fsdp__peer_open(void *group, const void *const *facts, char *why, size_t why_bytes);
void fsdp__peer_free(void *group);
uint64_t fsdp__peer_busy(void *group);
bool fsdp__peer_shares(const void *group);
void fsdp__peer_release(void *group);
/* Looks at those whom the group's device has waited for, for so many ticks, and ends the world where one is stuck: the
 * device of a rank that waits for nobody itself. Called every tick, by one thread. */
void fsdp__peer_look(fsdp__arena_group *group, int64_t ticks);

/* Begins and ends a call in the work of its stream. */
fsdp_status fsdp__peer_begin(fsdp__arena_group *group, fsdp_stream *stream);
fsdp_status fsdp__peer_end(fsdp__arena_group *group, fsdp_stream *stream);
/* Says that a call which began has failed, and will not end. */
void fsdp__peer_tear(fsdp__arena_group *group);
/* Makes the stream meet the peers' streams. */
fsdp_status fsdp__peer_meet(fsdp__arena_group *group, fsdp__traffic *traffic);
/* Returns the half of this rank's outbox in which it packs for the next meeting, and its bytes. */
char *fsdp__peer_next_half(const fsdp__arena_group *group);
int64_t fsdp__peer_half_bytes(const fsdp__arena_group *group);
/* Returns, after a meeting, the half that a rank has packed for it. */
char *fsdp__peer_half(const fsdp__arena_group *group, int rank);
