/* check_tree.h - checks the states below an outermost module, before its first forward. */
#ifndef SHARD_STATE_CHECK_TREE_H
#define SHARD_STATE_CHECK_TREE_H

#include "shard/state/root.h"

/* Checks whether root->states, of these names, can have one root, and are ready to run. */
fsdp_status fsdp__check_tree(const fsdp__root *root, char *const *names);

#endif
