/* Hooks of the caller's: their order, what they replace, the gradients they see, how long they live. */
#include "autograd/tools.h"
#include "base/alloc.h"
#include "fsdp/nn.h"

typedef struct spy {
    char name, *log;
    double input_by, output_by, pre_by, post_by; /* what is handed on is multiplied; 0: left as it is */
    fsdp_status fail;                            /* of what `failing` says */
    char failing;
    bool nothing; /* replaces with nothing, there */
    int64_t remove;
    double seen_in, seen_out; /* gradients; -1: none */
} spy;

static void enter(const spy *s, char what)
{
    size_t used = strlen(s->log);

    s->log[used] = what;
    s->log[used + 1] = s->name;
    s->log[used + 2] = '\0';
}

static fsdp_status treat(const spy *s, char what, double by, fsdp_tensor **tensor)
{
    enter(s, what);
    if (s->failing == what && s->fail)
        return FSDP_FAIL(s->fail, "told to");
    if (s->failing == what && s->nothing)
        *tensor = NULL;
    else if (by != 0 && *tensor)
        *tensor = fsdp_scale(*tensor, by);
    return FSDP_OK;
}

static fsdp_status before(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    const spy *s = arg;

    CHECK(count == 1);
    if (s->remove)
        CHECK_OK(fsdp_module_remove_hooks(module, s->remove));
    return treat(s, '<', s->input_by, &inputs[0]);
}

static fsdp_status after(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                         int output_count)
{
    const spy *s = arg;

    (void)module;
    CHECK(count == 1 && inputs[0] && output_count >= 1);
    return treat(s, '>', s->output_by, &outputs[0]);
}

static fsdp_status pre_backward(void *arg, fsdp_module *module, fsdp_tensor **grads, int count)
{
    const spy *s = arg;

    (void)module;
    CHECK(count >= 1);
    return treat(s, '[', s->pre_by, &grads[0]);
}

static fsdp_status post_backward(void *arg, fsdp_module *module, fsdp_tensor **grads, int count,
                                 fsdp_tensor *const *output_grads, int output_count)
{
    spy *s = arg;

    (void)module;
    CHECK(count == 1 && output_count >= 1);
    s->seen_in = grads[0] ? first_of(grads[0]) : -1;
    s->seen_out = output_grads[output_count - 1] ? first_of(output_grads[output_count - 1]) : -1;
    return treat(s, ']', s->post_by, &grads[0]);
}

static void freed(void *arg)
{
    enter(arg, '~');
}

static int64_t spy_on(fsdp_module *module, spy *s)
{
    const fsdp_module_hooks hooks = {.arg = s,
                                     .pre_forward = before,
                                     .post_forward = after,
                                     .pre_backward = pre_backward,
                                     .post_backward = post_backward,
                                     .free_arg = freed};
    int64_t handle;

    CHECK_OK(fsdp_module_add_hooks(module, &hooks, &handle));
    return handle;
}

/* ---- 3 x, and x ---- */

static fsdp_status triple(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                          int output_count)
{
    (void)self, (void)arg, (void)count;
    outputs[0] = fsdp_scale(inputs[0], 3);
    if (output_count > 1)
        outputs[1] = inputs[0];
    return FSDP_OK;
}

static const fsdp_module_type triple_type = {.name = "Triple", .forward_many = triple};

typedef struct rig {
    fsdp_context *context;
    fsdp_module *module;
    fsdp_tensor *x;
    char log[64];
} rig;

static void begin(rig *r)
{
    *r = (rig){.context = test_context()};
    CHECK_OK(fsdp_scope_begin(r->context));
    CHECK_OK(fsdp_module_create(r->context, &triple_type, sizeof *r->module, &r->module));
    r->x = make_floats(test_device(r->context), 1, (const float[]){5});
    CHECK_OK(fsdp_tensor_set_requires_grad(r->x, true));
}

static void end(rig *r)
{
    fsdp_module_unref(r->module);
    fsdp_scope_end(r->context, NULL);
    CHECK_EQ(tensor_bytes(r->context), 0);
    fsdp_context_free(r->context);
}

/* ---- tests ---- */

