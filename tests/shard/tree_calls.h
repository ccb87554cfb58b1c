/* shard/tree_calls.h - carrying out the calls of a plan. */
#ifndef TESTS_SHARD_TREE_CALLS_H
#define TESTS_SHARD_TREE_CALLS_H

#include "shard/tree_player.h"

/* The player's running one. Passed over where it makes no sense. */
void tree_make_call(tree_player *player);
/* A few equal steps behind the last call: their bytes go to the run. */
void tree_last_steps(tree_player *player);

#endif
