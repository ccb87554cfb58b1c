/* rendezvous.h - where ranks meet, and what they show each other there.
 *
 * [Note: parity]
 * Each rank has a slot per group with two entries, and two payloads; what it shows for the n-th time goes into number n
 * % 2. It writes those of n + 2 only after the meeting of n + 1, which its peers enter after they have read those of n.
 * So what a rank shows can be read until it shows something again, without a barrier at the end. The same holds for the
 * staging halves, piece by piece, and for peers' buffers (fsdp/comm.h, "Reuse"). */
#pragma once

#include "comm/transport/arena/arena_group.h"
#include "comm/transport/arena/slot.h"

/* Waits until all ranks of the group have come here; what they wrote before is then readable. Fails when the world is
 * broken. */
fsdp_status fsdp__rendezvous(fsdp__arena_group *group, fsdp__traffic *traffic);
/* Begins a call, or one of the exchanges that it is made of: shows this rank's entry and payload, meets the others and
 * compares signatures. `entry->signature` is filled from `call`. Afterwards fsdp__entry_of and fsdp__payload_of read
 * the peers'. */
fsdp_status fsdp__show(fsdp__arena_group *group, const fsdp__call *call, fsdp__entry *entry, fsdp__traffic *traffic);
const fsdp__entry *fsdp__entry_of(const fsdp__arena_group *group, int rank);
unsigned char *fsdp__payload_of(const fsdp__arena_group *group, int rank);
/* Returns where this rank writes the payload that it will show next. */
unsigned char *fsdp__payload_to_show(const fsdp__arena_group *group);
