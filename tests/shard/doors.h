/* shard/doors.h - every front door, with its options that matter to what state and gradients look like. */
#pragma once

#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "shard/net.h"

enum {
    DOORS = 18
};

typedef struct door {
    const char *name;
    enum {
        DOOR_PLAIN,
        DOOR_SHARDED,
        DOOR_FSDP1,
        DOOR_DDP
    } kind;
    fsdp_shard_options sharded;
    fsdp_fsdp1_options fsdp1;
    fsdp_replicate_options ddp;
    bool hybrid; /* over two replicas, in worlds of 4 */
} door;

/* The first is none: a plain model. */
extern const door doors[DOORS];

bool door_is_hybrid(const door *d, int world);
/* `module` and the `units` below it, through the door. `mesh`: (replicate, shard) where it is hybrid, else NULL. */
void door_wrap(const door *d, fsdp_module *module, fsdp_module *const *units, int unit_count, fsdp_mesh *mesh);
