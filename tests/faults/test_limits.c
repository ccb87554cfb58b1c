/* test_limits.c - limits of the system: what does not fit is refused with a message, not found out by a crash. */
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/file.h"
#include "faults/run.h"

#define TRAIN "train", f->config, "--training.steps=2"
#define GPT2 REFERENCE "/models/tiny-gpt2"

/* Runs the program under `limit`, a command of the shell's. */
#define LIMITED(limit, ...) \
    run_limited(f, (limit), (const char *const[]){"bash", "-c", NULL, "bash", PROGRAM, __VA_ARGS__, NULL})

static program run_limited(fixture *f, const char *limit, const char *const *words)
{
    const char *argv[24] = {0};
    char script[200];
    program p;

    snprintf(script, sizeof script, "ulimit -c 0; %s && exec \"$@\"", limit);
    for (int i = 0; words[i] || i == 2; i++)
        argv[i] = i == 2 ? script : words[i];
    p = program_start(f->directory, argv);
    program_wait(&p);
    return p;
}

/* Refused with one message that has `part` in it. Below it may be a table of who has the memory. */
static void check_refused(program *p, const char *part)
{
    const char *said = strstr(p->output, "fsdp: "), *next = said;

    while (next && (next = strstr(next + 1, "fsdp: ")) && strncmp(next, "fsdp:   ", 8) == 0)
        ;
    if (p->status != 1 || !said || !strstr(said, part) || next)
        TEST_FAIL("status %d, not one message with '%s':\n%s", p->status, part, p->output);
}

static void check_ran(program *p)
{
    if (p->status != 0)
        TEST_FAIL("status %d:\n%s", p->status, p->output);
    CHECK_CONTAINS(p->output, "model written to");
}

FIXTURE_TEST(address_space_is_enough_or_the_message_says_so)
{
    program p;

    if (TEST_SANITIZED)
        skip();
    for (int kib = 100000; kib <= 180000; kib += test_long() ? 2000 : 20000) {
        char limit[40];

        snprintf(limit, sizeof limit, "ulimit -v %d", kib);
        for (int ranks = 1; ranks <= 2; ranks++) {
            char n[8];

            snprintf(n, sizeof n, "-n%d", ranks);
            p = LIMITED(limit, TRAIN, n);
            if (p.status == 0)
                check_ran(&p);
            else
                check_refused(&p, "ulimit -v");
        }
    }
    p = LIMITED("ulimit -v 400000", TRAIN);
    check_ran(&p);
    p = LIMITED("ulimit -v 600000", TRAIN, "-n", "2"); /* the shared heap is what the limit leaves */
    check_ran(&p);
}

/* A queue without room for signals carries those that end a run, and what wakes a thread at its end. */
FIXTURE_TEST(no_signal_needs_room_in_the_queue)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        char n[8];
        program p;

        snprintf(n, sizeof n, "-n%d", ranks);
        p = LIMITED("ulimit -i 0", TRAIN, n);
        check_ran(&p);
    }
}

FIXTURE_TEST(a_stack_is_enough_or_the_message_says_so)
{
    program p;

    if (TEST_SANITIZED)
        skip(); /* its frames are larger */
    p = LIMITED("ulimit -s 64", TRAIN);
    check_refused(&p, "'ulimit -s' leaves a stack of 64 KiB, and fsdp needs 256: raise the limit");
    p = LIMITED("ulimit -s 256", TRAIN);
    check_ran(&p);
}

/* Without memory for its code oneDNN ends the process by a signal. */
FIXTURE_TEST(memory_for_products_is_enough_or_the_message_says_so)
{
    if (TEST_SANITIZED)
        skip();
    for (int kib = 12000; kib <= 36000; kib += test_long() ? 250 : 3000) {
        char limit[40];
        program p;

        snprintf(limit, sizeof limit, "ulimit -d %d", kib);
        p = LIMITED(limit, "generate", GPT2, "--tokens=1,2", "--max-new-tokens=2");
        if (p.status != 0)
            check_refused(&p, "memory");
    }
}

FIXTURE_TEST(a_files_size_is_enough_or_the_message_says_so)
{
    program p;

    p = LIMITED("ulimit -f 50", TRAIN); /* KiB */
    check_refused(&p, "raise the limit (ulimit -f)");
    p = LIMITED("ulimit -f 50", TRAIN, "-n", "2");
    check_refused(&p, "'ulimit -f' leaves 0 MiB");
    p = LIMITED("ulimit -f 1", TRAIN, "-n", "2");
    check_refused(&p, "'ulimit -f' says how large a file may be");
    p = LIMITED("ulimit -f 400000", TRAIN, "-n", "2");
    check_ran(&p);
}

