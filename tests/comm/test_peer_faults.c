/* Ranks that hang, stop or differ while the GPUs of others wait for theirs (tests/backend/fakecuda): they are
 * named, in time, and all devices are released. Ranks are processes. */
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/rank_peer.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#include "comm/comm.h"
#include "comm/health/failure.h"
#include "device/device.h"

enum {
    TIMEOUT_MS = 1000,
    TICK_MS = 50,
    SECONDS = 200 /* that a machine with much else to do may take longer */
};

static void nap(int ms)
{
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
}

/* ---- ranks that live ---- */

typedef enum way {
    DEVICE_HANGS, /* and the program waits until the world has ended */
    RANK_STOPPED, /* when it has issued the call, and its device has not come */
    PROGRAM_HANGS,
    OTHER_CALL, /* while devices wait in the call before */
    OTHER_ORDER,
    WAYS
} way;

static const char *const ends_with[WAYS] = {
    [DEVICE_HANGS] = "in group 'world' for that of rank 1, which",
    [RANK_STOPPED] = "for that of rank 1, which is stopped",
    [PROGRAM_HANGS] = "for rank 1, which has stood still",
    [OTHER_CALL] = "is all_reduce sum of 6004 bytes float32 on rank 0 but all_gather of 6004 bytes float32 on rank 1",
    [OTHER_ORDER] = "comm.timeout is 1 s",
};

/* Waits until every rank's host is through with the last call that this one has issued, or the world has ended. */
static void await_hosts(const rank_peer *g)
{
    const fsdp__board *board = rank_peer_board(g->context);
    uint64_t last = atomic_load(&fsdp__desk_at(board, 0, g->rank)->issued);

    for (int r = 0; r < g->size; r++)
        while (atomic_load(&fsdp__desk_at(board, 0, r)->done) < last && !fsdp__board_aborted(board))
            nap(5);
}

/* Does what rank 1 does other than the rest, and then waits for the end of the world. */
static fsdp_status differ(rank_peer *g, way how, const three *t, atomic_int *open)
{
    plain_call call = {.what = how == OTHER_CALL ? GATHER : REDUCE, .dtype = FSDP_F32, .count = RANK_PEER_LONG};
    fsdp_status status = FSDP_OK;

    if (how != PROGRAM_HANGS)
        status = plain_make(&call, g->peer, t->device, t->device + t->bytes, g->stream);
    if (how == RANK_STOPPED) {
        await_hosts(g); /* so that their devices alone wait */
        raise(SIGSTOP);
    }
    if (how == PROGRAM_HANGS) {
        while (!fsdp__board_aborted(rank_peer_board(g->context)))
            nap(20); /* to look takes time of a processor, too */
        status = plain_make(&call, g->peer, t->device, t->device + t->bytes, g->stream);
    }
    for (int i = 0; i < SECONDS * 100 && status == FSDP_OK && !fsdp__comm_is_broken(g->peer); i++)
        nap(10);
    atomic_store(open, 1);
    return status == FSDP_OK ? fsdp_stream_synchronize(g->stream) : status;
}

/* Counts the warnings that a device waits. */
static void count_notices(void *arg, fsdp_log_level level, const char *line)
{
    if (level == FSDP_LOG_WARNING && strstr(line, "the device of rank 0 waits 0.") &&
        strstr(line, "in group 'world' for that of rank 1, which"))
        ++*(int *)arg;
}

