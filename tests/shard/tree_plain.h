/* shard/tree_plain.h - a backward of the plain tree, for every rank, and the reductions behind it. */
#ifndef TESTS_SHARD_TREE_PLAIN_H
#define TESTS_SHARD_TREE_PLAIN_H

#include "shard/tree_player.h"

void tree_plain_backward(tree_player *player, tree_slot *slot, bool keep);

#endif
