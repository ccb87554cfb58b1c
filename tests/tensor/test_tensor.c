/* Creation, properties, and everything that may fail on the way. */
#include "tensor/tensor.h"

#include "support/test.h"

CONTEXT_TEST(a_new_tensor_is_contiguous_and_counted)
{
    fsdp_tensor *t = NULL;
    fsdp_memory_stats stats;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_BF16, FSDP_SHAPE(3, 1, 7), FSDP_MEMORY_GRADIENT, &t));
    CHECK_EQ(fsdp_tensor_ndim(t), 3);
    CHECK_BYTES(fsdp_tensor_shape(t), ((int64_t[]){3, 1, 7}), 3 * sizeof(int64_t));
    CHECK_BYTES(fsdp_tensor_strides(t), ((int64_t[]){7, 7, 1}), 3 * sizeof(int64_t));
    CHECK_EQ(fsdp_tensor_size(t, 0), 3);
    CHECK_EQ(fsdp_tensor_size(t, -1), 7);
    CHECK_EQ(fsdp_tensor_size(t, 3), -1);
    CHECK_EQ(fsdp_tensor_size(t, -4), -1);
    CHECK_EQ(fsdp_tensor_numel(t), 21);
    CHECK_EQ(fsdp_tensor_dtype(t), FSDP_BF16);
    CHECK(fsdp_tensor_device(t) == test_device(context));
    CHECK(fsdp_tensor_is_contiguous(t));
    CHECK(fsdp_tensor_data(t) != NULL);
    fsdp_device_memory(test_device(context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 64);
    fsdp_tensor_unref(t);
}

CONTEXT_TEST(a_tensor_lives_as_long_as_its_last_reference)
{
    fsdp_tensor *t = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(5), FSDP_MEMORY_ACTIVATION, &t));
    CHECK(fsdp_tensor_ref(t) == t);
    fsdp_tensor_unref(t);
    CHECK_EQ(test_live_bytes(context), 64);
    fsdp_tensor_unref(t);
    CHECK_EQ(test_live_bytes(context), 0);
    CHECK_NULL(fsdp_tensor_ref(NULL));
    fsdp_tensor_unref(NULL);
}

CONTEXT_TEST(scalars_and_empty_tensors_are_tensors)
{
    fsdp_device *devices[2] = {test_device(context), fsdp_meta(context)};

    for (int d = 0; d < 2; d++) {
        fsdp_tensor *scalar = CHECK_PTR(fsdp_full(devices[d], FSDP_F32, 0, NULL, 2.5));
        fsdp_tensor *empty = CHECK_PTR(fsdp_full(devices[d], FSDP_I64, FSDP_SHAPE(4, 0, 3), 1));
        float nothing;

        CHECK_EQ(fsdp_tensor_numel(scalar), 1);
        CHECK_EQ(fsdp_tensor_ndim(scalar), 0);
        CHECK(fsdp_tensor_is_contiguous(scalar));
        CHECK_EQ(fsdp_tensor_numel(empty), 0);
        CHECK_BYTES(fsdp_tensor_strides(empty), ((int64_t[]){3, 3, 1}), 3 * sizeof(int64_t)); /* as PyTorch */
        CHECK(fsdp_tensor_is_contiguous(empty));
        CHECK_NULL(fsdp_tensor_data(empty));
        CHECK_OK(fsdp_tensor_read(empty, FSDP_F32, &nothing));
        CHECK_OK(fsdp_tensor_read(empty, FSDP_F32, NULL));
        CHECK_OK(fsdp_tensor_write(empty, FSDP_F32, NULL));
        CHECK_OK(fsdp_tensor_fill_(empty, 3));
        CHECK_OK(fsdp_tensor_copy_(empty, empty));
        CHECK_PTR(fsdp_from_data(devices[d], FSDP_U8, FSDP_SHAPE(0), NULL));
        CHECK_EQ(test_live_bytes(context), d ? 128 : 64); /* the scalars alone */
    }
}

