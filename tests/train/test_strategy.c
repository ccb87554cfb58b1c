/* parallelism.strategy: runs of every strategy are the same where gradients add up alike, and send what theirs is to
 * send; what excludes each other is refused with both keys. */
#include "fsdp/train.h"
#include "support/ranks.h"

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
    fsdp_train_run *run = NULL;
    fsdp_train_report report;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_train_step(run, &report));
        if (fsdp_context_rank(context) == 0)
            f->reports[step] = report;
    }
    fsdp_train_run_free(run);
}

static void set(fsdp_train_config *config, const char *key, const char *format, int value)
{
    char text[32];

    snprintf(text, sizeof text, format, value);
    CHECK_OK(fsdp_train_config_set(config, key, text));
}

static fsdp_train_config *configure(const char *data, int world, int micros, const char *strategy)
{
    static const char *const keys[][2] = {{"model.preset", "llama-1m"}, {"model.n_layers", "2"},
                                          {"model.dim", "24"},          {"model.n_heads", "2"},
                                          {"model.n_kv_heads", "1"},    {"model.ffn_dim", "50"},
                                          {"model.vocab_size", "256"},  {"data.workers", "0"},
                                          {"training.seq_len", "8"},    {"training.local_batch_size", "2"},
                                          {"metrics.log_freq", "1"}};
    fsdp_train_config *config;

    CHECK_OK(fsdp_train_config_create(&config));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        CHECK_OK(fsdp_train_config_set(config, keys[i][0], keys[i][1]));
    CHECK_OK(fsdp_train_config_set(config, "data.path", data));
    CHECK_OK(fsdp_train_config_set(config, "parallelism.strategy", strategy));
    set(config, "training.global_batch_size", "%d", 2 * world * micros);
    return config;
}

/* Losses and norms to the bit: what the step before made of the parameters shows there. */
static void check_same(const fixture *a, const fixture *b)
{
    for (int step = 0; step < STEPS; step++) {
        CHECK_BYTES(&a->reports[step].loss, &b->reports[step].loss, sizeof a->reports[step].loss);
        CHECK_BYTES(&a->reports[step].grad_norm, &b->reports[step].grad_norm, sizeof a->reports[step].grad_norm);
    }
}

static void run(fixture *f, const char *data, int world, int micros, const char *strategy, const char *no_sync)
{
    f->config = configure(data, world, micros, strategy);
    if (no_sync)
        CHECK_OK(fsdp_train_config_set(f->config, "training.no_sync", no_sync));
    test_run_ranks(world, train, f);
    fsdp_train_config_free(f->config);
}

static void check_calls(const fixture *f, int world, int64_t gathers, int64_t reductions)
{
    for (int step = 0; step < STEPS; step++) {
        CHECK_EQ(f->reports[step].all_gather, world > 1 ? gathers : 0);
        CHECK_EQ(f->reports[step].reduce_scatter, world > 1 ? reductions : 0);
        CHECK_EQ(f->reports[step].all_reduce, world > 1); /* the norm */
    }
}

static void compare(const char *data, int world, int micros)
{
    fixture synced = {0}, once = {0}, zero[3] = {0};
    int m = micros;

    run(&synced, data, world, micros, "fsdp2", "false");
    run(&once, data, world, micros, "fsdp2", NULL);
    run(&zero[0], data, world, micros, "zero1", NULL);
    run(&zero[1], data, world, micros, "zero2", NULL);
    run(&zero[2], data, world, micros, "zero3", NULL);
    check_same(&zero[0], &once);
    check_same(&zero[1], &synced);
    check_same(&zero[2], &synced);
    check_calls(&once, world, m * (2 * GROUPS - 1), GROUPS);
    check_calls(&zero[0], world, GROUPS, GROUPS);
    check_calls(&zero[1], world, GROUPS, m * GROUPS);
    check_calls(&zero[2], world, m * (2 * GROUPS - 1), m * GROUPS);
    CHECK_EQ(zero[2].reports[1].bytes_sent, synced.reports[1].bytes_sent);
    if (micros == 1)
        check_same(&once, &synced);
    if (micros > 1 && world > 1)
        CHECK(zero[0].reports[1].bytes_sent < zero[1].reports[1].bytes_sent);
}

static void strategies_train_alike(void **state)
{
    char *directory = test_directory(), *data = test_path(directory, "data.txt"), text[4096];

    (void)state;
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * i % 23);
    test_write_file(data, text, sizeof text);
    for (int world = 1; world <= (test_brief() ? 3 : WORLDS); world++)
        compare(data, world, 1 + (world + 1) % MICROS);
    compare(data, 3, MICROS);
    free(data);
    test_directory_free(directory);
}

/* ---- refusals ---- */

static void what_excludes_each_other_is_refused(void **state)
{
    static const char *const wrong[][4] = {
        {"zero1", "parallelism.fsdp_reshard_after_forward", "always",
         "strategy zero1 keeps parameters whole from the forward to the backward, and "
         "parallelism.fsdp_reshard_after_forward gives them up: leave that out, or set parallelism.strategy to zero3"},
        {"zero2", "parallelism.fsdp_reshard_after_forward", "2",
         "parallelism.fsdp_reshard_after_forward gives them up"},
        {"zero3", "parallelism.fsdp_reshard_after_forward", "never",
         "parallelism.fsdp_reshard_after_forward keeps them whole"},
        {"zero3", "parallelism.fsdp_reshard_after_forward", "1", "set parallelism.strategy to zero2"},
        {"zero1", "training.no_sync", "false", "parallelism.strategy zero1 reduces gradients once a step"},
        {"zero2", "training.no_sync", "true", "leave that out, or set parallelism.strategy to zero1"},
        {"zero3", "training.no_sync", "true", "leave that out, or set parallelism.strategy to fsdp2"},
        {"hsdp", "training.steps", "1", "parallelism.data_parallel_replicate_degree is 1: set it to their number"},
    };
    static const char *const right[][3] = {
        {"zero1", "parallelism.fsdp_reshard_after_forward", "never"},
        {"zero1", "training.no_sync", "true"},
        {"zero2", "parallelism.fsdp_reshard_after_forward", "1"},
        {"zero2", "training.no_sync", "false"},
        {"zero3", "parallelism.fsdp_reshard_after_forward", "2"},
        {"zero2", "parallelism.data_parallel_replicate_degree", "2"},
        {"hsdp", "parallelism.data_parallel_replicate_degree", "2"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fsdp_train_config *config = configure("none.txt", 4, 1, wrong[i][0]);

        CHECK_OK(fsdp_train_config_set(config, wrong[i][1], wrong[i][2]));
        CHECK_ERROR(fsdp_train_config_check(config, 4), FSDP_INVALID, wrong[i][3]);
        fsdp_train_config_free(config);
    }
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        fsdp_train_config *config = configure("none.txt", 4, 1, right[i][0]);

        CHECK_OK(fsdp_train_config_set(config, right[i][1], right[i][2]));
        CHECK_OK(fsdp_train_config_check(config, 4));
        fsdp_train_config_free(config);
    }
}

TEST_MAIN(cmocka_unit_test(strategies_train_alike), cmocka_unit_test(what_excludes_each_other_is_refused))
