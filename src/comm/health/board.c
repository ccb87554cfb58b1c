/* board.c - lays out the table, and keeps the reason why a world has ended. */
#include "comm/health/board.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "comm/health/futex.h"
#include "comm/health/process.h"

enum {
    MOST_TRIES = 1000
};

/* ---- cells ---- */

/* Writes the words between two turns of the first one, which is odd meanwhile. Each word releases the turn before it,
 * and a reader acquires it: if it has read a new word it sees that the turn has changed. */
void fsdp__cell_write(_Atomic uint64_t *cell, const void *content, size_t bytes)
{
    uint64_t turn = atomic_load_explicit(&cell[0], memory_order_relaxed), word;

    atomic_store_explicit(&cell[0], turn + 1, memory_order_relaxed);
    for (size_t i = 0; i < bytes / sizeof word; i++) {
        memcpy(&word, (const char *)content + i * sizeof word, sizeof word);
        atomic_store_explicit(&cell[1 + i], word, memory_order_release);
    }
    atomic_store_explicit(&cell[0], turn + 2, memory_order_release);
}

bool fsdp__cell_read(const _Atomic uint64_t *cell, void *content, size_t bytes)
{
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        uint64_t turn = atomic_load_explicit(&cell[0], memory_order_acquire), word;

        for (size_t i = 0; i < bytes / sizeof word; i++) {
            word = atomic_load_explicit(&cell[1 + i], memory_order_acquire);
            memcpy((char *)content + i * sizeof word, &word, sizeof word);
        }
        if (turn % 2 == 0 && atomic_load_explicit(&cell[0], memory_order_relaxed) == turn)
            return true;
    }
    return false;
}

/* ---- where things are: groups first, so that the least part of a board is of one size ---- */

_Static_assert(sizeof(fsdp__doing) % sizeof(uint64_t) == 0 && sizeof(fsdp__said) % sizeof(uint64_t) == 0,
               "what cells hold is words");

static size_t groups_at(void)
{
    return (sizeof(fsdp__board) + 63) / 64 * 64;
}

size_t fsdp__board_least_bytes(void)
{
    return groups_at() + FSDP__BOARD_GROUPS * sizeof(fsdp__board_group);
}

size_t fsdp__board_bytes(int world, int ranks)
{
    return fsdp__board_least_bytes() + (size_t)ranks * sizeof(fsdp__row) +
           FSDP__BOARD_GROUPS * (size_t)world * sizeof(fsdp__desk);
}

void fsdp__board_begin(fsdp__board *board, int world, int ranks)
{
    board->world = world;
    board->ranks = ranks;
    board->abort_rank = -1;
}

fsdp__board_group *fsdp__group_at(const fsdp__board *board, int group)
{
    return (fsdp__board_group *)((char *)(uintptr_t)board + groups_at()) + group;
}

fsdp__row *fsdp__row_of(const fsdp__board *board, int global)
{
    return (fsdp__row *)(void *)fsdp__group_at(board, FSDP__BOARD_GROUPS) + global;
}

fsdp__desk *fsdp__desk_at(const fsdp__board *board, int group, int rank)
{
    return (fsdp__desk *)(void *)fsdp__row_of(board, board->ranks) + (size_t)group * (size_t)board->world + rank;
}

/* ---- what was said ---- */

void fsdp__board_say(fsdp__board *board, int global, const fsdp__said *said)
{
    fsdp__cell_write(fsdp__row_of(board, global)->said, said, sizeof *said);
}

bool fsdp__board_said(const fsdp__board *board, int global, fsdp__said *out)
{
    return fsdp__cell_read(fsdp__row_of(board, global)->said, out, sizeof *out);
}

static uint64_t word_of(const fsdp__board *board, int global, size_t offset)
{
    return atomic_load_explicit(&fsdp__row_of(board, global)->said[1 + offset / sizeof(uint64_t)],
                                memory_order_acquire);
}

