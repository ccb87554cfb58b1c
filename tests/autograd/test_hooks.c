/* Hooks on gradients, boundaries, and a backward inside a backward. */
#include "autograd/toy.h"

typedef struct seen {
    int calls;
    double value;
    const fsdp_tensor *tensor;
    fsdp_status fail;
} seen;

static fsdp_status look(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    seen *s = arg;

    s->calls++;
    s->tensor = tensor;
    s->value = first_of(*grad);
    return s->fail == FSDP_OK ? FSDP_OK : FSDP_FAIL(s->fail, "the hook says no");
}

static fsdp_status times_ten(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)arg, (void)tensor;
    *grad = toy_scaled(*grad, 10);
    return *grad ? FSDP_OK : fsdp_last_status();
}

static fsdp_status wrong_shape(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)arg, (void)tensor;
    *grad = fsdp_zeros(fsdp_tensor_device(*grad), FSDP_F32, FSDP_SHAPE(3));
    return FSDP_OK;
}

static fsdp_status wrong_device(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)tensor;
    *grad = fsdp_zeros(arg, FSDP_F32, FSDP_SHAPE(1));
    return FSDP_OK;
}

TEST(a_hook_sees_the_whole_gradient_and_may_replace_it)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *h = toy_scale(x, 2);
    seen before = {0}, after = {0};

    CHECK_OK(fsdp_tensor_add_grad_hook(h, look, &before));
    CHECK_OK(fsdp_tensor_add_grad_hook(h, times_ten, NULL));
    CHECK_OK(fsdp_tensor_add_grad_hook(h, look, &after));
    CHECK_OK(fsdp_backward(toy_add(toy_scale(h, 3), h)));
    CHECK_EQ(before.calls, 1);
    CHECK_NEAR(before.value, 4, 0);
    CHECK(before.tensor == h);
    CHECK_NEAR(after.value, 40, 0);
    CHECK_NEAR(toy_grad(x), 80, 0);
    toy_end(context);
}

TEST(a_leaf_hook_sees_each_arrival)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *older = toy_scale(x, 3);
    seen s = {0};

    CHECK_OK(fsdp_tensor_add_grad_hook(x, look, &s));
    CHECK_OK(fsdp_tensor_add_grad_hook(x, times_ten, NULL));
    CHECK_OK(fsdp_backward(toy_add(older, toy_target(x, 2))));
    CHECK_EQ(s.calls, 2);
    CHECK_NEAR(s.value, 3, 0); /* the older operation's comes last */
    CHECK_NEAR(toy_grad(x), 50, 0);
    toy_end(context);
}

TEST(a_hook_outlives_its_tensor)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *h, *y;
    seen s = {.tensor = x};

    CHECK_OK(fsdp_scope_begin(context));
    h = toy_scale(x, 2);
    CHECK_OK(fsdp_tensor_add_grad_hook(h, look, &s));
    y = toy_add(h, x); /* saves nothing */
    fsdp_scope_end(context, y);
    CHECK_OK(fsdp_backward(y));
    CHECK_EQ(s.calls, 1);
    CHECK(s.tensor == NULL);
    toy_end(context);
}

TEST(a_bad_hook_fails_the_backward)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *h = toy_scale(x, 2);
    seen s = {.fail = FSDP_COMM};

    CHECK_OK(fsdp_tensor_add_grad_hook(h, look, &s));
    CHECK_ERROR(fsdp_backward(toy_scale(h, 2)), FSDP_COMM, "the hook says no");
    CHECK_NULL(fsdp_tensor_grad(x));
    h = toy_scale(x, 2);
    CHECK_OK(fsdp_tensor_add_grad_hook(h, wrong_shape, NULL));
    CHECK_ERROR(fsdp_backward(toy_scale(h, 2)), FSDP_INVALID,
                "replaced a float32 gradient (1,) with a float32 one (3,)");
    for (int leaf = 0; leaf < 2; leaf++) {
        h = leaf ? x : toy_scale(x, 2);
        CHECK_OK(fsdp_tensor_add_grad_hook(h, wrong_device, fsdp_meta(context)));
        CHECK_ERROR(fsdp_backward(toy_scale(h, 2)), FSDP_INVALID, "a gradient hook replaced a gradient on ");
        CHECK_CONTAINS(fsdp_last_error(), fsdp_device_name(fsdp_tensor_device(x)));
        CHECK_CONTAINS(fsdp_last_error(), " with one on meta");
        CHECK_NULL(fsdp_tensor_grad(x));
    }
    CHECK_ERROR(fsdp_tensor_add_grad_hook(fsdp_detach(x), look, &s), FSDP_INVALID, "does not require a gradient");
    toy_end(context);
}

