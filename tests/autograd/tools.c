/* tools.c - tensors for tests, and what they hold. */
#include "autograd/tools.h"

#include "support/dice.h"

int64_t tensor_bytes(fsdp_context *context)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats);
    return (int64_t)(stats.live_total_bytes - stats.live_bytes[FSDP_MEMORY_WORKSPACE]);
}

fsdp_tensor *make_random(fsdp_device *device, uint64_t key, int ndim, const int64_t *shape)
{
    fsdp_tensor *tensor = CHECK_PTR(fsdp_empty(device, FSDP_F32, ndim, shape));
    int64_t numel = fsdp_tensor_numel(tensor);
    float *values = malloc((size_t)numel * sizeof(float) + 1);

    for (int64_t i = 0; i < numel; i++)
        values[i] = dice_normal(key, (uint64_t)i);
    if (!fsdp_device_is_meta(device))
        CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
    free(values);
    return tensor;
}

fsdp_tensor *make_leaf(fsdp_device *device, uint64_t key, int ndim, const int64_t *shape)
{
    fsdp_tensor *tensor = make_random(device, key, ndim, shape);

    CHECK_OK(fsdp_tensor_set_requires_grad(tensor, true));
    return tensor;
}

fsdp_tensor *make_floats(fsdp_device *device, int64_t count, const float *values)
{
    return CHECK_PTR(fsdp_from_data(device, FSDP_F32, 1, &count, values));
}

fsdp_tensor *make_ids(fsdp_device *device, int ndim, const int64_t *shape, const int32_t *ids)
{
    return CHECK_PTR(fsdp_from_data(device, FSDP_I32, ndim, shape, ids));
}

double first_of(const fsdp_tensor *tensor)
{
    float values[64];

    CHECK(fsdp_tensor_numel(CHECK_PTR(tensor)) <= 64);
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    return (double)values[0];
}
