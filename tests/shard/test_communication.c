/* Collectives per step: their number, their bytes, their order. */
#include "fsdp/replicate.h"
#include "shard/net.h"

enum {
    BLOCKS = 3,
    GROUPS = BLOCKS + 1
};

typedef struct expectation {
    fsdp_reshard reshard;
    int ranks; /* reshard_after_forward_ranks, where it divides the world */
    bool root_only, manual_reshard, copy;
    enum {
        ROOT_AS_BUILT,
        ROOT_RESHARDS,
        ROOT_STAYS
    } root; /* set after the building, for the root alone */
    int micros;
    bool backward_last; /* reshard after the backward of the last microbatch only */
    bool sync;
    int64_t forward_gathers, backward_gathers, reductions; /* of one step, all microbatches */
} expectation;

static int64_t calls(fsdp_context *context, fsdp_collective kind)
{
    fsdp_comm_stats stats;

    fsdp_context_comm_stats(context, &stats);
    return stats.calls[kind];
}

static void set_microbatch(fsdp_module *module, const expectation *e, bool last)
{
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, e->sync || last, true));
    if (e->backward_last)
        CHECK_OK(fsdp_module_set_reshard_after_backward(module, last, true));
}

static fsdp_module *build(fsdp_context *context, const expectation *e)
{
    fsdp_shard_options options = {
        .reshard_after_forward = e->reshard, .reshard_after_forward_ranks = e->ranks, .no_shared_memory = e->copy};
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);

    if (e->root_only)
        CHECK_OK(fsdp_fully_shard(module, &options));
    else
        net_shard(module, &options);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    if (e->root != ROOT_AS_BUILT)
        CHECK_OK(fsdp_module_set_reshard_after_forward(module, e->root == ROOT_RESHARDS, false));
    return module;
}

