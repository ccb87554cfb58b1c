/* test_failure.c - whatever fails on one rank ends the call on all, with one message, and nobody hangs. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/group_calls.h"
#include "comm/health/process.h"
#include "comm/suite_coalesced.h"
#include "comm/transport/arena/shm.h"
#include "support/ranks.h"

enum {
    WORLD = 3
};

static char messages[WORLD][1024];

static fsdp_stream *cpu_stream(fsdp_context *context)
{
    return fsdp_device_stream(fsdp_cpu(context));
}

/* ---- ranks that disagree ---- */

static void disagree(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    int rank = fsdp_process_group_rank(world);
    float x[4096] = {0}, y[3 * 4096] = {0};
    fsdp_status status;

    (void)arg;
    CHECK_OK(fsdp_barrier(world));
    status = rank == 1 ? fsdp_reduce_scatter(world, y, x, 2048, FSDP_BF16, FSDP_SUM, cpu_stream(context))
                       : fsdp_all_gather(world, x, y, 1024, FSDP_F32, cpu_stream(context));
    CHECK_EQ(status, FSDP_MISMATCH);
    snprintf(messages[rank], sizeof messages[rank], "%s", fsdp_last_error());
    CHECK_ERROR(fsdp_barrier(world), FSDP_MISMATCH, "group 'world' is broken: ranks disagree");
}

TEST(ranks_that_disagree_get_one_message_that_names_both_calls)
{
    test_run_ranks(WORLD, disagree, NULL);
    for (int r = 0; r < WORLD; r++)
        CHECK_STRING(messages[r], "ranks disagree in group 'world': call 2 is all_gather of 4096 bytes float32 on "
                                  "rank 0 but reduce_scatter sum of 4096 bytes bfloat16 on rank 1");
}

RANKS_TEST(ranks_with_other_block_sizes_disagree, WORLD)
{
    fsdp_process_group *world = fsdp_world(context);
    int rank = fsdp_process_group_rank(world);
    float x[60] = {0}, y[60] = {0};
    fsdp_sharded_buffer buffers[2] = {{x, y, 20, 10, 1, FSDP_F32, FSDP_F32, FSDP_F32},
                                      {x + 20, y + 20, rank == 2 ? 11 : 10, 10, 1, FSDP_F32, FSDP_F32, FSDP_F32}};

    CHECK_ERROR(
        fsdp_all_gather_coalesced(world, buffers, 2, cpu_stream(context)), FSDP_MISMATCH,
        "call 1 is all_gather_coalesced of 2 buffers with 80 bytes float32 on rank 0 but all_gather_coalesced of 2 "
        "buffers with 80 bytes float32 on rank 2 with other sizes or dtypes of the buffers");
}

RANKS_TEST(ranks_with_other_flags_disagree, WORLD)
{
    fsdp_process_group *world = fsdp_world(context);
    uint8_t flags[4] = {1, 1, 1, 1};

    CHECK_ERROR(fsdp__process_group_any(world, &(fsdp__any){.flags = flags,
                                                            .count = fsdp_process_group_rank(world) == 2 ? 3 : 4,
                                                            .stream = cpu_stream(context)}),
                FSDP_MISMATCH, "on rank 2 with another number of flags");
}

typedef struct labelled {
    const char *labels[WORLD];
    fsdp_stream_mode mode;
    bool reduce;
    const char *expected; /* NULL: they agree */
} labelled;

static void gather_labelled(fsdp_context *context, void *arg)
{
    const labelled *l = arg;
    fsdp_process_group *world = fsdp_world(context);
    int rank = fsdp_process_group_rank(world);
    float x[60] = {0}, y[60] = {0};
    fsdp_sharded_buffer buffers[2] = {{x, y, 20, 10, 1, FSDP_F32, FSDP_F32, FSDP_F32},
                                      {x + 20, y + 20, 20, 10, 1, FSDP_F32, FSDP_F32, FSDP_F32}};
    fsdp_reduce_options options = {.op = FSDP_AVG};
    char label[200];
    fsdp_stream *stream;
    fsdp_status status;

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), l->mode, &stream));
    fsdp__process_group_set_label(world, "embedding, and a long one, so that all its bytes are seen to go");
    CHECK_OK(fsdp_all_gather_coalesced(world, buffers, 2, stream));
    if (l->labels[rank]) {
        snprintf(label, sizeof label, "%s", l->labels[rank]);
        fsdp__process_group_set_label(world, label);
        memset(label, '?', sizeof label); /* it was copied */
    } else {
        fsdp__process_group_set_label(world, NULL);
    }
    CHECK_OK(fsdp_all_reduce(world, x, x, 1, FSDP_F32, FSDP_SUM, stream)); /* carries none */
    CHECK_OK(fsdp_barrier(world));
    status = l->reduce ? fsdp_reduce_scatter_coalesced(world, buffers, 2, &options, stream)
                       : fsdp_all_gather_coalesced(world, buffers, 2, stream);
    fsdp__process_group_set_label(world, "later"); /* the call has its own */
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(stream);
    CHECK_EQ(status, l->expected ? FSDP_MISMATCH : FSDP_OK);
    if (l->expected)
        CHECK_CONTAINS(fsdp_last_error(), l->expected);
    fsdp_stream_free(stream);
}

