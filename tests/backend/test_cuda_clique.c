/* GPUs that NCCL joins (device/clique.h), on fake GPUs and a fake NCCL: what each call gives, members that differ, are
 * interrupted or fail, and libraries that are missing or too old. */
#include "backend/cuda/nccl_calls.h"
#include "support/test.h"

#include <stdatomic.h>
#include <unistd.h>

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#include "device/clique.h"
#include "device/device.h"
#include "oracle/oracle.h"

#if __has_include(<nccl.h>)
#include <nccl.h>
#define SAME(name, value) _Static_assert(nccl##name == (value), "the number of nccl" #name);
FSDP__NCCL_NUMBERS(SAME)
#undef SAME
_Static_assert(NCCL_UNIQUE_ID_BYTES == FSDP__CLIQUE_ID_BYTES, "an id");
#define PLACE(ours, theirs)                                                             \
    _Static_assert(offsetof(fsdp__nccl_config, ours) == offsetof(ncclConfig_t, theirs), \
                   "where the configuration has " #theirs);
PLACE(size, size)
PLACE(magic, magic)
PLACE(version, version)
PLACE(blocking, blocking)
PLACE(cga_cluster_size, cgaClusterSize)
PLACE(min_ctas, minCTAs)
PLACE(max_ctas, maxCTAs)
PLACE(net_name, netName)
PLACE(split_share, splitShare)
#if NCCL_VERSION_CODE >= FSDP__NCCL_WINDOWS
PLACE(traffic_class, trafficClass)
PLACE(comm_name, commName)
PLACE(collnet_enable, collnetEnable)
PLACE(cta_policy, CTAPolicy)
PLACE(shrink_share, shrinkShare)
PLACE(nvls_ctas, nvlsCTAs)
_Static_assert(NCCL_WIN_COLL_SYMMETRIC == FSDP__NCCL_SYMMETRIC, "a flag");
#endif
#undef PLACE
#endif

enum {
    MOST = 4,
    COUNT = 70001, /* elements, which no letter holds */
    SYSTEM_ERROR = 2
};

typedef struct world {
    fsdp_context *context;
    int members;
    const fsdp__clique_ops *ops;
    struct member {
        fsdp_device *device;
        fsdp_stream *stream;
        fsdp__clique *clique;
        void *send, *recv; /* MOST * COUNT elements of up to 4 bytes */
    } m[MOST];
} world;

/* ---- a world ---- */

static void open_devices(world *w, int members)
{
    *w = (world){.context = test_context(), .members = members};
    setenv("FSDP_FAKECUDA_DEVICES", "4", 1);
    for (int i = 0; i < members; i++) {
        struct member *m = &w->m[i];

        m->device = CHECK_PTR(fsdp_cuda(w->context, i));
        CHECK_OK(fsdp_stream_create(m->device, FSDP_STREAM_WORKER, &m->stream));
        CHECK_OK(fsdp__device_alloc(m->device, (size_t)MOST * COUNT * 4, FSDP_MEMORY_WORKSPACE, &m->send));
        CHECK_OK(fsdp__device_alloc(m->device, (size_t)MOST * COUNT * 4, FSDP_MEMORY_WORKSPACE, &m->recv));
    }
    w->ops = CHECK_PTR(fsdp__device_cliques(w->m[0].device));
}

static void close_devices(world *w)
{
    char text[128];

    for (int i = 0; i < w->members; i++) {
        struct member *m = &w->m[i];

        (w->ops->free)(m->clique);
        (void)fsdp_stream_synchronize(m->stream);
        fsdp_stream_free(m->stream);
        fsdp__device_free(m->device, m->send, (size_t)MOST * COUNT * 4, FSDP_MEMORY_WORKSPACE);
        fsdp__device_free(m->device, m->recv, (size_t)MOST * COUNT * 4, FSDP_MEMORY_WORKSPACE);
    }
    fsdp_context_free(w->context);
    unsetenv("FSDP_FAKECUDA_DEVICES");
    if (fakecuda.live(text, sizeof text) != 0)
        TEST_FAIL("left over: %s", text);
}

static fsdp_status await_idle(const world *w, int i)
{
    bool idle = false;

    while (!idle) {
        FSDP_TRY(w->ops->look(w->m[i].clique, &idle));
        (void)usleep(50);
    }
    return FSDP_OK;
}

static fsdp_status join_all(world *w)
{
    fsdp__clique_place place = {.members = w->members};
    int version;

    FSDP_TRY(w->ops->open(w->m[0].device, &version));
    FSDP_TRY(w->ops->name_clique(w->m[0].device, place.id));
    for (int i = 0; i < w->members; i++) {
        place.member = i;
        FSDP_TRY(w->ops->join(w->m[i].device, &place, &w->m[i].clique));
    }
    for (int i = 0; i < w->members; i++)
        FSDP_TRY(await_idle(w, i));
    return FSDP_OK;
}

static void open_world(world *w, int members)
{
    open_devices(w, members);
    CHECK_OK(join_all(w));
}

static void leave_all(const world *w)
{
    for (int i = 0; i < w->members; i++)
        CHECK_OK(w->ops->leave(w->m[i].clique));
    for (int i = 0; i < w->members; i++)
        CHECK_OK(await_idle(w, i));
}

/* ---- calls ---- */

typedef struct issued {
    const world *w;
    int member, count;
    fsdp__clique_call calls[3];
} issued;

static fsdp_status issue(fsdp_stream *stream, const void *argument)
{
    const issued *k = argument;

    FSDP_TRY(k->w->ops->issue(k->w->m[k->member].clique, k->calls, k->count, stream));
    return await_idle(k->w, k->member);
}

/* Queues a call of `kind` on one member, with its own buffers. */
static void queue_call(const world *w, int member, fsdp__clique_kind kind, int64_t count, fsdp_dtype dtype)
{
    const struct member *m = &w->m[member];
    issued k = {.w = w, .member = member, .count = 1};

    k.calls[0] = (fsdp__clique_call){
        .kind = kind, .send = m->send, .recv = m->recv, .count = count, .dtype = dtype, .root = w->members - 1};
    CHECK_OK(fsdp__stream_enqueue(m->stream, issue, &k, sizeof k));
}

static void synchronize_all(const world *w)
{
    for (int i = 0; i < w->members; i++)
        CHECK_OK(fsdp_stream_synchronize(w->m[i].stream));
}

/* What member m sends at element i: small integers, which all dtypes hold exactly, and sums of four as well. */
static double sent(int m, int64_t i)
{
    return (double)((i * 7 + m * 13) % 31);
}

static double expected(const world *w, fsdp__clique_kind kind, int member, int64_t i, int64_t count)
{
    double sum = 0.0;
    int64_t at = kind == FSDP__CLIQUE_SCATTER ? member * count + i : i;

    switch (kind) {
    case FSDP__CLIQUE_GATHER:
        return sent((int)(i / count), i % count);
    case FSDP__CLIQUE_BROADCAST:
        return sent(w->members - 1, i);
    case FSDP__CLIQUE_ALL_TO_ALL:
        return sent((int)(i / count), member * count + i % count);
    default:
        for (int m = 0; m < w->members; m++)
            sum += sent(m, at);
        return sum;
    }
}

static void check_call(const world *w, fsdp__clique_kind kind, int64_t count, fsdp_dtype dtype)
{
    int64_t all = w->members * count,
            gives = kind == FSDP__CLIQUE_SCATTER || kind == FSDP__CLIQUE_ALL_TO_ALL ? all : count,
            takes = kind == FSDP__CLIQUE_GATHER || kind == FSDP__CLIQUE_ALL_TO_ALL ? all : count;
    size_t bytes = (size_t)all * fsdp_dtype_size(dtype);
    void *host = CHECK_PTR(malloc(bytes + 1));

    for (int m = 0; m < w->members; m++) {
        for (int64_t i = 0; i < gives; i++)
            oracle_put(dtype, host, i, sent(m, i));
        CHECK_OK(fsdp__copy_to_device(w->m[m].stream, w->m[m].send, host, bytes));
    }
    for (int m = 0; m < w->members; m++)
        queue_call(w, m, kind, count, dtype);
    synchronize_all(w);
    for (int m = 0; m < w->members; m++) {
        CHECK_OK(fsdp__copy_to_host(w->m[m].stream, host, w->m[m].recv, bytes));
        for (int64_t i = 0; i < takes; i++)
            if (oracle_get(dtype, host, i) != expected(w, kind, m, i, count))
                TEST_FAIL("call %d of %s on member %d of %d: element %lld is %g, not %g", kind, fsdp_dtype_name(dtype),
                          m, w->members, (long long)i, oracle_get(dtype, host, i), expected(w, kind, m, i, count));
    }
    free(host);
}

static void check_all_calls(int members)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_I32, FSDP_U8};
    world w;

    open_world(&w, members);
    for (int kind = 0; kind < FSDP__CLIQUE_KINDS; kind++) {
        for (size_t d = 0; d < FSDP__COUNT_OF(dtypes); d++)
            check_call(&w, (fsdp__clique_kind)kind, 33, dtypes[d]);
        check_call(&w, (fsdp__clique_kind)kind, COUNT, FSDP_F32);
        check_call(&w, (fsdp__clique_kind)kind, 0, FSDP_F32);
    }
    leave_all(&w);
    close_devices(&w);
}

