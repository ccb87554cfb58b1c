/* Recomputation in sharded models: inside sharded modules, around them, and both; the same bits, collectives and bytes
 * between steps as without. Links: optim */
#include "shard/ways.h"

#include "nn/module.h"
#include "shard/state/root.h"

enum {
    BLOCKS = 3
};

typedef enum placing {
    BLOCKS_FULL,      /* inside sharded blocks */
    BLOCKS_SELECTIVE, /* the same */
    BLOCKS_CHEAP,     /* the same */
    EVERY_SECOND,     /* the same, of some */
    WHOLE,            /* inside the sharded root, around the sharded blocks */
    BETWEEN,          /* blocks are not sharded, but what is below them, and the root */
    AROUND            /* a function that calls the root */
} placing;

/* What the hook of a block goes back through, on each rank. */
typedef struct inner_graph {
    fsdp_tensor *loss;
    fsdp_module *model;
} inner_graph;
static inner_graph inners[WAYS_WORLDS];

typedef struct pair {
    const way_run *run;
    fsdp_module *models[2]; /* without, with */
    fsdp_optimizer *optimizers[2];
    placing place;
} pair;

static void shard_between(fsdp_module *module, const fsdp_shard_options *options)
{
    for (int i = 0; i < BLOCKS; i++) {
        net_block *block = (net_block *)net_block_at(module, i);

        CHECK_OK(fsdp_fully_shard(block->up, options));
        CHECK_OK(fsdp_fully_shard(block->down, options));
    }
    CHECK_OK(fsdp_fully_shard(module, options));
}

static fsdp_module *create(fsdp_context *context, const fsdp_shard_options *options, placing place)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);

    if (place == BETWEEN)
        shard_between(module, options);
    else
        net_shard(module, options);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

static void set_recompute(fsdp_module *module, placing place)
{
    fsdp_recompute_mode mode = place == BLOCKS_SELECTIVE ? FSDP_RECOMPUTE_SELECTIVE
                               : place == BLOCKS_CHEAP   ? FSDP_RECOMPUTE_CHEAP
                                                         : FSDP_RECOMPUTE_FULL;

    if (place == WHOLE)
        CHECK_OK(fsdp_module_set_recompute(module, mode));
    for (int i = 0; i < BLOCKS && place != WHOLE && place != AROUND; i++)
        if (place != EVERY_SECOND || i % 2 == 1)
            CHECK_OK(fsdp_module_set_recompute(net_block_at(module, i), mode));
}

static fsdp_tensor *call_model(void *arg, fsdp_tensor *const *inputs, int count)
{
    return fsdp_module_call(arg, inputs, count);
}

static fsdp_tensor *loss_of(const pair *p, int which, int step)
{
    fsdp_context *context = p->models[which]->context;
    fsdp_tensor *inputs[2];

    net_batch(context, step, fsdp_context_rank(context) * WAYS_ROWS, WAYS_ROWS, &inputs[0], &inputs[1]);
    if (step == 0)
        dawdle(context, p->run);
    if (p->place == AROUND && which == 1)
        return CHECK_PTR(fsdp_recompute(context, call_model, p->models[which], inputs, 2, NULL));
    return CHECK_PTR(fsdp_module_call(p->models[which], inputs, 2));
}

/* ---- what is done ---- */

static void once(const pair *p, int which, int step)
{
    CHECK_OK(fsdp_backward(loss_of(p, which, step)));
}

static void two_forwards(const pair *p, int which, int step)
{
    fsdp_tensor *first = loss_of(p, which, step), *second = loss_of(p, which, step + 20);

    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_add(first, second))));
}

static void two_backwards(const pair *p, int which, int step)
{
    fsdp_tensor *first = loss_of(p, which, step), *second = loss_of(p, which, step + 20);

    CHECK_OK(fsdp_module_set_is_last_backward(p->models[which], false));
    CHECK_OK(fsdp_backward(second));
    CHECK_OK(fsdp_module_set_is_last_backward(p->models[which], true));
    CHECK_OK(fsdp_backward(first));
}

static void unsynchronised(const pair *p, int which, int step)
{
    CHECK_OK(fsdp_module_set_requires_gradient_sync(p->models[which], false, true));
    once(p, which, step);
    CHECK_OK(fsdp_module_set_requires_gradient_sync(p->models[which], true, true));
    once(p, which, step + 20);
}

