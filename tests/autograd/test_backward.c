/* The walk: order, dependencies, what is freed when, what a failure leaves behind. */
#include "autograd/toy.h"

TEST(a_chain_multiplies)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 5);

    CHECK_OK(fsdp_backward(toy_scale(toy_scale(x, 3), 0.5f)));
    CHECK_NEAR(toy_grad(x), 1.5, 0);
    CHECK_OK(fsdp_backward(toy_scale(x, 2))); /* adds to what is there */
    CHECK_NEAR(toy_grad(x), 3.5, 0);
    toy_end(context);
}

/* x feeds three consumers of different depth: its producer must wait for all. */
TEST(gradients_of_all_consumers_are_summed_before_the_producer_runs)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *h = toy_scale(x, 2);
    fsdp_tensor *deep = toy_scale(toy_scale(toy_scale(h, 3), 5), 7);

    CHECK_OK(fsdp_backward(toy_add(toy_add(h, deep), toy_add(h, h))));
    CHECK_NEAR(toy_grad(x), 2 * (1 + 105 + 2), 0);
    toy_end(context);
}

TEST(outputs_without_a_gradient_are_passed_as_null)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *twice = NULL, *once = NULL;

    once = toy_split(x, &twice);
    CHECK_OK(fsdp_backward(toy_scale(twice, 3)));
    CHECK_NEAR(toy_grad(x), 6, 0);
    once = toy_split(x, &twice);
    CHECK_OK(fsdp_backward(toy_add(twice, toy_scale(once, 10))));
    CHECK_NEAR(toy_grad(x), 6 + 12, 0);
    toy_end(context);
}

/* add passes one gradient to both inputs: writing to the sum of one must not change the other. */
TEST(a_shared_gradient_is_not_written_to)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *a = toy_leaf(context, 1), *b = toy_leaf(context, 1), *x = toy_scale(a, 1), *y = toy_scale(b, 1);
    fsdp_tensor *early = toy_scale(x, 10); /* gives to x after the addition did */

    CHECK_OK(fsdp_backward(toy_add(early, toy_add(x, y))));
    CHECK_NEAR(toy_grad(a), 11, 0);
    CHECK_NEAR(toy_grad(b), 1, 0);
    CHECK_OK(fsdp_backward(toy_add(toy_add(a, b), toy_add(a, a)))); /* leaves themselves */
    CHECK_NEAR(toy_grad(a), 14, 0);
    CHECK_NEAR(toy_grad(b), 2, 0);
    toy_end(context);
}

TEST(several_roots_share_one_walk)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *h = toy_scale(x, 2), *y = toy_scale(h, 3);
    fsdp_tensor *roots[] = {h, y, x, y}, *gradients[] = {NULL, NULL, NULL, NULL};
    const float ten = 10;

    gradients[0] = make_floats(test_device(context), 1, &ten);
    CHECK_OK(fsdp_backward_from(roots, gradients, 4, false));
    CHECK_NEAR(toy_grad(x), 20 + 6 + 1 + 6, 0);
    CHECK_NEAR(first_of(gradients[0]), 10, 0); /* the caller's gradient is not written to */
    toy_end(context);
}

TEST(a_graph_runs_once_unless_it_is_kept)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *y = toy_scale(toy_scale(x, 2), 3);

    CHECK_OK(fsdp_backward_from(&y, NULL, 1, true));
    CHECK_OK(fsdp_backward_from(&y, NULL, 1, false));
    CHECK_NEAR(toy_grad(x), 12, 0);
    CHECK_ERROR(fsdp_backward(y), FSDP_STATE, "second time");
    toy_end(context);
}

/* Neither the walk nor freeing recurses. */
TEST(chains_of_any_length_work)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *h = x;

    for (int times = 0; times < 2; times++) { /* walked, and only freed */
        h = x;
        for (int i = 0; i < 100000; i++) {
            CHECK_OK(fsdp_scope_begin(context));
            h = toy_scale(h, i % 2 ? 0.5f : 2.0f);
            fsdp_scope_end(context, h);
        }
        if (times == 0)
            CHECK_OK(fsdp_backward(h));
    }
    CHECK_NEAR(toy_grad(x), 1, 0);
    toy_end(context);
}

