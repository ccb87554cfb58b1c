/* gather.h - the ways in which a group is gathered. Four things are chosen:
 *
 *     choice                   values                                what holds it            who chooses
 *     where parameters lie     each by itself, or all in one vector  group->cut (layout.h)    the front door
 *     what travels             shards, codes; once: a slice          group->way (here)        layout.c; slices: slice.c
 *     where the bytes live     in place, cast, copy; offloaded       residence.h, offload.h   layout.c, by the options
 *     who moves the bytes      the library, the caller's function    custom.h                 the caller
 *
 * Shards travel in the dtype of the gathered parameters where casts are kept (cast.h), and are cast by the collective
 * otherwise. Codes are what extensions make of shards (encoded.h). Slices are what ranks keep after a forward
 * (slice.h); a group that has kept some is gathered from them once. */
#pragma once

#include "shard/group/comm_context.h"

struct fsdp__param_group;

typedef struct fsdp__gather_way {
    /* Returns the process group of the gather. NULL: it is the shard group. */
    fsdp_process_group *(*pg)(const struct fsdp__param_group *group);
    /* Makes the unsharded parameters, which have memory. [collective] [stream] */
    fsdp_status (*gather)(struct fsdp__param_group *group, fsdp__comm_context *comm);
    /* Releases what the gather used, once the device's stream waits for the gather, or nobody will. Idempotent. */
    void (*arrive)(struct fsdp__param_group *group, fsdp__comm_context *comm);
    /* Forgets what was made of the shards, which are about to be written, and makes the stream that will write them
     * wait until this rank has read them. NULL: this way reads no shards. */
    fsdp_status (*before_write)(struct fsdp__param_group *group);
} fsdp__gather_way;

extern const fsdp__gather_way fsdp__gather_shards, fsdp__gather_encoded, fsdp__gather_slices;

/* Makes the gather on the gathers' stream follow the writes to the shards and the last use of its memory. [stream] */
fsdp_status fsdp__gather_order(struct fsdp__param_group *group, fsdp__comm_context *comm);
/* Describes one of the group's buffers in its unsharded parameters, which have memory; still without a shard. */
fsdp_sharded_buffer fsdp__gather_buffer(const struct fsdp__param_group *group, int64_t index);
