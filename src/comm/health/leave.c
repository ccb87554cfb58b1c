/* leave.c - waits until nobody takes part any more. */
#include "comm/health/leave.h"

#include <unistd.h>

#include "comm/health/arena_watch.h"
#include "comm/health/verdict.h"

enum {
    PAUSE_US = 1000
};

/* Returns a rank that has not said that it takes part no more; -1: all have. Ranks of the same machine must be waited
 * for too, as this word is the last that a rank sends: a rank that closed the network earlier would have messages in it
 * that nobody receives, which MPI forbids. */
static int who_is_left(const fsdp__watch *watch)
{
    const fsdp__places *places = &watch->link->places;

    for (int r = 0; r < places->ranks; r++)
        if (r != places->rank && !fsdp__board_left(watch->board, r))
            return r;
    return -1;
}

bool fsdp__leave_machines(fsdp__watch *watch)
{
    fsdp__arena *arena;
    int rank = -1;

    if (!watch->started)
        return false;
    arena = watch->link->arena;
    atomic_store(&watch->leaving, true);
    while (!fsdp__arena_aborted(arena) && ((rank = who_is_left(watch)) >= 0 || !atomic_load(&watch->told))) {
        if (rank >= 0)
            fsdp__verdict_last_word(watch, rank);
        (void)usleep(PAUSE_US);
    }
    fsdp__watch_stop(watch);
    return !fsdp__arena_aborted(arena) && !atomic_load(&watch->link->silent);
}