static void kept_graph(const pair *p, int which, int step)
{
    fsdp_tensor *loss = loss_of(p, which, step);

    CHECK_OK(fsdp_backward_from(&loss, NULL, 1, true));
    CHECK_OK(fsdp_backward(loss));
}

static void evaluated_between(const pair *p, int which, int step)
{
    fsdp_tensor *loss = loss_of(p, which, step);

    (void)ways_evaluate(p->run, p->models[which], step + 20);
    CHECK_OK(fsdp_backward(loss));
}

static void frozen(const pair *p, int which, int step)
{
    CHECK_OK(fsdp_module_set_requires_grad(net_block_at(p->models[which], 1), false));
    CHECK_OK(fsdp_module_set_requires_grad(((net *)p->models[which])->input, false));
    once(p, which, step);
    CHECK_OK(fsdp_module_set_requires_grad(p->models[which], true));
}

static fsdp_status backward_of(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    fsdp_tensor **loss = arg;

    (void)tensor, (void)grad;
    return fsdp_backward(*loss);
}

/* Gathered for what runs again, whatever is set; without, a block needs its parameters. */
static void not_unsharded_in_backward(const pair *p, int which, int step)
{
    fsdp_module *module = p->place == BETWEEN || p->place == AROUND ? NULL : net_block_at(p->models[which], 1);

    if (which == 1 && module)
        CHECK_OK(fsdp_module_set_unshard_in_backward(module, false));
    once(p, which, step);
    if (which == 1 && module)
        CHECK_OK(fsdp_module_set_unshard_in_backward(module, true));
}

/* Before the outer one has come to the model. */
static void backward_in_a_hook(const pair *p, int which, int step)
{
    fsdp_tensor *inner = loss_of(p, which, step), *outer = loss_of(p, which, step + 20);

    CHECK_OK(fsdp_tensor_add_grad_hook(outer, backward_of, &inner));
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_scale(outer, 2))));
}

/* In the midst of it, where the second block of both is on its way: the model's backward ends with the outer one. */
static fsdp_status backward_of_inner(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    inner_graph *in = arg;

    FSDP_TRY(backward_of(&in->loss, tensor, grad));
    CHECK(fsdp__module_state_of(in->model)->root->in_backward);
    return FSDP_OK;
}

static fsdp_tensor *hooked_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    fsdp_tensor *y = net_block_forward(self, inputs, count);
    inner_graph *in = &inners[fsdp_context_rank(self->context)];

    if (y && in->loss && fsdp_tensor_add_grad_hook(y, backward_of_inner, in) != FSDP_OK)
        return NULL;
    return y;
}

static const fsdp_module_type hooked_type = {.name = "Block", .forward = hooked_forward};

static void backward_in_a_blocks_hook(const pair *p, int which, int step)
{
    inner_graph *in = &inners[fsdp_context_rank(p->models[which]->context)];
    fsdp_module *block = net_block_at(p->models[which], 1);

    block->type = &hooked_type;
    *in = (inner_graph){loss_of(p, which, step), p->models[which]};
    CHECK_OK(fsdp_backward(loss_of(p, which, step + 20)));
    CHECK(!fsdp__module_state_of(in->model)->root->in_backward);
    in->loss = NULL;
    block->type = &net_block_type;
}

static void resharded_by_hand(const pair *p, int which, int step)
{
    fsdp_tensor *loss = loss_of(p, which, step);

    CHECK_OK(fsdp_module_reshard_all(p->models[which]));
    CHECK_OK(fsdp_backward(loss));
}

static void (*const uses[])(const pair *p, int which, int step) = {once,
                                                                   two_forwards,
                                                                   two_backwards,
                                                                   unsynchronised,
                                                                   kept_graph,
                                                                   evaluated_between,
                                                                   frozen,
                                                                   backward_in_a_hook,
                                                                   backward_in_a_blocks_hook,
                                                                   not_unsharded_in_backward,
                                                                   resharded_by_hand,
                                                                   once};

/* ---- compared ---- */

static void compare(const pair *p, size_t use)
{
    fsdp_parameters parameters[2];

    for (int which = 0; which < 2; which++)
        CHECK_OK(fsdp_module_parameters(p->models[which], &parameters[which]));
    for (int64_t i = 0; i < parameters[0].count; i++) {
        float values[2][256] = {{0}};

        for (int which = 0; which < 2; which++) {
            fsdp_tensor *gradient = fsdp_tensor_grad(parameters[which].items[i].tensor);

            CHECK(!gradient || fsdp_tensor_numel(gradient) < 256);
            if (gradient)
                CHECK_OK(fsdp_tensor_read(gradient, FSDP_F32, values[which]));
            else
                values[which][255] = -1;
        }
        if (memcmp(values[0], values[1], sizeof values[0]) != 0)
            TEST_FAIL("use %zu, place %d: the gradient of '%s' differs", use, (int)p->place,
                      parameters[0].items[i].name);
    }
    for (int which = 0; which < 2; which++)
        fsdp_parameters_release(&parameters[which]);
}

