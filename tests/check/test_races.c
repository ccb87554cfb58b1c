/* The race check finds uses of memory that nothing orders, in whichever way the streams happened to run, and is silent
 * where something does. */
#include "check/races.h"

#include "device/device.h"
#include "device/kernels.h"
#include "support/test.h"

enum {
    COUNT = 64,
    BYTES = COUNT * (int)sizeof(float)
};

/* A context that is checked, with two streams that have threads, and memory. */
typedef struct bench {
    fsdp_context *context;
    fsdp_device *device;
    fsdp_stream *first, *second;
    fsdp_event *event;
    float *memory, *other;
} bench;

static bench bench_make(const char *device)
{
    bench b = {0};

    CHECK_OK(fsdp_context_create(&(fsdp_context_options){.threads = 1}, &b.context));
    CHECK_OK(fsdp__races_check(b.context, NULL));
    b.device = CHECK_PTR(fsdp__device_open(b.context, device, 0));
    CHECK_OK(fsdp_stream_create(b.device, FSDP_STREAM_WORKER, &b.first));
    CHECK_OK(fsdp_stream_create(b.device, FSDP_STREAM_WORKER, &b.second));
    CHECK_OK(fsdp_event_create(b.device, &b.event));
    CHECK_OK(fsdp__device_alloc(b.device, BYTES, FSDP_MEMORY_GRADIENT, (void **)&b.memory));
    CHECK_OK(fsdp__device_alloc(b.device, BYTES, FSDP_MEMORY_ACTIVATION, (void **)&b.other));
    return b;
}

/* Whether a race was found, which must name all the parts; NULL: none was. */
static void bench_end(bench *b, const char *const *parts)
{
    char text[1024];
    bool found;

    (void)fsdp_stream_synchronize(b->first);
    (void)fsdp_stream_synchronize(b->second);
    found = fsdp__races_found(b->context, text, sizeof text);
    fsdp__device_free(b->device, b->memory, BYTES, FSDP_MEMORY_GRADIENT);
    fsdp__device_free(b->device, b->other, BYTES, FSDP_MEMORY_ACTIVATION);
    fsdp_event_free(b->event);
    fsdp_stream_free(b->second);
    fsdp_stream_free(b->first);
    fsdp_context_free(b->context);
    if (!parts)
        CHECK_STRING(text, "");
    else if (!found)
        TEST_FAIL("no race was found");
    for (; parts && *parts; parts++)
        CHECK_CONTAINS(text, *parts);
}

#define SILENT(b) bench_end(&(b), NULL)
#define RACE(b, ...) bench_end(&(b), (const char *const[]){__VA_ARGS__, NULL})

/* Both may fail once there was a race. */
static void write_at(fsdp_stream *stream, float *memory, int64_t count)
{
    (void)fsdp__launch_fill(stream, &(fsdp__fill_args){memory, FSDP_F32, count, 1.0});
}

static void read_at(const bench *b, fsdp_stream *stream, const float *memory, int64_t count)
{
    (void)fsdp__copy_on_device(stream, b->other, memory, (size_t)count * sizeof *memory);
}

static void then(const bench *b, fsdp_stream *before, fsdp_stream *after)
{
    CHECK_OK(fsdp_event_record(b->event, before));
    CHECK_OK(fsdp_stream_wait_event(after, b->event));
}

/* ---- streams and events ---- */

TEST(two_streams_that_write_without_an_order_race)
{
    bench b = bench_make("cpu");

    write_at(b.first, b.memory, COUNT);
    write_at(b.second, b.memory, COUNT);
    RACE(b, "race on bytes 0 to 256 of gradient memory", "stream 0 of rank 0 writes them in kernel 'fill' ('dst')",
         "stream 1 of rank 0 writes them in kernel 'fill' ('dst')", "let one wait for an event");
}

TEST(an_order_by_luck_is_no_order)
{
    bench b = bench_make("cpu");
    fsdp_event *reached;

    /* The host knows that the first write is over, the second stream is told before that. */
    CHECK_OK(fsdp_event_create(b.device, &reached));
    write_at(b.first, b.memory, COUNT);
    read_at(&b, b.second, b.memory, COUNT);
    (void)fsdp_stream_synchronize(b.second);
    CHECK_OK(fsdp_event_record(reached, b.first));
    CHECK_OK(fsdp_event_synchronize(reached));
    fsdp_event_free(reached);
    RACE(b, "stream 0 of rank 0 writes them in kernel 'fill' ('dst')",
         "stream 1 of rank 0 reads them in kernel 'cast_spans' ('src')");
}

