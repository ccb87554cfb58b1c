/* Who writes to a shard waits until no peer reads it, and makes stale what was derived from it: by every kind of
 * writer, in every residence, with ranks that lag.
 * Links: optim state */
#include "fsdp/state.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

/* ---- slow readers ---- */

/* One parameter after the other; the slow rank stops behind the first. */
static void read_slowly(way_run *run, fsdp_module *module)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        const char *name = parameters.items[i].name;

        note_tensor(run, CHECK_PTR(fsdp_module_parameter(module, name)));
        if (i == 0)
            dawdle(module->context, run);
    }
    fsdp_parameters_release(&parameters);
}

WAYS_TEST(a_step_waits_for_peers_that_read_the_whole_parameters, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int step = 0; step < 2; step++) {
        ways_backward(run, module, step);
        for (int i = 0; i < BLOCKS && run->way; i++)
            CHECK_OK(fsdp_module_unshard(net_block_at(module, i)));
        if (run->way)
            CHECK_OK(fsdp_module_unshard(module));
        read_slowly(run, module);
        if (run->way)
            CHECK_OK(fsdp_module_reshard_all(module));
        ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
}

/* The slow rank's head has all gathers behind it. */
static fsdp_tensor *slow_head_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net *n = (net *)self;
    fsdp_tensor *x = fsdp_call(n->input, inputs[0]);

    (void)count;
    for (int64_t i = 0; i < fsdp_module_child_count(n->blocks); i++)
        x = fsdp_call(net_block_at(self, i), x);
    x = fsdp_call(n->norm, x);
    usleep(WAYS_SLOW_US);
    return fsdp_cross_entropy(fsdp_call(n->head, x), inputs[1]);
}

static const fsdp_module_type slow_head_type = {.name = "Net", .forward = slow_head_forward};

/* And the slow rank's last block, which no gather follows. */
static fsdp_tensor *slow_block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net_block *b = (net_block *)self;
    fsdp_tensor *x = fsdp_call(b->up, inputs[0]);

    (void)count;
    usleep(WAYS_SLOW_US);
    return fsdp_add(inputs[0], fsdp_call(b->down, fsdp_gelu(x)));
}

static const fsdp_module_type slow_block_type = {.name = "Block", .forward = slow_block_forward};

static void slow_down(fsdp_module *module, const way_run *run, bool in_block)
{
    if (!is_slow(module->context, run))
        return;
    if (in_block)
        net_block_at(module, BLOCKS - 1)->type = &slow_block_type;
    else
        module->type = &slow_head_type;
}

static void validate_before_step(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    float expected;
    double loss;

    ways_backward(run, module, 0);
    expected = ways_evaluate(run, module, 7);
    slow_down(module, run, run->arg);
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_tensor_item(ways_loss(run, module, 7), &loss)); /* with a graph that nobody walks */
    ways_step(optimizer);
    fsdp_scope_end(context, NULL);
    CHECK_NEAR(loss, expected, 0);
    ways_end(run, module, optimizer);
}

TEST(a_step_waits_for_peers_in_a_forward_without_backward)
{
    for (int in_block = 0; in_block < 2; in_block++)
        in_every_way_with(validate_before_step, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, in_block);
}

/* ---- every kind of writer ---- */

static void write_all(fsdp_module *module, int kind)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *p = parameters.items[i].tensor;
        int64_t numel = fsdp_tensor_numel(p);
        float *values = malloc((size_t)(numel + 1) * sizeof *values);

        CHECK_OK(fsdp_tensor_read(p, FSDP_F32, values));
        for (int64_t k = 0; k < numel; k++)
            values[k] = values[k] * 1.5f + 0.01f * (float)(i + 1);
        CHECK_OK(fsdp_scope_begin(module->context));
        if (kind == 0)
            CHECK_OK(fsdp_tensor_write(p, FSDP_F32, values));
        else if (kind == 1)
            CHECK_OK(fsdp_tensor_copy_(p, CHECK_PTR(fsdp_from_data(fsdp_tensor_device(p), FSDP_F32, fsdp_tensor_ndim(p),
                                                                   fsdp_tensor_shape(p), values))));
        else
            CHECK_OK(fsdp_tensor_fill_(p, 0.02 * (double)(i + 1)));
        fsdp_scope_end(module->context, NULL);
        free(values);
    }
    fsdp_parameters_release(&parameters);
}

static void load_state(fsdp_module *module)
{
    fsdp_state_dict *state;

    CHECK_OK(fsdp_state_dict_from_module(module, &state));
    for (int64_t i = 0; i < state->count; i++) {
        fsdp_tensor *t = state->entries[i].tensor;
        float *values = calloc((size_t)fsdp_tensor_numel(t) + 1, sizeof *values);

        CHECK_OK(fsdp_tensor_read(t, FSDP_F32, values));
        for (int64_t k = 0; k < fsdp_tensor_numel(t); k++)
            values[k] = values[k] * 0.5f - 0.03f;
        CHECK_OK(fsdp_tensor_write(t, FSDP_F32, values));
        free(values);
    }
    fsdp_state_dict_free(state);
}

