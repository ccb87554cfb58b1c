/* Views share bytes under other shapes. */
#include "tensor/tensor.h"

#include "support/test.h"

/* Elements 0, 1, 2, ... in row-major order; belongs to the scope. */
static fsdp_tensor *iota(fsdp_context *context, int ndim, const int64_t *shape)
{
    fsdp_tensor *t = CHECK_PTR(fsdp_empty(test_device(context), FSDP_F32, ndim, shape));
    float values[256];

    CHECK(fsdp_tensor_numel(t) <= 256);
    for (int64_t i = 0; i < fsdp_tensor_numel(t); i++)
        values[i] = (float)i;
    CHECK_OK(fsdp_tensor_write(t, FSDP_F32, values));
    return t;
}

static void check_values(const fsdp_tensor *t, const float *expected)
{
    float values[256];

    CHECK(fsdp_tensor_numel(t) <= 256);
    CHECK_OK(fsdp_tensor_read(t, FSDP_F32, values));
    CHECK_BYTES(values, expected, (size_t)fsdp_tensor_numel(t) * sizeof(float));
}

static void check_shape(const fsdp_tensor *t, int ndim, const int64_t *shape)
{
    CHECK_EQ(fsdp_tensor_ndim(t), ndim);
    for (int d = 0; d < ndim; d++)
        CHECK_EQ(fsdp_tensor_size(t, d), shape[d]);
}

CONTEXT_TEST(reshape_keeps_the_order_of_elements)
{
    static const struct {
        int ndim;
        int64_t shape[6], expected[6];
    } cases[] = {
        {1, {30}, {30}},
        {1, {-1}, {30}},
        {2, {5, -1}, {5, 6}},
        {2, {-1, 3}, {10, 3}},
        {3, {1, 30, 1}, {1, 30, 1}},
        {4, {5, 1, 2, 3}, {5, 1, 2, 3}},
        {6, {1, 2, 3, 1, 5, 1}, {1, 2, 3, 1, 5, 1}},
    };
    fsdp_tensor *t = iota(context, FSDP_SHAPE(2, 3, 5));
    float expected[30];

    for (int i = 0; i < 30; i++)
        expected[i] = (float)i;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fsdp_tensor *view = NULL;

        CHECK_OK(fsdp__view_reshape(t, cases[i].ndim, cases[i].shape, &view));
        check_shape(view, cases[i].ndim, cases[i].expected);
        CHECK(fsdp_tensor_data(view) == fsdp_tensor_data(t));
        check_values(view, expected);
        fsdp_tensor_unref(view);
    }
}

/* A transposed matrix can be viewed where a dimension is only split or 1s are added, not where two are joined. */
CONTEXT_TEST(reshape_of_strided_views_works_where_strides_allow)
{
    fsdp_tensor *t = iota(context, FSDP_SHAPE(4, 6)), *turned = NULL, *split = NULL, *none = NULL, *part = NULL;
    int64_t zero[] = {0, 1}, shape[] = {3, 4};
    float expected[24];

    CHECK_OK(fsdp__view_transpose(t, 0, 1, &turned)); /* (6, 4), strides (1, 6) */
    CHECK(!fsdp_tensor_is_contiguous(turned));
    CHECK_OK(fsdp__view_reshape(turned, FSDP_SHAPE(2, 3, 1, 2, 2), &split));
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 4; j++)
            expected[i * 4 + j] = (float)(j * 6 + i);
    check_values(split, expected);
    CHECK_ERROR(fsdp__view_reshape(turned, FSDP_SHAPE(24), &none), FSDP_INVALID,
                "cannot view (6, 4) with strides (1, 6) as (24,): make it contiguous first");
    CHECK_ERROR(fsdp__view_reshape(turned, FSDP_SHAPE(4, 6), &none), FSDP_INVALID, "make it contiguous first");
    fsdp_tensor_unref(split);

    CHECK_OK(fsdp__view_narrow(t, 1, 1, 4, &part)); /* (4, 4), strides (6, 1) */
    CHECK_OK(fsdp__view_reshape(part, FSDP_SHAPE(2, 2, 2, 2), &split));
    fsdp_tensor_unref(split);
    CHECK_STATUS(fsdp__view_reshape(part, FSDP_SHAPE(8, 2), &none), FSDP_INVALID);
    CHECK_STATUS(fsdp__view_reshape(part, FSDP_SHAPE(2, 8), &none), FSDP_INVALID);
    CHECK_NULL(none);
    fsdp_tensor_unref(part);

    CHECK_OK(fsdp__tensor_create_view(t->storage, FSDP_F32, 2, shape, zero, 2, &part)); /* rows repeat */
    CHECK_OK(fsdp__view_reshape(part, FSDP_SHAPE(3, 2, 2), &split));
    check_values(split, (float[]){2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 4, 5});
    fsdp_tensor_unref(split);
    fsdp_tensor_unref(part);
    fsdp_tensor_unref(turned);
}

