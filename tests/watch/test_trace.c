/* What a trace says of ranks that compute, gather and allocate. */
#include <unistd.h>

#include "base/clock.h"
#include "base/probe.h"
#include "device/kernels.h"
#include "fsdp/comm.h"
#include "fsdp/trace.h"
#include "support/ranks.h"
#include "watch/reading.h"

enum {
    ROUNDS = 3,
    NUMEL = 37,
    MOST_RANKS = 8
};

/* What somebody else has heard of each rank. */
typedef struct heard {
    _Atomic int64_t kernels, collectives, items;
} heard;

typedef struct scene {
    char *folder, *path;
    fsdp_trace_options options;
    heard heard[MOST_RANKS];
    fsdp_memory_stats memory[MOST_RANKS];
    bool no_work;
} scene;

static int scene_setup(void **state)
{
    scene *s = test_new(sizeof *s);

    s->folder = test_directory();
    s->path = test_path(s->folder, "trace.json");
    *state = s;
    return 0;
}

#define SCENE_TEST(name) TEST_OF(name, scene_setup, NULL, scene *s)

static fsdp_status hear(void *arg, fsdp__probe_event *e)
{
    heard *h = arg;

    h->kernels += e->point == FSDP__POINT_KERNEL_BEGUN;
    h->collectives += e->point == FSDP__POINT_COLLECTIVE_BEGUN;
    h->items += e->point == FSDP__POINT_KERNEL_ISSUED && !fsdp__stream_is_inline(e->stream);
    h->items += e->point == FSDP__POINT_COLLECTIVE_ISSUED && e->stream && !fsdp__stream_is_inline(e->stream);
    return FSDP_OK;
}

static fsdp__subscriber *listen(fsdp_context *context, heard *h)
{
    return fsdp__context_subscribe(
        context,
        FSDP__POINT_BIT(FSDP__POINT_KERNEL_BEGUN) | FSDP__POINT_BIT(FSDP__POINT_COLLECTIVE_BEGUN) |
            FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED) | FSDP__POINT_BIT(FSDP__POINT_COLLECTIVE_ISSUED),
        hear, h);
}

/* Computes here and on a stream with a thread, gathers there, and waits for it. */
static void work(fsdp_context *context, fsdp_stream *stream)
{
    fsdp_process_group *world = fsdp_world(context);
    fsdp_device *cpu = fsdp_cpu(context);
    int64_t all = (int64_t)NUMEL * fsdp_process_group_size(world);
    void *mine = NULL, *whole = NULL;
    fsdp_event *done = NULL;

    CHECK_OK(fsdp__device_alloc(cpu, NUMEL * sizeof(float), FSDP_MEMORY_PARAMETER_SHARD, &mine));
    CHECK_OK(fsdp__device_alloc(cpu, (size_t)all * sizeof(float), FSDP_MEMORY_ACTIVATION, &whole));
    CHECK_OK(fsdp_event_create(cpu, &done));
    CHECK_OK(fsdp__launch_fill_run(fsdp_device_stream(cpu), mine, FSDP_F32, NUMEL, 1));
    CHECK_OK(fsdp__launch_fill_run(stream, whole, FSDP_F32, all, 2));
    CHECK_OK(fsdp_all_gather(world, mine, whole, NUMEL, FSDP_F32, stream));
    CHECK_OK(fsdp_event_record(done, stream));
    CHECK_OK(fsdp_stream_wait_event(fsdp_device_stream(cpu), done));
    fsdp__device_recount(cpu, whole, FSDP_MEMORY_GRADIENT);
    CHECK_OK(fsdp_barrier(world));
    fsdp_event_free(done);
    fsdp__device_free(cpu, whole, (size_t)all * sizeof(float), FSDP_MEMORY_GRADIENT);
    fsdp__device_free(cpu, mine, NUMEL * sizeof(float), FSDP_MEMORY_PARAMETER_SHARD);
}

