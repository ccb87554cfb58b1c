/* Recomputed functions: what is given up and comes back, hooks, what is refused. */
#include "autograd/toy.h"

enum {
    LENGTH = 64 /* of x: 256 bytes */
};

typedef struct toy {
    int calls, again, freed;     /* runs, those for a backward, calls of free_arg */
    int hooks, frees;            /* calls of a hook that the function adds, and of its free_arg */
    bool fails_again, goes_back; /* the second run fails; a backward inside */
    fsdp_tensor *inner;          /* what to go back through */
    fsdp_context *context;
} toy;

static fsdp_status count_hook(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)tensor, (void)grad;
    ((toy *)arg)->hooks++;
    return FSDP_OK;
}

static void count_free(void *arg)
{
    ((toy *)arg)->frees++;
}

static void toy_free(void *arg)
{
    ((toy *)arg)->freed++;
}

/* 2 * 3 * 5 x: three nodes that save something. */
static fsdp_tensor *thirty(void *arg, fsdp_tensor *const *inputs, int count)
{
    toy *t = arg;
    fsdp_tensor *y;

    (void)count;
    t->calls++;
    t->again += fsdp_recomputing(t->context);
    if (t->fails_again && fsdp_recomputing(t->context)) {
        FSDP_FAIL(FSDP_IO, "not again");
        return NULL;
    }
    if (t->goes_back && fsdp_backward(t->inner) != FSDP_OK)
        return NULL;
    y = toy_scale(toy_scale(inputs[0], 2), 3);
    if (y && fsdp_tensor_requires_grad(y))
        CHECK_OK(fsdp__add_grad_hook(y, count_hook, t, count_free));
    return toy_scale(y, 5);
}

static fsdp_tensor *recompute(toy *t, fsdp_tensor *x)
{
    const fsdp_recompute_options options = {.mode = FSDP_RECOMPUTE_FULL, .free_arg = toy_free};

    t->context = fsdp_device_context(fsdp_tensor_device(x));
    return fsdp_recompute(t->context, thirty, t, &x, 1, &options);
}

static fsdp_tensor *long_leaf(fsdp_context *context)
{
    return make_leaf(test_device(context), 1, 1, (const int64_t[]){LENGTH});
}

static fsdp_tensor *ones(fsdp_context *context)
{
    fsdp_tensor *tensor = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(LENGTH)));

    CHECK_OK(fsdp_tensor_fill_(tensor, 1));
    return tensor;
}

TEST(values_are_given_up_and_come_back)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = long_leaf(context), *y, *one = ones(context);
    int64_t before = tensor_bytes(context);
    toy t = {0};

    y = CHECK_PTR(recompute(&t, x));
    CHECK_EQ(tensor_bytes(context) - before, 256); /* y alone */
    CHECK(!fsdp_tensor_is_leaf(y));
    CHECK_OK(fsdp_backward_from(&y, &one, 1, true));
    CHECK_NEAR(toy_grad(x), 30, 0);
    CHECK_EQ(t.calls, 2);
    CHECK_EQ(t.again, 1);
    CHECK_OK(fsdp_backward_from(&y, &one, 1, false)); /* of a kept graph: what came back has stayed */
    CHECK_NEAR(toy_grad(x), 60, 0);
    CHECK_EQ(t.calls, 2);
    CHECK_EQ(t.hooks, 2);
    CHECK_EQ(t.freed, 1);
    CHECK_EQ(tensor_bytes(context) - before, 512); /* y and the gradient */
    CHECK_ERROR(fsdp_backward_from(&y, &one, 1, false), FSDP_STATE, "a second time");
    toy_end(context);
    CHECK_EQ(t.frees, 2); /* the second run's went at once */
}

TEST(a_graph_that_is_never_walked_frees_all)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = long_leaf(context);
    toy t = {0}, quiet = {0};

    CHECK_PTR(recompute(&t, x));
    fsdp_no_grad_begin(context);
    CHECK_PTR(recompute(&quiet, x));
    fsdp_no_grad_end(context);
    CHECK_EQ(quiet.calls, 1);
    CHECK_EQ(quiet.freed, 1);
    CHECK_EQ(t.freed, 0);
    toy_end(context);
    CHECK_EQ(t.calls, 1);
    CHECK_EQ(t.freed, 1);
}

TEST(an_input_written_to_is_an_error)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = long_leaf(context), *one = ones(context), *y;
    toy t = {0};

    y = CHECK_PTR(recompute(&t, x));
    CHECK_OK(fsdp_tensor_fill_(x, 3));
    CHECK_ERROR(fsdp_backward_from(&y, &one, 1, false), FSDP_STATE,
                "input 0 (64,) of a recomputed function was written to");
    CHECK_NULL(fsdp_tensor_grad(x));
    toy_end(context);
    CHECK_EQ(t.freed, 1);
}

TEST(a_failed_second_run_can_be_tried_again)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = long_leaf(context), *one = ones(context), *y;
    toy t = {.fails_again = true};

    y = CHECK_PTR(recompute(&t, x));
    CHECK_ERROR(fsdp_backward_from(&y, &one, 1, true), FSDP_IO, "recomputing: not again");
    CHECK(!fsdp_recomputing(context));
    CHECK(fsdp_grad_enabled(context));
    t.fails_again = false;
    CHECK_OK(fsdp_backward_from(&y, &one, 1, false));
    CHECK_NEAR(toy_grad(x), 30, 0);
    toy_end(context);
}

