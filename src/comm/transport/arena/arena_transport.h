/* arena_transport.h - the algorithms that `threads` and `shm` share, on an arena (arena.h): all that a transport uses
 * of this folder. */
#pragma once

#include "comm/carrier.h"
#include "comm/transport/arena/arena_coalesced.h"
#include "comm/transport/arena/arena_group.h"
#include "comm/transport/arena/arena_memory.h"
#include "comm/transport/arena/arena_plain.h"
#include "comm/transport/arena/arena_readers.h"
#include "comm/transport/arena/peer.h"
#include "comm/transport/arena/rendezvous.h"

/* Joins as `rank` of the arena; with `wait`, waits until all ranks are there. Takes its own reference to the arena.
 * From now on the context's heart beats there. [collective] */
fsdp_status fsdp__arena_open(fsdp_context *context, fsdp__arena *arena, int rank, bool all_readable, bool wait,
                             fsdp__arena_view **out, fsdp__arena_group **world);
/* Does the same for a context whose whole world is the arena, and which owns everything on success. [collective] */
fsdp_status fsdp__arena_attach(fsdp_context *context, const fsdp__comm_ops *ops, fsdp__arena *arena, int rank,
                               bool all_readable, bool wait);

/* Fill slots of a transport's table. */
void fsdp__arena_abort(void *transport, const char *why);
void fsdp__arena_close(void *transport);
void fsdp__arena_note(void *group, const fsdp__call *call, fsdp__moment moment);
void fsdp__arena_host_waits(void *group, const fsdp_stream *worker, bool waits);
fsdp_status fsdp__arena_look_after(void *group, int64_t ticks);
void fsdp__arena_set_timeout(void *transport, int64_t timeout_ms, int64_t tick_ms);
bool fsdp__arena_are_threads(const void *transport);

/* Lists what both transports have in common. */
extern const fsdp__collective_ops fsdp__arena_collectives;
extern const fsdp__memory_ops fsdp__arena_memory;
extern const fsdp__health_ops fsdp__arena_health;
extern const fsdp__carrier_ops fsdp__arena_peer;

/* Defines a carrier by devices' memory, except for `create`, which gives the group of the arena. Its collectives ask
 * whether they are carried. */
#define FSDP__ARENA_PEER_OPS                                                                     \
    .kind = FSDP_CARRIER_PEER, .collectives = &fsdp__arena_collectives, .open = fsdp__peer_open, \
    .free = fsdp__peer_free, .busy = fsdp__peer_busy, .release = fsdp__peer_release, .shares = fsdp__peer_shares

#define FSDP__ARENA_OPS                                                                                               \
    .collectives = &fsdp__arena_collectives, .memory = &fsdp__arena_memory, .readers = &fsdp__arena_readers,          \
    .health = &fsdp__arena_health, .peer = &fsdp__arena_peer, .group_open = fsdp__arena_group_open,                   \
    .group_ready = fsdp__arena_group_ready, .group_free = fsdp__arena_group_free, .abort = fsdp__arena_abort,         \
    .close = fsdp__arena_close, .are_threads = fsdp__arena_are_threads, .add_by_machine = fsdp__arena_add_by_machine, \
    .block = fsdp__arena_block