CONTEXT_TEST(a_wrong_number_of_elements_is_refused)
{
    fsdp_tensor *t = iota(context, FSDP_SHAPE(2, 3)), *empty = iota(context, FSDP_SHAPE(0, 3)), *view = NULL;

    CHECK_ERROR(fsdp__view_reshape(t, FSDP_SHAPE(4, 2), &view), FSDP_INVALID,
                "cannot reshape (2, 3) to (4, 2): the number of elements differs");
    CHECK_STATUS(fsdp__view_reshape(t, FSDP_SHAPE(4, -1), &view), FSDP_INVALID);
    CHECK_STATUS(fsdp__view_reshape(t, FSDP_SHAPE(-1, -1), &view), FSDP_INVALID);
    CHECK_STATUS(fsdp__view_reshape(t, FSDP_SHAPE(-2, -3), &view), FSDP_INVALID);
    CHECK_STATUS(fsdp__view_reshape(t, FSDP_SHAPE(0, -1), &view), FSDP_INVALID);
    CHECK_STATUS(fsdp__view_reshape(t, 7, (int64_t[]){1, 1, 1, 1, 1, 2, 3}, &view), FSDP_INVALID);
    CHECK_STATUS(fsdp__view_reshape(empty, FSDP_SHAPE(0, -1), &view), FSDP_INVALID); /* any size would do */
    CHECK_NULL(view);
    CHECK_OK(fsdp__view_reshape(empty, FSDP_SHAPE(-1, 7), &view));
    check_shape(view, FSDP_SHAPE(0, 7));
    fsdp_tensor_unref(view);
    CHECK_OK(fsdp__view_reshape(iota(context, 0, NULL), FSDP_SHAPE(1, 1), &view));
    fsdp_tensor_unref(view);
    view = NULL;
    CHECK_OK(fsdp__view_reshape(iota(context, FSDP_SHAPE(1, 1)), 0, NULL, &view));
    CHECK_EQ(fsdp_tensor_ndim(view), 0);
    fsdp_tensor_unref(view);
}

CONTEXT_TEST(transpose_and_narrow_move_through_the_same_bytes)
{
    fsdp_tensor *t = iota(context, FSDP_SHAPE(2, 3, 4)), *turned = NULL, *part = NULL, *none = NULL;

    CHECK_OK(fsdp__view_transpose(t, 0, -1, &turned));
    check_shape(turned, FSDP_SHAPE(4, 3, 2));
    CHECK_OK(fsdp__view_narrow(turned, 0, 1, 2, &part));
    check_shape(part, FSDP_SHAPE(2, 3, 2));
    check_values(part, (float[]){1, 13, 5, 17, 9, 21, 2, 14, 6, 18, 10, 22});
    fsdp_tensor_unref(part);
    CHECK_OK(fsdp__view_narrow(turned, -1, 2, 0, &part)); /* empty, at the end */
    CHECK_EQ(fsdp_tensor_numel(part), 0);
    fsdp_tensor_unref(part);
    CHECK_ERROR(fsdp__view_narrow(t, 1, 2, 2, &none), FSDP_INVALID,
                "cannot narrow dimension 1 of (2, 3, 4) to 2 elements from 2");
    CHECK_STATUS(fsdp__view_narrow(t, 1, -1, 2, &none), FSDP_INVALID);
    CHECK_STATUS(fsdp__view_narrow(t, 1, 0, -1, &none), FSDP_INVALID);
    CHECK_STATUS(fsdp__view_narrow(t, 1, 1, INT64_MAX, &none), FSDP_INVALID);
    CHECK_ERROR(fsdp__view_narrow(t, 3, 0, 1, &none), FSDP_INVALID, "cannot narrow dimension 3 of a tensor of shape");
    CHECK_STATUS(fsdp__view_transpose(t, 0, -4, &none), FSDP_INVALID);
    CHECK_NULL(none);
    fsdp_tensor_unref(turned);
}

