/* Gathers of other bytes: extensions of a caller's own, float8 and int8.
 * Links: optim */
#include <math.h>

#include "oracle/oracle.h"
#include "shard/codes.h"
#include "shard/doubling.h"
#include "shard/reduce/owner.h"
#include "shard/ways.h"

/* ---- an extension that changes no bit ---- */

enum {
    MEASURED = 8 /* of the argument: the rest is an fsdp_reshard, or LATER */
};

enum {
    LATER = 3, /* sharded in the last dimension */
    KEPT = 4   /* one half is kept after the forward, where ranks divide by two */
};

static fsdp_module *doubled_net(fsdp_context *context, const way_run *run, doubler *d)
{
    fsdp_gather_extension extension;
    fsdp_shard_options options = run->options;
    fsdp_module *module = net_create(context, run->way ? fsdp_meta(context) : test_device(context), 2);
    int how = run->arg % MEASURED;

    d->measures = run->arg >= MEASURED;
    extension = doubling(d);
    if (run->way) {
        options.gather_extension = &extension;
        options.extends = doubles_up;
        options.reshard_after_forward = how < LATER ? (fsdp_reshard)how : FSDP_RESHARD_ALWAYS;
        options.placement = how == LATER ? net_last_dimension : NULL;
        options.reshard_after_forward_ranks = how == KEPT && run->world % 2 == 0 ? 2 : 0;
        net_shard(module, &options);
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    }
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

WAYS_TEST_BY(an_extension_is_asked_once_a_write_and_once_a_gather, in_every_way_with,
             WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, FSDP_RESHARD_ALWAYS)
{
    doubler d = {0};
    fsdp_module *module = doubled_net(context, run, &d);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_shard_info info;

    for (int step = 0; step < 2; step++) {
        dawdle(context, run);
        ways_backward(run, module, step);
        note_gradients(run, module);
        ways_step(optimizer);
    }
    note_weights(run, module);
    if (run->way) {
        CHECK_EQ(d.written, 2 * 2);    /* blocks, writes */
        CHECK_EQ(d.kept, 0);           /* gathers take what is there */
        CHECK_EQ(d.halved, 2 * 2 * 2); /* blocks, steps, forward and backward */
        CHECK_OK(fsdp_module_shard_info(net_block_at(module, 0), &info));
        CHECK(!info.shares_memory);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

/* What happens before, between and after: evaluation, accumulation, a write, a freeze, an unshard by hand, a backward
 * that is kept for another one. */
static void use_doubled_in_any_order(fsdp_context *context, way_run *run)
{
    doubler d = {0};
    fsdp_module *module = doubled_net(context, run, &d), *block = net_block_at(module, 0);
    fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(block, "up.weight"));
    float loss;

    for (int step = 0; step < 2; step++) {
        loss = ways_evaluate(run, module, step); /* of this rank's rows: in a world of one of all */
        note(context, run, &loss, run->world == 1);
        dawdle(context, run);
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        ways_backward(run, module, step);
        CHECK_OK(fsdp_tensor_fill_(weight, 0.125 * (step + 1))); /* what was gathered is stale, doubled or not */
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        ways_backward(run, module, step + 2);
        note_gradients(run, module);
        if (run->way) {
            CHECK_OK(fsdp_module_unshard_async(block));
            dawdle(context, run);
            CHECK_OK(fsdp_module_wait_unshard(block));
            CHECK_OK(fsdp_module_reshard(block));
        }
        fsdp_module_zero_grad(module);
        CHECK_OK(fsdp_tensor_set_requires_grad(weight, step != 0));
    }
    note_weights(run, module);
    fsdp_module_unref(module);
}

TEST(extensions_stand_any_order)
{
    for (int how = FSDP_RESHARD_NEVER; how <= KEPT; how++)
        in_every_way_with(use_doubled_in_any_order, WAYS_EQUAL_PLAIN, how + (how % 2 ? 0 : MEASURED));
}

/* ---- values in one byte ---- */

typedef struct layers {
    fsdp_module base;
    fsdp_module *table, *wide, *tall;
} layers;

enum {
    WIDE_IN = 29,
    WIDE_OUT = 37, /* several blocks, rows fewer than some worlds */
    TALL_OUT = 3
};

static fsdp_tensor *layers_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    layers *l = (layers *)self;

    (void)count;
    return fsdp_sum(fsdp_call(l->tall, fsdp_call(l->wide, fsdp_call(l->table, inputs[0]))));
}

static const fsdp_module_type layers_type = {.name = "Layers", .forward = layers_forward};

/* The library's own, by way of the caller. */
static fsdp_status gather_packed(void *arg, const fsdp_custom_call *call)
{
    (void)arg;
    return fsdp_all_gather(call->group, call->send, call->recv, call->count, call->dtype, call->stream);
}

static fsdp_module *layers_create(fsdp_context *context, const fsdp_shard_options *options, bool custom)
{
    const fsdp_custom_collective gather = {.run = gather_packed};
    fsdp_device *device = fsdp_meta(context);
    layers *l;

    CHECK_OK(fsdp_module_create(context, &layers_type, sizeof *l, &l));
    l->table = fsdp_embedding_create(context, device, 5, WIDE_IN, NULL);
    l->wide = fsdp_linear_create(context, device, WIDE_IN, WIDE_OUT, NULL);
    l->tall = fsdp_linear_create(context, device, WIDE_OUT, TALL_OUT, NULL);
    CHECK_OK(fsdp_module_add_child(&l->base, "table", l->table));
    CHECK_OK(fsdp_module_add_child(&l->base, "wide", l->wide));
    CHECK_OK(fsdp_module_add_child(&l->base, "tall", l->tall));
    CHECK_OK(fsdp_fully_shard(&l->base, options));
    if (custom)
        CHECK_OK(fsdp_module_set_custom_all_gather(&l->base, &gather));
    CHECK_OK(fsdp_module_materialize(&l->base, test_device(context)));
    CHECK_OK(fsdp_module_initialize(&l->base, 3));
    return &l->base;
}

/* Every value of an unsharded parameter is the shards' value, rounded as it should be. */
static void check_parameter(fsdp_module *module, const char *name, coded how)
{
    fsdp__param *p = fsdp__param_of(CHECK_PTR(fsdp_module_parameter(module, name)));
    const fsdp__extent *e = &p->extent;
    float expected[WIDE_OUT * WIDE_IN], got[WIDE_OUT * WIDE_IN];
    fsdp_tensor *whole;

    CHECK_OK(fsdp_full_tensor(p->sharded, &whole));
    CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, expected));
    fsdp_tensor_unref(whole);
    coded_round(how, expected, e->outer, e->rows, e->inner, p->group->residence.mesh.ranks);
    CHECK_OK(fsdp_tensor_read(p->unsharded, FSDP_F32, got));
    for (int64_t i = 0; i < e->outer * e->rows * e->inner; i++) {
        float x = (float)oracle_round(p->param_dtype, (double)expected[i]);

        if (got[i] != x)
            TEST_FAIL("%s, element %ld: %.9g, expected %.9g", name, (long)i, (double)got[i], (double)x);
    }
}