TEST(what_was_saved_is_let_go_on_the_way)
{
    enum {
        NUMEL = 1024,
        STEPS = 6
    };
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = make_leaf(test_device(context), 1, 1, (const int64_t[]){NUMEL}), *h = x, *gradient;
    int64_t before = tensor_bytes(context);
    fsdp_memory_stats stats;

    CHECK_OK(fsdp_scope_begin(context));
    for (int i = 0; i < STEPS; i++)
        h = toy_scale(h, 1.5f);
    gradient = fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(NUMEL), 1);
    fsdp_tensor_ref(h);
    fsdp_tensor_ref(gradient);
    fsdp_scope_end(context, NULL);
    CHECK_EQ(tensor_bytes(context) - before, (STEPS + 1) * NUMEL * 4); /* inner ones are held by the tape alone */
    fsdp_device_reset_peak(test_device(context));
    CHECK_OK(fsdp_backward_from(&h, &gradient, 1, false));
    fsdp_device_memory(test_device(context), &stats);
    /* The last gradients exist beside fewer and fewer saved tensors: never more than two above the start. */
    CHECK(stats.peak_total_bytes - stats.live_bytes[FSDP_MEMORY_WORKSPACE] <=
          (size_t)(before + (STEPS + 3) * NUMEL * 4));
    /* What is left: the input, the output, the gradient given and the leaf's gradient. */
    CHECK_EQ(tensor_bytes(context) - before, 3 * NUMEL * 4);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], NUMEL * 4);
    fsdp_tensor_unref(h);
    fsdp_tensor_unref(gradient);
    toy_end(context);
}

typedef struct told {
    int calls;
    fsdp_status walked;
} told;

static fsdp_status tell(void *arg, fsdp_status walked)
{
    told *t = arg;

    t->calls++;
    t->walked = walked;
    return FSDP_OK;
}

static fsdp_status queue(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)grad;
    return fsdp_backward_queue_callback(fsdp_device_context(fsdp_tensor_device(tensor)), tell, arg);
}

TEST(a_failed_backward_ends_cleanly_and_the_next_one_works)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *late = toy_leaf(context, 1), *y;
    told t = {0, FSDP_OK};

    y = toy_add(toy_scale(toy_target(toy_scale(x, 2), 13), 3), late);
    CHECK_OK(fsdp_tensor_add_grad_hook(y, queue, &t));
    CHECK_ERROR(fsdp_backward(y), FSDP_IO, "backward of toy_target: thirteen");
    CHECK_EQ(t.calls, 1);
    CHECK_EQ(t.walked, FSDP_IO);
    CHECK_NULL(fsdp_tensor_grad(x));
    CHECK_NEAR(toy_grad(late), 1, 0); /* came before */
    CHECK(!fsdp__in_backward(context));
    CHECK(fsdp_grad_enabled(context));
    CHECK_ERROR(fsdp_backward(y), FSDP_STATE, "second time");

    CHECK_ERROR(fsdp_backward(toy_target(x, 13)), FSDP_IO, "thirteen"); /* half a gradient is none */
    CHECK_NULL(fsdp_tensor_grad(x));
    CHECK_OK(fsdp_backward(toy_target(x, 4)));
    CHECK_NEAR(toy_grad(x), 4, 0);
    toy_end(context);
}

TEST(callbacks_run_once_at_the_end)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *h = toy_scale(x, 2);
    told t = {0, FSDP_IO};

    CHECK_ERROR(fsdp_backward_queue_callback(context, tell, &t), FSDP_STATE, "no backward");
    CHECK_OK(fsdp_tensor_add_grad_hook(h, queue, &t));
    CHECK_OK(fsdp_backward(toy_scale(h, 2)));
    CHECK_EQ(t.calls, 1);
    CHECK_EQ(t.walked, FSDP_OK);
    CHECK_OK(fsdp_backward(toy_scale(x, 2)));
    CHECK_EQ(t.calls, 1);
    toy_end(context);
}

TEST(nothing_is_recorded_without_need)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *y;

    fsdp_no_grad_begin(context);
    fsdp_no_grad_begin(context);
    fsdp_no_grad_end(context);
    y = toy_scale(x, 2);
    CHECK(!fsdp_tensor_requires_grad(y) && fsdp_tensor_is_leaf(y));
    fsdp_no_grad_end(context);
    CHECK_ERROR(fsdp_backward(y), FSDP_INVALID, "does not require a gradient");
    y = toy_scale(x, 2);
    CHECK(fsdp_tensor_requires_grad(y) && !fsdp_tensor_is_leaf(y));
    y = fsdp_detach(y);
    CHECK(!fsdp_tensor_requires_grad(y) && fsdp_tensor_is_leaf(y));
    toy_end(context);
}

/* In any order of nesting, and in a hook of a backward, in which nothing is recorded. */
static fsdp_status walk_another(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    fsdp_tensor *x = arg;

    (void)tensor, (void)grad;
    CHECK(!fsdp_grad_enabled(fsdp_device_context(fsdp_tensor_device(x))));
    CHECK_OK(fsdp_enable_grad_begin(fsdp_device_context(fsdp_tensor_device(x))));
    CHECK_OK(fsdp_backward(toy_scale(x, 3)));
    fsdp_enable_grad_end(fsdp_device_context(fsdp_tensor_device(x)));
    CHECK(!fsdp_grad_enabled(fsdp_device_context(fsdp_tensor_device(x))));
    return FSDP_OK;
}