/* Traces some rounds; what is done before, in a pause and after is not in it. */
static void trace_rounds(fsdp_context *context, void *arg)
{
    scene *s = arg;
    int rank = fsdp_context_rank(context);
    fsdp_stream *stream = NULL;
    fsdp_trace *trace = NULL;
    fsdp__subscriber *subscriber;
    void *kept = NULL;

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &stream));
    CHECK_OK(fsdp__device_alloc(fsdp_cpu(context), 1000, FSDP_MEMORY_OPTIMIZER_STATE, &kept));
    work(context, stream);
    CHECK_OK(fsdp_trace_begin(context, s->path, &s->options, &trace));
    for (int i = 0; i < ROUNDS && !s->no_work; i++) {
        subscriber = listen(context, &s->heard[rank]);
        work(context, stream);
        fsdp__unsubscribe(subscriber);
        fsdp_trace_pause(trace, true);
        work(context, stream);
        fsdp_trace_pause(trace, false);
    }
    fsdp_device_memory(fsdp_cpu(context), &s->memory[rank]);
    CHECK_OK(fsdp_trace_end(trace));
    work(context, stream);
    fsdp__device_free(fsdp_cpu(context), kept, 1000, FSDP_MEMORY_OPTIMIZER_STATE);
    fsdp_stream_free(stream);
}

static void check_rank(const scene *s, const reading *r, int rank)
{
    const heard *h = &s->heard[rank];
    int64_t sum = 0;

    CHECK(h->kernels > 0 && h->collectives > 0);
    CHECK_EQ(reading_count(r, rank, "X", "kernel", NULL), h->kernels);
    CHECK_EQ(reading_count(r, rank, "X", "collective", NULL), h->collectives);
    CHECK_EQ(reading_count(r, rank, "X", "issue", NULL), h->items);
    CHECK_EQ(reading_count(r, rank, "s", NULL, NULL), h->items);
    CHECK_EQ(reading_count(r, rank, "f", NULL, NULL), h->items);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        char name[80];

        snprintf(name, sizeof name, "memory: %s", fsdp_memory_kind_name((fsdp_memory_kind)kind));
        CHECK_EQ(reading_counter(r, rank, name), s->memory[rank].live_bytes[kind]);
        sum += (int64_t)s->memory[rank].live_bytes[kind];
    }
    CHECK(s->memory[rank].live_bytes[FSDP_MEMORY_OPTIMIZER_STATE] > 0);
    CHECK_EQ(reading_counter(r, rank, "memory: all"), sum);
    CHECK_EQ(json_integer_value(reading_rank_fact(r, rank, "dropped")), 0);
}

SCENE_TEST(a_trace_has_what_others_hear_of_every_rank)
{
    static const int worlds[] = {1, 2, 3, 4, 8};

    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        reading r;

        memset(s->heard, 0, sizeof s->heard);
        test_run_ranks(worlds[i], trace_rounds, s); /* and replaces the one before */
        r = reading_of(s->path);
        CHECK_EQ(json_integer_value(reading_fact(&r, "world_size")), worlds[i]);
        for (int rank = 0; rank < worlds[i]; rank++)
            check_rank(s, &r, rank);
        CHECK_EQ(reading_count(&r, worlds[i], "X", NULL, NULL), 0);
        reading_release(&r);
    }
}

SCENE_TEST(a_packed_trace_is_one_file_of_all_ranks)
{
    unsigned char *bytes;
    size_t count;
    reading r;

    s->path = test_path(s->folder, "trace.json.gz");
    test_run_ranks(3, trace_rounds, s);
    bytes = (unsigned char *)test_read_file(s->path, &count);
    CHECK(count > 20 && bytes[0] == 0x1f && bytes[1] == 0x8b);
    r = reading_of(s->path);
    for (int rank = 0; rank < 3; rank++)
        check_rank(s, &r, rank);
    reading_release(&r);
    test_run_ranks(1, trace_rounds, s); /* it is known for a trace, and replaced */
}

