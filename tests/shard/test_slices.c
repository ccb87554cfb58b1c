/* reshard_after_forward as a number k: 1/k is kept after a forward, and what needs the group next gathers it over k
 * ranks. That changes nothing but what is sent and kept: the same script on a model that reshards altogether gives the
 * same bits, in every residence. */
#include "shard/net.h"
#include "shard/state/module_state.h"

enum {
    BLOCKS = 2,
    STEPS = 3
};

typedef struct slices {
    int k;
    fsdp_shard_options options;
} slices;

static fsdp_tensor *loss_of(fsdp_module *module, int step)
{
    fsdp_context *context = module->context;
    fsdp_tensor *x, *targets;

    net_batch(context, step, fsdp_context_rank(context) * 2, 2, &x, &targets);
    return CHECK_PTR(fsdp_call(module, x, targets));
}

/* ---- one script, two models ---- */

typedef struct pair {
    fsdp_module *modules[2]; /* keeps slices, reshards altogether */
} pair;

static void compare(pair *p, const char *after)
{
    int64_t count;
    float *part = net_values(p->modules[0], &count), *whole = net_values(p->modules[1], &count);

    if (memcmp(part, whole, (size_t)count * sizeof *part) != 0)
        TEST_FAIL("weights differ after: %s", after);
    free(part);
    free(whole);
}

static void compare_losses(fsdp_tensor *const *losses, const char *after)
{
    double values[2];

    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_tensor_item(losses[i], &values[i]));
    if (memcmp(&values[0], &values[1], sizeof values[0]) != 0)
        TEST_FAIL("losses differ in: %s", after);
}

static void train(pair *p, int step)
{
    for (int i = 0; i < 2; i++) {
        net_forward_backward(p->modules[i], step, 0, 1);
        net_sgd(p->modules[i], 0.1f);
    }
    compare(p, "a step");
}

static void evaluate(pair *p, int step)
{
    fsdp_tensor *losses[2];

    fsdp_no_grad_begin(p->modules[0]->context);
    for (int i = 0; i < 2; i++)
        losses[i] = loss_of(p->modules[i], step);
    fsdp_no_grad_end(p->modules[0]->context);
    compare_losses(losses, "an evaluation");
}

static void several_forwards(pair *p)
{
    for (int i = 0; i < 2; i++) {
        fsdp_tensor *first = loss_of(p->modules[i], 1), *second = loss_of(p->modules[i], 2);

        CHECK_OK(fsdp_backward_from(&first, NULL, 1, true)); /* kept, and walked again */
        CHECK_OK(fsdp_backward(second));
        CHECK_OK(fsdp_backward(first));
        net_sgd(p->modules[i], 0.1f);
    }
    compare(p, "two forwards, three backwards");
}

static void accumulate(pair *p)
{
    for (int i = 0; i < 2; i++)
        for (int micro = 0; micro < 2; micro++) {
            CHECK_OK(fsdp_module_set_requires_gradient_sync(p->modules[i], micro == 1, true));
            net_forward_backward(p->modules[i], 3, micro, 1);
        }
    for (int i = 0; i < 2; i++)
        net_sgd(p->modules[i], 0.1f);
    compare(p, "accumulation");
}

static void write_weight(fsdp_module *module, float value)
{
    CHECK_OK(fsdp_tensor_fill_(((fsdp_layer *)((net_block *)net_block_at(module, 1))->up)->weight, value));
}

/* By all ranks between a forward and its backward, which gathers the new values over all; by one between evaluations.
 */
static void write(pair *p)
{
    fsdp_tensor *losses[2];

    for (int i = 0; i < 2; i++) {
        losses[i] = loss_of(p->modules[i], 4);
        write_weight(p->modules[i], 0.25f);
        CHECK_OK(fsdp_backward(losses[i]));
        net_sgd(p->modules[i], 0.1f);
    }
    compare(p, "a write between forward and backward");
    evaluate(p, 4);
    for (int i = 0; i < 2; i++)
        if (fsdp_context_rank(p->modules[i]->context) == 1)
            write_weight(p->modules[i], 0.5f);
    evaluate(p, 4);
    compare(p, "a write by one rank");
}

static void by_hand(pair *p)
{
    fsdp_tensor *losses[2];

    evaluate(p, 5);
    for (int i = 0; i < 2; i++) {
        fsdp_module *block = net_block_at(p->modules[i], 0);

        CHECK_OK(fsdp_module_unshard(block)); /* from slices */
        CHECK_OK(fsdp_module_unshard_async(net_block_at(p->modules[i], 1)));
        losses[i] = loss_of(p->modules[i], 5);
        CHECK_OK(fsdp_module_reshard(block)); /* gives the slice up: the backward gathers over all */
        CHECK_OK(fsdp_backward(losses[i]));
        net_sgd(p->modules[i], 0.1f);
    }
    compare_losses(losses, "a forward after an unshard by hand");
    compare(p, "unshard and reshard by hand");
}

