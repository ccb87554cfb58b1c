/* fsdp train --sweep: runs in folders of their own, one table, a run that fails, one that is ended, and wrong values.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/fixture.h"
#include "comm/health/process.h"

static char *folder_of(const fixture *f)
{
    char *path = test_path(f->directory, "sweep"), *option;

    CHECK(asprintf(&option, "--sweep-folder=%s", path) > 0);
    return option;
}

static bool has(const fixture *f, const char *name)
{
    char *path = test_path(f->directory, name);
    bool there = access(path, F_OK) == 0;

    return there;
}

FIXTURE_TEST(each_combination_is_a_run_with_a_row)
{
    char *folder = folder_of(f);
    const char *const argv[] = {PROGRAM,
                                "train",
                                f->config,
                                "-n",
                                "2",
                                "--sweep=optimizer.lr=1e-3,5e-3",
                                "--sweep",
                                "optimizer.groups=[],[{pattern: '*norm*', weight_decay: 0}]",
                                folder,
                                "--training.steps=4",
                                "--checkpoint.folder=ckpt",
                                "--validation.share=0.2",
                                NULL};
    program p = program_run(f->directory, 0, argv);
    const char *table = strstr(p.output, "\noptimizer.lr  optimizer.groups");

    CHECK_CONTAINS(p.output, "sweep:  run 1 of 4: optimizer.lr=1e-3,optimizer.groups=__\n");
    CHECK(table != NULL);
    CHECK_CONTAINS(table, "best val.    tokens/s       peak\n1e-3          [] ");
    CHECK_CONTAINS(table, "\n5e-3          [{pattern: '*norm*', weight_decay: 0}]  ");
    CHECK_NULL(strstr(table, "failed"));
    CHECK_NULL(strstr(table, " - "));
    CHECK_CONTAINS(table, "to compare them: fsdp report /");
    CHECK(has(f, "sweep/optimizer.lr=1e-3,optimizer.groups=__/checkpoints/step-4"));
    CHECK(has(f, "sweep/optimizer.lr=5e-3,optimizer.groups=__/model/config.json"));
    CHECK(!has(f, "ckpt"));
    CHECK(access(f->metrics, F_OK) != 0);
    p = program_run(f->directory, 0, argv);
    CHECK_CONTAINS(p.output, "sweep:  run 4 of 4: ");
    CHECK_NULL(strstr(p.output, "step:"));
    CHECK(strstr(p.output, "(finished)") != NULL);
    CHECK(strstr(p.output, "\noptimizer.lr  optimizer.groups") != NULL);
    free(folder);
}

FIXTURE_TEST(a_run_that_fails_is_a_row)
{
    char *folder = folder_of(f);
    const char *const argv[] = {
        PROGRAM, "train", f->config, "--sweep=optimizer.lr=1e30,1e-3", folder, "--training.steps=5", NULL};
    program p = program_run(f->directory, 1, argv);

    CHECK_CONTAINS(p.output, "\n1e30 ");
    CHECK_CONTAINS(p.output, "  failed (exit status 1)\n1e-3 ");
    CHECK(has(f, "sweep/optimizer.lr=1e-3/finished"));
    CHECK(!has(f, "sweep/optimizer.lr=1e30/finished"));
    free(folder);
}

FIXTURE_TEST(runs_without_metrics_are_not_among_those_to_compare)
{
    char *folder = folder_of(f), *values;
    const char *argv[] = {PROGRAM, "train", f->config, NULL, folder, "--training.steps=2", NULL};
    program p;

    CHECK(asprintf(&values, "--sweep=data.path=none.txt,neither.txt,%s", f->data) > 0);
    argv[3] = values;
    p = program_run(f->directory, 1, argv);
    CHECK_CONTAINS(p.output, "to compare them: fsdp report");
    CHECK_NULL(strstr(strstr(p.output, "to compare them"), "/data.path=n"));
    CHECK_CONTAINS(strstr(p.output, "to compare them"), "data.txt -o report.html\n");
    argv[3] = "--sweep=data.path=none.txt,neither.txt";
    p = program_run(f->directory, 1, argv);
    CHECK_CONTAINS(p.output, "failed (exit status 1)");
    CHECK_NULL(strstr(p.output, "to compare them"));
    free(values);
    free(folder);
}

FIXTURE_TEST(an_interruption_ends_it_and_it_goes_on)
{
    char *folder = folder_of(f);
    const char *const argv[] = {PROGRAM,
                                "train",
                                f->config,
                                "-n",
                                "2",
                                "--sweep=training.steps=3,60000",
                                folder,
                                "--checkpoint.folder=c",
                                "--metrics.log_freq=1",
                                NULL};
    program p = program_start(f->directory, argv);

    fixture_await(&p, "run 2 of 2");
    fixture_await(&p, "train:  60,000 steps");
    CHECK_EQ(kill(p.pid, SIGINT), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGINT);
    CHECK_CONTAINS(p.output, "the sweep was interrupted in run 2 of 2; the same command continues it");
    CHECK(has(f, "sweep/training.steps=3/finished"));
    CHECK(!has(f, "sweep/training.steps=60000/finished"));
    CHECK_NULL(strstr(p.output, "to compare them"));
    free(folder);
}

/* ---- signals ---- */

