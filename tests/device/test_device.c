/* Devices: memory under its kinds, kernels under their classes. */
#include "device/device.h"

#include "base/probe.h"
#include "check/fault.h"
#include "device/host_kernel.h"
#include "device/kernels.h"
#include "device/owners.h"
#include "support/limits.h"

#if FSDP__ASAN
#include <sanitizer/asan_interface.h>
#endif

TEST(a_context_has_one_cpu_and_one_meta_device)
{
    fsdp_context *context = test_context();
    fsdp_device *cpu = CHECK_PTR(fsdp_cpu(context)), *meta = CHECK_PTR(fsdp_meta(context));

    CHECK(cpu == fsdp_cpu(context));
    CHECK(meta == fsdp_meta(context));
    CHECK_STRING(fsdp_device_name(cpu), "cpu");
    CHECK_STRING(fsdp_device_name(meta), "meta");
    CHECK(!fsdp_device_is_meta(cpu));
    CHECK(fsdp_device_is_meta(meta));
    CHECK(fsdp_device_context(meta) == context);
    CHECK(fsdp__stream_is_inline(fsdp_device_stream(cpu)));
    CHECK_NULL(fsdp_cpu(NULL));
    CHECK_EQ(fsdp_last_status(), FSDP_INVALID);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(a_device_is_opened_by_its_name)
{
    static const char *const wrong[] = {"",       ":",       ":0",         "cpu:",    "cpu:x", "cpu:-1", "cpu: 1",
                                        "cpu:00", "cuda:01", "cuda:10000", "cpu:1:2", NULL,    "tpu",    "gpu:1",
                                        "CUDA",   "auto",    " cuda",      "cuda ",   "Cpu"};
    int count;
    fsdp_context *context = test_context();

    CHECK(fsdp_device_open(context, "cpu") == fsdp_cpu(context));
    CHECK(fsdp_device_open(context, "cpu:0") == fsdp_cpu(context));
    CHECK(fsdp_device_open(context, "meta") == fsdp_meta(context));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_NULL(fsdp_device_open(context, wrong[i]));
        CHECK_EQ(fsdp_last_status(), FSDP_INVALID);
        CHECK_CONTAINS(fsdp_last_error(), "': devices are 'cpu', 'meta', 'cuda', or one of several as in 'cuda:1'");
    }
    CHECK_ERROR(fsdp__device_count("gpu", &count), FSDP_INVALID, "there is no device 'gpu': devices are 'cpu', ");
    CHECK_NULL(fsdp_device_open(context, "cpu:1"));
    CHECK_CONTAINS(fsdp_last_error(), "cannot open device 'cpu': its number 1 is not below 1");
    CHECK_NULL(fsdp_device_open(NULL, "cpu"));
    CHECK_EQ(fsdp_last_status(), FSDP_INVALID);
    fsdp_context_free(context);
}

/* The same requests on both devices leave the same ledger: that is what makes a plan on meta exact. */
TEST(meta_counts_what_the_cpu_counts)
{
    static const size_t sizes[] = {0, 1, 63, 64, 65, 1000003, 70000001, 0};
    enum {
        COUNT = sizeof sizes / sizeof sizes[0]
    };
    fsdp_context *context = test_context();
    fsdp_device *devices[2] = {fsdp_cpu(context), fsdp_meta(context)};
    fsdp_memory_stats stats[2];

    for (int d = 0; d < 2; d++) {
        void *blocks[COUNT];
        size_t expected = 0;

        for (int i = 0; i < COUNT; i++) {
            fsdp_memory_kind kind = (fsdp_memory_kind)(i % FSDP_MEMORY_KINDS);
            CHECK_OK(fsdp__device_alloc(devices[d], sizes[i], kind, &blocks[i]));
            CHECK(blocks[i] != NULL);
            CHECK_EQ((uintptr_t)blocks[i] % 64, 0);
            expected += fsdp__device_rounded(sizes[i]);
        }
        fsdp_device_memory(devices[d], &stats[d]);
        CHECK_EQ(stats[d].live_total_bytes, expected);
        for (int i = 0; i < COUNT; i++)
            fsdp__device_free(devices[d], blocks[i], sizes[i], (fsdp_memory_kind)(i % FSDP_MEMORY_KINDS));
        fsdp__device_free(devices[d], NULL, 100, FSDP_MEMORY_GRADIENT);
        fsdp_device_memory(devices[d], &stats[d]);
        CHECK_EQ(stats[d].live_total_bytes, 0);
        CHECK_EQ(stats[d].peak_total_bytes, expected);
    }
    CHECK_BYTES(&stats[0], &stats[1], sizeof stats[0]);
    fsdp_device_reset_peak(devices[0]);
    fsdp_device_memory(devices[0], &stats[0]);
    CHECK_EQ(stats[0].peak_total_bytes, 0);
    fsdp_context_free(context);
}