FIXTURE_TEST(descriptors_are_enough_or_the_message_says_so)
{
    static const char *const folders[] = {"--export.path", "--checkpoint.folder"};
    program p;

    for (int i = 0; i < 3 * 8; i++) { /* the first two in one process */
        char limit[40], folder[600];

        if (i % 3 != 2 && !test_takes(i / 3, 2, 1))
            continue;
        snprintf(limit, sizeof limit, "ulimit -n %d", 5 + i / 3);
        snprintf(folder, sizeof folder, "%s=%s/%d", folders[i % 3 == 1], f->directory, i);
        p = LIMITED(limit, TRAIN, folder, "-n", i % 3 == 2 ? "2" : "1");
        if (p.status == 0) {
            check_ran(&p);
        } else if (!strstr(p.output,
                           "error while loading shared libraries")) { /* the system's loader needs some, too */
            CHECK_CONTAINS(p.output, "Too many open files; 'ulimit -n'");
            CHECK_NULL(strstr(p.output, "is in the way"));
            CHECK(p.status < 128);
        }
    }
    p = LIMITED("ulimit -n 64", TRAIN, "-n", "2");
    check_ran(&p);
}

FIXTURE_TEST(a_process_without_descriptors_leaves_a_whole_model_or_nothing)
{
    char *model = test_path(f->directory, "converted"), *saving = test_path(f->directory, "converted.saving");

    for (int most = 7; most <= 14; most++) {
        char limit[40];
        program p;

        snprintf(limit, sizeof limit, "ulimit -n %d", most);
        p = LIMITED(limit, "convert", GPT2, model, "--dtype=bfloat16");
        CHECK(!fsdp__path_exists(saving));
        CHECK_EQ(fsdp__path_exists(model), p.status == 0);
        if (p.status == 0)
            test_remove_tree(model);
        CHECK_NULL(strstr(p.output, "cannot remove"));
    }
}

/* Runs the program; this call of its own fails as at a limit. */
static void check_call(fixture *f, const char *call, const char *part, const char *const *argv)
{
    program p;

    setenv("CALLS_REFUSE", call, 1);
    setenv("LD_PRELOAD", TEST_BINARY_DIR "/tests/preload_calls.so", 1);
    p = program_start(f->directory, argv);
    unsetenv("LD_PRELOAD");
    program_wait(&p);
    if ((p.status != 1 && p.status != 126 /* ranks that cannot be started */) || !strstr(p.output, part))
        TEST_FAIL("%s: status %d, without '%s':\n%s", call, p.status, part, p.output);
}

#define FILES ": Too many open files; 'ulimit -n' says how many files a process may have open: raise it"
#define PROCESSES ": Resource temporarily unavailable; 'ulimit -u', or pids.max of a control group, says how many"
#define SIZE ": File too large; 'ulimit -f' says how large a file may be: raise it"
#define CHECK_CALL(call, part, ...) check_call(f, (call), (part), (const char *const[]){PROGRAM, __VA_ARGS__, NULL})

FIXTURE_TEST(each_limit_that_a_call_meets_is_named)
{
    const char *as_rank_1 = "[ $RANK = 0 ] || export LD_PRELOAD=" TEST_BINARY_DIR "/tests/preload_calls.so\n"
                            "exec \"$@\"",
               *to = test_path(f->directory, "to");

    if (TEST_SANITIZED)
        skip(); /* a sanitizer's library must come before any that is preloaded */
    CHECK_CALL("memfd_create:fsdp-steps", "fsdp: cannot watch over the run" FILES, TRAIN, "-n", "2");
    CHECK_CALL("memfd_create:fsdp-config", "fsdp: cannot hand the config to the ranks" FILES, TRAIN, "-n", "2");
    CHECK_CALL("memfd_create:fsdp-figures", "fsdp: cannot make room for figures" FILES, "compare", f->config, "-n1");
    CHECK_CALL("memfd_create:fsdp-random-data", "fsdp: cannot make random data" FILES, "compare", "llama-1m", "-n1");
    CHECK_CALL("pthread_create", "fsdp: cannot start a thread for signals" PROCESSES, TRAIN);
    CHECK_CALL("fork", "fsdp: cannot watch over the ranks" PROCESSES, TRAIN, "-n", "2");
    CHECK_CALL("fork", "fsdp: cannot start a run" PROCESSES, TRAIN, "--sweep=optimizer.lr=1e-3", "--sweep-folder",
               test_path(f->directory, "sweep"));
    program_run(f->directory, 0, (const char *const[]){PROGRAM, TRAIN, NULL});
    CHECK_CALL("memfd_create:fsdp-prompt", "fsdp: cannot hand the prompt to the ranks" FILES, "generate", f->model,
               "--prompt=The", "-n", "2");
    CHECK_CALL("posix_fallocate", "bytes for a temporary file in '", "convert", f->model, to);
    CHECK_CALL("posix_fallocate", SIZE, "convert", f->model, to);
    CHECK_CALL("mmap", "fsdp: cannot map a temporary file in '", "convert", f->model, to);
    setenv("CALLS_REFUSE", "memfd_create:fsdp-config", 1);
    CHECK_CONTAINS(program_run(f->directory, 1,
                               (const char *const[]){PROGRAM, "run", "-n", "2", "--", "/bin/sh", "-c", as_rank_1, "sh",
                                                     PROGRAM, TRAIN, "--export.path=", NULL})
                       .output,
                   "cannot take the config of rank 0" FILES);
}

