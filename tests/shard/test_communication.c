/* Collectives per step: their number, their bytes, their order. */
#include "shard/net.h"

enum {
    BLOCKS = 3,
    GROUPS = BLOCKS + 1
};

typedef struct expectation {
    fsdp_reshard reshard;
    int ranks; /* reshard_after_forward_ranks, where it divides the world */
    bool root_only, manual_reshard, copy;
    int micros;
    bool sync;
    int64_t forward_gathers, backward_gathers, reductions; /* of one step, all microbatches */
} expectation;

static int64_t calls(fsdp_context *context, fsdp_collective kind)
{
    fsdp_comm_stats stats;

    fsdp_context_comm_stats(context, &stats);
    return stats.calls[kind];
}

static void count(fsdp_context *context, void *arg)
{
    const expectation *e = arg;
    fsdp_shard_options options = {
        .reshard_after_forward = e->reshard, .reshard_after_forward_ranks = e->ranks, .no_shared_memory = e->copy};
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    int ranks = fsdp_context_world_size(context) > 1;

    if (e->root_only)
        CHECK_OK(fsdp_fully_shard(module, &options));
    else
        net_shard(module, &options);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));

    for (int step = 0; step < 3; step++) {
        int64_t forward = 0, backward = 0, rows = NET_ROWS / fsdp_context_world_size(context) / e->micros;

        fsdp_context_reset_comm_stats(context);
        for (int micro = 0; micro < e->micros; micro++) {
            int64_t before = calls(context, FSDP_ALL_GATHER);
            fsdp_tensor *x, *targets, *loss;

            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, e->sync || micro == e->micros - 1, true));
            CHECK_OK(fsdp_scope_begin(context));
            net_batch(context, step, 0, (int)rows, &x, &targets);
            loss = CHECK_PTR(fsdp_call(module, x, targets));
            forward += calls(context, FSDP_ALL_GATHER) - before;
            if (e->manual_reshard)
                CHECK_OK(fsdp_module_reshard_all(module));
            CHECK_OK(fsdp_backward(loss));
            fsdp_scope_end(context, NULL);
            backward += calls(context, FSDP_ALL_GATHER) - before;
        }
        backward -= forward;
        CHECK_EQ(forward, ranks * e->forward_gathers);
        CHECK_EQ(backward, ranks * e->backward_gathers);
        CHECK_EQ(calls(context, FSDP_REDUCE_SCATTER), ranks * e->reductions);
        CHECK_EQ(calls(context, FSDP_ALL_REDUCE), 0);
        net_sgd(module, 0.1f);
    }
    fsdp_module_unref(module);
}

static void counts_per_step_are_those_of_fsdp2(void **state)
{
    const int g = GROUPS;
    const expectation cases[] = {
        {.reshard = FSDP_RESHARD_ALWAYS, .micros = 1, .forward_gathers = g, .backward_gathers = g, .reductions = g},
        {.reshard = FSDP_RESHARD_AUTO, .micros = 1, .forward_gathers = g, .backward_gathers = g - 1, .reductions = g},
        {.reshard = FSDP_RESHARD_NEVER, .micros = 1, .forward_gathers = g, .backward_gathers = 0, .reductions = g},
        {.reshard = FSDP_RESHARD_NEVER,
         .manual_reshard = true,
         .micros = 1,
         .forward_gathers = g,
         .backward_gathers = g,
         .reductions = g},
        {.reshard = FSDP_RESHARD_AUTO, .root_only = true, .micros = 1, .forward_gathers = 1, .reductions = 1},
        {.reshard = FSDP_RESHARD_ALWAYS,
         .micros = 3,
         .forward_gathers = 3 * g,
         .backward_gathers = 3 * g,
         .reductions = g},
        {.reshard = FSDP_RESHARD_ALWAYS,
         .micros = 3,
         .sync = true,
         .forward_gathers = 3 * g,
         .backward_gathers = 3 * g,
         .reductions = 3 * g},
        {.reshard = FSDP_RESHARD_NEVER, .micros = 2, .forward_gathers = 2 * g, .reductions = g},
        {.ranks = 1, .micros = 1, .forward_gathers = g, .reductions = g},
        {.ranks = 2, .micros = 1, .forward_gathers = g, .backward_gathers = g, .reductions = g},
        {.ranks = 2, .micros = 3, .forward_gathers = 3 * g, .backward_gathers = 3 * g, .reductions = g},
    };

    (void)state;
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++)
        for (int world = 1; world <= 4; world++)
            for (int copy = 0; copy < 2 && (!cases[i].ranks || world % cases[i].ranks == 0); copy++) {
                expectation e = cases[i];

                e.copy = copy;
                test_run_ranks(world, count, &e);
            }
}