static void abandon(pair *p)
{
    for (int i = 0; i < 2; i++) {
        (void)loss_of(p->modules[i], 6);
        CHECK_OK(fsdp_module_reset_iteration(p->modules[i]));
    }
    train(p, 6);
}

static void change_settings(pair *p)
{
    for (int i = 0; i < 2; i++) {
        (void)loss_of(p->modules[i], 7); /* slices are kept, nobody goes back */
        CHECK_OK(fsdp_module_set_reshard_after_forward(p->modules[i], false, true));
        CHECK_OK(fsdp_module_set_reshard_after_backward(p->modules[i], false, true));
    }
    for (int step = 7; step < 10; step++)
        train(p, step); /* on what is always the newest, though nothing is resharded but by the writes */
}

static void play(fsdp_context *context, void *arg)
{
    const slices *s = arg;
    fsdp_shard_options part = s->options, whole = s->options;
    pair p;

    part.reshard_after_forward_ranks = s->k;
    whole.reshard_after_forward = FSDP_RESHARD_ALWAYS;
    p.modules[0] = net_sharded(context, BLOCKS, &part);
    p.modules[1] = net_sharded(context, BLOCKS, &whole);
    CHECK_OK(fsdp_scope_begin(context));
    for (int step = 0; step < STEPS; step++)
        train(&p, step);
    several_forwards(&p);
    evaluate(&p, 0);
    accumulate(&p);
    write(&p);
    by_hand(&p);
    abandon(&p);
    change_settings(&p);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(p.modules[0]);
    fsdp_module_unref(p.modules[1]);
}

TEST(slices_change_no_bit)
{
    static const int worlds[][2] = {{4, 2}, {6, 3}, {6, 2}, {3, 3}, {2, 1}};

    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        for (int way = 0; way < 8; way++) {
            slices s = {.k = worlds[w][1],
                        .options = {.no_shared_memory = way & 1,
                                    .mp_policy.param_dtype = way & 2 ? FSDP_BF16 : FSDP_DTYPE_NONE,
                                    .overlap = way & 4 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE}};

            if ((s.options.no_shared_memory && !test_on_cpu()) || (!test_long() && w > 0 && way != 7 - (int)w))
                continue; /* one way each, but for the first world */
            test_run_ranks(worlds[w][0], play, &s);
        }
}

/* ---- what is kept ---- */

static void look(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = {.no_shared_memory = *(bool *)arg, .reshard_after_forward_ranks = 2};
    fsdp_module *module = net_sharded(context, BLOCKS, &options), *other = net_sharded(context, 1, &options);
    const fsdp__module_state *first = fsdp__module_state_of(net_block_at(module, 0)),
                             *second = fsdp__module_state_of(net_block_at(other, 0));
    fsdp_comm_stats before, after;
    fsdp_tensor *loss;

    CHECK(first->groups[0]->slice.pg == second->groups[0]->slice.pg); /* one of a mesh and number */
    CHECK_EQ(fsdp_process_group_size(first->groups[0]->slice.pg), 2);
    CHECK_OK(fsdp_scope_begin(context));
    loss = loss_of(module, 0);
    CHECK_EQ(net_state(module), FSDP_SHARDED_POST_FORWARD);
    CHECK_EQ(net_state(net_block_at(module, 1)), FSDP_SHARDED_POST_FORWARD);
    fsdp_context_comm_stats(context, &before);
    CHECK_OK(fsdp_backward(loss));
    fsdp_context_comm_stats(context, &after);
    if (!options.no_shared_memory && test_on_cpu())
        CHECK_EQ(after.bytes_moved[FSDP_ALL_GATHER], before.bytes_moved[FSDP_ALL_GATHER]);
    CHECK_EQ(net_state(module), FSDP_SHARDED);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
    fsdp_module_unref(other);
}

TEST(a_slice_is_kept_until_the_backward)
{
    bool copy = false;

    test_run_ranks(4, look, &copy);
    copy = true;
    test_run_ranks(4, look, &copy);
}

/* ---- what is refused ---- */

RANKS_TEST(numbers_that_do_not_divide_the_ranks_are_refused, 4)
{
    fsdp_module *module = net_create(context, test_device(context), 1);

    CHECK_ERROR(fsdp_fully_shard(module, &(fsdp_shard_options){.reshard_after_forward_ranks = 3}), FSDP_INVALID,
                "reshard_after_forward_ranks 3 does not divide the 4 ranks");
    CHECK_ERROR(fsdp_fully_shard(module, &(fsdp_shard_options){.reshard_after_forward_ranks = -1}), FSDP_INVALID,
                "reshard_after_forward_ranks -1");
    CHECK(!fsdp_module_is_sharded(module));
    fsdp_module_unref(module);
}
