/* Parameters that another mesh has cut before (tensor parallel): every layout of the ranks, however it is sharded and
 * stepped, gives what one rank does.
 * Links: optim */
#include <math.h>

#include "shard/cut_net.h"
#include "shard/net.h"
#include "support/dice.h"

static const cut_layout layouts[] = {{1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {1, 2, 2}, {1, 1, 4}, {1, 4, 2},
                                     {2, 2, 2}, {2, 1, 2}, {1, 3, 2}, {1, 1, 3}, {2, 1, 3}};

enum {
    STEPS = 3
};

/* What is run, on one rank and on many. Zero is a plain step in f32. */
typedef struct way {
    cut_layout layout;
    fsdp_shard_options options;
    int kind;                                               /* of optimizer */
    int micros;                                             /* 0: one */
    bool sync;                                              /* each microbatch is reduced */
    bool partial_sync;                                      /* each is reduced inside a replica, the last one across */
    bool last_dimension, recompute, frozen, prefetch, real; /* real: it has values before it is cut */
    bool skips_a_block;                                     /* every second step */
} way;

typedef struct outcome {
    float *values;
    int64_t count;
    double norms[STEPS];
} outcome;

typedef struct trial {
    way way;
    double tolerance; /* 0: to the bit */
    bool initial;     /* only first values */
    const outcome *expected;
    outcome *out; /* not NULL: this is the run on one rank */
} trial;

/* ---- a run ---- */

static fsdp_status last_dimension(void *arg, const char *name, const fsdp_tensor *parameter, fsdp_shard_placement *out)
{
    (void)arg, (void)name, (void)parameter;
    out->dim = -1;
    return FSDP_OK;
}

static void freeze(fsdp_module *module)
{
    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(module, "blocks.1.fused"), false));
    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(module, "blocks.1.norm"), false));
    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(module, "table"), false));
}

static void set_up(fsdp_module *module, const way *w, bool sharded)
{
    fsdp_module *first = cut_net_block(module, 0), *second = cut_net_block(module, 1);

    if (w->frozen)
        freeze(module);
    if (w->recompute)
        for (int64_t i = 0; i < CUT_BLOCKS; i++)
            CHECK_OK(fsdp_module_set_recompute(cut_net_block(module, i), FSDP_RECOMPUTE_FULL));
    if (w->prefetch && sharded) {
        CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(first, &second, 1));
        CHECK_OK(fsdp_module_set_modules_to_backward_prefetch(second, &first, 1));
    }
}

/* Built on meta, or with values that are cut. */
static fsdp_module *build(fsdp_context *context, const way *w, const cut_meshes *meshes)
{
    fsdp_shard_options options = w->options;
    fsdp_module *module;

    options.mesh = meshes->data;
    options.placement = w->last_dimension ? last_dimension : NULL;
    if (!w->real)
        return cut_net_sharded(context, meshes, &options);
    module = cut_net_create(context, test_device(context));
    CHECK_OK(fsdp_module_initialize(module, 1));
    cut_net_cut(module, meshes->parts, true);
    cut_net_shard(module, &options);
    return module;
}

static void train_step(fsdp_module *module, const way *w, const cut_meshes *meshes, int step)
{
    int micros = w->micros > 0 ? w->micros : 1;

    if (CUT_ROWS % (meshes->batches * micros) != 0) /* the rows of one rank must be those of all */
        micros = 2;
    for (int m = 0; m < micros; m++) {
        bool last = m == micros - 1;

        if (meshes->root && !w->sync && !w->partial_sync && w->options.zero_stage == 0)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, last, true));
        if (meshes->root && w->partial_sync)
            CHECK_OK(fsdp_module_set_requires_all_reduce(module, last, true));
        if (meshes->root && w->options.zero_stage > 0)
            CHECK_OK(fsdp_module_set_is_last_microbatch(module, last));
        cut_net_skip(module, w->skips_a_block && step % 2 == 0);
        cut_net_backward(module, meshes->batch, meshes->batches, step, m, micros);
    }
}

