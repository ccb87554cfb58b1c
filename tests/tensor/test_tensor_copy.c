/* Elements between tensors, and between tensors and the host. */
#include <math.h>

#include "device/device.h"
#include "tensor/tensor.h"

#include "support/test.h"

CONTEXT_TEST(what_is_written_is_read)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_I32, FSDP_I64, FSDP_U8};
    float values[15], back[15];

    for (int i = 0; i < 15; i++)
        values[i] = (float)(i * 16); /* exact in every dtype */
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        fsdp_tensor *t = CHECK_PTR(fsdp_empty(test_device(context), dtypes[d], FSDP_SHAPE(3, 5)));
        int64_t integers[15];

        CHECK_OK(fsdp_tensor_write(t, FSDP_F32, values));
        CHECK_OK(fsdp_tensor_read(t, FSDP_F32, back));
        CHECK_BYTES(back, values, sizeof(values));
        CHECK_OK(fsdp_tensor_read(t, FSDP_I64, integers));
        for (int i = 0; i < 15; i++)
            CHECK_EQ(integers[i], i * 16);
    }
}

CONTEXT_TEST(strided_views_are_read_and_written_in_row_major_order)
{
    fsdp_tensor *t = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(4, 5))), *turned = NULL,
                *part = NULL;
    float back[6], data[20];

    CHECK_OK(fsdp__view_transpose(t, 0, 1, &turned)); /* (5, 4) */
    CHECK_OK(fsdp__view_narrow(turned, 0, 2, 3, &part));
    fsdp_tensor_unref(turned);
    CHECK_OK(fsdp__view_narrow(part, 1, 1, 2, &turned)); /* (3, 2): columns 2..4 of rows 1..2 */
    CHECK_OK(fsdp_tensor_write(turned, FSDP_F32, (float[]){1, 2, 3, 4, 5, 6}));
    CHECK_OK(fsdp_tensor_read(t, FSDP_F32, data));
    CHECK_BYTES(data + 7, ((float[]){1, 3, 5}), 3 * sizeof(float));
    CHECK_BYTES(data + 12, ((float[]){2, 4, 6}), 3 * sizeof(float));
    CHECK_EQ(data[6] + data[10] + data[15] + data[11], 0);
    CHECK_OK(fsdp_tensor_read(turned, FSDP_F32, back));
    CHECK_BYTES(back, ((float[]){1, 2, 3, 4, 5, 6}), sizeof back);
    fsdp_tensor_unref(turned);
    fsdp_tensor_unref(part);
}

CONTEXT_TEST(copies_cast_and_add)
{
    fsdp_device *device = test_device(context);
    fsdp_tensor *a = CHECK_PTR(fsdp_from_data(device, FSDP_F32, FSDP_SHAPE(2, 3), (float[]){1, 2, 3, 4, 5, 6}));
    fsdp_tensor *b = CHECK_PTR(fsdp_full(device, FSDP_BF16, FSDP_SHAPE(3, 2), 10)), *turned = NULL;
    fsdp_tensor *integers = CHECK_PTR(fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(2, 3)));
    float back[6];

    CHECK_OK(fsdp__view_transpose(b, 0, 1, &turned));
    CHECK_OK(fsdp__tensor_copy(turned, a, true));
    CHECK_OK(fsdp_tensor_read(b, FSDP_F32, back));
    CHECK_BYTES(back, ((float[]){11, 14, 12, 15, 13, 16}), sizeof back);
    CHECK_OK(fsdp_tensor_copy_(turned, a));
    CHECK_OK(fsdp_tensor_read(b, FSDP_F32, back));
    CHECK_BYTES(back, ((float[]){1, 4, 2, 5, 3, 6}), sizeof back);
    CHECK_ERROR(fsdp__tensor_copy(integers, a, true), FSDP_INVALID, "cannot add float32 to int32");
    CHECK_OK(fsdp_tensor_copy_(integers, turned));
    CHECK_OK(fsdp_tensor_read(integers, FSDP_F32, back));
    CHECK_BYTES(back, ((float[]){1, 2, 3, 4, 5, 6}), sizeof back);
    fsdp_tensor_unref(turned);
}

