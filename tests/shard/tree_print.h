/* shard/tree_print.h - a plan as text: the tree, the states, the calls. */
#ifndef TESTS_SHARD_TREE_PRINT_H
#define TESTS_SHARD_TREE_PRINT_H

#include "shard/tree_plan.h"

void tree_print(FILE *stream, const tree_plan *plan);
void tree_print_call(FILE *stream, const tree_plan *plan, int index);

#endif