TEST(meta_has_room_for_any_model)
{
    fsdp_context *context = test_context();
    void *blocks[8];

    for (int i = 0; i < 8; i++)
        CHECK_OK(fsdp__device_alloc(fsdp_meta(context), (size_t)1 << 37, FSDP_MEMORY_UNSHARDED_PARAMETER, &blocks[i]));
    for (int i = 0; i < 8; i++)
        fsdp__device_free(fsdp_meta(context), blocks[i], (size_t)1 << 37, FSDP_MEMORY_UNSHARDED_PARAMETER);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(out_of_memory_names_bytes_kind_and_what_is_held)
{
    fsdp_context *context = test_context();
    fsdp_device *cpu = fsdp_cpu(context);
    void *held = NULL, *none = NULL;

    CHECK_OK(fsdp__device_alloc(cpu, 100, FSDP_MEMORY_ACTIVATION, &held));
    CHECK_ERROR(fsdp__device_alloc(cpu, (size_t)1 << 60, FSDP_MEMORY_GRADIENT, &none), FSDP_NO_MEMORY,
                "cannot allocate 1048576.00TiB of gradient on device 'cpu' (0.1KiB live, 2.0MiB reserved): the system "
                "has no segment");
    CHECK_NULL(none);
    CHECK_STATUS(fsdp__device_alloc(cpu, 10, FSDP_MEMORY_KINDS, &none), FSDP_INVALID);
    fsdp__device_free(cpu, held, 100, FSDP_MEMORY_ACTIVATION);
    fsdp_context_free(context);
}

typedef struct seen_log {
    char text[512];
    int lines;
} seen_log;

static void remember_line(void *arg, fsdp_log_level level, const char *line)
{
    seen_log *seen = arg;

    (void)level;
    seen->lines++;
    snprintf(seen->text, sizeof seen->text, "%s", line);
}

TEST(leaks_and_double_frees_are_logged)
{
    fsdp_context *context = test_context();
    seen_log seen = {"", 0};
    void *block = NULL, *leaked = NULL;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, remember_line, &seen);
    CHECK_OK(fsdp__device_alloc(fsdp_cpu(context), 300, FSDP_MEMORY_GRADIENT, &block));
    CHECK_OK(fsdp__device_alloc(fsdp_cpu(context), 100, FSDP_MEMORY_OPTIMIZER_STATE, &leaked));
    fsdp__device_free(fsdp_cpu(context), block, 300, FSDP_MEMORY_GRADIENT);
    CHECK_EQ(seen.lines, 0);
    fsdp__device_free(fsdp_cpu(context), block, 300, FSDP_MEMORY_GRADIENT);
    CHECK_STRING(seen.text, "device 'cpu': freed 300 bytes of gradient that were not live");
    fsdp_context_free(context);
    CHECK_STRING(seen.text, "device 'cpu' freed with 128 live bytes: optimizer state 128");
    CHECK_EQ(seen.lines, 2);
}

TEST(freed_bytes_are_poisoned_for_the_sanitizer)
{
#if FSDP__ASAN
    fsdp_context *context = test_context();
    void *block = NULL;

    CHECK_OK(fsdp__device_alloc(fsdp_cpu(context), 100, FSDP_MEMORY_ACTIVATION, &block));
    CHECK(!__asan_region_is_poisoned(block, 100));
    CHECK(__asan_address_is_poisoned((char *)block + 104)); /* the slack of the block */
    fsdp__device_free(fsdp_cpu(context), block, 100, FSDP_MEMORY_ACTIVATION);
    CHECK(__asan_address_is_poisoned(block));
    fsdp_context_free(context);
#else
    skip();
#endif
}

/* ---- kernels ---- */

