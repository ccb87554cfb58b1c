/* Where leaf gradients come to lie: sources, targets, reservations, adoption. */
#include "autograd/toy.h"

/* Gives views of one flat buffer, as the sharding engine does. */
typedef struct flat {
    fsdp_tensor *buffer;
    int asked;
} flat;

static fsdp_status from_flat(void *arg, fsdp_tensor *leaf, fsdp_tensor **out)
{
    flat *f = arg;

    (void)leaf;
    f->asked++;
    return fsdp__view_narrow(f->buffer, 0, 2, 1, out);
}

static flat flat_create(fsdp_context *context)
{
    return (flat){CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(4), -7)), 0};
}

static double in_flat(const flat *f)
{
    float values[4];

    CHECK_OK(fsdp_tensor_read(f->buffer, FSDP_F32, values));
    CHECK_NEAR(values[1], -7, 0);
    CHECK_NEAR(values[3], -7, 0);
    return (double)values[2];
}

TEST(gradients_are_written_where_the_source_says)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1);
    flat f = flat_create(context);

    CHECK_OK(fsdp__set_grad_source(x, from_flat, &f));
    CHECK_OK(fsdp_backward(toy_target(x, 3)));
    CHECK_NEAR(in_flat(&f), 3, 0);
    CHECK_OK(fsdp_backward(toy_add(toy_scale(x, 4), toy_target(x, 5))));
    CHECK_NEAR(in_flat(&f), 12, 0);
    CHECK_EQ(f.asked, 1);
    CHECK_OK(fsdp_tensor_set_grad(x, NULL));
    CHECK_OK(fsdp_backward(toy_scale(x, 4))); /* a given gradient is copied there */
    CHECK_NEAR(in_flat(&f), 4, 0);
    CHECK_EQ(f.asked, 2);
    CHECK_OK(fsdp__set_grad_source(x, NULL, NULL));
    toy_end(context);
}

/* Of no kind, whatever a gradient was counted as before it was one. */
static void check_that_steps_leave_nothing(void)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1);
    fsdp_memory_stats before, after;

    fsdp_device_memory(test_device(context), &before);
    for (int step = 0; step < 3; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_backward(toy_scale(x, 2)));
        CHECK_OK(fsdp_tensor_set_grad(x, NULL));
        fsdp_scope_end(context, NULL);
        fsdp_device_memory(test_device(context), &after);
        for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
            CHECK_EQ(after.live_bytes[kind], before.live_bytes[kind]);
    }
    CHECK_EQ(after.peak_bytes[FSDP_MEMORY_GRADIENT], 64);
    toy_end(context);
}

TEST(a_given_gradient_is_adopted_only_when_nobody_else_sees_it)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *a = toy_leaf(context, 1), *b = toy_leaf(context, 1), *y, *gradient;
    const float three = 3;
    fsdp_memory_stats stats;

    gradient = make_floats(test_device(context), 1, &three);
    y = toy_add(a, b);
    CHECK_OK(fsdp_backward_from(&y, &gradient, 1, false));
    CHECK(fsdp_tensor_data(fsdp_tensor_grad(a)) != fsdp_tensor_data(fsdp_tensor_grad(b)));
    CHECK(fsdp_tensor_data(fsdp_tensor_grad(a)) != fsdp_tensor_data(gradient));
    CHECK_OK(fsdp_backward(toy_scale(a, 2)));
    CHECK_NEAR(toy_grad(a), 5, 0);
    CHECK_NEAR(toy_grad(b), 3, 0);
    CHECK_NEAR(first_of(gradient), 3, 0);

    CHECK_OK(fsdp_tensor_set_grad(a, NULL));
    CHECK_OK(fsdp_backward(toy_scale(a, 2))); /* adopted, and counted as what it has become */
    fsdp_device_memory(test_device(context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 2 * 64);
    CHECK_OK(fsdp_tensor_set_grad(a, NULL)); /* and goes as that */
    CHECK_OK(fsdp_tensor_set_grad(b, NULL));
    fsdp_device_memory(test_device(context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 0);
    toy_end(context);
    check_that_steps_leave_nothing();
}

/* As fused losses do: the gradient exists before the backward. */
static fsdp_status give_reserved(fsdp__node *node, fsdp_tensor *const *grads)
{
    (void)grads;
    return fsdp__node_give(node, 0, *(fsdp_tensor *const *)fsdp__node_state(node));
}

static void unref_reserved(void *state)
{
    fsdp_tensor_unref(*(fsdp_tensor *const *)state);
}

static const fsdp__op early_op = {.name = "early", .backward = give_reserved, .free_state = unref_reserved};

/* y = 3 x, its gradient made in the forward. */
static fsdp_tensor *early(fsdp_tensor *x)
{
    fsdp_tensor *y = CHECK_PTR(toy_scaled(x, 3)), *reserved = NULL;

    CHECK_OK(fsdp__reserve_grad(x, &reserved));
    CHECK_OK(fsdp_tensor_fill_(reserved, 3));
    CHECK_OK(fsdp__record(&early_op, &x, 1, &y, 1, NULL, 0, &reserved, sizeof reserved));
    return y;
}

TEST(a_reserved_gradient_becomes_the_gradient)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *y;
    flat f = flat_create(context);

    CHECK_OK(fsdp__set_grad_source(x, from_flat, &f));
    y = early(x);
    CHECK_NULL(fsdp_tensor_grad(x));
    CHECK_OK(fsdp_backward(y));
    CHECK_EQ(fsdp_tensor_data(fsdp_tensor_grad(x)) == (void *)((float *)fsdp_tensor_data(f.buffer) + 2), 1);
    CHECK_NEAR(in_flat(&f), 3, 0);
    CHECK_OK(fsdp_backward(early(x))); /* now a temporary, added */
    CHECK_NEAR(in_flat(&f), 6, 0);
    CHECK_EQ(f.asked, 1);
    toy_end(context);
}

