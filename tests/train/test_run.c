/* A whole run with ranks as threads: what a listener sees, the same training in every world, and what a failing
 * allocation, collective or write at any point of it does. */
#include <math.h>
#include <unistd.h>

#include "fsdp/train.h"
#include "support/ranks.h"

enum {
    STEPS = 3,
    MOST_RANKS = 4
};

typedef struct seen {
    int started, failed, exported;
    double losses[STEPS];
    int64_t steps, parameters, local_parameters, collectives;
    fsdp_status status;
} seen;

typedef struct fixture {
    char *directory, *data, *model;
    fsdp_train_config *config;
    seen seen[MOST_RANKS];
    fsdp__fault_kind kind;
    long nth; /* fault of the last rank; 0: none */
    bool fired;
} fixture;

static int setup(void **state)
{
    static const char *const keys[][2] = {{"model.preset", "llama-1m"},
                                          {"model.n_layers", "2"},
                                          {"model.dim", "24"},
                                          {"model.n_heads", "3"},
                                          {"model.n_kv_heads", "1"},
                                          {"model.ffn_dim", "50"},
                                          {"data.workers", "0"},
                                          {"training.steps", "3"},
                                          {"training.seq_len", "16"},
                                          {"training.global_batch_size", "12"},
                                          {"training.local_batch_size", "1"},
                                          {"metrics.log_freq", "1"}};
    fixture *f = calloc(1, sizeof *f);
    FILE *file;

    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    f->model = test_path(f->directory, "model");
    file = fopen(f->data, "w");
    for (int i = 0; i < 300; i++)
        fprintf(file, "%d bottles of beer on the wall. ", 300 - i);
    fclose(file);
    CHECK_OK(fsdp_train_config_create(&f->config));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        CHECK_OK(fsdp_train_config_set(f->config, keys[i][0], keys[i][1]));
    CHECK_OK(fsdp_train_config_set(f->config, "data.path", f->data));
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;

    fsdp_train_config_free(f->config);
    free(f->data);
    free(f->model);
    test_directory_free(f->directory);
    free(f);
    return 0;
}

/* ---- a run ---- */

static void started(void *arg, const fsdp_train_summary *summary)
{
    seen *s = arg;

    s->started++;
    s->parameters = summary->parameters;
    s->local_parameters = summary->local_parameters;
}

static void stepped(void *arg, const fsdp_train_report *report)
{
    seen *s = arg;

    if (report->step == s->steps + 1 && s->steps < STEPS)
        s->losses[s->steps++] = report->loss;
    s->collectives = report->all_gather + report->reduce_scatter + report->all_reduce;
}

static void exported(void *arg, const char *path)
{
    seen *s = arg;

    (void)path;
    s->exported++;
}

static void failed(void *arg, fsdp_status status, const char *message)
{
    seen *s = arg;

    (void)status;
    s->failed += message[0] != '\0';
}

static void run_rank(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    int rank = fsdp_context_rank(context);
    bool faulty = f->nth && rank == fsdp_context_world_size(context) - 1;
    seen *s = &f->seen[rank];
    fsdp_train_listener listener = {
        .arg = s, .started = started, .stepped = stepped, .exported = exported, .failed = failed};

    CHECK_PTR(test_device(context));
    if (faulty)
        fsdp__fault_arm(f->kind, f->nth);
    s->status = fsdp_train(context, f->config, &listener);
    if (faulty) {
        f->fired = fsdp__fault_hit(f->kind);
        fsdp__fault_arm(f->kind, 0);
    }
}

static void run(fixture *f, int world)
{
    memset(f->seen, 0, sizeof f->seen);
    f->fired = false;
    test_run_ranks(world, run_rank, f);
}

/* ---- tests ---- */

static void every_world_trains_the_same(void **state)
{
    fixture *f = *state;
    double alone[STEPS];

    CHECK_OK(fsdp_train_config_set(f->config, "export.path", f->model));
    for (int world = 1; world <= 4; world++) {
        int64_t held = 0;

        run(f, world);
        for (int r = 0; r < world; r++) {
            CHECK_OK(f->seen[r].status);
            CHECK_EQ(f->seen[r].started, 1);
            CHECK_EQ(f->seen[r].steps, STEPS);
            CHECK_EQ(f->seen[r].exported, 1);
            CHECK_EQ(f->seen[r].failed, 0);
            CHECK_EQ(f->seen[r].collectives == 0, world == 1);
            held += f->seen[r].local_parameters;
            for (int i = 0; i < STEPS; i++)
                CHECK_NEAR(f->seen[r].losses[i], world == 1 ? f->seen[r].losses[i] : alone[i], 1e-4);
        }
        CHECK_EQ(held, f->seen[0].parameters); /* each row is held once */
        if (world == 1)
            memcpy(alone, f->seen[0].losses, sizeof alone);
    }
    CHECK(alone[STEPS - 1] < alone[0]);
}

static void what_all_ranks_know_is_told_by_rank_0_alone(void **state)
{
    fixture *f = *state;

    CHECK_OK(fsdp_train_config_set(f->config, "data.path", "/nonexistent"));
    run(f, 3);
    for (int r = 0; r < 3; r++) {
        CHECK_EQ(f->seen[r].status, FSDP_NOT_FOUND);
        CHECK_EQ(f->seen[r].failed, r == 0);
        CHECK_EQ(f->seen[r].started, 0);
    }
}

/* The n-th use of `kind` on rank 1 of 2 fails, for n growing until a run has fewer uses. */
static void survives(fixture *f, fsdp__fault_kind kind)
{
    f->kind = kind;
    for (f->nth = 1;; f->nth += 1 + f->nth / 12) {
        run(f, 2);
        if (!f->fired)
            break;
        CHECK(f->seen[0].status != FSDP_OK && f->seen[1].status != FSDP_OK);
        CHECK(f->seen[0].failed + f->seen[1].failed >= 1);
    }
    CHECK_OK(f->seen[0].status);
    CHECK_OK(f->seen[1].status);
    CHECK(f->nth > 1);
}

static void a_failing_allocation_ends_all_ranks_and_leaks_nothing(void **state)
{
    survives(*state, FSDP__FAULT_ALLOCATION);
}

static void a_failing_collective_ends_all_ranks_and_leaks_nothing(void **state)
{
    survives(*state, FSDP__FAULT_COLLECTIVE);
}

static void a_failing_write_leaves_no_model_behind(void **state)
{
    fixture *f = *state;
    char *rescued = test_path(f->directory, "rescued");

    CHECK_OK(fsdp_train_config_set(f->config, "export.path", f->model));
    CHECK_OK(fsdp_train_config_set(f->config, "export.fallback_path", rescued));
    f->kind = FSDP__FAULT_WRITE;
    for (f->nth = 1;; f->nth++) {
        run(f, 2);
        if (!f->fired)
            break;
        CHECK(f->seen[0].status != FSDP_OK && f->seen[1].status != FSDP_OK);
        CHECK(access(f->model, F_OK) != 0);
    }
    CHECK_OK(f->seen[1].status);
    CHECK(access(f->model, F_OK) == 0);
    free(rescued);
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
TEST_MAIN(T(every_world_trains_the_same), T(what_all_ranks_know_is_told_by_rank_0_alone),
          T(a_failing_allocation_ends_all_ranks_and_leaks_nothing),
          T(a_failing_collective_ends_all_ranks_and_leaks_nothing), T(a_failing_write_leaves_no_model_behind))
