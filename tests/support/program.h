/* program.h - starts the program `fsdp` (or any other) and keeps what it printed. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/test.h"

#define PROGRAM TEST_BINARY_DIR "/tests/fsdp"

#define REFERENCE TEST_SOURCE_DIR "/tests/reference"
/* Returns a path of the reference that is there: in the folder with all of it, which FSDP_REFERENCE names, or in ours;
 * NULL: in neither. It belongs to the case. */
char *test_reference(const char *name, const char *suffix);

enum {
    /* After which a test gives up what it waits for. It is longer than anything takes on a machine that has forty
     * other things to do, and shorter than the time after which ctest ends the test without a word. */
    PATIENCE_SECONDS = 1200,
    PATIENCE_LOOKS = PATIENCE_SECONDS * 200 /* so many, 5 ms apart */
};

typedef struct program {
    pid_t pid;
    char *output_path;
    char *output; /* stdout and stderr, after program_wait */
    int status;   /* exit status, 128 + signal when killed */
} program;

/* `argv` is NULL-terminated; output goes to "<directory>/output". */
program program_start(const char *directory, const char *const *argv);
/* Waits until it ends. One that hangs is killed with its group, and the test fails with what it printed. */
void program_wait(program *p);
/* A copy of a program at `path`, as if it were of another build. */
void program_other_build(const char *from, const char *path);
/* Starts, waits, and checks the exit status. */
program program_run(const char *directory, int expected, const char *const *argv);
