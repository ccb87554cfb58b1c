/* The device that things run on without bytes: what is written is forgotten, what is read is zero, and the products
 * that are launched count. */
#include "base/limits.h"
#include "device/device.h"
#include "device/dry.h"
#include "device/kernels.h"
#include "support/test.h"

#include <string.h>
#include <sys/resource.h>

TEST(it_is_not_the_meta_device)
{
    fsdp_context *context = test_context();
    fsdp_device *dry = CHECK_PTR(fsdp__dry(context));

    CHECK(dry == fsdp__dry(context));
    CHECK_STRING(fsdp_device_name(dry), "dry");
    CHECK(!fsdp_device_is_meta(dry));
    CHECK(!fsdp__device_has_bytes(dry) && !fsdp__device_has_bytes(fsdp_meta(context)));
    CHECK(fsdp__device_has_bytes(fsdp_cpu(context)));
    CHECK(fsdp__device_host_access(dry) && fsdp__device_shared_memory(dry)); /* of a fake world */
    fsdp_context_free(context);
}

TEST(what_is_written_is_forgotten)
{
    fsdp_context *context = test_context();
    fsdp_device *dry = CHECK_PTR(fsdp__dry(context));
    float values[] = {1, 2, 3}, back[] = {4, 5, 6}, zeros[3] = {0};
    void *memory;

    CHECK_OK(fsdp__device_alloc(dry, sizeof values, FSDP_MEMORY_ACTIVATION, &memory));
    CHECK_OK(fsdp__copy_to_device(fsdp_device_stream(dry), memory, values, sizeof values));
    CHECK_OK(fsdp__copy_to_host(fsdp_device_stream(dry), back, memory, sizeof back));
    CHECK_BYTES(back, zeros, sizeof back);
    back[1] = 1;
    CHECK_OK(fsdp__run_copy_to_host(fsdp_device_stream(dry), back, memory, sizeof back));
    CHECK_BYTES(back, zeros, sizeof back);
    fsdp__device_free(dry, memory, sizeof values, FSDP_MEMORY_ACTIVATION);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

static fsdp_status add_flops(void *arg, fsdp__probe_event *e)
{
    int64_t *flops = arg;

    *flops += fsdp__kernel_flops((fsdp__kernel)e->kind, e->object);
    return FSDP_OK;
}

TEST(products_count)
{
    fsdp_context *context = test_context();
    fsdp_device *dry = CHECK_PTR(fsdp__dry(context));
    fsdp_stream *stream = fsdp_device_stream(dry);
    const fsdp__matmul_args matmul = {.m = 3, .n = 5, .k = 7, .batch = 2};
    fsdp__attention_backward_args attention = {
        .forward = {.batch = 2, .q_time = 3, .kv_time = 4, .heads = 6, .kv_heads = 2, .head_dim = 8}};
    const fsdp__conv2d_weight_args convolution = {.sizes = {.batch = 2,
                                                            .groups = 2,
                                                            .in = 4,
                                                            .out = 6,
                                                            .out_height = 5,
                                                            .out_width = 3,
                                                            .kernel_height = 3,
                                                            .kernel_width = 2}};
    fsdp__subscriber *subscriber;
    int64_t flops = 0;

    CHECK_EQ(fsdp__kernel_flops(FSDP__KERNEL_CONV2D_WEIGHT, &convolution), 2 * 2 * 6 * 5 * 3 * 2 * 3 * 2);
    subscriber =
        CHECK_PTR(fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED), add_flops, &flops));
    CHECK_OK(fsdp__launch_matmul(stream, &matmul));
    CHECK_EQ(flops, 2 * 2 * 3 * 5 * 7);
    CHECK_OK(fsdp__launch_fill_run(stream, (void *)64, FSDP_F32, 9, 1));
    CHECK_EQ(flops, 2 * 2 * 3 * 5 * 7);
    fsdp__unsubscribe(subscriber);
    CHECK_OK(fsdp__launch_matmul(stream, &matmul));
    CHECK_EQ(flops, 2 * 2 * 3 * 5 * 7); /* nobody listens */
    CHECK_EQ(fsdp__kernel_flops(FSDP__KERNEL_ATTENTION_FORWARD, &attention.forward), 2 * 2 * 2 * 6 * 3 * 4 * 8);
    CHECK_EQ(fsdp__kernel_flops(FSDP__KERNEL_ATTENTION_BACKWARD, &attention), 2 * 4 * 2 * 6 * 3 * 4 * 8);
    attention.forward.causal = true; /* queries see 2, 3 and 4 keys */
    CHECK_EQ(fsdp__kernel_flops(FSDP__KERNEL_ATTENTION_FORWARD, &attention.forward), 2 * 2 * 2 * 6 * 9 * 8);
    attention.forward.window = 3; /* 2, 3 and 3 */
    CHECK_EQ(fsdp__kernel_flops(FSDP__KERNEL_ATTENTION_FORWARD, &attention.forward), 2 * 2 * 2 * 6 * 8 * 8);
    attention.forward.window = 1;
    CHECK_EQ(fsdp__kernel_flops(FSDP__KERNEL_ATTENTION_FORWARD, &attention.forward), 2 * 2 * 2 * 6 * 3 * 8);
    attention.forward.window = 0, attention.forward.pairs = 7; /* of both batches, in short documents */
    CHECK_EQ(fsdp__kernel_flops(FSDP__KERNEL_ATTENTION_BACKWARD, &attention), 2 * 4 * 6 * 7 * 8);
    fsdp_context_free(context);
}

