/* slot.h - what each rank shows of itself in each of its groups: a slot in the arena that it alone writes. */
#pragma once

#include "comm/health/signature.h"
#include "comm/transport/arena/arena.h"

typedef struct fsdp__entry {
    fsdp__signature signature;
    /* What follows is not compared. */
    bool readable;      /* peers can read all the memory of this call */
    bool complete;      /* of a reduction: this rank contributes to all buffers, or all its flags are set */
    int32_t own_status; /* of process_group_alloc */
} fsdp__entry;

typedef struct fsdp__rank_slot {
    _Alignas(64) _Atomic uint32_t reads; /* 1: it may be reading what callers of its peers have lent (lent.h) */
    _Alignas(64) fsdp__entry entries[2];
} fsdp__rank_slot;

_Static_assert(sizeof(fsdp__rank_slot) <= FSDP__SLOT_BYTES, "a slot has its place in the arena");

static inline fsdp__rank_slot *fsdp__slot_at(const fsdp__arena *arena, int group, int rank)
{
    return fsdp__arena_slot(arena, group, rank);
}