SCENE_TEST(slices_say_what_ran_and_for_whom)
{
    const json_t *gather, *args;
    reading r;

    test_run_ranks(2, trace_rounds, s);
    r = reading_of(s->path);
    gather = reading_find(&r, 1, "X", "collective", "all_gather");
    CHECK(gather != NULL);
    args = json_object_get(gather, "args");
    CHECK_STRING(json_string_value(json_object_get(args, "group")), "world");
    CHECK_STRING(json_string_value(json_object_get(args, "dtype")), "float32");
    CHECK_EQ(json_integer_value(json_object_get(args, "ranks")), 2);
    CHECK_EQ(json_integer_value(json_object_get(args, "bytes")), 2 * NUMEL * 4);
    CHECK(json_integer_value(json_object_get(args, "number")) > 0);
    CHECK(reading_find(&r, 0, "X", "issue", "issue all_gather") != NULL);
    CHECK(reading_find(&r, 0, "M", NULL, "thread_name") != NULL);
    reading_release(&r);
}

SCENE_TEST(a_trace_in_which_nothing_happens_is_one)
{
    reading r;

    s->no_work = true;
    test_run_ranks(2, trace_rounds, s);
    r = reading_of(s->path);
    CHECK_EQ(reading_count(&r, -1, "X", NULL, NULL), 0);
    CHECK(reading_counter(&r, 1, "memory: optimizer state") >= 1000);
    reading_release(&r);
}

/* ---- units of parameters ---- */

static void tell_unit(fsdp_context *context, const int *unit, const char *name, const char *what)
{
    FSDP__TELL(SHARD_CHANGED, .context = context, .object = unit, .name = name, .word = what, .ns = fsdp__clock_ns());
}

SCENE_TEST(units_have_rows_and_those_that_overlap_rows_of_their_own)
{
    fsdp_context *context = test_context();
    fsdp_trace *trace = NULL;
    static const int a, b;
    void *kept = NULL;
    json_t *forward;
    reading r;

    (void)fsdp_cpu(context);
    CHECK_OK(fsdp_trace_begin(context, s->path, NULL, &trace));
    tell_unit(context, &a, "layers.0", "unshard");
    tell_unit(context, &a, "layers.0", "unshard"); /* it is whole already */
    tell_unit(context, &a, "layers.0", "pre_forward");
    CHECK_OK(fsdp__device_alloc(fsdp_cpu(context), 640, FSDP_MEMORY_ACTIVATION, &kept));
    tell_unit(context, &b, NULL, "unshard");
    tell_unit(context, &a, "layers.0", "post_forward");
    tell_unit(context, &a, "layers.0", "reshard");
    tell_unit(context, &a, "layers.0", "pre_backward");
    tell_unit(context, &b, NULL, "pre_backward");
    tell_unit(context, &a, "layers.0", "post_backward"); /* before the one inside it */
    tell_unit(context, &b, NULL, "post_backward");
    CHECK_OK(fsdp_trace_end(trace));
    fsdp__device_free(fsdp_cpu(context), kept, 640, FSDP_MEMORY_ACTIVATION);
    fsdp_context_free(context);
    r = reading_of(s->path);
    CHECK_EQ(reading_count(&r, 0, "b", "whole", "whole: layers.0"), 1);
    CHECK_EQ(reading_count(&r, 0, "b", "whole", "whole: the model"), 1);
    CHECK_EQ(reading_count(&r, 0, "X", "unit", "backward layers.0"), 1);
    CHECK_EQ(reading_count(&r, 0, "b", "unit", "backward the model"), 1);
    forward = reading_find(&r, 0, "X", "unit", "forward layers.0");
    CHECK(forward != NULL);
    CHECK_EQ(json_integer_value(json_object_get(json_object_get(forward, "args"), "activations_kept")), 640);
    CHECK(json_is_true(
        json_object_get(json_object_get(reading_find(&r, 0, "b", "whole", "whole: the model"), "args"), "unfinished")));
    reading_release(&r);
}

/* ---- what does not fit, or may not be written ---- */

