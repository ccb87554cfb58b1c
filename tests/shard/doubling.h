/* shard/doubling.h - an extension of gathers: twice the values are sent, in the dtype of the shard, and half of what
 * arrives is the parameter. It changes no bit of the results. */
#pragma once

#include "fsdp/shard.h"

typedef struct doubler {
    int written, kept, halved;        /* calls */
    bool measures;                    /* asks for the largest value, and checks it */
    const char *fail_pre, *fail_post; /* with this message; NULL: do not */
} doubler;

/* `d` counts, of one rank. */
fsdp_gather_extension doubling(doubler *d);
/* For the option `extends`: the weight of every layer "up". */
bool doubles_up(void *arg, const char *name, const fsdp_tensor *parameter);
