/* calls.c - where each rank is in the calls of its groups.
 *
 * A rank writes this into its own slots, and anybody may read it there at any time. Words are stored in the order in
 * which they are declared and loaded in the same order, so if the version is even and the same before and after, what
 * was read in between belongs together. */
#include "comm/transport/arena/calls.h"

#include <stdio.h>
#include <unistd.h>

#include "base/compiler.h"
#include "comm/transport/arena/lent.h"
#include "comm/transport/arena/slot.h"
#include "comm/transport/arena/words.h"

enum {
    LABEL_WORDS = FSDP__LABEL_BYTES / 8,
    NAME_WORDS = FSDP__GROUP_NAME_BYTES / 8,
    READ_TRIES = 100
};

static fsdp__arena_rank *own_place(const fsdp__symmetric *world)
{
    return &world->arena->control->ranks[world->rank];
}

static void begin_call(const fsdp__symmetric_group *group, fsdp__rank_slot *slot, const fsdp__call *call)
{
    uint32_t version = atomic_load_explicit(&slot->version, memory_order_relaxed);

    atomic_store_explicit(&slot->version, version + 1, memory_order_relaxed);
    atomic_store_explicit(&slot->sequence, call->sequence, memory_order_release);
    atomic_store_explicit(&slot->name, (uint64_t)call->name, memory_order_release);
    fsdp__words_store(slot->label, LABEL_WORDS, call->label);
    atomic_store_explicit(&slot->version, version + 2, memory_order_release);
    atomic_store_explicit(&own_place(group->world)->last, (uint32_t)group->index + 1, memory_order_relaxed);
}

void fsdp__symmetric_note(void *g, const fsdp__call *call, fsdp__moment moment)
{
    fsdp__symmetric_group *group = g;
    fsdp__rank_slot *slot = group->slot;

    switch (moment) {
    case FSDP__CALL_ISSUED:
        atomic_store_explicit(&slot->issued, call->sequence, memory_order_release);
        break;
    case FSDP__CALL_BEGUN:
        begin_call(group, slot, call);
        break;
    case FSDP__CALL_DONE:
        fsdp__lent_settle(group);
        atomic_store_explicit(&slot->done, call->sequence, memory_order_release);
        break;
    }
}

static void wait_in(fsdp__symmetric *world, uint32_t in)
{
    fsdp__arena_rank *own = own_place(world);

    /* A context may be made on another thread than the one that uses it. */
    if (in > 0 && (!world->program_known || !pthread_equal(world->program, pthread_self()))) {
        world->program = pthread_self();
        world->program_known = true;
        atomic_store_explicit(&own->thread, gettid(), memory_order_relaxed);
    }
    atomic_store_explicit(&own->program_in, in, memory_order_release);
}

void fsdp__symmetric_host_waits(void *g, const fsdp_stream *worker, bool waits)
{
    fsdp__symmetric_group *group = g;

    atomic_store(&own_place(group->world)->awaited_worker, waits ? (uintptr_t)worker : 0);
    wait_in(group->world, waits ? (uint32_t)group->index + 1 : 0);
}

void fsdp__symmetric_host_waits_elsewhere(fsdp__symmetric *world, bool waits)
{
    wait_in(world, waits ? FSDP__IN_ELSEWHERE : 0);
}

/* ---- reading ---- */

bool fsdp__call_is_on_its_way(const fsdp__arena *arena, int group, int rank)
{
    const fsdp__rank_slot *slot = fsdp__slot_at(arena, group, rank);

    return atomic_load_explicit(&slot->done, memory_order_acquire) !=
           atomic_load_explicit(&slot->issued, memory_order_acquire);
}

typedef struct last_call {
    uint64_t sequence, name;
    char label[FSDP__LABEL_BYTES + 1];
} last_call;

static last_call read_last(const fsdp__rank_slot *slot)
{
    last_call last;
    uint32_t before, after;

    /* A rank that moves on so fast that it is never seen at rest is described by a mixture. */
    for (int i = 0; i < READ_TRIES; i++) {
        before = atomic_load_explicit(&slot->version, memory_order_acquire);
        last.sequence = atomic_load_explicit(&slot->sequence, memory_order_acquire);
        last.name = atomic_load_explicit(&slot->name, memory_order_acquire);
        fsdp__words_load(slot->label, LABEL_WORDS, last.label);
        after = atomic_load_explicit(&slot->version, memory_order_relaxed);
        if (before == after && before % 2 == 0)
            break;
    }
    return last;
}

bool fsdp__call_text_of(const fsdp__arena *arena, int group, int rank, char *text, size_t bytes)
{
    char name[8 * NAME_WORDS + 1];
    last_call last = {0};

    if (group < 0)
        group = (int)atomic_load_explicit(&arena->control->ranks[rank].last, memory_order_relaxed) - 1;
    if (group >= 0)
        last = read_last(fsdp__slot_at(arena, group, rank));
    if (last.sequence == 0)
        return false;
    fsdp__words_load(fsdp__arena_group_at(arena, group)->name, NAME_WORDS, name);
    snprintf(text, bytes, "call %llu of group '%s' (%s%s%s%s)", (unsigned long long)last.sequence, name,
             fsdp__call_text((fsdp__call_name)last.name), last.label[0] ? " for '" : "", last.label,
             last.label[0] ? "'" : "");
    return true;
}
