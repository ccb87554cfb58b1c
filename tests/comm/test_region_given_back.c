/* When memory of a GPU that all ranks have in common goes back to the card, on fake GPUs (tests/backend/fakecuda): when
 * all have freed it, whoever is last, and with the maker's next call where that has stood still meanwhile. Ranks are
 * processes. */
#include "comm/rank_peer.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/fakecuda/use.h"
#include "check/fault.h"
#include "comm/comm.h"
#include "comm/health/process.h"
#include "comm/transport/arena/device_region.h"
#include "comm/world.h"
#include "support/ranks.h"

/* Returns the bytes that this process has taken from the card. */
static size_t taken(void)
{
    (void)fakecuda.peak(0);
    return fakecuda.peak(0);
}

static size_t counted(const rank_peer *g)
{
    fsdp_memory_stats memory;

    fsdp_device_memory(g->device, &memory);
    return memory.live_bytes[FSDP_MEMORY_WORKSPACE];
}

/* A group of all ranks, whose regions are not those of the world. */
static fsdp_status group_open(fsdp_context *context, rank_peer *g, fsdp_process_group **group)
{
    int ranks[RANK_PEER_MOST] = {0, 1, 2, 3};
    bool is = false;

    FSDP_TRY(rank_peer_open(context, RANK_PEER_OUTBOX, g));
    FSDP_TRY(fsdp_process_group_create(context, ranks, g->size, "common", group));
    FSDP_TRY(fsdp_process_group_set_carrier(*group, FSDP_CARRIER_PEER));
    FSDP_TRY(fsdp__process_group_find_common(*group, g->device, &is));
    return is ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "the ranks have no GPU in common");
}

enum {
    ODD = (3 << 20) + 5, /* bytes of a region, */
    WHOLE = 4 << 20      /* and those that it takes */
};

static fsdp_status take(const rank_peer *g, fsdp_process_group *group, void **out)
{
    size_t before = taken(), before_counted = counted(g);

    FSDP_TRY(fsdp__process_group_alloc_common(group, g->device, ODD, out));
    if (taken() != before + (g->rank == 0 ? WHOLE : 0))
        return FSDP_FAIL(FSDP_STATE, "a region takes %zu bytes of the card", taken() - before);
    if (counted(g) != before_counted + (g->rank == 0 ? (WHOLE - ODD + 511) / 512 * 512 : 0))
        return FSDP_FAIL(FSDP_STATE, "beyond the ranks' parts %zu bytes are counted", counted(g) - before_counted);
    return FSDP_OK;
}

/* All free but one, which does so after the others have met it. */
static fsdp_status free_late(const rank_peer *g, fsdp_process_group *group, void *region, int late, size_t before)
{
    bool waits = g->rank == late;

    if (!waits)
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
    FSDP_TRY(fsdp_barrier(g->staged));
    if (g->rank == 0 && taken() != before + WHOLE)
        return FSDP_FAIL(FSDP_STATE, "what rank %d still has is gone", late);
    FSDP_TRY(fsdp_barrier(g->staged));
    if (waits)
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
    if (late > 0)
        FSDP_TRY(fsdp_barrier(g->staged));
    if (g->rank == 0 && taken() != before)
        return FSDP_FAIL(FSDP_STATE, "when rank %d was the last to free, %zu bytes stay", late, taken() - before);
    return FSDP_OK;
}

/* Each rank is the last one once; then all free, and take anew, without having met. */
static fsdp_status take_and_free(const rank_peer *g, fsdp_process_group *group)
{
    size_t before = taken(), before_counted = counted(g);
    void *region;

    for (int late = 0; late < g->size; late++) {
        FSDP_TRY(take(g, group, &region));
        FSDP_TRY(free_late(g, group, region, late, before));
        if (counted(g) != before_counted)
            return FSDP_FAIL(FSDP_STATE, "%zu bytes are still counted", counted(g) - before_counted);
    }
    for (int i = 0; i < 3; i++) {
        FSDP_TRY(fsdp__process_group_alloc_common(group, g->device, ODD, &region));
        if (g->rank == 0 && taken() != before + WHOLE)
            return FSDP_FAIL(FSDP_STATE, "region %d is the only one, and %zu bytes are taken", i, taken() - before);
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
    }
    FSDP_TRY(fsdp_barrier(group));
    return g->rank > 0 || taken() == before ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "%zu bytes stay", taken() - before);
}

