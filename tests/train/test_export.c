/* The model that a run leaves: its folder is held from the start, and when it cannot be written the model is written
 * elsewhere. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "fsdp/hub.h"
#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"
#include "train/run.h"
#include "train/story.h"

enum {
    RANKS = 2
};

typedef struct fixture {
    char *directory, *model;
    fsdp_train_config *config;
    void (*before_export)(struct fixture *f); /* on rank 0, when the last step is done */
    int holds, exported;
    int reader; /* of the metrics, where they go to a pipe */
    fsdp_hub_hold *held;
    fsdp_status status[RANKS];
    char message[1024]; /* of rank 0 */
    char other[1024];   /* and the last error of rank 1 */
    long fault;         /* allocation of rank 1's export that fails */
    bool hit;
} fixture;

static void set_path(fixture *f, const char *key, const char *name)
{
    char *path = test_path(f->directory, name);

    SET(f, key, path);
}

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    char text[2000], *data;

    f->directory = test_directory();
    f->model = test_path(f->directory, "model");
    data = test_path(f->directory, "data.txt");
    memset(text, 'a', sizeof text);
    test_write_file(data, text, sizeof text);
    f->config = test_config("model.preset=llama-1m model.n_layers=1 model.dim=24 model.n_heads=3 model.n_kv_heads=1 "
                            "model.ffn_dim=50 data.workers=0 training.steps=1 training.seq_len=16 "
                            "training.local_batch_size=1");
    set_path(f, "data.path", "data.txt");
    set_path(f, "metrics.jsonl", "metrics.jsonl");
    set_path(f, "export.path", "model");
    *state = f;
    return 0;
}

/* ---- a run ---- */

static void holds(void *arg, fsdp_hub_hold *hold)
{
    fixture *f = arg;

    CHECK(!hold != !f->held); /* one at a time */
    f->held = hold;
    f->holds += hold != NULL;
}

static void stepped(void *arg, const fsdp_train_report *report)
{
    fixture *f = arg;

    (void)report;
    if (f->before_export)
        f->before_export(f);
}

static void exported(void *arg, const char *path)
{
    fixture *f = arg;

    (void)path;
    f->exported++;
}

static void failed(void *arg, fsdp_status status, const char *message)
{
    fixture *f = arg;

    (void)status;
    snprintf(f->message, sizeof f->message, "%s", message);
}

static void run_rank(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    int rank = fsdp_context_rank(context);
    const fsdp_train_listener mine = {
        .arg = f, .stepped = stepped, .exported = exported, .failed = failed, .holds = holds};
    const fsdp_train_listener nobody = {0};

    f->status[rank] = fsdp_train(context, f->config, rank == 0 ? &mine : &nobody);
    if (rank == 1)
        snprintf(f->other, sizeof f->other, "%s", f->status[rank] == FSDP_OK ? "" : fsdp_last_error());
}

static void run(fixture *f)
{
    f->message[0] = '\0';
    f->exported = 0;
    test_run_ranks(RANKS, run_rank, f);
    CHECK_NULL(f->held);
    CHECK_EQ(f->status[0] == FSDP_OK, f->status[1] == FSDP_OK);
}

static void check_there(const fixture *f, const char *name, bool there)
{
    char *path = test_path(f->directory, name);
    fsdp_model_config config;

    CHECK_EQ(fsdp__path_exists(path), there);
    if (there)
        CHECK_OK(fsdp_hub_read_config(path, &config));
}

/* ---- tests ---- */

TEST_OF(a_run_holds_its_path_and_writes_it, setup, NULL, fixture *f)
{
    run(f);
    CHECK_OK(f->status[0]);
    CHECK_EQ(f->holds, 1);
    CHECK_EQ(f->exported, 1);
    check_there(f, "model", true);
    check_there(f, "model.saving", false);
}

/* Somebody puts a file into the folder while the run trains. */
static void take_away(fixture *f)
{
    char *file = test_path(f->model, "config.json");

    CHECK_OK(fsdp__make_directories(f->model));
    test_write_file(file, "theirs", 6);
}

