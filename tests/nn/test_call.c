/* Calling: scopes, hooks, and what a failure says and undoes. */
#include "nn/module.h"

#include "autograd/tools.h"

typedef struct block {
    fsdp_module base;
    fsdp_module *inner;
    fsdp_tensor *weight;
} block;

/* (2,3) -> (2,3), with intermediates that must not outlive the call when nothing is recorded */
static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    block *b = (block *)self;

    return fsdp_call(b->inner, fsdp_add(inputs[0], fsdp_scale(inputs[count - 1], 2)));
}

static const fsdp_module_type block_type = {.name = "Block", .forward = block_forward};

static block *create(fsdp_context *context, int64_t in)
{
    block *b;

    CHECK_OK(fsdp_module_create(context, &block_type, sizeof *b, &b));
    b->inner = CHECK_PTR(fsdp_linear_create(context, test_device(context), in, 3, NULL));
    CHECK_OK(fsdp_module_add_child(&b->base, "inner", b->inner));
    return b;
}

static fsdp_context *begin(void)
{
    fsdp_context *context = test_context();

    CHECK_OK(fsdp_scope_begin(context));
    return context;
}

static void end(fsdp_context *context)
{
    fsdp_scope_end(context, NULL);
    CHECK_EQ(tensor_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(only_the_output_outlives_a_call)
{
    fsdp_context *context = begin();
    block *b = create(context, 3);
    fsdp_tensor *x = make_random(test_device(context), 1, 2, (const int64_t[]){2, 3}), *y;
    int64_t before = tensor_bytes(context);

    fsdp_no_grad_begin(context);
    y = CHECK_PTR(fsdp_call(&b->base, x));
    fsdp_no_grad_end(context);
    CHECK_EQ(tensor_bytes(context) - before, 64);
    CHECK_EQ(fsdp_tensor_size(y, 1), 3);
    y = CHECK_PTR(fsdp_call(&b->base, x, x));
    CHECK_OK(fsdp_backward(fsdp_sum(y)));
    CHECK_PTR(fsdp_tensor_grad(((fsdp_layer *)b->inner)->weight));
    fsdp_module_unref(&b->base);
    end(context);
}

TEST(a_failure_names_the_innermost_module_once)
{
    fsdp_context *context = begin();
    block *bad = create(context, 4);
    fsdp_module *pair[] = {fsdp_relu_create(context), &bad->base}, *model = fsdp_sequential_create(context, pair, 2);
    fsdp_tensor *x = make_random(test_device(context), 1, 2, (const int64_t[]){2, 3}), *y;

    for (int times = 0; times < 2; times++) {
        CHECK_NULL(fsdp_call(model, x));
        CHECK_STRING(fsdp_last_error(), "1.inner (Linear): input (2, 3) does not fit weight (3, 4)");
    }
    y = make_random(test_device(context), 1, 2, (const int64_t[]){2, 2});
    CHECK_NULL(fsdp_call(&bad->base, x, y));
    CHECK_STRING(fsdp_last_error(), "Block: add: second (2, 2) does not fit first (2, 3)");
    CHECK_NULL(fsdp_call(model, NULL));
    CHECK_CONTAINS(fsdp_last_error(), "Block: add"); /* as it was */
    fsdp_module_unref(model);

    model = fsdp_module_list_create(context);
    CHECK_NULL(fsdp_call(model, x));
    CHECK_CONTAINS(fsdp_last_error(), "ModuleList cannot be called");
    fsdp_module_unref(model);
    end(context);
}

/* ---- hooks ---- */

typedef struct spy {
    char name, *log;
    bool fail_before, fail_after, replace;
} spy;

static void note(const spy *s, char what)
{
    size_t used = strlen(s->log);

    s->log[used] = what;
    s->log[used + 1] = s->name;
    s->log[used + 2] = '\0';
}

static fsdp_status before(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    const spy *s = arg;

    (void)module, (void)count;
    note(s, '<');
    if (s->replace)
        inputs[0] = fsdp_scale(inputs[0], 0);
    return s->fail_before ? FSDP_FAIL(FSDP_COMM, "no way in") : FSDP_OK;
}

static fsdp_status after(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count, fsdp_tensor **output,
                         int output_count)
{
    const spy *s = arg;

    (void)module, (void)inputs;
    CHECK(count <= 1 && output_count == 1);
    note(s, '>');
    if (s->replace)
        *output = fsdp_add(*output, fsdp_full(fsdp_tensor_device(*output), FSDP_F32, 0, NULL, 7));
    return s->fail_after ? FSDP_FAIL(FSDP_COMM, "no way out") : FSDP_OK;
}

static void failed(void *arg, fsdp_module *module)
{
    (void)module;
    note(arg, '!');
}

static void freed(void *arg, fsdp_module *module)
{
    (void)module;
    note(arg, '~');
}

static void spy_on(fsdp_module *module, spy *s)
{
    const fsdp__module_hooks hooks = {
        .arg = s, .pre_forward = before, .post_forward = after, .failed = failed, .free_arg = freed};

    CHECK_OK(fsdp__module_add_hooks(module, &hooks));
}

TEST(hooks_run_in_order_and_may_replace_inputs_and_output)
{
    char log[64] = "";
    spy a = {.name = 'a', .log = log, .replace = true}, b = {.name = 'b', .log = log};
    fsdp_context *context = begin();
    fsdp_module *relu = fsdp_relu_create(context);
    fsdp_tensor *x = make_floats(test_device(context), 2, (const float[]){5, 5}), *inputs[] = {x};

    spy_on(relu, &a);
    spy_on(relu, &b);
    CHECK_NEAR(first_of(fsdp_module_call(relu, inputs, 1)), 7, 0);
    CHECK(inputs[0] == x); /* the caller's array is not touched */
    CHECK_STRING(log, "<a<b>a>b");
    fsdp_module_unref(relu);
    CHECK_STRING(log, "<a<b>a>b~b~a");
    end(context);
}

/* Notes the call, and gives the square of three times the input, or nothing. */
static fsdp_status in_place(void *arg, fsdp_module *module, void *call_arg, fsdp_tensor *const *inputs, int count,
                            fsdp_tensor **outputs, int output_count)
{
    const spy *s = arg;

    (void)module, (void)call_arg;
    CHECK(count == 1 && output_count == 1);
    note(s, '=');
    if (!s->fail_before)
        outputs[0] = fsdp_square(fsdp_scale(inputs[0], 3));
    return FSDP_OK;
}

static fsdp_tensor *doubled(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)self, (void)count;
    return fsdp_scale(inputs[0], 2);
}

TEST(a_hook_may_run_in_place_of_the_forward_but_not_of_methods)
{
    char log[64] = "";
    spy a = {.name = 'a', .log = log}, b = {.name = 'b', .log = log};
    const fsdp__module_hooks hooks = {.arg = &b, .forward = in_place};
    fsdp_context *context = begin();
    fsdp_module *relu = fsdp_relu_create(context);
    fsdp_tensor *x = make_floats(test_device(context), 1, (const float[]){-5}), *y;

    spy_on(relu, &a);
    CHECK_OK(fsdp__module_add_hooks(relu, &hooks));
    CHECK_NEAR(first_of(CHECK_PTR(fsdp_call(relu, x))), 225, 0);
    CHECK_STRING(log, "<a=b>a");
    CHECK_OK(fsdp_module_call_many(relu, NULL, &x, 1, &y, 1));
    CHECK_NEAR(first_of(y), 225, 0);
    CHECK_NEAR(first_of(CHECK_PTR(fsdp_module_call_method(relu, doubled, &x, 1))), -10, 0);
    CHECK_STRING(log, "<a=b>a<a=b>a<a>a");
    b.fail_before = true;
    fsdp_clear_error();
    CHECK_NULL(fsdp_call(relu, x));
    CHECK_CONTAINS(fsdp_last_error(), "the forward gave no output and no reason");
    fsdp_module_unref(relu);
    end(context);
}

TEST(a_hook_in_place_of_the_forward_is_recomputed)
{
    char log[64] = "";
    spy b = {.name = 'b', .log = log};
    const fsdp__module_hooks hooks = {.arg = &b, .forward = in_place};
    fsdp_context *context = begin();
    fsdp_module *relu = fsdp_relu_create(context);
    fsdp_tensor *x = make_floats(test_device(context), 1, (const float[]){-5});

    CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    CHECK_OK(fsdp__module_add_hooks(relu, &hooks));
    CHECK_OK(fsdp_module_set_recompute(relu, FSDP_RECOMPUTE_FULL));
    CHECK_OK(fsdp_backward(fsdp_sum(CHECK_PTR(fsdp_call(relu, x)))));
    CHECK_NEAR(first_of(fsdp_tensor_grad(x)), -90, 0);
    CHECK_STRING(log, "=b=b");
    fsdp_module_unref(relu);
    end(context);
}

TEST(a_failure_undoes_what_hooks_began)
{
    char log[64] = "";
    spy a = {.name = 'a', .log = log}, b = {.name = 'b', .log = log, .fail_before = true};
    fsdp_context *context = begin();
    fsdp_module *relu = fsdp_relu_create(context);
    fsdp_tensor *x = make_floats(test_device(context), 1, (const float[]){5});

    spy_on(relu, &a);
    spy_on(relu, &b);
    CHECK_NULL(fsdp_call(relu, x));
    CHECK_STRING(fsdp_last_error(), "ReLU: no way in");
    CHECK_STRING(log, "<a<b!a"); /* b never began */
    b.fail_before = false;
    b.fail_after = true;
    log[0] = '\0';
    CHECK_NULL(fsdp_call(relu, x));
    CHECK_STRING(fsdp_last_error(), "ReLU: no way out");
    CHECK_STRING(log, "<a<b>a>b!b");
    b.fail_after = false;
    log[0] = '\0';
    CHECK_NULL(fsdp_call(relu, fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(1))));
    CHECK_STRING(log, "<a<b!b!a");
    fsdp_module_unref(relu);
    end(context);
}

