/* run_program.h - starts the program `fsdp` (or any other) and keeps what it printed. */
#ifndef TESTS_TRAIN_RUN_PROGRAM_H
#define TESTS_TRAIN_RUN_PROGRAM_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/test.h"

#define PROGRAM TEST_BINARY_DIR "/fsdp"
#define REFERENCE TEST_SOURCE_DIR "/tests/reference"

typedef struct program {
    pid_t pid;
    char *output_path;
    char *output; /* stdout and stderr, after program_wait */
    int status;   /* exit status, 128 + signal when killed */
} program;

/* `argv` is NULL-terminated; output goes to "<directory>/output". */
static inline program program_start(const char *directory, const char *const *argv)
{
    program p = {0};

    p.output_path = test_path(directory, "output");
    fflush(NULL);
    p.pid = fork();
    CHECK(p.pid >= 0);
    if (p.pid == 0) {
        int out = open(p.output_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

        setpgid(0, 0);
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    return p;
}

/* Waits at most `seconds`; a program that takes longer is killed with its group and the test fails. */
static inline void program_wait(program *p, double seconds)
{
    int status = 0;
    size_t bytes;
    struct timespec pause = {.tv_nsec = 5 * 1000 * 1000};
    double waited = 0;

    while (waitpid(p->pid, &status, WNOHANG) == 0) {
        nanosleep(&pause, NULL);
        waited += 0.005;
        if (waited > seconds) {
            kill(-p->pid, SIGKILL);
            waitpid(p->pid, &status, 0);
            p->output = test_read_file(p->output_path, &bytes);
            TEST_FAIL("still running after %.0f s; it printed:\n%s", seconds, p->output);
        }
    }
    p->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    p->output = test_read_file(p->output_path, &bytes);
}

static inline void program_free(program *p)
{
    free(p->output);
    free(p->output_path);
}

/* Starts, waits, and checks the exit status. */
static inline program program_run(const char *directory, int expected, const char *const *argv)
{
    program p = program_start(directory, argv);

    program_wait(&p, 60);
    if (p.status != expected)
        TEST_FAIL("exit status %d, expected %d; it printed:\n%s", p.status, expected, p.output);
    return p;
}

#endif