TEST(ranks_that_disagree_are_told_what_each_was_doing)
{
    static const char *const long_label =
        "model.layers.0 and model.layers.1 and model.layers.2 and model.layers.3 and model.layers.4";
    labelled all[] = {
        {.labels = {"buffers.0", "buffers.0", "buffers.0"}},
        {.labels = {NULL, "", NULL}},
        {.labels = {long_label, long_label, long_label}},
        {.labels = {"buffers.0", "buffers.0", "buffers.1"},
         .expected =
             "ranks disagree in group 'world': call 4 is all_gather_coalesced of 2 buffers with 80 bytes float32 "
             "for 'buffers.0' on rank 0 but all_gather_coalesced of 2 buffers with 80 bytes float32 for 'buffers.1' "
             "on rank 2"},
        {.labels = {"buffers.0", NULL, "buffers.0"},
         .reduce = true,
         .expected =
             "call 4 is reduce_scatter_coalesced average of 2 buffers with 80 bytes float32 for 'buffers.0' on rank "
             "0 but reduce_scatter_coalesced average of 2 buffers with 80 bytes float32 on rank 1"},
        {.labels = {"x", long_label, "x"},
         .reduce = true,
         .expected = "for 'x' on rank 0 but reduce_scatter_coalesced average of 2 buffers with 80 bytes float32 for "
                     "'model.layers.0 and model.layers.1 and model.layers.2 and mod...' on rank 1"},
        {.labels = {long_label, "embedding, and a long one, so that all its bytes are seen to go",
                    "012345678901234567890123456789012345678901234567890123456789abc"},
         .expected =
             "for 'model.layers.0 and model.layers.1 and model.layers.2 and mod...' on rank 0 but "
             "all_gather_coalesced of 2 buffers with 80 bytes float32 for 'embedding, and a long one, so that all "
             "its bytes are seen to go' on rank 1"},
        {.labels = {"012345678901234567890123456789012345678901234567890123456789abc",
                    "012345678901234567890123456789012345678901234567890123456789abc",
                    "012345678901234567890123456789012345678901234567890123456789abcd"},
         .expected = "789abc' on rank 0 but all_gather_coalesced of 2 buffers with 80 bytes float32 for "
                     "'012345678901234567890123456789012345678901234567890123456789...' on rank 2"},
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int mode = 0; mode < 2; mode++) {
            all[i].mode = mode ? FSDP_STREAM_WORKER : FSDP_STREAM_INLINE;
            test_run_ranks(WORLD, gather_labelled, &all[i]);
        }
}

/* ---- ranks that give up ---- */

RANKS_TEST(an_abort_reaches_everybody, WORLD)
{
    fsdp_process_group *world = fsdp_world(context);
    int pair[2] = {0, 2}, rank = fsdp_process_group_rank(world);
    fsdp_process_group *others = NULL;

    CHECK_OK(fsdp_process_group_create(context, pair, 2, "others", &others));
    if (rank == 1) {
        fsdp_abort(context, "no more coffee");
        fsdp_abort(context, "and no tea");
        CHECK_ERROR(fsdp_barrier(world), FSDP_COMM, "group 'world' is broken: no more coffee");
        return;
    }
    CHECK_ERROR(fsdp_barrier(world), FSDP_COMM, "rank 1 failed: no more coffee");
    /* groups without the failed rank end too: their work is of no use any more */
    CHECK_ERROR(fsdp_barrier(others), FSDP_COMM, "rank 1 failed: no more coffee");
    fsdp_process_group_free(others);
}

