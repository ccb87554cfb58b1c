/* Recomputed modules: the same losses and gradients, to the bit, as without, whatever is done with them; the
 * memory that is left; and errors for what changed in between. */
#include "nn/module.h"

#include "autograd/tools.h"
#include "base/compiler.h"

enum {
    BATCH = 2,
    TIME = 5,
    DIM = 8,
    HEADS = 2,
    FFN = 24,
    BLOCKS = 3,
    STEPS = 2,
    MOST = 64 /* parameters, losses */
};

/* ---- a net of transformer blocks with dropout ---- */

typedef struct block {
    fsdp_module base;
    fsdp_module *norm, *qkv, *proj, *up, *down, *dropout;
    bool another_way; /* than the forward went */
    int runs, ends;   /* of its forward */
} block;

static fsdp_tensor *block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    block *b = (block *)self;
    const fsdp_attention_options causal = {.causal = true};
    fsdp_tensor *a = fsdp_attention_packed(fsdp_call(b->qkv, fsdp_call(b->norm, inputs[0])), HEADS, HEADS, &causal);
    fsdp_tensor *x = fsdp_add(inputs[0], fsdp_call(b->dropout, fsdp_call(b->proj, a)));
    fsdp_tensor *h = fsdp_call(b->up, b->another_way ? fsdp_call(b->norm, x) : x);

    (void)count;
    b->runs++;
    x = fsdp_add(x, fsdp_call(b->dropout, fsdp_call(b->down, fsdp_gelu(h))));
    b->ends += x != NULL;
    return x;
}

static const fsdp_module_type block_type = {.name = "Block", .forward = block_forward};

static fsdp_module *child(fsdp_module *parent, const char *name, fsdp_module *made)
{
    CHECK_OK(fsdp_module_add_child(parent, name, CHECK_PTR(made)));
    return made;
}

static fsdp_module *block_create(fsdp_context *context, int64_t i)
{
    fsdp_device *device = test_device(context);
    block *b;

    CHECK_OK(fsdp_module_create(context, &block_type, sizeof *b, &b));
    b->norm = child(&b->base, "norm", fsdp_layernorm_create(context, device, DIM, 1e-5f));
    b->qkv = child(&b->base, "qkv", fsdp_linear_create(context, device, DIM, 3 * DIM, NULL));
    b->proj = child(&b->base, "proj", fsdp_linear_create(context, device, DIM, DIM, NULL));
    b->up = child(&b->base, "up", fsdp_linear_create(context, device, DIM, FFN, NULL));
    b->down = child(&b->base, "down", fsdp_linear_create(context, device, FFN, DIM, NULL));
    b->dropout = child(&b->base, "dropout", fsdp_dropout_create(context, 0.3f, (uint64_t)i));
    return &b->base;
}

typedef struct net {
    fsdp_module base;
    fsdp_module *blocks[BLOCKS], *dropout;
    bool twice, drops_first; /* the blocks are called twice; the output of the first is not used */
} net;

static fsdp_tensor *net_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net *n = (net *)self;
    fsdp_tensor *x = fsdp_call(n->dropout, inputs[0]);

    (void)count;
    for (int i = 0; i < (n->twice ? 2 : 1) * BLOCKS; i++) {
        fsdp_tensor *y = fsdp_call(n->blocks[i % BLOCKS], x);

        x = n->drops_first && i == 0 && y ? x : y;
    }
    return x;
}

static const fsdp_module_type net_type = {.name = "Net", .forward = net_forward};

static net *net_create(fsdp_context *context, fsdp_recompute_mode mode)
{
    const char *names[] = {"a", "b", "c"};
    net *n;

    CHECK_OK(fsdp_module_create(context, &net_type, sizeof *n, &n));
    for (int i = 0; i < BLOCKS; i++) {
        n->blocks[i] = child(&n->base, names[i], block_create(context, i));
        CHECK_OK(fsdp_module_set_recompute(n->blocks[i], mode));
        CHECK_EQ(fsdp_module_recompute(n->blocks[i]), mode);
    }
    n->dropout = child(&n->base, "dropout", fsdp_dropout_create(context, 0.1f, 99));
    CHECK_OK(fsdp_module_initialize(&n->base, 1));
    return n;
}

