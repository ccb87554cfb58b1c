/* Explanations of models of one's own, of modules that are sharded, and what is refused. */
#include "base/compiler.h"
#include "explain/own.h"
#include "explain/real.h"
#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "train/config.h"

#include <stdlib.h>
#include <string.h>

static const fsdp_explain_model own_model = {.build = own_build, .loss = own_loss};

static fsdp_train_config *config_of(const char *strategy, const char *policy)
{
    return test_config("parallelism.strategy=%s parallelism.wrap_policy=%s", strategy, policy);
}

/* ---- a loop of one's own ---- */

typedef struct loop {
    const char *strategy;
    fsdp_wrap_policy policy;
    real_result was;
    fsdp_module *module; /* of the rank at hand */
    fsdp_optimizer *optimizer;
} loop;

static void step(void *arg)
{
    loop *l = arg;
    fsdp_context *context = l->module->context;
    fsdp_tensor *loss;
    double value, norm;

    CHECK_OK(fsdp_scope_begin(context));
    loss = CHECK_PTR(own_loss(NULL, l->module, fsdp_cpu(context)));
    CHECK_OK(fsdp_tensor_item(loss, &value));
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_clip_grad_norm(l->optimizer, 1, &norm));
    CHECK_OK(fsdp_optimizer_step(l->optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(l->optimizer));
}

static void shard(const loop *l)
{
    fsdp_fsdp1_options fsdp1 = {.auto_wrap_policy = &l->policy};

    if (strcmp(l->strategy, "ddp") == 0)
        CHECK_OK(fsdp_replicate(l->module, NULL));
    else if (strcmp(l->strategy, "fsdp1") == 0)
        CHECK_OK(fsdp_fsdp1_wrap(l->module, &fsdp1));
    else
        CHECK_OK(fsdp_fully_shard_by_policy(l->module, &l->policy, NULL));
}

static void train(fsdp_context *context, void *arg)
{
    loop *shared = arg, l = *shared;
    fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_parameters parameters;

    l.module = own_build(NULL, context, fsdp_meta(context));
    shard(&l);
    CHECK_OK(fsdp_module_materialize(l.module, fsdp_cpu(context)));
    CHECK_OK(fsdp_module_initialize(l.module, 1));
    CHECK_OK(fsdp_module_parameters(l.module, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &adam, &l.optimizer));
    fsdp_parameters_release(&parameters);
    real_steps(context, step, &l, &shared->was);
    CHECK_OK(fsdp_module_shard_map(l.module, &shared->was.maps[fsdp_context_rank(context)]));
    fsdp_optimizer_free(l.optimizer);
    fsdp_module_unref(l.module);
}

TEST(a_model_of_ones_own_costs_what_is_said)
{
    static const char *const strategies[] = {"fsdp2", "fsdp1", "ddp"};
    static const fsdp_wrap_policy policies[] = {
        {.kind = FSDP_WRAP_NONE}, {.kind = FSDP_WRAP_SIZE, .min_num_params = 70}, {.kind = FSDP_WRAP_ALWAYS}};

    for (int world = 1; world <= REAL_WORLDS; world++)
        for (int i = 0; i < 9; i++) {
            loop l = {.strategy = strategies[i / 3], .policy = policies[i % 3]};
            fsdp_explain_model model = own_model;
            fsdp_train_config *config = config_of(l.strategy, "blocks");

            if (i > 6 || (world == 1 && i / 3 == 1)) /* buckets have no units; of one rank FSDP1 is no_shard */
                continue;
            model.policy = &l.policy;
            test_run_ranks(world, train, &l);
            real_compare(world, &model, config, &l.was);
            real_release(&l.was);
        }
}

/* ---- what is said ---- */

static const fsdp_explained_unit *unit(const fsdp_explanation *e, const char *name)
{
    for (int64_t i = 0; i < e->unit_count; i++)
        if (strcmp(e->units[i].name, name) == 0)
            return &e->units[i];
    test_fail(__FILE__, __LINE__, "no unit '%s'", name);
    return NULL;
}