/* Ranks have agreed whose failure it is; rank 1 ends the world for it. */
RANKS_TEST(an_abort_names_the_rank_once, WORLD)
{
    fsdp_process_group *world = fsdp_world(context);
    int rank = fsdp_process_group_rank(world);

    (void)fsdp_agree(world, rank == 2 ? FSDP_FAIL(FSDP_IO, "no more coffee") : FSDP_OK);
    CHECK_STRING(fsdp_last_error(), "rank 2: no more coffee");
    if (rank == 1)
        fsdp_abort(context, NULL);
    else
        CHECK_ERROR(fsdp_barrier(world), FSDP_COMM, "rank 2 failed: no more coffee");
    CHECK(!strstr(fsdp_last_error(), "rank 1"));
}

RANKS_TEST(waiting_for_a_rank_that_left_is_an_error, WORLD)
{
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    if (fsdp_context_rank(context) != 1)
        CHECK_ERROR(fsdp_barrier(fsdp_world(context)), FSDP_COMM, "rank 1 has left");
}

static fsdp_status body_fails(fsdp_context *context, void *arg)
{
    (void)arg;
    if (fsdp_context_rank(context) == 2)
        return FSDP_FAIL(FSDP_NOT_FOUND, "no file 'x'");
    FSDP_TRY(fsdp_barrier(fsdp_world(context)));
    return FSDP_OK;
}

static fsdp_status body_fails_alone(fsdp_context *context, void *arg)
{
    (void)context;
    (void)arg;
    return FSDP_FAIL(FSDP_NOT_FOUND, "no file 'x'");
}

static fsdp_status body_works(fsdp_context *context, void *arg)
{
    (void)arg;
    FSDP_TRY(fsdp_barrier(fsdp_world(context)));
    return FSDP_OK;
}

TEST(a_body_that_fails_ends_its_world)
{
    CHECK_OK(fsdp_run_threads(WORLD, NULL, body_works, NULL));
    CHECK_ERROR(fsdp_run_threads(WORLD, NULL, body_fails, NULL), FSDP_NOT_FOUND, "rank 2: no file 'x'");
    CHECK_STATUS(fsdp_run_threads(1, NULL, body_fails_alone, NULL), FSDP_NOT_FOUND);
    CHECK_STRING(fsdp_last_error(), "no file 'x'");
}

/* ---- the n-th resource fails ---- */

static void work(fsdp_context *context, fsdp_status *out)
{
    fsdp_process_group *world = fsdp_world(context), *group = NULL;
    int ranks[WORLD] = {0, 1, 2};
    float x[600] = {0}, y[600] = {0};
    fsdp_sharded_buffer block = {
        .unsharded = x, .shard = y, .numel = 10, .chunk = 4, .unsharded_dtype = FSDP_F32, .shard_dtype = FSDP_F32};
    fsdp_reduce_options reduce = {.op = FSDP_SUM};
    fsdp_stream *stream = NULL, *worker = NULL;
    void **objects = NULL, *shared = NULL, *symmetric = NULL;
    size_t *sizes = NULL;
    fsdp_status status = FSDP_OK;

    if (!fsdp_cpu(context)) { /* a rank that fails before it joins a call says so */
        fsdp_abort(context, NULL);
        *out = FSDP_NO_MEMORY;
        return;
    }
    stream = cpu_stream(context);
    FSDP_TRY_GOTO(status, fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &worker), out);
    FSDP_TRY_GOTO(status, fsdp_all_gather(world, x, y, 100, FSDP_F32, stream), out);
    FSDP_TRY_GOTO(status, fsdp_process_group_create(context, ranks, WORLD, "all", &group), out);
    FSDP_TRY_GOTO(status, fsdp_all_gather_coalesced(group, &block, 1, worker), out);
    FSDP_TRY_GOTO(status, fsdp_reduce_scatter_coalesced(group, &block, 1, &reduce, worker), out);
    FSDP_TRY_GOTO(status, fsdp_stream_synchronize(worker), out);
    FSDP_TRY_GOTO(status, fsdp_gather_objects(group, x, 5, &objects, &sizes), out);
    FSDP_TRY_GOTO(status, fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, 100, &shared), out);
    FSDP_TRY_GOTO(status, fsdp_process_group_alloc(world, FSDP_MEMORY_SYMMETRIC, 100, &symmetric), out);
    FSDP_TRY_GOTO(status, fsdp_all_reduce(world, x, y, 500, FSDP_F32, FSDP_MAX, stream), out);
    FSDP_TRY_GOTO(status, fsdp_agree(world, FSDP_OK), out);
    FSDP_TRY_GOTO(status, fsdp_barrier(world), out);
