/* Streams and events mean the same inline and on a worker. */
#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/context.h"
#include "device/kernels.h"
#include "device/stamps.h"
#include "support/test.h"

typedef struct push_args {
    int64_t *list;
    _Atomic int64_t *count;
    int64_t value;
    int delay_us;
} push_args;

/* Appends to a list that the streams of a test share. */
static fsdp_status push(fsdp_stream *stream, const void *argument)
{
    const push_args *args = argument;

    (void)stream;
    if (args->delay_us)
        usleep((useconds_t)args->delay_us);
    args->list[atomic_fetch_add(args->count, 1)] = args->value;
    return FSDP_OK;
}

typedef struct break_args {
    int number;
} break_args;

static fsdp_status break_down(fsdp_stream *stream, const void *argument)
{
    const break_args *args = argument;

    (void)stream;
    return FSDP_FAIL(FSDP_IO, "item %d is broken", args->number);
}

TEST(arguments_are_copied_and_work_runs_in_order)
{
    enum {
        COUNT = 1000
    };

    for (int mode = FSDP_STREAM_INLINE; mode <= FSDP_STREAM_WORKER; mode++) {
        fsdp_context *context = test_context();
        fsdp_stream *stream = NULL;
        int64_t list[COUNT];
        _Atomic int64_t count = 0;
        push_args args = {.list = list, .count = &count};

        CHECK_OK(fsdp_stream_create(fsdp_cpu(context), (fsdp_stream_mode)mode, &stream));
        CHECK_EQ(fsdp__stream_is_inline(stream), mode == FSDP_STREAM_INLINE);
        CHECK(fsdp__stream_device(stream) == fsdp_cpu(context));
        for (args.value = 0; args.value < COUNT; args.value++)
            CHECK_OK(fsdp__stream_enqueue(stream, push, &args, sizeof args));
        CHECK_OK(fsdp_stream_synchronize(stream));
        CHECK_EQ(count, COUNT);
        for (int64_t i = 0; i < COUNT; i++)
            CHECK_EQ(list[i], i);
        fsdp_stream_free(stream);
        CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
}

/* Three streams take turns, ordered by events alone; whoever is slow must be waited for. */
TEST(events_order_streams_the_same_way_in_every_mode)
{
    enum {
        ROUNDS = 60
    };

    for (int modes = 0; modes < 8; modes++) {
        fsdp_context *context = test_context();
        fsdp_stream *streams[3];
        fsdp_event *events[3];
        int64_t list[3 * ROUNDS];
        _Atomic int64_t count = 0;

        for (int i = 0; i < 3; i++) {
            CHECK_OK(fsdp_stream_create(fsdp_cpu(context), modes >> i & 1 ? FSDP_STREAM_WORKER : FSDP_STREAM_INLINE,
                                        &streams[i]));
            CHECK_OK(fsdp_event_create(fsdp_cpu(context), &events[i]));
        }
        for (int64_t step = 0; step < 3 * ROUNDS; step++) {
            int me = (int)(step % 3), before = (me + 2) % 3;
            push_args args = {list, &count, step, me == 0 && step % 7 == 0 ? 300 : 0};

            CHECK_OK(fsdp_stream_wait_event(streams[me], events[before])); /* the first one was never recorded */
            CHECK_OK(fsdp__stream_enqueue(streams[me], push, &args, sizeof args));
            CHECK_OK(fsdp_event_record(events[me], streams[me]));
        }
        CHECK_OK(fsdp_event_synchronize(events[2]));
        CHECK_EQ(count, 3 * ROUNDS);
        for (int64_t i = 0; i < 3 * ROUNDS; i++)
            CHECK_EQ(list[i], i);
        for (int i = 0; i < 3; i++) {
            fsdp_stream_free(streams[i]);
            fsdp_event_free(events[i]);
        }
        fsdp_context_free(context);
    }
}

/* Work that a test lets go on when it likes. */
typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool open;
} gate;

static void gate_init(gate *g)
{
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->open = false;
}

