/* trained.h - which parameters a forward was trained for. A backward of its graph may bring gradients of them, on this
 * rank or on another, and of no others, whatever has been frozen or thawed since: it makes them due. */
#ifndef SHARD_TRAINED_H
#define SHARD_TRAINED_H

#include "shard/state.h"

/* Shared by the graphs of forwards between which nothing was frozen or thawed. */
typedef struct fsdp__trained {
    int64_t refs;
    fsdp__module_state *state;
    int64_t count;
    fsdp__param **params; /* the state's, and its companions', that all ranks reduce together */
} fsdp__trained;

/* As it is now. A reference for the caller. */
fsdp_status fsdp__trained_now(fsdp__module_state *state, fsdp__trained **out);
void fsdp__trained_unref(fsdp__trained *trained);
/* The next reduction takes part for them, whether this rank has a gradient or not, since another may. */
void fsdp__trained_are_due(const fsdp__trained *trained);

#endif
