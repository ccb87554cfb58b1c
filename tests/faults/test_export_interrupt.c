/* A run or a command that is interrupted dies of the signal, and leaves no temporary files: at every call that changes
 * the folder of what it writes, and while it trains. */
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/compiler.h"
#include "base/file.h"
#include "faults/tree.h"
#include "support/program.h"
#include "tokenizer/small.h"

#define TESTS TEST_BINARY_DIR "/tests/"

enum {
    MOST_ARGUMENTS = 40,
    SPARSE = 11 /* of the calls, every so manyth in the quick version */
};

typedef struct fixture {
    char *directory, *area, *before;
    char data[300], export[300];
    const char *act;                  /* of preload_calls.c */
    const char *argv[MOST_ARGUMENTS]; /* of a run of one step */
    int argc;
} fixture;

static int setup(void **state)
{
    static const char *const options[] = {PROGRAM,
                                          "train",
                                          "--model.preset=llama-1m",
                                          "--model.n_layers=1",
                                          "--model.dim=24",
                                          "--model.n_heads=3",
                                          "--model.n_kv_heads=1",
                                          "--model.ffn_dim=50",
                                          "--data.workers=0",
                                          "--training.seq_len=16",
                                          "--training.local_batch_size=1",
                                          "--training.steps=1"};
    fixture *f = test_new(sizeof *f);
    char *data, text[2000];

    setenv("OMP_NUM_THREADS", "1", 1);
    f->act = "TERM";
    f->directory = test_directory();
    f->area = test_path(f->directory, "area");
    f->before = test_path(f->directory, "before");
    data = test_path(f->directory, "data.txt");
    memset(text, 'a', sizeof text);
    test_write_file(data, text, sizeof text);
    CHECK_OK(fsdp__make_directories(f->area));
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        f->argv[f->argc++] = options[i];
    snprintf(f->data, sizeof f->data, "--data.path=%s", data);
    snprintf(f->export, sizeof f->export, "--export.path=%s/model", f->area);
    f->argv[f->argc++] = f->data;
    f->argv[f->argc++] = f->export;
    *state = f;
    return 0;
}

/* ---- at every call ---- */

/* A run of one step, or a command, in which the n-th call brings a SIGTERM; 0: none. Returns the exit status. */
static int run_with(fixture *f, int nth)
{
    char number[16];
    program p;
    int status;

    snprintf(number, sizeof number, "%d", nth);
    setenv("LD_PRELOAD", TESTS "preload_calls.so", 1);
    setenv("CALLS_BELOW", f->area, 1);
    setenv("CALLS_ACT", f->act, 1);
    setenv("CALLS_NTH", number, 1);
    p = program_start(f->directory, f->argv);
    unsetenv("LD_PRELOAD");
    program_wait(&p);
    status = p.status;
    return status;
}

/* With AFTER only calls that may make a file. */
static bool counts(const fixture *f, const char *call)
{
    return strcmp(f->act, "AFTER") != 0 || strncmp(call, "open", 4) == 0 || strncmp(call, "linkat", 6) == 0;
}

/* Returns what the folder holds; with AFTER names only, since two traces are never the same. */
static char *holds(const fixture *f)
{
    char *text = tree_text(f->area, NULL), *to = text;
    int spaces = 0;

    if (strcmp(f->act, "AFTER") != 0)
        return text;
    for (const char *from = text; *from; from++) {
        spaces = *from == '\n' ? 0 : spaces + (*from == ' ');
        if (spaces < 2)
            *to++ = *from;
    }
    *to = '\0';
    return text;
}

