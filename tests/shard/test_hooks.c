/* Hooks that call the library, and what only one rank does: gradient hooks of shards, operations on shards, a reshard
 * and writes between uses.
 * Links: optim */
#include <stdarg.h>

#include "shard/ways.h"

enum {
    BLOCKS = 2
};

static fsdp_tensor *shard_at(fsdp_module *module, const char *name)
{
    return CHECK_PTR(fsdp_module_parameter(module, name));
}

/* ---- what happened ---- */

typedef struct journal {
    char text[8192];
    size_t length;
} journal;

static void FSDP_PRINTF(2, 3) enter(journal *j, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    j->length += (size_t)vsnprintf(j->text + j->length, sizeof j->text - j->length, format, arguments);
    va_end(arguments);
    CHECK(j->length < sizeof j->text);
}

static void listen(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    static const char *const names[] = {"unshard",      "wait",         "reshard",       "pre_forward",
                                        "post_forward", "pre_backward", "post_backward", "reduce"};
    fsdp_shard_info info;

    CHECK_OK(fsdp_module_shard_info(module, &info));
    enter(arg, "%s of '%s'\n", names[event], info.name ? info.name : "?");
}

static void note_text(fsdp_context *context, way_run *run, const journal *j)
{
    for (size_t i = 0; i < j->length; i++) {
        float letter = (float)j->text[i];

        note(context, run, &letter, 1);
    }
}

/* ---- hooks of a shard that call the library ---- */

typedef enum deed {
    ZERO_GRADIENTS,
    DROP_ANOTHER,
    SET_ANOTHER,
    WALK_ANOTHER_LOSS,
    FREEZE_BLOCK,
    DEEDS
} deed;

typedef struct meddler {
    fsdp_module *module;
    fsdp_tensor *another;
    fsdp_tensor *loss; /* to be walked once */
    journal *journal;
    deed deed;
    int fired;
} meddler;

static void walk_another(meddler *m)
{
    fsdp_tensor *loss = m->loss;

    m->loss = NULL;
    if (loss)
        CHECK_OK(fsdp_backward(loss));
}

static fsdp_status meddle(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    meddler *m = arg;

    CHECK(*grad != NULL && fsdp_tensor_numel(*grad) == fsdp_tensor_numel(tensor));
    m->fired++;
    enter(m->journal, "hook\n");
    switch (m->deed) {
    case ZERO_GRADIENTS:
        fsdp_module_zero_grad(m->module);
        break;
    case DROP_ANOTHER:
        CHECK_OK(fsdp_tensor_set_grad(m->another, NULL));
        break;
    case SET_ANOTHER:
        CHECK_OK(fsdp_tensor_set_grad(
            m->another, CHECK_PTR(fsdp_full(fsdp_tensor_device(m->another), FSDP_F32, fsdp_tensor_ndim(m->another),
                                            fsdp_tensor_shape(m->another), 0.25))));
        break;
    case WALK_ANOTHER_LOSS:
        walk_another(m);
        break;
    default:
        CHECK_OK(fsdp_module_set_requires_grad(net_block_at(m->module, 0), m->fired % 2 == 0));
    }
    enter(m->journal, "hook done\n");
    return FSDP_OK;
}

/* Of the group reduced before, its own, one that comes later. */
static const char *const others[] = {"head.weight", "blocks.1.down.weight", "blocks.0.up.weight"};

static void meddle_in_backward(fsdp_context *context, way_run *run, bool journaled)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_tensor *hooked = shard_at(module, "blocks.1.up.weight");
    journal *j = calloc(1, sizeof *j);
    meddler m = {.module = module, .journal = j};

    m.deed = (deed)(run->arg % DEEDS);
    m.another = shard_at(module, others[run->arg / DEEDS]);
    CHECK_OK(fsdp_tensor_add_grad_hook(hooked, meddle, &m));
    if (run->way)
        CHECK_OK(fsdp_module_set_shard_listener(module, listen, j));
    for (int step = 0; step < 3; step++) {
        fsdp_tensor *loss;

        CHECK_OK(fsdp_scope_begin(context));
        m.loss = m.deed == WALK_ANOTHER_LOSS ? ways_loss(run, module, step + 5) : NULL;
        loss = ways_loss(run, module, step);
        dawdle(context, run);
        CHECK_OK(fsdp_backward(loss));
        enter(j, "end of step\n");
        fsdp_scope_end(context, NULL);
        note_gradients(run, module);
        if (step == 1)
            fsdp_module_zero_grad(module);
    }
    CHECK_EQ(m.fired, m.deed == WALK_ANOTHER_LOSS ? 6 : 3);
    if (journaled)
        note_text(context, run, j);
    fsdp_module_unref(module);
    free(j);
}