TEST(an_event_that_is_waited_for_orders)
{
    bench b = bench_make("cpu");

    for (int i = 0; i < 20; i++) {
        write_at(b.first, b.memory, COUNT);
        then(&b, b.first, b.second);
        read_at(&b, b.second, b.memory, COUNT);
        then(&b, b.second, b.first);
    }
    SILENT(b);
}

TEST(a_later_record_does_not_move_a_wait)
{
    bench b = bench_make("cpu");

    write_at(b.first, b.memory, COUNT / 2);
    then(&b, b.first, b.second);
    write_at(b.first, b.memory + COUNT / 2, COUNT / 2);
    CHECK_OK(fsdp_event_record(b.event, b.first));
    read_at(&b, b.second, b.memory, COUNT);
    RACE(b, "bytes 128 to 256 of gradient memory");
}

TEST(an_event_passes_on_what_its_stream_waited_for)
{
    bench b = bench_make("cpu");
    fsdp_stream *third;

    CHECK_OK(fsdp_stream_create(b.device, FSDP_STREAM_WORKER, &third));
    write_at(b.first, b.memory, COUNT);
    then(&b, b.first, b.second); /* no item of the second stream in between */
    then(&b, b.second, third);
    read_at(&b, third, b.memory, COUNT);
    (void)fsdp_stream_synchronize(third);
    fsdp_stream_free(third);
    SILENT(b);
}

TEST(a_host_that_waits_orders)
{
    bench b = bench_make("cpu");
    fsdp_stream *inline_stream = fsdp_device_stream(b.device);

    write_at(inline_stream, b.memory, COUNT); /* then the host queues */
    write_at(b.first, b.memory, COUNT);
    CHECK_OK(fsdp_stream_synchronize(b.first));
    write_at(b.second, b.memory, COUNT);
    CHECK_OK(fsdp_event_record(b.event, b.second));
    CHECK_OK(fsdp_event_synchronize(b.event));
    write_at(inline_stream, b.memory, COUNT);
    CHECK_OK(fsdp_event_record(b.event, inline_stream));
    CHECK_OK(fsdp_stream_wait_event(b.first, b.event));
    write_at(b.first, b.memory, COUNT);
    CHECK_OK(fsdp_event_record(b.event, b.first));
    CHECK_OK(fsdp_stream_wait_event(inline_stream, b.event));
    write_at(inline_stream, b.memory, COUNT);
    SILENT(b);
}

TEST(a_host_that_does_not_wait_races)
{
    bench b = bench_make("cpu");

    read_at(&b, b.first, b.memory, COUNT);
    write_at(fsdp_device_stream(b.device), b.memory, 1);
    RACE(b, "bytes 0 to 4 of gradient memory", "stream 0 of rank 0 reads", "the host of rank 0 writes");
}

TEST(readers_need_no_order_but_each_with_the_writer)
{
    bench b = bench_make("cpu");
    float *one, *two;

    CHECK_OK(fsdp__device_alloc(b.device, BYTES, FSDP_MEMORY_ACTIVATION, (void **)&one));
    CHECK_OK(fsdp__device_alloc(b.device, BYTES, FSDP_MEMORY_ACTIVATION, (void **)&two));
    CHECK_OK(fsdp__copy_on_device(b.first, one, b.memory, BYTES));
    CHECK_OK(fsdp__copy_on_device(b.second, two, b.memory, BYTES));
    then(&b, b.first, b.second);
    write_at(b.second, b.memory, COUNT);
    CHECK_OK(fsdp_stream_synchronize(b.second));
    CHECK_OK(fsdp_stream_synchronize(b.first));
    CHECK_OK(fsdp__copy_on_device(b.first, one, b.memory, BYTES));
    CHECK_OK(fsdp__copy_on_device(b.second, two, b.memory, BYTES));
    write_at(b.second, b.memory, COUNT); /* the first one still reads */
    (void)fsdp_stream_synchronize(b.second);
    (void)fsdp_stream_synchronize(b.first);
    fsdp__device_free(b.device, one, BYTES, FSDP_MEMORY_ACTIVATION);
    fsdp__device_free(b.device, two, BYTES, FSDP_MEMORY_ACTIVATION);
    RACE(b, "stream 0 of rank 0 reads them in kernel 'cast_spans' ('src')", "stream 1 of rank 0 writes them");
}