TEST(calls_give_what_they_say)
{
    for (int members = 1; members <= MOST; members++)
        check_all_calls(members);
    setenv("FSDP_FAKENCCL_VERSION", "22000", 1); /* which has no all-to-all */
    check_all_calls(3);
}

TEST(several_calls_are_issued_as_one)
{
    world w;

    open_world(&w, 3);
    for (int i = 0; i < 3; i++) {
        const struct member *m = &w.m[i];
        issued k = {.w = &w, .member = i, .count = 3};

        for (int c = 0; c < 3; c++) /* everybody's byte is its number, at a root of its own */
            k.calls[c] = (fsdp__clique_call){.kind = FSDP__CLIQUE_BROADCAST,
                                             .send = m->send,
                                             .recv = (char *)m->recv + 100 * c,
                                             .count = 100,
                                             .dtype = FSDP_U8,
                                             .root = c};
        CHECK_OK(fsdp__copy_to_device(m->stream, m->send, (char[]){(char)i}, 1));
        CHECK_OK(fsdp__stream_enqueue(m->stream, issue, &k, sizeof k));
    }
    synchronize_all(&w);
    for (int i = 0; i < 3; i++)
        for (int c = 0; c < 3; c++) {
            char got = -1;

            CHECK_OK(fsdp__copy_to_host(w.m[i].stream, &got, (char *)w.m[i].recv + 100 * c, 1));
            CHECK_EQ(got, c);
        }
    leave_all(&w);
    close_devices(&w);
}

