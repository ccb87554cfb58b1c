/* moments.c - the tensors that an optimizer keeps for a parameter, and how they follow the parameter. */
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "fsdp/dist.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

static fsdp_status make_moment(const fsdp_tensor *like, fsdp_tensor **out)
{
    fsdp_context *context = fsdp_device_context(like->storage->device);
    fsdp__taker before = fsdp__context_enter(context, like->storage->owner);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *moment = NULL;
    fsdp_status status = fsdp_tensor_create(like->storage->device, FSDP_F32, like->ndim, like->shape,
                                            FSDP_MEMORY_OPTIMIZER_STATE, &moment);

    fsdp__context_set_taker(context, before);
    FSDP_TRY(status);
    FSDP_TRY(fsdp_tensor_fill_(moment, 0));
    *out = fsdp__take(&moment);
    return FSDP_OK;
}

static bool has_shape(const fsdp_tensor *tensor, int ndim, const int64_t *shape)
{
    return tensor->ndim == ndim && memcmp(tensor->shape, shape, (size_t)ndim * sizeof *shape) == 0;
}

/* Cuts the state of a parameter that was sharded after its last step. The state is still unsharded, and every rank has
 * stepped alike so far, so this rank's rows are cut out of it. */
static fsdp_status cut_moment(const fsdp__optimizer_param *param, fsdp_tensor **moment)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(param->tensor);
    char made_for[FSDP__SHAPE_TEXT], shape[FSDP__SHAPE_TEXT];
    fsdp_tensor *rows;

    if (!distribution || !has_shape(*moment, distribution->ndim, distribution->global_shape))
        return FSDP_FAIL(
            FSDP_STATE,
            "cannot optimize '%s': its shape is %s, but its state was made for shape %s: make a new optimizer",
            param->name, fsdp__shape_text(param->tensor->ndim, param->tensor->shape, shape),
            fsdp__shape_text((*moment)->ndim, (*moment)->shape, made_for));
    FSDP_TRY(fsdp_distribute_tensor(*moment, distribution->mesh, distribution->placements, &rows));
    fsdp_tensor_unref(*moment);
    *moment = rows;
    return FSDP_OK;
}

/* Moves the state of a parameter that was offloaded after its last step, which is still on the device. It is moved on
 * return. */
static fsdp_status move_moment(const fsdp_tensor *like, fsdp_tensor **moment)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *moved = NULL;

    FSDP_TRY(make_moment(like, &moved));
    FSDP_TRY(fsdp__tensor_copy_across(moved, *moment));
    fsdp_tensor_unref(*moment);
    *moment = fsdp__take(&moved);
    return FSDP_OK;
}

/* Makes the moment fit the parameter; it is zero before the first step. */
static fsdp_status fit_moment(const fsdp__optimizer_param *param, fsdp_tensor **moment)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(param->tensor);

    if (!*moment)
        FSDP_TRY(make_moment(param->tensor, moment));
    else if (!fsdp__shape_equal(*moment, param->tensor))
        FSDP_TRY(cut_moment(param, moment));
    if ((*moment)->storage->device != param->tensor->storage->device)
        FSDP_TRY(move_moment(param->tensor, moment));
    /* Whoever looks at the state can see which part of it this is. */
    if (distribution && !fsdp_tensor_distribution(*moment))
        FSDP_TRY(fsdp_tensor_set_distribution(*moment, distribution));
    return FSDP_OK;
}

fsdp_status fsdp__optimizer_fit_state(const fsdp_optimizer *optimizer, const fsdp__optimizer_group *group,
                                      fsdp__optimizer_param *param)
{
    bool adam = optimizer->kind != FSDP__OPTIMIZER_SGD;

    if (adam || group->options.sgd.momentum != 0)
        FSDP_TRY(fit_moment(param, &param->moment1));
    if (adam)
        FSDP_TRY(fit_moment(param, &param->moment2));
    return FSDP_OK;
}

void fsdp__optimizer_forget_state(fsdp__optimizer_param *param)
{
    fsdp_tensor_unref(param->moment1);
    fsdp_tensor_unref(param->moment2);
    param->moment1 = param->moment2 = NULL;
    param->steps = 0;
}