TEST(every_kernel_is_described)
{
    for (int k = 0; k < FSDP__KERNELS; k++) {
        CHECK(fsdp__kernel_infos[k].name[0] != '\0');
        CHECK(fsdp__kernel_infos[k].args_bytes > 0);
        CHECK((unsigned)fsdp__kernel_infos[k].class < FSDP__KERNEL_CLASSES);
    }
    CHECK_STRING(fsdp__kernel_infos[FSDP__KERNEL_FILL].name, "fill");
    CHECK_EQ(fsdp__kernel_infos[FSDP__KERNEL_FILL].args_bytes, sizeof(fsdp__fill_args));
    CHECK_EQ(fsdp__kernel_infos[FSDP__KERNEL_ADAM].class, FSDP__KERNEL_CLASS_OPTIMIZER);
}

/* What a subscriber is told of kernels and copies. */
static struct {
    _Atomic int64_t ns[FSDP__KERNEL_CLASSES];
    _Atomic int begun, done;
    _Atomic bool refuses;
} told;

static fsdp_status listen(void *arg, fsdp__probe_event *e)
{
    static _Thread_local int64_t begun_ns;

    (void)arg;
    if (e->point == FSDP__POINT_KERNEL_BEGUN || e->point == FSDP__POINT_COPY_BEGUN) {
        begun_ns = e->ns;
        atomic_fetch_add(&told.begun, 1);
    } else {
        atomic_fetch_add(&told.done, 1);
        if (e->point == FSDP__POINT_KERNEL_DONE && e->kind < FSDP__KERNELS)
            atomic_fetch_add(&told.ns[fsdp__kernel_infos[e->kind].class], e->ns - begun_ns);
    }
    return FSDP_OK;
}

static fsdp_status refuse(void *arg, fsdp__probe_event *e)
{
    (void)arg;
    (void)e;
    return told.refuses ? FSDP_FAIL(FSDP_STATE, "refused") : FSDP_OK;
}

__attribute__((constructor)) static void subscribe(void)
{
    static const uint64_t begun = FSDP__POINT_BIT(FSDP__POINT_KERNEL_BEGUN) | FSDP__POINT_BIT(FSDP__POINT_COPY_BEGUN);
    static const uint64_t done = FSDP__POINT_BIT(FSDP__POINT_KERNEL_DONE) | FSDP__POINT_BIT(FSDP__POINT_COPY_DONE);
    static fsdp__subscriber listener = {.points = begun | done, .see = listen},
                            refuser = {.points = begun, .see = refuse};

    fsdp__subscribe(&listener);
    fsdp__subscribe(&refuser);
}

static fsdp_status fails(const void *arg, void *const *data)
{
    (void)arg;
    (void)data;
    return FSDP_FAIL(FSDP_STATE, "as it was asked to");
}

TEST(whatever_begins_is_told_to_be_done)
{
    fsdp_context *context = test_context();
    fsdp_device *cpu = fsdp_cpu(context);
    fsdp_stream *stream = fsdp_device_stream(cpu);
    float value = 1, block[1];
    fsdp__fill_args args = {.dst = block, .dtype = FSDP_F32, .numel = 1, .value = 3};
    const fsdp__host_kernel failing = {.name = "failing", .function = fails};

    atomic_store(&told.begun, 0);
    atomic_store(&told.done, 0);
    CHECK_OK(fsdp__launch_fill(stream, &args));
    CHECK_OK(fsdp__run_copy_to_device(stream, block, &value, sizeof value));
    CHECK_ERROR(fsdp__launch_host_kernel(stream, &failing), FSDP_STATE, "kernel 'failing': as it was asked to");
    CHECK(told.begun >= 3);
    CHECK_EQ(told.begun, told.done);
    told.refuses = true;
    CHECK_ERROR(fsdp__launch_fill(stream, &args), FSDP_STATE, "refused");
    CHECK_ERROR(fsdp__run_copy_to_device(stream, block, &value, sizeof value), FSDP_STATE, "refused");
    CHECK_ERROR(fsdp__launch_host_kernel(stream, &failing), FSDP_STATE, "refused");
    told.refuses = false;
    CHECK_EQ(told.begun, told.done);
    fsdp_context_free(context);
}

/* What is heard of the ledger, and of a stream's items. */
typedef struct hearing {
    int64_t live[FSDP_MEMORY_KINDS];
    _Atomic uint64_t queued, begun, done;
    _Atomic bool in_order;
} hearing;