TEST(they_run_in_order_until_they_are_removed)
{
    rig r;
    spy a = {.name = 'a', .log = r.log, .input_by = 2}, b = {.name = 'b', .log = r.log, .output_by = 10};
    int64_t first, second;

    begin(&r);
    first = spy_on(r.module, &a);
    second = spy_on(r.module, &b);
    CHECK_NEAR(first_of(CHECK_PTR(fsdp_call(r.module, r.x))), 300, 0);
    CHECK_STRING(r.log, "<a<b>a>b");
    CHECK_OK(fsdp_module_remove_hooks(r.module, first));
    CHECK_STATUS(fsdp_module_remove_hooks(r.module, first), FSDP_NOT_FOUND);
    CHECK_CONTAINS(fsdp_last_error(), "Triple has no hooks with the handle");
    CHECK_NEAR(first_of(CHECK_PTR(fsdp_call(r.module, r.x))), 150, 0);
    b.remove = second; /* by itself: it goes when the call is over */
    CHECK_NEAR(first_of(CHECK_PTR(fsdp_call(r.module, r.x))), 15, 0);
    CHECK_NEAR(first_of(CHECK_PTR(fsdp_call(r.module, r.x))), 15, 0);
    fsdp_scope_end(r.context, NULL); /* the graphs go, and what they held */
    CHECK_OK(fsdp_scope_begin(r.context));
    CHECK_EQ((int)strlen(r.log), 8 + 4 + 2 + 4);
    CHECK_STATUS(fsdp_module_remove_hooks(NULL, 1), FSDP_INVALID);
    CHECK_STATUS(fsdp_module_add_hooks(r.module, NULL, NULL), FSDP_INVALID);
    CHECK_STATUS(fsdp_module_add_hooks(NULL, &(fsdp_module_hooks){0}, NULL), FSDP_INVALID);
    CHECK_OK(fsdp_module_add_hooks(r.module, &(fsdp_module_hooks){0}, NULL));
    end(&r);
}

TEST(those_of_a_backward_see_gradients_and_replace_them)
{
    rig r;
    spy a = {.name = 'a', .log = r.log, .pre_by = 2}, b = {.name = 'b', .log = r.log, .post_by = 7};
    fsdp_tensor *y[2];

    begin(&r);
    (void)spy_on(r.module, &a);
    (void)spy_on(r.module, &b);
    y[0] = CHECK_PTR(fsdp_call(r.module, r.x));
    r.log[0] = '\0';
    CHECK_OK(fsdp_backward(fsdp_sum(y[0])));
    CHECK_STRING(r.log, "[a[b]a]b");
    CHECK_NEAR(a.seen_out, 2, 0); /* as the hooks before the backward left it */
    CHECK_NEAR(a.seen_in, 6, 0);
    CHECK_NEAR(first_of(fsdp_tensor_grad(r.x)), 42, 0);

    /* A backward from one of two outputs, then from the other. */
    CHECK_OK(fsdp_tensor_set_grad(r.x, NULL));
    CHECK_OK(fsdp_module_call_many(r.module, NULL, &r.x, 1, y, 2));
    y[0] = fsdp_sum(y[0]), y[1] = fsdp_sum(y[1]);
    CHECK_OK(fsdp_backward_from(&y[0], NULL, 1, true));
    CHECK_NEAR(a.seen_out, -1, 0);
    CHECK_NEAR(first_of(fsdp_tensor_grad(r.x)), 42, 0);
    CHECK_OK(fsdp_backward(y[1]));
    CHECK_NEAR(a.seen_out, 1, 0);
    CHECK_NEAR(a.seen_in, 1, 0);
    CHECK_NEAR(first_of(fsdp_tensor_grad(r.x)), 49, 0);
    end(&r);
}

static fsdp_tensor *weighted(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_mul(inputs[0], ((const fsdp_layer *)self)->weight);
}

TEST(where_no_input_has_a_gradient_those_of_the_outputs_are_seen)
{
    static const fsdp_module_type type = {.name = "Weighted", .forward = weighted};
    rig r;
    spy a = {.name = 'a', .log = r.log, .pre_by = 2};
    fsdp_layer *layer;
    fsdp_tensor *x;

    begin(&r);
    CHECK_OK(fsdp_module_create(r.context, &type, sizeof *layer, &layer));
    CHECK_OK(fsdp_module_add_parameter(&layer->base, "weight", &layer->weight, test_device(r.context), FSDP_F32, 1,
                                       (const int64_t[]){1}, (fsdp_init){.kind = FSDP_INIT_ONES}));
    (void)spy_on(&layer->base, &a);
    x = make_floats(test_device(r.context), 1, (const float[]){5});
    CHECK_OK(fsdp_backward(fsdp_sum(CHECK_PTR(fsdp_call(&layer->base, x)))));
    CHECK_STRING(r.log, "<a>a[a]a");
    CHECK_NEAR(a.seen_in, -1, 0);
    CHECK_NEAR(a.seen_out, 2, 0);
    CHECK_NEAR(first_of(fsdp_tensor_grad(layer->weight)), 10, 0);
    fsdp_no_grad_begin(r.context);
    CHECK_PTR(fsdp_call(&layer->base, x));
    fsdp_no_grad_end(r.context);
    fsdp_module_unref(&layer->base);
    CHECK_STRING(r.log, "<a>a[a]a<a>a~a");
    end(&r);
}