/* ---- members that differ, or are interrupted ---- */

/* Sends what is written to stderr to a file, and back. */
static int redirect(const char *path)
{
    int kept = dup(STDERR_FILENO);

    fflush(stderr);
    CHECK(freopen(path, "w", stderr) != NULL);
    return kept;
}

static void restore(int kept)
{
    fflush(stderr);
    CHECK(dup2(kept, STDERR_FILENO) == STDERR_FILENO);
    close(kept);
}

static fsdp_status say(fsdp_stream *stream, const void *argument)
{
    (void)stream;
    **(atomic_bool *const *)argument = true;
    return FSDP_OK;
}

static fsdp_status settle_and_say(fsdp_stream *stream, const void *argument)
{
    fsdp_status status = fsdp__stream_settle(stream);

    (void)say(stream, argument);
    return status;
}

/* Waits until what was queued on a member's stream is issued, whatever the device makes of it. */
static void await_issued(const world *w, int member)
{
    atomic_bool through = false, *flag = &through;

    CHECK_OK(fsdp__stream_enqueue(w->m[member].stream, say, &flag, sizeof flag));
    while (!through)
        (void)usleep(50);
}

/* On a member's stream a call of one clique lies behind one of another, which hangs. They are interrupted in the order
 * in which the first waits for the second. */
TEST(calls_behind_one_that_hangs_can_be_interrupted_first)
{
    world w, other;

    open_world(&w, 2);
    other = w;
    CHECK_OK(join_all(&other));
    queue_call(&other, 0, FSDP__CLIQUE_GATHER, 10, FSDP_F32); /* alone */
    for (int i = 0; i < 2; i++)
        queue_call(&w, i, FSDP__CLIQUE_GATHER, 10, FSDP_F32);
    for (int i = 0; i < 2; i++)
        await_issued(&w, i);
    for (int i = 0; i < 2; i++)
        w.ops->interrupt(w.m[i].clique);
    CHECK(w.ops->busy(w.m[0].clique));
    for (int i = 0; i < 2; i++)
        other.ops->interrupt(other.m[i].clique);
    synchronize_all(&w);
    CHECK(!w.ops->busy(w.m[0].clique));
    for (int i = 0; i < 2; i++)
        (other.ops->free)(other.m[i].clique);
    close_devices(&w);
}

/* Returns when the file has the text, which somebody is about to print. */
static void await_text(const char *path, const char *text)
{
    while (fflush(stderr), !strstr(test_read_file(path, NULL), text))
        (void)usleep(1000);
}

