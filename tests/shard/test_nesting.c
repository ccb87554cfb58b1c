/* Calls inside calls: forwards inside a backward, backwards inside a forward, modules that call themselves, parents
 * that go on without a child that failed. Links: optim */
#include "shard/ways.h"

enum {
    BLOCKS = 2,
    IDS = 20
};

/* ---- a root with a table of its own, used again after the block ---- */

typedef struct lookup {
    fsdp_module base;
    fsdp_module *table, *block;
} lookup;

static fsdp_tensor *lookup_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    lookup *l = (lookup *)self;
    fsdp_tensor *x = fsdp_call(l->block, fsdp_call(l->table, inputs[0]));

    (void)count;
    return fsdp_add(x, fsdp_call(l->table, inputs[0]));
}

static const fsdp_module_type lookup_type = {.name = "Lookup", .forward = lookup_forward};

static fsdp_module *lookup_create(fsdp_context *context, const way_run *run, fsdp_reshard reshard)
{
    fsdp_device *device = run->way ? fsdp_meta(context) : test_device(context);
    fsdp_shard_options options = run->options;
    lookup *l;

    options.reshard_after_forward = reshard;
    CHECK_OK(fsdp_module_create(context, &lookup_type, sizeof *l, &l));
    l->table = fsdp_embedding_create(context, device, IDS, NET_DIM, NULL);
    l->block = net_block_create(context, device);
    CHECK_OK(fsdp_module_add_child(&l->base, "table", l->table));
    CHECK_OK(fsdp_module_add_child(&l->base, "block", l->block));
    if (run->way) {
        CHECK_OK(fsdp_fully_shard(l->block, &options));
        CHECK_OK(fsdp_fully_shard(&l->base, &options));
        CHECK_OK(fsdp_module_materialize(&l->base, test_device(context)));
    }
    CHECK_OK(fsdp_module_initialize(&l->base, 1));
    return &l->base;
}

static fsdp_tensor *mean_of_squares(fsdp_tensor *x)
{
    return fsdp_mean(fsdp_mul(x, x));
}

/* The output for rows [first, first + rows) of batch `step`. Belongs to the scope. */
static fsdp_tensor *look_up(fsdp_module *module, int step, int first, int rows)
{
    int32_t ids[WAYS_ROWS * WAYS_WORLDS];

    for (int i = 0; i < rows; i++)
        ids[i] = ((first + i) * 3 + step) % IDS;
    return CHECK_PTR(
        fsdp_call(module, CHECK_PTR(fsdp_from_data(test_device(module->context), FSDP_I32, FSDP_SHAPE(rows), ids))));
}

/* This rank's rows; all ranks' in a plain run. */
static fsdp_tensor *look_up_part(const way_run *run, fsdp_module *module, int step)
{
    int rows = run->way ? WAYS_ROWS : WAYS_ROWS * run->world;

    return look_up(module, step, fsdp_context_rank(module->context) * rows, rows);
}

/* ---- a forward inside the backward ---- */

typedef struct inside {
    fsdp_module *module;
    way_run *run;
} inside;

static void note_item(inside *in, fsdp_tensor *loss)
{
    double value;
    float noted;

    CHECK_OK(fsdp_tensor_item(CHECK_PTR(loss), &value));
    noted = (float)value;
    note(in->module->context, in->run, &noted, 1);
}

/* The same rows on all ranks. */
static fsdp_status evaluate_model(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    inside *in = arg;

    (void)tensor;
    (void)grad;
    dawdle(in->module->context, in->run);
    fsdp_no_grad_begin(in->module->context);
    note_item(in, mean_of_squares(look_up(in->module, 5, 0, WAYS_ROWS)));
    fsdp_no_grad_end(in->module->context);
    return FSDP_OK;
}

