/* parallelism.strategy: runs of every strategy are the same where gradients add up alike, and send what theirs is to
 * send; what excludes each other is refused with both keys. */
#include "fsdp/train.h"
#include "train/config.h"
#include "train/run_config.h"
#include "train/steps.h"

enum {
    STEPS = 3,
    BLOCKS = 2,
    GROUPS = BLOCKS + 1,
    MICROS = 2,
    WORLDS = 5
};

/* ---- runs ---- */

typedef struct fixture {
    fsdp_train_config *config;
    fsdp_train_report reports[STEPS];
} fixture;

static void train(fsdp_context *context, void *arg)
{
    fixture *f = arg;

    train_steps(context, f->config, STEPS, f->reports);
}

static void set(fsdp_train_config *config, const char *key, const char *format, int value)
{
    char text[32];

    snprintf(text, sizeof text, format, value);
    CHECK_OK(fsdp_train_config_set(config, key, text));
}

static fsdp_train_config *configure(const char *data, int world, int micros, const char *strategy)
{
    fsdp_train_config *config =
        test_config("model.preset=llama-1m model.n_layers=2 model.dim=24 model.n_heads=2 model.n_kv_heads=1 "
                    "model.ffn_dim=50 model.vocab_size=256 data.workers=0 training.max_norm=0.5 "
                    "training.seq_len=8 training.local_batch_size=2 metrics.log_freq=1 data.path=%s "
                    "parallelism.strategy=%s",
                    data, strategy);

    set(config, "training.global_batch_size", "%d", 2 * world * micros);
    return config;
}

/* Losses and norms to the bit, with gradients that are clipped: what the steps before made of the parameters shows
 * there. */
static void check_same(const fixture *a, const fixture *b)
{
    for (int step = 0; step < STEPS; step++) {
        CHECK_BYTES(&a->reports[step].loss, &b->reports[step].loss, sizeof a->reports[step].loss);
        CHECK_BYTES(&a->reports[step].grad_norm, &b->reports[step].grad_norm, sizeof a->reports[step].grad_norm);
    }
}

/* What a run is to be like beside its strategy. */
typedef struct variant {
    const char *strategy, *key, *value; /* one key more; NULL: none */
    int replicas;
} variant;

static void run(fixture *f, const char *data, int world, int micros, variant v)
{
    f->config = configure(data, world, micros, v.strategy);
    if (v.key)
        CHECK_OK(fsdp_train_config_set(f->config, v.key, v.value));
    if (v.replicas)
        set(f->config, "parallelism.data_parallel_replicate_degree", "%d", v.replicas);
    test_run_ranks(world, train, f);
}

static void check_calls(const fixture *f, int world, int64_t gathers, int64_t reductions, int64_t all_reduces)
{
    for (int step = 0; step < STEPS; step++) {
        CHECK_EQ(f->reports[step].all_gather, world > 1 ? gathers : 0);
        CHECK_EQ(f->reports[step].reduce_scatter, world > 1 ? reductions : 0);
        CHECK_EQ(f->reports[step].all_reduce, world > 1 ? all_reduces : 0);
    }
}

/* What the report says in its own words and what it has of comm, the ledger and the engine are the same. */
static void check_report(const fsdp_train_report *r, int world, bool gathers)
{
    int64_t sent = 0;

    for (int kind = 0; kind < FSDP_BARRIER; kind++)
        sent += r->comm.bytes_sent[kind];
    CHECK_EQ(r->bytes_sent, sent);
    CHECK_EQ(r->all_gather, r->comm.calls[FSDP_ALL_GATHER]);
    CHECK_EQ(r->reduce_scatter, r->comm.calls[FSDP_REDUCE_SCATTER]);
    CHECK_EQ(r->all_reduce, r->comm.calls[FSDP_ALL_REDUCE]);
    CHECK_EQ(r->memory_live_bytes, r->memory.live_total_bytes);
    CHECK_EQ(r->memory_peak_bytes, r->memory.peak_total_bytes);
    CHECK(r->memory.peak_bytes[FSDP_MEMORY_GRADIENT] > 0);
    CHECK_EQ(r->memory.live_bytes[FSDP_MEMORY_GRADIENT], 0);
    CHECK(gathers ? r->gather_ms > 0 : r->gather_ms == 0);
    CHECK(world == 1 || r->reduce_ms > 0);
    CHECK(r->gather_ms + r->reduce_ms <= r->step_ms);
}

