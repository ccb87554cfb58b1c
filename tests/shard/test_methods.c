/* What a module does beside its forward: other functions with the hooks of one, forwards without inputs.
 * Links: optim */
#include "shard/ways.h"

enum {
    BLOCKS = 2,
    STEPS = 3
};

/* ---- functions beside the forward ---- */

/* Half a block: the engine sees a forward of the block all the same. */
static fsdp_tensor *widen(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net_block *b = (net_block *)self;

    (void)count;
    return fsdp_gelu(fsdp_call(b->up, inputs[0]));
}

static fsdp_tensor *narrow(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net_block *b = (net_block *)self;

    (void)count;
    return fsdp_call(b->down, inputs[0]);
}

static fsdp_tensor *method(fsdp_module *module, fsdp_module_function function, fsdp_tensor *x)
{
    return fsdp_module_call_method(module, function, &x, 1);
}

/* The net's forward, but through two functions of each block, and the first block's forward once more. */
static fsdp_tensor *by_methods(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net *n = (net *)self;
    fsdp_tensor *x = fsdp_call(n->input, inputs[0]);

    (void)count;
    for (int64_t i = 0; i < BLOCKS; i++) {
        fsdp_module *block = net_block_at(self, i);

        x = fsdp_add(x, method(block, narrow, method(block, widen, x)));
    }
    x = fsdp_call(net_block_at(self, 0), x);
    return fsdp_cross_entropy(fsdp_call(n->head, fsdp_call(n->norm, x)), inputs[1]);
}

static fsdp_tensor *loss_of(const way_run *run, fsdp_module *module, int step, bool by_method)
{
    int rows = run->way ? WAYS_ROWS : WAYS_ROWS * run->world;
    fsdp_tensor *inputs[2];

    if (!by_method)
        return ways_loss(run, module, step);
    net_batch(module->context, step, fsdp_context_rank(module->context) * rows, rows, &inputs[0], &inputs[1]);
    return CHECK_PTR(fsdp_module_call_method(module, by_methods, inputs, 2));
}

static void train_by_methods(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, run->arg);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int step = 0; step < STEPS; step++) {
        fsdp_tensor *first;

        dawdle(context, run);
        CHECK_OK(fsdp_scope_begin(context));
        first = loss_of(run, module, step, true);
        if (step == 1) /* a forward of each kind before one backward */
            first = fsdp_add(first, loss_of(run, module, step, false));
        CHECK_OK(fsdp_backward(first));
        fsdp_scope_end(context, NULL);
        note_gradients(run, module);
        ways_step(optimizer);
        ways_evaluate(run, module, step);
    }
    ways_end(run, module, optimizer);
}

TEST(a_method_is_a_forward_to_the_engine)
{
    in_every_way_with(train_by_methods, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, FSDP_RESHARD_AUTO);
    in_every_way_with(train_by_methods, WAYS_EQUAL_PLAIN, FSDP_RESHARD_ALWAYS);
}

static fsdp_tensor *give_up(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)self, (void)inputs, (void)count;
    FSDP_FAIL(FSDP_IO, "no more");
    return NULL;
}

WORLDS_TEST(a_method_that_fails_leaves_a_module_as_a_forward_does, 1, 3)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS), *block = net_block_at(module, 0);
    fsdp_tensor *x, *targets;

    net_shard(module, NULL);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_NULL(method(module, by_methods, x));
    CHECK_CONTAINS(fsdp_last_error(), "still on the meta device");
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_NULL(method(module, give_up, x));
    CHECK_STRING(fsdp_last_error(), "Net: no more");
    CHECK_NULL(method(module, NULL, x));
    CHECK_STRING(fsdp_last_error(), "cannot call a method of a module: the method is NULL");
    CHECK_NULL(method(NULL, give_up, x));
    CHECK_STRING(fsdp_last_error(), "cannot call a method of a module: the module is NULL");
    fsdp_scope_end(context, NULL);
    net_train(module, 1);
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_NULL(method(block, give_up, fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM))));
    CHECK_STRING(fsdp_last_error(), "Block: no more");
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_module_reset_iteration(module));
    net_train(module, 1);
    fsdp_module_unref(module);
}

/* ---- without inputs ---- */

typedef struct prompt {
    fsdp_module base;
    fsdp_module *inner; /* a prompt, or NULL */
    fsdp_tensor *weight;
} prompt;

static fsdp_tensor *prompt_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    prompt *p = (prompt *)self;
    fsdp_tensor *y = fsdp_mul(p->weight, p->weight);

    (void)inputs, (void)count;
    if (p->inner)
        y = fsdp_add(y, fsdp_module_call(p->inner, NULL, 0));
    return p->inner ? fsdp_mean(y) : y;
}

static const fsdp_module_type prompt_type = {.name = "Prompt", .forward = prompt_forward, .without_inputs = true};

static prompt *prompt_create(fsdp_context *context, fsdp_module *inner)
{
    const fsdp_init normal = {FSDP_INIT_NORMAL, 0, 1};
    prompt *p;

    CHECK_OK(fsdp_module_create(context, &prompt_type, sizeof *p, &p));
    CHECK_OK(fsdp_module_add_parameter(&p->base, "weight", &p->weight, fsdp_meta(context), FSDP_F32, 2,
                                       (const int64_t[]){5, 3}, normal));
    p->inner = inner;
    if (inner)
        CHECK_OK(fsdp_module_add_child(&p->base, "inner", inner));
    return p;
}

WAYS_TEST(a_module_may_have_no_inputs, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE)
{
    prompt *inner = prompt_create(context, NULL), *root = prompt_create(context, &inner->base);
    fsdp_optimizer *optimizer;

    if (run->way) {
        CHECK_OK(fsdp_fully_shard(&inner->base, &run->options));
        CHECK_OK(fsdp_fully_shard(&root->base, &run->options));
    }
    CHECK_OK(fsdp_module_materialize(&root->base, test_device(context)));
    CHECK_OK(fsdp_module_initialize(&root->base, 1));
    optimizer = ways_optimizer(&root->base);
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_module_call(&root->base, NULL, 0))));
        fsdp_scope_end(context, NULL);
        note_gradients(run, &root->base);
        ways_step(optimizer);
    }
    note_weights(run, &root->base);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(&root->base);
}