TEST(two_reservations_and_other_gradients_add_up_in_any_order)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *first, *second;
    flat f = flat_create(context);

    CHECK_OK(fsdp__set_grad_source(x, from_flat, &f));
    first = early(x); /* its reservation is handed in last: the walk goes backwards */
    second = early(x);
    CHECK_OK(fsdp_backward(toy_add(toy_add(first, second), toy_target(x, 10))));
    CHECK_NEAR(toy_grad(x), 16, 0);
    CHECK_NEAR(in_flat(&f), 16, 0);
    CHECK_EQ(f.asked, 1);

    CHECK_OK(fsdp_tensor_set_grad(x, NULL));
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_PTR(early(x)); /* never walked: the reservation dies with its graph */
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_backward(toy_target(x, 5)));
    CHECK_NEAR(in_flat(&f), 5, 0);
    toy_end(context);
}

static fsdp_status wrong_source(void *arg, fsdp_tensor *leaf, fsdp_tensor **out)
{
    (void)arg;
    return fsdp_tensor_create(fsdp_tensor_device(leaf), FSDP_F32, FSDP_SHAPE(7), FSDP_MEMORY_GRADIENT, out);
}

TEST(a_source_that_gives_nonsense_fails_the_backward)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1);

    CHECK_OK(fsdp__set_grad_source(x, wrong_source, NULL));
    CHECK_ERROR(fsdp_backward(toy_target(x, 2)), FSDP_STATE, "does not fit the leaf");
    CHECK_ERROR(fsdp_backward(toy_scale(x, 2)), FSDP_STATE, "does not fit the leaf");
    CHECK_NULL(fsdp_tensor_grad(x));
    toy_end(context);
}

TEST(gradients_can_be_set_where_they_fit)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *two = fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2));
    fsdp_tensor *half = fsdp_zeros(test_device(context), FSDP_BF16, FSDP_SHAPE(1)), *y = toy_scale(x, 2);
    fsdp_tensor *good = fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(1));

    CHECK_ERROR(fsdp_tensor_set_grad(x, two), FSDP_INVALID, "cannot have a float32 gradient (2,)");
    CHECK_ERROR(fsdp_tensor_set_grad(x, half), FSDP_INVALID, "bfloat16");
    CHECK_ERROR(fsdp_tensor_set_grad(y, good), FSDP_STATE, "made by toy_scale");
    CHECK_ERROR(fsdp_tensor_set_grad(x, x), FSDP_INVALID, "a tensor cannot be its own gradient");
    CHECK_OK(fsdp_tensor_set_grad(good, x));
    CHECK_ERROR(fsdp_tensor_set_grad(x, good), FSDP_INVALID, "a tensor cannot be its own gradient");
    CHECK_OK(fsdp_tensor_set_grad(good, NULL));
    CHECK_OK(fsdp_tensor_set_grad(x, good));
    CHECK_OK(fsdp_backward(y));
    CHECK_NEAR(first_of(good), 2, 0);
    CHECK_ERROR(fsdp_tensor_set_requires_grad(y, false), FSDP_STATE, "fsdp_detach");
    CHECK_ERROR(fsdp_tensor_set_requires_grad(fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(1)), true),
                FSDP_INVALID, "int32");
    toy_end(context);
}
