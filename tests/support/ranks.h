/* support/ranks.h - a test body on several ranks, as threads of this process. */
#ifndef TESTS_SUPPORT_RANKS_H
#define TESTS_SUPPORT_RANKS_H

#include "fsdp/comm.h"
#include "support/test.h"

typedef void (*test_rank_body)(fsdp_context *context, void *arg);

/* Runs `body` on `world` ranks with one compute thread each, waits for all and frees their contexts. A CHECK that
 * fails ends its rank and aborts the world, so that its peers do not wait for it; then the test fails with the first
 * failure of each rank. A rank must have freed all device memory at its end. */
void test_run_ranks(int world, test_rank_body body, void *arg);
/* The same for a test that goes on: returns how many ranks failed, and says why, a line each (at most `bytes`). */
int test_try_ranks(int world, test_rank_body body, void *arg, char *text, size_t bytes);
/* The same, always checked for races, for a body that plants one: `race` gets what was found, or "". Calls of the body
 * may fail with it, on any rank; the body goes on and frees what it has. */
void test_run_racing_ranks(int world, test_rank_body body, void *arg, char *race, size_t bytes);

#endif