static void evaluate_in_backward(fsdp_context *context, way_run *run)
{
    fsdp_module *module = lookup_create(context, run, (fsdp_reshard)run->arg);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    inside in = {module, run};

    for (int step = 0; step < 3; step++) {
        fsdp_tensor *y;

        CHECK_OK(fsdp_scope_begin(context));
        y = look_up_part(run, module, step);
        CHECK_OK(fsdp_tensor_add_grad_hook(y, evaluate_model, &in));
        CHECK_OK(fsdp_backward(CHECK_PTR(mean_of_squares(y))));
        fsdp_scope_end(context, NULL);
        note_gradients(run, module);
        ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
}

TEST(a_hook_on_the_output_may_evaluate_the_model)
{
    for (int reshard = FSDP_RESHARD_AUTO; reshard <= FSDP_RESHARD_NEVER; reshard++)
        in_every_way_with(evaluate_in_backward, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, reshard);
}

static fsdp_status evaluate_block(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    inside *in = arg;
    fsdp_context *context = in->module->context;
    float values[2 * NET_DIM];

    (void)tensor;
    (void)grad;
    for (int i = 0; i < 2 * NET_DIM; i++)
        values[i] = (float)(i % 5) / 4.0f - 0.5f;
    fsdp_no_grad_begin(context);
    note_item(in, mean_of_squares(fsdp_call(
                      net_block_at(in->module, 0),
                      CHECK_PTR(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM), values)))));
    fsdp_no_grad_end(context);
    dawdle(context, in->run);
    return FSDP_OK;
}

static void set_sync(const way_run *run, fsdp_module *module, bool sync)
{
    if (run->way)
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, sync, true));
}

/* The slow rank's backward still reads the head when the others write to it. */
WAYS_TEST(a_write_waits_for_a_backward_in_which_a_block_was_evaluated, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = ways_net(context, run, 1, FSDP_RESHARD_NEVER);
    int rows = run->way ? WAYS_ROWS : WAYS_ROWS * run->world;
    inside in = {module, run};

    for (int step = 0; step < 2; step++) {
        fsdp_tensor *x, *targets, *y;

        set_sync(run, module, false);
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, step, fsdp_context_rank(context) * rows, rows, &x, &targets);
        y = CHECK_PTR(fsdp_call(module, x));
        CHECK_OK(fsdp_tensor_add_grad_hook(y, evaluate_block, &in));
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_cross_entropy(y, targets))));
        CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(module, "head.weight")), 0.5 + step));
        CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(module, "norm.weight")), 1.5 + step));
        fsdp_scope_end(context, NULL);
        set_sync(run, module, true);
        ways_backward(run, module, step + 3);
        note_gradients(run, module);
        fsdp_module_zero_grad(module);
    }
    note_weights(run, module);
    fsdp_module_unref(module);
}

/* ---- a backward inside the forward ---- */

/* A loss of the block's own; then the root uses its table again, and the block where the input is given twice. */
static fsdp_tensor *local_loss_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    lookup *l = (lookup *)self;
    fsdp_tensor *x = fsdp_call(l->table, inputs[0]), *cut = CHECK_PTR(fsdp_detach(x));

    if (count > 1)
        CHECK_OK(fsdp_tensor_set_requires_grad(cut, true));
    CHECK_OK(fsdp_backward(CHECK_PTR(mean_of_squares(fsdp_call(l->block, cut)))));
    if (count > 1)
        x = fsdp_call(l->block, fsdp_add(x, fsdp_scale(fsdp_tensor_grad(cut), (double)fsdp_tensor_shape(x)[0])));
    return fsdp_add(x, fsdp_call(l->table, inputs[0]));
}

static fsdp_tensor *local_loss_forward_twice(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return local_loss_forward(self, (fsdp_tensor *const[]){inputs[0], inputs[0]}, 2);
}

static const fsdp_module_type local_loss_types[] = {{.name = "Lookup", .forward = local_loss_forward},
                                                    {.name = "Lookup", .forward = local_loss_forward_twice}};