TEST(recording_may_be_switched_on_inside)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *other = toy_leaf(context, 1), *y;

    CHECK_OK(fsdp_enable_grad_begin(context)); /* it is on */
    fsdp_no_grad_begin(context);
    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_enable_grad_begin(context));
    CHECK(fsdp_tensor_requires_grad(toy_scale(x, 2)));
    fsdp_no_grad_end(context); /* of nobody */
    CHECK(fsdp_grad_enabled(context));
    fsdp_no_grad_begin(context);
    CHECK(!fsdp_grad_enabled(context));
    CHECK_OK(fsdp_enable_grad_begin(context));
    CHECK(fsdp_grad_enabled(context));
    fsdp_enable_grad_end(context);
    CHECK(!fsdp_grad_enabled(context));
    fsdp_no_grad_end(context);
    CHECK(fsdp_grad_enabled(context));
    fsdp_enable_grad_end(context);
    CHECK(!fsdp_grad_enabled(context));
    fsdp_no_grad_end(context);
    CHECK(!fsdp_grad_enabled(context));
    fsdp_no_grad_end(context);
    CHECK(fsdp_grad_enabled(context));
    fsdp_enable_grad_end(context);
    fsdp_enable_grad_end(context);
    CHECK(fsdp_grad_enabled(context));
    CHECK_STATUS(fsdp_enable_grad_begin(NULL), FSDP_INVALID);
    y = toy_scale(x, 2);
    CHECK_OK(fsdp_tensor_add_grad_hook(y, walk_another, other));
    CHECK_OK(fsdp_backward(y));
    CHECK_NEAR(first_of(fsdp_tensor_grad(other)), 3, 0);
    toy_end(context);
}

static fsdp_status fail_inside(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)tensor, (void)grad;
    CHECK_OK(fsdp_enable_grad_begin(arg));
    return FSDP_FAIL(FSDP_IO, "before the end");
}

TEST(a_hook_that_fails_leaves_recording_as_it_was)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *y = toy_scale(toy_leaf(context, 1), 2);

    CHECK_OK(fsdp_tensor_add_grad_hook(y, fail_inside, context));
    CHECK_OK(fsdp_enable_grad_begin(context));
    CHECK_STATUS(fsdp_backward(y), FSDP_IO);
    CHECK(fsdp_grad_enabled(context));
    fsdp_enable_grad_end(context); /* its own, and not the hook's */
    CHECK(fsdp_grad_enabled(context));
    toy_end(context);
}

TEST(roots_are_checked)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = make_leaf(test_device(context), 1, 2, (const int64_t[]){2, 3}), *y = toy_scale(x, 2), *two;

    CHECK_ERROR(fsdp_backward(y), FSDP_INVALID, "(2, 3) has more than one element");
    two = fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(3, 2));
    CHECK_ERROR(fsdp_backward_from(&y, &two, 1, false), FSDP_INVALID, "(3, 2) does not fit the root");
    two = fsdp_zeros(fsdp_meta(context), FSDP_F32, FSDP_SHAPE(2, 3));
    CHECK_ERROR(fsdp_backward_from(&y, &two, 1, false), FSDP_INVALID,
                "backward: a gradient on meta does not fit the root, which is on ");
    CHECK_CONTAINS(fsdp_last_error(), fsdp_device_name(test_device(context)));
    CHECK_ERROR(fsdp_backward_from(NULL, NULL, 0, false), FSDP_INVALID, "no roots");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_backward(NULL), FSDP_INVALID, "no loss");
    toy_end(context);
}

TEST(every_failing_allocation_is_survived)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1);

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp_scope_begin(context);
        bool begun = status == FSDP_OK;

        if (begun) {
            fsdp_tensor *h = toy_scale(x, 2), *y = toy_add(toy_target(h, 3), toy_add(h, x));

            status = y ? fsdp_backward(y) : fsdp_last_status();
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        if (begun)
            fsdp_scope_end(context, NULL);
        if (status == FSDP_OK) {
            fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0); /* reading takes memory too */
            CHECK_NEAR(toy_grad(x), 9, 0);
        }
        CHECK(!fsdp__in_backward(context));
        CHECK_OK(fsdp_tensor_set_grad(x, NULL));
        CHECK_EQ(tensor_bytes(context), 64);
    }
    toy_end(context);
}
