/* A storage keeps its identity while its bytes come and go. */
#include "tensor/tensor.h"

#include "device/device.h"
#include "support/test.h"

CONTEXT_TEST(views_survive_drop_and_restore)
{
    fsdp__storage *storage = NULL;
    fsdp_tensor *whole = NULL, *row = NULL;
    float values[15], back[5];

    for (int i = 0; i < 15; i++)
        values[i] = (float)i;
    CHECK_OK(
        fsdp__storage_create(test_device(context), sizeof(values), FSDP_MEMORY_UNSHARDED_PARAMETER, false, &storage));
    CHECK_OK(fsdp__tensor_create_view(storage, FSDP_F32, FSDP_SHAPE(3, 5), NULL, 0, &whole));
    CHECK_OK(fsdp__view_narrow(whole, 0, 1, 1, &row));
    fsdp__storage_unref(storage); /* the views hold it */
    CHECK_EQ(test_live_bytes(context), 0);
    CHECK_NULL(fsdp_tensor_data(row));
    for (int round = 0; round < 3; round++) {
        CHECK_OK(fsdp__storage_restore(storage));
        CHECK_OK(fsdp__storage_restore(storage)); /* whoever comes second has nothing to do */
        CHECK_EQ(test_live_bytes(context), 64);
        CHECK_OK(fsdp_tensor_write(whole, FSDP_F32, values));
        CHECK((char *)fsdp_tensor_data(row) == (char *)fsdp_tensor_data(whole) + 5 * sizeof(float));
        CHECK_OK(fsdp_tensor_read(row, FSDP_F32, back));
        CHECK_BYTES(back, values + 5, sizeof back);
        fsdp__storage_drop(storage);
        fsdp__storage_drop(storage);
        CHECK_EQ(test_live_bytes(context), 0);
        CHECK_NULL(fsdp_tensor_data(row));
    }
    fsdp_tensor_unref(whole);
    fsdp_tensor_unref(row);
}

CONTEXT_TEST(dropped_bytes_are_not_read)
{
    fsdp_tensor *a = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, 3)));
    fsdp_tensor *b = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, 3)));
    float values[6];

    fsdp__storage_drop(a->storage);
    CHECK_ERROR(fsdp_tensor_read(a, FSDP_F32, values), FSDP_STATE,
                "cannot read a tensor of shape (2, 3): its storage has dropped its bytes");
    CHECK_STATUS(fsdp_tensor_write(a, FSDP_F32, values), FSDP_STATE);
    CHECK_STATUS(fsdp_tensor_fill_(a, 1), FSDP_STATE);
    CHECK_STATUS(fsdp_tensor_copy_(a, b), FSDP_STATE);
    CHECK_STATUS(fsdp_tensor_copy_(b, a), FSDP_STATE);
    CHECK_STATUS(fsdp_tensor_print(a, stdout), FSDP_STATE);
}

static void note_release(void *arg, void *data)
{
    void **released = arg;

    *released = data;
}

CONTEXT_TEST(adopted_bytes_go_back_to_their_owner)
{
    fsdp__storage *storage = NULL;
    _Alignas(64) float bytes[16] = {1, 2};
    void *released = NULL;

    CHECK_OK(fsdp__storage_create(test_device(context), sizeof bytes, FSDP_MEMORY_PARAMETER_SHARD, false, &storage));
    fsdp__storage_adopt(storage, bytes, note_release, &released);
    CHECK_OK(fsdp__storage_restore(storage)); /* it has some */
    CHECK(storage->data == bytes);
    CHECK_EQ(test_live_bytes(context), 0); /* not the device's own */
    fsdp__storage_drop(storage);
    CHECK(released == bytes);
    CHECK_NULL(storage->data);
    released = NULL;

    CHECK_OK(fsdp__storage_restore(storage)); /* the device's own again */
    CHECK_EQ(test_live_bytes(context), 64);
    fsdp__storage_drop(storage);
    CHECK_NULL(released);
    CHECK_EQ(test_live_bytes(context), 0);

    fsdp__storage_adopt(storage, bytes, NULL, NULL); /* borrowed */
    fsdp__storage_drop(storage);
    CHECK_EQ(bytes[1], 2);
    fsdp__storage_adopt(storage, bytes, note_release, &released);
    fsdp__storage_unref(storage); /* the last reference drops */
    CHECK(released == bytes);
}