static void backward_in_forward(fsdp_context *context, way_run *run)
{
    fsdp_module *module = lookup_create(context, run, (fsdp_reshard)(run->arg / 2));
    fsdp_optimizer *optimizer = ways_optimizer(module);

    module->type = &local_loss_types[run->arg % 2];
    for (int step = 0; step < 3; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        dawdle(context, run);
        CHECK_OK(fsdp_backward(CHECK_PTR(mean_of_squares(look_up_part(run, module, step)))));
        fsdp_scope_end(context, NULL);
        note_gradients(run, module);
        ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
}

TEST(a_root_goes_on_after_a_backward_inside_its_forward)
{
    for (int arg = 0; arg < 6; arg++)
        in_every_way_with(backward_in_forward, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, arg);
}

/* ---- modules that call themselves ---- */

/* With two inputs it is the call inside. */
static fsdp_tensor *recursive_block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net_block *b = (net_block *)self;
    fsdp_tensor *x = count == 1 ? fsdp_call(self, inputs[0], inputs[0]) : inputs[0];

    return fsdp_add(inputs[0], fsdp_call(b->down, fsdp_gelu(fsdp_call(b->up, x))));
}

/* The call inside is one without targets. */
static fsdp_tensor *recursive_net_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net *n = (net *)self;
    fsdp_tensor *x;

    if (count == 1)
        return net_forward(self, inputs, count);
    x = fsdp_call(self, inputs[0]);
    x = fsdp_add(x, fsdp_call(n->head, fsdp_call(n->norm, fsdp_call(n->input, inputs[0]))));
    return fsdp_cross_entropy(x, inputs[1]);
}

static const fsdp_module_type recursive_block_type = {.name = "Block", .forward = recursive_block_forward};
static const fsdp_module_type recursive_net_type = {.name = "Net", .forward = recursive_net_forward};

enum {
    ROOT_CALLS_ITSELF = 1,
    CHILD_CALLS_ITSELF = 2
};

static void call_itself(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, (fsdp_reshard)(run->arg / 4));
    fsdp_optimizer *optimizer = ways_optimizer(module);

    if (run->arg & ROOT_CALLS_ITSELF)
        module->type = &recursive_net_type;
    if (run->arg & CHILD_CALLS_ITSELF)
        net_block_at(module, 0)->type = &recursive_block_type;
    for (int step = 0; step < 2; step++) {
        dawdle(context, run);
        ways_backward(run, module, step);
        note_gradients(run, module);
        ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
}

TEST(a_module_that_calls_itself_goes_on_with_its_parameters)
{
    for (int reshard = FSDP_RESHARD_AUTO; reshard <= FSDP_RESHARD_NEVER; reshard++)
        for (int who = ROOT_CALLS_ITSELF; who <= (ROOT_CALLS_ITSELF | CHILD_CALLS_ITSELF); who++)
            in_every_way_with(call_itself, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, reshard * 4 + who);
}

/* ---- forwards that fail ---- */

static fsdp_tensor *failing_block_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_add(inputs[0], fsdp_call(((net_block *)self)->up, inputs[0])); /* of another size */
}

static fsdp_tensor *tolerant_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net *n = (net *)self;
    fsdp_tensor *x = fsdp_call(n->input, inputs[0]), *y;

    (void)count;
    for (int i = 0; i < BLOCKS; i++) {
        y = fsdp_call(net_block_at(self, i), x);
        x = y ? y : x;
    }
    return fsdp_cross_entropy(fsdp_call(n->head, fsdp_call(n->norm, x)), inputs[1]);
}

static const fsdp_module_type failing_block_type = {.name = "Block", .forward = failing_block_forward};
static const fsdp_module_type tolerant_type = {.name = "Net", .forward = tolerant_forward};

static void check_sharded(fsdp_module *module)
{
    fsdp_shard_info info;

    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK_EQ(info.state, FSDP_SHARDED);
}

