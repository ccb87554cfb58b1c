/* Groups whose device is lost are freed, and so is what ranks of a GPU have in common, on fake GPUs
 * (tests/backend/fakecuda): of one rank or of all, while calls stand in streams or not, and whether or not the program
 * has told the others. Nobody waits for what a lost device does not do any more, though ranks wait for ever otherwise:
 * a case that hangs has failed. */
#include <sys/mman.h>
#include <unistd.h>

#include "comm/rank_peer.h"
#include "support/ranks.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/use.h"
#include "comm/comm.h"
#include "device/device.h"

enum {
    NUMEL = 259,
    OWN_BYTES = (RANK_PEER_MOST + 1) * NUMEL * sizeof(float), /* a row, and all rows */
    ALL = -1,
    TICK_MS = 10
};

typedef struct loss {
    int world, rank; /* whose device is lost; ALL */
    bool stands;     /* a call, and the end of a read, stand in the streams of the ranks whose device is lost */
    bool tells;      /* their programs end the world; otherwise they say nothing, and free what they have */
    bool in_world;   /* the group is the world, which goes with its context */
} loss;

static const loss losses[] = {{2, ALL, .stands = true},
                              {2, 0, .stands = true, .in_world = true},
                              {2, 1, .stands = true, .tells = true},
                              {3, ALL, .stands = true, .tells = true, .in_world = true},
                              {3, 2, .stands = true},
                              {4, ALL, .stands = true, .in_world = true},
                              {2, ALL, .tells = true},
                              {2, 0, .stands = false},
                              {4, 1, .stands = true, .tells = true, .in_world = true},
                              {3, 0, .tells = true, .in_world = true}};

/* What a rank has; the region is NULL where the ranks have no GPU in common. */
typedef struct player {
    rank_peer g;
    fsdp_process_group *group;
    float *region, *own;
} player;

/* Counts the ranks that have issued all their calls; memory of all ranks. What a rank does after a collective may break
 * the world while others are still inside it. */
static atomic_int *issued;

static fsdp_status open_all(fsdp_context *context, bool in_world, player *p)
{
    int ranks[RANK_PEER_MOST] = {0, 1, 2, 3};
    bool common = false;

    fsdp_context_set_log(context, FSDP_LOG_WARNING, NULL, NULL);
    FSDP_TRY(rank_peer_open(context, RANK_PEER_OUTBOX, &p->g));
    FSDP_TRY(fsdp__context_set_comm_ticks(context, 0, TICK_MS)); /* ranks wait for ever */
    p->group = p->g.peer;
    if (!in_world)
        FSDP_TRY(fsdp_process_group_create(context, ranks, p->g.size, "lost", &p->group));
    FSDP_TRY(fsdp_process_group_set_carrier(p->group, FSDP_CARRIER_PEER));
    FSDP_TRY(fsdp__process_group_find_common(p->group, p->g.device, &common));
    if (common)
        FSDP_TRY(fsdp__process_group_alloc_common(p->group, p->g.device, NUMEL * sizeof(float), (void **)&p->region));
    return fsdp__device_alloc(p->g.device, OWN_BYTES, FSDP_MEMORY_ACTIVATION, (void **)&p->own);
}

/* Makes a call, and reads the region, in the order of the stream. */
static fsdp_status use(const player *p)
{
    FSDP_TRY(fsdp_all_gather(p->group, p->own, p->own + NUMEL, NUMEL, FSDP_F32, p->g.stream));
    if (!p->region)
        return FSDP_OK;
    fsdp__process_group_begin_read(p->group, p->region);
    FSDP_TRY(fsdp__copy_on_device(p->g.stream, p->own, p->region, NUMEL * sizeof(float)));
    FSDP_TRY(fsdp__process_group_end_read(p->group, p->region, p->g.stream));
    return fsdp__process_group_await_readers(p->group, p->region, p->g.stream);
}