static void check_layers(fsdp_module *module, coded how)
{
    CHECK_OK(fsdp_module_unshard(module));
    check_parameter(module, "wide.weight", how);
    check_parameter(module, "tall.weight", how);
    check_parameter(module, "wide.bias", CODED_NOT);
    check_parameter(module, "table.weight", CODED_NOT);
    CHECK_OK(fsdp_module_reshard(module));
}

typedef struct coding {
    coded how;
    bool copy, bf16, later, hybrid, custom;
} coding;

/* Whichever rank writes alone, what it wrote is there, and where the scale is of all, all ranks have a new one. */
static void look_at_values(fsdp_context *context, void *arg)
{
    const coding *c = arg;
    int world = fsdp_context_world_size(context), rank = fsdp_context_rank(context);
    fsdp_mesh *mesh = c->hybrid ? net_hybrid_mesh(context, 2) : NULL;
    fsdp_shard_options options = {.gather_extension = coded_extension(c->how),
                                  .no_shared_memory = c->copy,
                                  .mesh = mesh,
                                  .mp_policy.param_dtype = c->bf16 ? FSDP_BF16 : FSDP_DTYPE_NONE,
                                  .placement = c->later ? net_last_dimension : NULL};
    fsdp_module *module = layers_create(context, &options, c->custom);
    fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(module, "wide.weight"));

    check_layers(module, c->how);
    check_layers(module, c->how); /* of what is kept */
    if (world > 1 && !c->copy && !c->custom && test_on_cpu())
        CHECK_ERROR(fsdp_module_set_custom_all_gather(module, &(fsdp_custom_collective){.run = gather_packed}),
                    FSDP_STATE, "lies in memory that ranks share");
    for (int writer = 0; writer < world && !c->hybrid; writer++) {
        if (rank == writer)
            CHECK_OK(fsdp_tensor_fill_(weight, 3.0 * (writer + 1)));
        check_layers(module, c->how);
    }
    CHECK_OK(fsdp_tensor_fill_(weight, 0.0)); /* a scale of nothing */
    check_layers(module, c->how);
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(what_arrives_is_rounded_to_the_bit)
{
    for (int how = 0; how < 16; how++) {
        coding c = {.how = how & 1 ? CODED_FLOAT8 : CODED_INT8, .copy = how & 2, .bf16 = how & 4, .later = how & 8};

        for (int world = 1 + how % 3; world <= WAYS_WORLDS; world += 2)
            test_run_ranks(world, look_at_values, &c);
        c.custom = true;
        if (how % 4 == 1)
            test_run_ranks(3, look_at_values, &c);
        c.custom = false;
        c.hybrid = true;
        if (how % 4 == 0 || how % 4 == 3)
            test_run_ranks(4, look_at_values, &c);
    }
}