/* In an evaluation between backward and step, or in a step of its own. */
static void go_on_without(fsdp_context *context, way_run *run)
{
    int failing = run->arg % 2, train = run->arg / 2 % 2;
    fsdp_module *module = ways_net(context, run, BLOCKS, run->arg / 4 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO);
    fsdp_module *block = net_block_at(module, failing);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    module->type = &tolerant_type;
    for (int step = 0; step < 3; step++) {
        ways_backward(run, module, step);
        block->type = &failing_block_type;
        dawdle(context, run);
        if (train)
            ways_backward(run, module, step + 3);
        else
            (void)ways_evaluate(run, module, 3);
        block->type = &net_block_type;
        if (run->way && run->arg / 4 == 0)
            check_sharded(block);
        if (step == 1)
            CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(block, "up.bias")), 0.25));
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(a_child_that_failed_is_sharded_and_can_be_written)
{
    for (int arg = 0; arg < 8; arg++)
        in_every_way_with(go_on_without, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, arg);
}

/* On every rank. */
static void fail_a_call(const way_run *run, fsdp_module *module)
{
    fsdp_context *context = module->context;
    fsdp_tensor *x, *targets, *loss;

    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, WAYS_ROWS, &x, &targets);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, run->arg);
    loss = fsdp_call(module, x, targets);
    CHECK(fsdp__fault_hit(FSDP__FAULT_ALLOCATION));
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_NULL(loss);
    CHECK_EQ(fsdp_last_status(), FSDP_NO_MEMORY);
    fsdp_scope_end(context, NULL);
}

static void fail_before_forward(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int step = 0; step < 3; step++) {
        fsdp_tensor *loss;

        if (run->way)
            fail_a_call(run, module);
        dawdle(context, run);
        CHECK_OK(fsdp_scope_begin(context));
        loss = ways_loss(run, module, step);
        if (run->way && step > 0)
            fail_a_call(run, module);
        CHECK_OK(fsdp_backward(loss));
        fsdp_scope_end(context, NULL);
        if (run->way)
            fail_a_call(run, module);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(a_model_whose_call_fails_at_its_beginning_trains_on)
{
    test_only_on_one_machine("the first memory that a call takes is that of a message, which others wait for");
    in_every_way_with(fail_before_forward, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, 1);
}

/* ---- a forward that fails inside a backward ---- */

static inside failing[WAYS_WORLDS];

/* The hook looks whether the model can be evaluated; it cannot, and the backward goes on. */
static fsdp_status fail_inside(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    const inside *in = arg;
    fsdp_module *block = ((lookup *)in->module)->block;
    fsdp_context *context = in->module->context;
    int32_t id = 0;

    (void)tensor;
    (void)grad;
    fsdp_no_grad_begin(context);
    block->type = &failing_block_type;
    CHECK_NULL(fsdp_call(in->module, fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(1), &id)));
    block->type = &net_block_type;
    fsdp_no_grad_end(context);
    return FSDP_OK;
}

/* The gradient of the table's second use has arrived when the hook runs. */
static fsdp_tensor *hooked_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    lookup *l = (lookup *)self;
    fsdp_tensor *x = fsdp_call(l->table, inputs[0]);

    (void)count;
    if (fsdp_grad_enabled(self->context))
        CHECK_OK(fsdp_tensor_add_grad_hook(x, fail_inside, &failing[fsdp_context_rank(self->context)]));
    return fsdp_add(fsdp_call(l->block, x), fsdp_call(l->table, inputs[0]));
}

static const fsdp_module_type hooked_type = {.name = "Hooked", .forward = hooked_forward};

static void fail_in_backward(fsdp_context *context, way_run *run)
{
    fsdp_module *module = lookup_create(context, run, (fsdp_reshard)run->arg);

    failing[fsdp_context_rank(context)] = (inside){module, run};
    module->type = &hooked_type;
    for (int step = 0; step < 2; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_backward(CHECK_PTR(mean_of_squares(look_up_part(run, module, step)))));
        fsdp_scope_end(context, NULL);
        note_gradients(run, module);
        fsdp_module_zero_grad(module);
    }
    fsdp_module_unref(module);
}

TEST(a_forward_that_fails_inside_a_backward_costs_it_nothing)
{
    for (int reshard = FSDP_RESHARD_AUTO; reshard <= FSDP_RESHARD_NEVER; reshard++)
        in_every_way_with(fail_in_backward, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, reshard);
}