static void gate_deinit(gate *g)
{
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->mutex);
}

static void gate_open(gate *g)
{
    pthread_mutex_lock(&g->mutex);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->mutex);
}

static fsdp_status pass_gate(fsdp_stream *stream, const void *argument)
{
    gate *const *g = argument;

    (void)stream;
    pthread_mutex_lock(&(*g)->mutex);
    while (!(*g)->open)
        pthread_cond_wait(&(*g)->changed, &(*g)->mutex);
    pthread_mutex_unlock(&(*g)->mutex);
    return FSDP_OK;
}

/* The second record is reached at once on another stream: whoever waited for the first must still wait for it. */
TEST(a_wait_refers_to_the_record_before_it)
{
    fsdp_context *context = test_context();
    fsdp_stream *slow = NULL, *waiter = NULL;
    fsdp_event *event = NULL;
    int64_t list[2] = {0};
    _Atomic int64_t count = 0;
    push_args args = {list, &count, 1, 0};
    gate g, *pointer = &g;

    gate_init(&g);
    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &slow));
    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &waiter));
    CHECK_OK(fsdp_event_create(fsdp_cpu(context), &event));
    CHECK_OK(fsdp__stream_enqueue(slow, pass_gate, &pointer, sizeof pointer));
    CHECK_OK(fsdp_event_record(event, slow));
    CHECK_OK(fsdp_stream_wait_event(waiter, event));
    CHECK_OK(fsdp_event_record(event, fsdp_device_stream(fsdp_cpu(context)))); /* moves the mark; reached */
    CHECK_OK(fsdp__stream_enqueue(waiter, push, &args, sizeof args));
    CHECK_OK(fsdp_event_synchronize(event));
    usleep(20000);
    CHECK_EQ(count, 0);
    fsdp_event_free(event); /* the queued wait does not need it */
    gate_open(&g);
    CHECK_OK(fsdp_stream_synchronize(waiter));
    CHECK_EQ(count, 1);
    fsdp_stream_free(waiter);
    fsdp_stream_free(slow);
    fsdp_context_free(context);
    gate_deinit(&g);
}

TEST(an_event_outlives_its_stream)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = NULL;
    fsdp_event *event = NULL;
    int64_t list[3];
    _Atomic int64_t count = 0;
    push_args args = {list, &count, 5, 1000};

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &stream));
    CHECK_OK(fsdp_event_create(fsdp_cpu(context), &event));
    for (int i = 0; i < 3; i++)
        CHECK_OK(fsdp__stream_enqueue(stream, push, &args, sizeof args));
    CHECK_OK(fsdp_event_record(event, stream));
    fsdp_stream_free(stream); /* finishes its work */
    CHECK_EQ(count, 3);
    CHECK_OK(fsdp_event_synchronize(event));
    CHECK_OK(fsdp_stream_wait_event(fsdp_device_stream(fsdp_cpu(context)), event));
    fsdp_event_free(event);
    fsdp_context_free(context);
}

TEST(the_first_failure_is_kept_and_later_work_still_runs)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = NULL;
    int64_t list[1];
    _Atomic int64_t count = 0;
    push_args after = {list, &count, 5, 0};
    break_args first = {17}, second = {18};

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &stream));
    CHECK_OK(fsdp__stream_enqueue(stream, break_down, &first, sizeof first));
    CHECK_OK(fsdp__stream_enqueue(stream, break_down, &second, sizeof second));
    CHECK_OK(fsdp__stream_enqueue(stream, push, &after, sizeof after));
    CHECK_ERROR(fsdp_stream_synchronize(stream), FSDP_IO, "item 17 is broken");
    CHECK_EQ(count, 1);
    CHECK_OK(fsdp_stream_synchronize(stream)); /* told once */
    CHECK_OK(fsdp__stream_enqueue(stream, break_down, &second, sizeof second));
    CHECK_ERROR(fsdp_stream_synchronize(stream), FSDP_IO, "item 18 is broken");
    fsdp_stream_free(stream);
    CHECK_ERROR(fsdp__stream_enqueue(fsdp_device_stream(fsdp_cpu(context)), break_down, &first, sizeof first), FSDP_IO,
                "item 17 is broken"); /* inline: at once */
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(fsdp_cpu(context))));
    fsdp_context_free(context);
}

