/* Memory of a GPU that all ranks of a group have in common, on fake GPUs (tests/backend/fakecuda): gathers move
 * nothing, writers wait for readers and nobody for anything else, ranks end in any order, and what fails hangs
 * nobody. */
#include "comm/rank_peer.h"
#include "support/ranks.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <signal.h>
#include <time.h>

#include "backend/fakecuda/use.h"
#include "comm/health/process.h"
#include "device/kernels.h"

enum {
    NUMEL = 1003,
    ROUNDS = 6
};

/* A rank with a region, of which each rank has a row. */
typedef struct common {
    rank_peer g;
    float *region; /* of the device, as the next */
    float *copy;   /* of what this rank has read */
    fsdp_event *event;
} common;

static int64_t chunk_of(const common *c)
{
    return (NUMEL + c->g.size - 1) / c->g.size;
}

static int64_t part_of(const common *c, int rank)
{
    int64_t left = NUMEL - rank * chunk_of(c);

    return left < 0 ? 0 : left < chunk_of(c) ? left : chunk_of(c);
}

static float *row_of(const common *c, int rank)
{
    return c->region + rank * chunk_of(c);
}

static fsdp_status common_open(fsdp_context *context, common *c)
{
    bool is = false;

    *c = (common){0};
    FSDP_TRY(rank_peer_open(context, RANK_PEER_OUTBOX, &c->g));
    FSDP_TRY(fsdp__process_group_find_common(c->g.peer, c->g.device, &is));
    if (!is)
        return FSDP_FAIL(FSDP_STATE, "the ranks have no GPU in common");
    FSDP_TRY(fsdp_event_create(c->g.device, &c->event));
    FSDP_TRY(fsdp__device_alloc(c->g.device, NUMEL * sizeof(float), FSDP_MEMORY_ACTIVATION, (void **)&c->copy));
    return fsdp__process_group_alloc_common(c->g.peer, c->g.device, NUMEL * sizeof(float), (void **)&c->region);
}

static void common_close(common *c)
{
    if (c->g.stream)
        (void)fsdp_stream_synchronize(c->g.stream);
    if (c->g.other)
        (void)fsdp_stream_synchronize(c->g.other);
    fsdp_process_group_free_memory(c->g.peer, FSDP_MEMORY_SHARED, c->region, NUMEL * sizeof(float));
    if (c->copy)
        fsdp__device_free(c->g.device, c->copy, NUMEL * sizeof(float), FSDP_MEMORY_ACTIVATION);
    fsdp_event_free(c->event);
    rank_peer_close(&c->g);
}

/* Writes this rank's row, when nobody reads it any more, and gathers on the other stream. */
static fsdp_status write_and_gather(common *c, int round)
{
    fsdp_sharded_buffer b = {.unsharded = c->region,
                             .shard = row_of(c, c->g.rank),
                             .numel = NUMEL,
                             .chunk = chunk_of(c),
                             .unsharded_dtype = FSDP_F32,
                             .shard_dtype = FSDP_F32};

    FSDP_TRY(fsdp__process_group_await_readers(c->g.peer, c->region, c->g.stream));
    FSDP_TRY(fsdp__launch_fill_run(c->g.stream, row_of(c, c->g.rank), FSDP_F32, part_of(c, c->g.rank),
                                   100 * round + c->g.rank));
    FSDP_TRY(fsdp_event_record(c->event, c->g.stream));
    FSDP_TRY(fsdp_stream_wait_event(c->g.other, c->event));
    FSDP_TRY(fsdp_all_gather_coalesced(c->g.peer, &b, 1, c->g.other));
    FSDP_TRY(fsdp_event_record(c->event, c->g.other));
    return fsdp_stream_wait_event(c->g.stream, c->event);
}

static fsdp_status read_all(common *c)
{
    fsdp__process_group_begin_read(c->g.peer, c->region);
    FSDP_TRY(fsdp__copy_on_device(c->g.stream, c->copy, c->region, NUMEL * sizeof(float)));
    return fsdp__process_group_end_read(c->g.peer, c->region, c->g.stream);
}

