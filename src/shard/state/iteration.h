/* iteration.h - begins an iteration: what ranks ask each other before groups are gathered, and what gathers follow.
 *
 * [Note: staying unsharded]
 * All ranks must decide alike whether a group is still unsharded from an earlier use, but any rank may have written its
 * rows since, or resharded by hand. So a forward of the outermost module, and an unshard by the caller, begin with one
 * small exchange about the groups that were unsharded (`stays_unsharded`, `explicit`, or gathered ahead): if any rank
 * has given a group up, all do, and gather it again. Between a forward and its backward nobody asks: there all ranks
 * must write, or none. */
#pragma once

#include "shard/state/root.h"

/* Reshards groups that stayed unsharded if any rank has written them: see [Note: staying unsharded]. [collective] */
fsdp_status fsdp__drop_stale(fsdp__root *root);
/* Encodes groups that are gathered in other bytes before a gather outside of an iteration: [Note: measures] in
 * encoded.h. [collective] */
fsdp_status fsdp__encode_state(fsdp__module_state *state);
/* Begins an iteration: drops what is stale, and makes gathers follow what was written. The outermost module that runs
 * calls it; inside a running forward it does nothing. [collective] */
fsdp_status fsdp__begin_iteration(fsdp__root *root, fsdp__module_state *state);