TEST_OF(a_model_that_cannot_be_written_goes_elsewhere, setup, NULL, fixture *f)
{
    f->before_export = take_away;
    for (int i = 1; i <= 2; i++) {
        run(f);
        CHECK_EQ(f->status[0], FSDP_INVALID);
        CHECK_EQ(f->exported, 0);
        CHECK_EQ(f->holds, 2 * i);
        CHECK_CONTAINS(f->message, "it holds 'config.json', which no export wrote");
        CHECK_CONTAINS(f->message, i == 1 ? "/model-recovered' instead" : "/model-recovered-2' instead");
        CHECK_CONTAINS(f->other, i == 1 ? "/model-recovered' instead" : "/model-recovered-2' instead");
        check_there(f, "model-recovered", true);
        check_there(f, "model-recovered-2", i == 2);
        check_there(f, "model.saving", false);
        test_remove_tree(f->model);
    }
}

/* And the second path too. */
static void take_both_away(fixture *f)
{
    char *file = test_path(f->directory, "below");

    take_away(f);
    test_write_file(file, "theirs", 6);
}

/* And the folder of the metrics. */
static void take_all_away(fixture *f)
{
    char *lines = test_path(f->directory, "lines");

    take_both_away(f);
    test_remove_tree(lines);
    test_write_file(lines, "theirs", 6);
}

TEST_OF(both_reasons_are_told, setup, NULL, fixture *f)
{
    char *below = test_path(f->directory, "below"), *lines = test_path(f->directory, "lines");

    set_path(f, "export.fallback_path", "rescued");
    f->before_export = take_away;
    run(f);
    CHECK_CONTAINS(f->message, "/rescued' instead");
    check_there(f, "rescued", true);
    test_remove_tree(f->model);
    /* Where neither works, what is the default for the second. */
    set_path(f, "export.fallback_path", "below/rescued");
    f->before_export = take_both_away;
    run(f);
    CHECK_CONTAINS(f->message, "it holds 'config.json', which no export wrote");
    CHECK_CONTAINS(f->message, "/model-recovered' instead");
    check_there(f, "model-recovered", true);
    test_remove_tree(f->model);
    test_remove_tree(below);
    CHECK(mkdir(lines, 0755) == 0);
    set_path(f, "metrics.jsonl", "lines/metrics.jsonl");
    f->before_export = take_all_away;
    run(f);
    CHECK_CONTAINS(f->message, "it holds 'config.json', which no export wrote");
    CHECK_CONTAINS(f->message, "the model could not be written elsewhere either and is lost: cannot write");
    set_path(f, "metrics.jsonl", "metrics.jsonl");
    set_path(f, "export.fallback_path", "data.txt");
    test_remove_tree(f->model);
    run(f);
    CHECK_CONTAINS(f->message, "export.fallback_path: cannot write the model to '");
    CHECK_CONTAINS(f->message, "it exists and is not a folder");
    set_path(f, "export.fallback_path", "");
    run(f);
    CHECK_CONTAINS(f->message, "it holds 'below', which no export wrote: name another folder"); /* overwrite: no help */
    CHECK_NULL(strstr(f->message, "export.overwrite"));
}

/* It would fail for the same reason. */
TEST_OF(the_second_path_is_another_one, setup, NULL, fixture *f)
{
    static const char *const same[] = {"model", "model/", "model/../model", "link"};
    char *link = test_path(f->directory, "link");

    for (int there = 0; there < 2; there++) {
        for (int i = 0; i < (there ? 4 : 2); i++) {
            set_path(f, "export.fallback_path", same[i]);
            run(f);
            CHECK_CONTAINS(f->message, "is export.path: name another folder");
        }
        if (!there) {
            CHECK_EQ(mkdir(f->model, 0777), 0);
            CHECK_EQ(symlink("model", link), 0);
        }
    }
}

/* Where the model came from, what cannot be copied appears. */
static void spoil_the_tokenizer(fixture *f)
{
    char *file = test_path(f->model, "tokenizer.json");

    CHECK_EQ(mkfifo(file, 0666), 0);
}

