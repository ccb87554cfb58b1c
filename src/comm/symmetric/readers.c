/* readers.c - where each rank is in its reads of a shared region: a few words in front of the region. What they are
 * for stands at the head of comm/readers.c. */
#include "comm/symmetric/readers.h"

#include "comm/symmetric/watch.h"

enum {
    LOOK_MS = 200 /* asleep for at most so long: then whether the reader still lives is looked at */
};

/* Counters first, then the region: a multiple of 64 bytes. */
size_t fsdp__shared_header_bytes(const fsdp__symmetric_group *group)
{
    return sizeof(fsdp__shared_header) + (size_t)group->world->arena->control->world * sizeof(fsdp__reader);
}

fsdp__shared_header *fsdp__shared_header_of(const fsdp__symmetric_group *group, void *pointer)
{
    return (fsdp__shared_header *)((char *)pointer - fsdp__shared_header_bytes(group));
}

static fsdp__reader *own_reader(const fsdp__symmetric_group *group, void *pointer)
{
    return &fsdp__shared_header_of(group, pointer)->readers[group->world->rank];
}

void fsdp__symmetric_read_begin(void *group, void *pointer)
{
    own_reader(group, pointer)->begun++;
}

uint64_t fsdp__symmetric_read_end(void *group, void *pointer)
{
    fsdp__reader *reader = own_reader(group, pointer);

    atomic_store(&reader->ended, reader->begun);
    return reader->begun;
}

uint64_t fsdp__symmetric_reads_ended(void *group, void *pointer)
{
    return atomic_load(&own_reader(group, pointer)->ended);
}

void fsdp__symmetric_read_done(void *g, void *pointer, uint64_t number)
{
    fsdp__symmetric_group *group = g;
    fsdp__shared_header *header = fsdp__shared_header_of(group, pointer);

    /* First the count, then the look for sleepers; who goes to sleep counts itself in first and then looks at the
     * count. So one of the two sees the other. The step of `moved` ends a sleep that is just about to begin. */
    atomic_store(&header->readers[group->world->rank].done, number);
    if (atomic_load(&header->sleepers) > 0) {
        atomic_fetch_add(&header->moved, 1);
        fsdp__futex_wake_all(&header->moved);
    }
}

bool fsdp__symmetric_readers_done(void *g, void *pointer, uint64_t number, int *behind)
{
    fsdp__symmetric_group *group = g;
    fsdp__shared_header *header = fsdp__shared_header_of(group, pointer);

    for (int r = 0; r < group->size; r++)
        if (atomic_load_explicit(&header->readers[group->ranks[r]].done, memory_order_acquire) < number) {
            *behind = r;
            return false;
        }
    return true;
}

bool fsdp__symmetric_reader_ended(void *g, void *pointer, uint64_t number, int rank)
{
    fsdp__symmetric_group *group = g;

    return atomic_load(&fsdp__shared_header_of(group, pointer)->readers[group->ranks[rank]].ended) >= number;
}

fsdp_status fsdp__symmetric_await_reader(void *g, void *pointer, uint64_t number, int behind)
{
    fsdp__symmetric_group *group = g;
    fsdp__arena *arena = group->world->arena;
    fsdp__arena_rank *own = &arena->control->ranks[group->world->rank];
    fsdp__shared_header *header = fsdp__shared_header_of(group, pointer);
    uint32_t moved;

    /* The number before the region, and cleared after it: a peer that sees the region finds its number there. */
    atomic_store(&own_reader(group, pointer)->awaited, number);
    atomic_store(&own->awaited, fsdp__to_offset(group, header));
    atomic_fetch_add(&header->sleepers, 1);
    /* Before the look at the count: a step in between keeps the futex from sleeping. */
    moved = atomic_load(&header->moved);
    if (atomic_load(&header->readers[group->ranks[behind]].done) < number)
        fsdp__futex_wait(&header->moved, moved, LOOK_MS);
    atomic_fetch_sub(&header->sleepers, 1);
    atomic_store(&own->awaited, 0);
    atomic_store(&own_reader(group, pointer)->awaited, 0);
    /* A rank that is gone will never count itself done, and an aborted world does not wake those who sleep here. */
    fsdp__arena_check_left(arena, group->ranks[behind]);
    fsdp__arena_check_alive(arena, group->ranks[behind]);
    fsdp__arena_check_keeper(arena);
    return fsdp__arena_aborted(arena) ? fsdp__arena_failure(arena) : FSDP_OK;
}

void fsdp__symmetric_host_waits(void *transport, int change)
{
    fsdp__symmetric *symmetric = transport;
    _Atomic uint32_t *waits = &symmetric->arena->control->ranks[symmetric->rank].waits;

    /* One writer, so no exchange is needed. */
    atomic_store_explicit(waits, atomic_load_explicit(waits, memory_order_relaxed) + (uint32_t)change,
                          memory_order_release);
}

bool fsdp__symmetric_host_is_waiting(void *transport)
{
    fsdp__symmetric *symmetric = transport;

    return atomic_load(&symmetric->arena->control->ranks[symmetric->rank].waits) > 0;
}

/* The peer may wait in a region of ranks that this one is not among. */
bool fsdp__symmetric_awaits_read(void *g, int rank)
{
    fsdp__symmetric_group *group = g;
    int peer = group->ranks[rank];
    const fsdp__arena_rank *shared = &group->world->arena->control->ranks[peer];
    uint64_t offset = atomic_load(&shared->waits) > 0 ? atomic_load(&shared->awaited) : 0;
    const fsdp__shared_header *header = fsdp__from_offset(group, offset);
    const fsdp__reader *own = offset ? &header->readers[group->world->rank] : NULL;

    return own && own->member && atomic_load(&own->ended) < atomic_load(&header->readers[peer].awaited);
}
