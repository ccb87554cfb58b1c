/* slot.h - what each rank shows of itself in each of its groups: a place in the arena that it alone writes. */
#ifndef COMM_SYMMETRIC_SLOT_H
#define COMM_SYMMETRIC_SLOT_H

#include "comm/symmetric/arena.h"
#include "comm/symmetric/signature.h"

typedef struct fsdp__entry {
    fsdp__signature signature;
    /* Not compared. Addresses are offsets from the arena's base. */
    uint64_t send, recv;
    bool readable;      /* all this call's memory can be read by peers */
    bool complete;      /* of a reduction: this rank contributes to all buffers, or has set all its flags */
    int32_t own_status; /* of process_group_alloc */
} fsdp__entry;

typedef struct fsdp__rank_slot {
    _Atomic uint32_t ticket;  /* generation that this rank's last barrier leads to */
    _Atomic uint32_t counted; /* the same, once it has counted itself in: it may be stopped in between */
    _Atomic uint32_t reads;   /* 1: it may be reading what callers of its peers have lent (lent.h) */
    /* For whoever wants to know where the rank is (calls.h). A call that is issued and not done is on its way. */
    _Atomic uint32_t version; /* odd while the three words of the last call are written */
    _Atomic uint64_t issued, done;
    _Atomic uint64_t sequence, name;
    _Atomic uint64_t label[FSDP__LABEL_BYTES / 8];
    _Alignas(64) fsdp__entry entries[2];
} fsdp__rank_slot;

_Static_assert(sizeof(fsdp__rank_slot) <= FSDP__SLOT_BYTES, "a slot has its place in the arena");

static inline fsdp__rank_slot *fsdp__slot_at(const fsdp__arena *arena, int group, int rank)
{
    return fsdp__arena_slot(arena, group, rank);
}

#endif