CONTEXT_TEST(empty_storages_come_and_go_too)
{
    fsdp__storage *storage = NULL;
    fsdp_tensor *t = NULL;

    CHECK_OK(fsdp__storage_create(test_device(context), 0, FSDP_MEMORY_PARAMETER_SHARD, true, &storage));
    CHECK(storage->data != NULL);
    CHECK_OK(fsdp__tensor_create_view(storage, FSDP_F32, FSDP_SHAPE(0, 5), NULL, 0, &t));
    CHECK_NULL(fsdp_tensor_data(t));
    fsdp__storage_drop(storage);
    CHECK_OK(fsdp_tensor_fill_(t, 3));
    CHECK_OK(fsdp__storage_restore(storage));
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_tensor_unref(t);
    fsdp__storage_unref(storage);
    fsdp__storage_unref(NULL);
}

typedef struct guarded {
    int writes;
    const fsdp_tensor *tensor; /* read when told: what was there before the write */
    float seen;
    bool refuse;
} guarded;

static fsdp_status before_write(void *arg, fsdp__storage *storage)
{
    guarded *g = arg;
    float values[15];

    g->writes++;
    if (g->tensor) {
        CHECK_OK(fsdp_tensor_read(g->tensor, FSDP_F32, values));
        g->seen = values[0];
    }
    if (g->refuse)
        return FSDP_FAIL(FSDP_STATE, "storage of %zu bytes is in use", storage->bytes);
    return FSDP_OK;
}

CONTEXT_TEST(who_writes_says_so_first)
{
    fsdp_tensor *t = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(3, 5), 1));
    fsdp_tensor *other = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2, 5), 4)), *rows = NULL;
    float values[15] = {2}, back[15];
    guarded g = {.tensor = t};

    CHECK_OK(fsdp__view_narrow(t, 0, 0, 2, &rows)); /* a write through any view counts */
    t->storage->guard = (fsdp__storage_guard){.before_write = before_write, .arg = &g};
    CHECK_OK(fsdp_tensor_write(t, FSDP_F32, values));
    CHECK_EQ(g.writes, 1);
    CHECK_NEAR(g.seen, 1, 0);
    CHECK_OK(fsdp_tensor_fill_(rows, 3));
    CHECK_EQ(g.writes, 2);
    CHECK_NEAR(g.seen, 2, 0);
    CHECK_OK(fsdp_tensor_copy_(rows, other));
    CHECK_EQ(g.writes, 3);
    CHECK_NEAR(g.seen, 3, 0);
    CHECK_OK(fsdp_tensor_read(t, FSDP_F32, back));
    CHECK_OK(fsdp_tensor_copy_(other, rows));
    CHECK_OK(fsdp__tensor_copy(rows, other, true)); /* the engine's own: nobody is told */
    CHECK_EQ(g.writes, 3);

    g.refuse = true;
    CHECK_OK(fsdp_tensor_read(t, FSDP_F32, back));
    CHECK_ERROR(fsdp_tensor_write(t, FSDP_F32, values), FSDP_STATE, "storage of 60 bytes is in use");
    CHECK_STATUS(fsdp_tensor_fill_(t, 9), FSDP_STATE);
    CHECK_STATUS(fsdp_tensor_copy_(rows, other), FSDP_STATE);
    CHECK_OK(fsdp_tensor_read(t, FSDP_F32, values));
    CHECK_BYTES(values, back, sizeof back);
    fsdp_tensor_unref(rows);
}

/* Peers of a rank without elements may wait for it. */
CONTEXT_TEST(a_write_of_no_elements_is_told_too)
{
    fsdp_tensor *t = CHECK_PTR(fsdp_empty(test_device(context), FSDP_F32, FSDP_SHAPE(0, 5)));
    guarded g = {.writes = 0};

    t->storage->guard = (fsdp__storage_guard){.before_write = before_write, .arg = &g};
    CHECK_OK(fsdp_tensor_write(t, FSDP_F32, NULL));
    CHECK_OK(fsdp_tensor_fill_(t, 1));
    CHECK_OK(fsdp_tensor_copy_(t, t));
    CHECK_EQ(g.writes, 3);
}

TEST(any_allocation_may_fail)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context = NULL;
        fsdp__storage *storage = NULL;
        fsdp_status status = fsdp_context_create(NULL, &context);
        fsdp_device *device = status == FSDP_OK ? test_device(context) : NULL;

        if (status == FSDP_OK)
            status =
                device ? fsdp__storage_create(device, 1000, FSDP_MEMORY_GRADIENT, true, &storage) : fsdp_last_status();
        if (status == FSDP_OK) {
            fsdp__storage_drop(storage);
            status = fsdp__storage_restore(storage);
            CHECK((status == FSDP_OK) == (storage->data != NULL));
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__storage_unref(storage);
        if (context)
            CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
}
