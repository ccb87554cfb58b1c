/* rendezvous.c - where ranks meet: the barrier, and the entry of every call with the comparison of signatures.
 *
 * Ranks count themselves in; the last one advances the generation, and the others wait for that: with a short spin when
 * every rank has a core, otherwise yielding for some microseconds, and then asleep in the kernel. A rank that sleeps
 * looks now and then whether those it waits for still live (verdict.h) and will come (watchdog.h). */
#include "comm/transport/arena/rendezvous.h"

#include <sched.h>

#include "base/clock.h"
#include "base/probe.h"
#include "comm/health/futex.h"
#include "comm/health/verdict.h"
#include "comm/health/watchdog.h"
#include "device/device.h"

enum {
    SPIN_TURNS = 1000,
    YIELD_NS = 30000, /* longer than ranks take that arrive at once */
    LATE_NS = 500000, /* a core that was yielded comes back later only if somebody computes on it */
    SLEEPS = 256      /* meetings for which a rank then does not yield */
};

static fsdp__rank_slot *slot_of(const fsdp__arena_group *group, int rank)
{
    return fsdp__slot_at(group->world->arena, group->index, group->ranks[rank]);
}

static const fsdp__desk *desk_of(const fsdp__arena_group *group, int rank)
{
    return fsdp__desk_at(group->world->arena->board, group->index, group->ranks[rank]);
}

const fsdp__entry *fsdp__entry_of(const fsdp__arena_group *group, int rank)
{
    return &slot_of(group, rank)->entries[group->shown % 2];
}

unsigned char *fsdp__payload_of(const fsdp__arena_group *group, int rank)
{
    return fsdp__arena_payload(group->world->arena, group->index, group->ranks[rank], (int)(group->shown % 2));
}

unsigned char *fsdp__payload_to_show(const fsdp__arena_group *group)
{
    return fsdp__arena_payload(group->world->arena, group->index, group->ranks[group->rank],
                               (int)((group->shown + 1) % 2));
}

/* ---- the barrier ---- */