static fsdp_tensor *forward(net *n, uint64_t key, bool wanted)
{
    fsdp_device *device = test_device(n->base.context);
    fsdp_tensor *x = make_random(device, key, FSDP_SHAPE(BATCH, TIME, DIM));

    CHECK_OK(fsdp_tensor_set_requires_grad(x, wanted));
    return CHECK_PTR(fsdp_mean(CHECK_PTR(fsdp_call(&n->base, x))));
}

/* ---- what is done with it ---- */

typedef struct trace {
    int count;
    uint64_t hash[MOST * STEPS];
} trace;

static void note(trace *t, const fsdp_tensor *tensor)
{
    int64_t numel = tensor ? fsdp_tensor_numel(tensor) : 0;
    float *values = calloc((size_t)numel + 1, sizeof *values);
    uint64_t hash = 14695981039346656037ull;

    if (tensor)
        CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    for (size_t i = 0; i < (size_t)numel * sizeof *values; i++)
        hash = (hash ^ ((const unsigned char *)values)[i]) * 1099511628211ull;
    free(values);
    CHECK(t->count < (int)FSDP__COUNT_OF(t->hash));
    t->hash[t->count++] = hash;
}

static void note_gradients(trace *t, net *n)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(&n->base, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        note(t, fsdp_tensor_grad(parameters.items[i].tensor));
    fsdp_parameters_release(&parameters);
}

static void backward(trace *t, fsdp_tensor *loss)
{
    note(t, loss);
    CHECK_OK(fsdp_backward(loss));
}

static void plain(net *n, trace *t, int step)
{
    backward(t, forward(n, (uint64_t)step, false));
}

static void wanted_input(net *n, trace *t, int step)
{
    backward(t, forward(n, (uint64_t)step, true));
}

static void two_forwards(net *n, trace *t, int step)
{
    fsdp_tensor *first = forward(n, (uint64_t)step, true), *second = forward(n, (uint64_t)step + 7, true);

    backward(t, CHECK_PTR(fsdp_add(first, second)));
}

static void two_backwards(net *n, trace *t, int step)
{
    fsdp_tensor *first = forward(n, (uint64_t)step, true), *second = forward(n, (uint64_t)step + 7, true);

    backward(t, first);
    backward(t, second);
}

static void kept_graph(net *n, trace *t, int step)
{
    fsdp_tensor *loss = forward(n, (uint64_t)step, true);

    CHECK_OK(fsdp_backward_from(&loss, NULL, 1, true));
    note_gradients(t, n);
    CHECK_OK(fsdp_backward_from(&loss, NULL, 1, true));
    backward(t, loss);
}

static void evaluated_between(net *n, trace *t, int step)
{
    fsdp_tensor *loss = forward(n, (uint64_t)step, true);

    fsdp_no_grad_begin(n->base.context);
    note(t, forward(n, (uint64_t)step + 3, false));
    fsdp_no_grad_end(n->base.context);
    backward(t, loss);
}

/* It holds from the next call on. */
static void set_between(net *n, trace *t, int step)
{
    fsdp_tensor *loss = forward(n, (uint64_t)step, true);
    fsdp_recompute_mode mode = fsdp_module_recompute(n->blocks[0]);

    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_module_set_recompute(n->blocks[i], mode ? FSDP_RECOMPUTE_NONE : FSDP_RECOMPUTE_FULL));
    backward(t, loss);
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_module_set_recompute(n->blocks[i], mode));
}

static void in_evaluation(net *n, trace *t, int step)
{
    fsdp_module_train(&n->base, step > 0);
    backward(t, forward(n, (uint64_t)step, true));
}

static void called_twice(net *n, trace *t, int step)
{
    n->twice = true;
    backward(t, forward(n, (uint64_t)step, false));
}

static void unused_output(net *n, trace *t, int step)
{
    n->drops_first = true;
    backward(t, forward(n, (uint64_t)step, true));
}

static void partly_frozen(net *n, trace *t, int step)
{
    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(&n->base, "a.up.weight"), step > 0));
    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(&n->base, "b.qkv.weight"), false));
    CHECK_OK(fsdp_module_set_requires_grad(n->blocks[2], step > 0));
    backward(t, forward(n, (uint64_t)step, step == 0));
}

static void frozen_below(net *n, trace *t, int step)
{
    CHECK_OK(fsdp_module_set_requires_grad(n->blocks[0], false));
    backward(t, forward(n, (uint64_t)step, false));
}

static fsdp_status backward_of_another(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    fsdp_tensor **other = arg;

    (void)tensor, (void)grad;
    return fsdp_backward(*other);
}