static int64_t all_gathers(fsdp_context *context)
{
    fsdp_comm_stats stats;

    fsdp_context_comm_stats(context, &stats);
    return stats.calls[FSDP_ALL_GATHER];
}

static int number_of(const way_run *run)
{
    return run->options.no_shared_memory + 2 * (run->options.overlap == FSDP_OVERLAP_WORKER);
}

/* Other ways, which note the same weights, reshard otherwise and recompute elsewhere. What is sharded
 * below blocks casts elsewhere, too, so that is in a world of its own. */
static placing place_of(const way_run *run)
{
    static const placing places[] = {BLOCKS_FULL, AROUND, WHOLE, BLOCKS_SELECTIVE, BLOCKS_CHEAP, EVERY_SECOND};
    int bf16 = run->options.mp_policy.param_dtype == FSDP_BF16;

    return run->world == 3 ? BETWEEN : places[(number_of(run) + run->world + 2 * bf16 + run->arg) % 6];
}

static void train_pair(fsdp_context *context, way_run *run)
{
    pair p = {.run = run, .place = place_of(run)};
    fsdp_shard_options options = run->options;
    int64_t lives[2] = {0}, gathers[2] = {0};

    options.reshard_after_forward = (fsdp_reshard)(number_of(run) % 3);
    for (int which = 0; which < 2; which++) {
        p.models[which] = create(context, &options, p.place);
        p.optimizers[which] = ways_optimizer(p.models[which]);
    }
    set_recompute(p.models[1], p.place);
    for (size_t use = 0; use < FSDP__COUNT_OF(uses); use++) {
        for (int which = 0; which < 2; which++) {
            int64_t before = test_live_bytes(context), gathered = all_gathers(context);

            CHECK_OK(fsdp_scope_begin(context));
            uses[use](&p, which, (int)use);
            fsdp_scope_end(context, NULL);
            lives[which] = test_live_bytes(context) - before;
            gathers[which] = all_gathers(context) - gathered;
        }
        CHECK_EQ(lives[1], lives[0]);
        CHECK_EQ(gathers[1], gathers[0]);
        compare(&p, use);
        for (int which = 0; which < 2; which++)
            ways_step(p.optimizers[which]);
    }
    note_weights(run, p.models[1]);
    for (int which = 0; which < 2; which++) {
        fsdp_optimizer_free(p.optimizers[which]);
        fsdp_module_unref(p.models[which]);
    }
}

TEST(recomputation_anywhere_changes_no_bit)
{
    for (int turn = 0; turn < (test_long() ? 5 : 1); turn++)
        in_every_way_with(train_pair, WAYS_RANKS_AGREE, turn);
}

/* ---- what goes wrong ---- */

static fsdp_module *checked(fsdp_context *context, const way_run *run, placing place)
{
    fsdp_module *module = create(context, &run->options, place);

    set_recompute(module, place);
    return module;
}

typedef struct writing {
    const char *parameter, *says;
} writing;

/* Each write comes between the forward and the backward of a step; a step without a write follows. */
static void write_between_at(fsdp_context *context, way_run *run, placing place, const writing *writings, int count)
{
    fsdp_module *module = checked(context, run, place);
    pair p = {.run = run, .models = {module, module}, .place = place};
    int64_t live = 0;

    for (int step = 0; step < count + 2; step++) {
        fsdp_tensor *loss;

        CHECK_OK(fsdp_scope_begin(context));
        loss = loss_of(&p, 1, step);
        if (step >= 1 && step <= count) {
            CHECK_OK(fsdp_tensor_fill_(fsdp_module_parameter(module, writings[step - 1].parameter), 0.5));
            CHECK_ERROR(fsdp_backward(loss), FSDP_STATE, writings[step - 1].says);
        } else {
            CHECK_OK(fsdp_backward(loss));
        }
        fsdp_scope_end(context, NULL);
        fsdp_module_zero_grad(module);
        if (step == 0)
            live = test_live_bytes(context);
        CHECK_EQ(test_live_bytes(context), live);
    }
    fsdp_module_unref(module);
}