TEST(one_that_fails_fails_the_call_or_the_backward)
{
    static const char places[] = "<>[]";
    rig r;
    spy a = {.name = 'a', .log = r.log};

    begin(&r);
    (void)spy_on(r.module, &a);
    for (int i = 0; places[i]; i++)
        for (int nothing = 0; nothing < 2; nothing++) {
            fsdp_tensor *y;

            a.failing = places[i];
            a.fail = nothing ? FSDP_OK : FSDP_COMM;
            a.nothing = nothing;
            r.log[0] = '\0';
            fsdp_clear_error();
            y = fsdp_call(r.module, r.x);
            CHECK_EQ(y != NULL, i >= 2);
            if (y)
                CHECK_STATUS(fsdp_backward(fsdp_sum(y)), nothing ? FSDP_INVALID : FSDP_COMM);
            CHECK_CONTAINS(fsdp_last_error(), nothing ? "a hook of Triple replaced" : "Triple: told to");
            CHECK_EQ(fsdp_last_status(), nothing ? FSDP_INVALID : FSDP_COMM);
        }
    a.failing = '\0';
    r.log[0] = '\0';
    CHECK_OK(fsdp_backward(fsdp_sum(CHECK_PTR(fsdp_call(r.module, r.x)))));
    end(&r);
}

static fsdp_status move_gradient(void *arg, fsdp_module *module, fsdp_tensor **grads, int count)
{
    (void)module, (void)count;
    grads[0] = fsdp_zeros(arg, FSDP_F32, FSDP_SHAPE(1));
    return FSDP_OK;
}

static fsdp_status move_input_gradient(void *arg, fsdp_module *module, fsdp_tensor **grads, int count,
                                       fsdp_tensor *const *output_grads, int output_count)
{
    (void)output_grads, (void)output_count;
    return move_gradient(arg, module, grads, count);
}

TEST(gradients_stay_on_their_device)
{
    rig r;
    fsdp_module_hooks hooks[2] = {{.pre_backward = move_gradient}, {.post_backward = move_input_gradient}};

    begin(&r);
    for (int i = 0; i < 2; i++) {
        int64_t handle;

        hooks[i].arg = fsdp_meta(r.context);
        CHECK_OK(fsdp_module_add_hooks(r.module, &hooks[i], &handle));
        CHECK_ERROR(fsdp_backward(fsdp_sum(CHECK_PTR(fsdp_call(r.module, r.x)))), FSDP_INVALID,
                    "a gradient on meta does not fit input 0, which is on ");
        CHECK_CONTAINS(fsdp_last_error(), fsdp_device_name(test_device(r.context)));
        CHECK_OK(fsdp_module_remove_hooks(r.module, handle));
    }
    end(&r);
}

/* The result of an operation that fails: the second time that is known, and cleared. */
static fsdp_status replace_with_a_failure(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                                          fsdp_tensor **outputs, int output_count)
{
    (void)module, (void)inputs, (void)count, (void)output_count;
    outputs[0] = fsdp_reshape(outputs[0], 1, (const int64_t[]){7});
    if (*(const bool *)arg)
        fsdp_clear_error();
    return FSDP_OK;
}

TEST(one_of_several_outputs_is_not_lost_in_a_failure)
{
    rig r;
    bool clears = false;
    fsdp_tensor *y[2];

    begin(&r);
    CHECK_OK(fsdp_module_add_hooks(r.module,
                                   &(fsdp_module_hooks){.arg = &clears, .post_forward = replace_with_a_failure}, NULL));
    CHECK_ERROR(fsdp_module_call_many(r.module, NULL, &r.x, 1, y, 2), FSDP_INVALID, "reshape");
    CHECK(!y[0] && !y[1]);
    clears = true;
    CHECK_OK(fsdp_module_call_many(r.module, NULL, &r.x, 1, y, 2));
    CHECK(!y[0] && y[1]);
    end(&r);
}

