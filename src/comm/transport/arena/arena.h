/* arena.h - the memory that the ranks of one machine share, in one piece: control pages, then a heap.
 *
 * Threads share plain memory of the process, processes map the same memory file; the layout is the same. All of it is
 * virtual until touched. A process may map it anywhere: addresses in it travel between ranks as offsets from its
 * base. */
#ifndef COMM_ARENA_ARENA_H
#define COMM_ARENA_ARENA_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/build.h"
#include "base/context.h"
#include "base/host.h"
#include "fsdp/comm.h"

enum {
    FSDP__ARENA_GROUPS = 64,         /* process groups alive at a time, including the world */
    FSDP__ARENA_RANKS = 256,         /* on one machine */
    FSDP__ABORT_BYTES = 1024,        /* text of the reason */
    FSDP__GROUP_NAME_BYTES = 32,     /* other groups see this much of a longer name */
    FSDP__PAYLOAD_BYTES = 64 << 10,  /* small things a rank shows its group; there are two: see [Note: parity] */
    FSDP__STAGING_BYTES = 256 << 10, /* large things on their way through; there are two */
    FSDP__GENERATION_BROKEN = 1      /* a bit of a group's generation */
};

typedef enum fsdp__rank_state {
    FSDP__RANK_AWAITED, /* has not joined yet */
    FSDP__RANK_JOINED,
    FSDP__RANK_LEFT /* ended without a failure */
} fsdp__rank_state;

enum {
    FSDP__IN_ELSEWHERE = FSDP__ARENA_GROUPS + 1 /* program_in: a group over machines, which has no place here */
};

typedef struct fsdp__arena_rank {
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
} fsdp__arena_rank;

/* Ranks of the world, one bit each. */
typedef struct fsdp__rank_set {
    uint64_t bits[FSDP__ARENA_RANKS / 64];
} fsdp__rank_set;

static inline bool fsdp__rank_set_has(const fsdp__rank_set *set, int rank)
{
    return set->bits[rank / 64] >> (rank % 64) & 1;
}

static inline void fsdp__rank_set_add(fsdp__rank_set *set, int rank)
{
    set->bits[rank / 64] |= (uint64_t)1 << (rank % 64);
}

/* A barrier, and the group that it belongs to. */
typedef struct fsdp__arena_group {
    _Alignas(64) _Atomic uint64_t key;              /* 0: free */
    _Atomic int32_t members;                        /* that have not freed the group yet */
    _Atomic uint64_t ranks[FSDP__ARENA_RANKS / 64]; /* the group's: the bits of an fsdp__rank_set */
    _Atomic uint64_t name[FSDP__GROUP_NAME_BYTES / 8];
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t generation; /* grows by 2; has the bit FSDP__GENERATION_BROKEN. Ranks sleep on it */
    _Atomic uint32_t sleepers;
} fsdp__arena_group;

typedef enum fsdp__abort_state {
    FSDP__ABORT_NONE,
    FSDP__ABORT_WRITING,
    FSDP__ABORT_SET
} fsdp__abort_state;

/* The first page. */
typedef struct fsdp__control {
    uint64_t magic;
    int32_t world;        /* number of ranks on this machine; the arena numbers them from 0 */
    int32_t first;        /* the global number of the arena's rank 0, used in every text: there may be other machines */
    int32_t crowded;      /* more ranks than cores */
    int32_t join_seconds; /* timeout of the first meeting; 0: the default timeout */
    uint64_t board_bytes, heap_bytes;
    _Atomic uint64_t heap_used; /* bytes from the heap's start that ranks have taken (memory.c) */
    _Atomic uint64_t pids;      /* the pid namespace of all pids here; 0: not known yet */
    _Atomic int32_t keeper;     /* pid of the process that started the ranks and watches them; 0: none */
    _Atomic uint64_t keeper_ticks;
    _Atomic uint32_t abort_state;
    int32_t abort_status; /* fsdp_status */
    int32_t abort_rank;   /* the global rank to blame; -1: nobody */
    char abort_text[FSDP__ABORT_BYTES];
    char host[FSDP__HOST_BYTES]; /* name of the machine, where there are several; else "" */
    fsdp__arena_rank ranks[];
} fsdp__control;

typedef struct fsdp__arena {
    unsigned char *base;
    size_t bytes;
    fsdp__control *control;
    bool of_file;     /* mapped from a file; otherwise memory of this process */
    int fd;           /* of the file, where this process created it; else -1 */
    _Atomic int refs; /* references to the arena in this process */
} fsdp__arena;

/* Creates an arena of this process, or (`file`) one that can be handed to other processes through arena->fd. It has a
 * board of `board_bytes` zeros, for what a transport wants all ranks of the machine to read. */
fsdp_status fsdp__arena_create(int world, size_t board_bytes, bool file, fsdp__arena **out);
/* Maps an arena that another process created. Does not own `fd`. */
fsdp_status fsdp__arena_map(int fd, fsdp__arena **out);
/* Maps as much of it as fsdp__arena_abort needs: for a process that cannot map all of it and wants to say so. */
fsdp_status fsdp__arena_map_control(int fd, fsdp__arena **out);
fsdp__arena *fsdp__arena_ref(fsdp__arena *arena);
void fsdp__arena_unref(fsdp__arena *arena);

/* Returns the global number of a rank of the arena, which every text uses. */
static inline int fsdp__arena_global(const fsdp__arena *arena, int rank)
{
    return arena->control->first + rank;
}

/* Return where things lie. */
fsdp__arena_group *fsdp__arena_group_at(const fsdp__arena *arena, int group);
void *fsdp__arena_slot(const fsdp__arena *arena, int group, int rank); /* FSDP__SLOT_BYTES each */
void *fsdp__arena_board(const fsdp__arena *arena);                     /* control->board_bytes long */
unsigned char *fsdp__arena_payload(const fsdp__arena *arena, int group, int rank, int half);
unsigned char *fsdp__arena_staging(const fsdp__arena *arena, int group, int rank, int half);
/* Returns all payloads and staging: the memory through which a call travels whose buffers peers cannot see. */
unsigned char *fsdp__arena_passage(const fsdp__arena *arena, size_t *bytes);
/* Returns the heap, of control->heap_bytes. */
unsigned char *fsdp__arena_heap(const fsdp__arena *arena);
/* Returns whether [pointer, pointer + bytes) lies in the heap. */
bool fsdp__arena_holds(const fsdp__arena *arena, const void *pointer, size_t bytes);

enum {
    FSDP__SLOT_BYTES = 512
};

#endif
