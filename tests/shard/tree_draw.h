/* shard/tree_draw.h - a plan drawn from a seed. */
#ifndef TESTS_SHARD_TREE_DRAW_H
#define TESTS_SHARD_TREE_DRAW_H

#include "shard/tree_plan.h"

/* Depends on the seed alone. */
void tree_draw(uint64_t seed, tree_plan *plan);

#endif
