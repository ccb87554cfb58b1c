/* fsdp train --sweep: runs in folders of their own, one table, a run that fails, one that is ended, and wrong values.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/fixture.h"

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
    fixture *f = *state;
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
    CHECK_CONTAINS(table, "to compare them: fsdp report '");
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
    fixture *f = *state;
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

FIXTURE_TEST(an_interruption_ends_it_and_it_goes_on)
{
    fixture *f = *state;
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
    fixture *f = *state;

    refuses(f, 2, "--sweep=optimizer.lr", NULL, "expected section.key=value,value, such as optimizer.lr=1e-4,3e-4");
    refuses(f, 2, "--sweep=export.path=a,b", NULL, "--sweep: runs that differ in export.path alone are equal");
    refuses(f, 2, "--sweep=metrics.jsonl=a,b", NULL, "sweep another key");
    refuses(f, 2, "--sweep=optimizer.lr=1e-3,,2", NULL, "has an empty value");
    refuses(f, 2, "--sweep=optimizer.lr=1,2", "--optimizer.lr=3",
            "both --sweep and --optimizer.lr give values of optimizer.lr: leave one of them out");
    refuses(f, 2, "--sweep=optimizer.lr=1,1", NULL, "two runs would be called 'optimizer.lr=1'");
    refuses(f, 1, "--sweep=optimizer.lr=1e-3,0.001", NULL, "optimizer.lr is the same with '1e-3' and '0.001'");
    refuses(f, 2, "--training.seed=1", NULL, "there is no --sweep");
    refuses(f, 1, "--sweep=optimizer.lr=1e-3,much", NULL,
            "--sweep: optimizer.lr is 'much': expected a number greater than 0");
    refuses(f, 1, "--sweep=optimizer.lrr=1e-3", NULL, "optimizer.lrr is not a key of optimizer; did you mean 'lr'?");
}

FIXTURE_TEST(a_folder_of_other_keys_is_refused)
{
    fixture *f = *state;
    char *folder = folder_of(f);
    const char *const argv[] = {PROGRAM, "train", f->config, "--sweep=optimizer.lr=1e-3", folder, "--training.steps=2",
                                NULL};

    program_run(f->directory, 0, argv);
    refuses(f, 1, "--sweep=optimizer.lr=1e-3", "--training.seed=7", "is of a run with other keys");
    free(folder);
}

FIXTURE_TEST(a_folder_of_another_sweep_that_runs_is_refused)
{
    fixture *f = *state;
    char *path = test_path(f->directory, "sweep");
    int held;

    CHECK_EQ(mkdir(path, 0700), 0);
    held = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(held >= 0 && flock(held, LOCK_EX) == 0); /* as if it still ran */
    refuses(f, 1, "--sweep=optimizer.lr=1e-3", "--training.steps=2", "--sweep: another sweep runs in '");
    CHECK(!has(f, "sweep/optimizer.lr=1e-3"));
    close(held);
}