static void meddle_with_journal(fsdp_context *context, way_run *run)
{
    meddle_in_backward(context, run, true);
}

WAYS_TEST_BY(a_hook_that_walks_another_loss_adds_its_gradients, in_every_way_with, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN,
             WALK_ANOTHER_LOSS)
{
    meddle_in_backward(context, run, false);
}

TEST(hooks_that_call_the_library_run_at_the_same_moment_in_every_way)
{
    for (int arg = 0; arg < DEEDS * (int)FSDP__COUNT_OF(others); arg++)
        if (arg / DEEDS == 0 || arg % DEEDS == DROP_ANOTHER || arg % DEEDS == SET_ANOTHER)
            in_every_way_with(meddle_with_journal, WAYS_RANKS_AGREE, arg);
}

/* ---- a hook on one rank ---- */

static fsdp_status count_calls(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    (void)tensor;
    (void)grad;
    ++*(int *)arg;
    return FSDP_OK;
}

static void hook_one_rank(fsdp_context *context, way_run *run)
{
    static const char *const names[] = {"head.weight", "blocks.1.up.weight", "blocks.0.down.bias"};
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    bool mine = fsdp_context_rank(context) == run->slow;
    fsdp_optimizer *optimizer = ways_optimizer(module);
    int calls = 0;

    if (mine)
        CHECK_OK(fsdp_tensor_add_grad_hook(shard_at(module, names[run->arg % 3]), count_calls, &calls));
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 2; i++) {
            if (run->way && run->arg / 3)
                CHECK_OK(fsdp_module_set_is_last_backward(module, i == 1));
            dawdle(context, run);
            ways_backward(run, module, step * 2 + i);
        }
        CHECK_EQ(calls, mine ? 2 * step + 2 : 0);
        note_gradients(run, module);
        ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
}

TEST(a_hook_on_one_rank_disturbs_nobody)
{
    for (int arg = 0; arg < 6; arg++)
        in_every_way_with(hook_one_rank, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, arg);
}

/* ---- operations on the shard itself ---- */

static void penalise(fsdp_module *module)
{
    fsdp_context *context = module->context;
    fsdp_parameters shards;

    CHECK_OK(fsdp_module_parameters(module, &shards));
    for (int64_t i = 0; i < shards.count; i++) {
        fsdp_tensor *p = shards.items[i].tensor;

        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_scale(fsdp_sum(fsdp_mul(p, p)), 0.25))));
        fsdp_scope_end(context, NULL);
    }
    fsdp_parameters_release(&shards);
}

static void check_distributed(const fsdp_tensor *p)
{
    const fsdp_tensor *gradient = CHECK_PTR(fsdp_tensor_grad(p));
    const fsdp_distribution *d = CHECK_PTR(fsdp_tensor_distribution(gradient)), *own = fsdp_tensor_distribution(p);
    fsdp_tensor *whole;

    CHECK_EQ(d->ndim, own->ndim);
    CHECK_OK(fsdp_full_tensor(gradient, &whole));
    CHECK_EQ(fsdp_tensor_ndim(whole), own->ndim);
    CHECK_BYTES(fsdp_tensor_shape(whole), own->global_shape, (size_t)own->ndim * sizeof(int64_t));
    fsdp_tensor_unref(whole);
}

/* Before a backward of the model, or after it. */
WAYS_TEST(a_gradient_of_an_operation_on_the_shard_is_distributed, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_parameters shards;

    CHECK_OK(fsdp_module_parameters(module, &shards));
    for (int step = 0; step < 3; step++) {
        if (step % 2)
            ways_backward(run, module, step);
        dawdle(context, run);
        penalise(module);
        for (int64_t i = 0; i < shards.count && run->way; i++)
            check_distributed(shards.items[i].tensor);
        note_gradients(run, module);
        if (step % 2 == 0)
            ways_backward(run, module, step);
        note_gradients(run, module);
        ways_step(optimizer);
    }
    fsdp_parameters_release(&shards);
    ways_end(run, module, optimizer);
}

