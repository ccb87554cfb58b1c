/* The carrier by memory that GPUs of a machine read from each other, on fake GPUs (tests/backend/fakecuda): the bits of
 * calls through the host, for ranks that are threads and processes, on one GPU and two, and what the driver refuses. */
#include "comm/rank_peer.h"
#include "comm/suite_mixed.h"
#include "support/ranks.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/use.h"
#include "device/device.h"

/* ---- ranks that are processes: first, while this process has no threads ---- */

static int compared(const rank_child *c, fsdp_context *context)
{
    int wrong = 0;
    rank_peer g;

    (void)c;
    if (rank_peer_open(context, RANK_PEER_OUTBOX, &g) != FSDP_OK || plain_compare_all(&g, &wrong) != FSDP_OK || wrong) {
        fprintf(stderr, "rank %d: call %d: %s\n", c->rank, wrong, fsdp_last_error());
        return 1;
    }
    if (fsdp_process_group_carrier(g.peer) != (c->world > 1 ? FSDP_CARRIER_PEER : FSDP_CARRIER_AUTO))
        return 2;
    rank_peer_close(&g);
    return RANK_RIGHT;
}

/* By default GPUs that do not reach each other, and ranks of whose driver a call fails, exchange through the host. */
static int falls_back(const rank_child *c, fsdp_context *context)
{
    plain_call call = {.what = REDUCE, .dtype = FSDP_F32, .count = RANK_PEER_LONG};
    bool same = false;
    rank_peer g;

    if (rank_peer_open(context, RANK_PEER_OUTBOX, &g) != FSDP_OK ||
        fsdp_process_group_set_carrier(g.peer, FSDP_CARRIER_AUTO) != FSDP_OK)
        return 1;
    if (c->fails && c->rank == 1)
        fakecuda.fail_call(c->fails, 1, 801 /* cudaErrorNotSupported */, false);
    if (plain_compare(&g, &call, &same) != FSDP_OK || !same) {
        fprintf(stderr, "rank %d without %s: %s\n", c->rank, c->fails ? c->fails : "reach", fsdp_last_error());
        return 2;
    }
    if (fsdp_process_group_carrier(g.peer) != FSDP_CARRIER_STAGED)
        return 3;
    rank_peer_close(&g);
    return RANK_RIGHT;
}

TEST(processes_have_the_bits_of_calls_through_the_host)
{
    for (int devices = 1; devices <= 2; devices++)
        for (int world = devices; world <= RANK_PEER_MOST; world += 3 - devices) {
            if (!test_takes(devices + world, 2, 5)) /* brief: 3 on two */
                continue;
            setenv("FSDP_FAKECUDA_DEVICES", devices == 1 ? "1" : "2", 1);
            rank_children_run((rank_child){.world = world}, compared);
        }
}

TEST(what_cannot_be_had_by_default_goes_through_the_host)
{
    static const char *const calls[] = {"cudaHostRegister", "cudaIpcGetMemHandle", "cudaIpcOpenMemHandle"};

    setenv("FSDP_FAKECUDA_DEVICES", "2", 1);
    setenv("FSDP_FAKECUDA_PEERS", "0", 1);
    rank_children_run((rank_child){.world = 2}, falls_back);
    unsetenv("FSDP_FAKECUDA_PEERS");
    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++)
        rank_children_run((rank_child){.world = 3, .fails = calls[i]}, falls_back);
}

/* ---- ranks that are threads ---- */

typedef struct gpus {
    const char *devices, *words;
    int64_t outbox;
} gpus;

static void run_threads(int world, const gpus *s, test_rank_body body)
{
    setenv("FSDP_FAKECUDA_DEVICES", s->devices, 1);
    if (s->words)
        setenv("FSDP_FAKECUDA_WORDS", s->words, 1);
    test_run_ranks(world, body, (void *)(uintptr_t)s);
    unsetenv("FSDP_FAKECUDA_WORDS");
    unsetenv("FSDP_FAKECUDA_DEVICES");
}

static void compare_body(fsdp_context *context, void *arg)
{
    int wrong = 0;
    rank_peer g;

    CHECK_OK(rank_peer_open(context, ((const gpus *)arg)->outbox, &g));
    CHECK_OK(plain_compare_all(&g, &wrong));
    CHECK_EQ(wrong, 0);
    CHECK_EQ(fsdp_process_group_carrier(g.peer), g.size > 1 ? FSDP_CARRIER_PEER : FSDP_CARRIER_AUTO);
    rank_peer_close(&g);
}

TEST(threads_have_the_bits_of_calls_through_the_host)
{
    static const gpus settings[] = {{"1", NULL, 0}, {"2", NULL, RANK_PEER_OUTBOX}, {"2", "0", RANK_PEER_OUTBOX}};

    for (size_t i = 0; i < FSDP__COUNT_OF(settings); i++)
        for (int world = 1 + (int)i, number = 0; world <= RANK_PEER_MOST; world += 1 + (int)(i > 0), number++)
            if (test_takes((int)i + number + 2, 2, 4)) /* brief: each in one world, of 3 or 4 */
                run_threads(world, &settings[i], compare_body);
}

