/* offload.h - shards that lie on the host, on their way to the device: what a group has for that beside its residence
 * (FSDP2's CPUOffloadPolicy). The way back is that of gradients: arrivals.h.
 *
 * Each gather copies this rank's shards to the device first, on its own stream. Where a group is gathered as it lies,
 * they go straight to their rows of the unsharded parameters; else to memory of their own, *staging*, from where the
 * gather casts them on the device. What is sent in other bytes is made of staging on the device, and stays there. */
#ifndef SHARD_OFFLOAD_H
#define SHARD_OFFLOAD_H

#include "shard/param.h"
#include "shard/residence.h"

typedef struct fsdp__offload {
    fsdp__region *staging; /* while a gather may read it; NULL: none */
    fsdp_event *read;      /* a gather has read the shards */
} fsdp__offload;

/* Memory for the next gather; `*fresh` is set where it is new from the device. */
fsdp_status fsdp__offload_take_staging(fsdp__offload *offload, const fsdp__residence *residence,
                                       const fsdp__param *params, int64_t count, bool *fresh);
/* In the order of the device's stream. */
void fsdp__offload_drop_staging(fsdp__offload *offload);
/* Where the gather finds the shard of `param` on the device. */
void *fsdp__offload_place(const fsdp__offload *offload, const fsdp__residence *residence, const fsdp__param *param);
/* The shards go there. [stream] */
fsdp_status fsdp__offload_send(const fsdp__offload *offload, const fsdp__residence *residence,
                               const fsdp__param *params, int64_t count, fsdp_stream *stream);
/* The host's stream may write the shards: no gather of this rank reads them any more. */
fsdp_status fsdp__offload_await_read(const fsdp__offload *offload, const fsdp__residence *residence);
void fsdp__offload_close(fsdp__offload *offload);

#endif