static void count(fsdp_context *context, void *arg)
{
    const expectation *e = arg;
    fsdp_module *module = build(context, e);
    int ranks = fsdp_context_world_size(context) > 1;

    for (int step = 0; step < 3; step++) {
        int64_t forward = 0, backward = 0, rows = NET_ROWS / fsdp_context_world_size(context) / e->micros;

        fsdp_context_reset_comm_stats(context);
        for (int micro = 0; micro < e->micros; micro++) {
            int64_t before = calls(context, FSDP_ALL_GATHER);
            fsdp_tensor *x, *targets, *loss;

            set_microbatch(module, e, micro == e->micros - 1);
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

static const expectation cases[] = {
    {.reshard = FSDP_RESHARD_ALWAYS,
     .micros = 1,
     .forward_gathers = GROUPS,
     .backward_gathers = GROUPS,
     .reductions = GROUPS},
    {.reshard = FSDP_RESHARD_AUTO,
     .micros = 1,
     .forward_gathers = GROUPS,
     .backward_gathers = GROUPS - 1,
     .reductions = GROUPS},
    {.reshard = FSDP_RESHARD_NEVER,
     .micros = 1,
     .forward_gathers = GROUPS,
     .backward_gathers = 0,
     .reductions = GROUPS},
    {.reshard = FSDP_RESHARD_NEVER,
     .manual_reshard = true,
     .micros = 1,
     .forward_gathers = GROUPS,
     .backward_gathers = GROUPS,
     .reductions = GROUPS},
    {.reshard = FSDP_RESHARD_AUTO, .root_only = true, .micros = 1, .forward_gathers = 1, .reductions = 1},
    {.reshard = FSDP_RESHARD_ALWAYS,
     .micros = 3,
     .forward_gathers = 3 * GROUPS,
     .backward_gathers = 3 * GROUPS,
     .reductions = GROUPS},
    {.reshard = FSDP_RESHARD_ALWAYS,
     .micros = 3,
     .sync = true,
     .forward_gathers = 3 * GROUPS,
     .backward_gathers = 3 * GROUPS,
     .reductions = 3 * GROUPS},
    {.reshard = FSDP_RESHARD_NEVER, .micros = 2, .forward_gathers = 2 * GROUPS, .reductions = GROUPS},
    {.reshard = FSDP_RESHARD_NEVER,
     .backward_last = true,
     .micros = 3,
     .forward_gathers = GROUPS,
     .reductions = GROUPS},
    {.reshard = FSDP_RESHARD_NEVER,
     .root = ROOT_RESHARDS,
     .micros = 1,
     .forward_gathers = GROUPS,
     .backward_gathers = 1,
     .reductions = GROUPS},
    {.reshard = FSDP_RESHARD_ALWAYS,
     .root = ROOT_STAYS,
     .micros = 1,
     .forward_gathers = GROUPS,
     .backward_gathers = GROUPS - 1,
     .reductions = GROUPS},
    {.ranks = 1, .micros = 1, .forward_gathers = GROUPS, .reductions = GROUPS},
    {.ranks = 2, .micros = 1, .forward_gathers = GROUPS, .backward_gathers = GROUPS, .reductions = GROUPS},
    {.ranks = 2, .micros = 3, .forward_gathers = 3 * GROUPS, .backward_gathers = 3 * GROUPS, .reductions = GROUPS},
};

TEST(counts_per_step_are_those_of_fsdp2)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++)
        for (int world = 1; world <= 4; world++)
            for (int copy = 0; copy < 2 && (!cases[i].ranks || world % cases[i].ranks == 0); copy++) {
                expectation e = cases[i];

                e.copy = copy;
                if (!test_brief() || copy == world % 2)
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
    if (!policy.param_dtype && test_on_cpu() && fsdp_context_machines(context) == 1)
        CHECK_EQ(stats.bytes_moved[FSDP_ALL_GATHER], 0); /* on one machine and without a cast: a barrier */
    fsdp_module_unref(module);
}

TEST(bytes_per_step_are_those_of_the_formula)
{
    fsdp_mp_policy policies[] = {{0},
                                 {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_BF16},
                                 {.param_dtype = FSDP_BF16}}; /* reduced in the shard's dtype */

    for (int world = 1; world <= 4; world++)
        for (size_t i = 0; i < FSDP__COUNT_OF(policies); i++)
            for (int k = 0; k <= (world == 4 ? 2 : 0); k += 2) {
                fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                              .reshard_after_forward_ranks = k,
                                              .mp_policy = policies[i]};

                test_run_ranks(world, bytes, &options);
            }
}

/* ---- gathers of other bytes ---- */

static int64_t up_to(int64_t bytes, int64_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

/* What a rank sends of a Linear: its weight a byte an element behind its scales, its bias in `p` bytes. */
static int64_t coded_linear(int64_t in, int64_t out, int64_t world, bool float8, int64_t p)
{
    int64_t chunk = (out + world - 1) / world, scales = float8 ? 1 : (chunk * in + 127) / 128;

    return up_to(up_to(4 * scales, 16) + chunk * in, 16) + up_to(chunk * p, 16);
}

static void coded_bytes(fsdp_context *context, void *arg)
{
    const fsdp_shard_options *options = arg;
    int64_t world = fsdp_context_world_size(context), p = options->mp_policy.param_dtype ? 2 : 4;
    bool float8 = options->gather_extension == fsdp_gather_float8();
    int64_t block =
        up_to(coded_linear(NET_DIM, NET_FFN, world, float8, p) + coded_linear(NET_FFN, NET_DIM, world, float8, p), 64);
    int64_t root =
        up_to(coded_linear(NET_IN, NET_DIM, world, float8, p) + coded_linear(NET_DIM, NET_OUT, world, float8, p) +
                  2 * up_to((NET_DIM + world - 1) / world * p, 16),
              64);
    int64_t scales = 4 * (2 * BLOCKS + 2), all_reduces = float8 && world > 1;
    fsdp_module *module = net_sharded(context, BLOCKS, options);
    fsdp_comm_stats stats;

    for (int step = 0; step < 2; step++) {
        fsdp_context_reset_comm_stats(context);
        net_forward_backward(module, step, 0, 1);
        fsdp_context_comm_stats(context, &stats);
        CHECK_EQ(stats.calls[FSDP_ALL_GATHER], world > 1 ? 2 * GROUPS : 0);
        CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], 2 * (world - 1) * (BLOCKS * block + root));
        CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], all_reduces); /* one for all scales */
        CHECK_EQ(stats.bytes_sent[FSDP_ALL_REDUCE], all_reduces * 2 * scales * (world - 1) / world);
        if (!options->no_shared_memory && test_on_cpu())
            CHECK_EQ(stats.bytes_moved[FSDP_ALL_GATHER], 0); /* read where it lies */
        net_sgd(module, 0.1f);
    }
    fsdp_module_unref(module);
}