static void backward_in_a_hook(net *n, trace *t, int step)
{
    fsdp_tensor *other = forward(n, (uint64_t)step + 5, true), *loss = forward(n, (uint64_t)step, true), *sum;

    sum = CHECK_PTR(fsdp_scale(loss, 2));
    CHECK_OK(fsdp_tensor_add_grad_hook(loss, backward_of_another, &other));
    backward(t, sum);
}

static void in_another(net *n, trace *t, int step)
{
    CHECK_OK(fsdp_module_set_recompute(&n->base, fsdp_module_recompute(n->blocks[0])));
    backward(t, forward(n, (uint64_t)step, true));
}

static void (*const uses[])(net *n, trace *t, int step) = {
    plain,         wanted_input, two_forwards,  two_backwards, kept_graph,   evaluated_between,  set_between,
    in_evaluation, called_twice, unused_output, partly_frozen, frozen_below, backward_in_a_hook, in_another};

static void trace_of(fsdp_recompute_mode mode, size_t use, trace *t)
{
    fsdp_context *context = test_context();
    net *n = net_create(context, mode);
    int64_t before = tensor_bytes(context);

    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        uses[use](n, t, step);
        note_gradients(t, n);
        fsdp_scope_end(context, NULL);
        fsdp_module_zero_grad(&n->base);
        CHECK_EQ(tensor_bytes(context), before);
    }
    fsdp_module_unref(&n->base);
    CHECK_EQ(tensor_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(losses_and_gradients_are_the_same_to_the_bit)
{
    for (size_t use = 0; use < FSDP__COUNT_OF(uses); use++) {
        trace without = {0};

        trace_of(FSDP_RECOMPUTE_NONE, use, &without);
        for (int mode = FSDP_RECOMPUTE_FULL; mode <= FSDP_RECOMPUTE_CHEAP; mode++) {
            trace with = {0};

            trace_of((fsdp_recompute_mode)mode, use, &with);
            CHECK_EQ(with.count, without.count);
            for (int i = 0; i < with.count; i++)
                if (with.hash[i] != without.hash[i])
                    TEST_FAIL("use %zu, mode %d: tensor %d differs", use, mode, i);
        }
    }
}

/* ---- memory ---- */

static size_t rounded(size_t floats)
{
    return (4 * floats + 63) / 64 * 64;
}

/* What lives between the forward and the backward is the loss, the input of each block, and what a selective one
 * keeps: the first and third product, and attention. A cheap one also keeps the second. None keeps the last, which
 * nothing in the block reads. */
TEST(only_inputs_are_kept)
{
    size_t rows = (size_t)BATCH * TIME, input = rounded(rows * DIM);
    size_t selective =
        rounded(rows * 3 * DIM) + rounded(rows * DIM) + rounded((size_t)BATCH * HEADS * TIME) + rounded(rows * FFN);
    size_t kept[] = {[FSDP_RECOMPUTE_SELECTIVE] = selective, [FSDP_RECOMPUTE_CHEAP] = selective + rounded(rows * DIM)};

    for (int mode = FSDP_RECOMPUTE_FULL; mode <= FSDP_RECOMPUTE_CHEAP; mode++) {
        fsdp_context *context = test_context();
        net *n = net_create(context, (fsdp_recompute_mode)mode);
        int64_t before = tensor_bytes(context);
        fsdp_tensor *loss;

        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_scope_begin(context));
        loss = forward(n, 1, false);
        fsdp_scope_end(context, loss);
        CHECK_EQ(tensor_bytes(context) - before, 64 + BLOCKS * (input + kept[mode]));
        CHECK_OK(fsdp_backward(loss));
        for (int i = 0; i < BLOCKS; i++) {
            CHECK_EQ(((block *)n->blocks[i])->runs, 2);
            CHECK_EQ(((block *)n->blocks[i])->ends, 1); /* the end of a block is nothing that the backward needs */
        }
        fsdp_scope_end(context, NULL);
        fsdp_module_unref(&n->base);
        fsdp_context_free(context);
    }
}

CONTEXT_TEST(without_gradients_it_is_a_plain_call)
{
    net *n = net_create(context, FSDP_RECOMPUTE_FULL);
    int64_t before = tensor_bytes(context);
    fsdp_tensor *loss;

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_scope_begin(context));
    fsdp_no_grad_begin(context);
    loss = forward(n, 1, false);
    fsdp_no_grad_end(context);
    fsdp_scope_end(context, loss);
    CHECK_EQ(tensor_bytes(context) - before, 64);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(&n->base);
}