/* A sequence whose activations are some 200 MiB, of which four ranks have some 50 each. */
#define LONG_SEQUENCE                                                                                \
    "train", f->config, "--training.steps=1", "--training.seq_len=2048", "--model.max_seq_len=2048", \
        "--training.local_batch_size=1", "--model.ffn_dim=4096"

static double loss_of(const program *p)
{
    const char *said = CHECK_PTR(strstr(p->output, "loss: "));

    return atof(said + strlen("loss: "));
}

FIXTURE_TEST(ranks_learn_together_from_a_sequence_that_one_cannot_hold)
{
    const char *limit = "ulimit -d 150000"; /* KiB of memory of a process's own */
    double losses[2];
    program p;

    if (TEST_SANITIZED)
        skip();
    p = LIMITED(limit, LONG_SEQUENCE);
    check_refused(&p, "of activation on device 'cpu'");
    p = LIMITED(limit, LONG_SEQUENCE, "-n", "4", "--parallelism.context_parallel_degree=4");
    check_ran(&p);
    losses[0] = loss_of(&p);
    p = LIMITED("true", LONG_SEQUENCE);
    check_ran(&p);
    losses[1] = loss_of(&p);
    CHECK(losses[1] > 1);
    CHECK_NEAR(losses[0], losses[1], 1.5e-4); /* four digits are printed */
}

FIXTURE_TEST(a_model_that_no_machine_holds_is_refused_with_the_sum)
{
    struct rusage usage;

    for (int ranks = 1; ranks <= 2; ranks++) {
        char n[8], data[600];
        program p;

        snprintf(n, sizeof n, "-n%d", ranks);
        snprintf(data, sizeof data, "--data.path=%s", f->data);
        p = program_run(f->directory, 1,
                        (const char *const[]){PROGRAM, "train", "--model.preset=llama-8b", "--model.n_layers=10000",
                                              data, n, NULL});
        check_refused(&p, "need");
    }
    CHECK_EQ(getrusage(RUSAGE_CHILDREN, &usage), 0);
    if (!TEST_SANITIZED)
        CHECK(usage.ru_maxrss < 1 << 20); /* KiB: before the first gigabyte */
}

FIXTURE_TEST(data_that_is_cut_short_is_named)
{
    run r;

    if (TEST_SANITIZED)
        skip(); /* its own handler of SIGBUS exits with 1 */
    for (int ranks = 1; ranks <= 2; ranks++) {
        char n[8], expected[600];

        test_write_file(f->data, "", 0);
        CHECK_EQ(truncate(f->data, 1 << 20), 0); /* of zeros, which are tokens and no text */
        snprintf(n, sizeof n, "-n%d", ranks);
        r = run_start(f->directory, (const char *const[]){PROGRAM, "train", f->config, "--training.steps=1000000",
                                                          "--metrics.log_freq=1", "--data.format=tokens", n, NULL});
        CHECK(run_await_output(&r, "step:  1"));
        CHECK_EQ(truncate(f->data, 0), 0);
        run_wait(&r);
        run_await_nothing(&r);
        if (ranks == 1)
            snprintf(expected, sizeof expected, "'%s' was cut short while it was read (signal 7", f->data);
        else
            snprintf(expected, sizeof expected, "was killed by signal 7 (Bus error): a file of data or weights");
        CHECK_EQ(r.program.status, 128 + SIGBUS);
        CHECK_CONTAINS(r.program.output, expected);
    }
}