typedef void (*writer)(fsdp_module *module, fsdp_optimizer *optimizer);

static void by_optimizer(fsdp_module *module, fsdp_optimizer *optimizer)
{
    (void)module;
    CHECK_OK(fsdp_optimizer_step(optimizer));
}

static void by_write(fsdp_module *module, fsdp_optimizer *optimizer)
{
    (void)optimizer;
    write_all(module, 0);
}

static void by_copy(fsdp_module *module, fsdp_optimizer *optimizer)
{
    (void)optimizer;
    write_all(module, 1);
}

static void by_fill(fsdp_module *module, fsdp_optimizer *optimizer)
{
    (void)optimizer;
    write_all(module, 2);
}

static void by_initialize(fsdp_module *module, fsdp_optimizer *optimizer)
{
    (void)optimizer;
    CHECK_OK(fsdp_module_initialize(module, 2));
}

static void by_state(fsdp_module *module, fsdp_optimizer *optimizer)
{
    (void)optimizer;
    load_state(module);
}

static const writer writers[] = {by_optimizer, by_write, by_copy, by_fill, by_initialize, by_state};

/* The loss is that of freshly gathered parameters. */
static float evaluate_fresh(const way_run *run, fsdp_module *module, int step)
{
    float kept = ways_evaluate(run, module, step), fresh;

    if (run->way)
        CHECK_OK(fsdp_module_reshard_all(module));
    fresh = ways_evaluate(run, module, step);
    CHECK_NEAR(kept, fresh, 0);
    return fresh;
}

/* Everything is kept whole, and everything is written. */
WAYS_TEST(every_writer_makes_kept_parameters_stale, WAYS_ALONE)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_NEVER);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    ways_backward(run, module, 0);
    for (size_t w = 0; w < FSDP__COUNT_OF(writers); w++) {
        float before = ways_evaluate(run, module, 3), after;

        if ((int)w % 2 == run->slow % 2)
            dawdle(context, run);
        writers[w](module, optimizer);
        after = evaluate_fresh(run, module, 3);
        CHECK(after != before);
        note(context, run, &after, 1);
    }
    ways_end(run, module, optimizer);
}

static void write_on_one_rank(fsdp_context *context, way_run *run)
{
    static const char *const names[] = {"head.weight", "blocks.0.up.weight", "blocks.1.down.bias"};
    fsdp_module *module = ways_net(context, run, BLOCKS, run->arg ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO);

    for (int writing = 0; writing < run->world; writing++) {
        float loss = ways_evaluate(run, module, 1);

        if (fsdp_context_rank(context) == writing) /* the others do not call anything */
            for (size_t i = 0; i < FSDP__COUNT_OF(names); i++)
                CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(module, names[i])), 0.1 * (writing + 1)));
        loss = evaluate_fresh(run, module, 1);
        note(context, run, &loss, 1);
    }
    if (run->world > 1)
        for (int i = 0; i < 2; i++) { /* and once more without */
            float loss = ways_evaluate(run, module, 1);

            note(context, run, &loss, 1);
        }
    fsdp_module_unref(module);
}

/* With five ranks some have empty shards. */
TEST(what_one_rank_writes_is_seen_by_all)
{
    for (int never = 0; never < 2; never++)
        in_every_way_with(write_on_one_rank, WAYS_ALONE, never);
}

WAYS_TEST(a_write_to_an_empty_shard_changes_nothing, WAYS_ALONE)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_NEVER);
    float before = ways_evaluate(run, module, 1);

    if (run->world == WAYS_WORLDS && fsdp_context_rank(context) == run->world - 1) {
        CHECK_EQ(fsdp_tensor_numel(fsdp_module_parameter(module, "head.bias")), 0);
        CHECK_OK(fsdp_tensor_fill_(fsdp_module_parameter(module, "head.bias"), 1.0));
    }
    CHECK_NEAR(evaluate_fresh(run, module, 1), before, 0);
    ways_backward(run, module, 0);
    fsdp_module_unref(module);
}

/* ---- between forward and backward ---- */