TEST(parts_of_a_block_are_told_apart)
{
    bench b = bench_make("cpu");

    fsdp__device_name_memory(b.device, b.memory + 16, 16 * sizeof(float), FSDP_MEMORY_GRADIENT, "layers.0.weight");
    write_at(b.first, b.memory, 16);
    write_at(b.second, b.memory + 16, 16);
    write_at(b.first, b.memory + 32, 1);
    CHECK_OK(fsdp_stream_synchronize(b.first));
    CHECK_OK(fsdp_stream_synchronize(b.second));
    read_at(&b, b.first, b.memory, 18);
    write_at(b.second, b.memory + 17, 10);
    RACE(b, "race on bytes 4 to 8 of gradient 'layers.0.weight'");
}

/* ---- memory that comes and goes ---- */

TEST(memory_is_not_given_back_while_a_worker_uses_it)
{
    for (int ordered = 0; ordered < 2; ordered++) {
        bench b = bench_make("cpu");
        float *block;

        (void)state;
        CHECK_OK(fsdp__device_alloc(b.device, BYTES, FSDP_MEMORY_UNSHARDED_PARAMETER, (void **)&block));
        read_at(&b, b.first, block, COUNT);
        if (ordered)
            then(&b, b.first, fsdp_device_stream(b.device));
        fsdp__device_free(b.device, block, BYTES, FSDP_MEMORY_UNSHARDED_PARAMETER);
        if (ordered)
            SILENT(b);
        else
            RACE(b, "of unsharded parameter memory", "stream 0 of rank 0 reads them", "the host of rank 0 gives them");
    }
}

/* On a device that runs behind the host, memory goes back in the order of its stream: see device.h. */
TEST(memory_goes_back_in_the_order_of_the_device)
{
    for (int ordered = 0; ordered < 2; ordered++) {
        bench b = bench_make("cpu");
        fsdp_stream *own;
        float *block, *again;

        (void)state;
        test_run_behind(b.device);
        own = fsdp_device_stream(b.device);
        for (int i = 0; i < 20; i++) {
            CHECK_OK(fsdp__device_alloc(b.device, BYTES, FSDP_MEMORY_GRADIENT, (void **)&block));
            write_at(own, block, COUNT);
            fsdp__device_free(b.device, block, BYTES, FSDP_MEMORY_GRADIENT);
            CHECK_OK(fsdp__device_alloc(b.device, BYTES, FSDP_MEMORY_GRADIENT, (void **)&again));
            CHECK(block == again);
            if (ordered)
                then(&b, own, b.first);
            write_at(b.first, again, COUNT);
            if (ordered || i % 2)
                then(&b, b.first, own);
            fsdp__device_free(b.device, again, BYTES, FSDP_MEMORY_GRADIENT);
        }
        (void)fsdp_stream_synchronize(own);
        if (ordered)
            SILENT(b);
        else
            RACE(b, "of gradient memory", "stream 0 of rank 0 writes them in kernel 'fill'");
    }
}

TEST(a_stream_that_is_freed_has_done_its_work)
{
    bench b = bench_make("cpu");

    for (int i = 0; i < 10; i++) {
        fsdp_stream *stream;

        CHECK_OK(fsdp_stream_create(b.device, FSDP_STREAM_WORKER, &stream));
        write_at(stream, b.memory, COUNT);
        fsdp_stream_free(stream);
    }
    write_at(b.first, b.memory, COUNT);
    SILENT(b);
}

/* ---- copies, and a device that the host cannot touch ---- */

TEST(copies_are_uses)
{
    static const char *const devices[] = {"cpu", "sim"};

    for (size_t d = 0; d < 2; d++)
        for (int ordered = 0; ordered < 2; ordered++) {
            bench b = bench_make(devices[d]);
            float values[COUNT] = {0};

            CHECK_OK(fsdp__copy_to_device(b.first, b.memory, values, BYTES));
            if (ordered)
                then(&b, b.first, b.second);
            (void)fsdp__copy_to_host(b.second, values, b.memory, BYTES);
            if (ordered)
                SILENT(b);
            else if (d == 0) /* each is known by its kernel or by its call: the second to come by its call */
                RACE(b, "writes them in ", "reads them in ", " in a copy ");
            else
                RACE(b, "writes them in a copy from the host", "reads them in a copy to the host");
        }
}

/* Memory of the host that a device was asked for is watched, too. */
TEST(the_host_s_side_of_a_copy_is_a_use)
{
    for (int ordered = 0; ordered < 2; ordered++) {
        bench b = bench_make("sim");
        float *staging;

        (void)state;
        CHECK_OK(fsdp__device_alloc_host(b.device, BYTES, (void **)&staging));
        CHECK_OK(fsdp__copy_to_host(b.first, staging, b.memory, BYTES));
        if (ordered)
            then(&b, b.first, b.second);
        (void)fsdp__copy_to_device(b.second, b.other, staging, BYTES);
        (void)fsdp_stream_synchronize(b.second);
        (void)fsdp_stream_synchronize(b.first);
        fsdp__device_free_host(b.device, staging, BYTES);
        if (ordered)
            SILENT(b);
        else
            RACE(b, "of shared memory", "writes them in a copy to the host", "reads them in a copy from the host");
    }
}