/* All make a call in which the device of rank 1 does not come, and then another one. */
static int differs(const rank_child *c, fsdp_context *context)
{
    static atomic_int open;
    plain_call call = {.what = REDUCE, .dtype = FSDP_F32, .count = RANK_PEER_LONG};
    way how = (way)c->number;
    fsdp_status status;
    int notices = 0;
    int64_t began;
    three t;
    rank_peer g;

    fsdp_context_set_log(context, FSDP_LOG_WARNING, count_notices, &notices);
    if (rank_peer_open(context, RANK_PEER_OUTBOX, &g) != FSDP_OK || three_fill(&g, &call, &t) != FSDP_OK ||
        /* Rank 0 reports that it waits before another one ends the world. */
        fsdp__context_set_comm_ticks(context, c->rank == 0 ? TIMEOUT_MS : 4 * TIMEOUT_MS, TICK_MS) != FSDP_OK ||
        plain_make(&call, g.peer, t.device, t.device + t.bytes, g.stream) != FSDP_OK ||
        fsdp_stream_synchronize(g.stream) != FSDP_OK)
        return 1;
    if (c->rank == 1 && how != PROGRAM_HANGS)
        fakecuda.hold(fsdp_stream_native(g.stream), &open);
    began = fsdp__clock_ns();
    if (how == OTHER_CALL)
        (void)plain_make(&call, g.peer, t.device, t.device + t.bytes, g.stream);
    if (c->rank == 1) {
        status = differ(&g, how, &t, &open);
    } else {
        status = plain_make(&call, g.peer, t.device, t.device + t.bytes, g.stream);
        status = status == FSDP_OK ? fsdp_stream_synchronize(g.stream) : status;
    }
    fprintf(stderr, "rank %d, way %d: after %.2f s: %s\n", c->rank, c->number, (double)(fsdp__clock_ns() - began) / 1e9,
            fsdp_last_error());
    if (status == FSDP_OK || !strstr(fsdp_last_error(), ends_with[how]) ||
        (double)(fsdp__clock_ns() - began) > (TIMEOUT_MS / 1e3 + SECONDS) * 1e9)
        return 3;
    if (how == DEVICE_HANGS && (notices > 0) != (c->rank == 0))
        return 5;
    fsdp_context_set_log(context, FSDP_LOG_WARNING, NULL, NULL);
    three_drop(&t);
    rank_peer_close(&g);
    return RANK_RIGHT;
}

TEST(a_rank_that_does_not_come_is_named_after_the_timeout)
{
    for (int how = DEVICE_HANGS; how < OTHER_ORDER; how++)
        for (int world = 2; world <= RANK_PEER_MOST; world += 2)
            rank_children_run(
                (rank_child){.world = world, .number = how, .fate = how == RANK_STOPPED ? RANK_STOPS : RANK_LIVES},
                differs);
}

/* ---- two groups on two streams ---- */

enum {
    ROUNDS = 20,
    SLOW_NS = 30000000
};

/* Makes calls of two groups on two streams, which nothing orders but the program; `number`: in which order. */
static int crosses(const rank_child *c, fsdp_context *context)
{
    int ranks[RANK_PEER_MOST] = {0, 1, 2, 3};
    plain_call call = {.what = REDUCE, .dtype = FSDP_F32, .count = 37};
    bool turned = c->number == OTHER_ORDER && c->rank == 1;
    fsdp_process_group *second = NULL;
    fsdp_status status = FSDP_OK;
    three t;
    rank_peer g;

    if (rank_peer_open(context, RANK_PEER_OUTBOX, &g) != FSDP_OK ||
        fsdp_process_group_create(context, ranks, g.size, "second", &second) != FSDP_OK ||
        fsdp_process_group_set_carrier(second, FSDP_CARRIER_PEER) != FSDP_OK || three_fill(&g, &call, &t) != FSDP_OK ||
        fsdp_stream_synchronize(g.stream) != FSDP_OK ||
        plain_make(&call, g.peer, t.device, t.device + t.bytes, g.stream) != FSDP_OK ||
        plain_make(&call, second, t.device, t.device + 2 * t.bytes, g.other) != FSDP_OK ||
        fsdp__context_set_comm_ticks(context, c->number == OTHER_ORDER ? TIMEOUT_MS : 30 * TIMEOUT_MS, TICK_MS) !=
            FSDP_OK)
        return 1;
    /* What both workers issue at the same time is to come to the devices in two orders. */
    fakecuda.slow_words(fsdp_stream_native(c->rank % 2 ? g.stream : g.other), SLOW_NS);
    for (int i = 0; i < ROUNDS && status == FSDP_OK; i++)
        for (int half = 0; half < 2 && status == FSDP_OK; half++)
            status = half == turned ? plain_make(&call, g.peer, t.device, t.device + t.bytes, g.stream)
                                    : plain_make(&call, second, t.device, t.device + 2 * t.bytes, g.other);
    status = status == FSDP_OK ? fsdp_stream_synchronize(g.stream) : status;
    status = status == FSDP_OK ? fsdp_stream_synchronize(g.other) : status;
    if (c->number == OTHER_ORDER ? status == FSDP_OK || !strstr(fsdp_last_error(), ends_with[OTHER_ORDER])
                                 : status != FSDP_OK) {
        fprintf(stderr, "rank %d: %s: %s\n", c->rank, fsdp_status_text(status), fsdp_last_error());
        return 3;
    }
    three_drop(&t);
    fsdp_process_group_free(second);
    rank_peer_close(&g);
    return RANK_RIGHT;
}