/* Who waits for what failed fails too, and is told by its own stream; who waited for what went well does not. */
TEST(a_wait_carries_the_failure)
{
    fsdp_context *context = test_context();
    fsdp_stream *first = NULL, *second = NULL;
    fsdp_event *good = NULL, *bad = NULL;
    break_args broken = {17};

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &first));
    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &second));
    CHECK_OK(fsdp_event_create(fsdp_cpu(context), &good));
    CHECK_OK(fsdp_event_create(fsdp_cpu(context), &bad));
    CHECK_OK(fsdp_event_record(good, first));
    CHECK_OK(fsdp__stream_enqueue(first, break_down, &broken, sizeof broken));
    CHECK_OK(fsdp_event_record(bad, first));
    CHECK_OK(fsdp_stream_wait_event(second, good));
    CHECK_OK(fsdp_stream_synchronize(second));
    CHECK_OK(fsdp_stream_wait_event(second, bad));
    CHECK_ERROR(fsdp_stream_synchronize(second), FSDP_IO, "item 17 is broken");
    CHECK_ERROR(fsdp_stream_synchronize(first), FSDP_IO, "item 17 is broken");
    CHECK_OK(fsdp_stream_wait_event(second, bad)); /* it has been told */
    CHECK_OK(fsdp_stream_synchronize(second));
    fsdp_event_free(good);
    fsdp_event_free(bad);
    fsdp_stream_free(first);
    fsdp_stream_free(second);
    fsdp_context_free(context);
}

typedef struct seen_log {
    char text[512];
} seen_log;

static void remember_line(void *arg, fsdp_log_level level, const char *line)
{
    seen_log *seen = arg;

    (void)level;
    snprintf(seen->text, sizeof seen->text, "%s", line);
}

TEST(a_failure_nobody_asked_for_is_logged_unless_the_world_has_ended)
{
    for (int ended = 0; ended < 2; ended++) {
        fsdp_context *context = test_context();
        fsdp_stream *stream = NULL;
        break_args args = {3};
        seen_log seen = {""};

        fsdp_context_set_log(context, FSDP_LOG_ERROR, remember_line, &seen);
        CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &stream));
        CHECK_OK(fsdp__stream_enqueue(stream, break_down, &args, sizeof args));
        if (ended)
            fsdp__context_note_end(context);
        fsdp_stream_free(stream);
        CHECK_EQ(strstr(seen.text, "item 3 is broken") == NULL, ended);
        fsdp_context_free(context);
    }
}

static fsdp_status multiply_denormal(fsdp_stream *stream, const void *argument)
{
    volatile float *const *value = argument;

    (void)stream;
    **value *= 0.5f;
    return FSDP_OK;
}

TEST(denormals_are_zero_on_every_thread)
{
#if defined(__x86_64__) || defined(__i386__)
    for (int mode = FSDP_STREAM_INLINE; mode <= FSDP_STREAM_WORKER; mode++) {
        fsdp_context *context = test_context();
        fsdp_stream *stream = NULL;
        volatile float value = 2e-38f, *pointer = &value; /* half of it is a denormal */

        CHECK_OK(fsdp_stream_create(fsdp_cpu(context), (fsdp_stream_mode)mode, &stream));
        CHECK_OK(fsdp__stream_enqueue(stream, multiply_denormal, &pointer, sizeof pointer));
        CHECK_OK(fsdp_stream_synchronize(stream));
        CHECK(value == 0.0f);
        fsdp_stream_free(stream);
        fsdp_context_free(context);
    }
#ifdef _OPENMP
    {
        fsdp_context *context = NULL;
        int alive = 0;

        CHECK_OK(fsdp_context_create(&(fsdp_context_options){.threads = 3}, &context));
        CHECK(fsdp_cpu(context) != NULL);
#pragma omp parallel reduction(+ : alive)
        {
            volatile float mine = 2e-38f;
            mine *= 0.5f;
            alive += mine != 0.0f;
        }
        CHECK_EQ(alive, 0);
        fsdp_context_free(context);
    }
#endif
#else
    (void)state;
#endif
}