/* Issues calls on all ranks, and then loses the devices. Streams that stand go on when their device is lost. */
static fsdp_status lose(const player *p, const loss *l, bool mine, atomic_int *open)
{
    FSDP_TRY(use(p));
    FSDP_TRY(fsdp_stream_synchronize(p->g.stream));
    if (mine && l->stands)
        fakecuda.hold(fsdp_stream_native(p->g.stream), open);
    if (l->stands)
        FSDP_TRY(use(p));
    atomic_fetch_add(issued, 1);
    while (atomic_load(issued) < l->world && !fsdp__board_aborted(rank_peer_board(p->g.context)))
        (void)usleep(500);
    if (mine)
        fakecuda.lose(fsdp_device_ordinal(p->g.device));
    return FSDP_OK;
}

/* Frees everything but the world. */
static void free_all(player *p)
{
    if (p->region)
        fsdp_process_group_free_memory(p->group, FSDP_MEMORY_SHARED, p->region, NUMEL * sizeof(float));
    fsdp_process_group_free(p->group);
    if (p->g.stream)
        (void)fsdp_stream_synchronize(p->g.stream);
    if (p->own)
        fsdp__device_free(p->g.device, p->own, OWN_BYTES, FSDP_MEMORY_ACTIVATION);
    rank_peer_close(&p->g);
}

static fsdp_status lose_and_free(fsdp_context *context, const loss *l)
{
    static _Thread_local atomic_int open; /* a stream looks at it */
    bool mine = l->rank == ALL || l->rank == fsdp_context_rank(context);
    player p = {.group = NULL};
    fsdp_status status;

    atomic_store(&open, 0);
    status = open_all(context, l->in_world, &p);
    if (status == FSDP_OK)
        status = lose(&p, l, mine, &open);
    atomic_store(&open, 1);
    if (status != FSDP_OK || (mine && l->tells))
        fsdp_abort(context, status == FSDP_OK ? "a device is lost" : fsdp_last_error());
    free_all(&p);
    return status;
}

static int begin(void **state)
{
    issued = mmap(NULL, sizeof *issued, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return issued == MAP_FAILED ? -1 : rank_peer_one_gpu(state);
}

static int end(void **state)
{
    (void)munmap(issued, sizeof *issued);
    fakecuda.mend();
    return rank_peer_any_gpus(state);
}

/* ---- ranks that are processes: first, while this process has no threads ---- */

static int lose_as_process(const rank_child *child, fsdp_context *context)
{
    if (lose_and_free(context, &losses[child->number]) == FSDP_OK)
        return RANK_RIGHT;
    fprintf(stderr, "rank %d, loss %d: %s\n", child->rank, child->number, fsdp_last_error());
    return 1;
}

TEST_WITH(processes_free_what_they_have_on_a_gpu_that_is_lost, begin, end)
{
    for (int i = 0; i < (int)FSDP__COUNT_OF(losses); i++) {
        atomic_store(issued, 0);
        rank_children_run((rank_child){.world = losses[i].world, .number = i}, lose_as_process);
    }
}

/* ---- ranks that are threads: on one GPU, which all of them lose, or on one each ---- */

static void lose_as_thread(fsdp_context *context, void *arg)
{
    CHECK_OK(lose_and_free(context, arg));
}

static void lose_in_threads(bool one_gpu)
{
    setenv("FSDP_FAKECUDA_DEVICES", one_gpu ? "1" : "4", 1);
    for (size_t i = 0; i < FSDP__COUNT_OF(losses); i++) {
        loss l = losses[i];

        if (one_gpu && l.rank != ALL)
            continue;
        atomic_store(issued, 0);
        test_run_ranks(l.world, lose_as_thread, &l);
        fakecuda.mend();
    }
}

TEST_WITH(threads_free_what_they_have_on_a_gpu_that_is_lost, begin, end)
{
    lose_in_threads(true);
}

TEST_WITH(threads_free_what_they_have_where_each_has_a_gpu, begin, end)
{
    lose_in_threads(false);
}

#endif
