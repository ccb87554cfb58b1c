/* support/ranks.h - a test body on several ranks, as threads of this process. */
#pragma once

#include "fsdp/comm.h"
#include "support/machines.h"
#include "support/test.h"

typedef void (*test_rank_body)(fsdp_context *context, void *arg);

/* Runs `body` on `world` ranks with one compute thread each, waits for all and frees their contexts. A CHECK that
 * fails ends its rank and aborts the world, so that its peers do not wait for it; then the test fails with the first
 * failure of each rank. A rank must have freed all device memory at its end.
 *
 * With FSDP_TEST_MACHINES=M in the environment worlds that M divides are of M machines, each with its memory.
 *
 * With FSDP_TEST_CARRIER=nccl groups on GPUs (FSDP_TEST_DEVICE=cuda) exchange by that carrier.
 *
 * With FSDP_TEST_RANKS=processes each rank of a world is a process (support/processes.h). They share what the case has
 * on its stack and what tests allocate, but no static variable. Worlds on machines, and those that plant a race, are of
 * threads as ever.
 *
 * With FSDP_TEST_JOINED=1 this process is one rank of a world that somebody else has started (mpirun), for tests whose
 * ranks share nothing but what they only read (TEST_FILE_JOINED): worlds of one rank are as ever, those of that many
 * ranks are these processes, in one context for all, and no other world is run. */
void test_run_ranks(int world, test_rank_body body, void *arg);
/* Runs in one world after the other. */
void test_run_worlds(int first, int last, test_rank_body body, void *arg);
/* Defines a case of which every rank of a world, or of one world after the other, runs the body:
 *
 *     RANKS_TEST(a_barrier_is_for_all, 4)
 *     {
 *         CHECK_OK(fsdp_barrier(fsdp_world(context)));
 *     } */
#define RANKS_TEST(name, world) RUN_TEST(name, test_run_worlds, world, world)
#define WORLDS_TEST(name, first, last) RUN_TEST(name, test_run_worlds, first, last)
/* Does so by another function, whose last parameters are the body and its argument. */
#define RUN_TEST(name, run, ...)                                    \
    static void name##_on_a_rank(fsdp_context *context, void *arg); \
    TEST(name)                                                      \
    {                                                               \
        run(__VA_ARGS__, name##_on_a_rank, NULL);                   \
    }                                                               \
    static void name##_on_a_rank(FSDP__UNUSED fsdp_context *context, FSDP__UNUSED void *arg)
/* Returns when all ranks of the running test are here, or have ended; no call of the library is part of it. In front of
 * what breaks the world on one rank: after a collective others may still be inside it. */
void test_meet(void);
/* Ends the world if this rank has failed, as a program does, and counts the rank in `*failed`, which all ranks share.
 */
void test_tell_failure(fsdp_context *context, fsdp_status status, int *failed);
/* What fails on rank 1 of a world: the n-th use of a kind; and what comes of it. */
typedef struct test_fault {
    fsdp__fault_kind kind;
    long nth;
    bool hit;
    int failed; /* ranks */
} test_fault;
/* Every rank calls both, around what the fault is for, of which the second gets the status. */
void test_begin_fault(fsdp_context *context, const test_fault *fault);
void test_end_fault(fsdp_context *context, test_fault *fault, fsdp_status status);
/* Runs the body with the fault, which is in `arg`. Returns whether it was hit; if not, no rank must have failed. */
bool test_run_fault(int world, test_rank_body body, void *arg, test_fault *fault);
/* Is fsdp_context_from_env: such a test links the layer launch, the others do not. */
extern fsdp_status (*test_join)(fsdp_context **context);
#define TEST_FILE_JOINED()                 \
    static int test_main(void)             \
    {                                      \
        test_join = fsdp_context_from_env; \
        return test_run_cases(__FILE__);   \
    }                                      \
    TEST_FILE(test_main)
/* Skips the case, with the reason, where ranks are processes, be they this test's or joined. */
void test_need_threads(const char *reason);
/* Says on how many machines a world is; and skips the case, with the reason, where the environment asks for several. */
int test_machines_of(int world);
void test_only_on_one_machine(const char *reason);
/* Returns the smallest world from `world` on that is on those machines, or the one that is joined: for tests that draw
 * worlds. */
int test_machines_world(int world);
/* Says whether this process has run that rank of a world: of one that is joined, its own. */
bool test_rank_was_here(int world, int rank);
/* Of a group of `count` ranks of a world, `first` and each `stride` further, contributions of so many at a time are
 * added first, and then these sums (src/comm/transport/order.h); 1: one after the other. */
int test_rank_block(int world, int first, int stride, int count);
/* The same for a test that goes on: returns how many ranks failed, and says why, a line each (at most `bytes`). */
int test_try_ranks(int world, test_rank_body body, void *arg, char *text, size_t bytes);
/* Does the same, always checked for races, for a body that plants one: `race` gets what was found, or "". Calls of the
 * body may fail with it, on any rank; the body goes on and frees what it has. */
void test_run_racing_ranks(int world, test_rank_body body, void *arg, char *race, size_t bytes);

/* Runs on machines that the test has chosen, whatever the environment says. test_try_machines goes on after failures;
 * machines->network is there while the ranks run. */
void test_run_machines(int machines, int machine_ranks, bool one_level, test_rank_body body, void *arg);
int test_try_machines(test_machines *machines, test_rank_body body, void *arg, char *text, size_t bytes);