/* The sweep's processes: the sweep itself, its run, and the ranks of that where it has several. */
typedef struct family {
    program sweep;
    pid_t all[4];
    int count;
} family;

/* The process above another one; 0: unknown. */
static pid_t parent_of(pid_t pid)
{
    char name[48], text[512] = "";
    int parent = 0;
    FILE *file;

    snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
    file = fopen(name, "r");
    if (!file || !fgets(text, sizeof text, file) || !strrchr(text, ')') ||
        sscanf(strrchr(text, ')'), ") %*c %d", &parent) != 1)
        parent = 0;
    if (file)
        fclose(file);
    return parent;
}

/* Starts a sweep whose run would take hours, and returns when that has made a step. */
static family start_family(fixture *f, int ranks)
{
    char mark[300], n[16], folder[300];
    family all = {.count = 1};
    pid_t found[8];
    int count;

    snprintf(n, sizeof n, "-n%d", ranks);
    snprintf(folder, sizeof folder, "--sweep-folder=%s/of-%d", f->directory, ranks);
    snprintf(mark, sizeof mark, "FSDP_TEST_SWEEP=%s%s", f->directory, n);
    setenv("FSDP_TEST_SWEEP", strchr(mark, '=') + 1, 1);
    all.sweep = program_start(
        f->directory, (const char *const[]){PROGRAM, "train", f->config, n, folder, "--sweep=training.steps=100000000",
                                            "--checkpoint.folder=c", "--checkpoint.interval=100000000", NULL});
    fixture_await(&all.sweep, "step:  1 ");
    all.all[0] = all.sweep.pid;
    count = find_processes(mark, found, 8);
    for (int i = 0; i < count; i++)
        if (parent_of(found[i]) == all.sweep.pid)
            all.all[all.count++] = found[i];
    CHECK_EQ(all.count, 2);
    for (int r = 0; r < ranks && ranks > 1; r++)
        all.all[all.count++] = fixture_rank(mark, r);
    return all;
}

/* Returns as soon as the process is stopped, or is not. */
static void await_stopped(pid_t pid, bool stopped)
{
    for (int looks = 0; (fsdp__process_state(pid, pid) == 'T') != stopped; looks++) {
        CHECK(looks < PATIENCE_LOOKS && kill(pid, 0) == 0);
        usleep(5000);
    }
}

static void end_family(family *all)
{
    CHECK_EQ(kill(all->sweep.pid, SIGTERM), 0);
    program_wait(&all->sweep);
    CHECK_EQ(all->sweep.status, 128 + SIGTERM);
    CHECK_CONTAINS(all->sweep.output, "the sweep was interrupted in run 1 of 1");
}

FIXTURE_TEST(a_sweep_whose_run_is_stopped_can_be_ended)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        family all = start_family(f, ranks);

        CHECK_EQ(kill(all.all[1], SIGSTOP), 0);
        await_stopped(all.all[1], true);
        end_family(&all);
    }
}

FIXTURE_TEST(a_sweep_stops_and_goes_on_with_its_run)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        family all = start_family(f, ranks);

        for (int round = 0; round < 2; round++) {
            if (round == 1) { /* it is stopped already */
                CHECK_EQ(kill(all.all[1], SIGSTOP), 0);
                await_stopped(all.all[1], true);
            }
            CHECK_EQ(kill(all.sweep.pid, SIGTSTP), 0);
            for (int i = 0; i < all.count && (round == 0 || i < 2); i++)
                await_stopped(all.all[i], true);
            CHECK_EQ(kill(all.sweep.pid, SIGCONT), 0);
            for (int i = 0; i < all.count; i++)
                await_stopped(all.all[i], false);
        }
        end_family(&all);
    }
}

