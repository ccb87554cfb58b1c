/* low_gradients.c - converts a flat group's vector of gradients to another dtype. */
#include "shard/reduce/low_gradients.h"

#include "autograd/autograd.h"
#include "device/kernels.h"

static bool has_other(const fsdp__param *holders, int64_t count, fsdp_dtype dtype)
{
    bool other = false;

    for (int64_t i = 0; i < count; i++) {
        const fsdp_tensor *grad = fsdp_tensor_grad(holders[i].sharded);

        other = other || (grad && grad->dtype != dtype);
    }
    return other;
}

/* Moves the holder's gradient to its place in the vector. */
static fsdp_status move(const fsdp__param *holder, fsdp__storage *vector, fsdp_dtype dtype)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *after = NULL;
    fsdp_tensor *before = fsdp_tensor_grad(holder->sharded);

    FSDP_TRY(fsdp__tensor_create_view(vector, dtype, holder->sharded->ndim, holder->sharded->shape, NULL,
                                      holder->part.in_shard, &after));
    FSDP_TRY(fsdp_tensor_set_distribution(after, fsdp_tensor_distribution(holder->sharded)));
    FSDP_TRY(fsdp__tensor_copy(after, before, false));
    fsdp__put_grad(holder->sharded, after);
    return FSDP_OK;
}

static fsdp_status convert(fsdp__param_group *group, fsdp_dtype dtype)
{
    int64_t numel = group->vector.chunk_numel, count;
    fsdp__param *holders;
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *vector = NULL;

    count = fsdp__param_group_holders(group, &holders);
    if (!has_other(holders, count, dtype))
        return FSDP_OK;
    FSDP_TRY(fsdp__residence_shard_storage(&group->residence, (size_t)numel * fsdp_dtype_size(dtype), &vector));
    /* Reductions add to what lies between the parameters, too. */
    FSDP_TRY(fsdp__launch_fill_run(fsdp_device_stream(vector->device), vector->data, dtype, numel, 0));
    for (int64_t i = 0; i < count; i++)
        if (fsdp_tensor_grad(holders[i].sharded))
            FSDP_TRY(move(&holders[i], vector, dtype));
    return FSDP_OK;
}

fsdp_status fsdp__param_group_raise_gradients(fsdp__param_group *group)
{
    return group->low_gradients ? convert(group, group->params[0].orig_dtype) : FSDP_OK;
}

fsdp_status fsdp__param_group_lower_gradients(fsdp__param_group *group)
{
    return group->low_gradients ? convert(group, group->low_gradients) : FSDP_OK;
}
