/* schedule_atoms.h - what a schedule can cut a model into, and what it costs: the modules that have parameters of their
 * own, in the order in which a forward begins them. Units are neighbours in that order. Sizes, times and prices come
 * from dry runs; they are for a first guess, which dry runs then price.
 *
 * [Note: same bits]
 * A unit's modules have their inputs pass through a node of the graph. If an input has other uses, its gradient is then
 * added up in another way: apart, and not inside of a product. In f32 that gives the same bits, in 16 bits it does not.
 * So where a model computes in 16 bits, atoms are coarse: what alone uses its input. These are the attentions and MLPs
 * of blocks, whole, and the modules outside of blocks. A block's norms, whose input its residual uses too, are then in
 * the unit of the whole block, or in the root. */
#pragma once

#include "plan/planned.h"

typedef struct fsdp__atom {
    const char *name;         /* dotted */
    double numel;             /* elements, trained or not */
    double forward, backward; /* seconds of computing, up to the next atom */
    int64_t block;            /* number of its block; -1: it lies in none */
    int64_t part;             /* first atom of its attention, MLP or other child of a block with several; -1: none */
} fsdp__atom;

/* Holds what a collective of so many elements takes: latency + numel * each. */
typedef struct fsdp__atom_price {
    double latency, each;
} fsdp__atom_price;

typedef struct fsdp__atoms {
    int64_t count;
    fsdp__atom *items;
    const char **modules; /* all that have a forward, and so can be units */
    int64_t module_count;
    fsdp__atom_price gather, reduce;
    uint64_t model_hash; /* of the plan */
} fsdp__atoms;

/* Makes atoms of two plans of the same step, at prices: `always` has each module as a unit, `blocks` each block. The
 * names are borrowed from the plan `always`. `coarse`: [Note: same bits]. */
fsdp_status fsdp__atoms_make(const fsdp__plan *always, const fsdp__plan *blocks, bool coarse, fsdp__atoms *out);
void fsdp__atoms_release(fsdp__atoms *atoms);

/* ---- drafts ---- */

/* Says what a draft says of an atom. */
enum {
    FSDP__DRAFT_CUT = 1,  /* a unit begins with it; so it does after an atom of the root */
    FSDP__DRAFT_ROOT = 2, /* it is left to the root */
    FSDP__DRAFT_STAYS = 4 /* its unit stays whole: said of all atoms of the unit */
};

/* A schedule as a search changes it. */
typedef struct fsdp__draft {
    uint8_t *places; /* one for each atom */
    int64_t forward_ahead, backward_ahead, reductions;
} fsdp__draft;

/* Returns whether a unit of the draft begins with this atom. */
bool fsdp__draft_begins(const fsdp__draft *draft, int64_t atom);
/* Makes the schedule that the draft describes: each unit has as few modules as hold its atoms and no others. */
fsdp_status fsdp__draft_schedule(const fsdp__atoms *atoms, const fsdp__draft *draft, fsdp__comm_schedule **out);

/* Guesses the cuts of the atoms that the draft does not leave to the root, by a dynamic programme: those with which a
 * gather takes longest no longer than what computes beside it. No unit of several atoms has more than `most` elements.
 * The draft's units all stay, or none does. */
fsdp_status fsdp__draft_guess(const fsdp__atoms *atoms, double most, bool stays, fsdp__draft *draft);