FIXTURE_TEST(a_run_of_a_sweep_gets_what_the_sweep_is_asked_for)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        family all = start_family(f, ranks);

        CHECK_EQ(kill(all.sweep.pid, SIGUSR1), 0);
        fixture_await(&all.sweep, "saved:  step ");
        CHECK_EQ(kill(all.sweep.pid, SIGUSR2), 0);
        fixture_await(&all.sweep,
                      ranks == 1 ? "the last calls of rank 0 are in '" : "the last calls of all ranks are in '");
        end_family(&all);
    }
}

FIXTURE_TEST(a_sweep_ignores_what_was_ignored_at_its_start)
{
    char *folder = folder_of(f);
    program p = program_start(f->directory,
                              (const char *const[]){"env", "--ignore-signal=HUP", PROGRAM, "train", f->config, folder,
                                                    "--sweep=training.steps=100000000", "--metrics.log_freq=1", NULL});

    fixture_await(&p, "step:  1 ");
    CHECK_EQ(kill(p.pid, SIGHUP), 0);
    CHECK_EQ(kill(p.pid, SIGTERM), 0);
    program_wait(&p);
    CHECK_EQ(p.status, 128 + SIGTERM); /* SIGHUP has the lower number, and would have been read first */
    free(folder);
}

FIXTURE_TEST(a_sweep_waits_for_its_runs_although_children_were_ignored)
{
    char *folder = folder_of(f);
    program p = program_run(f->directory, 0,
                            (const char *const[]){"env", "--ignore-signal=CHLD", PROGRAM, "train", f->config, "-n2",
                                                  folder, "--sweep=training.steps=1,2", NULL});

    CHECK_CONTAINS(p.output, "sweep:  run 2 of 2");
    CHECK_CONTAINS(p.output, "to compare them: ");
    free(folder);
}

FIXTURE_TEST(the_line_to_compare_them_can_be_copied)
{
    char *folder, *line, *end, *command;
    program p;

    CHECK(asprintf(&folder, "--sweep-folder=%s/it's an \x1b odd one", f->directory) > 0);
    p = program_run(f->directory, 0,
                    (const char *const[]){PROGRAM, "train", f->config, folder, "--sweep=training.steps=1,2", NULL});
    line = CHECK_PTR(strstr(p.output, "fsdp report $'"));
    end = CHECK_PTR(strstr(line, " -o report.html\n"));
    CHECK(asprintf(&command, "'%s'%.*s", PROGRAM, (int)(end - line - 4), line + 4) > 0);
    p = program_run(f->directory, 0, (const char *const[]){"bash", "-c", command, NULL});
    CHECK_CONTAINS(p.output, "training.steps");
    free(folder);
    free(command);
}

/* Traces a process until `until` is closed, and asks nobody what becomes of it. Returns the tracer; 0: it may not. */
static pid_t start_tracer(pid_t traced, int until)
{
    int traces[2];
    char byte;
    pid_t tracer;
    bool may;

    CHECK_EQ(pipe2(traces, O_CLOEXEC), 0);
    tracer = fork();
    if (tracer == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ptrace(PTRACE_SEIZE, traced, NULL, NULL) == 0)
            (void)!write(traces[1], "", 1);
        close(traces[1]);
        (void)!read(until, &byte, 1); /* nobody writes: it ends when the test kills it */
        _exit(0);
    }
    close(traces[1]);
    may = read(traces[0], &byte, 1) == 1;
    close(traces[0]);
    return may ? tracer : 0;
}

