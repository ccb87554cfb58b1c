/* shard/tree_trial.h - one plan, run plain and in residences: does it show the same everywhere? */
#ifndef TESTS_SHARD_TREE_TRIAL_H
#define TESTS_SHARD_TREE_TRIAL_H

#include "shard/tree_plan.h"

/* `which`: residences, as bits. What goes wrong first is said in `text` (at most `bytes`). */
bool tree_passes(const tree_plan *plan, uint32_t which, char *text, size_t bytes);
/* Takes away what a plan that fails does not need to fail: calls, modules, parameters, options. */
void tree_reduce(tree_plan *plan, uint32_t which);

#endif