TEST_OF(a_tokenizer_takes_no_weights_along, setup, NULL, fixture *f)
{
    static const char *const sizes[] = {"preset", "n_layers", "dim", "n_heads", "n_kv_heads", "ffn_dim"};
    char *tokens = test_path(f->directory, "tokens.bin");
    const uint16_t ids[1000] = {1, 2, 3};

    run(f);
    CHECK_OK(f->status[0]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char key[40];

        snprintf(key, sizeof key, "model.%s", sizes[i]);
        SET(f, key, "");
    }
    set_path(f, "model.path", "model");
    set_path(f, "export.path", "second");
    f->before_export = spoil_the_tokenizer;
    run(f);
    CHECK_EQ(f->status[0], FSDP_IO);
    CHECK_CONTAINS(f->message, "/tokenizer.json': it is a FIFO");
    CHECK_CONTAINS(f->message, "/second-recovered' instead");
    check_there(f, "second", false);
    check_there(f, "second-recovered", true);
    f->before_export = NULL;
    test_write_file(tokens, ids, sizeof ids); /* which need no tokenizer */
    SET(f, "data.path", tokens);
    run(f);
    CHECK_CONTAINS(f->message, "export.path: cannot read '"); /* known before */
    check_there(f, "second-recovered-2", false);
}

/* Whoever reads the metrics goes away after a step. */
static void stop_reading(fixture *f)
{
    if (f->reader >= 0)
        close(f->reader);
    f->reader = -1;
}

TEST_OF(metrics_that_cannot_be_written_do_not_cost_the_model, setup, NULL, fixture *f)
{
    char *pipe = test_path(f->directory, "pipe");

    (void)signal(SIGPIPE, SIG_IGN);
    CHECK(mkfifo(pipe, 0600) == 0);
    f->reader = open(pipe, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    CHECK(f->reader >= 0);
    set_path(f, "metrics.jsonl", "pipe");
    SET(f, "training.steps", "3");
    f->before_export = stop_reading;
    run(f);
    CHECK_EQ(f->status[0], FSDP_IO);
    CHECK_CONTAINS(f->message, "Broken pipe; the lines from there on are missing");
    CHECK_EQ(f->exported, 1);
    check_there(f, "model", true);
    (void)signal(SIGPIPE, SIG_DFL);
}

TEST_OF(what_is_known_before_is_told_before, setup, NULL, fixture *f)
{
    take_away(f);
    run(f);
    CHECK_EQ(f->status[0], FSDP_INVALID);
    CHECK_CONTAINS(f->message, "export.path: cannot write the model to '");
    CHECK_CONTAINS(f->message, "it holds 'config.json', which no export wrote: name another folder, or set "
                               "export.overwrite: true");
    check_there(f, "model-recovered", false);
    SET(f, "export.overwrite", "true");
    run(f);
    CHECK_OK(f->status[0]);
    check_there(f, "model", true);
}

static void a_second_run_into_the_path_is_told(fixture *f)
{
    fsdp_context *context = test_context();
    fsdp_train_run *second = NULL;

    CHECK_ERROR(fsdp_train_run_create(context, f->config, &second), FSDP_STATE, "another run writes there: process ");
    CHECK_NULL(second);
    fsdp_context_free(context);
}

TEST_OF(two_runs_do_not_write_one_path, setup, NULL, fixture *f)
{
    f->before_export = a_second_run_into_the_path_is_told;
    run(f);
    CHECK_OK(f->status[0]);
    check_there(f, "model", true);
}

static void give_up(fixture *f)
{
    fsdp_hub_abandon(f->held);
}

TEST_OF(what_is_given_up_is_not_written_elsewhere, setup, NULL, fixture *f)
{
    f->before_export = give_up;
    run(f);
    CHECK_EQ(f->status[0], FSDP_INTERRUPTED);
    check_there(f, "model", false);
    check_there(f, "model.saving", false);
    check_there(f, "model-recovered", false);
}

static void export_with_a_fault(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    int rank = fsdp_context_rank(context);
    fsdp_train_run *run = NULL;

    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    test_meet();
    if (rank == 1)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, f->fault);
    f->status[rank] = fsdp_train_export(run);
    if (rank == 1) {
        f->hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        snprintf(f->other, sizeof f->other, "%s", f->status[rank] == FSDP_OK ? "" : fsdp_last_error());
    }
    fsdp_train_run_free(run);
}