static void write_between(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, run->arg % 2 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_tensor *loss;

    net_without_norm(module);
    ways_backward(run, module, 0);
    for (size_t w = 0; w < 4; w++) {
        CHECK_OK(fsdp_scope_begin(context));
        loss = ways_loss(run, module, (int)w);
        if (run->arg / 2)
            (void)ways_evaluate(run, module, 5);
        if ((int)w == run->arg)
            dawdle(context, run);
        writers[w](module, optimizer);
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
        CHECK_OK(fsdp_backward(loss));
        fsdp_scope_end(context, NULL);
        CHECK_OK(fsdp_optimizer_step(optimizer));
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(a_write_between_forward_and_backward_is_used_by_the_backward)
{
    for (int arg = 0; arg < 4; arg++)
        in_every_way_with(write_between, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, arg);
}

/* ---- refused ---- */

/* A block that writes to its own weight, found from outside, while it runs. */
typedef struct writing_block {
    fsdp_tensor *shard; /* NULL: what the field names */
    const char *name;
    int refused;
} writing_block;

static writing_block writing[WAYS_WORLDS];

static writing_block *writing_on(const fsdp_module *module)
{
    return &writing[fsdp_context_rank(module->context)];
}

static fsdp_tensor *writing_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net_block *b = (net_block *)self;
    writing_block *w = writing_on(self);
    fsdp_tensor *x = fsdp_call(b->up, inputs[0]);

    (void)count;
    CHECK_ERROR(fsdp_tensor_fill_(w->shard, 3.0), FSDP_STATE, w->name);
    CHECK_ERROR(fsdp_tensor_fill_(((fsdp_layer *)b->up)->weight, 3.0), FSDP_STATE, w->name);
    CHECK_STATUS(fsdp_module_initialize(self, 5), FSDP_STATE);
    w->refused++;
    return fsdp_add(inputs[0], fsdp_call(b->down, fsdp_gelu(x)));
}

static fsdp_status write_in_hook(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    writing_block *w = arg;

    (void)tensor;
    (void)grad;
    CHECK_ERROR(fsdp_tensor_fill_(w->shard, 3.0), FSDP_STATE, w->name);
    w->refused++;
    return FSDP_OK;
}

static fsdp_tensor *hooking_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net_block *b = (net_block *)self;
    fsdp_tensor *x = fsdp_gelu(fsdp_call(b->up, inputs[0]));

    (void)count;
    CHECK_OK(fsdp_tensor_add_grad_hook(x, write_in_hook, writing_on(self)));
    return fsdp_add(inputs[0], fsdp_call(b->down, x));
}

static const fsdp_module_type writing_type = {.name = "Block", .forward = writing_forward};
static const fsdp_module_type hooking_type = {.name = "Block", .forward = hooking_forward};

WAYS_TEST(a_write_while_the_module_runs_is_refused_by_name, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO), *block = net_block_at(module, 1);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    writing_block *w = writing_on(module);

    *w = (writing_block){.shard = fsdp_module_parameter(module, "blocks.1.up.weight"), .name = "blocks.1.up.weight"};
    if (run->way)
        block->type = &writing_type;
    (void)ways_evaluate(run, module, 0);
    ways_backward(run, module, 0);
    if (run->way)
        block->type = &hooking_type;
    ways_backward(run, module, 1);
    CHECK_EQ(w->refused, run->way ? 3 : 0);
    ways_last_step(run, module, optimizer);
}

WAYS_TEST(a_write_to_the_whole_parameter_is_refused_by_name, WAYS_RANKS_AGREE)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_tensor *shard = fsdp_module_parameter(module, "head.weight"), *whole;
    float values[NET_OUT * NET_DIM] = {0};

    for (int round = 0; round < 2; round++) {
        const char *name =
            round ? "'head.weight'" : "'weight' of a Linear"; /* full names come with the first forward */

        CHECK_OK(fsdp_module_unshard(module));
        whole = fsdp_module_parameter(module, "head.weight");
        CHECK(whole != shard);
        CHECK_ERROR(fsdp_tensor_fill_(whole, 1.0), FSDP_STATE, name);
        CHECK_ERROR(fsdp_tensor_write(whole, FSDP_F32, values), FSDP_STATE, name);
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_ERROR(fsdp_tensor_copy_(whole, fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(NET_OUT, NET_DIM))),
                    FSDP_STATE, name);
        fsdp_scope_end(context, NULL);
        note_tensor(run, whole);
        CHECK_OK(fsdp_module_reshard(module));
        (void)ways_evaluate(run, module, 0);
    }
    note_weights(run, module);
    fsdp_module_unref(module);
}

/* ---- the optimizer outlives the model ---- */

static void step_without_model(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_parameters parameters;
    float expected;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    ways_backward(run, module, 0);
    expected = ways_evaluate(run, module, 7);
    slow_down(module, run, run->arg);
    CHECK_NEAR(ways_evaluate(run, module, 7), expected, 0);
    fsdp_module_unref(module);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *whole;

        CHECK_OK(fsdp_full_tensor(parameters.items[i].tensor, &whole));
        note_tensor(run, whole);
        fsdp_tensor_unref(whole);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_parameters_release(&parameters);
}

TEST(an_optimizer_that_outlives_the_model_waits_too)
{
    for (int in_block = 0; in_block < 2; in_block++)
        in_every_way_with(step_without_model, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, in_block);
}