static void mix(fsdp_context *context, void *arg)
{
    rank_peer g;
    suite s;

    CHECK_OK(rank_peer_open(context, ((const gpus *)arg)->outbox, &g));
    s = (suite){.group = g.peer, .stream = g.stream};
    suite_mixed(&s, 100, test_brief() ? 6 : 12);
    rank_peer_close(&g);
}

TEST(calls_of_buffers_have_the_values_that_they_should)
{
    static const gpus settings[] = {{"1", NULL, 0}, {"2", NULL, RANK_PEER_OUTBOX}, {"2", "0", 0}};

    for (size_t i = 0; i < FSDP__COUNT_OF(settings); i++)
        for (int world = 2; world <= RANK_PEER_MOST; world++)
            if (test_takes((int)i + world, 2, 4))
                run_threads(world, &settings[i], mix);
}

/* Many calls on two streams, which nothing orders but the group. */
static void two_streams(fsdp_context *context, void *arg)
{
    plain_call c = {.what = REDUCE, .dtype = FSDP_I64, .count = RANK_PEER_LONG};
    fsdp_event *event = NULL;
    rank_peer g;
    three t;

    CHECK_OK(rank_peer_open(context, ((const gpus *)arg)->outbox, &g));
    CHECK_OK(three_fill(&g, &c, &t));
    for (int64_t i = 0; i < RANK_PEER_LONG; i++)
        ((int64_t *)(void *)t.host)[i] = i + g.rank;
    CHECK_OK(fsdp__copy_to_device(g.stream, t.device, t.host, t.bytes));
    CHECK_OK(fsdp_event_create(g.device, &event));
    CHECK_OK(fsdp_event_record(event, g.stream));
    CHECK_OK(fsdp_stream_wait_event(g.other, event));
    for (int i = 0; i < 20; i++)
        CHECK_OK(
            plain_make(&c, g.peer, t.device, t.device + (size_t)(1 + i % 2) * t.bytes, i % 2 ? g.other : g.stream));
    CHECK_OK(fsdp_stream_synchronize(g.other));
    CHECK_OK(fsdp__copy_to_host(g.stream, t.host, t.device, 3 * t.bytes));
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    for (int half = 1; half < 3; half++)
        for (int64_t i = 0; i < RANK_PEER_LONG; i++)
            CHECK_EQ(((int64_t *)(void *)(t.host + (size_t)half * t.bytes))[i], g.size * i + g.size * (g.size - 1) / 2);
    fsdp_event_free(event);
    three_drop(&t);
    rank_peer_close(&g);
}

TEST(calls_on_two_streams_are_in_order)
{
    run_threads(3, &(gpus){"2", NULL, RANK_PEER_OUTBOX}, two_streams);
}

/* ---- several machines ---- */

enum {
    MACHINES = 2,
    MACHINE_RANKS = 2
};

/* Groups on one machine have the carrier, and others have another one. */
static void on_machines(fsdp_context *context, void *arg)
{
    int rank = fsdp_context_rank(context), first = rank / MACHINE_RANKS * MACHINE_RANKS, wrong = 0;
    int inside[MACHINE_RANKS] = {first, first + 1}, across[MACHINES] = {rank % 2, rank % 2 + MACHINE_RANKS};
    rank_peer g, other;
    bool same = false;
    plain_call c = {.what = REDUCE, .dtype = FSDP_F32, .count = 3};

    (void)arg;
    CHECK_OK(rank_peer_open_pair(context, inside, &g));
    CHECK_OK(plain_compare_all(&g, &wrong));
    CHECK_EQ(wrong, 0);
    CHECK_EQ(fsdp_process_group_carrier(g.peer), FSDP_CARRIER_PEER);
    CHECK_OK(rank_peer_open_pair(context, across, &other));
    CHECK_ERROR(plain_compare(&other, &c, &same), FSDP_UNSUPPORTED,
                "group 'pair' cannot have the carrier 'peer' (comm.carrier): its ranks are on 2 machines");
    CHECK_OK(fsdp_process_group_set_carrier(other.peer, FSDP_CARRIER_AUTO));
    CHECK_OK(plain_compare(&other, &c, &same));
    CHECK(same);
    CHECK_EQ(fsdp_process_group_carrier(other.peer), FSDP_CARRIER_NCCL);
    rank_peer_close(&other);
    rank_peer_close(&g);
}