static fsdp_status hear(void *arg, fsdp__probe_event *e)
{
    hearing *h = arg;

    if (e->point == FSDP__POINT_MEMORY_COUNTED)
        h->live[e->kind] += (int64_t)e->number;
    else if (e->point == FSDP__POINT_ITEM_QUEUED)
        h->in_order = e->number == ++h->queued && h->in_order;
    else if (e->point == FSDP__POINT_ITEM_BEGUN)
        h->in_order = e->number == ++h->begun && h->in_order;
    else
        h->in_order = e->number == ++h->done && h->in_order;
    return FSDP_OK;
}

/* ---- who has it ---- */

/* Owners are numbers here, and those from 8 on are gone. */
static const char letters[12] = "abcdefghijkl";

static bool name_letter(const fsdp_context *context, const void *owner, char *text, size_t bytes)
{
    const char *letter = owner;

    (void)context;
    if (*letter > 'h')
        return false;
    snprintf(text, bytes, "layers.%c", *letter);
    return true;
}

static void *take_as(fsdp_device *device, int owner, const char *op, bool backward, size_t bytes, fsdp_memory_kind kind)
{
    fsdp_context *context = fsdp_device_context(device);
    void *out = NULL;

    fsdp__context_set_taker(context, (fsdp__taker){owner < 0 ? NULL : &letters[owner], op, backward});
    CHECK_OK(fsdp__device_alloc(device, bytes, kind, &out));
    fsdp__context_set_taker(context, (fsdp__taker){.owner = NULL});
    return out;
}

TEST(memory_that_is_refused_tells_its_ten_largest_owners)
{
    fsdp_context *context = test_context();
    fsdp_device *cpu = fsdp_cpu(context);
    void *blocks[14], *none = NULL;
    char text[FSDP__OWNERS_TEXT];
    int rows = 0;

    fsdp__context_set_namer(context, name_letter);
    for (int i = 0; i < 12; i++)
        blocks[i] = take_as(cpu, i, "linear", i == 1, 1024 * (size_t)(i + 1), FSDP_MEMORY_ACTIVATION);
    blocks[12] = take_as(cpu, 0, "linear", false, 64 << 10, FSDP_MEMORY_ACTIVATION); /* with the first: 65KiB */
    blocks[13] = take_as(cpu, -1, NULL, false, 20 << 10, FSDP_MEMORY_GRADIENT);
    fsdp__device_account(cpu, &letters[2], FSDP_MEMORY_PARAMETER_SHARD, 30 << 10, true);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1);
    CHECK_ERROR(fsdp__device_alloc(cpu, 100, FSDP_MEMORY_GRADIENT, &none), FSDP_NO_MEMORY,
                "cannot allocate 100B of gradient");
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK(fsdp__device_that_refused(context) == cpu);
    for (int i = 0; i < 13; i++) /* what follows changes nothing of it */
        fsdp__device_free(cpu, blocks[i], i < 12 ? 1024 * (size_t)(i + 1) : 64 << 10, FSDP_MEMORY_ACTIVATION);
    CHECK_CONTAINS(fsdp_device_owners(cpu, text, sizeof text), "live on device 'cpu': 192.0KiB, most of it of\n");
    CHECK_CONTAINS(text, "65.0KiB in 2      activation           layers.a: linear\n");
    CHECK_CONTAINS(text, "30.0KiB in 1      parameter shard      layers.c\n");
    CHECK_CONTAINS(text, "20.0KiB in 1      gradient             -\n");
    CHECK_CONTAINS(text, "12.0KiB in 1      activation           linear\n"); /* its module is gone */
    CHECK(!strstr(text, "layers.b"));
    CHECK_CONTAINS(text, " others");
    for (const char *line = text; line; line = strchr(line + 1, '\n'))
        rows++;
    CHECK_EQ(rows, 1 + FSDP__OWNERS_SHOWN + 1);
    CHECK_NULL(fsdp__device_that_refused(context));
    CHECK_CONTAINS(fsdp_device_owners(cpu, text, sizeof text), "50.0KiB, most of it of"); /* now */
    for (size_t room = 1; room < 40; room++) { /* a text that does not fit is cut */
        memset(text, 'x', sizeof text);
        CHECK_PTR(fsdp_device_owners(cpu, text, room));
        CHECK(strlen(text) < room && text[room] == 'x');
    }
    text[0] = 'x';
    CHECK(fsdp_device_owners(cpu, text, 0) == text && text[0] == 'x');
    CHECK_STRING(fsdp_device_owners(cpu, NULL, 100), "");
    CHECK_STRING(fsdp_device_owners(NULL, text, sizeof text), "");
    fsdp__device_account(cpu, &letters[2], FSDP_MEMORY_PARAMETER_SHARD, -(30 << 10), true);
    fsdp__device_free(cpu, blocks[13], 20 << 10, FSDP_MEMORY_GRADIENT);
    CHECK_CONTAINS(fsdp_device_owners(cpu, text, sizeof text), "0.0KiB");
    fsdp_context_free(context);
}

