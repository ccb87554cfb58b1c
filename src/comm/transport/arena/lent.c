/* lent.c - a flag in each rank's slot says that the rank may be reading.
 *
 * A call that succeeds ends with a meeting after which nobody reads. One that fails has no such meeting: others may
 * have found their peers complete and be reading. Each stops at its next meeting, which fails, so the wait lasts as
 * long as a kernel. A rank sets its flag before the entry's barrier checks whether the world is broken; others read it
 * after they have seen that the world is broken. All of this is in one order (seq_cst), so a rank whose flag is not
 * seen does not go on. */
#include "comm/transport/arena/lent.h"

#include <stdatomic.h>
#include <time.h>

#include "comm/transport/arena/slot.h"

static const struct timespec between_looks = {.tv_nsec = 100000};

void fsdp__lent_begin(fsdp__arena_group *group)
{
    if (group->world->all_readable)
        atomic_exchange(&group->slot->reads, 1);
}

void fsdp__lent_end(fsdp__arena_group *group)
{
    if (group->world->all_readable)
        atomic_store(&group->slot->reads, 0);
}

void fsdp__lent_settle(fsdp__arena_group *group)
{
    if (!atomic_load_explicit(&group->slot->reads, memory_order_relaxed))
        return;
    fsdp__lent_end(group); /* do this first: peers may wait for this rank */
    for (int r = 0; r < group->size; r++) {
        fsdp__rank_slot *slot = fsdp__slot_at(group->world->arena, group->index, group->ranks[r]);

        while (atomic_load(&slot->reads))
            (void)nanosleep(&between_looks, NULL);
    }
}