/* The device of rank 1 does not come: its neighbour's is released, and the other machine is told. */
static void hangs_on_machines(fsdp_context *context, void *arg)
{
    static atomic_int open;
    int first = fsdp_context_rank(context) / MACHINE_RANKS * MACHINE_RANKS, inside[] = {first, first + 1};
    plain_call c = {.what = REDUCE, .dtype = FSDP_F32, .count = RANK_PEER_LONG};
    const char *text = "rank 0 has waited";
    fsdp_status status;
    rank_peer g;
    three t;

    (void)arg;
    atomic_store(&open, 0);
    CHECK_OK(rank_peer_open_pair(context, inside, &g));
    CHECK_OK(three_fill(&g, &c, &t));
    CHECK_OK(plain_make(&c, g.peer, t.device, t.device + t.bytes, g.stream));
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    CHECK_OK(fsdp__context_set_comm_ticks(context, g.rank == 0 ? 1000 : 60000, 50)); /* nobody else is to be first */
    if (g.rank == 1)
        fakecuda.hold(fsdp_stream_native(g.stream), &open);
    status = plain_make(&c, g.peer, t.device, t.device + t.bytes, g.stream);
    if (g.rank != 1 && status == FSDP_OK)
        status = fsdp_stream_synchronize(g.stream);
    if (g.rank != 0 && status == FSDP_OK)
        status = fsdp_barrier(fsdp_world(context)); /* which rank 0 does not reach */
    CHECK(status != FSDP_OK);
    if (!strstr(fsdp_last_error(), text) || !strstr(fsdp_last_error(), "in group 'pair' for that of rank 1"))
        TEST_FAIL("rank %d: %s", g.rank, fsdp_last_error());
    if (g.rank == 1)
        atomic_store(&open, 1);
    three_drop(&t);
    rank_peer_close(&g);
}

TEST(groups_on_one_of_several_machines_have_it)
{
    setenv("FSDP_FAKECUDA_DEVICES", "4", 1);
    test_run_machines(MACHINES, MACHINE_RANKS, false, on_machines, NULL);
    test_run_machines(MACHINES, MACHINE_RANKS, false, hangs_on_machines, NULL);
}

/* ---- what cannot be had ---- */

static void refused(fsdp_context *context, void *arg)
{
    plain_call c = {.what = REDUCE, .dtype = FSDP_F32, .count = 3};
    bool same = false;
    rank_peer g;

    CHECK_OK(rank_peer_open(context, 0, &g));
    CHECK_ERROR(plain_compare(&g, &c, &same), FSDP_UNSUPPORTED, arg);
    CHECK_EQ(fsdp_process_group_carrier(g.peer), FSDP_CARRIER_AUTO);
    CHECK_OK(fsdp_process_group_set_carrier(g.peer, FSDP_CARRIER_AUTO));
    CHECK_OK(plain_compare(&g, &c, &same)); /* ranks that are threads exchange through the host by default */
    CHECK(same);
    CHECK_EQ(fsdp_process_group_carrier(g.peer), FSDP_CARRIER_STAGED);
    CHECK_ERROR(fsdp_process_group_set_carrier(g.peer, FSDP_CARRIER_PEER), FSDP_STATE, "it has made calls on a GPU");
    rank_peer_close(&g);
}

TEST(gpus_that_do_not_reach_each_other_go_through_the_host)
{
    setenv("FSDP_FAKECUDA_PEERS", "0", 1);
    test_run_ranks(2, refused, "cannot have the carrier 'peer' (comm.carrier): rank 0: cuda:0 cannot read the memory");
}

RANKS_TEST(ranks_that_want_other_carriers_are_named, 2)
{
    plain_call c = {.what = REDUCE, .dtype = FSDP_F32, .count = 3};
    bool same = false;
    rank_peer g;

    CHECK_OK(rank_peer_open(context, 0, &g));
    if (g.rank == 1)
        CHECK_OK(fsdp_process_group_set_carrier(g.peer, FSDP_CARRIER_STAGED));
    CHECK_ERROR(plain_compare(&g, &c, &same), FSDP_MISMATCH, "to be 'peer' on rank 0 but 'staged' on rank 1");
    rank_peer_close(&g);
}

/* ---- failures ---- */

/* Every function of the driver that a carrier needs fails once: the call is right or fails, and nobody hangs. */
static void survive(fsdp_context *context, void *arg)
{
    plain_call c = {.what = REDUCE, .dtype = FSDP_F32, .count = 3};
    fsdp_status status;
    bool same = true;
    rank_peer g;

    (void)arg;
    status = rank_peer_open(context, RANK_PEER_OUTBOX, &g);
    for (int i = 0; i < 2 && status == FSDP_OK; i++)
        status = plain_compare(&g, &c, &same);
    CHECK(status != FSDP_OK || same);
    rank_peer_close(&g);
}

static void survive_as_two(void)
{
    char text[4096];

    (void)test_try_ranks(2, survive, NULL, text, sizeof text);
}

TEST(a_call_of_the_driver_that_fails_hangs_nobody)
{
    static const char *const calls[] = {"cudaMalloc",
                                        "cudaHostRegister",
                                        "cudaDeviceCanAccessPeer",
                                        "cudaDeviceEnablePeerAccess",
                                        "cudaDeviceGetPCIBusId",
                                        "cuStreamWriteValue32",
                                        "cuStreamWaitValue32",
                                        "cudaStreamCreateWithPriority"};

    fail_each_call(calls, FSDP__COUNT_OF(calls), 12, 5, survive_as_two);
}
#endif