CONTEXT_TEST(copies_that_make_no_sense_are_refused)
{
    fsdp_tensor *a = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, 3)));
    fsdp_tensor *b = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(3, 2)));
    fsdp_tensor *m = CHECK_PTR(fsdp_zeros(fsdp_meta(context), FSDP_F32, FSDP_SHAPE(2, 3))), *repeated = NULL;
    float values[6] = {0};

    CHECK_ERROR(fsdp_tensor_copy_(a, b), FSDP_INVALID, "cannot copy shape (3, 2) to shape (2, 3)");
    CHECK_ERROR(fsdp_tensor_copy_(a, m), FSDP_INVALID, "cannot copy from device 'meta' to device '");
    CHECK_CONTAINS(fsdp_last_error(), fsdp_device_name(test_device(context)));
    CHECK_STATUS(fsdp_tensor_copy_(NULL, a), FSDP_INVALID);
    CHECK_STATUS(fsdp_tensor_copy_(a, NULL), FSDP_INVALID);
    CHECK_OK(fsdp__tensor_create_view(a->storage, FSDP_F32, FSDP_SHAPE(2, 3), (int64_t[]){0, 1}, 0, &repeated));
    CHECK_ERROR(fsdp_tensor_copy_(repeated, a), FSDP_INVALID, "dimension 0 repeats its elements");
    CHECK_STATUS(fsdp_tensor_fill_(repeated, 1), FSDP_INVALID);
    CHECK_STATUS(fsdp_tensor_write(repeated, FSDP_F32, values), FSDP_INVALID);
    CHECK_OK(fsdp_tensor_copy_(a, repeated));
    fsdp_tensor_unref(repeated);
    CHECK_STATUS(fsdp_tensor_read(a, FSDP_DTYPE_NONE, values), FSDP_INVALID);
    CHECK_STATUS(fsdp_tensor_read(a, FSDP_F32, NULL), FSDP_INVALID);
    CHECK_STATUS(fsdp_tensor_write(a, FSDP_F32, NULL), FSDP_INVALID);
    CHECK_STATUS(fsdp_tensor_fill_(NULL, 1), FSDP_INVALID);
    CHECK_NULL(fsdp_full(test_device(context), FSDP_I32, FSDP_SHAPE(2), 2147483648.0));
    CHECK_CONTAINS(fsdp_last_error(), "cannot fill: int32 cannot be 2.14748e+09");
    CHECK_NULL(fsdp_full(test_device(context), FSDP_I64, FSDP_SHAPE(2), 0x1p63));
    CHECK_NULL(fsdp_full(test_device(context), FSDP_U8, FSDP_SHAPE(2), NAN));
    CHECK_NULL(fsdp_full(test_device(context), FSDP_U8, FSDP_SHAPE(2), 256));
}

CONTEXT_TEST(fill_reaches_every_element_of_a_view_and_no_other)
{
    fsdp_tensor *t = CHECK_PTR(fsdp_full(test_device(context), FSDP_I32, FSDP_SHAPE(3, 4, 5), 1)), *part = NULL;
    int32_t values[60];
    int sum = 0;

    CHECK_OK(fsdp__view_narrow(t, 1, 1, 2, &part));
    CHECK_OK(fsdp_tensor_fill_(part, -3));
    CHECK_OK(fsdp_tensor_read(t, FSDP_I32, values));
    for (int i = 0; i < 60; i++) {
        CHECK_EQ(values[i], i / 5 % 4 == 1 || i / 5 % 4 == 2 ? -3 : 1);
        sum += values[i];
    }
    CHECK_EQ(sum, 30 - 90);
    fsdp_tensor_unref(part);
    CHECK_EQ(test_live_bytes(context), 256);
}