out:
    if (status != FSDP_OK)
        fsdp_abort(context, NULL);
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, shared, 100);
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SYMMETRIC, symmetric, 100);
    if (objects)
        fsdp_objects_free(group, objects, sizes);
    if (worker)
        (void)fsdp_stream_synchronize(worker);
    fsdp_stream_free(worker);
    fsdp_process_group_free(group);
    *out = status;
}

typedef struct fault {
    fsdp__fault_kind kind;
    long nth;
    bool hit;
} fault;

static void quiet(void *arg, fsdp_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static void work_with_fault(fsdp_context *context, void *arg)
{
    fault *f = arg;
    fsdp_status status = FSDP_OK;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, quiet, NULL);
    if (fsdp_context_rank(context) == 1)
        fsdp__fault_arm(f->kind, f->nth);
    work(context, &status);
    if (fsdp_context_rank(context) == 1) {
        f->hit = fsdp__fault_hit(f->kind);
        fsdp__fault_arm(f->kind, 0);
        CHECK_EQ(status != FSDP_OK, f->hit);
    }
    if (status != FSDP_OK)
        CHECK(*fsdp_last_error() != '\0');
}

static void every_nth(fsdp__fault_kind kind)
{
    fault f = {.kind = kind};

    do {
        f.nth++;
        test_run_ranks(WORLD, work_with_fault, &f);
    } while (f.hit);
    CHECK(f.nth > 5);
}

CALL_TEST(the_nth_collective_may_fail, every_nth(FSDP__FAULT_COLLECTIVE))
CALL_TEST(the_nth_allocation_may_fail, every_nth(FSDP__FAULT_ALLOCATION))

TEST(making_a_world_may_fail)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *contexts[2] = {NULL};
        fsdp_status status = fsdp_context_create_threads(2, NULL, contexts);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_context_free(contexts[0]);
        fsdp_context_free(contexts[1]);
    }
}

RANKS_TEST(a_local_failure_becomes_everybodys, WORLD)
{
    fsdp_process_group *world = fsdp_world(context);
    fsdp_status mine =
        fsdp_context_rank(context) >= 1 ? FSDP_FAIL(FSDP_IO, "disk %d is full", fsdp_context_rank(context)) : FSDP_OK;

    CHECK_ERROR(fsdp_agree(world, mine), FSDP_IO, "rank 1: disk 1 is full");
    CHECK_OK(fsdp_agree(world, FSDP_OK)); /* nothing is broken */
}

RANKS_TEST(a_failure_of_who_is_alone_has_no_number, 1)
{
    CHECK_EQ(fsdp_agree(fsdp_world(context), FSDP_FAIL(FSDP_IO, "the disk is full")), FSDP_IO);
    CHECK_STRING(fsdp_last_error(), "the disk is full");
    CHECK_OK(fsdp_agree(fsdp_world(context), FSDP_OK));
}

/* ---- memory of a call that failed ---- */

static void *abort_soon(void *context)
{
    static atomic_uint round;

    for (unsigned wait = atomic_fetch_add(&round, 1) % 10; wait > 0; wait--)
        usleep(100);
    fsdp_abort(context, "in the middle of a call");
    return NULL;
}

/* The world ends while ranks read what their peers have lent them; each takes its own away as soon as its call is
 * over. */
static void take_memory_away(fsdp_context *context, void *arg)
{
    enum {
        COUNT = 300000
    };
    size_t bytes = COUNT * sizeof(float);
    fsdp_process_group *world = fsdp_world(context);
    pthread_t aborter;
    void *values = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fsdp_status status = FSDP_OK;

    (void)arg;
    CHECK(values != MAP_FAILED);
    CHECK_EQ(pthread_create(&aborter, NULL, abort_soon, context), 0);
    for (int i = 0; status == FSDP_OK; i++)
        status = i % 2 ? fsdp_all_reduce(world, values, values, COUNT, FSDP_F32, FSDP_SUM, cpu_stream(context))
                       : fsdp_broadcast(world, values, COUNT, FSDP_F32, i / 2 % WORLD, cpu_stream(context));
    CHECK_EQ(munmap(values, bytes), 0);
    CHECK_EQ(status, FSDP_COMM);
    CHECK_EQ(pthread_join(aborter, NULL), 0);
}

TEST(memory_of_a_call_that_failed_may_be_unmapped)
{
    for (int round = 0; round < 30; round++)
        test_run_ranks(WORLD, take_memory_away, NULL);
}

/* ---- processes that die, with nobody watching them ---- */

