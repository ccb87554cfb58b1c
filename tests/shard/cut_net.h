/* shard/cut_net.h - a small network whose parameters tests cut by hand over a mesh, as tensor parallel does, before
 * they shard it: by rows, by columns, by segments, and replicated with partial gradients. All sizes are uneven.
 *
 *     CutNet: table (6,5), used twice: x = input table, logits = x table^T     blocks = ModuleList of CutBlock
 *     CutBlock: x + (silu(gate) * up) down^T + bias, of rmsnorm(x)             fused = gate and up, (2 x 7, 5)
 */
#pragma once

#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "support/ranks.h"

enum {
    CUT_DIM = 5,
    CUT_FFN = 7,
    CUT_OUT = 6,
    CUT_BLOCKS = 2,
    CUT_ROWS = 24 /* of a global batch: divides 1 2 3 4 8 */
};

/* How ranks lie: the first dimension of several replicates, the last is cut over. */
typedef struct cut_layout {
    int replicas, shards, parts;
} cut_layout;

/* The meshes of a world of replicas * shards * parts ranks. */
typedef struct cut_meshes {
    fsdp_mesh *root, *data, *parts; /* data: (replicate, shard), or (shard) alone */
    int batch, batches;             /* number of this rank's part of the global batch, and of all parts */
} cut_meshes;
cut_meshes cut_meshes_create(fsdp_context *context, cut_layout layout);
void cut_meshes_free(cut_meshes *meshes);

/* Plain, whole. */
fsdp_module *cut_net_create(fsdp_context *context, fsdp_device *device);
fsdp_module *cut_net_block(fsdp_module *module, int64_t index);
/* Replaces the parameters by this rank's parts over the mesh. `partial`: each rank computes norms of its own rows
 * alone. The mesh must live as long as the network. */
void cut_net_cut(fsdp_module *module, fsdp_mesh *mesh, bool partial);
/* Cuts one parameter over a mesh: it becomes this rank's part. `contributed`: its gradients are partial. */
void cut_parameter(fsdp_module *module, const char *name, fsdp_mesh *mesh, fsdp_placement placement, bool contributed);
/* Every block, then the root. */
void cut_net_shard(fsdp_module *module, const fsdp_shard_options *options);
/* Built on meta, cut, sharded as the options say on the layout's data-parallel mesh, given bytes and first values. */
fsdp_module *cut_net_sharded(fsdp_context *context, const cut_meshes *meshes, const fsdp_shard_options *options);
/* Makes the next forwards leave the second block out, or not. */
void cut_net_skip(fsdp_module *module, bool skips);
/* Forward and backward of one rank's part of a microbatch. Returns the loss of that part. */
float cut_net_backward(fsdp_module *module, int batch, int batches, int step, int micro, int micros);
/* An optimizer of the network by number, below CUT_OPTIMIZERS. */
enum {
    CUT_MUON = 4,
    CUT_ADAFACTOR = 5,
    CUT_OPTIMIZERS
};
fsdp_optimizer *cut_net_optimizer(fsdp_module *module, int kind);
