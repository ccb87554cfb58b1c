/* waits.h - who waits for whom, as any rank can see it in the arena.
 *
 * A rank stands in a *place*: in a meeting of a group, or before a write to shared memory that peers still read. It may
 * stand in several at once, since calls of different groups run on several threads.
 *
 * [Note: a wait that cannot end]
 * Ranks whose programs wait for each other in a circle would wait for ever: the next one of each has neither come to
 * the meeting, nor is a call of it on its way there (issued, and not done), and while its own program waits it will
 * issue none; or it has not ended the read, which its program alone can do. Waiting in different groups is normal and
 * no such circle: what a rank's worker threads wait for keeps its program from nothing, and is not followed, but for a
 * write that the program itself waits for. Once true that stays true, so it must be seen twice with the same places to
 * be sure that all of it was true at one time. */
#ifndef COMM_SYMMETRIC_WAITS_H
#define COMM_SYMMETRIC_WAITS_H

#include "comm/symmetric/arena.h"

typedef struct fsdp__place {
    int group;       /* of the meeting; -1: before a write */
    uint64_t region; /* that is to be written, as an offset; 0: a meeting */
    uint64_t mark;   /* number of the meeting, or of the last read to wait for */
} fsdp__place;

/* Where the program of `rank` stands, doing nothing else; false: nowhere. */
bool fsdp__program_place(const fsdp__arena *arena, int rank, fsdp__place *out);
/* Who else has to come for the wait to end. `surely`: only those that cannot come unless their programs go on. */
fsdp__rank_set fsdp__place_awaits(const fsdp__arena *arena, int rank, const fsdp__place *place, bool surely);

/* The shortest circle of programs that begins with that of `rank`. */
typedef struct fsdp__circle {
    int length; /* 0: there is none */
    int16_t ranks[FSDP__ARENA_RANKS];
    uint64_t hash; /* of the places; another one when any of them is another */
} fsdp__circle;

void fsdp__find_circle(const fsdp__arena *arena, int rank, fsdp__circle *out);
/* "rank 0 waits for rank 1 in call 7 of group 'a' (barrier), and rank 1 ...: all ranks must ...". */
void fsdp__circle_text(const fsdp__arena *arena, const fsdp__circle *circle, char *text, size_t bytes);

/* Everybody that `rank`, which stands in `place`, waits for in the end: those awaited there, those that these wait for
 * in all their places, and so on. It may be itself among them: one of its threads waits for what another is to do. */
typedef struct fsdp__reach {
    int count;
    int16_t ranks[FSDP__ARENA_RANKS]; /* nearest first */
    bool stands[FSDP__ARENA_RANKS];   /* by index: it stands in a place itself, on whatever thread */
    uint64_t hash;                    /* of all places */
} fsdp__reach;

void fsdp__find_reach(const fsdp__arena *arena, int rank, const fsdp__place *place, fsdp__reach *out);
/* Whether no lower rank stands in the same meeting: one is enough to speak. */
bool fsdp__stands_first(const fsdp__arena *arena, int rank, const fsdp__place *place);

#endif
