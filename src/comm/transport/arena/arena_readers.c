/* arena_readers.c - where each rank is in its reads of a shared region: a few words in front of the region. The head of
 * comm/readers.c says what they are for. */
#include "comm/transport/arena/arena_readers.h"

#include "comm/health/futex.h"
#include "comm/health/verdict.h"
#include "comm/health/watchdog.h"
#include "comm/transport/arena/device_region.h"

/* Returns the bytes of the counters in front of the region: a multiple of 64. */
size_t fsdp__shared_header_bytes(const fsdp__arena_group *group)
{
    return sizeof(fsdp__shared_header) + (size_t)group->world->arena->board->world * sizeof(fsdp__reader);
}

fsdp__shared_header *fsdp__shared_header_of(const fsdp__arena_group *group, void *pointer)
{
    if (!fsdp__arena_holds(group->world->arena, pointer, 0))
        return fsdp__device_region_header(group->world, pointer);
    return (fsdp__shared_header *)((char *)pointer - fsdp__shared_header_bytes(group));
}

static fsdp__reader *own_reader(const fsdp__arena_group *group, void *pointer)
{
    return &fsdp__shared_header_of(group, pointer)->readers[group->world->rank];
}

static void read_begin(void *group, void *pointer)
{
    own_reader(group, pointer)->begun++;
}

static uint64_t read_end(void *group, void *pointer)
{
    fsdp__reader *reader = own_reader(group, pointer);

    atomic_store(&reader->ended, reader->begun);
    return reader->begun;
}

static uint64_t reads_ended(void *group, void *pointer)
{
    return atomic_load(&own_reader(group, pointer)->ended);
}

static void read_done(void *g, void *pointer, uint64_t number)
{
    fsdp__arena_group *group = g;
    fsdp__shared_header *header = fsdp__shared_header_of(group, pointer);

    /* Store the count first, then look for sleepers; a rank that goes to sleep counts itself as a sleeper first and
     * then looks at the count. So one of the two sees the other. Changing `moved` ends a sleep that is just about to
     * begin. */
    atomic_store(&header->readers[group->world->rank].done, number);
    if (atomic_load(&header->sleepers) > 0) {
        atomic_fetch_add(&header->moved, 1);
        fsdp__futex_wake_all(&header->moved);
    }
}

/* Returns a rank of the group that is not done, by its place there; -1: all are done. */
static int behind(const fsdp__arena_group *group, const fsdp__shared_header *header, uint64_t number)
{
    for (int r = 0; r < group->size; r++)
        if (atomic_load_explicit(&header->readers[group->ranks[r]].done, memory_order_acquire) < number)
            return r;
    return -1;
}

static bool readers_done(void *g, void *pointer, uint64_t number)
{
    fsdp__arena_group *group = g;

    return behind(group, fsdp__shared_header_of(group, pointer), number) < 0;
}

/* Sleeps for a tick, or until a read is done; returns whether the tick has passed. */
static bool sleep_behind(fsdp__shared_header *header, int rank, uint64_t number, int tick_ms)
{
    bool elapsed = false;
    uint32_t moved;

    atomic_fetch_add(&header->sleepers, 1);
    /* Read `moved` before looking at the count: a change in between keeps the futex from sleeping. */
    moved = atomic_load(&header->moved);
    if (atomic_load(&header->readers[rank].done) < number)
        elapsed = fsdp__futex_wait(&header->moved, moved, tick_ms);
    atomic_fetch_sub(&header->sleepers, 1);
    return elapsed;
}

/* Returns where the board says that the region lies. */
static uint64_t region_of(const fsdp__arena_group *group, const fsdp__shared_header *header)
{
    return (uint64_t)((uintptr_t)header - (uintptr_t)group->world->arena->board);
}

static fsdp_status await_all(fsdp__arena_group *group, fsdp__shared_header *header, uint64_t number)
{
    fsdp__board *board = group->world->arena->board;
    fsdp__wait wait;
    int last;

    fsdp__wait_begin(&wait, &group->world->health,
                     (fsdp__wait_place){.group = -1, .region = region_of(group, header), .mark = number});
    while ((last = behind(group, header, number)) >= 0) {
        bool elapsed = sleep_behind(header, group->ranks[last], number, fsdp__wait_tick_ms(&wait));
        bool left = fsdp__board_has_left(board, group->ranks[last]);

        /* A rank that is gone will never count itself done, and an aborted world does not wake ranks that sleep
         * here. */
        if (left && behind(group, header, number) == last)
            fsdp__verdict_left(board, group->ranks[last]);
        if (elapsed) {
            fsdp__verdict_check_alive(board, group->ranks[last]);
            fsdp__verdict_check_keeper(board);
            fsdp__wait_tick(&wait);
        }
        if (fsdp__board_aborted(board))
            return fsdp__board_failure(board);
    }
    return FSDP_OK;
}

static fsdp_status await_readers(void *g, void *pointer, uint64_t number, const fsdp_stream *worker, uint64_t issued)
{
    fsdp__arena_group *group = g;
    fsdp__row *own = fsdp__row_at(group->world->arena->board, group->world->rank);
    fsdp__shared_header *header = fsdp__shared_header_of(group, pointer);
    fsdp__reader *reader = own_reader(group, pointer);
    bool by_program = !worker;
    fsdp_status status;

    if (worker) {
        atomic_store(&reader->worker, (uintptr_t)worker);
        atomic_store(&reader->issued, issued);
        atomic_store(&reader->in, (uint32_t)group->index + 1);
    }
    /* Store the number before the region, and clear it after the region: a peer that sees the region finds its
     * number. */
    atomic_store(&reader->awaited[by_program], number);
    atomic_store(&own->awaited[by_program], region_of(group, header));
    status = await_all(group, header, number);
    atomic_store(&own->awaited[by_program], 0);
    atomic_store(&reader->awaited[by_program], 0);
    return status;
}

const fsdp__reader_ops fsdp__arena_readers = {
    .read_begin = read_begin,
    .read_end = read_end,
    .read_done = read_done,
    .reads_ended = reads_ended,
    .readers_done = readers_done,
    .await_readers = await_readers,
    .device_done = fsdp__device_region_done,
    .device_await = fsdp__device_region_await,
};