/* Two ranks; `up` and `down` are units: 7 x 13 + 13 = 104, 13 x 7 + 7 = 98; the root has 11 x 7. Of 13 rows and 7 rows
 * and 11 rows a rank lacks one. */
TEST(units_are_described)
{
    const fsdp_wrap_policy policy = {.kind = FSDP_WRAP_SIZE, .min_num_params = 90};
    fsdp_explain_model model = own_model;
    fsdp_explanation *e;
    const fsdp_explained_unit *up;

    model.policy = &policy;
    CHECK_OK(fsdp_explain(&model, NULL, &(fsdp_explain_options){.world_size = 2, .rank = 1}, &e));
    CHECK_STRING(e->model, "Tied");
    CHECK_STRING(e->strategy, "fsdp2");
    CHECK_STRING(e->policy, "size 90");
    CHECK_CONTAINS(e->tree, "(up): [fully_shard: 2 parameters, 104 elements, over 2 ranks] Linear");
    CHECK_EQ(e->microbatches, 1);
    CHECK_EQ(e->numel, 77 + 104 + 98);
    CHECK_EQ(e->unit_count, 3);
    CHECK_STRING(e->units[0].name, "");
    CHECK_STRING(e->units[0].type, "Tied");
    up = unit(e, "up");
    CHECK_EQ(up->numel, 104);
    CHECK_EQ(up->padded_numel, 14 * 7 + 14);
    CHECK_EQ(up->shard_numel, 6 * 7 + 6);
    CHECK_EQ(up->gathers, 2); /* forward, backward */
    CHECK_EQ(up->gathered_bytes, 2 * 4 * (14 * 7 + 14) / 2);
    CHECK_EQ(up->reductions, 1);
    CHECK_EQ(up->reduced_bytes, 4 * (14 * 7 + 14) / 2);
    CHECK_EQ(up->flops, 3 * 2 * 15 * 7 * 13); /* forward, and two products backward, of 15 tokens */
    CHECK_EQ(unit(e, "")->gathers, 1);
    CHECK_EQ(up->life_count, 2);
    CHECK_EQ(up->lives[0].flops, 2 * 15 * 7 * 13);
    CHECK(!up->lives[0].ahead && up->lives[1].ahead);
    CHECK_EQ(e->events[up->lives[0].begin].phase, FSDP_PHASE_FORWARD);
    CHECK_EQ(e->events[up->lives[0].begin].event, FSDP_EVENT_UNSHARD);
    CHECK_EQ(e->events[up->lives[1].end].phase, FSDP_PHASE_BACKWARD);
    CHECK_EQ(e->events[up->lives[1].end].event, FSDP_EVENT_RESHARD);
    fsdp_explanation_free(e);
}

TEST(a_sweep_has_what_is_asked_for_once)
{
    static const char *const policies[] = {"root", "blocks", "always"};
    fsdp_explanation *e;

    for (int i = 0; i < 3; i++) {
        fsdp_train_config *config = config_of("zero3", policies[i]);
        int asked = 0;

        CHECK_OK(fsdp_train_config_set(config, "model.preset", "llama-1m"));
        CHECK_OK(fsdp_train_config_set(config, "training.seq_len", "16"));
        CHECK_OK(fsdp_explain(NULL, config, &(fsdp_explain_options){.world_size = 2, .sweep = true}, &e));
        CHECK(e->variant_count >= 5);
        CHECK_STRING(e->variants[0].policy, "ddp");
        CHECK_EQ(e->variants[0].step.calls[FSDP_ALL_GATHER], 0);
        CHECK_STRING(e->variants[1].policy, "root");
        CHECK_EQ(e->variants[1].units, 1);
        CHECK_EQ(e->variants[1].largest, e->numel);
        CHECK_STRING(e->variants[2].policy, "blocks");
        CHECK_CONTAINS(e->variants[3].policy, "size ");
        for (int64_t k = 0; k < e->variant_count; k++) {
            const fsdp_explained_variant *v = &e->variants[k];

            asked += v->asked;
            CHECK_EQ(v->asked, strcmp(v->policy, e->policy) == 0);
            if (v->asked)
                CHECK_BYTES(&v->step, &e->step, sizeof e->step);
            CHECK(v->step.calls[FSDP_ALL_GATHER] <= 2 * v->units - 1); /* some have no parameters */
        }
        CHECK_EQ(asked, 1);
        fsdp_explanation_free(e);
    }
}