/* ---- what one rank does between uses ---- */

static bool acts(fsdp_context *context, const way_run *run, int turn)
{
    return run->way && fsdp_context_rank(context) == turn % run->world;
}

static void reshard_on_one(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, (fsdp_reshard)run->arg);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int step = 0; step < 4; step++) {
        (void)ways_evaluate(run, module, 7);
        dawdle(context, run);
        if (acts(context, run, step))
            CHECK_OK(fsdp_module_reshard_all(module));
        if (step % 2)
            (void)ways_evaluate(run, module, 8);
        ways_backward(run, module, step);
        if (acts(context, run, step + 1))
            CHECK_OK(fsdp_module_reshard_all(module));
        note_gradients(run, module);
        if (step > 0)
            ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
}

TEST(one_rank_may_reshard_after_an_evaluation)
{
    for (int reshard = FSDP_RESHARD_AUTO; reshard <= FSDP_RESHARD_NEVER; reshard++)
        in_every_way_with(reshard_on_one, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, reshard);
}

/* The rows of the rank whose turn it is; in a plain run they are found by the chunk rule. */
static void write_rows(const way_run *run, fsdp_tensor *p, int turn, float value)
{
    int64_t numel = fsdp_tensor_numel(p), rows = fsdp_tensor_shape(p)[0], width = numel / (rows ? rows : 1);
    int64_t chunk = (rows + run->world - 1) / run->world * width, first = turn % run->world * chunk;
    float *values = calloc((size_t)numel + 1, sizeof *values);

    if (!run->way) {
        CHECK_OK(fsdp_tensor_read(p, FSDP_F32, values));
        for (int64_t i = first; i < numel && i < first + chunk; i++)
            values[i] = value;
        CHECK_OK(fsdp_tensor_write(p, FSDP_F32, values));
    } else if (acts(fsdp_device_context(fsdp_tensor_device(p)), run, turn)) {
        CHECK_OK(fsdp_tensor_fill_(p, value));
    }
    free(values);
}

/* Looks at the whole parameter again after the write, or calls the model. */
static void write_in_window(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, run->arg / 2 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO);
    fsdp_tensor *head = shard_at(module, "head.weight"), *up = shard_at(module, "blocks.0.up.weight");
    fsdp_module *modules[] = {module, net_block_at(module, 0)};
    fsdp_optimizer *optimizer = ways_optimizer(module);

    (void)ways_evaluate(run, module, 0); /* before the first forward the groups do not know of each other */
    for (int step = 0; step < 4; step++) {
        for (int again = 0; again < 1 + run->arg % 2; again++) {
            for (int i = 0; i < 2 && run->way; i++)
                CHECK_OK(fsdp_module_unshard(modules[i]));
            note_tensor(run, shard_at(module, "head.weight"));
            note_tensor(run, shard_at(module, "blocks.0.up.weight"));
            dawdle(context, run);
            if (again == 0) {
                write_rows(run, head, step, 0.1f * (float)(step + 1));
                write_rows(run, up, step, -0.1f * (float)(step + 1));
            }
        }
        (void)ways_evaluate(run, module, 3);
        ways_backward(run, module, step);
        if (run->way)
            CHECK_OK(fsdp_module_reshard_all(module));
        note_gradients(run, module);
        ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
}

TEST(what_one_rank_writes_in_a_window_is_gathered_by_all)
{
    for (int arg = 0; arg < 4; arg++)
        in_every_way_with(write_in_window, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, arg);
}

/* ---- hooks of a module's calls ---- */

typedef struct witness {
    fsdp_module *block;
    journal *journal;
    char when, fails; /* was it added before the block was sharded, or after */
} witness;

static fsdp_status see(const witness *w, char where)
{
    const fsdp_layer *up = (const fsdp_layer *)((const net_block *)w->block)->up;
    fsdp_shard_info info = {.state = FSDP_UNSHARDED};

    if (fsdp_module_is_sharded(w->block))
        CHECK_OK(fsdp_module_shard_info(w->block, &info));
    enter(w->journal, "%c%c%s\n", where, w->when, info.state == FSDP_UNSHARDED ? "" : " sharded");
    if (info.state == FSDP_UNSHARDED)
        CHECK_EQ(fsdp_tensor_size(up->weight, 0), NET_FFN);
    return w->fails == where ? FSDP_FAIL(FSDP_INVALID, "not today") : FSDP_OK;
}

