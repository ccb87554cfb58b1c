/* run.h - a run of the program that is watched from outside: what it has printed, and which processes are its own. */
#pragma once

#include "cli/fixture.h"

typedef struct run {
    program program;
    char tag[64]; /* "FSDP_TEST_TAG=...", which all its processes have in their environment */
} run;

/* `argv` as for program_start, in the background of this process: signals are not ignored. */
run run_start(const char *directory, const char *const *argv);
/* Waits until it has printed `text`, or has ended. Whether it has printed it. */
bool run_await_output(run *r, const char *text);
/* A process of the run with `entry` ("RANK=1") in its environment; waits until there is one. 0: the run has ended. */
pid_t run_await_process(run *r, const char *entry);
/* Waits until none of its processes is left. */
void run_await_nothing(run *r);
/* Waits for its end; r->program has output and status. */
void run_wait(run *r);