/* (W-1)/W * P * (2 es(p) + es(r)) for full sharding, P with rows padded to a multiple of W. Where 1/k is kept, the
 * second gather is (k-1)/k * P * es(p). */
static void bytes(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = *(fsdp_shard_options *)arg;
    fsdp_mp_policy policy = options.mp_policy;
    fsdp_module *module = net_sharded(context, BLOCKS, &options);
    int64_t padded = 0, world = fsdp_context_world_size(context);
    int64_t k = options.reshard_after_forward_ranks ? options.reshard_after_forward_ranks : world;
    int64_t p = policy.param_dtype ? 2 : 4, r = policy.reduce_dtype == FSDP_BF16 ? 2 : 4;
    fsdp_comm_stats stats;
    fsdp_shard_info info;

    CHECK_OK(fsdp_module_shard_info(module, &info));
    padded += info.padded_numel;
    for (int i = 0; i < BLOCKS; i++) {
        CHECK_OK(fsdp_module_shard_info(net_block_at(module, i), &info));
        padded += info.padded_numel;
    }
    fsdp_context_reset_comm_stats(context);
    net_forward_backward(module, 0, 0, 1);
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], ((world - 1) * padded / world + (k - 1) * padded / k) * p);
    CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], (world - 1) * padded / world * r);
    if (!policy.param_dtype && test_on_cpu())
        CHECK_EQ(stats.bytes_moved[FSDP_ALL_GATHER], 0); /* on one machine and without a cast: a barrier */
    fsdp_module_unref(module);
}

static void bytes_per_step_are_those_of_the_formula(void **state)
{
    fsdp_mp_policy policies[] = {{0},
                                 {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_BF16},
                                 {.param_dtype = FSDP_BF16}}; /* reduced in the shard's dtype */

    (void)state;
    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < FSDP__COUNT_OF(policies); i++)
            for (int k = 0; k <= (world == 4 ? 2 : 0); k += 2) {
                fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                              .reshard_after_forward_ranks = k,
                                              .mp_policy = policies[i]};

                test_run_ranks(world, bytes, &options);
            }
}

/* ---- order ---- */

typedef struct recording {
    fsdp_module *root;
    char text[512];
} recording;

static void record(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    recording *r = arg;
    char name[8] = "root";

    for (int i = 0; i < BLOCKS; i++)
        if (module == net_block_at(r->root, i))
            snprintf(name, sizeof name, "%d", i);
    if (event == FSDP_EVENT_UNSHARD || event == FSDP_EVENT_POST_BACKWARD)
        snprintf(r->text + strlen(r->text), sizeof r->text - strlen(r->text), "%s%s ",
                 event == FSDP_EVENT_UNSHARD ? "U" : "PB", name);
}

static void order(fsdp_context *context, void *arg)
{
    static const char *const forward = "Uroot U0 U1 U2 ";
    static const char *const backward[] = {
        [FSDP_RESHARD_ALWAYS] = "Uroot U2 U1 PB2 U0 PB1 PB0 PBroot ",
        [FSDP_RESHARD_AUTO] = "U2 U1 PB2 U0 PB1 PB0 PBroot ",
        [FSDP_RESHARD_NEVER] = "PB2 PB1 PB0 PBroot ",
    };
    fsdp_shard_options options = {.reshard_after_forward = *(fsdp_reshard *)arg};
    recording r = {.root = net_sharded(context, BLOCKS, &options)};

    CHECK_OK(fsdp_module_set_shard_listener(r.root, record, &r));
    for (int step = 0; step < 2; step++) {
        fsdp_tensor *x, *targets, *loss;

        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, step, 0, 3, &x, &targets);
        r.text[0] = '\0';
        loss = CHECK_PTR(fsdp_call(r.root, x, targets));
        CHECK_STRING(r.text, forward);
        r.text[0] = '\0';
        CHECK_OK(fsdp_backward(loss));
        CHECK_STRING(r.text, backward[options.reshard_after_forward]);
        fsdp_scope_end(context, NULL);
        net_sgd(r.root, 0.1f);
    }
    fsdp_module_unref(r.root);
}

static void groups_come_and_go_in_the_order_of_fsdp2(void **state)
{
    (void)state;
    for (int world = 1; world <= 3; world++)
        for (fsdp_reshard reshard = FSDP_RESHARD_AUTO; reshard <= FSDP_RESHARD_NEVER; reshard++)
            test_run_ranks(world, order, &reshard);
}

TEST_MAIN(cmocka_unit_test(counts_per_step_are_those_of_fsdp2),
          cmocka_unit_test(bytes_per_step_are_those_of_the_formula),
          cmocka_unit_test(groups_come_and_go_in_the_order_of_fsdp2))
