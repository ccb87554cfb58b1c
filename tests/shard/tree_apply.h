/* shard/tree_apply.h - what a parameter does to x: alone, and where a team of ranks has cut it. */
#pragma once

#include "fsdp/dist.h"
#include "shard/tree_plan.h"

/* Returns x (rows,width) after parameter `param`, of which the field has `w`. `ids` (rows) are those of the batch.
 * `team` NULL: w is whole. NULL when it failed. */
fsdp_tensor *tree_apply(const tree_plan *plan, int param, fsdp_tensor *x, fsdp_tensor *w, fsdp_tensor *ids,
                        fsdp_process_group *team);
/* Cuts the parameters of all modules, which are whole, over a team, as the plan says. [collective] */
void tree_cut(const tree_plan *plan, fsdp_module *const *modules, fsdp_mesh *team);