static fsdp_status use_workspace(fsdp_stream *stream, const void *argument)
{
    const size_t *bytes = argument;
    unsigned char *scratch = fsdp__stream_workspace(stream, *bytes);

    if (!scratch)
        return FSDP_NO_MEMORY;
    memset(scratch, 1, *bytes);
    return FSDP_OK;
}

TEST(a_workspace_only_grows)
{
    for (int mode = FSDP_STREAM_INLINE; mode <= FSDP_STREAM_WORKER; mode++) {
        static const size_t requests[] = {0, 100, 5000, 70, 5000, 300001};
        static const size_t lives[] = {0, 128, 5056, 5056, 5056, 300032};
        fsdp_context *context = test_context();
        fsdp_stream *stream = NULL;
        fsdp_memory_stats stats;

        CHECK_OK(fsdp_stream_create(fsdp_cpu(context), (fsdp_stream_mode)mode, &stream));
        for (int i = 0; i < 6; i++) {
            CHECK_OK(fsdp__stream_enqueue(stream, use_workspace, &requests[i], sizeof requests[i]));
            CHECK_OK(fsdp_stream_synchronize(stream));
            fsdp_device_memory(fsdp_cpu(context), &stats);
            CHECK_EQ(stats.live_bytes[FSDP_MEMORY_WORKSPACE], lives[i]);
        }
        fsdp_stream_free(stream);
        CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
}

enum {
    COPIED = 1000
};

/* Both copies in a work, through memory of the device and through the stream's scratch. */
typedef struct inside {
    float *data; /* the device's */
    float in[COPIED], out[2][COPIED];
} inside;

static fsdp_status scale_to_host(fsdp_stream *stream, const inside *c, float alpha, float *out)
{
    float *scratch = fsdp__stream_workspace(stream, sizeof c->in);
    fsdp__scale_args args = {.x = c->data, .y = scratch, .alpha = alpha, .numel = COPIED, .dtype = FSDP_F32};

    if (!scratch)
        return FSDP_NO_MEMORY;
    FSDP_TRY(fsdp__run_kernel(stream, FSDP__KERNEL_SCALE, &args));
    FSDP_TRY(fsdp__run_copy_to_host(stream, out, scratch, sizeof c->in));
    return FSDP_OK;
}

static fsdp_status copy_inside(fsdp_stream *stream, const void *argument)
{
    inside *c = *(inside *const *)argument;

    FSDP_TRY(fsdp__run_copy_to_device(stream, c->data, c->in, sizeof c->in));
    memset(c->in, 0, sizeof c->in); /* the host's again */
    FSDP_TRY(scale_to_host(stream, c, 2, c->out[0]));
    memcpy(c->in, c->out[0], sizeof c->in); /* there already */
    FSDP_TRY(fsdp__run_copy_to_device(stream, c->data, c->in, sizeof c->in));
    FSDP_TRY(scale_to_host(stream, c, 3, c->out[1]));
    FSDP_TRY(fsdp__run_copy_to_host(stream, c->out[1], c->data, sizeof(float)));
    return FSDP_OK;
}

static void check_inside(const char *device_name, fsdp_stream_mode mode, bool has_bytes)
{
    fsdp_context *context = test_context();
    fsdp_device *device = CHECK_PTR(fsdp__device_open(context, device_name, 0));
    inside c = {.data = NULL}, *argument = &c;
    fsdp_stream *stream = NULL;
    void *data = NULL;

    CHECK_OK(fsdp_stream_create(device, mode, &stream));
    CHECK_OK(fsdp__device_alloc(device, sizeof c.in, FSDP_MEMORY_ACTIVATION, &data));
    c.data = data;
    for (int i = 0; i < COPIED; i++)
        c.in[i] = (float)(i + 1);
    CHECK_OK(fsdp__stream_enqueue(stream, copy_inside, &argument, sizeof argument));
    CHECK_OK(fsdp_stream_synchronize(stream));
    for (int i = 0; i < COPIED; i++) {
        CHECK_EQ(c.out[0][i], has_bytes ? 2 * (i + 1) : 0);
        CHECK_EQ(c.out[1][i], !has_bytes ? 0 : i == 0 ? 2 : 6 * (i + 1));
    }
    fsdp__device_free(device, data, sizeof c.in, FSDP_MEMORY_ACTIVATION);
    fsdp_stream_free(stream);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(copies_inside_work_are_done_on_return)
{
    check_inside("cpu", FSDP_STREAM_INLINE, true);
    check_inside("cpu", FSDP_STREAM_WORKER, true);
    check_inside("sim", FSDP_STREAM_WORKER, true);
    check_inside("meta", FSDP_STREAM_INLINE, false);
}

TEST(meta_streams_take_no_time)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = NULL;
    fsdp_event *event = NULL;
    int64_t list[1];
    _Atomic int64_t count = 0;
    push_args args = {list, &count, 9, 0};

    CHECK_OK(fsdp_stream_create(fsdp_meta(context), FSDP_STREAM_WORKER, &stream));
    CHECK_OK(fsdp_event_create(fsdp_meta(context), &event));
    CHECK_OK(fsdp__stream_enqueue(stream, push, &args, sizeof args));
    CHECK_EQ(count, 1);
    CHECK_OK(fsdp_event_record(event, stream));
    CHECK_OK(fsdp_stream_wait_event(fsdp_device_stream(fsdp_meta(context)), event));
    CHECK_OK(fsdp_event_synchronize(event));
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_ERROR(fsdp_event_record(event, fsdp_device_stream(fsdp_cpu(context))), FSDP_INVALID,
                "the event belongs to device 'meta', the stream to 'cpu'");
    fsdp_event_free(event);
    fsdp_stream_free(stream);
    fsdp_context_free(context);
}

TEST(what_a_stream_does_has_times_in_its_order)
{
    fsdp_context *context = test_context();
    fsdp_device *sim = CHECK_PTR(fsdp__device_open(context, "sim", 0));
    fsdp_stream *worker = NULL;

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &worker));
    stamps_check(fsdp_device_stream(fsdp_cpu(context)));
    stamps_check(worker);
    stamps_check(fsdp_device_stream(sim));
    fsdp_stream_free(worker);
    fsdp_context_free(context);
}