/* At every so manyth call, of which there are more than `least`. */
static void sweep(fixture *f, int least, int apart)
{
    char *log = test_path(f->directory, "log"), *calls, *call, *old_text, *new_text, *text;
    int count = 0;

    tree_copy(f->area, f->before);
    old_text = holds(f);
    setenv("CALLS_LOG", log, 1);
    (void)unlink(log);
    CHECK_EQ(run_with(f, 0), 0);
    unsetenv("CALLS_LOG");
    new_text = holds(f);
    calls = test_read_file(log, NULL);
    for (char *c = calls; *c; c++)
        count += *c == '\n';
    CHECK(count > least);
    call = calls;
    for (int nth = 1; nth <= count; nth++, call = strchr(call, '\n') + 1) {
        int status;
        bool is_old, is_new;

        if ((nth - 1) % apart != 0 || !counts(f, call))
            continue;
        tree_copy(f->before, f->area);
        status = run_with(f, nth);
        text = holds(f);
        is_old = strcmp(text, old_text) == 0;
        is_new = strcmp(text, new_text) == 0;
        /* Whichever was faster, the signal or the end; but nothing in between, and no temporary files. */
        if (!(status == 0 ? is_new : status == 128 + SIGTERM && (is_old || is_new)))
            TEST_FAIL("call %d: exit status %d, and the folder holds\n%s\nbefore:\n%s\nafter:\n%s", nth, status, text,
                      old_text, new_text);
        free(text);
    }
    free(new_text);
    free(old_text);
}

TEST_WITH(an_interrupted_export_leaves_nothing, setup, NULL)
{
    sweep(*state, 20, test_long() ? 1 : SPARSE);
}

TEST_OF(an_interrupted_replacement_is_not_left_half_done, setup, NULL, fixture *f)
{
    f->argv[f->argc] = "--training.seed=1";
    program_run(f->directory, 0, f->argv);
    f->argv[f->argc] = NULL;
    sweep(f, 20, test_long() ? 1 : SPARSE);
}

/* Those that write a file of their own, under another name first: a page, and a picture. */
TEST_OF(an_interrupted_command_leaves_no_part_of_its_file, setup, NULL, fixture *f)
{
    static const char metrics[] = "{\"run\": \"1\", \"steps\": 1}\n{\"step\": 1, \"loss\": 5}\n";
    char *read = test_path(f->directory, "m.jsonl"), *page = test_path(f->area, "r.html"),
         *svg = test_path(f->area, "e.svg");
    const char *const commands[][6] = {{PROGRAM, "report", read, "-o", page},
                                       {PROGRAM, "explain", "llama-1m", "--svg", svg}};

    test_write_file(read, metrics, sizeof metrics - 1);
    for (size_t i = 0; i < FSDP__COUNT_OF(commands); i++) {
        memset(f->argv, 0, sizeof f->argv);
        memcpy(f->argv, commands[i], sizeof commands[i]);
        sweep(f, 2, test_long() ? 1 : 2);
    }
}

/* Also before anything is written into the folder that it holds for a model or a checkpoint. */
TEST_OF(an_interrupted_conversion_leaves_nothing, setup, NULL, fixture *f)
{
    char *kept = test_path(f->directory, "kept"), *step = test_path(kept, "step-1"), folder[300], export[300],
         *model = test_path(f->directory, "from"), *to = test_path(f->area, "to");
    const char *const commands[][4] = {{PROGRAM, "convert", step, to}, {PROGRAM, "convert", model, to}};

    snprintf(folder, sizeof folder, "--checkpoint.folder=%s", kept);
    snprintf(export, sizeof export, "--export.path=%s", model);
    f->argv[f->argc - 1] = folder;
    f->argv[f->argc] = export;
    program_run(f->directory, 0, f->argv);
    for (size_t i = 0; i < FSDP__COUNT_OF(commands); i++) {
        memset(f->argv, 0, sizeof f->argv);
        memcpy(f->argv, commands[i], sizeof commands[i]);
        test_remove_tree(f->area);
        CHECK_OK(fsdp__make_directories(f->area));
        sweep(f, 4, test_long() ? 1 : 3);
    }
}