static fsdp_status see_inputs(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    (void)module;
    CHECK(count == 1 && inputs[0]);
    return see(arg, '<');
}

static fsdp_status see_outputs(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                               fsdp_tensor **outputs, int output_count)
{
    (void)module, (void)inputs;
    CHECK(count == 1 && output_count == 1 && outputs[0]);
    return see(arg, '>');
}

static fsdp_status see_output_grads(void *arg, fsdp_module *module, fsdp_tensor **grads, int count)
{
    (void)module;
    CHECK(count == 1 && grads[0]);
    return see(arg, '[');
}

static fsdp_status see_input_grads(void *arg, fsdp_module *module, fsdp_tensor **grads, int count,
                                   fsdp_tensor *const *output_grads, int output_count)
{
    (void)module;
    CHECK(count == 1 && grads[0] && output_count == 1 && output_grads[0]);
    return see(arg, ']');
}

static void watch(witness *w, char when)
{
    const fsdp_module_hooks hooks = {.arg = w,
                                     .pre_forward = see_inputs,
                                     .post_forward = see_outputs,
                                     .pre_backward = see_output_grads,
                                     .post_backward = see_input_grads};

    w->when = when;
    CHECK_OK(fsdp_module_add_hooks(w->block, &hooks, NULL));
}

/* The same bits as without, and where a hook fails on all ranks the next step is as if it had not. */
WAYS_TEST_BY(hooks_of_calls_see_gathered_parameters, in_every_way_with, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, 1)
{
    fsdp_module *module = net_create(context, run->way ? fsdp_meta(context) : test_device(context), BLOCKS);
    journal j = {.length = 0};
    witness before = {.block = net_block_at(module, 1), .journal = &j}, after = before;
    fsdp_shard_options options = run->options;

    options.reshard_after_forward = FSDP_RESHARD_ALWAYS;
    if (run->arg)
        watch(&before, 'b');
    if (run->way) {
        net_shard(module, &options);
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    }
    CHECK_OK(fsdp_module_initialize(module, 1));
    if (run->arg)
        watch(&after, 'a');
    for (int step = 0; step < 5; step++) {
        after.fails = step == 0 ? '\0' : "<>[]"[step - 1];
        j.length = 0;
        if (after.fails && run->arg && run->way) {
            CHECK_STATUS(net_try(module), FSDP_INVALID);
            CHECK_CONTAINS(fsdp_last_error(), "not today");
            CHECK_OK(fsdp_module_reset_iteration(module));
        }
        after.fails = '\0';
        j.length = 0;
        ways_backward(run, module, step);
        if (run->arg && run->world > 1 && run->way)
            CHECK_STRING(j.text, "<b\n<a\n>b\n>a sharded\n[b sharded\n[a sharded\n]b\n]a\n");
        note_gradients(run, module);
        net_sgd(module, 0.1f);
    }
    note_weights(run, module);
    fsdp_module_unref(module);
}

/* ---- a backward that fails before it comes to the model ---- */

static fsdp_status fail_once(void *arg, fsdp_module *module, fsdp_tensor **grads, int count)
{
    bool *fails = arg;
    bool now = *fails;

    (void)module, (void)grads, (void)count;
    *fails = false;
    return now ? FSDP_FAIL(FSDP_IO, "not now") : FSDP_OK;
}

static void train_after_failures(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);
    bool fails = false;
    int64_t count;
    float *values;

    CHECK_OK(fsdp_module_add_hooks(module, &(fsdp_module_hooks){.arg = &fails, .pre_backward = fail_once}, NULL));
    for (int step = 0; step < 2; step++) {
        fails = true;
        CHECK_STATUS(net_try(module), FSDP_IO);
        (void)net_forward_backward(module, step, 0, 1);
        net_sgd(module, 0.1f);
    }
    values = net_values(module, &count);
    CHECK_CLOSE(values, (const float *)arg, count, 1e-5, 1e-6);
    free(values);
    fsdp_module_unref(module);
}

TEST(a_backward_that_fails_on_its_way_to_the_model_leaves_nothing)
{
    int64_t count;
    float *expected = net_expected(BLOCKS, 2, &count);

    for (int world = 1; world < 3; world++)
        test_run_ranks(world, train_after_failures, expected);
    free(expected);
}