TEST(nothing_takes_time_without_bytes)
{
    fsdp_context *context = test_context();
    fsdp__stamp stamp;

    CHECK_ERROR(fsdp__stream_stamp(fsdp_device_stream(fsdp__dry(context)), &stamp), FSDP_UNSUPPORTED,
                "device 'dry' has no clock");
    fsdp_context_free(context);
}

TEST(wrong_arguments_are_refused)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = NULL;
    fsdp_event *event = NULL;

    fsdp_clear_error();
    CHECK_STATUS(fsdp_stream_create(NULL, FSDP_STREAM_INLINE, &stream), FSDP_INVALID);
    CHECK_ERROR(fsdp_stream_create(fsdp_cpu(context), (fsdp_stream_mode)7, &stream), FSDP_INVALID, "unknown mode 7");
    CHECK_STATUS(fsdp_stream_synchronize(NULL), FSDP_INVALID);
    CHECK_STATUS(fsdp_event_create(NULL, &event), FSDP_INVALID);
    CHECK_STATUS(fsdp_event_synchronize(NULL), FSDP_INVALID);
    CHECK_STATUS(fsdp_event_record(NULL, fsdp_device_stream(fsdp_cpu(context))), FSDP_INVALID);
    CHECK_STATUS(fsdp__stream_enqueue(fsdp_device_stream(fsdp_cpu(context)), NULL, NULL, 0), FSDP_INVALID);
    CHECK_NULL(stream);
    CHECK_NULL(event);
    fsdp_stream_free(NULL);
    fsdp_event_free(NULL);
    fsdp_context_free(context);
}

