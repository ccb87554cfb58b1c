/* owner.c - learns of what callers do to leaves. */
#include "shard/reduce/owner.h"

#include "autograd/autograd.h"
#include "shard/reduce/buckets.h"
#include "shard/reduce/gradients.h"

/* ---- what callers do to the two tensors ---- */

/* Drops older gradients when the caller sets or drops one: the caller's gradient is all there is. For a shard,
 * gradients that wait to be reduced go. For an unsharded parameter, whose gradient waits to be reduced itself, the
 * shard's gradient goes, and those that backwards without reduction kept. */
static void grad_set(void *arg, fsdp_tensor *leaf)
{
    fsdp__param *param = arg;
    fsdp_tensor *set = leaf == param->unsharded ? fsdp_tensor_ref(fsdp_tensor_grad(leaf)) : NULL;

    if (leaf == param->unsharded)
        fsdp__put_grad(param->sharded, NULL);
    fsdp__param_drop_gradients(param);
    if (set)
        fsdp__put_grad(leaf, set);
    fsdp_tensor_unref(set);
}

/* Makes a shard's gradient a distributed tensor like the shard, wherever it comes from. */
static fsdp_status grad_made(void *arg, fsdp_tensor *leaf, fsdp_tensor *grad)
{
    const fsdp__param *param = arg;

    if (leaf != param->sharded || fsdp_tensor_distribution(grad))
        return FSDP_OK;
    return fsdp_tensor_set_distribution(grad, fsdp_tensor_distribution(leaf));
}

static void requires_grad_set(void *arg, bool requires_grad)
{
    const fsdp__param *param = arg;
    const fsdp__param_group *group = param->group;
    bool any = false;

    fsdp__mirror_requires_grad(param->sharded, requires_grad);
    if (param->unsharded)
        fsdp__mirror_requires_grad(param->unsharded, requires_grad);
    if (!group || !group->vector.sharded)
        return;
    for (int64_t i = 0; i < group->param_count; i++)
        any = any || fsdp_tensor_requires_grad(group->params[i].sharded);
    fsdp__mirror_requires_grad(group->vector.sharded, any);
}

/* Tells the bucket of a replicated parameter that it may be ready to send. */
static fsdp_status grad_complete(void *arg, fsdp_tensor *leaf)
{
    fsdp__param *param = arg;
    const fsdp__buckets *buckets = param->group->buckets;

    return buckets && buckets->running && leaf == param->unsharded ? buckets->grad_complete(param) : FSDP_OK;
}

static bool is_part(const void *arg, const fsdp_tensor *leaf)
{
    const fsdp__param *param = arg;

    (void)leaf; /* also for the unsharded tensor */
    return param->group && param->group->vector.sharded;
}

static const fsdp__leaf_owner leaf_owner = {.grad_made = grad_made,
                                            .grad_set = grad_set,
                                            .requires_grad_set = requires_grad_set,
                                            .grad_complete = grad_complete,
                                            .is_part = is_part};

/* ---- what callers do to summoned tensors ---- */

static fsdp_status summoned_grad_made(void *arg, fsdp_tensor *leaf, fsdp_tensor *grad)
{
    (void)arg, (void)leaf, (void)grad;
    return FSDP_OK;
}

/* Drops the shard's gradient when the caller drops the summoned tensor's, unless gradients are summoned, too: those are
 * written back in the end. */
static void summoned_grad_set(void *arg, fsdp_tensor *leaf)
{
    fsdp__param *param = arg;

    if (param->group->summoned_grads || fsdp_tensor_grad(leaf))
        return;
    fsdp__put_grad(param->sharded, NULL);
    fsdp__param_drop_gradients(param);
}

static const fsdp__leaf_owner summoned_owner = {
    .grad_made = summoned_grad_made, .grad_set = summoned_grad_set, .requires_grad_set = requires_grad_set};

fsdp_status fsdp__param_own_summoned(fsdp__param *param)
{
    return fsdp__set_leaf_owner(param->summoned, &summoned_owner, param);
}

void fsdp__param_disown_summoned(fsdp__param *param)
{
    if (param->summoned)
        (void)fsdp__set_leaf_owner(param->summoned, NULL, NULL);
}

/* ---- what callers do to a flat group's one parameter ---- */

static void flat_grad_set(void *arg, fsdp_tensor *leaf)
{
    fsdp__param_group *group = ((fsdp__param *)arg)->group;

    (void)leaf;
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__param_drop_gradients(&group->params[i]);
}

static void flat_requires_grad_set(void *arg, bool requires_grad)
{
    fsdp__param_group *group = ((fsdp__param *)arg)->group;

    for (int64_t i = 0; i < group->param_count; i++)
        requires_grad_set(&group->params[i], requires_grad);
}

static bool flat_part(const void *arg, int64_t index, fsdp__leaf_part *out)
{
    const fsdp__param_group *group = ((const fsdp__param *)arg)->group;
    const fsdp__param *p = &group->params[index];

    if (index >= group->param_count)
        return false;
    *out = (fsdp__leaf_part){p->unit_name, p->sharded, p->part.in_shard};
    return true;
}

static const fsdp__leaf_owner flat_owner = {
    .grad_made = grad_made, .grad_set = flat_grad_set, .requires_grad_set = flat_requires_grad_set, .part = flat_part};

fsdp_status fsdp__flat_parameter_own(fsdp__param_group *group)
{
    bool trained = false;

    for (int64_t i = 0; i < group->param_count; i++)
        trained = trained || fsdp_tensor_requires_grad(group->params[i].sharded);
    FSDP_TRY(fsdp_tensor_set_requires_grad(group->vector.sharded, trained));
    return fsdp__set_leaf_owner(group->vector.sharded, &flat_owner, &group->vector);
}

void fsdp__flat_parameter_disown(fsdp__param_group *group)
{
    if (group->vector.sharded)
        (void)fsdp__set_leaf_owner(group->vector.sharded, NULL, NULL);
}

fsdp__param *fsdp__param_of(const fsdp_tensor *tensor)
{
    return fsdp__leaf_owner_arg(tensor, &leaf_owner);
}

fsdp_status fsdp__param_own_sharded(fsdp__param *param)
{
    return fsdp__set_leaf_owner(param->sharded, &leaf_owner, param);
}

fsdp_status fsdp__param_own_unsharded(fsdp__param *param)
{
    FSDP_TRY(fsdp__set_leaf_owner(param->unsharded, &leaf_owner, param));
    FSDP_TRY(fsdp__set_grad_source(param->unsharded, fsdp__param_gradient_source, param));
    return fsdp__set_grad_dtype(param->unsharded, fsdp__param_grad_dtype(param));
}

void fsdp__param_disown(fsdp__param *param)
{
    (void)fsdp__set_leaf_owner(param->sharded, NULL, NULL);
    fsdp__param_disown_summoned(param);
    if (!param->unsharded)
        return;
    (void)fsdp__set_leaf_owner(param->unsharded, NULL, NULL);
    (void)fsdp__set_grad_source(param->unsharded, NULL, NULL);
    param->unsharded->storage->guard.arg = NULL;
}