/* And leaves no memory: a rank whose device has live bytes at its end fails. */
TEST_OF(a_rank_that_has_no_memory_fails_the_export_of_all, setup, NULL, fixture *f)
{
    f->hit = true;
    for (f->fault = 1; f->hit; f->fault++) {
        test_run_ranks(RANKS, export_with_a_fault, f);
        CHECK(f->hit || f->status[0] == FSDP_OK);
        CHECK_EQ(f->status[0] == FSDP_OK, f->status[1] == FSDP_OK);
        if (fsdp__path_exists(f->model))
            CHECK_NULL(strstr(f->other, "is lost"));
        check_there(f, "model.saving", false);
        test_remove_tree(f->model);
    }
}

/* ---- the best is gone ---- */

/* Steps that are validated, and no checkpoint of the best one, which is not the last. */
static fsdp_train_run *run_without_the_best(fsdp_context *context, const story *s)
{
    fsdp_train_run *run = NULL;
    fsdp_train_validation v;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, s->config, &run));
    for (int step = 1; step <= 3; step++)
        CHECK(fsdp_train_step(run, NULL) == FSDP_OK && fsdp_train_validate(run, &v) == FSDP_OK);
    CHECK(v.best_step < 3);
    return run;
}

static void set_getting_worse(story *s)
{
    char *metrics = test_path(s->directory, "metrics.jsonl");

    story_get_worse(s);
    story_set(s, "training.steps", "3");
    story_set(s, "export.which", "best");
    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "metrics.jsonl", metrics); /* beside which the model goes where it cannot be written */
}

static void export_what_is_not_finite(fsdp_context *context, void *arg)
{
    const story *s = arg;
    fsdp_train_run *run = run_without_the_best(context, s);
    fsdp_tensor *norm = CHECK_PTR(fsdp_module_parameter(fsdp_train_run_model(run), "model.norm.weight"));
    float values[100];

    CHECK(fsdp_tensor_numel(norm) <= 100);
    for (int i = 0; i < 100; i++)
        values[i] = NAN;
    CHECK_OK(fsdp_tensor_write(norm, FSDP_F32, values));
    CHECK_ERROR(fsdp_train_export(run), FSDP_NOT_FOUND,
                s->config->training.on_nan == FSDP_TRAIN_CONTINUE ? "the last, were exported instead"
                                                                  : "because the last weights are not finite");
    fsdp_train_run_free(run);
}

STORY_TEST(last_weights_that_are_not_finite_are_exported_where_the_run_goes_on)
{
    set_getting_worse(s);
    test_run_ranks(2, export_what_is_not_finite, s);
    CHECK(!fsdp__path_exists(s->model));
    story_set(s, "training.on_nan", "continue");
    test_run_ranks(2, export_what_is_not_finite, s);
    CHECK(fsdp__path_exists(s->model));
}

/* On rank 1. */
static void export_without_memory(fsdp_context *context, void *arg)
{
    story *s = arg;
    fsdp_train_run *run = run_without_the_best(context, s);
    int rank = fsdp_context_rank(context);

    if (rank == 1)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, s->nth);
    s->statuses[rank] = fsdp_train_export(run);
    if (rank == 1) {
        s->fired = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    }
    CHECK(s->statuses[rank] != FSDP_OK);
    if (rank == 0)
        snprintf(s->message, sizeof s->message, "%s", fsdp_last_error());
    fsdp_train_run_free(run);
}

STORY_TEST(what_fails_after_the_best_is_gone_is_told_with_it)
{
    bool looked = false, wrote = false;

    set_getting_worse(s);
    s->fired = true;
    for (s->nth = 1; s->fired && !wrote; s->nth += 16) {
        bool looks, writes;

        test_run_ranks(2, export_without_memory, s);
        looks = strstr(s->message, "could not be checked: rank 1") != NULL;
        writes = strstr(s->message, "were to be exported instead: ") != NULL;
        if (looks || writes)
            CHECK_CONTAINS(s->message, "the best validation so far was after step ");
        looked |= looks;
        wrote |= writes;
    }
    CHECK(looked && wrote);
}
