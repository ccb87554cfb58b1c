/* residence.h - where the bytes of a group of parameters live.
 *
 * [Note: three residences]
 *   IN_PLACE  one region holds the unsharded parameters, one after the other; each rank's shard is its rows of it. On
 *             one machine the region is memory that all ranks share, so a gather is a barrier and moves nothing. Also
 *             the residence of a world of one.
 *   CAST      the shards are private; the unsharded parameters, in another dtype, or where a rank's rows lie apart
 *             (sharded in a later dimension than 0), lie in memory that ranks share. Each rank casts its own rows, once
 *             for all; those that lie together again only after a write (cast.h). Also of groups over several machines:
 *             each has such memory, and every gather brings the rows of the others into it, until they are given back
 *             (give_back.h).
 *   COPY      the shards are private, on the device or offloaded to the host; each gather takes memory for the
 *             unsharded parameters and copies.
 * The ledger counts the same bytes in all three: those of the algorithm. What peers hold too is counted as shared. A
 * world of one that gathers nothing has nothing gathered.
 *
 * [Note: readers and writers]
 * In the first two residences peers read memory that this rank writes: its shard (optimizer, initialize, load), or its
 * rows of the unsharded parameters (the next cast). Readers only say when they begin and end: a group reads from its
 * gather, or from the next use of what stayed unsharded, to the end of that use. To wait is the writer's business, in
 * one place: begin_write in state.c, which every write to a shard goes through (the guard of the shards' storages calls
 * it), and the gather of a CAST group. A write also makes everything stale that was derived from the shard: the group
 * is resharded, in every residence alike, and its next use gathers again.
 */
#ifndef SHARD_RESIDENCE_H
#define SHARD_RESIDENCE_H

#include "shard/region.h"

typedef enum fsdp__residence_kind {
    FSDP__RESIDENCE_NONE, /* no bytes yet: the parameters are on the meta device */
    FSDP__RESIDENCE_IN_PLACE,
    FSDP__RESIDENCE_CAST,
    FSDP__RESIDENCE_COPY
} fsdp__residence_kind;

typedef struct fsdp__residence {
    fsdp__residence_kind kind;
    fsdp_device *device; /* NULL while the parameters are on the meta device */
    fsdp__mesh_info mesh;
    bool share;                          /* memory that ranks share is allowed, where the device takes it */
    bool offload, pin;                   /* see fsdp_offload_policy */
    fsdp_device *shard_device;           /* of shards and their gradients: the host, where they are offloaded */
    fsdp__region *shards;                /* CAST, COPY: this rank's shards. NULL IN_PLACE */
    fsdp__region *unsharded;             /* IN_PLACE, CAST: always there. COPY: while gathered */
    fsdp__region *cast;                  /* COPY: the shards as they are gathered, where they are cast; else NULL */
    bool has_cast;                       /* and nothing was written since: see cast.h */
    fsdp_stream *cast_stream;            /* whose work knows of it */
    size_t shard_bytes, unsharded_bytes; /* what the ledger counts */
    bool whole;                          /* every rank has all of it, whatever the mesh */
    bool casts;                          /* shards are cast before they are gathered */
    size_t cast_bytes;                   /* to so many bytes: 0, too, of parameters without elements */
    bool reading;                        /* this rank is a reader of `unsharded`, as peers see it */
} fsdp__residence;

/* Whether a rank's shard is the unsharded parameters, so that none of them is gathered. */
bool fsdp__residence_is_whole(const fsdp__residence *residence);
/* Whether the group's bytes may live in memory of `device` that ranks share. */
bool fsdp__residence_can_share(const fsdp__residence *residence, const fsdp_device *device);
/* Whether the group's shards lie on the host, away from `device`: it is COPY then. Where `device` is the host itself,
 * they lie there anyway. */
bool fsdp__residence_would_offload(const fsdp__residence *residence, const fsdp_device *device);
bool fsdp__residence_is_offloaded(const fsdp__residence *residence);
/* Regions of `kind` on `device`; the private one has its bytes then, the shared one gets them in fsdp__residence_fill.
 * A failure is undone by fsdp__residence_close. */
fsdp_status fsdp__residence_open(fsdp__residence *residence, fsdp__residence_kind kind, fsdp_device *device);
/* [collective] */
fsdp_status fsdp__residence_fill(fsdp__residence *residence);
/* Gives up the regions; who holds tensors there keeps them. */
void fsdp__residence_close(fsdp__residence *residence);
/* Whom writes to the shards ask: see region.h. NULL: nobody any more. */
void fsdp__residence_set_writer(fsdp__residence *residence, fsdp_status (*before_write)(void *, const fsdp__storage *),
                                void *writer);
/* A region of `bytes` for unsharded gradients, which peers can read where the residence shares memory: in calls of
 * `pg`. */
fsdp_status fsdp__residence_gradients(const fsdp__residence *residence, fsdp_process_group *pg, size_t bytes,
                                      fsdp__region **out);
/* A storage for what shards have beside them: on their device, pinned as they are. */
fsdp_status fsdp__residence_shard_storage(const fsdp__residence *residence, size_t bytes, fsdp_memory_kind kind,
                                          fsdp__storage **out);
/* Whether peers read what this rank writes. */
bool fsdp__residence_is_shared(const fsdp__residence *residence);

/* ---- readers and writers ---- All do nothing where nobody shares. */

void fsdp__residence_begin_read(fsdp__residence *residence);
/* After the work that the device's stream has been given. */
void fsdp__residence_end_read(fsdp__residence *residence);
/* Work of `stream` may write: no peer reads. */
fsdp_status fsdp__residence_await_readers(fsdp__residence *residence, fsdp_stream *stream);

#endif