WAYS_TEST(a_write_in_between_is_an_error_that_names_the_parameter, WAYS_ALONE)
{
    static const writing whole = {"blocks.1.down.bias", "'blocks.1.down.bias' was written to between"};
    static const writing block = {"blocks.1.down.bias",
                                  "blocks.1 (Block): parameter 'down.bias' was written to between"};
    /* What an operation has saved has a name; what it only reads has that of its module. */
    const writing around[] = {
        {"input.weight",
         "input (Linear): operation 0 of a recomputed function (linear), or one before it, reads a tensor"},
        {"blocks.1.down.bias", "blocks.1.down (Linear): operation "},
        {"blocks.2.up.weight", "parameter 'blocks.2.up.weight', was written to after the forward"},
        {"norm.weight", "parameter 'norm.weight', was written to after the forward"},
        {"norm.bias", fsdp__device_makes_again(test_device(context)) /* the norm's result, which the head reads */
                          ? "parameter 'norm.bias', was written to after the forward"
                          : "norm (LayerNorm): operation "},
        {"head.weight", "parameter 'head.weight', was written to after the forward"},
        {"head.bias", "reads a tensor that was written to between"}};

    if (run->world % 2 == 0)
        write_between_at(context, run, WHOLE, &whole, 1);
    else
        write_between_at(context, run, BLOCKS_FULL, &block, 1);
    write_between_at(context, run, AROUND, around, FSDP__COUNT_OF(around));
}

/* Of all parameters of a group, not of its first alone. */
WAYS_TEST(new_first_values_in_between_are_an_error, WAYS_ALONE)
{
    fsdp_module *module = create(context, &run->options, AROUND);
    pair p = {.run = run, .models = {module, NULL}};
    fsdp_tensor *loss;

    CHECK_OK(fsdp_module_set_recompute(((net *)module)->head, FSDP_RECOMPUTE_FULL));
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_backward(loss_of(&p, 0, 0)));
    loss = loss_of(&p, 0, 1);
    CHECK_OK(fsdp_module_initialize(module, 2));
    CHECK_ERROR(fsdp_backward(loss), FSDP_STATE, "head (Linear): parameter 'weight' was written to between");
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

/* The second run of a block fails for want of memory on all ranks; the next step is as if it had not been. */
static fsdp_tensor *failing_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    if (fsdp_recomputing(self->context)) {
        (void)fsdp_call(((net_block *)self)->up, inputs[0]);
        FSDP_FAIL(FSDP_NO_MEMORY, "none left");
        return NULL;
    }
    return net_block_forward(self, inputs, count);
}

static const fsdp_module_type failing_type = {.name = "Block", .forward = failing_forward};

WAYS_TEST(after_a_failed_recomputation_the_model_trains_on, WAYS_RANKS_AGREE)
{
    fsdp_module *module = checked(context, run, run->world % 2 ? BETWEEN : BLOCKS_FULL),
                *block = net_block_at(module, 1);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    pair p = {.run = run, .models = {module, NULL}};
    int64_t live = 0;

    for (int step = 0; step < 5; step++) {
        bool fails = run->way && step % 2 == 1;

        block->type = fails ? &failing_type : &net_block_type;
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_STATUS(fsdp_backward(loss_of(&p, 0, step / 2)), fails ? FSDP_NO_MEMORY : FSDP_OK);
        fsdp_scope_end(context, NULL);
        if (fails)
            fsdp_module_zero_grad(module);
        else
            ways_step(optimizer);
        if (step == 0)
            live = test_live_bytes(context);
        CHECK_EQ(test_live_bytes(context), live);
    }
    ways_end(run, module, optimizer);
}

/* ---- who lives how long ---- */

WAYS_TEST_BY(a_model_may_be_freed_before_its_backward, in_every_way_with, WAYS_ALONE, 0)
{
    fsdp_module *module = checked(context, run, (placing)(run->world % AROUND));
    pair p = {.run = run, .models = {module, NULL}};
    fsdp_tensor *weight = fsdp_tensor_ref(fsdp_module_parameter(module, "blocks.2.up.weight")), *loss;

    CHECK_OK(fsdp_scope_begin(context));
    loss = loss_of(&p, 0, 1);
    fsdp_module_unref(module);
    CHECK_OK(fsdp_backward(loss));
    CHECK_PTR(fsdp_tensor_grad(weight));
    fsdp_scope_end(context, NULL);
    fsdp_tensor_unref(weight);
}
