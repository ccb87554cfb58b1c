/* What a trace has of a GPU's own record (CUPTI's), on a fake GPU, with a fake recorder (tests/backend/fakecuda): all
 * that ran, from where it was issued; and why it is missing where it is. */
#include "support/test.h"

#ifdef FSDP_HAVE_FAKECUPTI
#include <dlfcn.h>
#include <unistd.h>

#include "backend/fakecuda/use.h"
#include "device/kernels.h"
#include "fsdp/trace.h"
#include "support/ranks.h"
#include "watch/reading.h"

enum {
    NUMEL = 40,
    ROUNDS = 5,
    MANY = 5000, /* kernels, whose records no buffer can hold */
    DROPPED = 1, /* fates of a record */
    LOST = 2,
    NO_RIGHTS = 35, /* CUptiResult */
    UNKNOWN = 999
};

typedef struct scene {
    char *folder, *path, said[2048];
    int rounds;
} scene;

static int scene_setup(void **state)
{
    scene *s = test_new(sizeof *s);

    s->folder = test_directory();
    s->path = test_path(s->folder, "trace.json");
    s->rounds = ROUNDS;
    *state = s;
    return 0;
}

static int scene_teardown(void **state)
{
    (void)state;
    fakecuda.mend();
    return 0;
}

#define SCENE_TEST(name) TEST_OF(name, scene_setup, scene_teardown, scene *s)

static void hear(void *arg, fsdp_log_level level, const char *line)
{
    scene *s = arg;

    if (level == FSDP_LOG_WARNING)
        strncat(s->said, line, sizeof s->said - strlen(s->said) - 1);
}

/* Copies, fills and computes on two streams of the GPU. */
static void work(fsdp_device *gpu, fsdp_stream *other, int rounds)
{
    fsdp_stream *stream = fsdp_device_stream(gpu);
    float values[NUMEL] = {1}, back[NUMEL];
    void *memory = NULL;

    CHECK_OK(fsdp__device_alloc(gpu, sizeof values, FSDP_MEMORY_ACTIVATION, &memory));
    CHECK_OK(fsdp__copy_to_device(stream, memory, values, sizeof values));
    for (int i = 0; i < rounds; i++)
        CHECK_OK(fsdp__launch_fill_run(stream, memory, FSDP_F32, NUMEL, i + 1));
    CHECK_OK(fsdp__launch_fill_run(stream, memory, FSDP_F32, NUMEL, 0)); /* zeros are bytes */
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_OK(fsdp__launch_fill_run(other, memory, FSDP_F32, NUMEL, 7));
    CHECK_OK(fsdp__copy_to_host(other, back, memory, sizeof back));
    CHECK_OK(fsdp_stream_synchronize(other));
    CHECK_EQ(back[NUMEL - 1], 7);
    fsdp__device_free(gpu, memory, sizeof values, FSDP_MEMORY_ACTIVATION);
}

/* Traces work, and the work after a pause. The work between is of no rank's record: but one that records alone takes
 * for its own what its GPU does for nobody that records, so none begins or goes on while another one is about that. */
static void trace_work(fsdp_context *context, void *arg)
{
    scene *s = arg;
    fsdp_device *gpu = CHECK_PTR(fsdp_cuda(context, fsdp_context_rank(context) % 2));
    fsdp_stream *other = NULL;
    fsdp_trace *trace = NULL;

    if (fsdp_context_rank(context) == 0)
        fsdp_context_set_log(context, FSDP_LOG_WARNING, hear, s);
    CHECK_OK(fsdp_stream_create(gpu, FSDP_STREAM_WORKER, &other));
    work(gpu, other, 1);
    CHECK_OK(fsdp_trace_begin(context, s->path, NULL, &trace));
    test_meet();
    work(gpu, other, s->rounds);
    fsdp_trace_pause(trace, true);
    work(gpu, other, 2);
    test_meet();
    fsdp_trace_pause(trace, false);
    work(gpu, other, s->rounds);
    CHECK_OK(fsdp_trace_end(trace));
    work(gpu, other, 1);
    fsdp_stream_free(other);
}

static void trace_alone(scene *s)
{
    fsdp_context *context = test_context();

    trace_work(context, s);
    fsdp_context_free(context);
    check_nothing_lives();
}

