/* layout.h - lays a group of parameters out: where each parameter lies, how the group is cut into the ranks' parts, and
 * from that its way of a gather and its residence.
 *
 * A group is cut parameter by parameter, or it is flat. In a flat group the parameters, all of the same dtypes, lie one
 * after the other in one vector, which is cut into equal parts (FSDP1's FlatParameter).
 *
 * A parameter of a flat group is a parameter like any other: a leaf with its own gradient, frozen or not, with a shard
 * of its own. Two things differ. Its shard is a run of its elements. The whole vector (`group->vector`) is the one
 * buffer of a gather, of a reduction, and of partial gradients. So a parameter without a gradient counts as zeros as
 * soon as another parameter of its group has one, on any rank. Memory and lengths are those of the vector, padding
 * included. */
#pragma once

#include "device/device.h"
#include "shard/group/param.h"
#include "shard/group/residence.h"

struct fsdp__param_group;

typedef struct fsdp__cut {
    /* Gives the group its buffers, and the parameters their parts and their places in the buffers. */
    void (*lay_out)(struct fsdp__param_group *group);
    /* Fills one rank's part of a flat group's vector with zeros: padding lies between the parameters, too. Does nothing
     * for other groups. [stream] */
    fsdp_status (*clear)(const struct fsdp__param_group *group, fsdp_stream *stream, void *part, fsdp_dtype dtype);
    /* Why its parameters cannot get another dtype, and why it keeps no slices, for messages; NULL: they can, it does.
     */
    const char *no_retype, *no_slices;
} fsdp__cut;

extern const fsdp__cut fsdp__cut_by_parameter, fsdp__cut_flat;

/* Holds options of flat groups. */
typedef struct fsdp__flat {
    size_t align; /* each parameter begins at a multiple of so many bytes of the gathered dtype; 0: they touch */
    /* Optimizers get the vector as one parameter: this rank's part of it, a distributed tensor of one dimension, with
     * all gradients. The parameters' shards are parts of it, without gradients of their own. */
    bool as_one;
} fsdp__flat;

/* Makes a distributed tensor of this rank's part of a flat group's vector. Its global size is the first `global`
 * elements of the vector. It has no bytes yet; the caller owns `*out`. */
fsdp_status fsdp__flat_tensor(const struct fsdp__param_group *group, fsdp_device *device, int64_t global,
                              fsdp_tensor **out);
/* Returns whether the buffer is a vector: these lie after the others, so that weights lie side by side, and so do
 * their biases (fsdp_linear_group). */
bool fsdp__param_lies_last(const fsdp__param *param);
/* Gives each of the group's parameters its place, from their extents and dtypes, and the group its way of a gather.
 * Call it only while the group has no memory. */
void fsdp__param_group_lay_out(struct fsdp__param_group *group);
/* Returns the residence of a group, which has been laid out, on `device`. */
fsdp__residence_kind fsdp__choose_residence(const struct fsdp__param_group *group, const fsdp_device *device);