/* ---- boundaries ---- */

typedef struct crossing {
    int calls;
    const fsdp_tensor *leaf;
    bool leaf_had_gradient;
    fsdp_status status;
} crossing;

static fsdp_status cross(void *arg)
{
    crossing *c = arg;

    c->calls++;
    c->leaf_had_gradient = fsdp_tensor_grad(c->leaf) != NULL;
    return c->status == FSDP_OK ? FSDP_OK : FSDP_FAIL(c->status, "not passable");
}

TEST(a_boundary_is_crossed_once_before_what_lies_behind)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *z = toy_leaf(context, 1), *plain = fsdp_detach(x);
    fsdp_tensor *tensors[] = {toy_scale(x, 2), plain, toy_scale(z, 3)};
    crossing c = {.leaf = x};
    bool recorded;

    CHECK_OK(fsdp__boundary(tensors, 3, &(fsdp__crossing){.callback = cross, .arg = &c}, &recorded));
    CHECK(recorded);
    CHECK(tensors[1] == plain);
    CHECK_OK(fsdp_backward(toy_add(toy_scale(tensors[0], 5), toy_scale(tensors[2], 7))));
    CHECK_EQ(c.calls, 1);
    CHECK(!c.leaf_had_gradient);
    CHECK_NEAR(toy_grad(x), 10, 0);
    CHECK_NEAR(toy_grad(z), 21, 0);
    CHECK_OK(fsdp__boundary(&plain, 1, &(fsdp__crossing){.callback = cross, .arg = &c}, &recorded));
    CHECK(!recorded);
    toy_end(context);
}

TEST(a_boundary_with_one_unused_output_is_crossed_too)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *tensors[] = {toy_scale(x, 2), toy_scale(x, 3)};
    crossing c = {.leaf = x, .status = FSDP_OK};
    bool recorded;

    CHECK_OK(fsdp__boundary(tensors, 2, &(fsdp__crossing){.callback = cross, .arg = &c}, &recorded));
    CHECK_OK(fsdp_backward(tensors[1]));
    CHECK_EQ(c.calls, 1);
    CHECK_NEAR(toy_grad(x), 3, 0);
    tensors[0] = toy_scale(x, 2);
    c.status = FSDP_COMM;
    CHECK_OK(fsdp__boundary(tensors, 1, &(fsdp__crossing){.callback = cross, .arg = &c}, &recorded));
    CHECK_ERROR(fsdp_backward(tensors[0]), FSDP_COMM, "not passable");
    toy_end(context);
}

/* ---- anchors ---- */

typedef struct passing {
    char order[16];
    int gradients;
} passing;

typedef struct passer {
    passing *passing;
    char name;
} passer;

static fsdp_status pass(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    passer *p = arg;
    size_t length = strlen(p->passing->order);

    (void)tensor;
    CHECK(length + 1 < sizeof p->passing->order);
    p->passing->order[length] = p->name;
    p->passing->gradients += *grad != NULL;
    return FSDP_OK;
}

static fsdp_status pass_boundary(void *arg)
{
    fsdp_tensor *none = NULL;

    return pass(arg, NULL, &none);
}

/* b is used by nobody; c's boundary lies behind b. */
TEST(what_an_anchor_has_by_its_side_is_passed_in_its_order)
{
    fsdp_context *context = toy_begin();
    passing passed = {{0}, 0};
    passer passers[] = {{&passed, 'a'}, {&passed, 'b'}, {&passed, 'c'}, {&passed, 'd'}};
    fsdp_tensor *x = toy_leaf(context, 1), *z = toy_leaf(context, 1), *c = toy_scale(z, 2), *a, *b, *d;
    fsdp__node *nodes[2];
    bool recorded;

    a = toy_scale(x, 2);
    CHECK_OK(fsdp__add_grad_hook(a, pass, &passers[0], NULL));
    CHECK_OK(fsdp__boundary(&c, 1, &(fsdp__crossing){.callback = pass_boundary, .arg = &passers[2]}, &recorded));
    b = toy_scale(c, 3);
    CHECK_OK(fsdp__add_grad_hook(b, pass, &passers[1], NULL));
    d = toy_scale(a, 5);
    CHECK_OK(fsdp__add_grad_hook(d, pass, &passers[3], NULL));
    nodes[0] = CHECK_PTR(fsdp__producer(a));
    nodes[1] = CHECK_PTR(fsdp__producer(b));
    CHECK_OK(fsdp__anchor(&d, nodes, 2));
    for (int i = 0; i < 2; i++)
        fsdp__node_unref(nodes[i]);
    CHECK_OK(fsdp_backward(d));
    CHECK_STRING(passed.order, "dbca");
    CHECK_EQ(passed.gradients, 2);
    CHECK_NEAR(toy_grad(x), 10, 0);
    CHECK_NULL(fsdp_tensor_grad(z));
    passed = (passing){{0}, 0};
    CHECK_OK(fsdp_backward(b)); /* not used up */
    CHECK_STRING(passed.order, "bc");
    CHECK_EQ(passed.gradients, 1);
    CHECK_NEAR(toy_grad(z), 6, 0);
    toy_end(context);
}