static int64_t fact(const reading *r, int rank, const char *name)
{
    return json_integer_value(json_object_get(reading_rank_fact(r, rank, "gpu_record"), name));
}

/* Two traced parts, each with its rounds, a fill of zeros, a fill on the other stream, and a copy each way. */
static void check_rank(const scene *s, const reading *r, int rank)
{
    int kernels = reading_count(r, rank, "X", "gpu_kernel", NULL),
        fills = reading_count(r, rank, "X", "gpu_memset", NULL), issues = reading_count(r, rank, "X", "issue", NULL);

    CHECK_EQ(kernels + fills, 2 * (s->rounds + 2));
    CHECK(kernels >= 2 * s->rounds);
    CHECK_EQ(reading_count(r, rank, "X", "gpu_memcpy", "copy from the host"), 2);
    CHECK_EQ(reading_count(r, rank, "X", "gpu_memcpy", "copy to the host"), 2);
    CHECK_EQ(fact(r, rank, "told"), kernels + fills + 4);
    CHECK_EQ(fact(r, rank, "issued"), kernels + fills + 4);
    CHECK_EQ(fact(r, rank, "dropped"), 0);
    /* One arrow to what our events saw, one to what the GPU tells. */
    CHECK_EQ(reading_count(r, rank, "f", NULL, NULL), 2 * issues);
    CHECK_EQ(issues, kernels + fills + 4);
}

static void check_lacks(const scene *s, const char *why)
{
    reading r = reading_of(s->path);
    const json_t *missing = json_object_get(reading_rank_fact(&r, 0, "gpu_record"), "missing");

    CHECK_EQ(reading_count(&r, 0, "X", "gpu_kernel", NULL), 0);
    CHECK(reading_count(&r, 0, "X", "kernel", NULL) > 0);
    CHECK_CONTAINS(json_string_value(missing), why);
    CHECK_CONTAINS(s->said, "has no record of what the GPU itself ran");
    CHECK_CONTAINS(s->said, why);
    reading_release(&r);
}

/* ---- what is not there; first, because what is found once is kept ---- */

SCENE_TEST(a_library_that_cannot_be_opened_costs_the_record_alone)
{
    char *file = test_path(s->folder, "libcupti.so.13");

    test_write_file(file, "no library", 10);
    setenv("FSDP_CUDA_LIBRARIES", s->folder, 1);
    trace_alone(s);
    check_lacks(s, "cannot open libcupti.so.13, which traces of what runs on a GPU need: ");
    CHECK_CONTAINS(s->said, "install CUPTI, of CUDA's toolkit or of Python's package nvidia-cuda-cupti");
    unlink(file);
}

/* NVIDIA's own, where there is no driver: it must be opened, and refuse. */
SCENE_TEST(the_real_library_refuses_without_a_driver)
{
    static const char *const folders[] = {"/usr/local/cuda/lib64", "/usr/local/cuda-13.0/lib64",
                                          "/usr/local/cuda-13.0/lib"};
    char path[80] = "";
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);

    for (size_t i = 0; i < sizeof folders / sizeof *folders && access(path, F_OK) != 0; i++) {
        snprintf(path, sizeof path, "%s/libcupti.so.13", folders[i]);
        setenv("FSDP_CUDA_LIBRARIES", folders[i], 1);
    }
    test_skip_if(driver || access(path, F_OK) != 0, "%s", driver ? "there is a driver" : "there is no libcupti.so.13");
    trace_alone(s);
    check_lacks(s, "cuptiActivity");
    CHECK_CONTAINS(s->said, "the driver must know this version of CUPTI");
}

SCENE_TEST(what_is_refused_costs_the_record_alone_and_leaves_nothing)
{
    static const char *const calls[] = {"cuptiActivityRegisterTimestampCallback", "cuptiActivityRegisterCallbacks",
                                        "cuptiActivityEnable"};

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++, fakecuda.mend())
        for (long n = 1, failed = 1; failed; n++) {
            s->said[0] = '\0';
            fakecuda.fail_call("cuptiFinalize", 0, 0, false);
            fakecuda.fail_call(calls[i], n, i == 2 ? NO_RIGHTS : UNKNOWN, false);
            trace_alone(s);
            failed = fakecuda.failed(calls[i]);
            CHECK_EQ(fakecuda.uses("cuptiFinalize"), 2); /* whether it began well or not */
            if (failed)
                CHECK_CONTAINS(s->said, calls[i]);
            else
                CHECK_STRING(s->said, "");
            if (failed)
                CHECK_CONTAINS(s->said, i == 2 ? "NVreg_RestrictProfilingToAdminUsers=0" : "(999)");
        }
}

