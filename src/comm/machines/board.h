/* board.h - what is known of every rank of the world, in memory that the ranks of a machine share (of the arena). One
 * of them writes what it hears of a rank, and all read it.
 *
 * Each place has one writer. A reader that comes while it writes tries again; where the writer has died in the middle
 * the place cannot be read any more. */
#ifndef COMM_MACHINES_BOARD_H
#define COMM_MACHINES_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/internal.h"
#include "comm/symmetric/arena.h"

/* What a rank is in: the call that it has begun last. */
typedef struct fsdp__doing {
    int32_t in;     /* calls, begun and not done */
    int32_t issued; /* calls, issued and not done */
    int32_t tag;    /* of the call's group */
    int32_t name;
    uint64_t sequence; /* 0: no call yet */
    char group[FSDP__GROUP_NAME_BYTES], label[FSDP__LABEL_BYTES];
} fsdp__doing;

/* Whom a rank's program waits for, doing nothing else; -1: for nobody. */
typedef struct fsdp__waiting {
    int64_t whom;
    uint64_t number; /* another one for another wait */
    uint64_t heard;  /* beats of `whom`, before the program has looked last whether something has come */
} fsdp__waiting;

/* Of one rank, as it was heard of last. */
typedef struct fsdp__heard {
    uint64_t beats; /* that were heard so far */
    uint64_t left;  /* 1: it has */
    fsdp__doing doing;
    fsdp__waiting waiting;
    int64_t same;  /* beats since it waits so */
    int64_t still; /* ticks of the writer in which it has got nothing done, as it says */
} fsdp__heard;

/* Of a board for so many ranks. */
size_t fsdp__board_bytes(int ranks);
void fsdp__board_write(void *board, int rank, const fsdp__heard *heard);
/* false: it cannot be read now. */
bool fsdp__board_read(const void *board, int rank, fsdp__heard *out);
/* These two alone, at any time. */
uint64_t fsdp__board_beats(const void *board, int rank);
bool fsdp__board_left(const void *board, int rank);

/* The call that it is in. `label`: FSDP__LABEL_BYTES. */
void fsdp__doing_set(fsdp__doing *doing, const char *group, int tag, uint64_t sequence, int32_t name,
                     const char *label);
/* "in call 7 of group 'a' (barrier)", or what else it is doing. */
void fsdp__doing_text(const fsdp__doing *doing, char *text, size_t bytes);

#endif