/* How many of the elements that a rank gets are finite. */
static int64_t finite_of(fsdp_module *module, const char *name)
{
    fsdp__param *p = fsdp__param_of(CHECK_PTR(fsdp_module_parameter(module, name)));
    float got[WIDE_OUT * WIDE_IN];
    int64_t finite = 0;

    CHECK_OK(fsdp_module_unshard(module));
    CHECK_OK(fsdp_tensor_read(p->unsharded, FSDP_F32, got));
    for (int64_t i = 0; i < fsdp_tensor_numel(p->unsharded); i++)
        finite += isfinite(got[i]) != 0;
    CHECK_OK(fsdp_module_reshard(module));
    return finite;
}

/* One rank's values are not finite: of all with the same scale none is, and nothing of it is left behind. */
static void spoil(fsdp_context *context, void *arg)
{
    static const double values[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    const coding *c = arg;
    const fsdp_shard_options options = {.gather_extension = coded_extension(c->how), .no_shared_memory = c->copy};
    fsdp_module *module = layers_create(context, &options, false);
    fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(module, "wide.weight"));
    int64_t start, first = fsdp_shard_range(WIDE_OUT, fsdp_context_world_size(context), 0, &start);
    int64_t others = (WIDE_OUT - first) * WIDE_IN;

    for (size_t i = 0; i < FSDP__COUNT_OF(values); i++) {
        if (fsdp_context_rank(context) == 0)
            CHECK_OK(fsdp_tensor_fill_(weight, values[i]));
        CHECK_EQ(finite_of(module, "wide.weight"), c->how == CODED_INT8 ? others : 0);
        CHECK_EQ(finite_of(module, "tall.weight"), TALL_OUT * WIDE_OUT);
        if (fsdp_context_rank(context) == 0)
            CHECK_OK(fsdp_tensor_fill_(weight, 0.75));
        check_layers(module, c->how);
    }
    fsdp_module_unref(module);
}

TEST(what_is_not_finite_arrives_so)
{
    for (int how = 0; how < 4; how++) {
        coding c = {.how = how & 1 ? CODED_FLOAT8 : CODED_INT8, .copy = how & 2};

        test_run_ranks(1 + how, spoil, &c);
    }
}

/* ---- training in one byte ---- */

static void train_coded(fsdp_context *context, way_run *run)
{
    fsdp_shard_options options = run->options;
    fsdp_optimizer *optimizer;
    fsdp_module *module;
    float loss;

    options.gather_extension = run->arg % 2 ? fsdp_gather_float8() : fsdp_gather_int8();
    options.reshard_after_forward = (fsdp_reshard)(run->arg / 2);
    module = net_sharded(context, 2, &options);
    optimizer = ways_optimizer(module);
    CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(module, (fsdp_module *[]){net_block_at(module, 0)}, 1));
    for (int step = 0; step < 3; step++) {
        loss = ways_evaluate(run, module, step);
        note(context, run, &loss, 1);
        dawdle(context, run);
        ways_backward(run, module, step);
        ways_backward(run, module, step + 1);
        note_gradients(run, module);
        ways_step(optimizer);
        if (step == 1 && fsdp_context_rank(context) == run->world - 1) /* alone */
            CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(module, "head.weight")), 0.5));
    }
    ways_end(run, module, optimizer);
}

TEST(residences_and_streams_change_no_bit)
{
    in_every_way_with(train_coded, WAYS_ALONE, 2 * FSDP_RESHARD_AUTO + 1); /* float8 */
    in_every_way_with(train_coded, WAYS_ALONE, 2 * FSDP_RESHARD_NEVER + 1);
    in_every_way_with(train_coded, WAYS_ALONE, 2 * FSDP_RESHARD_ALWAYS);
}

/* ---- misuse ---- */

RANKS_TEST(an_extension_with_a_part_missing_is_refused, 2)
{
    fsdp_gather_extension broken[] = {*fsdp_gather_int8(), *fsdp_gather_int8(), *fsdp_gather_int8()};
    static const char *const texts[] = {"'int8' has no sent_bytes", "'int8' has no pre", "'int8' has no post"};
    fsdp_module *module = net_create(context, fsdp_meta(context), 1);

    broken[0].sent_bytes = NULL;
    broken[1].pre = NULL;
    broken[2].post = NULL;
    for (int i = 0; i < 3; i++) {
        CHECK_ERROR(fsdp_fully_shard(module, &(fsdp_shard_options){.gather_extension = &broken[i]}), FSDP_INVALID,
                    texts[i]);
        CHECK(!fsdp_module_is_sharded(module));
    }
    fsdp_module_unref(module);
}