TEST(a_layer_finds_what_it_keeps_with_a_module_by_its_key)
{
    static const char key, other;
    char log[64] = "";
    spy a = {.name = 'a', .log = log}, b = {.name = 'b', .log = log};
    const fsdp__module_hooks mine = {.key = &key, .arg = &b, .free_arg = freed};
    fsdp_context *context = begin();
    fsdp_module *relu = fsdp_relu_create(context);

    CHECK_NULL(fsdp__module_hooks_arg(relu, &key));
    spy_on(relu, &a);
    CHECK_OK(fsdp__module_add_hooks(relu, &mine));
    CHECK(fsdp__module_hooks_arg(relu, &key) == &b);
    CHECK_NULL(fsdp__module_hooks_arg(relu, &other));
    fsdp__module_remove_hooks(relu, &b);
    CHECK_NULL(fsdp__module_hooks_arg(relu, &key));
    CHECK_STRING(log, "~b");
    fsdp_module_unref(relu);
    CHECK_STRING(log, "~b~a");
    end(context);
}

TEST(many_inputs_are_passed_on)
{
    fsdp_context *context = begin();
    block *b = create(context, 3);
    fsdp_tensor *x = make_random(test_device(context), 1, 2, (const int64_t[]){2, 3});
    fsdp_tensor *inputs[] = {x, x, x, x, x, x, x, x, x, x, x, x};

    CHECK_PTR(fsdp_module_call(&b->base, inputs, 12));
    CHECK_NULL(fsdp_module_call(&b->base, inputs, 0));
    CHECK_EQ(fsdp_last_status(), FSDP_UNSUPPORTED);
    fsdp_clear_error();
    CHECK_NULL(fsdp_module_call(&b->base, NULL, 1));
    CHECK_CONTAINS(fsdp_last_error(), "input 0 is missing");
    CHECK_NULL(fsdp_call(NULL, x));
    fsdp_module_unref(&b->base);
    end(context);
}