CONTEXT_TEST(a_meta_tensor_has_a_shape_and_no_bytes)
{
    fsdp_tensor *t = CHECK_PTR(fsdp_zeros(fsdp_meta(context), FSDP_F32, FSDP_SHAPE(1000, 1001)));
    fsdp_memory_stats stats;
    double value;

    CHECK_NULL(fsdp_tensor_data(t));
    fsdp_device_memory(fsdp_meta(context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_ACTIVATION], 4004032);
    CHECK_OK(fsdp_tensor_write(t, FSDP_F32, &value)); /* goes nowhere, so nothing is read */
    CHECK_ERROR(fsdp_tensor_read(t, FSDP_F32, &value), FSDP_INVALID,
                "cannot read a tensor of shape (1000, 1001): a meta tensor has no bytes");
    CHECK_PTR(fsdp_from_data(fsdp_meta(context), FSDP_F32, FSDP_SHAPE(2), (float[]){1, 2}));
    CHECK_OK(fsdp_tensor_copy_(t, t));
}

CONTEXT_TEST(bad_shapes_are_refused)
{
    fsdp_device *device = test_device(context);
    const int64_t big[] = {INT64_MAX / 2, 3}, shape[] = {1, 1, 1, 1, 1, 1, 1};
    fsdp_tensor *t = NULL;

    fsdp_clear_error();
    CHECK_ERROR(fsdp_tensor_create(NULL, FSDP_F32, 1, shape, FSDP_MEMORY_ACTIVATION, &t), FSDP_INVALID,
                "cannot create a tensor: the device is NULL");
    CHECK_NULL(fsdp_zeros(fsdp_device_open(context, "abacus"), FSDP_F32, 1, shape)); /* the first error is told */
    CHECK_CONTAINS(fsdp_last_error(), "abacus");
    CHECK_ERROR(fsdp_tensor_create(device, FSDP_DTYPE_NONE, 1, shape, FSDP_MEMORY_ACTIVATION, &t), FSDP_INVALID,
                "unknown dtype 0");
    CHECK_ERROR(fsdp_tensor_create(device, FSDP_F32, 7, shape, FSDP_MEMORY_ACTIVATION, &t), FSDP_INVALID,
                "7 dimensions: 0 to 6 are possible");
    CHECK_ERROR(fsdp_tensor_create(device, FSDP_F32, 1, shape, FSDP_MEMORY_KINDS, &t), FSDP_INVALID,
                "there is no kind 6 of memory");
    CHECK_STATUS(fsdp_tensor_create(device, FSDP_F32, -1, shape, FSDP_MEMORY_ACTIVATION, &t), FSDP_INVALID);
    CHECK_STATUS(fsdp_tensor_create(device, FSDP_F32, 2, NULL, FSDP_MEMORY_ACTIVATION, &t), FSDP_INVALID);
    CHECK_ERROR(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(3, -2), FSDP_MEMORY_ACTIVATION, &t), FSDP_INVALID,
                "shape (3, -2): sizes are negative");
    CHECK_STATUS(fsdp_tensor_create(device, FSDP_F32, 2, big, FSDP_MEMORY_ACTIVATION, &t), FSDP_INVALID);
    CHECK_ERROR(fsdp_tensor_create(device, FSDP_F32, 1, big, FSDP_MEMORY_ACTIVATION, &t), FSDP_INVALID,
                "too many bytes");
    CHECK_ERROR(fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(1 << 30, 1 << 28), FSDP_MEMORY_ACTIVATION, &t),
                FSDP_NO_MEMORY, "cannot create a tensor of shape (1073741824, 268435456): cannot allocate");
    CHECK_NULL(fsdp_empty(device, FSDP_F32, FSDP_SHAPE(-1)));
    CHECK_EQ(fsdp_last_status(), FSDP_INVALID);
    CHECK_NULL(t);
    CHECK_NULL(fsdp__empty_like(NULL, FSDP_F32));
}

static void add_one(void *state)
{
    ++*(int *)state;
}