/* ---- what changed in between ---- */

static void overwrite(net *n)
{
    CHECK_OK(fsdp_tensor_fill_(fsdp_module_parameter(&n->base, "b.up.bias"), 1));
}

static void freeze(net *n)
{
    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(&n->base, "c.norm.weight"), false));
}

static void evaluate(net *n)
{
    fsdp_module_train(((block *)n->blocks[0])->dropout, false);
}

static void go_another_way(net *n)
{
    ((block *)n->blocks[2])->another_way = true;
}

TEST(what_changed_is_an_error_that_names_it)
{
    const struct {
        void (*change)(net *n);
        const char *says;
    } cases[] = {
        {overwrite, "recomputing: b (Block): parameter 'up.bias' was written to between"},
        {freeze, "parameter 'norm.weight' was frozen between"},
        {evaluate, "module 'dropout' was set to evaluate between"},
        {go_another_way, "did something else: operation 5 is layernorm and was linear"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp_context *context = test_context();
        net *n = net_create(context, FSDP_RECOMPUTE_FULL);
        int64_t before = tensor_bytes(context);
        fsdp_tensor *loss;

        CHECK_OK(fsdp_scope_begin(context));
        loss = forward(n, 1, true);
        cases[i].change(n);
        CHECK_ERROR(fsdp_backward(loss), FSDP_STATE, cases[i].says);
        fsdp_scope_end(context, NULL);
        fsdp_module_zero_grad(&n->base);
        CHECK_EQ(tensor_bytes(context), before);
        fsdp_module_unref(&n->base);
        fsdp_context_free(context);
    }
}

CONTEXT_TEST(the_graph_holds_the_modules)
{
    net *n = net_create(context, FSDP_RECOMPUTE_FULL);
    fsdp_tensor *loss, *weight = fsdp_tensor_ref(fsdp_module_parameter(&n->base, "a.qkv.weight"));

    CHECK_OK(fsdp_scope_begin(context));
    loss = forward(n, 1, true);
    fsdp_module_unref(&n->base);
    CHECK_OK(fsdp_backward(loss));
    CHECK_PTR(fsdp_tensor_grad(weight));
    fsdp_scope_end(context, NULL);
    fsdp_tensor_unref(weight);
}

CONTEXT_TEST(what_cannot_be_recomputed_is_refused)
{
    fsdp_module *list = fsdp_module_list_create(context), *gelu = fsdp_gelu_create(context, true);

    CHECK_ERROR(fsdp_module_set_recompute(list, FSDP_RECOMPUTE_FULL), FSDP_UNSUPPORTED, "ModuleList");
    CHECK_ERROR(fsdp_module_set_recompute(NULL, FSDP_RECOMPUTE_FULL), FSDP_INVALID, "a module");
    CHECK_ERROR(fsdp_module_set_recompute(gelu, (fsdp_recompute_mode)4), FSDP_INVALID, "four modes");
    CHECK_EQ(fsdp_module_recompute(gelu), FSDP_RECOMPUTE_NONE);
    fsdp_module_unref(list);
    fsdp_module_unref(gelu);
}

/* ---- failures ---- */

static fsdp_status try_step(net *n)
{
    fsdp_status status;
    fsdp_tensor *x;

    FSDP_TRY(fsdp_scope_begin(n->base.context));
    x = fsdp_zeros(test_device(n->base.context), FSDP_F32, FSDP_SHAPE(BATCH, TIME, DIM));
    status = fsdp_backward(fsdp_mean(x ? fsdp_call(&n->base, x) : NULL));
    fsdp_scope_end(n->base.context, NULL);
    return status;
}

CONTEXT_TEST(no_failed_allocation_leaves_anything)
{
    net *n = net_create(context, FSDP_RECOMPUTE_SELECTIVE);
    int64_t before;

    CHECK_OK(fsdp_module_set_recompute(n->blocks[1], FSDP_RECOMPUTE_FULL));
    CHECK_OK(try_step(n)); /* kernels have their scratch */
    fsdp_module_zero_grad(&n->base);
    before = tensor_bytes(context);
    for (long i = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &i);) {
        fsdp_status status = try_step(n);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_module_zero_grad(&n->base);
        CHECK_EQ(tensor_bytes(context), before);
    }
    fsdp_module_unref(&n->base);
}