static fsdp_tensor *scaled_weight(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    return fsdp_scale(((const fsdp_layer *)self)->weight, count > 0 ? first_of(inputs[0]) : 2);
}

static fsdp_tensor *of_children(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    return fsdp_module_call_method(fsdp_module_child_at(self, 0, NULL), scaled_weight, inputs, count);
}

TEST(other_functions_than_the_forward_have_its_hooks)
{
    char log[64] = "";
    spy a = {.name = 'a', .log = log};
    fsdp_context *context = begin();
    fsdp_module *list = fsdp_module_list_create(context);
    fsdp_tensor *x = make_floats(test_device(context), 1, (const float[]){5});

    CHECK_OK(fsdp_module_list_append(list, fsdp_linear_create(context, test_device(context), 1, 1, NULL)));
    spy_on(fsdp_module_child_at(list, 0, NULL), &a);
    CHECK_OK(fsdp_tensor_fill_(fsdp_module_parameter(list, "0.weight"), 3));
    CHECK_NEAR(first_of(CHECK_PTR(fsdp_module_call_method(list, of_children, NULL, 0))), 6, 0);
    CHECK_NEAR(first_of(CHECK_PTR(fsdp_module_call_method(list, of_children, &x, 1))), 15, 0);
    CHECK_STRING(log, "<a>a<a>a");
    CHECK_NULL(fsdp_module_call_method(list, NULL, &x, 1));
    CHECK_EQ(fsdp_last_status(), FSDP_INVALID);
    CHECK_NULL(fsdp_module_call_method(NULL, of_children, &x, 1));
    CHECK_EQ(fsdp_last_status(), FSDP_INVALID);
    fsdp_module_unref(list);
    end(context);
}

/* ---- several outputs, and an argument ---- */