typedef struct heard {
    int64_t calls, last, all;
} heard;

static void hear(void *arg, int64_t done, int64_t all)
{
    heard *h = arg;

    CHECK_EQ(done, h->last + 1);
    CHECK(done <= all);
    CHECK(h->calls++ == 0 || all == h->all);
    h->last = done;
    h->all = all;
}

TEST(who_waits_hears_of_each_rank_and_variant)
{
    fsdp_train_config *config = config_of("fsdp2", "always");

    for (int sweep = 0; sweep < 2; sweep++) {
        heard h = {0};
        const fsdp_explain_options options = {
            .world_size = 5, .rank = 3, .sweep = sweep == 1, .progress = hear, .progress_arg = &h};
        fsdp_explanation *e;

        CHECK_OK(fsdp_explain(&own_model, config, &options, &e));
        CHECK_EQ(h.calls, 5 + e->variant_count);
        CHECK_EQ(e->variant_count > 0, sweep == 1);
        fsdp_explanation_free(e);
    }
}

/* A plan is made of rank 0 alone. */
TEST(no_rank_has_more_memory_than_rank_0)
{
    static const char *const strategies[] = {"fsdp2", "zero1", "zero3", "fsdp1", "ddp", "hsdp"};
    static const char *const teams[] = {
        "",
        "parallelism.tensor_parallel_degree=2",
        "parallelism.tensor_parallel_degree=4",
        "parallelism.tensor_parallel_degree=2 parallelism.sequence_parallel=false parallelism.loss_parallel=false",
        "parallelism.context_parallel_degree=2",
        "parallelism.context_parallel_degree=2 parallelism.tensor_parallel_degree=2"};

    for (size_t i = 0; i < FSDP__COUNT_OF(strategies) * FSDP__COUNT_OF(teams); i++) {
        fsdp_train_config *config = config_of(strategies[i % 6], "blocks");
        fsdp_explanation *e[4] = {NULL};
        const char *team = teams[i / 6];

        test_set_keys(config, "model.preset=llama-1m model.n_layers=2 model.vocab_size=259 training.seq_len=64 %s",
                      team);
        for (int rank = 0; rank < 4; rank++) {
            if (fsdp_explain(NULL, config, &(fsdp_explain_options){.world_size = 4, .rank = rank}, &e[rank]) != 0)
                continue; /* a strategy that is not for teams */
            if (e[rank]->step.peak_total_bytes > e[0]->step.peak_total_bytes)
                TEST_FAIL("%s %s: rank %d has %zu bytes, rank 0 %zu", strategies[i % 6], team, rank,
                          e[rank]->step.peak_total_bytes, e[0]->step.peak_total_bytes);
            fsdp_explanation_free(rank > 0 ? e[rank] : NULL);
        }
        fsdp_explanation_free(e[0]);
    }
}