/* A run that a debugger has: `ended`: it has ended, and is not let go; otherwise the debugger stops it. */
static void end_traced_run(fixture *f, bool ended)
{
    family all = start_family(f, 1);
    int until[2];
    pid_t tracer;

    CHECK_EQ(pipe2(until, O_CLOEXEC), 0);
    tracer = start_tracer(all.all[1], until[0]);
    if (tracer == 0) { /* not everywhere may one process trace another */
        end_family(&all);
        return;
    }
    CHECK_EQ(kill(ended ? all.all[1] : all.sweep.pid, ended ? SIGKILL : SIGTERM), 0);
    if (!ended) {
        fixture_await(&all.sweep, "does not hear that it is to end, because process ");
        CHECK_EQ(kill(all.sweep.pid, SIGTERM), 0);
    }
    program_wait(&all.sweep);
    CHECK_EQ(all.sweep.status, ended ? 1 : 128 + SIGTERM);
    CHECK_CONTAINS(all.sweep.output, "(the run) remains and is not waited for: process ");
    CHECK_CONTAINS(all.sweep.output, ended ? "  failed (exit status 137)" : "the sweep was interrupted in run 1 of 1");
    CHECK_EQ(kill(tracer, SIGKILL), 0);
    CHECK_EQ(waitpid(tracer, NULL, 0), tracer);
    close(until[0]);
    close(until[1]);
}

FIXTURE_TEST(a_run_that_a_debugger_has_is_not_waited_for)
{
    end_traced_run(f, true);
    end_traced_run(f, false);
}

/* ---- what is no sweep ---- */

static void refuses(fixture *f, int status, const char *sweep, const char *more, const char *message)
{
    char *folder = folder_of(f);
    const char *const argv[] = {PROGRAM, "train", f->config, sweep, folder, "--training.steps=2", more, NULL};
    program p = program_run(f->directory, status, argv);

    CHECK_CONTAINS(p.output, message);
    CHECK_NULL(strstr(p.output, "run 1 of"));
    free(folder);
}

FIXTURE_TEST(what_is_no_sweep_is_refused_before_it_runs)
{
    refuses(f, 2, "--sweep=optimizer.lr", NULL, "expected section.key=value,value, such as optimizer.lr=1e-4,3e-4");
    refuses(f, 2, "--sweep=export.path=a,b", NULL, "--sweep: runs that differ in export.path alone are equal");
    refuses(f, 2, "--sweep=metrics.jsonl=a,b", NULL, "sweep another key");
    refuses(f, 2, "--sweep=optimizer.lr=1e-3,,2", NULL, "has an empty value");
    refuses(f, 2, "--sweep=optimizer.lr=1e-3", "--training.epochs=2",
            "--training.steps is given, but training.epochs, which is 2, takes its place: leave one of them out");
    refuses(f, 2, "--sweep=optimizer.lr=1,2", "--optimizer.lr=3",
            "both --sweep and --optimizer.lr give values of optimizer.lr: leave one of them out");
    refuses(f, 2, "--sweep=optimizer.lr=1,1", NULL, "two runs would be called 'optimizer.lr=1'");
    refuses(f, 2, "--sweep=optimizer.lr=1e-3,0.001", NULL, "optimizer.lr is the same with '1e-3' and '0.001'");
    refuses(f, 2, "--training.seed=1", NULL, "there is no --sweep");
    refuses(f, 2, "--sweep=optimizer.lr=1e-3,much", NULL,
            "--sweep: optimizer.lr is 'much': expected a number greater than 0");
    refuses(f, 2, "--sweep=optimizer.lrr=1e-3", NULL, "optimizer.lrr is not a key of optimizer; did you mean 'lr'?");
}

FIXTURE_TEST(a_folder_of_other_keys_is_refused)
{
    char *folder = folder_of(f);
    const char *const argv[] = {PROGRAM, "train", f->config, "--sweep=optimizer.lr=1e-3", folder, "--training.steps=2",
                                NULL};

    program_run(f->directory, 0, argv);
    refuses(f, 1, "--sweep=optimizer.lr=1e-3", "--training.seed=7",
            "is of a run with other keys: training.seed is 42 there, and 7 here: set it back, name another");
    free(folder);
}

