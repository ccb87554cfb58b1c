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

#endif