SCENE_TEST(what_has_no_room_is_left_out_and_said)
{
    fsdp_context *context = test_context();
    fsdp_trace *trace = NULL;
    float value;
    reading r;

    s->options.most_bytes = 1 << 16;
    (void)fsdp_cpu(context);
    CHECK_OK(fsdp_trace_begin(context, s->path, &s->options, &trace));
    for (int i = 0; i < 5000; i++)
        CHECK_OK(fsdp__launch_fill_run(fsdp_device_stream(fsdp_cpu(context)), &value, FSDP_F32, 1, 0));
    CHECK_OK(fsdp_trace_end(trace));
    r = reading_of(s->path);
    CHECK_EQ(json_integer_value(reading_rank_fact(&r, 0, "events")), (1 << 16) / 56);
    CHECK_EQ(json_integer_value(reading_rank_fact(&r, 0, "dropped")), FSDP_MEMORY_KINDS + 2 * 5000 - (1 << 16) / 56);
    reading_release(&r);
    s->options.most_bytes = 1000;
    CHECK_ERROR(fsdp_trace_begin(context, s->path, &s->options, &trace), FSDP_INVALID, "at least 65536 are needed");
    fsdp_context_free(context);
}

SCENE_TEST(a_file_that_is_no_trace_stays)
{
    fsdp_context *context = test_context();
    fsdp_trace *trace = NULL, *second = NULL;
    size_t bytes;

    test_write_file(s->path, "{\"mine\": 1}", 11);
    CHECK_ERROR(fsdp_trace_begin(context, s->path, NULL, &trace), FSDP_INVALID, "exists and is not a trace");
    test_read_file(s->path, &bytes);
    CHECK_EQ(bytes, 11);
    CHECK_ERROR(fsdp_trace_begin(context, s->folder, NULL, &trace), FSDP_IO, "it is a folder");
    CHECK_ERROR(fsdp_trace_begin(context, "/nowhere/trace.json", NULL, &trace), FSDP_NOT_FOUND, "/nowhere");
    CHECK_ERROR(fsdp_trace_begin(context, NULL, NULL, &trace), FSDP_INVALID, "a path");
    CHECK_ERROR(fsdp_trace_end(NULL), FSDP_INVALID, "NULL");
    unlink(s->path);
    CHECK_OK(fsdp_trace_begin(context, s->path, NULL, &trace));
    CHECK_ERROR(fsdp_trace_begin(context, s->path, NULL, &second), FSDP_STATE, "being recorded already");
    CHECK_NULL(second);
    fsdp_trace_abandon(trace);
    CHECK_EQ(access(s->path, F_OK), 0);
    fsdp_context_free(context);
}

static void trace_on_a_full_disk(fsdp_context *context, void *arg)
{
    const scene *s = arg;
    fsdp_trace *trace = NULL;

    for (long n = 1; n < 4; n++) { /* the file is made, its beginning is written, .. */
        CHECK_OK(fsdp_trace_begin(context, s->path, NULL, &trace));
        fsdp__fault_arm(FSDP__FAULT_WRITE, fsdp_context_rank(context) == 0 ? n : 0);
        CHECK_STATUS(fsdp_trace_end(trace), FSDP_IO);
        CHECK_CONTAINS(fsdp_last_error(), "rank 0: ");
        CHECK_CONTAINS(fsdp_last_error(), "No space left on device");
        fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    }
}

SCENE_TEST(a_full_disk_is_told_to_all_ranks_and_leaves_what_was_there)
{
    char *command, *before, *after;
    size_t bytes, bytes_after;

    test_run_ranks(1, trace_rounds, s);
    before = test_read_file(s->path, &bytes);
    test_run_ranks(2, trace_on_a_full_disk, s);
    after = test_read_file(s->path, &bytes_after);
    CHECK_EQ(bytes_after, bytes);
    CHECK_BYTES(after, before, bytes);
    CHECK(asprintf(&command, "test \"$(ls -A '%s')\" = trace.json", s->folder) > 0);
    CHECK_EQ(system(command), 0);
    free(command);
}