typedef struct wishes {
    bool give[4]; /* which outputs */
    float by;
    fsdp_status fail;
    bool quietly, clears;
} wishes;

/* x times w's number; x itself; that again; what an operation that cannot work makes. */
static fsdp_status split(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                         int output_count)
{
    const wishes *w = arg;
    fsdp_tensor *y = fsdp_scale(inputs[0], w ? w->by : 1);

    (void)self, (void)count;
    for (int i = 0; i < output_count; i++) {
        CHECK_NULL(outputs[i]);
        if (!w || w->give[i])
            outputs[i] = i == 3 ? fsdp_sum_dim(y, 1, false) : i == 1 ? inputs[0] : y;
    }
    if (w && w->clears)
        fsdp_clear_error();
    if (w && w->fail)
        return w->quietly ? w->fail : FSDP_FAIL(w->fail, "told to");
    return FSDP_OK;
}

static const fsdp_module_type split_type = {.name = "Split", .forward_many = split};

static fsdp_module *split_create(fsdp_context *context)
{
    fsdp_module *m;

    CHECK_OK(fsdp_module_create(context, &split_type, sizeof *m, &m));
    return m;
}

TEST(several_outputs_outlive_a_call_and_some_may_be_missing)
{
    fsdp_context *context = begin();
    fsdp_module *m = split_create(context);
    fsdp_tensor *x = make_floats(test_device(context), 2, (const float[]){5, 6}), *y[3] = {x, x, x};
    wishes w = {.give = {true, true, true}, .by = 3};
    int64_t before = tensor_bytes(context);

    CHECK_OK(fsdp_module_call_many(m, &w, &x, 1, y, 3));
    CHECK_EQ(tensor_bytes(context) - before, 64); /* one of them is new */
    CHECK(y[0] == y[2] && y[1] == x);
    CHECK_NEAR(first_of(y[0]), 15, 0);
    w.give[0] = false;
    CHECK_OK(fsdp_module_call_many(m, &w, &x, 1, y, 2));
    CHECK_NULL(y[0]);
    CHECK(y[1] == x);
    w.give[1] = w.give[2] = false;
    CHECK_OK(fsdp_module_call_many(m, &w, &x, 1, y, 3));
    CHECK(!y[0] && !y[1] && !y[2]);
    CHECK_NEAR(first_of(CHECK_PTR(fsdp_call(m, x))), 5, 0); /* one output, and no argument */
    CHECK_NEAR(first_of(CHECK_PTR(fsdp_call(m, x))), 5, 0);
    w.give[0] = true;
    CHECK_OK(fsdp_module_call_method_many(m, split, &w, &x, 1, y, 1));
    CHECK_NEAR(first_of(y[0]), 15, 0);
    fsdp_module_unref(m);
    end(context);
}

TEST(a_call_of_several_outputs_fails_with_none)
{
    fsdp_context *context = begin();
    fsdp_module *m = split_create(context), *relu = fsdp_relu_create(context);
    fsdp_tensor *x = make_floats(test_device(context), 2, (const float[]){5, 6}), *y[4];
    wishes w = {.give = {true, true, true, true}, .by = 3};

    CHECK_STATUS(fsdp_module_call_many(m, &w, &x, 1, y, 4), FSDP_INVALID);
    CHECK_CONTAINS(fsdp_last_error(), "Split: sum_dim: input (2,) has no dimension 1");
    CHECK(!y[0] && !y[1] && !y[2] && !y[3]);
    w.clears = true; /* it has dealt with that */
    CHECK_OK(fsdp_module_call_many(m, &w, &x, 1, y, 4));
    CHECK(y[0] && !y[3]);
    w.fail = FSDP_COMM;
    CHECK_STATUS(fsdp_module_call_many(m, &w, &x, 1, y, 3), FSDP_COMM);
    CHECK_STRING(fsdp_last_error(), "Split: told to");
    CHECK(!y[0] && !y[1] && !y[2]);
    w.quietly = true;
    CHECK_STATUS(fsdp_module_call_many(m, &w, &x, 1, y, 3), FSDP_COMM);
    CHECK_STRING(fsdp_last_error(), "Split: communication failed");
    CHECK_STATUS(fsdp_module_call_many(m, &w, &x, 1, y, 0), FSDP_INVALID);
    CHECK_STATUS(fsdp_module_call_many(m, &w, &x, 1, NULL, 1), FSDP_INVALID);
    y[0] = y[1] = y[2] = x; /* what is refused gives none, either */
    CHECK_STATUS(fsdp_module_call_many(NULL, &w, &x, 1, &y[0], 1), FSDP_INVALID);
    CHECK_STATUS(fsdp_module_call_many(m, &w, NULL, 0, &y[1], 1), FSDP_UNSUPPORTED);
    CHECK_STATUS(fsdp_module_call_method_many(m, NULL, &w, &x, 1, &y[2], 1), FSDP_INVALID);
    CHECK(!y[0] && !y[1] && !y[2]);
    y[0] = y[1] = x;
    CHECK_STATUS(fsdp_module_call_method_many(m, split, &w, &x, 1, y, 0), FSDP_INVALID);
    CHECK_STATUS(fsdp_module_call_many(relu, NULL, &x, 1, y, 2), FSDP_UNSUPPORTED);
    CHECK(!y[0] && !y[1]);
    CHECK_STATUS(fsdp_module_call_many(relu, &w, &x, 1, y, 1), FSDP_UNSUPPORTED);
    CHECK_CONTAINS(fsdp_last_error(), "ReLU only has a forward with tensors and one output");
    CHECK_OK(fsdp_module_call_many(relu, NULL, &x, 1, y, 1));
    fsdp_clear_error();
    x = NULL;
    CHECK_STATUS(fsdp_module_call_many(relu, NULL, &x, 1, y, 1), FSDP_INVALID);
    CHECK_CONTAINS(fsdp_last_error(), "ReLU: input 0 is missing");
    fsdp_module_unref(relu);
    fsdp_module_unref(m);
    end(context);
}

