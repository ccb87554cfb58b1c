/* trained_parameters.h - which parameters a forward was trained for. A backward of its graph makes exactly these due,
 * whatever has been frozen or thawed since: it may bring gradients of them, on this rank or on another, and of no
 * others. */
#pragma once

#include "shard/state/module_state.h"

/* A set that the graphs of successive forwards share as long as nothing is frozen or thawed between them. */
typedef struct fsdp__trained {
    int64_t refs;
    fsdp__module_state *state;
    int64_t count;
    fsdp__param **params; /* of all states that are gathered with it, if all ranks reduce them together */
} fsdp__trained;

/* Gives the set as it is now. The caller owns a reference. */
fsdp_status fsdp__trained_now(fsdp__module_state *state, fsdp__trained **out);
void fsdp__trained_unref(fsdp__trained *trained);
/* Makes the next reduction include the parameters, whether this rank has a gradient or not, since another rank may. */
void fsdp__trained_are_due(const fsdp__trained *trained);

FSDP__SCOPED_POINTER(fsdp__trained, fsdp__trained_unref)