FIXTURE_TEST(a_sweep_whose_folder_has_another_path_goes_on)
{
    char *moved = test_path(f->directory, "moved"), *path = test_path(f->directory, "sweep"), *first, *last;
    char *const option = folder_of(f);
    const char *argv[] = {PROGRAM,
                          "train",
                          f->config,
                          "--sweep=optimizer.lr=1e-3",
                          option,
                          "--training.steps=2",
                          "--checkpoint.folder=ckpt",
                          NULL};
    program p;

    program_run(f->directory, 0, argv);
    CHECK(asprintf(&first, "--sweep-folder=%s/./sweep", f->directory) > 0);
    argv[4] = first;
    p = program_run(f->directory, 0, argv);
    CHECK_CONTAINS(p.output, "(finished)");
    CHECK_EQ(rename(path, moved), 0);
    CHECK_EQ(unlink(test_path(moved, "optimizer.lr=1e-3/finished")), 0);
    test_remove_tree(test_path(moved, "optimizer.lr=1e-3/checkpoints"));
    CHECK(asprintf(&last, "--sweep-folder=%s", moved) > 0);
    argv[4] = last;
    program_run(f->directory, 0, argv); /* it goes on where it is now */
    CHECK(!has(f, "sweep"));
    CHECK(has(f, "moved/optimizer.lr=1e-3/finished"));
    CHECK(has(f, "moved/optimizer.lr=1e-3/checkpoints/step-2"));
    free(first);
    free(last);
    free(option);
}

FIXTURE_TEST(a_note_in_the_config_of_a_run_stays_when_it_goes_on)
{
    char *const option = folder_of(f), *config = test_path(f->directory, "sweep/optimizer.lr=1e-3/config.yaml"), *text;
    const char *argv[] = {PROGRAM, "train", f->config, "--sweep=optimizer.lr=1e-3", option, "--training.steps=2", NULL};
    FILE *file;

    program_run(f->directory, 0, argv);
    CHECK_EQ(unlink(test_path(f->directory, "sweep/optimizer.lr=1e-3/finished")), 0);
    file = CHECK_PTR(fopen(config, "ae"));
    CHECK(fputs("# the best so far\n", file) >= 0);
    CHECK_EQ(fclose(file), 0);
    program_run(f->directory, 0, argv);
    CHECK(has(f, "sweep/optimizer.lr=1e-3/finished"));
    text = test_read_file(config, NULL);
    CHECK_CONTAINS(text, "# the best so far\n");
    free(option);
}

/* A run's config has no folder of caches that nobody has named: each start uses the one of its user. */
FIXTURE_TEST(a_sweep_goes_on_with_another_folder_of_caches)
{
    char *const option = folder_of(f), *config = test_path(f->directory, "sweep/optimizer.lr=1e-3/config.yaml"),
                *kept = test_path(f->directory, "sweep/optimizer.lr=1e-3/checkpoints/step-1/config.yaml"), *text;
    const char *const argv[] = {PROGRAM,
                                "train",
                                f->config,
                                "-n",
                                "2",
                                "--sweep=optimizer.lr=1e-3",
                                option,
                                "--training.steps=1",
                                "--data.tokenizer=" REFERENCE "/finetune/byte-chat",
                                "--checkpoint.folder=c",
                                "--model.vocab_size=259",
                                NULL};

    for (int i = 0; i < 2; i++) {
        char *caches = test_path(f->directory, i == 0 ? "one" : "other");

        test_remove_tree(test_path(f->directory, "sweep/optimizer.lr=1e-3/checkpoints"));
        setenv("XDG_CACHE_HOME", caches, 1);
        program_run(f->directory, 0, argv);
        CHECK_EQ(test_names_in(test_path(caches, "fsdp")), 1);
        text = test_read_file(config, NULL);
        CHECK_CONTAINS(text, "\n  # cache:\n");
        text = test_read_file(kept, NULL); /* and that of its checkpoint neither */
        CHECK_CONTAINS(text, "\n  # cache:\n");
        CHECK_EQ(unlink(test_path(f->directory, "sweep/optimizer.lr=1e-3/finished")), 0);
    }
    unsetenv("XDG_CACHE_HOME");
    free(option);
}

FIXTURE_TEST(a_folder_of_another_sweep_that_runs_is_refused)
{
    char *path = test_path(f->directory, "sweep");
    int held;

    CHECK_EQ(mkdir(path, 0700), 0);
    held = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(held >= 0 && flock(held, LOCK_EX) == 0); /* as if it still ran */
    refuses(f, 1, "--sweep=optimizer.lr=1e-3", "--training.steps=2", "--sweep: another sweep runs in '");
    CHECK(!has(f, "sweep/optimizer.lr=1e-3"));
    close(held);
}

TEST_FILE_IN_MEMORY(false, NULL)
