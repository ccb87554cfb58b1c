/* board.h - one table, in memory that all ranks of a machine see: who is alive, where each rank is in its calls, what
 * it waits for, and why the world has ended.
 *
 * Every rank of the world has a row. A rank of this machine writes its own; what it said last, and what ranks of other
 * machines say, is written by the one rank here that hears it (transport/network/watch.h). A rank of this machine also
 * has a desk in each group that has members on this machine alone. Ranks are numbered from 0 within the machine; rows
 * of other machines, and every text, use the global number.
 *
 * The board lies in the memory that the ranks share. It names shared regions by their offsets from the board itself. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/build.h"
#include "base/context.h"
#include "base/host.h"
#include "comm/group_calls.h"

enum {
    FSDP__BOARD_GROUPS = 64,                    /* process groups alive at a time on a machine, including the world */
    FSDP__BOARD_RANKS = 256,                    /* on one machine */
    FSDP__ABORT_BYTES = 1024,                   /* text of the reason */
    FSDP__GROUP_NAME_BYTES = 40,                /* others see this much of a longer name, with a terminating zero */
    FSDP__GENERATION_BROKEN = 1,                /* a bit of a group's generation */
    FSDP__IN_ELSEWHERE = FSDP__BOARD_GROUPS + 1 /* in place of 1 + a group: one over machines, which has no desks */
};

/* ---- cells: a few words that one thread writes, and all read ---- */

/* A cell has the words of its content, and one more that says whether it is being written. */
#define FSDP__CELL_WORDS(type) (1 + sizeof(type) / sizeof(uint64_t))

void fsdp__cell_write(_Atomic uint64_t *cell, const void *content, size_t bytes);
/* Returns false, and a mixture, if the content changes all the time, or its writer has died in the middle. */
bool fsdp__cell_read(const _Atomic uint64_t *cell, void *content, size_t bytes);

/* ---- what a rank is doing ---- */

/* A call that a rank has begun. */
typedef struct fsdp__doing {
    uint64_t sequence; /* 0: no call yet */
    int32_t tag;       /* of the call's group */
    int32_t name;
    char group[FSDP__GROUP_NAME_BYTES], label[FSDP__LABEL_BYTES];
} fsdp__doing;

/* Holds what a rank last said of itself. */
typedef struct fsdp__said {
    uint64_t beats; /* number of times that it was heard */
    int64_t still;  /* ticks of the writer in which it got nothing done, by its own account */
    uint64_t left;  /* 1: it has left */
    int32_t in;     /* number of calls begun and not done */
    int32_t awaits; /* 1 + a rank that it waits for; 0: none */
    fsdp__doing doing;
} fsdp__said;

/* ---- the table ---- */

typedef enum fsdp__rank_state {
    FSDP__RANK_AWAITED, /* has not joined yet */
    FSDP__RANK_JOINED,
    FSDP__RANK_LEFT /* ended without a failure */
} fsdp__rank_state;

typedef struct fsdp__row {
    /* of a rank of this machine */
    _Alignas(64) _Atomic uint32_t state;
    _Atomic int32_t pid;          /* 0: the rank is a thread, or has not joined */
    _Atomic uint64_t start_ticks; /* when the process started, so that a reused pid is not taken for it */
    _Atomic int32_t started;      /* pid of the process that is to join; 0: not known */
    /* by which [1: its program, 0: a worker]: the shared region whose readers it waits for, as an offset; 0: it does
     * not wait */
    _Atomic uint64_t awaited[2];
    _Atomic uint64_t awaited_worker; /* the stream on which its program waits, by the process's own number; 0: none */
    _Atomic uint32_t program_in;     /* 1 + the group that its program waits for, doing nothing else; 0: none */
    _Atomic uint32_t last;           /* 1 + the group of the call that it began last; 0: none */
    _Atomic int32_t thread;          /* the system's number of its program's thread; 0: not known */
    _Atomic int64_t looked_ns;       /* processor time that it spent looking at its peers: no sign of life */
    /* the build that its process runs, written before it joins; zeros: it is a thread */
    char build[FSDP__BUILD_BYTES];
    fsdp__heart heart;
    _Atomic uint64_t
        elsewhere[FSDP__CELL_WORDS(fsdp__doing)]; /* the call that it began last in a group without desks */
    /* of any rank, where there are several machines */
    _Alignas(64) _Atomic uint64_t said[FSDP__CELL_WORDS(fsdp__said)];
} fsdp__row;

/* Ranks of a machine, one bit each. */
typedef struct fsdp__rank_set {
    uint64_t bits[FSDP__BOARD_RANKS / 64];
} fsdp__rank_set;

static inline bool fsdp__rank_set_has(const fsdp__rank_set *set, int rank)
{
    return set->bits[rank / 64] >> (rank % 64) & 1;
}

static inline void fsdp__rank_set_add(fsdp__rank_set *set, int rank)
{
    set->bits[rank / 64] |= (uint64_t)1 << (rank % 64);
}

