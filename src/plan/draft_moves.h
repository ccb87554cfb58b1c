/* draft_moves.h - changes of a draft, from which a search chooses those that help. */
#pragma once

#include "plan/schedule_atoms.h"

/* Brings a draft into the one form that all drafts of the same units have: what is said of a unit is that of its first
 * atom. */
void fsdp__draft_tidy(const fsdp__atoms *atoms, fsdp__draft *draft);
int64_t fsdp__draft_units(const fsdp__atoms *atoms, const fsdp__draft *draft); /* without the root */

/* Lets the last `units` units stay whole, and no others. */
void fsdp__draft_keep_last(const fsdp__atoms *atoms, fsdp__draft *draft, int64_t units);

enum {
    FSDP__DRAFT_MOVE_MERGE,   /* with the next unit */
    FSDP__DRAFT_MOVE_HALVE,   /* where half of its elements end */
    FSDP__DRAFT_MOVE_FIRST,   /* its first atom becomes a unit */
    FSDP__DRAFT_MOVE_LAST,    /* so does its last one */
    FSDP__DRAFT_MOVE_EARLIER, /* it begins an atom earlier, where there is a unit before */
    FSDP__DRAFT_MOVE_LATER,   /* or later */
    FSDP__DRAFT_MOVE_STAYS,   /* it stays, or no longer does */
    FSDP__DRAFT_MOVE_ROOT,    /* the root takes it, if it is the first or the last unit */
    FSDP__DRAFT_MOVE_OUT,     /* it takes what the root has beside it */
    FSDP__DRAFT_MOVES
};

/* Changes one unit. Returns false if that cannot be done with it. */
bool fsdp__draft_change(const fsdp__atoms *atoms, fsdp__draft *draft, int64_t unit, int move);

enum {
    FSDP__DRAFT_MOVES_OF_ALL = 3 /* every second unit takes the next; all are halved; what the root has becomes units */
};

void fsdp__draft_change_all(const fsdp__atoms *atoms, fsdp__draft *draft, int move);
