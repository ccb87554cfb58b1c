/* shard/net.h - a small network that the tests of the engine shard in every way. All sizes are uneven.
 *
 *     Net:  input = Linear(5,7)   blocks = ModuleList of n Block   norm = LayerNorm(7)   head = Linear(7,6)
 *     Block: x + down(gelu(up(x)))    up = Linear(7,11)   down = Linear(11,7)
 */
#pragma once

#include "base/compiler.h"
#include "device/kernels.h"
#include "fsdp/shard.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

enum {
    NET_IN = 5,
    NET_DIM = 7,
    NET_FFN = 11,
    NET_OUT = 6,
    NET_ROWS = 24 /* of a global batch: divides 1 2 3 4 8 */
};

typedef struct net {
    fsdp_module base;
    fsdp_module *input, *blocks, *norm, *head;
} net;

typedef struct net_block {
    fsdp_module base;
    fsdp_module *up, *down;
} net_block;

fsdp_tensor *net_block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count);
/* x (n,5) -> logits (n,6); with targets (n) -> loss () */
fsdp_tensor *net_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count);
extern const fsdp_module_type net_block_type;
extern const fsdp_module_type net_type;
fsdp_module *net_block_create(fsdp_context *context, fsdp_device *device);
fsdp_module *net_create(fsdp_context *context, fsdp_device *device, int blocks);
fsdp_module *net_block_at(fsdp_module *module, int64_t index);
/* Plain parameters that are written to between forward and backward are no error from now on: the backward computes
 * with what is there, as that of gathered ones does. */
void net_renew(fsdp_module *module);
/* Leaves its norm out on devices on which a backward makes the results of norms again (GPUs): the norm's weights may
 * not be written to before. */
void net_without_norm(fsdp_module *module);
/* Whether the ranks share the memory of gathered parameters on the test's device, those of each machine. [collective]
 */
bool net_ranks_share(fsdp_context *context);
/* Every block, then the root. */
void net_shard(fsdp_module *module, const fsdp_shard_options *options);
/* The same, with bytes and values, which may fail. */
fsdp_status net_try_shard(fsdp_module *module, const fsdp_shard_options *options);
fsdp_sharded_state net_state(fsdp_module *module);
/* (replicate, shard) over all ranks, `replicas` of them the same. */
fsdp_mesh *net_hybrid_mesh(fsdp_context *context, int replicas);
/* For options.placement: every parameter in its last dimension. */
fsdp_status net_last_dimension(void *arg, const char *name, const fsdp_tensor *parameter, fsdp_shard_placement *out);
/* Built on the meta device, sharded, given bytes and values: no rank ever holds all of it. */
fsdp_module *net_sharded(fsdp_context *context, int blocks, const fsdp_shard_options *options);
/* The same with the parameters of every group in one vector, where they begin at multiples of `align` bytes, and which
 * is one parameter or not. */
fsdp_module *net_flat(fsdp_context *context, int blocks, const fsdp_shard_options *options, size_t align, bool as_one);
/* Rows [first, first + rows) of the global batch of step `step`. Belong to the scope. */
void net_batch(fsdp_context *context, int step, int first, int rows, fsdp_tensor **x, fsdp_tensor **targets);
/* Does the same for a network that takes rows of `cols` columns, and tries and steps it: NET_OUT classes, NET_ROWS rows
 * at most. */
void net_batch_of(fsdp_context *context, int cols, int step, int first, int rows, fsdp_tensor **x,
                  fsdp_tensor **targets);
fsdp_status net_try_of(fsdp_module *module, int cols);
/* Forward and backward of these rows, whose gradients are those of one of `micros` microbatches. Returns the loss. */
float net_backward_of(fsdp_module *module, int cols, int step, int first, int rows, int micros);
/* p -= lr * gradient on every parameter (shard or whole), then the gradients are dropped. */
void net_sgd(fsdp_module *module, float lr);
/* Forward and backward of this rank's part of microbatch `micro` of `micros`. Returns the loss of that part. */
float net_forward_backward(fsdp_module *module, int step, int micro, int micros);
/* A forward and a backward of six rows, either of which may fail; the device has done them on return. */
fsdp_status net_try(fsdp_module *module);
/* `status` of a call that was to fail so, with `parts` of the message, up to a NULL or `most`. */
void net_check_refused(const char *name, fsdp_status status, fsdp_status expected, const char *const *parts, int most);
/* A forward of `rows` rows of step `step`, on which nobody goes back. */
void net_evaluate(fsdp_module *module, int step, int rows);
void net_train(fsdp_module *module, int steps);
/* All parameters, whole, one after the other in order of the module tree. free() it. [collective] */
float *net_values(fsdp_module *module, int64_t *count);
/* Checks that these are the same bits, and frees both. */
void net_check_same(float *values, float *expected, int64_t count);
/* What `steps` steps of the plain network on one rank give: the values everything is compared with. free() it. */
float *net_expected(int blocks, int steps, int64_t *count);