/* One all-reduce is of the norm. */
static void compare(const char *data, int world, int micros)
{
    fixture synced = {0}, once = {0}, zero[3] = {0};
    int m = micros;

    run(&synced, data, world, micros, (variant){"fsdp2", "training.no_sync", "false", 0});
    run(&once, data, world, micros, (variant){"fsdp2", NULL, NULL, 0});
    run(&zero[0], data, world, micros, (variant){"zero1", NULL, NULL, 0});
    run(&zero[1], data, world, micros, (variant){"zero2", NULL, NULL, 0});
    run(&zero[2], data, world, micros, (variant){"zero3", NULL, NULL, 0});
    check_same(&zero[0], &once);
    check_same(&zero[1], &synced);
    check_same(&zero[2], &synced);
    for (int step = 0; step < STEPS; step++)
        for (int stage = 0; stage < 3; stage++)
            check_report(&zero[stage].reports[step], world, world > 1);
    check_calls(&once, world, m * (2 * GROUPS - 1), GROUPS, 1);
    check_calls(&zero[0], world, GROUPS, GROUPS, 1);
    check_calls(&zero[1], world, GROUPS, m * GROUPS, 1);
    check_calls(&zero[2], world, m * (2 * GROUPS - 1), m * GROUPS, 1);
    CHECK_EQ(zero[2].reports[1].bytes_sent, synced.reports[1].bytes_sent);
    if (micros == 1)
        check_same(&once, &synced);
    if (micros > 1 && world > 1)
        CHECK(zero[0].reports[1].bytes_sent < zero[1].reports[1].bytes_sent);
}

/* The other doors, which add up as FSDP2 does. */
static void compare_doors(const char *data, int world, int micros)
{
    fixture fsdp2 = {0}, ddp = {0}, full = {0}, grad_op = {0}, none = {0}, orig = {0};

    run(&fsdp2, data, world, micros, (variant){"fsdp2", NULL, NULL, 0});
    run(&ddp, data, world, micros, (variant){"ddp", NULL, NULL, 0});
    run(&full, data, world, micros, (variant){"fsdp1", "parallelism.fsdp1_forward_prefetch", "true", 0});
    run(&grad_op, data, world, micros, (variant){"fsdp1", "parallelism.fsdp1_strategy", "shard_grad_op", 0});
    run(&none, data, world, micros, (variant){"fsdp1", "parallelism.fsdp1_strategy", "no_shard", 0});
    run(&orig, data, world, micros, (variant){"fsdp1", "parallelism.fsdp1_use_orig_params", "true", 0});
    check_same(&ddp, &fsdp2);
    check_report(&ddp.reports[1], world, false);
    check_same(&full, &fsdp2);
    check_same(&grad_op, &fsdp2);
    check_same(&none, &fsdp2);
    check_same(&orig, &fsdp2);
    check_calls(&ddp, world, 0, 0, 1);
    check_calls(&full, world, micros * (2 * GROUPS - 1), GROUPS, 1);
    check_calls(&grad_op, world, GROUPS, GROUPS, 1);
    check_calls(&none, world, 0, 0, GROUPS);
}

/* However the buckets are made and sent; `ddp_find_unused_parameters` asks who has used what, once a step. */
static void buckets_change_no_bit(const char *data, int world, int micros)
{
    static const char *const keys[][2] = {{"ddp_bucket_cap_mb", "0.01"},
                                          {"ddp_find_unused_parameters", "true"},
                                          {"ddp_static_graph", "true"},
                                          {"ddp_gradient_as_bucket_view", "true"},
                                          {"ddp_compress", "none"}};
    fixture ddp = {0}, rounded = {0};

    run(&ddp, data, world, micros, (variant){"ddp", NULL, NULL, 0});
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        fixture other = {0};
        char key[64];

        snprintf(key, sizeof key, "parallelism.%s", keys[i][0]);
        run(&other, data, world, micros, (variant){"ddp", key, keys[i][1], 0});
        check_same(&ddp, &other);
        if (i == 0) /* in a first step the buckets are not yet made by arrival */
            CHECK(other.reports[2].all_reduce > ddp.reports[2].all_reduce);
        if (i == 1)
            CHECK_EQ(other.reports[2].all_reduce, ddp.reports[2].all_reduce + 1);
        if (i == 3)
            CHECK(other.reports[2].memory.peak_bytes[FSDP_MEMORY_GRADIENT] <
                  ddp.reports[2].memory.peak_bytes[FSDP_MEMORY_GRADIENT]);
    }
    run(&rounded, data, world, micros, (variant){"ddp", "parallelism.ddp_compress", "bfloat16", 0});
    CHECK(rounded.reports[2].bytes_sent < ddp.reports[2].bytes_sent / 2 + 64); /* the loss is sent as it was */
    CHECK_NEAR(rounded.reports[2].loss, ddp.reports[2].loss, 1e-2);
}