static void check(const trial *t, const float *values, int64_t count)
{
    CHECK_EQ(count, t->expected->count);
    if (t->tolerance > 0)
        CHECK_CLOSE(values, t->expected->values, count, t->tolerance, t->tolerance);
    else
        CHECK_BYTES(values, t->expected->values, (size_t)count * sizeof *values);
}

static void run(fsdp_context *context, void *arg)
{
    const trial *t = arg;
    const way *w = &t->way;
    bool plain = t->out && !w->options.mp_policy.param_dtype; /* the numbers of low precision depend on the engine */
    cut_meshes meshes = {.batches = 1};
    fsdp_module *module;
    fsdp_optimizer *optimizer;
    int64_t count;
    float *values;

    if (!plain)
        meshes = cut_meshes_create(context, t->out ? (cut_layout){1, 1, 1} : w->layout);
    module = plain ? cut_net_create(context, test_device(context)) : build(context, w, &meshes);
    if (plain)
        CHECK_OK(fsdp_module_initialize(module, 1));
    set_up(module, w, !plain);
    optimizer = cut_net_optimizer(module, w->kind);
    for (int s = 0; s < STEPS && !t->initial; s++) {
        double norm;

        train_step(module, w, &meshes, s);
        CHECK_OK(fsdp_clip_grad_norm(optimizer, 0.5, &norm));
        if (t->out)
            t->out->norms[s] = norm;
        else
            CHECK_NEAR(norm, t->expected->norms[s], t->tolerance * fmax(1, norm));
        CHECK_OK(fsdp_optimizer_step(optimizer));
        fsdp_module_zero_grad(module);
    }
    values = net_values(module, &count);
    if (t->out)
        *t->out = (outcome){
            .values = values, .count = count, .norms = {t->out->norms[0], t->out->norms[1], t->out->norms[2]}};
    else
        check(t, values, count);
    if (!t->out)
        free(values);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
    cut_meshes_free(&meshes);
    test_drop_workspace(context);
}

static void compare_with(const way *w, const outcome *expected, double tolerance)
{
    trial t = {.way = *w, .tolerance = tolerance, .expected = expected};

    test_run_ranks(w->layout.replicas * w->layout.shards * w->layout.parts, run, &t);
}

static void expect(const way *w, bool initial, outcome *out)
{
    trial t = {.way = *w, .initial = initial, .out = out};

    test_run_ranks(1, run, &t);
}

static void compare(way w, double tolerance)
{
    outcome expected = {.values = NULL};

    expect(&w, false, &expected);
    compare_with(&w, &expected, tolerance);
    free(expected.values);
}

/* ---- layouts ---- */

TEST(first_values_are_the_same_in_every_layout)
{
    outcome expected = {.values = NULL};
    way w = {.kind = 0};

    expect(&w, true, &expected);
    for (size_t i = 0; i < FSDP__COUNT_OF(layouts); i++)
        for (int last = 0; last < 2; last++)
            for (int real = 0; real < 2; real++) {
                trial t = {.way = {.layout = layouts[i], .last_dimension = last, .real = real},
                           .initial = true,
                           .expected = &expected};

                if (test_takes((int)i + last + real, 1, 2))
                    test_run_ranks(layouts[i].replicas * layouts[i].shards * layouts[i].parts, run, &t);
            }
    free(expected.values);
}

TEST(every_optimizer_steps_as_on_one_rank)
{
    for (int kind = 0; kind < CUT_OPTIMIZERS; kind++) {
        outcome expected = {.values = NULL};
        way w = {.kind = kind};

        expect(&w, false, &expected);
        for (size_t i = 0; i < FSDP__COUNT_OF(layouts); i++) {
            w.layout = layouts[i];
            if (!test_takes((int)i + kind, 2, 6))
                continue;
            compare_with(&w, &expected, kind == CUT_MUON ? 4e-2 : 2e-4); /* Muon computes in bfloat16 */
        }
        free(expected.values);
    }
}

