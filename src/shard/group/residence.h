/* residence.h - where the bytes of a group of parameters live.
 *
 * [Note: three residences]
 *   IN_PLACE  one region holds the unsharded parameters, one after the other; each rank's shard is its rows of it. The
 *             region is memory that all ranks share, of one machine or of the GPU that all of them have, so a gather is
 *             a barrier and moves nothing. A group of one rank that casts none of its parameters has this residence,
 *             too, in memory of its own.
 *   CAST      the shards are private; the unsharded parameters lie in memory that ranks share. They are in another
 *             dtype, or a rank's rows lie apart in them (sharded in a later dimension than 0). Each rank casts its own
 *             rows for all ranks; rows that lie together are cast again only after a write (cast.h). Groups over
 *             several machines have this residence, too: each machine has such memory, and every gather brings the
 *             rows of the other machines into it, until they are given back (give_back.h). A group of one rank that
 *             casts all its parameters, and keeps the casts, has this residence, too, in memory of its own: the rank
 *             computes with the casts.
 *   COPY      the shards are private, on the device or offloaded to the host; each gather takes memory for the
 *             unsharded parameters and copies. A group of one rank that casts some of its parameters only is one.
 * The ledger counts the same bytes in all three: those of the algorithm. What peers hold too is counted as shared. A
 * group of one rank that gathers nothing counts nothing as gathered.
 *
 * [Note: readers and writers]
 * In the first two residences peers, if there are any, read memory that this rank writes: its shard (optimizer,
 * initialize, load), or its rows of the unsharded parameters (the next cast). Readers only say when they begin and end:
 * a group reads from its gather, or from the next use of what stayed unsharded, to the end of that use. The writer
 * waits, in two places: state/write.c, which every write to a shard goes through (the guard of the shards' storages
 * calls it), and the gather of a CAST group. A write also makes everything stale that was derived from the shard: in
 * every residence alike the group is resharded, and its next use gathers again. */
#pragma once

#include "shard/group/param.h"
#include "shard/group/region.h"

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
    bool share;                          /* memory that ranks share is allowed, if the device takes it */
    bool common;                         /* the ranks share a GPU, and may share its memory */
    bool offload, pin;                   /* see fsdp_offload_policy */
    fsdp_device *shard_device;           /* of shards and their gradients: the host, if they are offloaded */
    fsdp__region *shards;                /* CAST, COPY: this rank's shards; IN_PLACE: NULL */
    fsdp__region *unsharded;             /* IN_PLACE, CAST: always there; COPY: while gathered */
    fsdp__region *cast;                  /* COPY: the shards as they are gathered, if they are cast; else NULL */
    bool has_cast;                       /* the cast is current: nothing was written since; see cast.h */
    fsdp_stream *cast_stream;            /* stream whose later work is known to follow the cast */
    size_t shard_bytes, unsharded_bytes; /* what the ledger counts */
    bool whole;                          /* every rank has all of it, whatever the mesh */
    bool casts;                          /* shards are cast before they are gathered */
    bool splits;                         /* shards rest in halves: halves.h */
    fsdp__region *low;                   /* their lower halves, which has bytes while they do; or NULL */
    size_t cast_bytes; /* bytes of the cast; may be 0 although `casts`, if parameters have no elements */
    bool reading;      /* peers see this rank as a reader of `unsharded` */
} fsdp__residence;

/* Returns whether a rank's shard is the whole unsharded parameters, so that nothing is gathered. */
bool fsdp__residence_is_whole(const fsdp__residence *residence);
/* Returns whether the group's bytes may live in memory of `device` that ranks share. */
bool fsdp__residence_can_share(const fsdp__residence *residence, const fsdp_device *device);
/* Finds out whether its ranks share the GPU: residence->common. [collective] */
fsdp_status fsdp__residence_find_common(fsdp__residence *residence, fsdp_device *device);
/* Returns whether the shards rest in halves now. */
bool fsdp__residence_is_split(const fsdp__residence *residence);
/* Returns whether the group's shards lie on the host, away from `device`; such a group is COPY. If `device` is the host
 * itself, they lie there anyway, and the answer is false. */
bool fsdp__residence_would_offload(const fsdp__residence *residence, const fsdp_device *device);
/* Returns whether the shards do lie on the host, away from the device. */
bool fsdp__residence_is_offloaded(const fsdp__residence *residence);
/* Creates regions for `kind` on `device`. Private ones have their bytes afterwards; the shared one gets them in
 * fsdp__residence_fill. fsdp__residence_close undoes a failure. */
fsdp_status fsdp__residence_open(fsdp__residence *residence, fsdp__residence_kind kind, fsdp_device *device);
/* Gives the region of the unsharded parameters its bytes, if there is one. [collective] */
fsdp_status fsdp__residence_fill(fsdp__residence *residence);
/* Gives up the regions. Tensors in them that others hold keep their bytes. */
void fsdp__residence_close(fsdp__residence *residence);
/* Sets what is called before a write to the shards: see region.h. NULL: nothing. */
void fsdp__residence_set_writer(fsdp__residence *residence, fsdp_status (*before_write)(void *, const fsdp__storage *),
                                void *writer);
/* Makes a region of `bytes` for unsharded gradients. With `shared` peers can read it in calls of `pg`. */
fsdp_status fsdp__residence_gradients(const fsdp__residence *residence, fsdp_process_group *pg, bool shared,
                                      size_t bytes, fsdp__region **out);
/* Makes a storage for gradients that shards have beside them: on their device, and pinned if they are. */
fsdp_status fsdp__residence_shard_storage(const fsdp__residence *residence, size_t bytes, fsdp__storage **out);
/* Makes a gradient on such a storage. The caller owns `*out`. */
fsdp_status fsdp__residence_shard_gradient(const fsdp__residence *residence, fsdp_dtype dtype, int ndim,
                                           const int64_t *shape, fsdp_tensor **out);
/* Returns where this rank's shard of a parameter, or of a flat group's vector, lies. */
void *fsdp__residence_shard(const fsdp__residence *residence, const fsdp__param *param);
/* Lends `storage` that place: see fsdp__region_lend_guarded. */
void fsdp__residence_lend_shard(const fsdp__residence *residence, const fsdp__param *param, fsdp__storage *storage);
/* Returns whether peers read what this rank writes. */
bool fsdp__residence_is_shared(const fsdp__residence *residence);

/* ---- readers and writers ---- All calls do nothing if memory is not shared. */

/* Makes this rank a reader of the unsharded parameters. */
void fsdp__residence_begin_read(fsdp__residence *residence);
/* Ends the read, once the work that the device's stream has been given is done. */
void fsdp__residence_end_read(fsdp__residence *residence);
/* Makes work of `stream` wait until no peer reads, so that it may write. */
fsdp_status fsdp__residence_await_readers(fsdp__residence *residence, fsdp_stream *stream);