/* Strategies inside each of two copies. */
static void compare_copies(const char *data, int micros)
{
    fixture hsdp = {0}, hybrid = {0}, stage2 = {0}, zero2 = {0}, zero3 = {0}, once = {0}, second = {0};
    fixture alone = {0}, none = {0};

    run(&hsdp, data, 4, micros, (variant){"hsdp", NULL, NULL, 2});
    run(&hybrid, data, 4, micros, (variant){"fsdp1", NULL, NULL, 2});
    run(&stage2, data, 4, micros, (variant){"fsdp1", "parallelism.fsdp1_strategy", "hybrid_shard_zero2", 2});
    run(&zero2, data, 4, micros, (variant){"zero2", NULL, NULL, 2});
    run(&zero3, data, 4, micros, (variant){"zero3", NULL, NULL, 2});
    run(&once, data, 4, micros, (variant){"zero3", NULL, NULL, 0});
    run(&second, data, 4, micros, (variant){"zero3", "parallelism.fsdp_reshard_after_forward", "2", 0});
    run(&alone, data, 4, micros, (variant){"fsdp1", "parallelism.fsdp1_strategy", "hybrid_shard", 4});
    run(&none, data, 4, micros, (variant){"fsdp1", "parallelism.fsdp1_strategy", "no_shard", 4});
    check_same(&alone, &none); /* a copy on each rank */
    check_calls(&alone, 4, 0, 0, GROUPS);
    check_same(&hybrid, &hsdp);
    check_same(&stage2, &hsdp);
    check_same(&zero2, &zero3);
    check_calls(&hsdp, 4, micros * (2 * GROUPS - 1), GROUPS, GROUPS + 1);
    check_calls(&stage2, 4, GROUPS, GROUPS, GROUPS + 1);
    check_calls(&zero2, 4, GROUPS, micros * GROUPS, micros * GROUPS + 1);
    check_same(&second, &once); /* a second copy in each two of four ranks, between forward and backward */
    check_calls(&second, 4, micros * 2 * GROUPS, micros * GROUPS, 1);
}

TEST(strategies_train_alike)
{
    char *directory = test_directory(), *data = test_path(directory, "data.txt");

    test_write_letters(data, 4096, 23);
    for (int world = test_brief() ? 3 : 1; world <= (test_brief() ? 3 : WORLDS); world++) {
        compare(data, world, 1 + world % MICROS);
        compare_doors(data, world, 1 + world % MICROS);
    }
    buckets_change_no_bit(data, 2, MICROS);
    compare_copies(data, MICROS);
}

/* Before anything is trained the weights are the same; the data is the same in other hands. */
TEST(first_losses_do_not_depend_on_the_number_of_ranks)
{
    char *directory = test_directory(), *data = test_path(directory, "data.txt");
    double alone = 0;

    test_write_letters(data, 8192, 23);
    for (int world = 1; world <= 4; world++) {
        fixture f = {0};

        run(&f, data, world, 12 / world, (variant){world == 3 ? "ddp" : "fsdp2", NULL, NULL, 0});
        alone = world == 1 ? f.reports[0].loss : alone;
        CHECK_BYTES(&f.reports[0].loss, &alone, sizeof alone);
    }
}

/* ---- refusals ---- */