/* ---- what is ---- */

SCENE_TEST(a_gpu_tells_what_it_ran_and_who_issued_it)
{
    const json_t *kernel;
    reading r;

    trace_alone(s);
    CHECK_STRING(s->said, "");
    r = reading_of(s->path);
    check_rank(s, &r, 0);
    kernel = reading_find(&r, 0, "X", "gpu_kernel", NULL);
    CHECK_STRING(json_string_value(json_object_get(kernel, "name")), "fake_kernel<float>");
    CHECK_EQ(json_integer_value(
                 json_object_get(json_object_get(reading_find(&r, 0, "X", "gpu_memcpy", NULL), "args"), "bytes")),
             NUMEL * 4);
    reading_release(&r);
}

SCENE_TEST(ranks_of_one_process_have_each_their_own)
{
    static const int worlds[] = {2, 3};

    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) { /* of three, two share a GPU */
        reading r;

        s->said[0] = '\0';
        test_run_ranks(worlds[i], trace_work, s);
        check_nothing_lives();
        CHECK_STRING(s->said, "");
        r = reading_of(s->path);
        for (int rank = 0; rank < worlds[i]; rank++)
            check_rank(s, &r, rank);
        reading_release(&r);
    }
}

SCENE_TEST(records_that_no_buffer_can_hold_come_in_several)
{
    reading r;

    s->rounds = MANY;
    trace_alone(s);
    CHECK_STRING(s->said, "");
    r = reading_of(s->path);
    check_rank(s, &r, 0);
    reading_release(&r);
}

SCENE_TEST(records_that_are_dropped_or_lost_are_missed)
{
    static const int fates[] = {DROPPED, LOST};

    for (size_t i = 0; i < sizeof fates / sizeof *fates; i++) {
        reading r;

        s->said[0] = '\0';
        fakecuda.fail_call("record", 3, fates[i], false);
        trace_alone(s);
        CHECK(fakecuda.failed("record"));
        r = reading_of(s->path);
        CHECK_EQ(fact(&r, 0, "told"), fact(&r, 0, "issued") - 1);
        CHECK_EQ(fact(&r, 0, "dropped"), fates[i] == DROPPED);
        CHECK_CONTAINS(s->said, "lacks some of what the GPU of rank 0 ran");
        reading_release(&r);
    }
}

SCENE_TEST(a_flush_that_fails_leaves_nothing)
{
    fakecuda.fail_call("cuptiActivityFlushAll", 1, UNKNOWN, false);
    trace_alone(s);
    CHECK_CONTAINS(s->said, "cuptiActivityFlushAll");
}

TEST(a_device_that_is_closed_ends_its_record)
{
    fsdp_context *context = test_context();

    CHECK_OK(fsdp__device_activities_start(CHECK_PTR(fsdp_cuda(context, 0))));
    fsdp_context_free(context);
    check_nothing_lives();
}

SCENE_TEST(no_allocation_that_fails_costs_more_than_records)
{
    for (long n = 1; n <= 24; n++) {
        fsdp_context *context = test_context();
        fsdp_device *gpu = CHECK_PTR(fsdp_cuda(context, 0));
        fsdp_stream *other = NULL;
        fsdp_trace *trace = NULL;

        fsdp_context_set_log(context, FSDP_LOG_WARNING, hear, s);
        CHECK_OK(fsdp_stream_create(gpu, FSDP_STREAM_WORKER, &other));
        CHECK_OK(fsdp_trace_begin(context, s->path, NULL, &trace));
        work(gpu, other, 2);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        fsdp_trace_pause(trace, true);
        fsdp_trace_pause(trace, false);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        CHECK_OK(fsdp_trace_end(trace));
        fsdp_stream_free(other);
        fsdp_context_free(context);
        check_nothing_lives();
    }
}

#else
MISSING_TEST(cupti)
#endif
