/* Who drops the tensors that nobody unrefs. */
#include "tensor/tensor.h"

#include "support/test.h"

static fsdp_tensor *one(fsdp_context *context)
{
    return CHECK_PTR(fsdp_empty(test_device(context), FSDP_F32, FSDP_SHAPE(3)));
}

static int64_t live_tensors(fsdp_context *context)
{
    return test_live_bytes(context) / 64;
}

TEST(a_scope_drops_its_tensors_and_keeps_one)
{
    fsdp_context *context = test_context();
    fsdp_tensor *kept;

    CHECK_OK(fsdp_scope_begin(context));
    (void)one(context);
    CHECK_OK(fsdp_scope_begin(context));
    (void)one(context);
    kept = one(context);
    (void)one(context);
    CHECK_EQ(live_tensors(context), 4);
    fsdp_scope_end(context, kept);
    CHECK_EQ(live_tensors(context), 2);
    CHECK_EQ(fsdp_tensor_numel(kept), 3);
    fsdp_scope_end(context, NULL); /* the kept one had moved here */
    CHECK_EQ(live_tensors(context), 0);
    fsdp_context_free(context);
}

TEST(several_may_be_kept)
{
    fsdp_context *context = test_context();
    fsdp_tensor *outer, *kept[5] = {NULL};

    CHECK_OK(fsdp_scope_begin(context));
    outer = one(context);
    CHECK_OK(fsdp_scope_begin(context));
    (void)one(context);
    kept[0] = one(context);
    (void)one(context);
    kept[1] = one(context);
    kept[3] = kept[0]; /* beside one that is there already, none, and one of the scope outside */
    kept[4] = outer;
    fsdp_scope_end_many(context, kept, 5);
    CHECK_EQ(live_tensors(context), 3);
    CHECK_EQ(fsdp_tensor_numel(kept[0]) + fsdp_tensor_numel(kept[1]), 6);
    fsdp_scope_end_many(context, NULL, 0);
    CHECK_EQ(live_tensors(context), 0);
    fsdp_context_free(context);
}

TEST(a_kept_tensor_climbs_from_scope_to_scope)
{
    fsdp_context *context = test_context();
    fsdp_tensor *kept = NULL;

    for (int depth = 0; depth < 40; depth++) {
        CHECK_OK(fsdp_scope_begin(context));
        (void)one(context);
    }
    kept = one(context);
    for (int depth = 40; depth > 0; depth--) {
        CHECK_EQ(live_tensors(context), depth + 1);
        fsdp_scope_end(context, kept);
    }
    CHECK_EQ(live_tensors(context), 1); /* the context's own now */
    fsdp_context_free(context);
}

TEST(a_tensor_of_an_outer_scope_may_be_kept)
{
    fsdp_context *context = test_context();
    fsdp_tensor *outer, *owned = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(3), FSDP_MEMORY_GRADIENT, &owned));
    CHECK_OK(fsdp_scope_begin(context));
    outer = one(context);
    CHECK_OK(fsdp_scope_begin(context));
    (void)one(context);
    fsdp_scope_end(context, outer);
    CHECK_EQ(live_tensors(context), 2);
    CHECK_OK(fsdp_scope_begin(context));
    (void)one(context);
    fsdp_scope_end(context, owned);
    CHECK_EQ(live_tensors(context), 2);
    fsdp_scope_end(context, NULL);
    CHECK_EQ(live_tensors(context), 1);
    fsdp_tensor_unref(owned);
    CHECK_EQ(live_tensors(context), 0);
    fsdp_context_free(context);
}

TEST(a_reference_keeps_a_tensor_beyond_its_scope)
{
    fsdp_context *context = test_context();
    fsdp_tensor *t;

    CHECK_OK(fsdp_scope_begin(context));
    t = fsdp_tensor_ref(one(context));
    fsdp_scope_end(context, NULL);
    CHECK_EQ(live_tensors(context), 1);
    fsdp_tensor_unref(t);
    CHECK_EQ(live_tensors(context), 0);
    fsdp_context_free(context);
}

TEST(a_tensor_twice_in_a_scope_is_kept_once)
{
    fsdp_context *context = test_context();
    fsdp_tensor *t;

    CHECK_OK(fsdp_scope_begin(context));
    (void)one(context);
    t = one(context);
    CHECK(fsdp__scope_adopt(fsdp_tensor_ref(t)) == t);
    fsdp_scope_end(context, t);
    CHECK_EQ(live_tensors(context), 1);
    CHECK_EQ(t->refs, 1);
    fsdp_context_free(context);
}

TEST(without_a_scope_the_context_owns)
{
    fsdp_context *context = test_context();

    for (int i = 0; i < 100; i++)
        (void)one(context);
    CHECK_EQ(live_tensors(context), 100);
    fsdp_context_free(context); /* a leak would be logged and found by the sanitizer */
}

static void count_lines(void *arg, fsdp_log_level level, const char *line)
{
    (void)level, (void)line;
    ++*(int *)arg;
}

TEST(an_end_too_many_is_logged)
{
    fsdp_context *context = test_context();
    int lines = 0;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, count_lines, &lines);
    fsdp_scope_end(context, NULL);
    CHECK_EQ(lines, 1);
    CHECK_OK(fsdp_scope_begin(context));
    fsdp_scope_end(context, NULL);
    CHECK_EQ(lines, 1);
    fsdp_scope_end(context, NULL);
    CHECK_EQ(lines, 2);
    CHECK_STATUS(fsdp_scope_begin(NULL), FSDP_INVALID);
    CHECK_NULL(fsdp__scope_adopt(NULL));
    fsdp_context_free(context);
}

TEST(any_allocation_may_fail)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context = NULL;
        fsdp_status status = fsdp_context_create(NULL, &context);
        int open = 0;

        for (int i = 0; i < 20 && status == FSDP_OK; i++) {
            status = fsdp_scope_begin(context);
            open += status == FSDP_OK;
            if (status == FSDP_OK &&
                (!test_device(context) || !fsdp_empty(test_device(context), FSDP_F32, FSDP_SHAPE(3))))
                status = fsdp_last_status();
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        while (open-- > 0)
            fsdp_scope_end(context, NULL);
        if (context)
            CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
}