SCENE_TEST(no_allocation_that_fails_costs_more_than_the_trace)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context;
        fsdp_trace *trace = NULL;
        fsdp_status status;
        float value = 0;

        fsdp__fault_rest(true);
        context = test_context();
        (void)fsdp_cpu(context);
        (void)fsdp_world(context);
        fsdp__fault_rest(false);
        status = fsdp_trace_begin(context, s->path, NULL, &trace);
        if (status == FSDP_OK) {
            status = fsdp__launch_fill_run(fsdp_device_stream(fsdp_cpu(context)), &value, FSDP_F32, 1, 0);
            FSDP_KEEP_FIRST(status, fsdp_trace_end(trace));
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp_context_free(context);
    }
}

/* ---- ranks that do not come ---- */

static void lose_a_rank(fsdp_context *context, void *arg)
{
    const scene *s = arg;
    fsdp_trace *trace = NULL;
    float value;

    CHECK_OK(fsdp_trace_begin(context, s->path, NULL, &trace));
    CHECK_OK(fsdp__launch_fill_run(fsdp_device_stream(fsdp_cpu(context)), &value, FSDP_F32, 1, 0));
    test_meet();
    if (fsdp_context_rank(context) == 1) {
        fsdp_abort(context, "the test ends it");
        fsdp_trace_abandon(trace);
        return;
    }
    CHECK_STATUS(fsdp_trace_end(trace), FSDP_COMM);
    CHECK_CONTAINS(fsdp_last_error(), "the test ends it");
}

SCENE_TEST(without_the_other_ranks_rank_0_writes_what_it_has)
{
    reading r;

    test_run_ranks(3, lose_a_rank, s);
    r = reading_of(s->path);
    CHECK_CONTAINS(json_string_value(reading_fact(&r, "incomplete")), "only rank 0");
    CHECK_EQ(reading_count(&r, 0, "X", "kernel", "fill"), 1);
    CHECK_EQ(reading_count(&r, -1, "X", "kernel", NULL), 1);
    reading_release(&r);
}

/* ---- misuse ---- */

/* What is wrong on one rank is an error of all, which go on. */
static void misuse(fsdp_context *context, void *arg)
{
    const scene *s = arg;
    bool last = fsdp_context_rank(context) == fsdp_context_world_size(context) - 1;
    const fsdp_trace_options tiny = {.most_bytes = 1}, negative = {.most_bytes = INT64_MIN};
    fsdp_trace *trace = NULL, *second = NULL;

    CHECK_STATUS(fsdp_trace_begin(context, last ? NULL : s->path, NULL, &trace), FSDP_INVALID);
    CHECK_STATUS(fsdp_trace_begin(context, last ? "" : s->path, NULL, &trace), FSDP_INVALID);
    CHECK_STATUS(fsdp_trace_begin(context, s->path, NULL, last ? NULL : &trace), FSDP_INVALID);
    CHECK_NULL(trace);
    CHECK_STATUS(fsdp_trace_begin(context, s->path, last ? &tiny : NULL, &trace), FSDP_INVALID);
    CHECK_STATUS(fsdp_trace_begin(context, s->path, &negative, &trace), FSDP_INVALID);
    CHECK_OK(fsdp_trace_begin(context, s->path, NULL, &trace));
    CHECK_STATUS(fsdp_trace_begin(context, s->path, NULL, &second), FSDP_STATE);
    CHECK_NULL(second);
    fsdp_trace_pause(trace, true);
    fsdp_trace_pause(trace, true);
    fsdp_trace_pause(NULL, true);
    CHECK_OK(fsdp_trace_end(trace)); /* nothing was recorded, and while it pauses */
    CHECK_OK(fsdp_trace_begin(context, s->path, NULL, &trace));
    CHECK_OK(fsdp_trace_end(trace));
}

SCENE_TEST(a_trace_that_is_misused_on_one_rank_fails_on_all)
{
    test_run_worlds(1, 3, misuse, s);
    CHECK_ERROR(fsdp_trace_begin(NULL, "x", NULL, &(fsdp_trace *){NULL}), FSDP_INVALID, "a context");
    CHECK_STATUS(fsdp_trace_end(NULL), FSDP_INVALID);
    fsdp_trace_abandon(NULL);
}