CONTEXT_TEST(a_view_may_not_leave_its_storage)
{
    fsdp_tensor *t = iota(context, FSDP_SHAPE(10)), *view = NULL;
    int64_t strides[] = {5, 2}, negative[] = {-1, 1}, huge[] = {INT64_MAX, 1};

    CHECK_OK(fsdp__tensor_create_view(t->storage, FSDP_F32, FSDP_SHAPE(2, 2), strides, 2, &view)); /* last: 2+5+2 */
    check_values(view, (float[]){2, 4, 7, 9});
    fsdp_tensor_unref(view);
    view = NULL;
    CHECK_ERROR(fsdp__tensor_create_view(t->storage, FSDP_F32, FSDP_SHAPE(2, 2), strides, 3, &view), FSDP_INVALID,
                "cannot create a view of shape (2, 2) at element 3: it leaves the 10 elements of the storage");
    CHECK_STATUS(fsdp__tensor_create_view(t->storage, FSDP_I64, FSDP_SHAPE(6), NULL, 0, &view), FSDP_INVALID);
    CHECK_STATUS(fsdp__tensor_create_view(t->storage, FSDP_F32, FSDP_SHAPE(2, 2), negative, 5, &view), FSDP_INVALID);
    CHECK_STATUS(fsdp__tensor_create_view(t->storage, FSDP_F32, FSDP_SHAPE(3, 2), huge, 0, &view), FSDP_INVALID);
    CHECK_STATUS(fsdp__tensor_create_view(t->storage, FSDP_F32, FSDP_SHAPE(2), NULL, -1, &view), FSDP_INVALID);
    CHECK_STATUS(fsdp__tensor_create_view(t->storage, FSDP_F32, FSDP_SHAPE(0), NULL, -1, &view), FSDP_INVALID);
    CHECK_NULL(view);
    CHECK_OK(fsdp__tensor_create_view(t->storage, FSDP_F32, FSDP_SHAPE(0, 2), NULL, 11, &view)); /* reaches nothing */
    CHECK_NULL(fsdp_tensor_data(view));
    fsdp_tensor_unref(view);
    CHECK_EQ(t->storage->refs, 1);
}

CONTEXT_TEST(a_view_keeps_the_storage)
{
    fsdp_tensor *t = NULL, *view = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(100), FSDP_MEMORY_ACTIVATION, &t));
    CHECK_OK(fsdp_tensor_fill_(t, 7));
    CHECK_OK(fsdp__view_narrow(t, 0, 97, 3, &view));
    fsdp_tensor_unref(t);
    CHECK_EQ(test_live_bytes(context), 448);
    check_values(view, (float[]){7, 7, 7});
    fsdp_tensor_unref(view);
}

CONTEXT_TEST(any_allocation_may_fail)
{
    fsdp_tensor *t = iota(context, FSDP_SHAPE(4, 6));

    for (int which = 0; which < 4; which++) {
        for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
            fsdp_tensor *view = NULL;
            fsdp_status status = which == 0   ? fsdp__view_reshape(t, FSDP_SHAPE(24), &view)
                                 : which == 1 ? fsdp__view_transpose(t, 0, 1, &view)
                                 : which == 2 ? fsdp__view_narrow(t, 0, 1, 2, &view)
                                              : fsdp__tensor_alias(t, &view);

            CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
            CHECK((view != NULL) == (status == FSDP_OK));
            fsdp_tensor_unref(view);
            CHECK_EQ(t->storage->refs, 1);
        }
    }
}