static fsdp_status nothing(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                           int output_count)
{
    (void)self, (void)arg, (void)inputs, (void)count, (void)outputs, (void)output_count;
    return FSDP_OK;
}

TEST(a_call_of_one_output_needs_it)
{
    static const fsdp_module_type type = {.name = "Nothing", .forward_many = nothing, .without_inputs = true};
    fsdp_context *context = begin();
    fsdp_tensor *y;
    fsdp_module *m;

    CHECK_OK(fsdp_module_create(context, &type, sizeof *m, &m));
    fsdp_clear_error();
    CHECK_NULL(fsdp_module_call(m, NULL, 0));
    CHECK_CONTAINS(fsdp_last_error(), "Nothing: the forward gave no output and no reason");
    CHECK_OK(fsdp_module_call_many(m, NULL, NULL, 0, &y, 1));
    CHECK_NULL(y);
    fsdp_module_unref(m);
    end(context);
}

/* Built on the meta device, given memory, given values: only then is there something to compute with. */
TEST(parameters_without_values_are_named_before_the_first_forward)
{
    fsdp_context *context = begin();
    fsdp_module *first = fsdp_linear_create(context, fsdp_meta(context), 3, 3, NULL);
    fsdp_module *pair[] = {first, fsdp_linear_create(context, fsdp_meta(context), 3, 2, NULL)};
    fsdp_module *model = fsdp_sequential_create(context, pair, 2);
    fsdp_tensor *x = make_random(test_device(context), 1, 2, (const int64_t[]){2, 3}), *shape;
    const float zeros[9] = {0};

    CHECK_NULL(fsdp_call(model, x));
    CHECK_STRING(fsdp_last_error(), "Sequential: still on the meta device: '0.weight', '0.bias', '1.weight' and 1 "
                                    "more: before the first forward call "
                                    "fsdp_module_materialize, then fsdp_module_initialize or fsdp_hub_load");
    CHECK_OK(
        fsdp_tensor_create(fsdp_meta(context), FSDP_F32, 2, (const int64_t[]){2, 3}, FSDP_MEMORY_ACTIVATION, &shape));
    CHECK_EQ(fsdp_tensor_size(CHECK_PTR(fsdp_call(model, shape)), 1), 2); /* shapes alone need no values */
    fsdp_tensor_unref(shape);
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_tensor_write(((fsdp_layer *)first)->weight, FSDP_F32, zeros));
    for (int times = 0; times < 2; times++) {
        CHECK_NULL(fsdp_call(model, x));
        CHECK_STRING(
            fsdp_last_error(),
            "Sequential: has memory but no values: '0.bias', '1.weight' and '1.bias': before the first forward call "
            "fsdp_module_initialize, or load or write it");
        CHECK_EQ(fsdp_last_status(), FSDP_STATE);
    }
    CHECK_OK(fsdp_tensor_fill_(((fsdp_layer *)first)->bias, 0));
    CHECK_NULL(fsdp_call(model, x));
    CHECK_CONTAINS(fsdp_last_error(), "has memory but no values: '1.weight' and '1.bias': before");
    CHECK_OK(fsdp_module_initialize(model, 1));
    CHECK_PTR(fsdp_call(model, x));
    fsdp_module_unref(model);
    end(context);
}