TEST(a_byte_an_element_is_sent_and_its_scales)
{
    for (int world = 1; world <= 4; world++)
        for (int variant = 0; variant < 8; variant += test_brief() ? 3 : 1)
            test_run_ranks(
                world, coded_bytes,
                &(fsdp_shard_options){.reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                      .no_shared_memory = variant & 1,
                                      .mp_policy.param_dtype = variant & 2 ? FSDP_BF16 : FSDP_DTYPE_NONE,
                                      .gather_extension = variant & 4 ? fsdp_gather_float8() : fsdp_gather_int8()});
}

/* ---- hybrid sharding ---- */

typedef struct hybrid {
    int replicas, micros;
    bool scatter, reduce; /* also in the microbatches before the last */
    fsdp_mp_policy policy;
} hybrid;

static int64_t group_padded(fsdp_module *module, int64_t group)
{
    fsdp_shard_info info;

    CHECK_OK(fsdp_module_shard_info(group < BLOCKS ? net_block_at(module, group) : module, &info));
    return info.padded_numel;
}

/* Gathers and reduce-scatters as ever, but inside a replica; each reduction then takes an all-reduce of S_g elements.
 */
static void hybrid_step(fsdp_context *context, void *arg)
{
    const hybrid *h = arg;
    int64_t shards = fsdp_context_world_size(context) / h->replicas, scatters = h->scatter ? h->micros : 1;
    int64_t reduces = h->reduce ? h->micros : 1, r = h->policy.reduce_dtype ? 2 : 4, padded = 0, reduced = 0;
    fsdp_shard_options options = {.mesh = net_hybrid_mesh(context, h->replicas),
                                  .reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                  .mp_policy = h->policy};
    fsdp_module *module = net_sharded(context, BLOCKS, &options);
    fsdp_comm_stats stats;

    for (int64_t g = 0; g < GROUPS; g++) {
        int64_t bytes = group_padded(module, g) / shards * r;

        padded += group_padded(module, g);
        reduced += h->replicas > 1 ? 2 * bytes * (h->replicas - 1) / h->replicas : 0;
    }
    for (int step = 0; step < 2; step++) {
        fsdp_context_reset_comm_stats(context);
        for (int micro = 0; micro < h->micros; micro++) {
            bool last = micro == h->micros - 1;

            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, h->scatter || last, true));
            CHECK_OK(fsdp_module_set_requires_all_reduce(module, h->reduce || last, true));
            net_forward_backward(module, step, micro, h->micros);
        }
        fsdp_context_comm_stats(context, &stats);
        CHECK_EQ(stats.calls[FSDP_ALL_GATHER], shards > 1 ? h->micros * 2 * GROUPS : 0);
        CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], shards > 1 ? scatters * GROUPS : 0);
        CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], h->replicas > 1 ? reduces * GROUPS : 0);
        CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], scatters * (shards - 1) * padded / shards * r);
        CHECK_EQ(stats.bytes_sent[FSDP_ALL_REDUCE], reduces * reduced);
        net_sgd(module, 0.1f);
    }
    fsdp_module_unref(module);
    fsdp_mesh_unref(options.mesh);
}

TEST(hybrid_sharding_reduces_inside_and_then_across)
{
    static const int worlds[][2] = {{1, 1}, {2, 1}, {2, 2}, {4, 2}, {6, 2}, {6, 3}};

    for (size_t w = 0; w < FSDP__COUNT_OF(worlds) - test_brief(); w++)
        for (int variant = 0; variant < 4; variant++) {
            hybrid h = {
                .replicas = worlds[w][1], .micros = variant > 0 ? 2 : 1, .scatter = variant > 1, .reduce = variant > 2};

            test_run_ranks(worlds[w][0], hybrid_step, &h);
            h.policy = (fsdp_mp_policy){.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_BF16};
            test_run_ranks(worlds[w][0], hybrid_step, &h);
        }
}

/* ---- the operation on the wire ---- */

typedef struct wire {
    int replicas; /* 0: a mesh of one dimension */
    bool force_sum;
    float factor;
    fsdp_reduce_op op; /* that is expected */
} wire;

