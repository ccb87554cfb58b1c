/* low_gradients.c - converts a flat group's vector of gradients to another dtype. */
#include "shard/reduce/low_gradients.h"

#include "autograd/autograd.h"
#include "device/kernels.h"

static int64_t holder_count(const fsdp__param_group *group)
{
    return group->flat.parameter ? 1 : group->param_count;
}

/* Returns the i-th tensor that holds gradients: the flat parameter, or a shard. */
static fsdp_tensor *holder_at(const fsdp__param_group *group, int64_t i)
{
    return group->flat.parameter ? group->flat.parameter : group->params[i].sharded;
}

static int64_t first_element(const fsdp__param_group *group, int64_t i)
{
    return group->flat.parameter ? 0 : group->params[i].piece.in_shard;
}

static bool has_other(const fsdp__param_group *group, fsdp_dtype dtype)
{
    bool other = false;

    for (int64_t i = 0; i < holder_count(group); i++) {
        const fsdp_tensor *grad = fsdp_tensor_grad(holder_at(group, i));

        other = other || (grad && grad->dtype != dtype);
    }
    return other;
}

/* Moves the gradient of the i-th holder to its place in the vector. */
static fsdp_status move(fsdp__param_group *group, int64_t i, fsdp__storage *vector, fsdp_dtype dtype)
{
    fsdp_tensor *holder = holder_at(group, i), *before = fsdp_tensor_grad(holder), *after;
    fsdp_status status;

    FSDP_TRY(
        fsdp__tensor_create_view(vector, dtype, holder->ndim, holder->shape, NULL, first_element(group, i), &after));
    status = fsdp_tensor_set_distribution(after, fsdp_tensor_distribution(holder));
    if (status == FSDP_OK)
        status = fsdp__tensor_copy(after, before, false);
    if (status == FSDP_OK)
        fsdp__put_grad(holder, after);
    fsdp_tensor_unref(after);
    return status;
}

static fsdp_status convert(fsdp__param_group *group, fsdp_dtype dtype)
{
    size_t bytes = (size_t)group->flat.shard_numel * fsdp_dtype_size(dtype);
    fsdp__storage *vector;
    fsdp_status status;

    if (!has_other(group, dtype))
        return FSDP_OK;
    FSDP_TRY(fsdp__residence_shard_storage(&group->residence, bytes, FSDP_MEMORY_GRADIENT, &vector));
    /* Reductions add to what lies between the parameters, too. */
    status = fsdp__launch_fill_run(fsdp_device_stream(vector->device), vector->data, dtype, group->flat.shard_numel, 0);
    for (int64_t i = 0; i < holder_count(group) && status == FSDP_OK; i++)
        if (fsdp_tensor_grad(holder_at(group, i)))
            status = move(group, i, vector, dtype);
    fsdp__storage_unref(vector);
    return status;
}

fsdp_status fsdp__param_group_raise_gradients(fsdp__param_group *group)
{
    return group->low_gradients ? convert(group, group->params[0].orig_dtype) : FSDP_OK;
}

fsdp_status fsdp__param_group_lower_gradients(fsdp__param_group *group)
{
    return group->low_gradients ? convert(group, group->low_gradients) : FSDP_OK;
}