/* What the stream's own work gets where it would wait for itself. */
typedef struct own_waits {
    fsdp_event *before, *after;
    fsdp_status stream, passed, event;
    char messages[2][128];
} own_waits;

static fsdp_status wait_for_itself(fsdp_stream *stream, const void *argument)
{
    own_waits *w = *(own_waits *const *)argument;

    FSDP_TRY(fsdp_event_record(w->after, stream));
    w->passed = fsdp_event_synchronize(w->before);
    w->stream = fsdp_stream_synchronize(stream);
    snprintf(w->messages[0], sizeof w->messages[0], "%s", fsdp_last_error());
    w->event = fsdp_event_synchronize(w->after);
    snprintf(w->messages[1], sizeof w->messages[1], "%s", fsdp_last_error());
    fsdp_clear_error();
    return FSDP_OK;
}

TEST(work_of_a_stream_cannot_wait_for_that_stream)
{
    fsdp_context *context = test_context();
    fsdp_device *device = fsdp_cpu(context);
    own_waits w = {.passed = FSDP_IO}, *pointer = &w;
    fsdp_stream *stream = NULL;

    CHECK_OK(fsdp_stream_create(device, FSDP_STREAM_WORKER, &stream));
    CHECK_OK(fsdp_event_create(device, &w.before));
    CHECK_OK(fsdp_event_create(device, &w.after));
    CHECK_OK(fsdp_event_record(w.before, stream));
    CHECK_OK(fsdp__stream_enqueue(stream, wait_for_itself, &pointer, sizeof pointer));
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_OK(w.passed);
    CHECK_EQ(w.stream, FSDP_STATE);
    CHECK_CONTAINS(w.messages[0], "cannot synchronize: called from the stream's own work, which it would wait for");
    CHECK_EQ(w.event, FSDP_STATE);
    CHECK_CONTAINS(w.messages[1],
                   "cannot wait for an event: called from the stream's own work, which it would wait for");
    CHECK_OK(fsdp_event_synchronize(w.after)); /* from elsewhere it is an event like any other */
    fsdp_event_free(w.before);
    fsdp_event_free(w.after);
    fsdp_stream_free(stream);
    fsdp_context_free(context);
}

/* One program on two workers in which every allocation fails once. */
static fsdp_status two_workers(fsdp_context *context, fsdp_stream **streams, fsdp_event **event)
{
    int64_t list[2];
    _Atomic int64_t count = 0;
    push_args args = {list, &count, 5, 0};
    fsdp_device *cpu = fsdp_cpu(context);
    fsdp_status status = FSDP_OK;

    if (!cpu)
        return fsdp_last_status();
    FSDP_TRY(fsdp_stream_create(cpu, FSDP_STREAM_WORKER, &streams[0]));
    FSDP_TRY(fsdp_stream_create(cpu, FSDP_STREAM_WORKER, &streams[1]));
    FSDP_TRY(fsdp_event_create(cpu, event));
    FSDP_KEEP_FIRST(status, fsdp__stream_enqueue(streams[0], push, &args, sizeof args));
    FSDP_KEEP_FIRST(status, fsdp_event_record(*event, streams[0]));
    FSDP_KEEP_FIRST(status, fsdp_stream_wait_event(streams[1], *event));
    FSDP_KEEP_FIRST(status, fsdp__stream_enqueue(streams[1], push, &args, sizeof args));
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(streams[0])); /* the list is on this stack */
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(streams[1]));
    return status;
}

TEST(any_allocation_may_fail)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context = NULL;
        fsdp_stream *streams[2] = {NULL, NULL};
        fsdp_event *event = NULL;
        fsdp_status status = fsdp_context_create(NULL, &context);

        if (status == FSDP_OK)
            status = two_workers(context, streams, &event);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_event_free(event);
        fsdp_stream_free(streams[0]);
        fsdp_stream_free(streams[1]);
        fsdp_context_free(context);
    }
}
