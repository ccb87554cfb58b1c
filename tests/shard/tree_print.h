/* shard/tree_print.h - a plan as text: the tree, the states, the calls. */
#pragma once

#include "shard/tree_plan.h"

void tree_print(FILE *stream, const tree_plan *plan);
void tree_print_call(FILE *stream, const tree_plan *plan, int index);