static const char *const wrong[][4] = {
    {"zero1", "parallelism.fsdp_reshard_after_forward", "always",
     "strategy zero1 keeps parameters whole from the forward to the backward, but "
     "parallelism.fsdp_reshard_after_forward gives them up: leave that out, or set parallelism.strategy to zero3"},
    {"zero2", "parallelism.fsdp_reshard_after_forward", "2", "parallelism.fsdp_reshard_after_forward gives them up"},
    {"zero3", "parallelism.fsdp_reshard_after_forward", "never",
     "parallelism.fsdp_reshard_after_forward keeps them whole"},
    {"zero3", "parallelism.fsdp_reshard_after_forward", "1", "set parallelism.strategy to zero2"},
    {"zero1", "training.no_sync", "false", "parallelism.strategy zero1 reduces gradients once a step"},
    {"zero2", "training.no_sync", "true", "leave that out, or set parallelism.strategy to zero1"},
    {"zero3", "training.no_sync", "true", "leave that out, or set parallelism.strategy to fsdp2"},
    {"hsdp", "training.steps", "1", "parallelism.data_parallel_replicate_degree is 1: set it to their number"},
    {"ddp", "parallelism.data_parallel_shard_degree", "4",
     "parallelism.strategy ddp shards nothing: leave parallelism.data_parallel_shard_degree out"},
    {"ddp", "parallelism.data_parallel_replicate_degree", "2", "ddp has a copy on each of 4 ranks"},
    {"ddp", "parallelism.fsdp_reshard_after_forward", "always", "ddp keeps parameters whole"},
    {"ddp", "parallelism.fsdp_reshard_after_forward", "3", "ddp keeps parameters whole"},
    {"zero1", "parallelism.fsdp_reshard_after_forward", "3", "set parallelism.strategy to zero3"},
    {"zero3", "parallelism.fsdp_reshard_after_forward", "3", "does not divide the 4 ranks that shard"},
    {"ddp", "parallelism.gather_dtype", "int8", "leave parallelism.gather_dtype out"},
    {"ddp", "parallelism.prefetch", "1", "leave parallelism.prefetch out"},
    {"ddp", "parallelism.keep_last_unit", "true", "leave parallelism.keep_last_unit out"},
    {"ddp", "parallelism.wrap_policy", "root", "leave parallelism.wrap_policy out"},
    {"ddp", "training.mixed_precision_param", "bfloat16", "leave training.mixed_precision_param out"},
    {"ddp", "training.mixed_precision_reduce", "bfloat16", "leave training.mixed_precision_reduce out"},
    {"ddp", "training.enable_cpu_offload", "true", "leave training.enable_cpu_offload out"},
    {"ddp", "training.split_shards", "true", "leave training.split_shards out"},
    {"fsdp1", "training.split_shards", "true", "leave training.split_shards out"},
    {"fsdp2", "training.split_shards", "true", "set training.mixed_precision_param to bfloat16"},
    {"fsdp2", "parallelism.ddp_bucket_cap_mb", "2", "ddp_bucket_cap_mb needs parallelism.strategy ddp"},
    {"fsdp1", "parallelism.ddp_find_unused_parameters", "true",
     "ddp_find_unused_parameters needs parallelism.strategy "},
    {"zero1", "parallelism.ddp_static_graph", "true", "ddp_static_graph needs parallelism.strategy "},
    {"hsdp", "parallelism.ddp_gradient_as_bucket_view", "true",
     "ddp_gradient_as_bucket_view needs parallelism.strategy "},
    {"zero3", "parallelism.ddp_compress", "bfloat16", "ddp_compress needs parallelism.strategy "},
    {"ddp", "parallelism.fsdp1_strategy", "no_shard", "fsdp1_strategy needs parallelism.strategy fsdp1"},
    {"fsdp2", "parallelism.fsdp1_backward_prefetch", "post",
     "parallelism.fsdp1_backward_prefetch needs parallelism.strategy "},
    {"fsdp2", "parallelism.fsdp1_use_orig_params", "true",
     "parallelism.fsdp1_use_orig_params needs parallelism.strategy "},
    {"fsdp2", "parallelism.fsdp1_forward_prefetch", "true",
     "parallelism.fsdp1_forward_prefetch needs parallelism.strategy "},
    {"fsdp1", "parallelism.fsdp1_strategy", "hybrid_shard", "is a hybrid one, but"},
    {"fsdp1", "parallelism.fsdp_reshard_after_forward", "never", "has parallelism.fsdp1_strategy for that"},
    {"fsdp1", "parallelism.prefetch", "1", "leave parallelism.prefetch out"},
    {"fsdp1", "parallelism.keep_last_unit", "true", "leave parallelism.keep_last_unit out"},
    {"fsdp1", "parallelism.gather_dtype", "float8", "leave parallelism.gather_dtype out"},
};
static const char *const right[][3] = {
    {"fsdp2", "parallelism.ddp_find_unused_parameters", "false"}, /* as it is there anyway */
    {"ddp", "parallelism.fsdp1_forward_prefetch", "false"},
    {"zero1", "parallelism.fsdp_reshard_after_forward", "never"},
    {"zero1", "training.no_sync", "true"},
    {"zero2", "parallelism.fsdp_reshard_after_forward", "1"},
    {"zero2", "training.no_sync", "false"},
    {"zero3", "parallelism.keep_last_unit", "true"},
    {"zero3", "parallelism.fsdp_reshard_after_forward", "2"},
    {"zero2", "parallelism.data_parallel_replicate_degree", "2"},
    {"hsdp", "parallelism.data_parallel_replicate_degree", "2"},
    {"ddp", "parallelism.data_parallel_replicate_degree", "4"},
    {"ddp", "parallelism.data_parallel_shard_degree", "1"},
    {"ddp", "parallelism.fsdp_reshard_after_forward", "never"},
    {"fsdp1", "parallelism.data_parallel_replicate_degree", "2"},
    {"fsdp1", "parallelism.fsdp1_backward_prefetch", "none"},
};