/* Which has no blocks, and needs none. */
TEST(ddp_of_a_model_of_ones_own_needs_no_policy)
{
    fsdp_train_config *ddp = config_of("ddp", "blocks"), *sharded = config_of("fsdp2", "always");
    const fsdp_explain_options options = {.world_size = 2, .sweep = true};
    fsdp_explanation *e, *other;

    CHECK_OK(fsdp_explain(&own_model, ddp, &options, &e));
    CHECK_STRING(e->policy, "buckets");
    CHECK_EQ(e->unit_count, 1);
    CHECK_EQ(e->units[0].life_count, 0);
    CHECK(e->units[0].reductions > 0);
    CHECK_EQ(e->variant_count, 0);
    CHECK_OK(fsdp_explain(&own_model, sharded, &options, &other));
    CHECK_STRING(other->variants[0].policy, "ddp");
    CHECK_BYTES(&other->variants[0].step, &e->step, sizeof e->step);
    fsdp_explanation_free(e);
    fsdp_explanation_free(other);
}

/* ---- what is sharded already ---- */

RANKS_TEST(a_sharded_module_is_described, 3)
{
    fsdp_module *module = own_build(NULL, context, fsdp_meta(context));
    fsdp_explanation *e;
    int rank = fsdp_context_rank(context);

    CHECK_ERROR(fsdp_explain_module(module, &e), FSDP_STATE, "nothing in it is sharded or replicated");
    CHECK_OK(fsdp_fully_shard(fsdp_module_child(module, "up"), NULL));
    CHECK_OK(fsdp_fully_shard(module, NULL));
    CHECK_OK(fsdp_explain_module(module, &e));
    CHECK_EQ(e->unit_count, 2);
    CHECK_STRING(e->units[1].name, "up");
    CHECK_EQ(e->microbatches, 0);
    CHECK_EQ(e->part_count, 1);
    CHECK_EQ(e->first_part, rank);
    CHECK_EQ(e->parameters[0].parts[0].first, 4 * rank); /* of 11 rows over 3 ranks */
    CHECK_EQ(e->parameters[0].parts[0].count, rank < 2 ? 4 : 3);
    fsdp_explanation_free(e);
    fsdp_module_unref(module);
}

/* ---- many ranks ---- */

/* More than anybody wants to see the parts of: those of one are told, and its machine's traffic. */
TEST(of_many_ranks_one_is_told)
{
    enum {
        RANKS = 16384,
        MACHINES = 4096
    };
    fsdp_train_config *config = config_of("fsdp2", "always");
    fsdp_explanation *e;

    CHECK_OK(fsdp_explain(&own_model, config,
                          &(fsdp_explain_options){.world_size = RANKS, .machines = MACHINES, .rank = 5}, &e));
    CHECK_EQ(e->part_count, 1);
    CHECK_EQ(e->first_part, 5);
    CHECK_EQ(e->parameters[0].parts[0].first, 5); /* of 11 rows, or fewer */
    CHECK_EQ(e->parameters[0].parts[0].count, 1);
    CHECK_EQ(e->step.network.messages[FSDP_ALL_GATHER] % (MACHINES - 1), 0); /* to every counterpart alike */
    CHECK(e->machine.sent[FSDP_ALL_GATHER] > e->step.network.sent[FSDP_ALL_GATHER]);
    fsdp_explanation_free(e);
}

/* ---- what is refused ---- */

static fsdp_module *no_model(void *arg, fsdp_context *context, fsdp_device *device)
{
    (void)arg, (void)context, (void)device;
    (void)FSDP_FAIL(FSDP_INVALID, "no model today");
    return NULL;
}