CONTEXT_TEST(item_reads_the_only_element)
{
    fsdp_device *device = test_device(context);
    double value = 0;

    CHECK_OK(fsdp_tensor_item(CHECK_PTR(fsdp_full(device, FSDP_BF16, 0, NULL, 1.5)), &value));
    CHECK(value == 1.5);
    CHECK_OK(fsdp_tensor_item(CHECK_PTR(fsdp_full(device, FSDP_I64, FSDP_SHAPE(1, 1), 123456789)), &value));
    CHECK(value == 123456789);
    CHECK_OK(fsdp_tensor_item(CHECK_PTR(fsdp_full(device, FSDP_BOOL, FSDP_SHAPE(1), 1)), &value));
    CHECK(value == 1);
    CHECK_ERROR(fsdp_tensor_item(CHECK_PTR(fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(2, 2))), &value), FSDP_INVALID,
                "cannot read a tensor of shape (2, 2) as one item");
    CHECK_STATUS(fsdp_tensor_item(CHECK_PTR(fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(0))), &value), FSDP_INVALID);
    CHECK_STATUS(fsdp_tensor_item(CHECK_PTR(fsdp_zeros(fsdp_meta(context), FSDP_F32, 0, NULL)), &value), FSDP_INVALID);
    CHECK_STATUS(fsdp_tensor_item(NULL, &value), FSDP_INVALID);
}

CONTEXT_TEST(who_is_given_the_null_of_a_failed_expression_tells_why_it_failed)
{
    fsdp_device *device = test_device(context);
    fsdp_tensor *zeros = CHECK_PTR(fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(2)));
    double value = 0;

    for (int call = 0; call < 6; call++) {
        fsdp_tensor *failed = fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(-3));
        fsdp_status status = call == 0   ? fsdp_tensor_item(failed, &value)
                             : call == 1 ? fsdp_tensor_read(failed, FSDP_F32, &value)
                             : call == 2 ? fsdp_tensor_write(failed, FSDP_F32, &value)
                             : call == 3 ? fsdp_tensor_fill_(failed, 1)
                             : call == 4 ? fsdp_tensor_copy_(zeros, failed)
                                         : fsdp_tensor_print(failed, stdout);

        CHECK_EQ(status, FSDP_INVALID);
        CHECK_CONTAINS(fsdp_last_error(), "; the last error before that: ");
        CHECK_CONTAINS(fsdp_last_error(), "-3");
    }
    /* Another argument that is wrong has no such reason. */
    for (int call = 0; call < 3; call++) {
        fsdp_status status;

        CHECK(!fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(-3)));
        status = call == 0   ? fsdp_tensor_item(zeros, NULL)
                 : call == 1 ? fsdp_tensor_read(zeros, FSDP_DTYPE_NONE, &value)
                             : fsdp_tensor_write(zeros, FSDP_DTYPE_NONE, &value);
        CHECK_EQ(status, FSDP_INVALID);
        CHECK(!strstr(fsdp_last_error(), "-3"));
    }
}

