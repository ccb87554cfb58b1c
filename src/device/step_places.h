/* step_places.h - where the requests of a training step lie. For allocator.c, under its mutex.
 *
 * [Note: places of a step]
 * A step asks for what the step before asked for, in the same order, and gives it back in the same order. So the
 * requests of one are noted, and when it has ended places are chosen for them all at once, the largest first, which
 * leaves fewer holes than choosing when each one comes. The next steps' requests get these places as long as they are
 * the same. From the first one on that differs, and for each one whose place is not free, a step is served as anything
 * else is: places say where to look first, never what may be given.
 *
 * A loop marks a step twice: at its first call that records a graph, the forward, and where its gradients are dropped,
 * which ends it. What comes after the end is noted apart: of that, what still lives at the next forward is the front of
 * the next step, such as its inputs, and the rest is forgotten, such as evaluations. What the step has asked for and a
 * loop gives back after its end, such as its loss, is given back by then, so places are chosen at the forward. */
#ifndef DEVICE_STEP_PLACES_H
#define DEVICE_STEP_PLACES_H

#include "base/context.h"
#include "fsdp/status.h"

#define FSDP__NO_PLACE SIZE_MAX

/* A request, and when its block lives: from the moment `from` on, before `until`. A place is an offset in the segment.
 */
typedef struct fsdp__request {
    size_t bytes, place;
    int64_t from, until;
    int64_t live_before; /* fsdp__step_places_count_ahead: how many noted before it live */
} fsdp__request;

typedef struct fsdp__requests {
    fsdp__request *items;
    int64_t count, capacity;
} fsdp__requests;

typedef struct fsdp__step_places {
    fsdp__requests seen;     /* in the step that runs, or has ended */
    fsdp__requests ahead;    /* since it has ended */
    fsdp__requests expected; /* those that have places */
    int64_t live_ahead;      /* those of them that live */
    bool running;            /* requests are noted */
    bool ended;              /* the step, and no forward has come since */
    bool choosing;           /* places are to be chosen for it then */
    bool differs;            /* it has asked for something else; nothing in it has a place any more */
    bool missed;             /* a place was not free, or the step is too long to be noted */
    bool returned;           /* what was unused in the first step */
    bool repeats;            /* the step that ended last asked for what was expected */
    bool disturbed;          /* a step since places were chosen did not, or missed its places */
    int64_t moment;          /* requests and returns so far */
    int64_t steps, again;    /* those that have ended; places are not chosen again before there are so many */
} fsdp__step_places;

/* Begins to note requests: those of the first step. */
void fsdp__step_places_begin(fsdp__step_places *places);
/* Makes room for a note of a request. */
fsdp_status fsdp__step_places_reserve(fsdp__step_places *places);
/* Returns the place of the next request, or FSDP__NO_PLACE. */
size_t fsdp__step_places_next(fsdp__step_places *places, size_t bytes);
/* Notes that it was granted; returns its number for the block that it got: 1, 2, .. in the step, -1, -2, .. ahead of
 * it. 0: it is not noted. */
int64_t fsdp__step_places_note(fsdp__step_places *places, size_t bytes);
/* Notes that a block has been given back. 0 is allowed. */
void fsdp__step_places_note_return(fsdp__step_places *places, int64_t number);
/* Returns whether what is unused now is to be returned before more is taken for what outlives steps, as the moments of
 * a first step: it is chance where that lies, and later steps have their places. True once, where none has places. */
bool fsdp__step_places_may_return(fsdp__step_places *places);
/* Ends a step, unless it has ended; says whether places are to be chosen for its requests (`choosing`): not for those
 * of one that differs after others were the same, as an epoch's last batch does, but for those of the next one, if it
 * differs too. A program whose steps differ from each other chooses ever more rarely. */
void fsdp__step_places_end(fsdp__step_places *places);
/* Chooses places for the requests of the step that has ended, around `fixed`: what does not move, by its place, where
 * from and until are set. Requests whose blocks still live have theirs, which are among the fixed. Gives where the last
 * one ends. */
fsdp_status fsdp__step_places_choose(fsdp__step_places *places, const fsdp__requests *fixed, size_t *top);
/* Returns whether there is no room for more notes ahead of the step, and half of them are of what was given back: less
 * is not worth looking at all notes. */
bool fsdp__step_places_should_forget(const fsdp__step_places *places);
/* Counts what is noted ahead and lives, for renumbering. */
void fsdp__step_places_count_ahead(fsdp__step_places *places);
/* Gives the number that a note ahead will have when what has been given back is forgotten, and whether the block at
 * `offset` has its place. */
int64_t fsdp__step_places_renumber(fsdp__step_places *places, int64_t number, size_t offset);
/* Forgets it. */
void fsdp__step_places_forget(fsdp__step_places *places);
/* Begins the step whose front is noted ahead. */
void fsdp__step_places_go_on(fsdp__step_places *places);
void fsdp__step_places_release(fsdp__step_places *places);

#endif