/* Two members issue what does not fit, and are interrupted when one has told. */
static void check_hangs(fsdp__clique_kind kind, int64_t count, const char *told)
{
    char *directory = test_directory(), *path = test_path(directory, "stderr");
    atomic_bool over = false;
    atomic_bool *flag = &over;
    int kept;
    world w;

    setenv("FSDP_FAKENCCL_TELL", "1", 1);
    open_world(&w, 2);
    kept = redirect(path);
    queue_call(&w, 0, FSDP__CLIQUE_GATHER, 10, FSDP_F32);
    queue_call(&w, 1, kind, count, FSDP_F32);
    for (int i = 0; i < 2; i++)
        await_issued(&w, i);
    CHECK_OK(fsdp__stream_enqueue(w.m[0].stream, settle_and_say, &flag, sizeof flag));
    await_text(path, told);
    CHECK(!over);
    for (int i = 0; i < 2; i++)
        w.ops->interrupt(w.m[i].clique);
    synchronize_all(&w);
    restore(kept);
    queue_call(&w, 0, FSDP__CLIQUE_GATHER, 10, FSDP_F32);
    CHECK_ERROR(fsdp_stream_synchronize(w.m[0].stream), FSDP_COMM, "were interrupted");
    test_directory_free(directory);
    close_devices(&w);
    unsetenv("FSDP_FAKENCCL_TELL");
}

TEST(members_that_make_different_calls_hang_until_they_are_interrupted)
{
    check_hangs(FSDP__CLIQUE_GATHER, 11, "calls AllGather of 11 elements of type 7");
    check_hangs(FSDP__CLIQUE_REDUCE, 10, "calls AllReduce of 10");
    check_hangs(FSDP__CLIQUE_ALL_TO_ALL, 10, "calls AlltoAll of 10");
}

TEST(a_member_that_waits_for_nobody_to_come_is_interrupted)
{
    fsdp__clique_place place = {.members = 2, .member = 0};
    bool idle = true;
    world w;

    open_devices(&w, 2);
    CHECK_OK(w.ops->name_clique(w.m[0].device, place.id));
    CHECK_OK(w.ops->join(w.m[0].device, &place, &w.m[0].clique));
    CHECK_OK(w.ops->look(w.m[0].clique, &idle));
    CHECK(!idle);
    w.ops->interrupt(w.m[0].clique);
    CHECK_ERROR(w.ops->look(w.m[0].clique, &idle), FSDP_COMM, "were interrupted");
    close_devices(&w);
}

TEST(members_of_one_gpu_are_refused_unless_nccl_is_told_otherwise)
{
    fsdp__clique_place place = {.members = 2};
    bool idle = false;
    world w;

    open_devices(&w, 1);
    for (int shared = 0; shared < 2; shared++) {
        fsdp__clique *both[2];

        if (shared)
            setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
        CHECK_OK(w.ops->name_clique(w.m[0].device, place.id));
        for (place.member = 0; place.member < 2; place.member++)
            CHECK_OK(w.ops->join(w.m[0].device, &place, &both[place.member]));
        idle = false;
        while (!idle && w.ops->look(both[0], &idle) == FSDP_OK)
            (void)usleep(50);
        CHECK_EQ(idle, shared);
        if (!shared)
            CHECK_CONTAINS(fsdp_last_error(), "Duplicate GPU detected; ranks that share a GPU need their own, or NCCL");
        (w.ops->free)(both[0]);
        (w.ops->free)(both[1]);
    }
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    close_devices(&w);
}

/* ---- what fails ---- */

/* Issues, and lets nobody hang where that fails. */
static fsdp_status issue_or_interrupt(fsdp_stream *stream, const void *argument)
{
    const issued *k = argument;
    fsdp_status status = issue(stream, argument);

    for (int i = 0; i < k->w->members && status != FSDP_OK; i++)
        k->w->ops->interrupt(k->w->m[i].clique);
    return status;
}

static fsdp_status gather_once(world *w)
{
    fsdp_status status = FSDP_OK;

    FSDP_TRY(join_all(w));
    for (int i = 0; i < w->members; i++) {
        const struct member *m = &w->m[i];
        issued k = {.w = w, .member = i, .count = 2};

        for (int c = 0; c < k.count; c++)
            k.calls[c] = (fsdp__clique_call){.kind = c == 0 ? FSDP__CLIQUE_GATHER : FSDP__CLIQUE_ALL_TO_ALL,
                                             .send = m->send,
                                             .recv = m->recv,
                                             .count = 10,
                                             .dtype = FSDP_F32};
        CHECK_OK(fsdp__stream_enqueue(m->stream, issue_or_interrupt, &k, sizeof k));
    }
    for (int i = 0; i < w->members; i++) {
        fsdp_status one = fsdp_stream_synchronize(w->m[i].stream);

        status = status == FSDP_OK ? one : status;
    }
    FSDP_TRY(status);
    for (int i = 0; i < w->members; i++)
        FSDP_TRY(w->ops->leave(w->m[i].clique));
    for (int i = 0; i < w->members; i++)
        FSDP_TRY(await_idle(w, i));
    return FSDP_OK;
}

