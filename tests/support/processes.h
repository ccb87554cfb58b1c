/* support/processes.h - ranks as processes, each with a CUDA of its own: forked for one world, and gone after it.
 *
 * Memory is copied by a fork, but for what tests/support/main.c puts on the cases' stack where FSDP_TEST_RANKS asks for
 * processes: what a case hands to its ranks from there all of them read and write. What a rank allocates, its own
 * process has; rank 0 is a thread of the process that runs the case, so its allocations live on. */
#pragma once

#include "fsdp/context.h"
#include "support/test.h"

/* Returns whether ranks are to be processes. */
bool test_ranks_are_processes(void);
/* Returns zeroed memory that processes forked later share. */
void *test_shared_new(size_t bytes);
void test_shared_free(void *memory, size_t bytes);

/* Holds what `run` is called with, in each rank's process, once its context is there (NULL: it could not join, as the
 * last error says); and `ended`, in the process of the case, when one of ranks 1 and up has ended, with what waitpid
 * says of it. `run` may leave objects behind. */
typedef struct test_processes {
    int world;
    void (*run)(void *arg, int rank, fsdp_context *context);
    void (*ended)(void *arg, int rank, int status);
    void *arg;
} test_processes;

/* Runs all ranks, and returns when they have ended. */
void test_run_processes(const test_processes *p);