CONTEXT_TEST(overlapping_views_are_not_copied)
{
    fsdp_tensor *t = CHECK_PTR(
        fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(3, 3), (float[]){1, 2, 3, 4, 5, 6, 7, 8, 9}));
    fsdp_tensor *turned = NULL, *rows[3] = {NULL}, *column = NULL;
    float back[9];

    CHECK_OK(fsdp__view_transpose(t, 0, 1, &turned));
    CHECK_OK(fsdp__view_narrow(t, 1, 1, 2, &column));
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp__view_narrow(t, 0, i, 2, &rows[i]));
    CHECK_OK(fsdp__tensor_create_view(t->storage, FSDP_F32, FSDP_SHAPE(2, 3), NULL, 0, &rows[2]));
    CHECK_ERROR(fsdp_tensor_copy_(t, turned), FSDP_INVALID,
                "cannot copy shape (3, 3) from element 0 of a storage to shape (3, 3) at element 0 of it: the two "
                "overlap");
    CHECK_ERROR(fsdp_tensor_copy_(rows[1], rows[0]), FSDP_INVALID,
                "cannot copy shape (2, 3) from element 0 of a storage to shape (2, 3) at element 3 of it");
    CHECK_STATUS(fsdp_tensor_copy_(rows[0], rows[1]), FSDP_INVALID);
    CHECK_OK(fsdp_tensor_copy_(turned, turned));
    CHECK_OK(fsdp_tensor_copy_(rows[2], rows[0]));
    CHECK_OK(fsdp_tensor_read(t, FSDP_F32, back));
    CHECK_BYTES(back, ((float[]){1, 2, 3, 4, 5, 6, 7, 8, 9}), sizeof back);
    for (int i = 0; i < 3; i++)
        fsdp_tensor_unref(rows[i]);
    CHECK_OK(fsdp__view_narrow(t, 0, 0, 1, &rows[0]));
    CHECK_OK(fsdp__view_narrow(t, 0, 1, 1, &rows[1]));
    CHECK_OK(fsdp_tensor_copy_(rows[1], rows[0])); /* neighbours */
    CHECK_OK(fsdp_tensor_copy_(column, column));
    CHECK_OK(fsdp_tensor_read(t, FSDP_F32, back));
    CHECK_BYTES(back, ((float[]){1, 2, 3, 1, 2, 3, 7, 8, 9}), sizeof back);
    for (int i = 0; i < 2; i++)
        fsdp_tensor_unref(rows[i]);
    fsdp_tensor_unref(column);
    fsdp_tensor_unref(turned);
}

typedef struct peeked {
    fsdp_tensor *tensor;
    double value;
    fsdp_status read, written;
    char message[128];
} peeked;

/* A kernel that reads and writes another tensor than those it is given. */
static fsdp_status peek(const void *arg, void *const *data)
{
    peeked *p = *(peeked *const *)arg;

    (void)data;
    p->read = fsdp_tensor_item(p->tensor, &p->value);
    p->written = fsdp_tensor_write(p->tensor, FSDP_F32, &(float){8});
    snprintf(p->message, sizeof p->message, "%s", p->written == FSDP_OK ? "" : fsdp_last_error());
    fsdp_clear_error();
    return FSDP_OK;
}

CONTEXT_TEST(a_kernel_cannot_read_or_write_a_tensor_behind_itself)
{
    fsdp_device *device = test_device(context);
    bool waits = !fsdp__stream_is_inline(fsdp_device_stream(device));
    fsdp_tensor *given = CHECK_PTR(fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(1)));
    peeked p = {.tensor = CHECK_PTR(fsdp_full(device, FSDP_F32, FSDP_SHAPE(1), 7))}, *pointer = &p;

    CHECK_OK(fsdp_launch_kernel("peek", peek, &pointer, sizeof pointer, NULL, 0, &given, 1));
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
    CHECK_EQ(p.read, waits ? FSDP_STATE : FSDP_OK);
    CHECK_EQ(p.written, waits ? FSDP_STATE : FSDP_OK);
    CHECK_CONTAINS(p.message, waits ? "cannot write a tensor: called from the stream's own work" : "");
    CHECK_OK(fsdp_tensor_item(p.tensor, &p.value));
    CHECK_NEAR(p.value, waits ? 7 : 8, 0);
}

CONTEXT_TEST(any_allocation_may_fail)
{
    fsdp_tensor *t = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(4, 6))), *part = NULL;
    int64_t live = test_live_bytes(context);

    CHECK_OK(fsdp__view_narrow(t, 1, 1, 3, &part));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        float values[12] = {0};
        fsdp_status status = FSDP_OK;

        FSDP_KEEP_FIRST(status, fsdp_tensor_fill_(part, 2));
        FSDP_KEEP_FIRST(status, fsdp_tensor_write(part, FSDP_F32, values));
        FSDP_KEEP_FIRST(status, fsdp_tensor_copy_(part, part));
        FSDP_KEEP_FIRST(status, fsdp_tensor_read(part, FSDP_F32, values));
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK_EQ(test_live_bytes(context), live);
    }
    fsdp_tensor_unref(part);
}