/* ---- settings ---- */

static const way ways[] = {
    {.options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS}},
    {.options = {.reshard_after_forward = FSDP_RESHARD_NEVER}},
    {.options = {.no_shared_memory = true}},
    {.options = {.overlap = FSDP_OVERLAP_WORKER}, .prefetch = true},
    {.options = {.overlap = FSDP_OVERLAP_WORKER, .no_shared_memory = true}, .micros = 3},
    {.options = {.offload_policy = {.cpu = true}}},
    {.options = {.zero_stage = 1}, .micros = 3},
    {.options = {.zero_stage = 2}, .micros = 3, .sync = true},
    {.micros = 3},
    {.micros = 3, .sync = true},
    {.micros = 3, .partial_sync = true},
    {.recompute = true},
    {.frozen = true},
    {.last_dimension = true},
    {.last_dimension = true, .micros = 2, .options = {.overlap = FSDP_OVERLAP_WORKER}},
    {.skips_a_block = true},
    {.real = true, .recompute = true, .prefetch = true},
};

TEST(every_setting_steps_as_on_one_rank)
{
    static const cut_layout some[] = {{1, 2, 2}, {1, 1, 2}, {2, 1, 2}, {1, 1, 4}, {2, 2, 2}};

    for (size_t i = 0; i < FSDP__COUNT_OF(ways); i++)
        for (size_t l = 0; l < FSDP__COUNT_OF(some); l++) {
            way w = ways[i];

            if (test_brief() && l != i % 2)
                continue;
            w.layout = some[l];
            w.kind = (int)(i % 2);
            compare(w, 2e-4);
        }
}

TEST(low_precision_steps_as_on_one_rank)
{
    static const fsdp_mp_policy policies[] = {{.param_dtype = FSDP_BF16},
                                              {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_BF16},
                                              {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32},
                                              {.reduce_dtype = FSDP_BF16}};

    for (size_t p = 0; p < FSDP__COUNT_OF(policies); p++)
        for (int micros = 1; micros <= 2; micros++) {
            way w = {.layout = {1, 2, 2}, .micros = micros, .options = {.mp_policy = policies[p]}};

            if (!test_takes((int)p + micros, 1, 2))
                continue;
            compare(w, 2e-2);
            w.layout = (cut_layout){1, 1, 2};
            w.options.no_shared_memory = true;
            compare(w, 2e-2);
        }
}

/* ---- drawn ---- */

TEST(drawn_settings_step_as_on_one_rank)
{
    const dice_seeds seeds = dice_seeds_of("SETTINGS", test_long() ? 2000 : test_brief() ? 10 : 25);

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        uint64_t dice = seed;
        way w = ways[dice_below(&dice, (int)FSDP__COUNT_OF(ways))];

        w.layout = layouts[dice_below(&dice, (int)FSDP__COUNT_OF(layouts))];
        w.kind = dice_below(&dice, CUT_OPTIMIZERS);
        w.last_dimension = w.last_dimension || dice_chance(&dice, 30);
        w.recompute = w.recompute || dice_chance(&dice, 30);
        w.real = w.real || dice_chance(&dice, 30);
        w.prefetch = w.prefetch || dice_chance(&dice, 30);
        w.options.no_shared_memory = w.options.no_shared_memory || dice_chance(&dice, 30);
        if (dice_chance(&dice, 30))
            w.options.overlap = FSDP_OVERLAP_WORKER;
        if (w.skips_a_block && w.kind == CUT_ADAFACTOR)
            w.kind = 0; /* wants gradients of the same parameters in all steps */
        compare(w, w.kind == CUT_MUON ? 5e-2 : 5e-4);
    }
}