/* Looks at what was read last; waits for the stream. */
static fsdp_status check_read(const common *c, int round)
{
    float values[NUMEL];

    FSDP_TRY(fsdp__copy_to_host(c->g.stream, values, c->copy, sizeof values));
    FSDP_TRY(fsdp_stream_synchronize(c->g.stream));
    for (int64_t i = 0; i < NUMEL; i++)
        if (values[i] != (float)(100 * round + i / chunk_of(c)))
            return FSDP_FAIL(FSDP_STATE, "round %d: element %lld is %g", round, (long long)i, (double)values[i]);
    return FSDP_OK;
}

static fsdp_status go_rounds(common *c)
{
    for (int round = 1; round <= ROUNDS; round++) {
        FSDP_TRY(write_and_gather(c, round));
        FSDP_TRY(read_all(c));
        if (round % 2 == 0) /* otherwise the hosts run ahead */
            FSDP_TRY(check_read(c, round));
    }
    return FSDP_OK;
}

/* Ranks have one GPU, unless a case says otherwise. */
/* ---- ranks that are processes: first, while this process has no threads ---- */

static int rounds_of_process(const rank_child *child, fsdp_context *context)
{
    fsdp_comm_stats stats;
    common c;

    if (common_open(context, &c) != FSDP_OK || go_rounds(&c) != FSDP_OK) {
        fprintf(stderr, "rank %d: %s\n", child->rank, fsdp_last_error());
        return 1;
    }
    fsdp_process_group_stats(c.g.peer, &stats);
    if (stats.bytes_moved[FSDP_ALL_GATHER] != 0)
        return 2;
    common_close(&c);
    return RANK_RIGHT;
}

TEST_WITH(processes_gather_without_moving_anything, rank_peer_one_gpu, rank_peer_any_gpus)
{
    for (int world = 2; world <= RANK_PEER_MOST; world += 2)
        rank_children_run((rank_child){.world = world}, rounds_of_process);
    setenv("FSDP_FAKECUDA_QUEUES", "1", 1); /* of each process: what waits there holds up what came later */
    rank_children_run((rank_child){.world = 3}, rounds_of_process);
    unsetenv("FSDP_FAKECUDA_QUEUES");
}