TEST(a_gradient_that_is_required_of_nothing_ends_there)
{
    fsdp_context *context = toy_begin();
    passing passed = {{0}, 0};
    passer passers[] = {{&passed, 'a'}, {&passed, 'b'}};
    fsdp_tensor *x = toy_leaf(context, 1), *a, *same;

    CHECK_OK(fsdp_tensor_set_requires_grad(x, false));
    same = a = toy_scale(x, 3);
    CHECK(!fsdp_tensor_requires_grad(a));
    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp__require_gradient(&a));
    fsdp_no_grad_end(context);
    CHECK(a == same);
    CHECK_OK(fsdp__require_gradient(&a));
    CHECK(fsdp_tensor_requires_grad(a) && !fsdp_tensor_requires_grad(same) && !fsdp__has_lasting_hooks(a));
    CHECK_OK(fsdp__add_grad_hook(a, pass, &passers[0], NULL));
    CHECK(fsdp__has_lasting_hooks(a));
    a = toy_scale(a, 2);
    CHECK_OK(fsdp__add_grad_hook(a, pass, &passers[1], NULL));
    CHECK_OK(fsdp_backward(a));
    CHECK_STRING(passed.order, "ba");
    CHECK_EQ(passed.gradients, 2);
    CHECK_NULL(fsdp_tensor_grad(x));
    toy_end(context);
}

TEST(an_anchor_leaves_out_what_was_walked_before)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *a = toy_scale(x, 2), *b = toy_scale(toy_scale(x, 3), 3);
    fsdp__node *node = CHECK_PTR(fsdp__producer(b));

    CHECK_OK(fsdp__anchor(&a, &node, 1));
    fsdp__node_unref(node);
    CHECK_OK(fsdp_backward(b));
    CHECK_OK(fsdp_backward(a));
    CHECK_NEAR(toy_grad(x), 11, 0);
    CHECK_NULL(fsdp__producer(x));
    toy_end(context);
}

/* ---- nesting ---- */

static fsdp_status inner_backward(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    fsdp_tensor **inner = arg; /* a root, and NULL or a node of the outer graph */

    (void)tensor, (void)grad;
    return fsdp_backward_from(inner, NULL, 1, false);
}

TEST(a_backward_may_run_inside_a_backward_on_another_graph)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *z = toy_leaf(context, 1), *h = toy_scale(x, 2), *other = toy_scale(z, 3);

    CHECK_OK(fsdp_tensor_add_grad_hook(h, inner_backward, &other));
    CHECK_OK(fsdp_backward(toy_scale(h, 5)));
    CHECK_NEAR(toy_grad(x), 10, 0);
    CHECK_NEAR(toy_grad(z), 3, 0);

    h = toy_scale(x, 2);
    other = toy_scale(h, 2);
    CHECK_OK(fsdp_tensor_add_grad_hook(h, inner_backward, &other));
    CHECK_ERROR(fsdp_backward(toy_scale(h, 5)), FSDP_STATE, "which the outer one is walking");
    CHECK(!fsdp__in_backward(context));
    CHECK_OK(fsdp_backward(toy_scale(x, 1)));
    toy_end(context);
}

TEST(bytes_that_were_dropped_and_not_restored_are_an_error)
{
    fsdp_context *context = toy_begin();
    fsdp_tensor *x = toy_leaf(context, 1), *y = toy_scale(x, 2);

    fsdp__storage_drop(x->storage);
    CHECK_ERROR(fsdp_backward(y), FSDP_STATE, "saved tensor 0 (1,) of ");
    CHECK_OK(fsdp__storage_restore(x->storage));
    CHECK_OK(fsdp_tensor_fill_(x, 1));
    CHECK_OK(fsdp_backward(toy_scale(x, 2)));
    toy_end(context);
}