/* What is on one queue of the hardware waits in the order in which it came there. */
TEST(two_groups_on_two_streams_come_to_all_devices_in_one_order)
{
    setenv("FSDP_FAKECUDA_QUEUES", "1", 1);
    for (int world = 2; world <= RANK_PEER_MOST; world++)
        rank_children_run((rank_child){.world = world}, crosses);
}

TEST(programs_that_issue_two_groups_in_other_orders_are_told)
{
    rank_children_run((rank_child){.world = 2, .number = OTHER_ORDER}, crosses);
}

/* ---- who frees an outbox ---- */

static int64_t workspace(const rank_peer *g)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(g->device, &stats);
    return (int64_t)stats.live_bytes[FSDP_MEMORY_WORKSPACE];
}

static fsdp_status gather(const rank_peer *g, const three *t, fsdp_process_group *group)
{
    plain_call call = {.what = GATHER, .dtype = FSDP_F32, .count = RANK_PEER_LONG};

    FSDP_TRY(fsdp_process_group_set_carrier(group, FSDP_CARRIER_PEER));
    FSDP_TRY(plain_make(&call, group, t->device, t->device + t->bytes, g->stream));
    FSDP_TRY(fsdp_stream_synchronize(g->stream));
    return FSDP_OK;
}

static atomic_int *kept_once; /* in memory of all processes: whether rank 0 has looked what it keeps */

/* Rank 0 frees its group before the others do, which have its outbox open until then. */
static int frees_early(const rank_child *c, fsdp_context *context)
{
    int ranks[RANK_PEER_MOST] = {0, 1, 2, 3};
    plain_call call = {.dtype = FSDP_F32, .count = RANK_PEER_LONG};
    fsdp_process_group *second = NULL, *third = NULL;
    int64_t before, kept, after;
    three t;
    rank_peer g;

    if (rank_peer_open(context, RANK_PEER_OUTBOX, &g) != FSDP_OK || three_fill(&g, &call, &t) != FSDP_OK ||
        gather(&g, &t, g.peer) != FSDP_OK ||
        fsdp_process_group_create(context, ranks, g.size, "second", &second) != FSDP_OK)
        return 1;
    before = workspace(&g);
    if (gather(&g, &t, second) != FSDP_OK)
        return 2;
    while (c->rank != 0 && !atomic_load(kept_once) && !fsdp__board_has_left(rank_peer_board(context), 0))
        nap(5);
    fsdp_process_group_free(second);
    kept = workspace(&g);
    if (c->rank == 0)
        atomic_store(kept_once, 1);
    if (fsdp_process_group_create(context, ranks, g.size, "third", &third) != FSDP_OK ||
        gather(&g, &t, third) != FSDP_OK)
        return 3;
    after = workspace(&g);
    fsdp_process_group_free(third);
    /* `before` is of one outbox, that of g.peer; each takes as much. */
    if (before < 2 * RANK_PEER_OUTBOX || (c->rank == 0 && kept != 2 * before) || after != 2 * before) {
        fprintf(stderr, "rank %d: %lld, then %lld, then %lld bytes\n", c->rank, (long long)before, (long long)kept,
                (long long)after);
        return 4;
    }
    three_drop(&t);
    rank_peer_close(&g);
    return RANK_RIGHT;
}

TEST(an_outbox_is_kept_while_others_have_it_open)
{
    kept_once = mmap(NULL, sizeof *kept_once, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(kept_once != MAP_FAILED);
    for (int world = 2; world <= RANK_PEER_MOST; world++) {
        atomic_store(kept_once, 0);
        rank_children_run((rank_child){.world = world}, frees_early);
    }
    munmap(kept_once, sizeof *kept_once);
}
#endif
