/* board.h - what is known of every rank of the world, in memory that the ranks of a machine share (in the arena). One
 * of them writes what it hears of a rank, and all read it.
 *
 * Each place has one writer. A reader that comes while it writes tries again; if the writer died in the middle, the
 * place cannot be read any more. */
#ifndef COMM_HEALTH_BOARD_H
#define COMM_HEALTH_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/internal.h"
#include "comm/transport/arena/arena.h"

/* What a rank is doing: the call that it began last. */
typedef struct fsdp__doing {
    int32_t in;     /* number of calls begun and not done */
    int32_t issued; /* number of calls issued and not done */
    int32_t tag;    /* of the call's group */
    int32_t name;
    uint64_t sequence; /* 0: no call yet */
    char group[FSDP__GROUP_NAME_BYTES], label[FSDP__LABEL_BYTES];
} fsdp__doing;

/* What was last heard of one rank. */
typedef struct fsdp__heard {
    uint64_t beats; /* number of beats heard so far */
    uint64_t left;  /* 1: it has left */
    fsdp__doing doing;
    int64_t awaits; /* 1 + a rank that it waits for; 0: none */
    int64_t still;  /* ticks of the writer in which it got nothing done, by its own account */
} fsdp__heard;

/* Returns the size of a board for `ranks` ranks. */
size_t fsdp__board_bytes(int ranks);
void fsdp__board_write(void *board, int rank, const fsdp__heard *heard);
/* Returns false if the place cannot be read now. */
bool fsdp__board_read(const void *board, int rank, fsdp__heard *out);
/* Read these two alone; they can be read at any time. */
uint64_t fsdp__board_beats(const void *board, int rank);
bool fsdp__board_left(const void *board, int rank);

/* Sets the call that a rank is in. `label` has FSDP__LABEL_BYTES. */
void fsdp__doing_set(fsdp__doing *doing, const char *group, int tag, uint64_t sequence, int32_t name,
                     const char *label);
/* Writes "in call 7 of group 'a' (barrier)", or what else it is doing. */
void fsdp__doing_text(const fsdp__doing *doing, char *text, size_t bytes);

#endif