TEST(no_shard_has_the_degrees_of_ddp)
{
    fsdp_train_config *config = configure("none.txt", 4, 1, "fsdp1");

    CHECK_OK(fsdp_train_config_set(config, "parallelism.fsdp1_strategy", "no_shard"));
    set(config, "parallelism.data_parallel_shard_degree", "%d", 4);
    CHECK_ERROR(fsdp_train_config_check(config, 4), FSDP_INVALID, "no_shard shards nothing");
    set(config, "parallelism.data_parallel_shard_degree", "%d", 1);
    CHECK_OK(fsdp_train_config_check(config, 4));
    set(config, "parallelism.data_parallel_replicate_degree", "%d", 2);
    CHECK_ERROR(fsdp_train_config_check(config, 4), FSDP_INVALID, "no_shard has a copy on each of 4 ranks");
    set(config, "parallelism.data_parallel_replicate_degree", "%d", 4);
    CHECK_OK(fsdp_train_config_check(config, 4));
}

static void create(fsdp_context *context, void *arg)
{
    const fixture *f = arg;
    fsdp_train_run *run = NULL;

    CHECK_ERROR(fsdp_train_run_create(context, f->config, &run), FSDP_INVALID,
                "the LlamaDecoderLayer 'model.layers.1': its 'self_attn.q_proj.weight' is frozen");
    fsdp_train_run_free(run);
}

TEST(unused_parameters_are_found_in_one_way)
{
    fsdp_train_config *config = configure("none.txt", 4, 1, "ddp");

    CHECK_OK(fsdp_train_config_set(config, "parallelism.ddp_static_graph", "true"));
    CHECK_OK(fsdp_train_config_check(config, 4));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.ddp_find_unused_parameters", "true"));
    CHECK_ERROR(fsdp_train_config_check(config, 4), FSDP_INVALID, "ddp_static_graph finds unused parameters by itself");
    CHECK_ERROR(fsdp_train_config_set(config, "parallelism.ddp_bucket_cap_mb", "0"), FSDP_INVALID, "greater than 0");
}

TEST(frozen_parameters_beside_others_are_refused_by_the_name_of_their_unit)
{
    char *directory = test_directory(), *data = test_path(directory, "data.txt");
    fixture f = {.config = configure(data, 1, 1, "fsdp1")};

    test_write_file(data, directory, strlen(directory));
    CHECK_OK(fsdp_train_config_set(f.config, "model.frozen", "model.layers.1.self_attn.*"));
    test_run_ranks(1, create, &f);
}

/* Before ranks start it is known whether those of a machine share what they gather. */
TEST(halves_of_what_ranks_share_are_refused_before_the_start)
{
    fsdp_train_config *config = configure("none.txt", 4, 1, "fsdp2");

    CHECK_OK(fsdp_train_config_set(config, "training.mixed_precision_param", "bfloat16"));
    CHECK_OK(fsdp_train_config_set(config, "training.split_shards", "true"));
    CHECK_ERROR(fsdp__train_check_start(config, 4), FSDP_INVALID, "is for ranks that share no memory of parameters");
    CHECK_OK(fsdp_train_config_set(config, "training.device", "cuda"));
    CHECK_OK(fsdp__train_check_start(config, 4));
    CHECK_OK(fsdp_train_config_set(config, "training.device", "cpu"));
    set(config, "parallelism.data_parallel_replicate_degree", "%d", 4);
    CHECK_OK(fsdp__train_check_start(config, 4));
}

TEST(what_excludes_each_other_is_refused)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fsdp_train_config *config = configure("none.txt", 4, 1, wrong[i][0]);

        CHECK_OK(fsdp_train_config_set(config, wrong[i][1], wrong[i][2]));
        CHECK_ERROR(fsdp_train_config_check(config, 4), FSDP_INVALID, wrong[i][3]);
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        fsdp_train_config *config = configure("none.txt", 4, 1, right[i][0]);

        CHECK_OK(fsdp_train_config_set(config, right[i][1], right[i][2]));
        CHECK_OK(fsdp_train_config_check(config, 4));
    }
}