static void nap(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* The rank that made the memory ends first. It has left when the others read once more, and is still there. */
static int owner_ends_early(const rank_child *child, fsdp_context *context)
{
    fsdp__board *board;
    const fsdp__row *first;
    common c;

    if (common_open(context, &c) != FSDP_OK || go_rounds(&c) != FSDP_OK ||
        (child->holds && fsdp_context_set_comm_timeout(context, 0) != FSDP_OK))
        return 1;
    board = rank_peer_board(context);
    first = fsdp__row_at(board, 0);
    while (child->rank > 0 && !fsdp__board_has_left(board, 0))
        nap();
    if (child->rank > 0 && (fsdp__copy_on_device(c.g.stream, c.copy, c.region, NUMEL * sizeof(float)) != FSDP_OK ||
                            check_read(&c, ROUNDS) != FSDP_OK)) {
        fprintf(stderr, "rank %d: %s\n", child->rank, fsdp_last_error());
        return 2;
    }
    if (child->rank > 0 && fsdp__process_is_dead(atomic_load(&first->pid), atomic_load(&first->start_ticks)))
        return 3;
    common_close(&c);
    return RANK_RIGHT;
}

TEST_WITH(a_rank_that_ends_early_leaves_the_memory_to_those_who_read_it, rank_peer_one_gpu, rank_peer_any_gpus)
{
    rank_children_run((rank_child){.world = 3}, owner_ends_early);
    rank_children_run((rank_child){.world = 2, .holds = true}, owner_ends_early); /* comm.timeout is 0 */
}

/* Rank 1 dies in a read, for which the others' streams wait. */
static int dies_in_a_read(const rank_child *child, fsdp_context *context)
{
    fsdp_status status;
    common c;

    if (common_open(context, &c) != FSDP_OK || go_rounds(&c) != FSDP_OK || write_and_gather(&c, 7) != FSDP_OK ||
        fsdp_stream_synchronize(c.g.stream) != FSDP_OK)
        return 1;
    status = fsdp_barrier(c.g.peer); /* from here on another rank may have told that one has died */
    if (child->rank == 1)
        raise(SIGKILL);
    if (status == FSDP_OK)
        status = read_all(&c);
    if (status == FSDP_OK)
        status = fsdp__process_group_await_readers(c.g.peer, c.region, c.g.stream);
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(c.g.stream);
    if (status != FSDP_COMM || !strstr(fsdp_last_error(), "rank 1 has died")) {
        fprintf(stderr, "rank %d: %s: %s\n", child->rank, fsdp_status_text(status), fsdp_last_error());
        return 3;
    }
    common_close(&c);
    return RANK_RIGHT;
}

TEST_WITH(writers_that_wait_for_a_dead_reader_are_released, rank_peer_one_gpu, rank_peer_any_gpus)
{
    rank_children_run((rank_child){.world = 3, .fate = RANK_DIES}, dies_in_a_read);
}

/* The device of rank 1 hangs in a read, and its program waits until the world has ended. */
static int hangs_in_a_read(const rank_child *child, fsdp_context *context)
{
    static atomic_int open;
    fsdp_status status;
    common c;

    if (common_open(context, &c) != FSDP_OK || write_and_gather(&c, 1) != FSDP_OK ||
        fsdp_stream_synchronize(c.g.stream) != FSDP_OK || fsdp_barrier(c.g.peer) != FSDP_OK ||
        fsdp__context_set_comm_ticks(context, child->rank == 0 ? 1000 : 1000000, 50) != FSDP_OK)
        return 1; /* only rank 0 names another one, in that time: nobody waits for it, which may be held up */
    if (child->rank == 1)
        fakecuda.hold(fsdp_stream_native(c.g.stream), &open);
    status = read_all(&c);
    while (child->rank == 1 && status == FSDP_OK && !fsdp__board_aborted(rank_peer_board(context)))
        nap();
    atomic_store(&open, 1);
    if (status == FSDP_OK)
        status = fsdp__process_group_await_readers(c.g.peer, c.region, c.g.stream);
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(c.g.stream);
    if (status != FSDP_COMM || !strstr(fsdp_last_error(), "in group 'world' for that of rank 1")) {
        fprintf(stderr, "rank %d: %s: %s\n", child->rank, fsdp_status_text(status), fsdp_last_error());
        return 3;
    }
    common_close(&c);
    return RANK_RIGHT;
}

TEST_WITH(a_reader_whose_device_hangs_is_named, rank_peer_one_gpu, rank_peer_any_gpus)
{
    rank_children_run((rank_child){.world = 3}, hangs_in_a_read);
}

/* One rank cannot open what the first has made; the others hear why. */
static int cannot_open(const rank_child *child, fsdp_context *context)
{
    bool is = false;
    void *region = NULL;
    rank_peer g;

    if (rank_peer_open(context, RANK_PEER_OUTBOX, &g) != FSDP_OK ||
        fsdp__process_group_find_common(g.peer, g.device, &is) != FSDP_OK || !is)
        return 1;
    if (child->rank == 1)
        fakecuda.fail_call("cudaIpcOpenMemHandle", 1, 801 /* cudaErrorNotSupported */, false);
    if (fsdp__process_group_alloc_common(g.peer, g.device, NUMEL, &region) == FSDP_OK || region)
        return 2;
    fakecuda.mend();
    if (!strstr(fsdp_last_error(), "cudaIpcOpenMemHandle") ||
        (child->rank != 1 && strncmp(fsdp_last_error(), "rank 1: ", 8) != 0)) {
        fprintf(stderr, "rank %d: %s\n", child->rank, fsdp_last_error());
        return 3;
    }
    rank_peer_close(&g);
    return RANK_RIGHT;
}

TEST_WITH(why_a_rank_cannot_open_the_memory_is_told_to_all, rank_peer_one_gpu, rank_peer_any_gpus)
{
    rank_children_run((rank_child){.world = 3}, cannot_open);
}

/* Rank 1 dies before it frees. The others do, and end, though they would wait for ever for one that lives. */
static int dies_before_it_frees(const rank_child *child, fsdp_context *context)
{
    common c;

    if (common_open(context, &c) != FSDP_OK || fsdp_context_set_comm_timeout(context, 0) != FSDP_OK ||
        fsdp_barrier(c.g.staged) != FSDP_OK)
        return 1;
    if (child->rank == 1)
        raise(SIGKILL);
    common_close(&c);
    return RANK_RIGHT;
}

TEST_WITH(a_rank_that_dies_before_it_frees_holds_up_nobody, rank_peer_one_gpu, rank_peer_any_gpus)
{
    rank_children_run((rank_child){.world = 3, .fate = RANK_DIES}, dies_before_it_frees);
}

/* ---- ranks that are threads ---- */

static void rounds_of_thread(fsdp_context *context, void *arg)
{
    fsdp_comm_stats stats;
    common c;

    (void)arg;
    CHECK_OK(common_open(context, &c));
    CHECK_OK(go_rounds(&c));
    fsdp_process_group_stats(c.g.peer, &stats);
    CHECK_EQ(stats.bytes_moved[FSDP_ALL_GATHER], 0);
    common_close(&c);
}

TEST_WITH(threads_do_so_too, rank_peer_one_gpu, rank_peer_any_gpus)
{
    for (int world = 2; world <= RANK_PEER_MOST; world++)
        test_run_ranks(world, rounds_of_thread, NULL);
}

/* The stream of rank 1 stands before it reads; rank 0 has been given the next write by then. */
static void writes_behind_a_slow_reader(fsdp_context *context, void *arg)
{
    atomic_int *open = arg;
    common c;

    CHECK_OK(common_open(context, &c));
    CHECK_OK(write_and_gather(&c, 1));
    CHECK_OK(fsdp_stream_synchronize(c.g.stream));
    if (c.g.rank == 1)
        fakecuda.hold(fsdp_stream_native(c.g.stream), open);
    CHECK_OK(read_all(&c));
    CHECK_OK(fsdp__process_group_await_readers(c.g.peer, c.region, c.g.stream));
    CHECK_OK(fsdp__launch_fill_run(c.g.stream, row_of(&c, c.g.rank), FSDP_F32, part_of(&c, c.g.rank), 5));
    test_meet();
    atomic_store(open, 1);
    CHECK_OK(check_read(&c, 1));
    common_close(&c);
}

TEST_WITH(a_write_waits_for_who_reads, rank_peer_one_gpu, rank_peer_any_gpus)
{
    atomic_int open = 0;

    test_run_ranks(3, writes_behind_a_slow_reader, &open);
}

/* The stream of rank 1 stands before it reads, and rank 1 frees what it reads. It does not wait, and though rank 0 has
 * freed it, too, and all make another region, the memory is there until the stream has read it. */
static void frees_what_it_reads(fsdp_context *context, void *arg)
{
    atomic_int *open = arg;
    void *second = NULL;
    common c;

    CHECK_OK(common_open(context, &c));
    CHECK_OK(write_and_gather(&c, 1));
    CHECK_OK(fsdp_stream_synchronize(c.g.stream));
    if (c.g.rank == 1) {
        fakecuda.hold(fsdp_stream_native(c.g.stream), open);
        CHECK_OK(read_all(&c));
    } else {
        fsdp_process_group_free_memory(c.g.peer, FSDP_MEMORY_SHARED, c.region, NUMEL * sizeof(float));
    }
    test_meet();
    if (c.g.rank == 1) {
        fsdp_process_group_free_memory(c.g.peer, FSDP_MEMORY_SHARED, c.region, NUMEL * sizeof(float));
        CHECK(!atomic_load(open)); /* it has not waited for its stream */
    }
    CHECK_OK(fsdp__process_group_alloc_common(c.g.peer, c.g.device, NUMEL * sizeof(float), &second));
    test_meet();
    atomic_store(open, 1);
    if (c.g.rank == 1)
        CHECK_OK(check_read(&c, 1));
    fsdp_process_group_free_memory(c.g.peer, FSDP_MEMORY_SHARED, second, NUMEL * sizeof(float));
    c.region = NULL;
    common_close(&c);
}

TEST_WITH(a_rank_frees_what_it_reads_and_waits_for_nothing, rank_peer_one_gpu, rank_peer_any_gpus)
{
    atomic_int open = 0;

    test_run_ranks(2, frees_what_it_reads, &open);
}

/* Rank 2 comes late to a call of ranks 1 and 2, since it waits until the others have closed the region of all. */
static void closes_before_another_call(fsdp_context *context, void *arg)
{
    atomic_int *closed = arg;
    int pair[] = {1, 2};
    fsdp_process_group *others = NULL;
    common c;

    CHECK_OK(common_open(context, &c));
    CHECK_OK(fsdp_process_group_create(context, pair, 2, "others", &others));
    if (others)
        CHECK_OK(fsdp_process_group_set_carrier(others, FSDP_CARRIER_PEER));
    for (int round = 0; round < 2; round++) { /* the first call of a group finds its carrier */
        CHECK_OK(write_and_gather(&c, 1));
        CHECK_OK(read_all(&c));
        CHECK_OK(check_read(&c, 1));
        if (others && round == 0)
            CHECK_OK(fsdp_all_reduce(others, c.copy, c.copy, NUMEL, FSDP_F32, FSDP_SUM, c.g.stream));
    }
    if (c.g.rank == 1)
        CHECK_OK(fsdp_all_reduce(others, c.copy, c.copy, NUMEL, FSDP_F32, FSDP_SUM, c.g.stream));
    while (c.g.rank == 2 && atomic_load(closed) < 2)
        nap();
    fsdp_process_group_free_memory(c.g.peer, FSDP_MEMORY_SHARED, c.region, NUMEL * sizeof(float));
    c.region = NULL;
    atomic_fetch_add(closed, 1);
    if (c.g.rank == 2)
        CHECK_OK(fsdp_all_reduce(others, c.copy, c.copy, NUMEL, FSDP_F32, FSDP_SUM, c.g.stream));
    CHECK_OK(fsdp_stream_synchronize(c.g.stream));
    if (c.g.rank > 0) {
        float value = 0;

        CHECK_OK(fsdp__copy_to_host(c.g.stream, &value, c.copy, sizeof value));
        CHECK_OK(fsdp_stream_synchronize(c.g.stream));
        CHECK(value == 200);
    }
    fsdp_process_group_free(others);
    common_close(&c);
}

TEST_WITH(a_region_is_closed_while_a_call_of_another_group_waits, rank_peer_one_gpu, rank_peer_any_gpus)
{
    atomic_int closed = 0;

    test_run_ranks(3, closes_before_another_call, &closed);
}

/* A stream of each rank stands, as if it waited for another group's rank, when a group is freed that is done. If a rank
 * waits for that stream, this test does not end. */
static void frees_a_group_beside_a_stream(fsdp_context *context, void *arg)
{
    atomic_int *open = arg;
    int all[RANK_PEER_MOST] = {0, 1, 2, 3};
    fsdp_process_group *group = NULL;
    common c;

    CHECK_OK(common_open(context, &c));
    CHECK_OK(fsdp_process_group_create(context, all, c.g.size, "done", &group));
    CHECK_OK(fsdp_process_group_set_carrier(group, FSDP_CARRIER_PEER));
    CHECK_OK(fsdp_all_reduce(group, c.copy, c.copy, NUMEL, FSDP_F32, FSDP_SUM, c.g.stream));
    CHECK_OK(fsdp_stream_synchronize(c.g.stream));
    fakecuda.hold(CHECK_PTR(fsdp_stream_native(c.g.other)), open);
    fsdp_process_group_free(group);
    CHECK(!atomic_load(open));
    test_meet();
    atomic_store(open, 1);
    common_close(&c);
}

TEST_WITH(a_group_is_freed_beside_a_stream_that_waits, rank_peer_one_gpu, rank_peer_any_gpus)
{
    for (int world = 2; world <= RANK_PEER_MOST; world++) {
        atomic_int open = 0;

        test_run_ranks(world, frees_a_group_beside_a_stream, &open);
    }
}

static void without_waiting(fsdp_context *context, void *arg)
{
    common c;

    (void)arg;
    CHECK_OK(common_open(context, &c));
    CHECK_OK(write_and_gather(&c, 1));
    CHECK_OK(read_all(&c));
    (void)fsdp__launch_fill_run(c.g.stream, row_of(&c, c.g.rank), FSDP_F32, part_of(&c, c.g.rank), 5);
    (void)fsdp_stream_synchronize(c.g.stream);
    common_close(&c);
}

TEST_WITH(a_write_that_does_not_wait_is_found, rank_peer_one_gpu, rank_peer_any_gpus)
{
    char race[1024] = "";

    test_run_racing_ranks(2, without_waiting, NULL, race, sizeof race);
    CHECK(race[0]);
}

static void have_no_gpu_in_common(fsdp_context *context, void *arg)
{
    bool is = true;
    rank_peer g;

    CHECK_OK(rank_peer_open(context, RANK_PEER_OUTBOX, &g));
    CHECK_OK(fsdp_process_group_set_carrier(g.peer, *(const fsdp_carrier *)arg));
    CHECK_OK(fsdp__process_group_find_common(g.peer, g.device, &is));
    CHECK(!is);
    rank_peer_close(&g);
}

TEST_WITH(ranks_with_two_gpus_or_another_carrier_have_none_in_common, rank_peer_one_gpu, rank_peer_any_gpus)
{
    static const fsdp_carrier peer = FSDP_CARRIER_PEER, staged = FSDP_CARRIER_STAGED;

    setenv("FSDP_FAKECUDA_DEVICES", "2", 1);
    test_run_ranks(3, have_no_gpu_in_common, (void *)(uintptr_t)&peer);
    setenv("FSDP_FAKECUDA_DEVICES", "1", 1);
    test_run_ranks(2, have_no_gpu_in_common, (void *)(uintptr_t)&staged);
    setenv("FSDP_FAKECUDA_WORDS", "0", 1);
    test_run_ranks(2, have_no_gpu_in_common, (void *)(uintptr_t)&peer);
    unsetenv("FSDP_FAKECUDA_WORDS");
}

/* ---- failures ---- */

/* `arg` is the call that fails from when the region is given back on; NULL: the test has said which. */
static void survive(fsdp_context *context, void *arg)
{
    fsdp_status status;
    common c;

    status = common_open(context, &c);
    for (int round = 1; round <= 2 && status == FSDP_OK; round++) {
        status = write_and_gather(&c, round);
        if (status == FSDP_OK)
            status = read_all(&c);
        if (status == FSDP_OK)
            status = check_read(&c, round);
    }
    if (status == FSDP_OK) /* its last use is under way when it is freed */
        status = read_all(&c);
    if (arg)
        fakecuda.fail_call(arg, 1, 801, false);
    fsdp_process_group_free_memory(c.g.peer, FSDP_MEMORY_SHARED, c.region, NUMEL * sizeof(float));
    c.region = NULL;
    if (status != FSDP_OK) /* a failure that only this rank has heard of ends the others' calls */
        fsdp_abort(context, fsdp_last_error());
    common_close(&c);
}

TEST_WITH(a_call_that_fails_when_a_region_is_given_back_hangs_nobody, rank_peer_one_gpu, rank_peer_any_gpus)
{
    static const char *const calls[] = {"cudaStreamQuery", "cudaEventRecord", "cudaEventQuery", "cudaFreeAsync"};

    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++) {
        char text[4096];

        (void)test_try_ranks(2, survive, (void *)(uintptr_t)calls[i], text, sizeof text);
        fakecuda.mend();
        check_nothing_lives();
    }
}

static void survive_as_two(void)
{
    char text[4096];

    (void)test_try_ranks(2, survive, NULL, text, sizeof text);
}

TEST_WITH(a_call_of_the_driver_that_fails_hangs_nobody, rank_peer_one_gpu, rank_peer_any_gpus)
{
    static const char *const calls[] = {"cudaMalloc", "cudaHostRegister", "cuStreamWriteValue32",
                                        "cuStreamWaitValue32"};

    fail_each_call(calls, FSDP__COUNT_OF(calls), 14, 4, survive_as_two);
}

#endif
