/* Marks of a CUDA device, on the fake runtime (tests/backend/fakecuda): they may outlive it. */
#include "support/test.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "backend/fakecuda/use.h"
#include "device/device.h"
#include "device/kernels.h"
#include "device/moment.h"

typedef struct logged {
    char text[512];
} logged;

static void keep_line(void *arg, fsdp_log_level level, const char *line)
{
    logged *l = arg;

    (void)level;
    snprintf(l->text, sizeof l->text, "%s", line);
}

/* Holds the stream until the semaphore is posted. */
static fsdp_status pass(fsdp_stream *stream, const void *argument)
{
    sem_t *gate = *(sem_t *const *)argument;

    (void)stream;
    return sem_wait(gate) == 0 ? FSDP_OK : FSDP_FAIL(FSDP_IO, "the gate is broken");
}

/* An event of the CPU's, and a stream of it, have the mark of a GPU in another context, which is closed before they
 * look at it. */
TEST(a_mark_outlives_its_device)
{
    for (int fails = 0; fails < 2; fails++) {
        fsdp_context *own = test_context(), *other = test_context();
        fsdp_device *cpu = CHECK_PTR(fsdp_cpu(own));
        fsdp_stream *gpu = fsdp_device_stream(CHECK_PTR(fsdp_cuda(other, 0))), *stream;
        logged log = {.text = ""};
        fsdp_event *event;
        sem_t gate, *g = &gate;

        CHECK_EQ(sem_init(&gate, 0, 0), 0);
        CHECK_OK(fsdp_event_create(cpu, &event));
        CHECK_OK(fsdp_stream_create(cpu, FSDP_STREAM_WORKER, &stream));
        fsdp_context_set_log(other, FSDP_LOG_ERROR, keep_line, &log);
        if (fails) /* then the mark is recorded by the GPU's worker, and not by this thread */
            CHECK_OK(fsdp__stream_enqueue(gpu, break_down, NULL, 0));
        CHECK_OK(fsdp_event_record(event, gpu));
        CHECK_OK(fsdp__stream_enqueue(stream, pass, &g, sizeof g));
        CHECK_OK(fsdp_stream_wait_event(stream, event)); /* it does when it has passed the gate */
        fsdp_context_free(other);
        CHECK_EQ(sem_post(&gate), 0);
        CHECK_EQ(fsdp_stream_synchronize(stream), fails ? FSDP_IO : FSDP_OK); /* the mark brings the failure along */
        CHECK_OK(fsdp_stream_wait_event(stream, event));
        (void)fsdp_event_synchronize(event);
        (void)fsdp_stream_synchronize(stream);
        CHECK_OK(fsdp_event_record(event, stream)); /* lets go of the mark */
        CHECK_OK(fsdp_event_synchronize(event));
        fsdp_event_free(event);
        fsdp_stream_free(stream);
        fsdp_context_free(own);
        check_nothing_lives();
        CHECK_EQ(sem_destroy(&gate), 0);
    }
}

/* As on the CPU, what lives is told; and CUDA gets all of it back, after the work that uses it. */
TEST(a_device_that_is_closed_gives_everything_back)
{
    fsdp_context *context = test_context();
    fsdp_device *device = CHECK_PTR(fsdp_cuda(context, 0));
    fsdp_stream *stream = fsdp_device_stream(device);
    logged log = {.text = ""};
    void *memory;
    sem_t gate, *g = &gate;

    CHECK_EQ(sem_init(&gate, 0, 0), 0);
    CHECK_OK(fsdp__device_alloc(device, 100, FSDP_MEMORY_GRADIENT, &memory));
    CHECK_OK(fsdp__stream_enqueue(stream, pass, &g, sizeof g));
    CHECK_OK(fsdp__launch_fill_run(stream, memory, FSDP_F32, 25, 1));
    fsdp_context_set_log(context, FSDP_LOG_ERROR, keep_line, &log);
    CHECK_EQ(sem_post(&gate), 0);
    fsdp_context_free(context);
    CHECK_CONTAINS(log.text, "device 'cuda:0' freed with 128 live bytes: gradient 128");
    check_nothing_lives();
    CHECK_EQ(sem_destroy(&gate), 0);
}

/* ---- a thread that looks after a device ---- */

typedef struct asker {
    fsdp_device *device;
    atomic_int open;
    bool ended;
} asker;

/* Asks, while another thread waits in a record, and lets the stream go on after that. */
static void *ask_and_open(void *arg)
{
    asker *a = arg;

    while (fakecuda.uses("cudaEventRecord") == 0)
        usleep(200);
    a->ended = fsdp__device_has_ended(a->device);
    atomic_store(&a->open, 1);
    return NULL;
}

static void *keep_asking(void *arg)
{
    asker *a = arg;

    a->ended = false;
    while (!atomic_load(&a->open))
        a->ended = fsdp__device_has_ended(a->device) || a->ended;
    return NULL;
}

static fsdp_status do_nothing(fsdp_stream *stream, const void *argument)
{
    (void)stream, (void)argument;
    return FSDP_OK;
}

/* ThreadSanitizer sees whether the one looks at what the other changes. */
TEST(a_thread_asks_whether_a_device_has_ended_while_streams_come_and_go)
{
    fsdp_context *context = test_context();
    asker a = {.device = open_gpu(context)};
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, keep_asking, &a), 0);
    for (int i = 0; i < 20; i++) {
        fsdp_stream *stream = NULL;

        CHECK_OK(fsdp_stream_create(a.device, FSDP_STREAM_WORKER, &stream));
        for (int n = 0; n < 20; n++)
            CHECK_OK(fsdp__stream_enqueue(stream, do_nothing, NULL, 0));
        CHECK_OK(fsdp_stream_synchronize(stream));
        fsdp_stream_free(stream);
    }
    atomic_store(&a.open, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(!a.ended);
    fsdp_context_free(context);
    check_nothing_lives();
}

/* The thread that looks after a device asks whether it has ended, and releases it: so it waits for no record. */
TEST(a_thread_asks_whether_a_device_has_ended_while_a_record_waits_for_room)
{
    fsdp_context *context = test_context();
    static const char room[] = "3";
    asker a = {.ended = true};
    fsdp__device_moment *moment = NULL;
    fsdp_stream *stream = NULL;
    pthread_t thread;
    void *native;

    a.device = open_gpu(context);
    setenv("FSDP_FAKECUDA_ROOM", room, 1);
    CHECK_OK(fsdp_stream_create(a.device, FSDP_STREAM_WORKER, &stream));
    unsetenv("FSDP_FAKECUDA_ROOM");
    native = CHECK_PTR(fsdp_stream_native(stream));
    for (int i = 0; i < atoi(room); i++)
        fakecuda.hold(native, &a.open);
    fakecuda.fail_call("cudaEventRecord", 0, 0, false); /* counts from here on */
    CHECK_EQ(pthread_create(&thread, NULL, ask_and_open, &a), 0);
    CHECK_OK(fsdp__device_mark_all(a.device, &moment));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(!a.ended);
    CHECK(moment != NULL);
    CHECK_OK(moment->wait(moment));
    fsdp__moment_unref(moment);
    fsdp_stream_free(stream);
    fsdp_context_free(context);
    check_nothing_lives();
}

#else
MISSING_TEST(cuda)
#endif
