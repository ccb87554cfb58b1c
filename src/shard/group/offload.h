/* offload.h - brings shards that lie on the host to the device: what a group needs for that beside its residence
 * (FSDP2's CPUOffloadPolicy). Gradients go the other way: arrivals.h.
 *
 * Each gather first copies this rank's shards to the device, on its own stream. If a group is gathered as it lies, they
 * go straight to their rows of the unsharded parameters; otherwise they go to memory of their own, *staging*, from
 * which the gather casts them on the device. If a group is sent in other bytes, these are made from staging on the
 * device, and stay there. */
#pragma once

#include "shard/group/param.h"
#include "shard/group/residence.h"

typedef struct fsdp__offload {
    fsdp__region *staging; /* while a gather may read it; NULL: none */
    fsdp_event *read;      /* recorded when a gather has read the shards */
} fsdp__offload;

/* All calls but the last do nothing, or return NULL, if the group's shards lie on its device.
 *
 * Takes memory for the next gather, if it needs any; sets `*fresh` if that memory is new from the device. */
fsdp_status fsdp__offload_take_staging(struct fsdp__param_group *group, bool *fresh);
/* Drops that memory, in the order of the device's stream. */
void fsdp__offload_drop_staging(struct fsdp__param_group *group);
/* Returns where the gather finds the shard of a parameter, or of a vector, on the device. */
void *fsdp__offload_place(const struct fsdp__param_group *group, const fsdp__param *param);
/* Copies the shards there. [stream] */
fsdp_status fsdp__offload_send(const struct fsdp__param_group *group, fsdp_stream *stream);
/* Makes the host's stream wait until no gather of this rank reads the shards, so that it may write them. */
fsdp_status fsdp__offload_await_read(const struct fsdp__param_group *group);
void fsdp__offload_close(fsdp__offload *offload);