static fsdp_status copy_inside(fsdp_stream *stream, const void *argument)
{
    static float values[COUNT];

    return fsdp__run_copy_to_device(stream, *(void *const *)argument, values, BYTES);
}

TEST(copies_inside_of_work_are_uses)
{
    bench b = bench_make("sim");

    CHECK_OK(fsdp__stream_enqueue(b.first, copy_inside, &b.memory, sizeof b.memory));
    read_at(&b, b.second, b.memory, COUNT);
    RACE(b, "stream 1 of rank 0 writes them in a copy from the host", "stream 2 of rank 0 reads them");
}

/* ---- what a race does ---- */

TEST(all_that_follows_a_race_fails_with_it)
{
    bench b = bench_make("cpu");

    write_at(b.first, b.memory, COUNT);
    write_at(b.second, b.memory, COUNT);
    (void)fsdp_stream_synchronize(b.first);
    (void)fsdp_stream_synchronize(b.second);
    CHECK_ERROR(fsdp__launch_fill(fsdp_device_stream(b.device), &(fsdp__fill_args){b.other, FSDP_F32, COUNT, 1.0}),
                FSDP_STATE, "race on bytes 0 to 256 of gradient memory");
    CHECK_ERROR(fsdp__stream_uses(fsdp_device_stream(b.device), b.other, 1, FSDP__READS, "look"), FSDP_STATE,
                "race on");
    RACE(b, "race");
}

TEST(memory_of_the_host_is_not_watched_unless_said_so)
{
    for (int watched = 0; watched < 2; watched++) {
        bench b = bench_make("cpu");
        float place[COUNT];

        (void)state;
        if (watched)
            FSDP__TELL(MEMORY_MAPPED, .context = b.context, .memory = place, .bytes = sizeof place);
        write_at(b.first, place, COUNT);
        write_at(b.second, place, COUNT);
        if (watched)
            RACE(b, "of shared memory");
        else
            SILENT(b);
    }
}

/* Two ranks of one process. */
TEST(what_is_published_orders_who_acquires_it)
{
    for (uint64_t number = 6; number <= 7; number++) {
        bench b = bench_make("cpu");
        fsdp_context *peer;

        (void)state;
        CHECK_OK(fsdp_context_create(&(fsdp_context_options){.rank = 1, .world_size = 2}, &peer));
        CHECK_OK(fsdp__races_check(peer, b.context));
        write_at(b.first, b.memory, COUNT);
        CHECK_OK(fsdp_stream_synchronize(b.first));
        FSDP__TELL(ORDER_PUBLISHED, .context = b.context, .object = &b, .number = 7);
        FSDP__TELL(ORDER_PUBLISHED, .context = peer, .object = &b, .number = 6); /* of its own: no news */
        FSDP__TELL(ORDER_ACQUIRED, .context = peer, .object = &b, .number = number);
        write_at(fsdp_device_stream(fsdp_cpu(peer)), b.memory, COUNT);
        fsdp_context_free(peer);
        if (number == 7)
            SILENT(b);
        else
            RACE(b, "stream 0 of rank 0 writes them", "the host of rank 1 writes them");
    }
}

TEST(uses_that_only_check_are_no_fault_points)
{
    bench b = bench_make("cpu");

    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1);
    write_at(fsdp_device_stream(b.device), b.memory, COUNT);
    CHECK_OK(fsdp_event_record(b.event, b.first));
    CHECK(!fsdp__fault_hit(FSDP__FAULT_ALLOCATION));
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    SILENT(b);
}

TEST(it_is_asked_for_before_there_is_a_device)
{
    fsdp_context *late, *other;

    CHECK_OK(fsdp_context_create(NULL, &late));
    CHECK_OK(fsdp_context_create(NULL, &other));
    CHECK_ERROR(fsdp__races_check(other, late), FSDP_STATE, "with a rank that is not checked");
    CHECK_PTR(fsdp_cpu(late));
    CHECK_ERROR(fsdp__races_check(late, NULL), FSDP_STATE, "it has opened a device");
    CHECK_OK(fsdp__races_check(other, NULL));
    CHECK_ERROR(fsdp__races_check(other, NULL), FSDP_STATE, "is checked already");
    fsdp_context_free(other);
    fsdp_context_free(late);
}