TEST(memory_of_the_backward_is_told_apart_and_a_block_can_change_hands)
{
    fsdp_context *context = test_context();
    fsdp_device *cpu = fsdp_cpu(context);
    void *forward, *backward;
    char text[FSDP__OWNERS_TEXT];

    fsdp__context_set_namer(context, name_letter);
    forward = take_as(cpu, 0, "gelu", false, 1024, FSDP_MEMORY_ACTIVATION);
    backward = take_as(cpu, 0, "gelu", true, 2048, FSDP_MEMORY_ACTIVATION);
    CHECK_CONTAINS(fsdp_device_owners(cpu, text, sizeof text), "2.0KiB in 1      activation           layers.a: gelu "
                                                               "(backward)\n");
    CHECK_CONTAINS(text, "1.0KiB in 1      activation           layers.a: gelu");
    fsdp__device_reown(cpu, forward, 1024, FSDP_MEMORY_ACTIVATION, &letters[3]);
    CHECK_CONTAINS(fsdp_device_owners(cpu, text, sizeof text), "activation           layers.d: gelu");
    fsdp__device_free(cpu, forward, 1024, FSDP_MEMORY_ACTIVATION);
    fsdp__device_free(cpu, backward, 2048, FSDP_MEMORY_ACTIVATION);
    fsdp_context_free(context);
}

TEST(each_change_of_the_ledger_is_told)
{
    fsdp_context *context = test_context();
    fsdp_device *cpu = fsdp_cpu(context);
    fsdp__subscriber *subscriber;
    fsdp_memory_stats stats;
    hearing h = {.in_order = true};
    void *first = NULL, *second = NULL;

    subscriber = fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_MEMORY_COUNTED), hear, &h);
    CHECK_OK(fsdp__device_alloc(cpu, 100, FSDP_MEMORY_ACTIVATION, &first));
    CHECK_OK(fsdp__device_alloc(cpu, 1, FSDP_MEMORY_WORKSPACE, &second));
    fsdp__device_recount(cpu, first, FSDP_MEMORY_GRADIENT);
    fsdp__device_recount(cpu, &stats, FSDP_MEMORY_GRADIENT); /* no block */
    fsdp__device_account(cpu, NULL, FSDP_MEMORY_PARAMETER_SHARD, 1000, true);
    fsdp_device_memory(cpu, &stats);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        CHECK_EQ(h.live[kind], stats.live_bytes[kind]);
    CHECK_EQ(h.live[FSDP_MEMORY_GRADIENT], 128);
    fsdp__device_account(cpu, NULL, FSDP_MEMORY_PARAMETER_SHARD, -1000, true);
    fsdp__device_free(cpu, first, 100, FSDP_MEMORY_GRADIENT);
    fsdp__device_free(cpu, second, 1, FSDP_MEMORY_WORKSPACE);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        CHECK_EQ(h.live[kind], 0);
    fsdp__unsubscribe(subscriber);
    fsdp_context_free(context);
}

TEST(items_of_a_stream_are_numbered_alike_where_they_are_queued_and_run)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = NULL;
    fsdp__subscriber *subscriber;
    hearing h = {.in_order = true};
    float value = 0;

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &stream));
    subscriber =
        fsdp__context_subscribe(context,
                                FSDP__POINT_BIT(FSDP__POINT_ITEM_QUEUED) | FSDP__POINT_BIT(FSDP__POINT_ITEM_BEGUN) |
                                    FSDP__POINT_BIT(FSDP__POINT_ITEM_DONE),
                                hear, &h);
    for (int i = 0; i < 20; i++)
        CHECK_OK(fsdp__launch_fill_run(stream, &value, FSDP_F32, 1, i));
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK(h.in_order);
    CHECK_EQ(h.queued, 20);
    CHECK_EQ(h.begun, 20);
    CHECK_EQ(h.done, 20);
    fsdp__unsubscribe(subscriber);
    fsdp_stream_free(stream);
    fsdp_context_free(context);
}