static int gives_back(const rank_child *child, fsdp_context *context)
{
    fsdp_process_group *group = NULL;
    rank_peer g;

    if (group_open(context, &g, &group) != FSDP_OK || take_and_free(&g, group) != FSDP_OK) {
        fprintf(stderr, "rank %d: %s\n", child->rank, fsdp_last_error());
        return 1;
    }
    fsdp_process_group_free(group);
    rank_peer_close(&g);
    return RANK_RIGHT;
}

TEST_WITH(what_all_ranks_have_freed_goes_back_to_the_card, rank_peer_one_gpu, rank_peer_any_gpus)
{
    for (int world = 2; world <= RANK_PEER_MOST; world++)
        rank_children_run((rank_child){.world = world}, gives_back);
}

/* The rank that made the region frees it and the group; the others read there first, and then free theirs. */
static fsdp_status outlive_group(const rank_peer *g, fsdp_process_group *group)
{
    size_t with = 0;
    float value = 1;
    void *region;

    FSDP_TRY(fsdp__process_group_alloc_common(group, g->device, ODD, &region));
    if (g->rank == 0) {
        with = taken();
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
        fsdp_process_group_free(group);
        with -= taken(); /* nothing: the others have it open */
    }
    FSDP_TRY(fsdp_barrier(g->staged));
    if (g->rank > 0) {
        FSDP_TRY(fsdp__copy_to_host(g->stream, &value, region, sizeof value));
        FSDP_TRY(fsdp_stream_synchronize(g->stream));
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
        fsdp_process_group_free(group);
    } else {
        with = taken() + with;
    }
    FSDP_TRY(fsdp_barrier(g->staged));
    if (g->rank == 0)
        return with == taken() + WHOLE ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "%zu bytes have gone", with - taken());
    return value == 0 ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "there is %g where zeros were", (double)value);
}

static int frees_the_group_first(const rank_child *child, fsdp_context *context)
{
    fsdp_process_group *group = NULL;
    rank_peer g;

    if (group_open(context, &g, &group) != FSDP_OK || outlive_group(&g, group) != FSDP_OK) {
        fprintf(stderr, "rank %d: %s\n", child->rank, fsdp_last_error());
        return 1;
    }
    rank_peer_close(&g);
    return RANK_RIGHT;
}

TEST_WITH(a_group_may_go_before_others_have_freed_its_region, rank_peer_one_gpu, rank_peer_any_gpus)
{
    rank_children_run((rank_child){.world = 3}, frees_the_group_first);
}

/* ---- a device that is late ---- */

/* Lets another stream stand when the region was read. Closing it now would wait for that stream in the driver. */
static fsdp_status go_on_behind(const rank_peer *g, atomic_int *open)
{
    fsdp_status status;

    atomic_store(open, 0);
    fakecuda.hold(fsdp_stream_native(g->other), open);
    status = fsdp_barrier(g->staged);
    atomic_store(open, 1);
    FSDP_TRY(status);
    return fsdp_stream_synchronize(g->other);
}

/* Reads the region on a stream that stands, and frees it behind that; nobody waits. */
static fsdp_status free_behind(const rank_peer *g, fsdp_process_group *group, void *region, atomic_int *open)
{
    void *copy = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__device_alloc(g->device, ODD, FSDP_MEMORY_ACTIVATION, &copy));
    fakecuda.hold(fsdp_stream_native(g->stream), open);
    FSDP_TRY(fsdp__copy_on_device(g->stream, copy, region, ODD));
    fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
    status = fsdp_barrier(g->staged); /* the device is late until all have met */
    if (status == FSDP_OK)
        status = fsdp_barrier(g->staged);
    atomic_store(open, 1);
    FSDP_TRY(status);
    FSDP_TRY(fsdp_stream_synchronize(g->stream));
    fsdp__device_free(g->device, copy, ODD, FSDP_MEMORY_ACTIVATION);
    return go_on_behind(g, open);
}

