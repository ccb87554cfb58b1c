/* meshes.h - the meshes of a world in which ranks share layers and sequences, beside FSDP. */
#pragma once

#include "fsdp/dist.h"

/* Says how many ranks there are: copies of the parameters, ranks that compute each sequence together, and each layer.
 * All others have other sequences of the same copy. */
typedef struct fsdp__parallel_degrees {
    int64_t replicas, cp, tp;
} fsdp__parallel_degrees;

typedef struct fsdp__parallel_meshes {
    fsdp_mesh *sharded; /* over which FSDP shards: (copies, if several; ranks of one copy). NULL: all ranks, one copy */
    fsdp_mesh *cp, *tp; /* of this rank's sequences and layers; NULL: it computes them alone */
} fsdp__parallel_meshes;

/* Makes them, as parts of one mesh (dp_replicate, dp_shard, cp, tp), whose product of degrees divides the world. FSDP
 * shards over the ranks of a sequence, too: dp_shard and cp are one dimension, dp_shard_cp. The caller owns them, also
 * on failure. [collective] [blocks] */
fsdp_status fsdp__parallel_meshes_create(fsdp_context *context, const fsdp__parallel_degrees *degrees,
                                         fsdp__parallel_meshes *out);
void fsdp__parallel_meshes_release(fsdp__parallel_meshes *meshes);