/* Says where the members of a group meet. */
typedef struct fsdp__board_group {
    _Alignas(64) _Atomic uint64_t key;              /* 0: free */
    _Atomic int32_t members;                        /* that have not freed the group yet */
    _Atomic uint64_t ranks[FSDP__BOARD_RANKS / 64]; /* the group's: the bits of an fsdp__rank_set */
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t generation; /* grows by 2; has the bit FSDP__GENERATION_BROKEN. Ranks sleep on it */
    _Atomic uint32_t sleepers;
} fsdp__board_group;

/* A rank in a group. It alone writes here. A call that is issued and not done is on its way. */
typedef struct fsdp__desk {
    _Alignas(64) _Atomic uint32_t ticket; /* the generation to which this rank's last barrier leads */
    _Atomic uint32_t counted;      /* the same, set once the rank has counted itself in: it may be stopped in between */
    _Atomic uint64_t issued, done; /* calls */
    _Atomic uint64_t doing[FSDP__CELL_WORDS(fsdp__doing)]; /* the call that it began last in this group */
} fsdp__desk;

typedef enum fsdp__abort_state {
    FSDP__ABORT_NONE,
    FSDP__ABORT_WRITING,
    FSDP__ABORT_SET
} fsdp__abort_state;

/* The head; groups, rows and desks lie behind it. */
typedef struct fsdp__board {
    int32_t world;          /* number of ranks on this machine */
    int32_t ranks;          /* on all machines: the rows */
    int32_t first;          /* the global number of this machine's rank 0 */
    _Atomic int32_t keeper; /* pid of the process that started the ranks and watches them; 0: none */
    _Atomic uint64_t keeper_ticks;
    _Atomic uint64_t pids; /* the pid namespace of all pids here; 0: not known yet */
    _Atomic uint32_t abort_state;
    int32_t abort_status; /* fsdp_status */
    int32_t abort_rank;   /* the global rank to blame; -1: nobody */
    char abort_text[FSDP__ABORT_BYTES];
    char host[FSDP__HOST_BYTES]; /* name of the machine, where there are several; else "" */
} fsdp__board;

/* Return the size of a board for `world` ranks of this machine and `ranks` of all machines, and of the part of any
 * board that fsdp__board_abort needs. */
size_t fsdp__board_bytes(int world, int ranks);
size_t fsdp__board_least_bytes(void);
/* Begins a board in memory that is zero. */
void fsdp__board_begin(fsdp__board *board, int world, int ranks);

fsdp__board_group *fsdp__group_at(const fsdp__board *board, int group);
fsdp__row *fsdp__row_of(const fsdp__board *board, int global);
fsdp__desk *fsdp__desk_at(const fsdp__board *board, int group, int rank);

/* Returns the global number of a rank of this machine. */
static inline int fsdp__board_global(const fsdp__board *board, int rank)
{
    return board->first + rank;
}

/* Returns the row of a rank of this machine. */
static inline fsdp__row *fsdp__row_at(const fsdp__board *board, int rank)
{
    return fsdp__row_of(board, fsdp__board_global(board, rank));
}

/* Sets and gets what a rank (global) last said. Getting returns false if the cell cannot be read now. */
void fsdp__board_say(fsdp__board *board, int global, const fsdp__said *said);
bool fsdp__board_said(const fsdp__board *board, int global, fsdp__said *out);
/* Read these two alone; they can be read at any time. */
uint64_t fsdp__board_beats(const fsdp__board *board, int global);
bool fsdp__board_left(const fsdp__board *board, int global);

/* ---- how a world ends ---- */

/* Ends every rank's calls, now and later. The first reason stays; `rank` is the global rank to blame (-1: nobody). */
void fsdp__board_abort(fsdp__board *board, fsdp_status status, int rank, const char *text);
/* Does the same because `rank` has failed as `why` says: "rank N failed: why". What ranks have agreed on before begins
 * with the rank that it is of, which is then the one to blame. */
void fsdp__board_fail(fsdp__board *board, fsdp_status status, int rank, const char *why);
bool fsdp__board_aborted(const fsdp__board *board);
/* Fails with the reason, which must be set or about to be set. */
fsdp_status fsdp__board_failure(fsdp__board *board);
/* Fails if the world has ended, with the reason. `board` is an fsdp__board. */
fsdp_status fsdp__board_holds(void *board);
/* Says that `rank` takes part no more; ranks that wait for it are told. */
void fsdp__board_leave(fsdp__board *board, int rank);
/* Returns whether the rank has left. Ask this before looking whether the rank has done what is awaited: between the two
 * looks it may do that, and leave. */
bool fsdp__board_has_left(const fsdp__board *board, int rank);
/* Returns whether a rank of this machine has left or died: it holds nothing any more. */
bool fsdp__board_is_gone(const fsdp__board *board, int rank);