/* The device of one rank is late when all free; what it reads goes when it has read it. */
static int frees_while_a_device_is_late(const rank_child *child, fsdp_context *context)
{
    static atomic_int open;
    fsdp_process_group *group = NULL;
    size_t before, meanwhile = 0;
    fsdp_status status = FSDP_OK;
    rank_peer g;
    void *region;

    if (group_open(context, &g, &group) != FSDP_OK)
        return 1;
    before = taken();
    if (take(&g, group, &region) != FSDP_OK)
        return 2;
    if (g.rank == g.size - 1) {
        status = free_behind(&g, group, region, &open);
    } else {
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
        status = fsdp_barrier(g.staged);
        meanwhile = taken();
        for (int i = 0; i < 2 && status == FSDP_OK; i++)
            status = fsdp_barrier(g.staged);
    }
    for (int i = 0; i < 3 && status == FSDP_OK;
         i++) /* the late one closes it at its call, and the maker then frees it */
        status = fsdp_barrier(g.staged);
    if (status != FSDP_OK || (g.rank == 0 && (meanwhile != before + WHOLE || taken() != before))) {
        fprintf(stderr, "rank %d: %zu bytes, then %zu: %s\n", child->rank, meanwhile - before, taken() - before,
                fsdp_last_error());
        return 3;
    }
    fsdp_process_group_free(group);
    rank_peer_close(&g);
    return RANK_RIGHT;
}

TEST_WITH(a_region_is_freed_while_a_device_is_late_and_goes_when_that_has_read_it, rank_peer_one_gpu,
          rank_peer_any_gpus)
{
    rank_children_run((rank_child){.world = 2}, frees_while_a_device_is_late);
    rank_children_run((rank_child){.world = 4}, frees_while_a_device_is_late);
}

/* ---- a stream that counts readers late ---- */

/* Keeps a stream's thread until an int is not 0. */
static fsdp_status pass(fsdp_stream *stream, const void *argument)
{
    (void)stream;
    while (!atomic_load(*(atomic_int *const *)argument))
        (void)usleep(500);
    return FSDP_OK;
}

/* Opens the gate a while after the program has begun to free its group, which waits for that. */
static void *open_late(void *gate)
{
    (void)usleep(20000);
    atomic_store((atomic_int *)gate, 1);
    return NULL;
}

/* Frees the group of a region whose readers a stream's thread has yet to count: it must not be gone before that. */
static fsdp_status free_uncounted(const rank_peer *g, fsdp_process_group *group)
{
    static atomic_int open;
    atomic_int *gate = &open;
    pthread_t opener;
    void *region;
    bool early;

    FSDP_TRY(take(g, group, &region));
    FSDP_TRY(fsdp__stream_enqueue(g->stream, pass, &gate, sizeof gate));
    fsdp__process_group_begin_read(group, region);
    FSDP_TRY(fsdp__process_group_end_read(group, region, g->stream));
    FSDP_TRY(fsdp__process_group_await_readers(group, region, g->stream));
    fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
    if (pthread_create(&opener, NULL, open_late, gate) != 0)
        return FSDP_FAIL(FSDP_IO, "there is no thread");
    fsdp_process_group_free(group);
    early = !atomic_load(gate);
    (void)pthread_join(opener, NULL);
    FSDP_TRY(fsdp_stream_synchronize(g->stream));
    return early ? FSDP_FAIL(FSDP_STATE, "the group has gone before its readers were counted") : FSDP_OK;
}

static int frees_uncounted(const rank_child *child, fsdp_context *context)
{
    fsdp_process_group *group = NULL;
    size_t before = 0;
    rank_peer g;
    fsdp_status status = group_open(context, &g, &group);

    if (status == FSDP_OK) {
        before = taken();
        status = free_uncounted(&g, group);
    }
    for (int i = 0; i < 2 && status == FSDP_OK; i++)
        status = fsdp_barrier(g.staged);
    if (status != FSDP_OK || taken() > before) {
        fprintf(stderr, "rank %d: %s\n", child->rank, fsdp_last_error());
        return 1;
    }
    rank_peer_close(&g);
    return RANK_RIGHT;
}

