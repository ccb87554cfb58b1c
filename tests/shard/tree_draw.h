/* shard/tree_draw.h - plans drawn from a seed, on which alone they depend. */
#pragma once

#include "shard/tree_plan.h"

/* Any tree, and a few steps of a training. */
void tree_draw(uint64_t seed, tree_plan *plan);
/* A tree whose ranks are teams; every fourth on a mesh whose three dimensions all have several ranks. */
void tree_draw_teams(uint64_t seed, tree_plan *plan);
/* A network, or two of them, and 5 to 40 calls in any order. */
void tree_draw_orders(uint64_t seed, tree_plan plans[TREE_MAX_MODELS]);
/* The same on ranks that are teams. */
void tree_draw_team_orders(uint64_t seed, tree_plan plans[TREE_MAX_MODELS]);

/* ---- parts of the two ---- */

/* The calls of a plan; `who` draws them (shard/tree_calls.h). */
void tree_draw_calls(uint64_t *random, int who, tree_plan *plan);
/* The root is replicated in buckets, and nothing else is sharded: what does not go with that is taken out. */
void tree_make_replicas(tree_plan *plan);
/* Shards of some states rest in halves, where they can. */
void tree_draw_splits(uint64_t *random, tree_plan *plan);
/* Whether there is room for ranks that are teams, and nothing that they do not go with. Then draws how many ranks a
 * team has; and makes each rank one, over which parameters are cut in drawn ways. */
bool tree_takes_teams(const tree_plan *plan);
/* Whether both dimensions of the mesh of data have several ranks. */
bool tree_has_whole_mesh(const tree_plan *plan);
int tree_draw_team_size(uint64_t *random, const tree_plan *plan);
void tree_draw_team(uint64_t *random, int team, tree_plan *plan);
/* States become units of FSDP1, likewise. */
void tree_make_units(tree_plan *plan);
