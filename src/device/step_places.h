/* step_places.h - where the requests of a training step lie. For allocator.c, under its mutex.
 *
 * [Note: places of a step]
 * A step asks for what the step before asked for, in the same order, and gives it back in the same order. So the
 * requests of one are noted, and when it has ended places are chosen for them all at once, the largest first, which
 * leaves fewer holes than choosing when each one comes. A place has room for the most that any step has asked for
 * there, so a step whose batch is shorter has places, too. In one whose batch is longer, the first activation that
 * needs more than its room tells how much longer: places are chosen anew for the rest of the step, and those for
 * activations have as much more room in this microbatch, and in others that were as long so far. Where a program knows
 * that it will ask otherwise, as for buckets that have been divided anew, it says so: what it asked for before loses
 * its room, and what it asks for instead lies beside all that is still expected.
 *
 * A request is recognized by its taker and its kind of memory: it is the next such one in the list of requests that
 * are expected, and has that one's place. If it is not among the next few of the list, it has no place. A request
 * without a place, one that needs more room than its place has, one whose place is not free, and one whose place would
 * map far more than has ever lived at once, get memory like any other: a place only says where to look first. What
 * outlives its step, such as a moving average that is made anew, would be in the way of its successor. In such loops
 * each forward chooses places around what lives then.
 *
 * A loop marks a step twice: at its first call that records a graph, the forward, and where its gradients are dropped,
 * which ends it. What comes after the end is noted apart: of that, what still lives at the next forward is the front of
 * the next step, such as its inputs, and the rest is forgotten, such as evaluations. What the step has asked for and a
 * loop gives back after its end, such as its loss, is given back by then, so places are chosen at the forward. */
#pragma once

#include "device/blocks.h"

#define FSDP__NO_PLACE SIZE_MAX

/* Describes a request, and when its block lives: from the moment `from` on, before `until`. */
typedef struct fsdp__request {
    fsdp__taker taker;
    fsdp_memory_kind kind;
    size_t bytes;       /* of one that is expected: the most that it has had */
    size_t place, room; /* of one that is expected: bytes of the segment from an offset on */
    int64_t from, until;
    int64_t forward;    /* number in the step */
    int64_t match;      /* number of the one that was expected; -1: none was */
    fsdp__block *block; /* while it lives */
} fsdp__request;

typedef struct fsdp__requests {
    fsdp__request *items;
    int64_t count, capacity;
} fsdp__requests;

/* Says what lies in bytes of the segment, and when. */
typedef struct fsdp__stay {
    size_t place, end;
    int64_t from, until;
} fsdp__stay;

typedef struct fsdp__step_places {
    fsdp__requests seen;     /* in the step that runs, or has ended */
    fsdp__requests ahead;    /* since it has ended */
    fsdp__requests expected; /* those that have places */
    int64_t next;            /* number of the next one of these */
    int64_t live_ahead;      /* those ahead that live */
    bool on;                 /* requests are noted */
    bool ended;              /* the step has ended, and no forward has come since */
    bool choosing;           /* places are to be chosen at the next forward */
    bool carries;            /* something that is expected outlives its step, and not too much is expected */
    bool strange;            /* the step has asked for what was not expected */
    bool missed;             /* a request's place had no room or was not free, or there were too many to be noted */
    bool returned;           /* what was unused in the first step has been given back */
    bool repeats;            /* the step that ended last asked for what was expected */
    bool renewed;            /* something is asked for otherwise in the step that runs */
    bool disturbed;          /* since places were chosen, a step did not repeat the one before, or missed places */
    int64_t forwards;        /* of the step so far, but for the first one */
    int64_t moment;          /* requests and returns so far */
    int64_t steps, again;    /* those that have ended; places are not chosen again before there are so many */
} fsdp__step_places;

/* Begins to note requests: those before the first step. */
void fsdp__step_places_begin(fsdp__step_places *places);
/* Makes room for a note of a request. */
fsdp_status fsdp__step_places_reserve(fsdp__step_places *places);
/* Finds the request that was expected here; NULL: none. */
const fsdp__request *fsdp__step_places_find(const fsdp__step_places *places, fsdp__taker taker, fsdp_memory_kind kind);
/* Notes that a request was granted: a live block. */
void fsdp__step_places_note(fsdp__step_places *places, fsdp__block *block, const fsdp__request *expected);
/* Notes that a block is about to be given back. It may be one that was never noted. */
void fsdp__step_places_note_return(fsdp__step_places *places, const fsdp__block *block);
/* Returns whether unused memory is to be returned before memory is taken for what outlives steps, such as moments that
 * a first step makes: where it lies now is chance, and later steps have places. True once, before there are places. */
bool fsdp__step_places_may_return(fsdp__step_places *places);
/* Ends a step, unless it has ended, and decides whether places are to be chosen at the next forward (`choosing`). The
 * first step that differs from those before is passed over; places are chosen if the next one differs, too. A program
 * whose steps differ from each other chooses ever more rarely. */
void fsdp__step_places_end(fsdp__step_places *places);
/* Gives where a live block lies, and what lies there from now on if it is expected. False: the block will move, since
 * it is ahead of the step for which places are chosen. */
bool fsdp__step_places_fix(fsdp__step_places *places, const fsdp__block *block, fsdp__stay *out);
/* Chooses places for what is expected from the request `first` on, around `count` stays of what is fixed. `stays` has
 * room for as many more as fsdp__step_places_most. Activations need `scale` times as much as before, in the microbatch
 * of `first` and in those that were as long. Gives where the last place ends. */
fsdp_status fsdp__step_places_choose(fsdp__step_places *places, int64_t first, double scale, fsdp__stay *stays,
                                     int64_t count, size_t *top);
int64_t fsdp__step_places_most(const fsdp__step_places *places);
/* Returns whether places are to be chosen anew before a request of so many bytes is served. */
bool fsdp__step_places_are_small(const fsdp__step_places *places, const fsdp__request *expected, size_t bytes);
/* Returns whether a request that is expected outlives its step, and is to lie apart: ahead of a step, and where too
 * much is expected to choose places at each forward. */
bool fsdp__step_places_lies_apart(const fsdp__step_places *places, const fsdp__request *expected);
/* Notes that in the rest of this step an owner asks for memory of a kind otherwise than was expected. Returns whether
 * places are to be chosen anew for that rest. */
bool fsdp__step_places_renew(fsdp__step_places *places, const void *owner, fsdp_memory_kind kind);
/* Returns whether this owner was noted so, for memory of this kind. */
bool fsdp__step_places_are_renewed(const fsdp__step_places *places, const void *owner, fsdp_memory_kind kind);
/* Gives the lowest place of so many bytes beside `count` stays and all that is still expected; `stays` as above. */
size_t fsdp__step_places_beside(const fsdp__step_places *places, size_t bytes, fsdp__stay *stays, int64_t count);
/* Begins the step whose front is noted ahead. */
void fsdp__step_places_go_on(fsdp__step_places *places);
void fsdp__step_places_release(fsdp__step_places *places);