TEST_WITH(a_group_is_freed_when_the_readers_of_its_region_are_counted, rank_peer_one_gpu, rank_peer_any_gpus)
{
    for (int world = 2; world <= RANK_PEER_MOST; world++)
        rank_children_run((rank_child){.world = world}, frees_uncounted);
}

/* ---- a maker that is stopped ---- */

static atomic_int *freed; /* ranks but the maker that have freed, since all of them began; memory of all */

/* Reads what the maker has left, frees it while that is stopped, and when all have, lets it go on. */
static fsdp_status free_while_stopped(const rank_peer *g, fsdp_process_group *group, void *region, int rounds)
{
    int maker = atomic_load(&fsdp__row_at(rank_peer_board(g->context), 0)->pid);
    float value = 1;

    while (fsdp__process_state(maker, maker) != 'T')
        usleep(1000);
    FSDP_TRY(fsdp__copy_to_host(g->stream, &value, region, sizeof value));
    FSDP_TRY(fsdp_stream_synchronize(g->stream));
    fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
    if (fsdp__process_state(maker, maker) != 'T')
        return FSDP_FAIL(FSDP_STATE, "the maker went on before all had freed");
    if (atomic_fetch_add(freed, 1) + 1 == rounds * (g->size - 1) && kill(maker, SIGCONT) != 0)
        return FSDP_FAIL(FSDP_STATE, "the maker cannot go on");
    return value == 0 ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "there is %g where zeros were", (double)value);
}

/* The maker is stopped before it frees its part, or after. */
static fsdp_status stop_and_free(const rank_peer *g, fsdp_process_group *group, bool frees_first, int rounds)
{
    size_t before = taken(), before_counted = counted(g);
    void *region;

    FSDP_TRY(take(g, group, &region));
    if (g->rank > 0) {
        FSDP_TRY(free_while_stopped(g, group, region, rounds));
    } else {
        if (frees_first)
            fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
        (void)raise(SIGSTOP);
        if (atomic_load(freed) != rounds * (g->size - 1))
            return FSDP_FAIL(FSDP_STATE, "%d ranks have freed", atomic_load(freed));
        if (!frees_first)
            fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
    }
    FSDP_TRY(fsdp_barrier(g->staged));
    if (counted(g) != before_counted)
        return FSDP_FAIL(FSDP_STATE, "%zu bytes are still counted", counted(g) - before_counted);
    return taken() == before ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "%zu bytes stay", taken() - before);
}

static int maker_stops(const rank_child *child, fsdp_context *context)
{
    fsdp_process_group *group = NULL;
    rank_peer g;

    if (group_open(context, &g, &group) != FSDP_OK || stop_and_free(&g, group, false, 1) != FSDP_OK ||
        stop_and_free(&g, group, true, 2) != FSDP_OK) {
        fprintf(stderr, "rank %d: %s\n", child->rank, fsdp_last_error());
        return 1;
    }
    fsdp_process_group_free(group);
    rank_peer_close(&g);
    return RANK_RIGHT;
}

