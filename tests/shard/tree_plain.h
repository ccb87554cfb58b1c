/* shard/tree_plain.h - a backward of the plain tree, for every rank, and the reductions behind it. */
#ifndef TESTS_SHARD_TREE_PLAIN_H
#define TESTS_SHARD_TREE_PLAIN_H

#include "shard/tree_player.h"

/* Reduces what waits in `states` inside the replicas, and of those in `across` over them too. */
void tree_plain_reduce(tree_player *player, uint32_t states, uint32_t across);
void tree_plain_backward(tree_player *player, tree_slot *slot, bool keep);

#endif
