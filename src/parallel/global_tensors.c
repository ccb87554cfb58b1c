/* global_tensors.c - the way into operations on distributed tensors, and out of them. */
#include "fsdp/parallel.h"

#include "ops/op.h"
#include "parallel/distributed.h"
#include "parallel/rules.h"

#include <string.h>

static fsdp_status pass_on(fsdp__node *node, fsdp_tensor *const *grads)
{
    double factor = *(const double *)fsdp__node_state(node);
    fsdp_tensor *grad = grads[0];

    if (factor != 1.0) {
        FSDP__TRY_MADE(grad = fsdp_scale(grad, factor));
    }
    return fsdp__node_give(node, 0, grad);
}

static const fsdp__op from_local_op = {.name = "from_local", .backward = pass_on};
static const fsdp__op to_local_op = {.name = "to_local", .backward = pass_on};

/* Returns x, recorded as another tensor, plain. */
static fsdp_tensor *identity(const fsdp__op *op, fsdp_tensor *x, double factor)
{
    bool global = x->global;
    fsdp_tensor *y = NULL;

    x->global = false;
    if (fsdp__op_inputs(op->name, &x, 1))
        y = fsdp_detach(x);
    if (y && fsdp__record(op, &x, 1, &y, 1, NULL, 0, &factor, sizeof factor) != FSDP_OK)
        y = NULL;
    x->global = global;
    return y;
}

static fsdp_tensor *made_global(fsdp_tensor *part, const fsdp_distribution *d)
{
    if (!part || fsdp__set_global_rules(d->mesh->context, &fsdp__parallel_rules) != FSDP_OK ||
        fsdp__make_global(part, d) != FSDP_OK)
        return NULL;
    return part;
}

static bool has_flat(const fsdp_placement *placements, int count)
{
    bool flat = fsdp__flat_dim(placements, count) >= 0;

    if (flat)
        FSDP_FAIL(FSDP_UNSUPPORTED, "operations do not take flat placements");
    return flat;
}

fsdp_tensor *fsdp_from_local(fsdp_tensor *local, fsdp_mesh *mesh, const fsdp_placement *placements,
                             const int64_t *global_shape)
{
    fsdp_distribution d = {.mesh = mesh};
    double factor = 1.0;

    if (!local)
        return NULL;
    if (!mesh || !placements || fsdp_tensor_distribution(local)) {
        FSDP_FAIL(FSDP_INVALID, "from_local: %s",
                  mesh && placements ? "the tensor is distributed already: redistribute it"
                                     : "mesh and placements are required");
        return NULL;
    }
    d.placement_count = mesh->ndim;
    d.ndim = local->ndim;
    memcpy(d.placements, placements, (size_t)mesh->ndim * sizeof *placements);
    memcpy(d.global_shape, local->shape, sizeof d.global_shape);
    for (int m = 0; m < mesh->ndim; m++) {
        if (placements[m].kind == FSDP_SHARD && !global_shape) {
            FSDP_FAIL(FSDP_INVALID, "from_local: the shape of the whole tensor is required where it is cut");
            return NULL;
        }
        if (placements[m].kind == FSDP_PARTIAL && placements[m].op == FSDP_AVG)
            factor /= (double)mesh->shape[m];
    }
    if (global_shape)
        memcpy(d.global_shape, global_shape, (size_t)d.ndim * sizeof *global_shape);
    return has_flat(placements, mesh->ndim) ? NULL : made_global(identity(&from_local_op, local, factor), &d);
}

fsdp_tensor *fsdp_to_local(fsdp_tensor *tensor)
{
    if (!tensor)
        return NULL;
    if (!fsdp_tensor_distribution(tensor)) {
        FSDP_FAIL(FSDP_INVALID, "to_local: the tensor is plain already");
        return NULL;
    }
    return identity(&to_local_op, tensor, 1.0);
}

fsdp_tensor *fsdp_parallel_redistribute(fsdp_tensor *tensor, const fsdp_placement *placements)
{
    const fsdp_distribution *from;
    fsdp_distribution to;

    if (!tensor)
        return NULL;
    from = fsdp_tensor_distribution(tensor);
    if (!from || !placements) {
        FSDP_FAIL(FSDP_INVALID, "redistribute: %s",
                  from ? "placements are required" : "the tensor is plain: distribute it (fsdp_from_local)");
        return NULL;
    }
    if (has_flat(from->placements, from->placement_count) || has_flat(placements, from->placement_count))
        return NULL;
    to = *from;
    to.partial_gradients = 0;
    memcpy(to.placements, placements, (size_t)to.placement_count * sizeof *placements);
    return made_global(fsdp__redistributed(tensor, placements), &to);
}