TEST(launches_run_and_their_time_is_filed_by_class)
{
    for (int mode = FSDP_STREAM_INLINE; mode <= FSDP_STREAM_WORKER; mode++) {
        enum {
            NUMEL = 100003
        };
        fsdp_context *context = test_context();
        fsdp_device *cpu = fsdp_cpu(context);
        fsdp_stream *stream = NULL;
        int64_t before[FSDP__KERNEL_CLASSES], after[FSDP__KERNEL_CLASSES];
        void *block = NULL;
        fsdp__fill_args args = {.dtype = FSDP_F32, .numel = NUMEL, .value = 3};

        CHECK_OK(fsdp_stream_create(cpu, (fsdp_stream_mode)mode, &stream));
        CHECK_OK(fsdp__device_alloc(cpu, NUMEL * sizeof(float), FSDP_MEMORY_ACTIVATION, &block));
        args.dst = block;
        for (int c = 0; c < FSDP__KERNEL_CLASSES; c++)
            before[c] = told.ns[c];
        CHECK_OK(fsdp__launch_fill(stream, &args));
        args.dst = NULL; /* the arguments were copied */
        CHECK_OK(fsdp_stream_synchronize(stream));
        CHECK_EQ(((float *)block)[0], 3);
        CHECK_EQ(((float *)block)[NUMEL - 1], 3);
        for (int c = 0; c < FSDP__KERNEL_CLASSES; c++)
            after[c] = told.ns[c];
        for (int c = 0; c < FSDP__KERNEL_CLASSES; c++)
            CHECK_EQ(after[c] > before[c], c == FSDP__KERNEL_CLASS_MEMORY);
        fsdp__device_free(cpu, block, NUMEL * sizeof(float), FSDP_MEMORY_ACTIVATION);
        fsdp_stream_free(stream);
        CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
}

TEST(a_launch_on_meta_does_nothing)
{
    fsdp_context *context = test_context();
    fsdp__fill_args args = {.dtype = FSDP_F32, .numel = 7, .value = 3};

    CHECK_OK(fsdp__launch_fill(fsdp_device_stream(fsdp_meta(context)), &args));
    fsdp_context_free(context);
}

TEST(any_allocation_may_fail)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context = NULL;
        fsdp_status status = fsdp_context_create(NULL, &context);
        fsdp_device *devices[2] = {NULL, NULL};

        for (int d = 0; d < 2 && status == FSDP_OK; d++) {
            void *block = NULL;

            devices[d] = d ? fsdp_meta(context) : fsdp_cpu(context);
            status =
                devices[d] ? fsdp__device_alloc(devices[d], 1000, FSDP_MEMORY_GRADIENT, &block) : fsdp_last_status();
            fsdp__device_free(devices[d], block, 1000, FSDP_MEMORY_GRADIENT);
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        if (context)
            CHECK_EQ(test_live_bytes(context), 0);
        fsdp_context_free(context);
    }
}

TEST(a_thread_that_has_no_room_is_an_error_that_names_the_limit)
{
    enum {
        MOST = 100
    };
    struct rlimit before = test_leave_address_space((size_t)64 << 20);
    fsdp_context *context = test_context();
    fsdp_device *cpu = CHECK_PTR(fsdp_cpu(context));
    fsdp_stream *streams[MOST] = {NULL};
    fsdp_status status = FSDP_OK;

    for (int i = 0; i < MOST && status == FSDP_OK; i++)
        status = fsdp_stream_create(cpu, FSDP_STREAM_WORKER, &streams[i]);
    CHECK_ERROR(status, FSDP_NO_MEMORY, "cannot start the thread of a stream: ");
    CHECK_CONTAINS(fsdp_last_error(), "'ulimit -u'");
    CHECK_CONTAINS(fsdp_last_error(), "'ulimit -v'");
    test_set_address_space(before);
    for (int i = 0; i < MOST; i++)
        fsdp_stream_free(streams[i]);
    fsdp_context_free(context);
}

TEST(the_devices_own_stream_cannot_be_freed)
{
    fsdp_context *context = test_context();
    fsdp_device *device = test_device(context);

    fsdp_stream_free(fsdp_device_stream(device));
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
    fsdp_context_free(context);
}