TEST(what_they_need_lives_as_long_as_they_may_run)
{
    rig r;
    spy a = {.name = 'a', .log = r.log};
    fsdp_tensor *y;

    begin(&r);
    (void)spy_on(r.module, &a);
    y = fsdp_sum(CHECK_PTR(fsdp_call(r.module, r.x)));
    fsdp_module_unref(r.module); /* the graph holds it */
    CHECK_STRING(r.log, "<a>a");
    CHECK_OK(fsdp_backward(y));
    CHECK_STRING(r.log, "<a>a[a]a~a");
    r.module = NULL;
    end(&r);
}

TEST(removed_ones_run_in_no_backward)
{
    rig r;
    spy a = {.name = 'a', .log = r.log, .pre_by = 2};
    int64_t handle;
    fsdp_tensor *y;

    begin(&r);
    handle = spy_on(r.module, &a);
    y = fsdp_sum(CHECK_PTR(fsdp_call(r.module, r.x)));
    CHECK_OK(fsdp_module_remove_hooks(r.module, handle));
    CHECK_OK(fsdp_backward(y));
    CHECK_STRING(r.log, "<a>a~a");
    CHECK_NEAR(first_of(fsdp_tensor_grad(r.x)), 3, 0);
    end(&r);
}

static fsdp_status drop_module(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    (void)module, (void)inputs, (void)count;
    fsdp_module_unref(fsdp__take((fsdp_module **)arg));
    return FSDP_OK;
}

CONTEXT_TEST(one_may_drop_the_callers_reference_to_its_module)
{
    fsdp_device *device = test_device(context);
    fsdp_module *module = CHECK_PTR(fsdp_linear_create(context, device, 3, 2, NULL));

    CHECK_OK(fsdp_module_add_hooks(module, &(fsdp_module_hooks){.arg = &module, .pre_forward = drop_module}, NULL));
    CHECK_PTR(fsdp_call(module, fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(1, 3))));
    CHECK_NULL(module);
}

TEST(those_added_after_a_call_run_in_the_next_one)
{
    rig r;
    spy a = {.name = 'a', .log = r.log}, b = {.name = 'b', .log = r.log, .pre_by = 2};
    fsdp_tensor *y;

    begin(&r);
    (void)spy_on(r.module, &a);
    y = fsdp_sum(CHECK_PTR(fsdp_call(r.module, r.x)));
    (void)spy_on(r.module, &b);
    CHECK_OK(fsdp_backward(y));
    CHECK_STRING(r.log, "<a>a[a]a");
    CHECK_NEAR(first_of(fsdp_tensor_grad(r.x)), 3, 0);
    r.log[0] = '\0';
    CHECK_OK(fsdp_backward(fsdp_sum(CHECK_PTR(fsdp_call(r.module, r.x)))));
    CHECK_STRING(r.log, "<a<b>a>b[a[b]a]b");
    CHECK_NEAR(first_of(fsdp_tensor_grad(r.x)), 9, 0);
    end(&r);
}

static fsdp_tensor *inner(void *arg, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_gelu(fsdp_call(arg, fsdp_gelu(inputs[0])));
}

TEST(a_recomputed_function_around_runs_those_of_the_forward_again)
{
    rig r;
    spy a = {.name = 'a', .log = r.log, .input_by = 2};
    float plain, recomputed;

    begin(&r);
    (void)spy_on(r.module, &a);
    CHECK_OK(fsdp_backward(fsdp_sum(inner(r.module, &r.x, 1))));
    plain = (float)first_of(fsdp_tensor_grad(r.x));
    CHECK_OK(fsdp_tensor_set_grad(r.x, NULL));
    r.log[0] = '\0';
    CHECK_OK(fsdp_backward(fsdp_sum(CHECK_PTR(fsdp_recompute(r.context, inner, r.module, &r.x, 1, NULL)))));
    recomputed = (float)first_of(fsdp_tensor_grad(r.x));
    CHECK_STRING(r.log, "<a>a<a>a[a]a");
    CHECK_BYTES(&plain, &recomputed, sizeof plain);
    end(&r);
}