/* Files are made and noted as one: in each of the ways in which a file has a name of its own until it is whole. */
TEST_OF(a_file_that_has_just_been_made_is_not_left, setup, NULL, fixture *f)
{
    static const char metrics[] = "{\"run\": \"1\", \"steps\": 1}\n{\"step\": 1, \"loss\": 5}\n";
    char *read = test_path(f->directory, "m.jsonl"), *svg = test_path(f->area, "e.svg"),
         *model = test_path(f->area, "model"), *gguf = test_path(f->area, "m.gguf"),
         *tokens = test_path(f->area, "t.bin"), *page = test_path(f->area, "r.html"), trace[300];
    char *tokenizer = test_path(f->directory, "tokenizer.json"), *json = small_json(&(small_parts){0});
    const char *const commands[][9] = {
        {PROGRAM, "report", read, "-o", page},
        {PROGRAM, "explain", "llama-1m", "--svg", svg},
        {PROGRAM, "convert", model, "-o", gguf, "--to=gguf"},
        {PROGRAM, "tokenize", f->data + strlen("--data.path="), "-o", tokens, "--tokenizer", f->directory, "--no-eos"}};

    test_write_file(read, metrics, sizeof metrics - 1);
    snprintf(trace, sizeof trace, "--metrics.trace.path=%s/trace.json", f->area);
    test_write_file(tokenizer, json, strlen(json));
    program_run(f->directory, 0, f->argv); /* exports the model */
    f->act = "AFTER";
    f->argv[f->argc - 1] = "--metrics.trace.steps=1-1";
    f->argv[f->argc] = trace;
    sweep(f, 1, 1);
    for (size_t i = 0; i < FSDP__COUNT_OF(commands); i++) {
        memset(f->argv, 0, sizeof f->argv);
        memcpy(f->argv, commands[i], sizeof commands[i]);
        sweep(f, 1, 1);
    }
}

/* ---- while it trains ---- */

/* Once the run holds its path it gets the signal. */
static program interrupt(fixture *f, const char *ranks, int ignored, int sent)
{
    char *staging = test_path(f->area, "model.saving/new");
    program p;

    f->argv[f->argc] = "--training.steps=100000000";
    f->argv[f->argc + 1] = "-n";
    f->argv[f->argc + 2] = ranks;
    if (ignored)
        signal(ignored, SIG_IGN);
    p = program_start(f->directory, f->argv);
    if (ignored)
        signal(ignored, SIG_DFL);
    for (int i = 0; i < PATIENCE_LOOKS && !fsdp__path_exists(staging); i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    CHECK(fsdp__path_exists(staging));
    kill(p.pid, sent);
    return p;
}

static void check_left_nothing(fixture *f, program *p)
{
    char *text;

    program_wait(p);
    text = tree_text(f->area, NULL);
    CHECK_STRING(text, "");
    free(text);
}

TEST_WITH(a_run_that_is_interrupted_leaves_nothing, setup, NULL)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    const struct rlimit no_core = {0};

    CHECK_EQ(setrlimit(RLIMIT_CORE, &no_core), 0);
    for (size_t s = 0; s < FSDP__COUNT_OF(signals); s++) {
        program alone = interrupt(*state, "1", 0, signals[s]), ranks;

        check_left_nothing(*state, &alone);
        CHECK_EQ(alone.status, 128 + signals[s]);
        ranks = interrupt(*state, "2", 0, signals[s]);
        check_left_nothing(*state, &ranks);
        CHECK(ranks.status != 0);
    }
}

/* The second signal, of whichever kind, ends a run that saves at once. */
TEST_OF(a_second_signal_leaves_nothing_unfinished, setup, NULL, fixture *f)
{
    static const int pairs[][2] = {{SIGINT, SIGTERM}, {SIGTERM, SIGINT}, {SIGHUP, SIGQUIT}};
    const struct rlimit no_core = {0};
    char folder[300];

    CHECK_EQ(setrlimit(RLIMIT_CORE, &no_core), 0);
    snprintf(folder, sizeof folder, "--checkpoint.folder=%s/kept", f->area);
    f->argv[f->argc++] = folder;
    f->argv[f->argc++] = "--checkpoint.interval=1";
    for (size_t i = 0; i < FSDP__COUNT_OF(pairs); i++) {
        program p = interrupt(f, i % 2 ? "1" : "2", 0, pairs[i][0]);
        char *text;

        kill(p.pid, pairs[i][1]);
        program_wait(&p);
        CHECK(p.status == 128 + pairs[i][0] || p.status == 128 + pairs[i][1]);
        text = tree_text(f->area, NULL);
        CHECK_NULL(strstr(text, ".saving"));
        free(text);
        CHECK_NULL(strstr(p.output, "killed"));
    }
}

TEST_WITH(an_ignored_signal_stays_ignored, setup, NULL)
{
    program p = interrupt(*state, "1", SIGHUP, SIGHUP);

    kill(p.pid, SIGTERM);
    check_left_nothing(*state, &p);
    CHECK_EQ(p.status, 128 + SIGTERM);
}

TEST_FILE_IN_MEMORY(TEST_SANITIZED, "a sanitizer's library must come before any that is preloaded")