static void check_wire(fsdp_context *context, void *arg)
{
    const wire *w = arg;
    fsdp_mesh *mesh = w->replicas > 0 ? net_hybrid_mesh(context, w->replicas) : NULL;
    fsdp_module *module = net_sharded(context, BLOCKS, &(fsdp_shard_options){.mesh = mesh});
    int64_t all = w->replicas == 0 || w->replicas < 4 ? GROUPS : 0;
    fsdp_comm_stats stats;

    for (int64_t g = 0; g < GROUPS; g++) {
        fsdp_module *each = g < BLOCKS ? net_block_at(module, g) : module;

        CHECK_OK(fsdp_module_set_force_sum_reduction(each, w->force_sum));
        CHECK_OK(fsdp_module_set_gradient_divide_factor(each, w->factor));
    }
    fsdp_context_reset_comm_stats(context);
    net_forward_backward(module, 0, 0, 1);
    fsdp_context_comm_stats(context, &stats);
    for (fsdp_reduce_op op = FSDP_SUM; op < FSDP_REDUCE_OPS; op++) {
        CHECK_EQ(stats.calls_of[FSDP_REDUCE_SCATTER][op], op == w->op ? all : 0);
        CHECK_EQ(stats.calls_of[FSDP_ALL_REDUCE][op], op == FSDP_SUM && w->replicas > 1 ? GROUPS : 0);
    }
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(sums_or_averages_are_sent_as_asked)
{
    const wire wires[] = {{.op = FSDP_AVG},
                          {.force_sum = true, .op = FSDP_SUM},
                          {.factor = 4, .op = FSDP_SUM},
                          {.replicas = 1, .op = FSDP_AVG},
                          {.replicas = 2, .op = FSDP_SUM},
                          {.replicas = 2, .force_sum = true, .op = FSDP_SUM},
                          {.replicas = 4, .op = FSDP_SUM}};

    for (size_t i = 0; i < FSDP__COUNT_OF(wires); i++)
        test_run_ranks(4, check_wire, (void *)(uintptr_t)&wires[i]);
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

TEST(groups_come_and_go_in_the_order_of_fsdp2)
{
    for (int world = 1; world <= 3; world++)
        for (fsdp_reshard reshard = FSDP_RESHARD_AUTO; reshard <= FSDP_RESHARD_NEVER; reshard++)
            test_run_ranks(world, order, &reshard);
}

/* ---- exposed time ---- */

typedef struct exposed {
    int64_t gathers, reductions;
} exposed;

static exposed exposed_of(fsdp_module *module)
{
    exposed e;

    CHECK_OK(fsdp_module_exposed_time(module, &e.gathers, &e.reductions));
    return e;
}

/* Each grows by what is its own, whether it runs inline or is waited for. */
static void expose(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, arg), *plain = net_create(context, test_device(context), BLOCKS);
    bool several = fsdp_context_world_size(context) > 1;
    exposed before, after;
    int64_t ns;

    for (int step = 0; step < 2; step++) {
        before = exposed_of(module);
        net_forward_backward(module, step, 0, 1);
        after = exposed_of(module);
        CHECK((after.gathers > before.gathers) == several);
        CHECK(after.reductions > before.reductions);
        CHECK_EQ(exposed_of(net_block_at(module, 0)).gathers, after.gathers); /* of the whole tree */
        net_sgd(module, 0.1f);
        CHECK_EQ(exposed_of(module).gathers, after.gathers);
    }
    CHECK_OK(fsdp_module_unshard(module));
    before = exposed_of(module);
    CHECK((before.gathers > after.gathers) == several); /* one rank gathers nothing */
    CHECK_OK(fsdp_module_unshard(module));              /* is whole */
    CHECK_EQ(exposed_of(module).gathers, before.gathers);
    CHECK_EQ(exposed_of(module).reductions, after.reductions);
    CHECK_OK(fsdp_module_reshard(module));
    fsdp_module_unref(module);

    CHECK_EQ(fsdp_module_exposed_time(plain, &ns, &ns), FSDP_STATE);
    CHECK_EQ(fsdp_module_exposed_time(NULL, &ns, &ns), FSDP_INVALID);
    CHECK_OK(fsdp_replicate(plain, NULL));
    CHECK_OK(fsdp_module_initialize(plain, 1));
    CHECK_EQ(exposed_of(plain).reductions, 0); /* a GPU measures from the first question on */
    net_forward_backward(plain, 0, 0, 1);
    CHECK_EQ(exposed_of(plain).gathers, 0);
    CHECK(exposed_of(plain).reductions > 0);
    fsdp_module_unref(plain);
}

TEST(gathers_and_reductions_have_their_own_time)
{
    for (int world = 1; world <= 3; world++)
        for (int way = 0; way < 4; way++) {
            fsdp_shard_options options = {.no_shared_memory = way & 1,
                                          .overlap = way & 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE};

            test_run_ranks(world, expose, &options);
        }
}