uint64_t fsdp__board_beats(const fsdp__board *board, int global)
{
    return word_of(board, global, offsetof(fsdp__said, beats));
}

bool fsdp__board_left(const fsdp__board *board, int global)
{
    return word_of(board, global, offsetof(fsdp__said, left)) != 0;
}

/* ---- the end ---- */

/* Wakes the ranks that sleep in meetings. Those that wait for readers wake up by themselves every now and then. */
static void wake_everybody(const fsdp__board *board)
{
    for (int g = 0; g < FSDP__BOARD_GROUPS; g++) {
        fsdp__board_group *group = fsdp__group_at(board, g);
        if (atomic_load(&group->sleepers) > 0)
            fsdp__futex_wake_all(&group->generation);
    }
}

void fsdp__board_abort(fsdp__board *board, fsdp_status status, int rank, const char *text)
{
    uint32_t none = FSDP__ABORT_NONE;

    if (!atomic_compare_exchange_strong(&board->abort_state, &none, FSDP__ABORT_WRITING))
        return;
    board->abort_status = status;
    board->abort_rank = rank;
    snprintf(board->abort_text, sizeof board->abort_text, "%s", text);
    /* Set the state only now: ranks that see it read the rest without a lock. */
    atomic_store(&board->abort_state, FSDP__ABORT_SET);
    fsdp__futex_wake_all(&board->abort_state);
    /* The bit changes the word that ranks sleep on, so none can fall asleep after it. A group made later finds it
     * set. */
    for (int g = 0; g < FSDP__BOARD_GROUPS; g++)
        atomic_fetch_or(&fsdp__group_at(board, g)->generation, FSDP__GENERATION_BROKEN);
    wake_everybody(board);
}

void fsdp__board_fail(fsdp__board *board, fsdp_status status, int rank, const char *why)
{
    char whole[2 * FSDP__ABORT_BYTES];

    why = fsdp__text_behind_rank(why, &rank);
    snprintf(whole, sizeof whole, "rank %d failed: %s", rank, why);
    fsdp__board_abort(board, status, rank, fsdp__shown(whole, FSDP__ROOM(FSDP__ABORT_BYTES)));
}

bool fsdp__board_aborted(const fsdp__board *board)
{
    return atomic_load_explicit(&board->abort_state, memory_order_acquire) != FSDP__ABORT_NONE;
}

fsdp_status fsdp__board_failure(fsdp__board *board)
{
    /* The writer may have died in the middle, so do not wait for ever. */
    for (int i = 0; i < 20 && atomic_load(&board->abort_state) == FSDP__ABORT_WRITING; i++)
        (void)fsdp__futex_wait(&board->abort_state, FSDP__ABORT_WRITING, 100);
    if (atomic_load_explicit(&board->abort_state, memory_order_acquire) != FSDP__ABORT_SET)
        return FSDP_FAIL(FSDP_COMM, "a rank ended while it reported a failure");
    return FSDP_FAIL((fsdp_status)board->abort_status, "%s", board->abort_text);
}

fsdp_status fsdp__board_holds(void *board)
{
    return fsdp__board_aborted(board) ? fsdp__board_failure(board) : FSDP_OK;
}

void fsdp__board_leave(fsdp__board *board, int rank)
{
    atomic_store(&fsdp__row_at(board, rank)->state, FSDP__RANK_LEFT);
    wake_everybody(board);
}

bool fsdp__board_has_left(const fsdp__board *board, int rank)
{
    return atomic_load(&fsdp__row_at(board, rank)->state) == FSDP__RANK_LEFT;
}

bool fsdp__board_is_gone(const fsdp__board *board, int rank)
{
    const fsdp__row *row = fsdp__row_at(board, rank);

    return fsdp__board_has_left(board, rank) ||
           fsdp__process_is_dead(atomic_load(&row->pid), atomic_load(&row->start_ticks));
}