static void pause_a_moment(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static bool has_stepped(const fsdp__board_group *shared, uint32_t old)
{
    return atomic_load_explicit(&shared->generation, memory_order_acquire) != old;
}

/* The next two wait without sleeping, as waking up takes tens of microseconds. They return whether all have come. */

static bool wait_spinning(const fsdp__board_group *shared, uint32_t old)
{
    for (int i = 0; i < SPIN_TURNS; i++) {
        if (has_stepped(shared, old))
            return true;
        pause_a_moment();
    }
    return false;
}

/* Lets other ranks have the core. Where another program takes it, it comes back milliseconds later: then this rank
 * sleeps at once in its next meetings, and is woken up as soon as all have come. */
static bool wait_yielding(fsdp__arena_group *group, uint32_t old, int64_t since_ns)
{
    int64_t before, now = fsdp__clock_ns();

    if (group->sleeps > 0) {
        group->sleeps--;
        return false;
    }
    while (now - since_ns < YIELD_NS) {
        if (has_stepped(group->place, old))
            return true;
        (void)sched_yield();
        before = now;
        now = fsdp__clock_ns();
        if (now - before > LATE_NS)
            group->sleeps = SLEEPS;
    }
    return false;
}

/* Looks after the ranks that are not there yet; if one is gone this breaks the world. */
static void look_after(fsdp__arena_group *group, uint32_t ticket, bool asked_system)
{
    fsdp__board *board = group->world->arena->board;

    for (int r = 0; r < group->size; r++) {
        bool left = fsdp__board_has_left(board, group->ranks[r]);

        if (r == group->rank || atomic_load(&desk_of(group, r)->ticket) == ticket)
            continue;
        if (left)
            fsdp__verdict_left(board, group->ranks[r]);
        if (asked_system)
            fsdp__verdict_check_alive(board, group->ranks[r]);
    }
    if (asked_system)
        fsdp__verdict_check_keeper(board);
}

static void wait_for_step(fsdp__arena_group *group, uint32_t old, int64_t since_ns)
{
    fsdp__board_group *shared = group->place;
    bool crowded = group->world->arena->control->crowded;
    uint32_t ticket = old + 2;
    fsdp__wait wait;

    if (crowded ? wait_yielding(group, old, since_ns) : wait_spinning(shared, old))
        return;
    /* This rank counts itself in before it looks at the generation again: the last rank advances it and then looks for
     * sleepers, so one of the two sees the other. The same holds for a rank that leaves. */
    atomic_fetch_add(&shared->sleepers, 1);
    look_after(group, ticket, false);
    fsdp__wait_begin(&wait, &group->world->health, (fsdp__wait_place){.group = group->index, .mark = ticket});
    while (atomic_load(&shared->generation) == old) {
        bool elapsed = fsdp__futex_wait(&shared->generation, old, fsdp__wait_tick_ms(&wait));

        if (atomic_load(&shared->generation) != old)
            break;
        /* A rank that left wakes the others early. The system is asked (files of /proc) only when time has passed. */
        look_after(group, ticket, elapsed);
        if (elapsed)
            fsdp__wait_tick(&wait);
    }
    atomic_fetch_sub(&shared->sleepers, 1);
}

fsdp_status fsdp__rendezvous(fsdp__arena_group *group, fsdp__traffic *traffic)
{
    fsdp__board_group *shared = group->place;
    uint32_t old = atomic_load(&shared->generation); /* in the single order that lent.c needs, as below */
    int64_t start;

    if (old & FSDP__GENERATION_BROKEN)
        return fsdp__board_failure(group->world->arena->board);
    if (traffic->stream && !traffic->carried)
        FSDP_TRY(fsdp__stream_settle(traffic->stream));
    if (!traffic->carried) /* otherwise the hosts meet, and not the streams */
        FSDP__TELL(ORDER_PUBLISHED, .context = group->world->context, .stream = traffic->stream, .object = shared,
                   .number = old);
    /* Set the ticket before counting in: peers tell from the tickets who is missing. */
    atomic_store(&group->desk->ticket, old + 2);
    if (atomic_fetch_add_explicit(&shared->arrived, 1, memory_order_acq_rel) + 1 == (uint32_t)group->size) {
        /* Reset before the generation advances, which lets ranks go on to the next meeting and count themselves in
         * there. */
        atomic_store_explicit(&shared->arrived, 0, memory_order_relaxed);
        atomic_fetch_add(&shared->generation, 2);
        if (atomic_load(&shared->sleepers) > 0)
            fsdp__futex_wake_all(&shared->generation);
    } else {
        start = fsdp__clock_ns();
        atomic_store_explicit(&group->desk->counted, old + 2, memory_order_release);
        wait_for_step(group, old, start);
        traffic->waiting_ns += fsdp__clock_ns() - start;
    }
    if ((atomic_load(&shared->generation) & ~(uint32_t)FSDP__GENERATION_BROKEN) == old)
        return fsdp__board_failure(group->world->arena->board);
    /* Everybody came, so this meeting counts, even if some rank has failed since. */
    if (!traffic->carried)
        FSDP__TELL(ORDER_ACQUIRED, .context = group->world->context, .stream = traffic->stream, .object = shared,
                   .number = old);
    return FSDP_OK;
}

/* ---- the entry of a call ---- */

static const fsdp__signature *said_by(const void *group, int rank)
{
    return &fsdp__entry_of(group, rank)->signature;
}

static fsdp_status fail_mismatch(fsdp__arena_group *group, int other)
{
    fsdp__board *board = group->world->arena->board;

    return fsdp__verdict_mismatch(board, group->name, &fsdp__entry_of(group, 0)->signature,
                                  fsdp__board_global(board, group->ranks[0]), &fsdp__entry_of(group, other)->signature,
                                  fsdp__board_global(board, group->ranks[other]));
}

fsdp_status fsdp__show(fsdp__arena_group *group, const fsdp__call *call, fsdp__entry *entry, fsdp__traffic *traffic)
{
    fsdp__rank_slot *own = slot_of(group, group->rank);
    int other;

    fsdp__signature_fill(call, &entry->signature);
    own->entries[++group->shown % 2] = *entry;
    FSDP_TRY(fsdp__rendezvous(group, traffic));
    other = fsdp__signatures_compare(group, said_by, group->size);
    return other ? fail_mismatch(group, other) : FSDP_OK;
}