TEST_WITH(others_free_a_region_whose_maker_is_stopped, rank_peer_one_gpu, rank_peer_any_gpus)
{
    freed = mmap(NULL, sizeof *freed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(freed != MAP_FAILED);
    for (int world = 2; world <= RANK_PEER_MOST; world++) {
        atomic_store(freed, 0);
        rank_children_run((rank_child){.world = world}, maker_stops);
    }
    (void)munmap(freed, sizeof *freed);
}

/* ---- a meeting that fails ---- */

/* Counts the meetings of a group, and lets this rank die in the second one of a call, when rank 0 waits there. */
typedef struct victim {
    const fsdp__arena_group *group;
    int meetings;
} victim;

static fsdp_status die_in_meeting(void *arg, fsdp__probe_event *event)
{
    victim *v = arg;

    if (event->object != v->group->place || ++v->meetings < 2)
        return FSDP_OK;
    while (atomic_load(&fsdp__desk_at(v->group->world->arena->board, v->group->index, 0)->counted) < event->number + 2)
        usleep(500);
    _exit(0);
}

/* Rank 1 dies when the first rank has made the memory, before the others learn where: it goes when they have left. */
static fsdp_status make_in_vain(const rank_peer *g, fsdp_process_group *group)
{
    fsdp__arena_view *view = fsdp__comm_get(g->context)->transport;
    victim v = {.group = group->transport_group};
    size_t before = taken(), before_counted = counted(g);
    fsdp_status status;
    void *region;

    if (g->rank == 1)
        (void)fsdp__context_subscribe(g->context, FSDP__POINT_BIT(FSDP__POINT_ORDER_PUBLISHED), die_in_meeting, &v);
    status = fsdp__process_group_alloc_common(group, g->device, ODD, &region);
    if (g->rank == 0 && status != FSDP_OK && taken() != before + WHOLE)
        return FSDP_FAIL(FSDP_STATE, "nothing was made: %s", fsdp_last_error());
    fsdp_process_group_free(group);
    if (status == FSDP_OK || region || counted(g) > before_counted)
        return FSDP_FAIL(FSDP_STATE, "%s, and %zu bytes more are counted", fsdp_status_text(status),
                         counted(g) - before_counted);
    for (int r = 1; r < g->size && g->rank == 0; r++)
        while (!fsdp__board_is_gone(view->arena->board, r))
            usleep(1000);
    fsdp__device_regions_end(view);
    return taken() <= before ? FSDP_OK : FSDP_FAIL(FSDP_STATE, "%zu bytes stay", taken() - before);
}

static int makes_in_vain(const rank_child *child, fsdp_context *context)
{
    fsdp_process_group *group = NULL;
    rank_peer g;

    if (group_open(context, &g, &group) != FSDP_OK || fsdp__context_set_comm_ticks(context, 0, 10) != FSDP_OK ||
        make_in_vain(&g, group) != FSDP_OK) {
        fprintf(stderr, "rank %d: %s\n", child->rank, fsdp_last_error());
        return 1;
    }
    rank_peer_close(&g);
    return RANK_RIGHT;
}

TEST_WITH(what_was_made_for_ranks_that_do_not_hear_of_it_goes_back, rank_peer_one_gpu, rank_peer_any_gpus)
{
    for (int world = 2; world <= RANK_PEER_MOST; world++)
        rank_children_run((rank_child){.world = world, .fate = RANK_DIES}, makes_in_vain);
}

/* ---- a host without memory, as ranks leave: they are threads, whose memory is closed without the driver ---- */

/* Gives a region back, and leaves the world, while its stream stands; `arg`: the allocation that fails from then on, 0:
 * each one. It must not be closed before the stream has gone on. */
static void leave_poor(fsdp_context *context, void *arg)
{
    long nth = *(const long *)arg;
    atomic_int open = 0;
    fsdp_process_group *group = NULL;
    void *region = NULL, *copy = NULL;
    pthread_t opener;
    rank_peer g;

    CHECK_OK(group_open(context, &g, &group));
    CHECK_OK(fsdp__process_group_alloc_common(group, g.device, ODD, &region));
    CHECK_OK(fsdp__device_alloc(g.device, ODD, FSDP_MEMORY_ACTIVATION, &copy));
    fakecuda.hold(fsdp_stream_native(g.stream), &open);
    CHECK_OK(fsdp__copy_on_device(g.stream, copy, region, ODD));
    if (nth > 0)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, nth);
    else
        fsdp__fault_arm_all(FSDP__FAULT_ALLOCATION);
    fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, ODD);
    fsdp_process_group_free(group);
    CHECK_EQ(pthread_create(&opener, NULL, open_late, &open), 0);
    fsdp__device_regions_end(fsdp__comm_get(context)->transport);
    CHECK_EQ(atomic_load(&open), 1);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_EQ(pthread_join(opener, NULL), 0);
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    fsdp__device_free(g.device, copy, ODD, FSDP_MEMORY_ACTIVATION);
    rank_peer_close(&g);
}

TEST_WITH(who_leaves_without_memory_of_the_host_waits_for_its_device, rank_peer_one_gpu, rank_peer_any_gpus)
{
    for (long nth = 0; nth <= 4; nth++) {
        test_run_ranks(2, leave_poor, &nth);
        check_nothing_lives();
    }
}

#endif
