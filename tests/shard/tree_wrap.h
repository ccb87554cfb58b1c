/* shard/tree_wrap.h - trees whose states are chosen by a wrap policy: what the rule gives, as plainly as possible. */
#pragma once

#include "shard/tree_player.h"

/* Draws a policy in place of the states, now and then; the random numbers of its own leave all others as they are. */
void tree_draw_wrap(tree_plan *plan);
/* States of several modules become states of one each. */
void tree_part_groups(tree_plan *plan);
/* The states of the plan are those that its policy chooses. */
void tree_settle_wrap(tree_plan *plan);
/* Nodes in the order in which their states are made. */
int tree_wrap_order(const tree_plan *plan, int *order);
/* All of the states in one call; `options` are those of a state. */
void tree_shard_by_policy(tree_player *player, fsdp_shard_options (*options)(tree_player *player, int state));