/* Scratch is what differs from machine to machine. */
TEST(a_peak_without_workspace)
{
    fsdp_context *context = test_context();
    fsdp_device *dry = CHECK_PTR(fsdp__dry(context));
    fsdp_memory_stats stats;
    void *scratch, *a;

    CHECK_OK(fsdp__device_alloc(dry, 640, FSDP_MEMORY_WORKSPACE, &scratch));
    CHECK_OK(fsdp__device_alloc(dry, 128, FSDP_MEMORY_ACTIVATION, &a));
    fsdp_device_memory(dry, &stats);
    CHECK_EQ(stats.peak_total_bytes, 768);
    CHECK_EQ(stats.peak_without_workspace_bytes, 128);
    fsdp__device_free(dry, a, 128, FSDP_MEMORY_ACTIVATION);
    fsdp_device_memory(dry, &stats);
    CHECK_EQ(stats.peak_without_workspace_bytes, 128);
    fsdp_device_reset_peak(dry);
    fsdp_device_memory(dry, &stats);
    CHECK_EQ(stats.peak_without_workspace_bytes, 0);
    fsdp__device_free(dry, scratch, 640, FSDP_MEMORY_WORKSPACE);
    fsdp_context_free(context);
}

/* Under `ulimit -v`, or valgrind. */
TEST(a_process_with_few_addresses_has_a_dry_gpu)
{
    const rlim_t much = (rlim_t)1 << 50;
    struct rlimit before, tight;
    fsdp_context *context;
    fsdp_device *device;
    void *memory[3];

    if (TEST_SANITIZED)
        skip();
    context = test_context();
    CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
    tight = before;
    tight.rlim_cur = much;
    CHECK_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    tight.rlim_cur = much - fsdp__address_space_left() + ((rlim_t)9 << 30);
    CHECK_EQ(setrlimit(RLIMIT_AS, &tight), 0);
    device = CHECK_PTR(fsdp__dry_gpu(context));
    for (int i = 0; i < 3; i++) /* more than a segment can have */
        CHECK_OK(fsdp__device_alloc(device, (size_t)1 << 30, FSDP_MEMORY_ACTIVATION, &memory[i]));
    for (int i = 0; i < 3; i++)
        fsdp__device_free(device, memory[i], (size_t)1 << 30, FSDP_MEMORY_ACTIVATION);
    CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
    fsdp_context_free(context);
}
