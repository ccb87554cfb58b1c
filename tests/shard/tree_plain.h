/* shard/tree_plain.h - a backward of the plain tree, for every rank, and the reductions behind it. */
#pragma once

#include "shard/tree_player.h"

/* Reduces what waits in `states` inside the replicas, and of those in `across` over them too. */
void tree_plain_reduce(tree_player *player, uint32_t states, uint32_t across);
/* What a forward computes with: `w`, which has arrived of a parameter, or a leaf of its own in the place of it, where
 * the gradient is as wide as it is reduced. */
fsdp_tensor *tree_plain_arrived(tree_player *player, int param, fsdp_tensor *w);
void tree_drop_wides(tree_player *player);
void tree_plain_backward(tree_player *player, tree_slot *slot, bool keep);