TEST(what_cannot_run_twice_is_refused)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *none = NULL;
    const fsdp_recompute_options options = {.mode = FSDP_RECOMPUTE_FULL, .free_arg = toy_free};
    toy t = {.goes_back = true, .inner = toy_scale(x, 7)};

    CHECK_NULL(recompute(&t, x));
    CHECK_EQ(fsdp_last_status(), FSDP_UNSUPPORTED);
    CHECK_CONTAINS(fsdp_last_error(), "inside a recomputed function");
    CHECK_EQ(t.freed, 1);
    CHECK_NULL(fsdp_recompute(context, thirty, &t, &none, 1, &options));
    CHECK_EQ(t.freed, 2);
    CHECK_NULL(fsdp_recompute(context, NULL, &t, &x, 1, &options));
    CHECK_CONTAINS(fsdp_last_error(), "a context and a function");
    CHECK_EQ(t.freed, 3);
    CHECK_OK(fsdp_backward(t.inner)); /* it was not walked */
    toy_end(context);
}

/* A recomputed function inside another runs again with it, once. */
static fsdp_tensor *around(void *arg, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return toy_scale(recompute(arg, inputs[0]), 7);
}

TEST(one_in_another_is_a_part_of_it)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = long_leaf(context), *one = ones(context), *y;
    toy t = {0};

    y = CHECK_PTR(fsdp_recompute(context, around, &t, &x, 1, NULL));
    CHECK_EQ(t.freed, 1);
    CHECK_OK(fsdp_backward_from(&y, &one, 1, false));
    CHECK_NEAR(toy_grad(x), 210, 0);
    CHECK_EQ(t.calls, 2);
    CHECK_EQ(t.hooks, 1);
    toy_end(context);
}

/* 30 x, 7 x, and none. */
static fsdp_status several(void *arg, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs, int output_count)
{
    CHECK_EQ(output_count, 3);
    CHECK(!outputs[0] && !outputs[1] && !outputs[2]);
    outputs[0] = thirty(arg, inputs, count);
    outputs[1] = toy_scale(inputs[0], 7);
    return outputs[0] && outputs[1] ? FSDP_OK : fsdp_last_status();
}

TEST(a_backward_may_come_from_any_of_several_outputs)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = long_leaf(context), *one = ones(context), *none = NULL, *y[3];
    const fsdp_recompute_options options = {.mode = FSDP_RECOMPUTE_FULL, .free_arg = toy_free};
    toy t = {.context = context};

    CHECK_OK(fsdp_recompute_many(context, several, &t, &x, 1, y, 3, &options));
    CHECK_NULL(y[2]);
    CHECK_OK(fsdp_backward_from(&y[1], &one, 1, false));
    CHECK_NEAR(toy_grad(x), 7, 0);
    CHECK_OK(fsdp_backward_from(&y[0], &one, 1, false));
    CHECK_NEAR(toy_grad(x), 37, 0);
    CHECK_EQ(t.calls, 2); /* one recomputation serves both */
    CHECK_EQ(t.freed, 1);
    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_recompute_many(context, several, &t, &x, 1, y, 3, &options));
    fsdp_no_grad_end(context);
    CHECK(y[0] && !fsdp_tensor_requires_grad(y[0]));
    fsdp_clear_error();
    CHECK_STATUS(fsdp_recompute_many(context, several, &t, &none, 1, y, 3, &options), FSDP_INVALID);
    CHECK(!y[0] && !y[1] && !y[2]);
    CHECK_STATUS(fsdp_recompute_many(context, NULL, &t, &x, 1, y, 3, &options), FSDP_INVALID);
    CHECK_ERROR(fsdp_recompute_many(context, several, &t, &x, 1, NULL, 3, &options), FSDP_INVALID, "room");
    CHECK_ERROR(fsdp_recompute_many(context, several, &t, &x, 1, y, 0, &options), FSDP_INVALID, "room");
    CHECK_ERROR(fsdp_recompute_many(context, several, &t, &x, 1, y, 3,
                                    &(fsdp_recompute_options){FSDP_RECOMPUTE_CHEAP + 1, toy_free}),
                FSDP_INVALID, "there is no mode 4");
    CHECK_EQ(t.freed, 7);
    toy_end(context);
}

/* The second run ends at the last operation that is needed, inside. */
static fsdp_tensor *scaled_inside(void *arg, fsdp_tensor *const *inputs, int count)
{
    fsdp_tensor *y;

    (void)count;
    if (fsdp_enable_grad_begin(arg) != FSDP_OK)
        return NULL;
    y = toy_scale(toy_scale(inputs[0], 2), 3);
    if (!y)
        return NULL;
    fsdp_enable_grad_end(arg);
    return y;
}

TEST(a_second_run_leaves_recording_as_it_was)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = long_leaf(context), *one = ones(context), *y;

    y = CHECK_PTR(fsdp_recompute(context, scaled_inside, context, &x, 1, NULL));
    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_enable_grad_begin(context));
    CHECK_OK(fsdp_backward_from(&y, &one, 1, false));
    CHECK_NEAR(toy_grad(x), 6, 0);
    fsdp_enable_grad_end(context);
    CHECK(!fsdp_grad_enabled(context));
    fsdp_no_grad_end(context);
    CHECK(fsdp_grad_enabled(context));
    toy_end(context);
}
