/* waits.h - who waits for whom, as any rank of the machine can see it on the board.
 *
 * A rank stands in a *place*: in a meeting of a group, or before a write to shared memory that peers still read. It may
 * stand in several at once, since calls of different groups run on several threads.
 *
 * [Note: a wait that cannot end]
 * Ranks whose programs wait for each other in a circle would wait for ever. The next rank of each has not come to the
 * meeting, has no call on its way there (issued and not done), and will issue none while its own program waits; or it
 * has not ended the read, which only its program can do. Waiting in different groups is normal and no such circle: what
 * a rank's worker threads wait for does not hold up its program, so it is not followed, except for a write that the
 * program itself waits for. A circle, once there, stays; so it is certain when it was seen twice with the same places,
 * which shows that all of it was true at one time. */
#pragma once

#include "comm/health/board.h"

typedef struct fsdp__wait_place {
    int group;       /* the group of the meeting; -1: before a write */
    uint64_t region; /* offset of the region to be written; 0: a meeting */
    uint64_t mark;   /* number of the meeting, or of the last read to wait for */
} fsdp__wait_place;

/* Returns where the program of `rank` stands, doing nothing else; false: nowhere. */
bool fsdp__program_place(const fsdp__board *board, int rank, fsdp__wait_place *out);
/* Returns who else has to come for the wait to end. `surely`: only those that cannot come unless their programs go
 * on. */
fsdp__rank_set fsdp__place_awaits(const fsdp__board *board, int rank, const fsdp__wait_place *place, bool surely);

/* Holds the shortest circle of waiting programs that begins with that of `rank`. */
typedef struct fsdp__circle {
    int length; /* 0: there is none */
    int16_t ranks[FSDP__BOARD_RANKS];
    uint64_t hash; /* of the places: changes when any of them changes */
} fsdp__circle;

void fsdp__find_circle(const fsdp__board *board, int rank, fsdp__circle *out);
/* Writes "rank 0 waits for rank 1 in call 7 of group 'a' (barrier), and rank 1 ...: all ranks must ...". */
void fsdp__circle_text(const fsdp__board *board, const fsdp__circle *circle, char *text, size_t bytes);

/* All ranks that `rank`, which stands in `place`, waits for in the end: those awaited there, those that these wait for
 * in all their places, and so on. `rank` may be among them: one of its threads waits for what another is to do. */
typedef struct fsdp__reach {
    int count;
    int16_t ranks[FSDP__BOARD_RANKS]; /* nearest first */
    bool stands[FSDP__BOARD_RANKS];   /* by index: the rank itself stands in a place, on whatever thread */
    uint64_t hash;                    /* of all places */
} fsdp__reach;

void fsdp__find_reach(const fsdp__board *board, int rank, const fsdp__wait_place *place, fsdp__reach *out);
/* Returns whether no lower rank stands in the same meeting: one rank is enough to report it. */
bool fsdp__stands_first(const fsdp__board *board, int rank, const fsdp__wait_place *place);