/* A call of NCCL fails at each of its uses once: that is told, nobody hangs, and nothing is left over. */
static void check_failures(const char *call)
{
    bool failed = true;

    for (long n = 1; failed && n < 12; n++) { /* it looks as often as it takes others to come */
        fsdp_status status;
        world w;

        open_devices(&w, 2);
        fakecuda.fail_call(call, n, SYSTEM_ERROR, false);
        status = gather_once(&w);
        failed = fakecuda.failed(call);
        CHECK_EQ(status, failed ? FSDP_COMM : FSDP_OK);
        fakecuda.mend();
        close_devices(&w);
        CHECK(n > 1 || failed);
    }
}

TEST(every_call_of_nccl_may_fail)
{
    static const char *const calls[] = {
        "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclCommFinalize",
        "ncclGroupStart",  "ncclGroupEnd",           "ncclAllGather",         "ncclAlltoAll"};

    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++)
        check_failures(calls[i]);
    setenv("FSDP_FAKENCCL_VERSION", "22703", 1);
    check_failures("ncclSend");
    check_failures("ncclRecv");
}

TEST(a_failure_says_what_nccl_says)
{
    world w;

    open_devices(&w, 2);
    fakecuda.fail_call("ncclCommInitRankConfig", 1, SYSTEM_ERROR, false);
    CHECK_ERROR(join_all(&w), FSDP_COMM, "ncclCommInitRankConfig answers 'unhandled system error' (2): asked for by a");
    fakecuda.mend();
    close_devices(&w);
}

TEST(a_library_that_is_too_old_is_refused)
{
    int version;
    world w;

    open_devices(&w, 1);
    setenv("FSDP_FAKENCCL_VERSION", "21905", 1);
    CHECK_ERROR(w.ops->open(w.m[0].device, &version), FSDP_UNSUPPORTED,
                "libnccl.so.2 is version 2.19.5: collectives by it need NCCL 2.20 or later");
    setenv("FSDP_FAKENCCL_VERSION", "22103", 1);
    CHECK_OK(w.ops->open(w.m[0].device, &version));
    CHECK_EQ(version, 22103);
    unsetenv("FSDP_FAKENCCL_VERSION");
    close_devices(&w);
}

TEST(a_library_that_cannot_be_opened_is_named_with_what_brings_it)
{
    char *directory = test_directory(), *path = test_path(directory, "libnccl.so.2");
    int version;
    world w;

    open_devices(&w, 1);
    test_write_file(path, "", 0);
    setenv("FSDP_CUDA_LIBRARIES", directory, 1);
    CHECK_ERROR(w.ops->open(w.m[0].device, &version), FSDP_NOT_FOUND,
                "cannot open libnccl.so.2, which collectives by NCCL (comm.carrier: nccl) on a GPU need");
    CHECK_CONTAINS(fsdp_last_error(), "install NCCL 2.20 or later, which comes with PyTorch and Python's package");
    unsetenv("FSDP_CUDA_LIBRARIES");
    CHECK_OK(w.ops->open(w.m[0].device, &version));
    close_devices(&w);
}

/* NVIDIA's own, which needs no GPU for this. */
TEST(the_real_library_has_all_that_is_called)
{
    const char *folder = getenv("FSDP_NCCL_FOLDER");
    char path[1100];
    fsdp__nccl nccl;

    folder = folder ? folder : "/usr/local/cuda/lib64";
    snprintf(path, sizeof path, "%s/libnccl.so.2", folder);
    test_skip_if(access(path, F_OK) != 0, "there is no %s; FSDP_NCCL_FOLDER names another folder", path);
    setenv("FSDP_CUDA_LIBRARIES", folder, 1);
    CHECK_OK(fsdp__nccl_open(&nccl));
    unsetenv("FSDP_CUDA_LIBRARIES");
    CHECK(nccl.version >= FSDP__NCCL_OLDEST);
    CHECK_STRING(nccl.GetErrorString(FSDP__NCCL_Success), "no error");
}
#endif