/* A plan names one rank, so that one must have the most. */
TEST(no_rank_has_more_than_rank_0)
{
    const char *const teams[] = {"strategy=fsdp2",
                                 "tensor_parallel_degree=2",
                                 "tensor_parallel_degree=2 parallelism.sequence_parallel=false",
                                 "context_parallel_degree=2",
                                 "context_parallel_degree=2 parallelism.tensor_parallel_degree=2",
                                 "strategy=hsdp parallelism.data_parallel_replicate_degree=2"};

    for (size_t t = 0; t < 2 * FSDP__COUNT_OF(teams); t++) {
        fsdp_train_config *config = test_config("model.preset=llama-1m model.n_layers=2 model.vocab_size=%d "
                                                "training.seq_len=16 training.local_batch_size=2 parallelism.%s",
                                                t % 2 ? 256 : 251, teams[t / 2]);
        fsdp_explanation *e[4];

        for (int rank = 0; rank < 4; rank++) {
            CHECK_OK(fsdp_explain(NULL, config, &(fsdp_explain_options){.world_size = 4, .rank = rank}, &e[rank]));
            CHECK(e[rank]->step.peak_total_bytes <= e[0]->step.peak_total_bytes);
            for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
                CHECK(e[rank]->step.peak_bytes[kind] <= e[0]->step.peak_bytes[kind]);
        }
        for (int rank = 0; rank < 4; rank++)
            fsdp_explanation_free(e[rank]);
    }
}

TEST(what_cannot_be_explained_is_refused)
{
    fsdp_train_config *config = config_of("fsdp2", "always");
    fsdp_explain_model model = own_model;
    fsdp_explanation *e = NULL;

    CHECK_ERROR(fsdp_explain(NULL, NULL, NULL, &e), FSDP_INVALID, "no model: set model.path");
    CHECK_ERROR(fsdp_explain(NULL, NULL, NULL, NULL), FSDP_INVALID, "a place");
    CHECK_ERROR(fsdp_explain(&own_model, NULL, NULL, &e), FSDP_INVALID, "has no blocks");
    CHECK_ERROR(fsdp_explain(&own_model, config, &(fsdp_explain_options){.world_size = 2, .rank = 2}, &e), FSDP_INVALID,
                "cannot explain rank 2 of 2");
    CHECK_ERROR(fsdp_explain(&own_model, config, &(fsdp_explain_options){.world_size = 4, .machines = 3}, &e),
                FSDP_INVALID, "cannot explain 4 ranks on 3 machines: each must have equally many");
    CHECK_ERROR(fsdp_explain(&own_model, config, &(fsdp_explain_options){.world_size = -1}, &e), FSDP_INVALID, "of -1");
    CHECK_ERROR(fsdp_explain(&own_model, config, &(fsdp_explain_options){.world_size = 1 << 30}, &e), FSDP_INVALID,
                "at most 1048576");
    model.build = no_model;
    CHECK_ERROR(fsdp_explain(&model, config, NULL, &e), FSDP_INVALID, "no model today");
    model.build = NULL;
    CHECK_ERROR(fsdp_explain(&model, config, NULL, &e), FSDP_INVALID, "needs a function that builds it");
    CHECK_OK(fsdp_train_config_set(config, "model.preset", "llama-1m"));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.strategy", "hsdp"));
    CHECK_ERROR(fsdp_explain(NULL, config, NULL, &e), FSDP_INVALID, "data_parallel_replicate_degree is 1");
    test_set_keys(config, "parallelism.strategy=fsdp2 parallelism.wrap_policy=blocks parallelism.schedule=plan");
    CHECK_ERROR(fsdp_explain(NULL, config, &(fsdp_explain_options){.world_size = 2}, &e), FSDP_UNSUPPORTED,
                "write a schedule with 'fsdp plan --schedule FILE', and set parallelism.schedule to FILE");
    CHECK_ERROR(fsdp_explain_module(NULL, &e), FSDP_INVALID, "needs a module");
    CHECK_NULL(e);
    fsdp_explanation_free(NULL);
}

TEST(an_allocation_that_fails_leaves_nothing)
{
    fsdp_train_config *config = config_of("fsdp2", "always");
    fsdp_explanation *e = NULL;

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n); n += test_brief() ? 40 : 10) {
        fsdp_status status = fsdp_explain(&own_model, config, &(fsdp_explain_options){.sweep = true}, &e);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        if (status == FSDP_OK)
            fsdp_explanation_free(e);
    }
}