CONTEXT_TEST(what_hangs_on_a_tensor_dies_with_it)
{
    fsdp_tensor *t = NULL, *alias = NULL;
    int freed = 0;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(2), FSDP_MEMORY_ACTIVATION, &t));
    t->autograd = (fsdp__attachment){.state = &freed, .free_state = add_one};
    t->distribution = (fsdp__attachment){.state = &freed, .free_state = add_one};
    CHECK_OK(fsdp__tensor_alias(t, &alias));
    CHECK_NULL(alias->autograd.state);
    fsdp_tensor_unref(alias);
    CHECK_EQ(freed, 0);
    fsdp_tensor_unref(t);
    CHECK_EQ(freed, 2);
}

/* Every constructor with every allocation failing once; on a context whose tables are still empty. */
TEST(any_allocation_may_fail)
{
    static const float data[6] = {1, 2, 3, 4, 5, 6};

    for (int which = 0; which < 6; which++) {
        for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
            fsdp_context *context = NULL;
            fsdp_status status = fsdp_context_create(NULL, &context);
            fsdp_device *device = status == FSDP_OK ? test_device(context) : NULL;
            fsdp_tensor *t = NULL, *like = NULL;

            if (device) {
                switch (which) {
                case 0:
                    (void)fsdp_tensor_create(device, FSDP_F32, FSDP_SHAPE(2, 3), FSDP_MEMORY_ACTIVATION, &t);
                    break;
                case 1:
                    t = fsdp_tensor_ref(fsdp_empty(device, FSDP_F32, FSDP_SHAPE(2, 3)));
                    break;
                case 2:
                    t = fsdp_tensor_ref(fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(2, 3)));
                    break;
                case 3:
                    t = fsdp_tensor_ref(fsdp_full(device, FSDP_F32, FSDP_SHAPE(2, 3), 4));
                    break;
                case 4:
                    t = fsdp_tensor_ref(fsdp_from_data(device, FSDP_F32, FSDP_SHAPE(2, 3), data));
                    break;
                default:
                    like = fsdp_empty(device, FSDP_F32, FSDP_SHAPE(2, 3));
                    t = fsdp_tensor_ref(fsdp__empty_like(like, FSDP_BF16));
                }
            }
            CHECK_FAULT(FSDP__FAULT_ALLOCATION, t ? FSDP_OK : fsdp_last_status());
            fsdp_tensor_unref(t);
            fsdp_context_free(context); /* frees what the scope holds; logs what was leaked */
        }
    }
}

CONTEXT_TEST(counted_and_unit_tensors)
{
    fsdp_device *device = test_device(context);
    int32_t values[9];
    float floats[3];

    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_arange(device, FSDP_I32, 3, -4, -3)), FSDP_I32, values));
    CHECK_BYTES(values, ((const int32_t[]){3, 0, -3}), 3 * sizeof *values);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_arange(device, FSDP_BF16, 1, 6, 2)), FSDP_F32, floats));
    CHECK_BYTES(floats, ((const float[]){1, 3, 5}), sizeof floats);
    CHECK_EQ(fsdp_tensor_numel(CHECK_PTR(fsdp_arange(device, FSDP_I64, 5, 5, 1))), 0);
    CHECK_EQ(fsdp_tensor_numel(CHECK_PTR(fsdp_arange(fsdp_meta(context), FSDP_I64, 0, 4, 1))), 4);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_eye(device, FSDP_F32, 3)), FSDP_I32, values));
    CHECK_BYTES(values, ((const int32_t[]){1, 0, 0, 0, 1, 0, 0, 0, 1}), sizeof values);
    CHECK_EQ(fsdp_tensor_numel(CHECK_PTR(fsdp_eye(device, FSDP_F32, 0))), 0);
    CHECK_NULL(fsdp_arange(device, FSDP_I32, 0, 4, 0));
    CHECK_CONTAINS(fsdp_last_error(), "arange: the step is 0");
    CHECK_NULL(fsdp_arange(device, FSDP_I32, INT64_MIN, INT64_MAX, 1));
    CHECK_CONTAINS(fsdp_last_error(), "too many");
    CHECK_NULL(fsdp_eye(device, FSDP_I32, -1));
}
