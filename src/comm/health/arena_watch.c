/* arena_watch.c - how a world ends: the abort record, ranks that leave, ranks that die. */
#include "comm/health/arena_watch.h"

#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "comm/transport/arena/calls.h"
#include "comm/transport/arena/futex.h"

/* ---- the abort record ---- */

/* Wakes the ranks that sleep in meetings. Those that wait for readers wake up by themselves every now and then. */
static void wake_everybody(fsdp__arena *arena)
{
    for (int g = 0; g < FSDP__ARENA_GROUPS; g++) {
        fsdp__arena_group *group = fsdp__arena_group_at(arena, g);
        if (atomic_load(&group->sleepers) > 0)
            fsdp__futex_wake_all(&group->generation);
    }
}

void fsdp__arena_abort(fsdp__arena *arena, fsdp_status status, int rank, const char *text)
{
    fsdp__control *control = arena->control;
    uint32_t none = FSDP__ABORT_NONE;

    if (!atomic_compare_exchange_strong(&control->abort_state, &none, FSDP__ABORT_WRITING))
        return;
    control->abort_status = status;
    control->abort_rank = rank;
    snprintf(control->abort_text, sizeof control->abort_text, "%s", text);
    /* Set the state only now: ranks that see it read the rest without a lock. */
    atomic_store(&control->abort_state, FSDP__ABORT_SET);
    fsdp__futex_wake_all(&control->abort_state);
    /* The bit changes the word that ranks sleep on, so none can fall asleep after it. A group made later finds it
     * set. */
    for (int g = 0; g < FSDP__ARENA_GROUPS; g++)
        atomic_fetch_or(&fsdp__arena_group_at(arena, g)->generation, FSDP__GENERATION_BROKEN);
    wake_everybody(arena);
}

bool fsdp__arena_aborted(const fsdp__arena *arena)
{
    return atomic_load_explicit(&arena->control->abort_state, memory_order_acquire) != FSDP__ABORT_NONE;
}

fsdp_status fsdp__arena_failure(const fsdp__arena *arena)
{
    fsdp__control *control = arena->control;

    /* The writer may have died in the middle, so do not wait for ever. */
    for (int i = 0; i < 20 && atomic_load(&control->abort_state) == FSDP__ABORT_WRITING; i++)
        (void)fsdp__futex_wait(&control->abort_state, FSDP__ABORT_WRITING, 100);
    if (atomic_load_explicit(&control->abort_state, memory_order_acquire) != FSDP__ABORT_SET)
        return FSDP_FAIL(FSDP_COMM, "a rank ended while it reported a failure");
    return FSDP_FAIL((fsdp_status)control->abort_status, "%s", control->abort_text);
}

/* ---- ranks that are gone ---- */

void fsdp__arena_leave(fsdp__arena *arena, int rank)
{
    atomic_store(&arena->control->ranks[rank].state, FSDP__RANK_LEFT);
    wake_everybody(arena);
}

bool fsdp__arena_has_left(const fsdp__arena *arena, int rank)
{
    return atomic_load(&arena->control->ranks[rank].state) == FSDP__RANK_LEFT;
}

void fsdp__arena_abort_left(fsdp__arena *arena, int rank)
{
    const char *host = arena->control->host;
    char text[FSDP__HOST_BYTES + 400], call[320];
    int global = fsdp__arena_global(arena, rank);

    if (!host[0])
        snprintf(text, sizeof text, "rank %d has left", global);
    else if (fsdp__call_text_of(arena, -1, rank, call, sizeof call))
        snprintf(text, sizeof text, "rank %d (machine '%s') has left, last in %s", global, host, call);
    else
        snprintf(text, sizeof text, "rank %d (machine '%s') has left", global, host);
    fsdp__arena_abort(arena, FSDP_COMM, global, text);
}

static void death_text(const fsdp__arena *arena, int rank, char *text, size_t bytes)
{
    const char *host = arena->control->host;

    snprintf(text, bytes, "rank %d%s%s%s has died (process %d)", fsdp__arena_global(arena, rank),
             host[0] ? " (machine '" : "", host, host[0] ? "')" : "", atomic_load(&arena->control->ranks[rank].pid));
}

bool fsdp__arena_found_dead(const fsdp__arena *arena, int rank)
{
    char text[FSDP__HOST_BYTES + 64];

    death_text(arena, rank, text, sizeof text);
    return fsdp__arena_aborted(arena) && strncmp(arena->control->abort_text, text, strlen(text)) == 0;
}

void fsdp__arena_check_alive(fsdp__arena *arena, int rank)
{
    fsdp__arena_rank *shared = &arena->control->ranks[rank];
    int pid = atomic_load(&shared->pid);
    char text[FSDP__HOST_BYTES + 400], call[320];
    size_t length;

    /* A process that has left its world in good order may end when it likes, even between these two checks. */
    if (!fsdp__process_is_dead(pid, atomic_load(&shared->start_ticks)) ||
        atomic_load(&shared->state) != FSDP__RANK_JOINED)
        return;
    death_text(arena, rank, text, sizeof text);
    length = strlen(text);
    if (arena->control->host[0] && fsdp__call_text_of(arena, -1, rank, call, sizeof call))
        snprintf(text + length, sizeof text - length, ", last in %s", call);
    fsdp__arena_abort(arena, FSDP_COMM, fsdp__arena_global(arena, rank), text);
}

void fsdp__arena_check_keeper(fsdp__arena *arena)
{
    fsdp__control *control = arena->control;

    if (fsdp__process_is_dead(atomic_load(&control->keeper), atomic_load(&control->keeper_ticks)))
        fsdp__arena_abort(arena, FSDP_COMM, -1, "the process that started the ranks has died");
}