static void rank_process(int fd, int rank)
{
    fsdp_context_options options = {.rank = rank, .world_size = WORLD, .threads = 1};
    fsdp_context *context = NULL;
    int code = 1;

    if (fsdp__shm_join(fd, false, &options, &context) != FSDP_OK)
        _exit(2);
    if (rank == 1)
        raise(SIGKILL);
    if (fsdp_barrier(fsdp_world(context)) == FSDP_COMM && strstr(fsdp_last_error(), "rank 1 has died"))
        code = 42;
    fsdp_context_free(context);
    _exit(code);
}

TEST(a_killed_process_is_named_without_a_launcher)
{
    fsdp__arena *arena = NULL;
    pid_t pids[WORLD];
    int status;

    CHECK_OK(fsdp__shm_create(WORLD, &arena));
    for (int r = 0; r < WORLD; r++) {
        pids[r] = fork();
        if (pids[r] == 0)
            rank_process(arena->fd, r);
    }
    for (int r = 0; r < WORLD; r += 2) {
        CHECK_EQ(waitpid(pids[r], &status, 0), pids[r]);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), 42);
    }
    CHECK_EQ(waitpid(pids[1], &status, 0), pids[1]); /* only now: it was a zombie all the time */
    fsdp__arena_unref(arena);
}

static void *be_hit(void *arg)
{
    (void)raise(SIGFPE);
    return arg;
}

/* In a child, whose output goes to `out`. */
static _Noreturn void be_hit_in_thread(int out)
{
    pthread_t thread;

    (void)dup2(out, STDERR_FILENO);
    if (pthread_create(&thread, NULL, be_hit, NULL) == 0)
        pthread_join(thread, NULL);
    _exit(0);
}

TEST(a_signal_in_a_thread_of_ranks_is_said_with_its_case)
{
    char text[256] = "";
    int ends[2], status;
    pid_t child;

    CHECK_EQ(pipe(ends), 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0)
        be_hit_in_thread(ends[1]);
    (void)close(ends[1]);
    CHECK(read(ends[0], text, sizeof text - 1) >= 0);
    (void)close(ends[0]);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_CONTAINS(text, "SIGFPE in another thread of the case a_signal_in_a_thread_of_ranks_is_said_with_its_case");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGFPE);
}

TEST(only_the_memory_of_a_world_can_be_joined)
{
    fsdp_context *context = NULL;
    fsdp__arena *arena = NULL;
    FILE *file = tmpfile();

    CHECK_ERROR(fsdp__shm_join(999, false, &(fsdp_context_options){.world_size = 1}, &context), FSDP_IO,
                "cannot use file descriptor 999 as shared memory");
    CHECK_ERROR(fsdp__shm_join(fileno(file), false, &(fsdp_context_options){.world_size = 1}, &context), FSDP_FORMAT,
                "is not the shared memory of a world");
    fclose(file);
    CHECK_OK(fsdp__shm_create(1, &arena));
    CHECK_ERROR(fsdp__shm_join(arena->fd, false, &(fsdp_context_options){.world_size = 2}, &context), FSDP_INVALID,
                "of a world of 1 ranks, this is rank 0 of 2");
    CHECK_OK(fsdp__shm_join(arena->fd, false, &(fsdp_context_options){.world_size = 1}, &context));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    fsdp_context_free(context);
    CHECK_ERROR(fsdp__shm_join(arena->fd, false, &(fsdp_context_options){.world_size = 1}, &context), FSDP_STATE,
                "rank 0 has joined before");
    fsdp__arena_unref(arena);
}

/* As if the ranks had been started where processes are counted otherwise. */
TEST(ranks_that_count_processes_otherwise_are_refused)
{
    fsdp_context *context = NULL;
    fsdp__arena *arena = NULL;

    CHECK_OK(fsdp__shm_create(2, &arena));
    CHECK_EQ(atomic_load(&arena->board->pids), fsdp__process_namespace());
    atomic_store(&arena->board->pids, fsdp__process_namespace() + 1);
    CHECK_ERROR(fsdp__shm_join(arena->fd, false, &(fsdp_context_options){.world_size = 2, .rank = 1}, &context),
                FSDP_UNSUPPORTED, "rank 1 is in another PID namespace than other ranks of its machine");
    /* It is missed. */
    CHECK_ERROR(fsdp__shm_join(arena->fd, false, &(fsdp_context_options){.world_size = 2}, &context), FSDP_UNSUPPORTED,
                "rank 0 is in another PID namespace");
    CHECK(fsdp__board_aborted(arena->board));
    CHECK_CONTAINS(arena->board->abort_text, "rank 1 failed: rank 1 is in another PID namespace");
    fsdp__arena_unref(arena);
}
