/* board.c - places with one writer each, and a counter that says whether a place is being written. */
#include "comm/health/board.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm_ops.h"

enum {
    WORDS = sizeof(fsdp__heard) / sizeof(uint64_t),
    MOST_TRIES = 1000
};

_Static_assert(WORDS * sizeof(uint64_t) == sizeof(fsdp__heard), "a place is words");

#define WORD_OF(field) (offsetof(fsdp__heard, field) / sizeof(uint64_t))

typedef struct place {
    _Alignas(64) _Atomic uint64_t turn; /* odd: the place is being written */
    _Atomic uint64_t words[WORDS];
} place;

size_t fsdp__board_bytes(int ranks)
{
    return (size_t)ranks * sizeof(place);
}

/* Writes a place. Each word releases the turn before it, and a reader acquires it: if it has read a new word it sees
 * that the turn has changed. */
void fsdp__board_write(void *board, int rank, const fsdp__heard *heard)
{
    place *p = (place *)board + rank;
    uint64_t turn = atomic_load_explicit(&p->turn, memory_order_relaxed), words[WORDS];

    memcpy(words, heard, sizeof words);
    atomic_store_explicit(&p->turn, turn + 1, memory_order_relaxed);
    for (int i = 0; i < WORDS; i++)
        atomic_store_explicit(&p->words[i], words[i], memory_order_release);
    atomic_store_explicit(&p->turn, turn + 2, memory_order_release);
}

bool fsdp__board_read(const void *board, int rank, fsdp__heard *out)
{
    const place *p = (const place *)board + rank;
    uint64_t words[WORDS];

    for (int tries = 0; tries < MOST_TRIES; tries++) {
        uint64_t turn = atomic_load_explicit(&p->turn, memory_order_acquire);

        for (int i = 0; i < WORDS; i++)
            words[i] = atomic_load_explicit(&p->words[i], memory_order_acquire);
        if (turn % 2 == 0 && atomic_load_explicit(&p->turn, memory_order_relaxed) == turn) {
            memcpy(out, words, sizeof words);
            return true;
        }
    }
    return false;
}

static uint64_t word_of(const void *board, int rank, size_t word)
{
    const place *p = (const place *)board + rank;

    return atomic_load_explicit(&p->words[word], memory_order_acquire);
}

uint64_t fsdp__board_beats(const void *board, int rank)
{
    return word_of(board, rank, WORD_OF(beats));
}

bool fsdp__board_left(const void *board, int rank)
{
    return word_of(board, rank, WORD_OF(left)) != 0;
}

/* Sets the fields without a format, since this runs for every call. */
void fsdp__doing_set(fsdp__doing *doing, const char *group, int tag, uint64_t sequence, int32_t name, const char *label)
{
    size_t length = strnlen(group, sizeof doing->group - 1);

    doing->tag = tag;
    doing->sequence = sequence;
    doing->name = name;
    memcpy(doing->group, group, length);
    doing->group[length] = '\0';
    memcpy(doing->label, label, sizeof doing->label);
}

void fsdp__doing_text(const fsdp__doing *doing, char *text, size_t bytes)
{
    if (doing->sequence == 0)
        snprintf(text, bytes, "before its first call");
    else
        snprintf(text, bytes, "%s call %llu of group '%s' (%s%s%s%s)", doing->in > 0 ? "in" : "behind",
                 (unsigned long long)doing->sequence, doing->group, fsdp__call_text((fsdp__call_name)doing->name),
                 doing->label[0] ? " for '" : "", doing->label, doing->label[0] ? "'" : "");
}
