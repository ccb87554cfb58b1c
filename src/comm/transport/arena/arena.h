/* arena.h - the memory that the ranks of one machine share, in one piece: the board (health/board.h) and other
 * control pages, then a heap.
 *
 * Threads share plain memory of the process, processes map the same memory file; the layout is the same. All of it is
 * virtual until touched. A process may map it anywhere: addresses in it travel between ranks as offsets from its
 * base. */
#pragma once

#include "comm/health/board.h"

enum {
    FSDP__PAYLOAD_BYTES = 64 << 10, /* small things a rank shows its group; there are two: see [Note: parity] */
    FSDP__STAGING_BYTES = 256 << 10 /* large things on their way through; there are two */
};

/* Lies at the base; the board follows. */
typedef struct fsdp__control {
    _Alignas(64) uint64_t magic;
    int32_t crowded;      /* more ranks than cores */
    int32_t join_seconds; /* timeout of the first meeting; 0: the default timeout */
    uint64_t heap_bytes;
    _Atomic uint64_t heap_used; /* bytes from the heap's start that ranks have taken (arena_memory.c) */
} fsdp__control;

/* Holds the words by which the devices of a group's ranks wait for each other: words that a rank's own streams write
 * (device.h), and anybody when the world has ended. */
typedef struct fsdp__words {
    _Alignas(64) uint32_t arrived; /* meetings to which its device has come */
    uint32_t done;                 /* calls that its device has done */
    uint32_t tried;                /* for fsdp__device_try_words */
    _Atomic uint32_t open;         /* 1: it may have memory of its peers open; 0: the other words say nothing */
} fsdp__words;

/* Returns a word that a device may be about to write. */
static inline uint32_t fsdp__word_at(const uint32_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* Returns whether a count lies behind another one; counts begin again at 0 after 2^32. */
static inline bool fsdp__word_is_behind(uint32_t count, uint32_t other)
{
    return (int32_t)(other - count) > 0;
}

typedef struct fsdp__arena {
    unsigned char *base;
    size_t bytes;
    fsdp__control *control;
    fsdp__board *board;
    bool of_file;     /* mapped from a file; otherwise memory of this process */
    int fd;           /* of the file, where this process created it; else -1 */
    _Atomic int refs; /* references to the arena in this process */
} fsdp__arena;

/* Creates an arena of this process, or (`file`) one that can be handed to other processes through arena->fd, for
 * `world` ranks of this machine. Its board has rows for `ranks`, those of all machines. */
fsdp_status fsdp__arena_create(int world, int ranks, bool file, fsdp__arena **out);
/* Maps an arena that another process created. Does not own `fd`. */
fsdp_status fsdp__arena_map(int fd, fsdp__arena **out);
/* Maps as much of it as fsdp__board_abort needs: for a process that cannot map all of it and wants to say so. */
fsdp_status fsdp__arena_map_control(int fd, fsdp__arena **out);
fsdp__arena *fsdp__arena_ref(fsdp__arena *arena);
void fsdp__arena_unref(fsdp__arena *arena);

/* Return where things lie. */
void *fsdp__arena_slot(const fsdp__arena *arena, int group, int rank); /* FSDP__SLOT_BYTES each */
unsigned char *fsdp__arena_payload(const fsdp__arena *arena, int group, int rank, int half);
unsigned char *fsdp__arena_staging(const fsdp__arena *arena, int group, int rank, int half);
/* Return the words of a rank in a group; and all words, which fill whole pages, for a device to register. */
fsdp__words *fsdp__arena_words_of(const fsdp__arena *arena, int group, int rank);
void *fsdp__arena_words(const fsdp__arena *arena, size_t *bytes);
/* Returns all payloads and staging: the memory through which a call travels whose buffers peers cannot see. */
unsigned char *fsdp__arena_passage(const fsdp__arena *arena, size_t *bytes);
/* Returns the heap, of control->heap_bytes. */
unsigned char *fsdp__arena_heap(const fsdp__arena *arena);
/* Returns whether [pointer, pointer + bytes) lies in the heap. */
bool fsdp__arena_holds(const fsdp__arena *arena, const void *pointer, size_t bytes);

enum {
    FSDP__SLOT_BYTES = 448
};

FSDP__SCOPED_POINTER(fsdp__arena, fsdp__arena_unref)
