/* Delays hold up what they say, and change nothing but time.
 * Links: comm */
#include "check/delays.h"

#include "device/impl.h"
#include "fsdp/comm.h"
#include "support/test.h"

enum {
    COUNT = 50
};

/* A chain through two streams: each doubles what the other left. */
static float chain(const fsdp__delays *delays)
{
    fsdp_context *context = test_context();
    fsdp_device *device = fsdp_cpu(context);
    fsdp_stream *streams[2];
    fsdp_event *event;
    float *memory, result[2];

    CHECK_OK(fsdp_stream_create(device, FSDP_STREAM_WORKER, &streams[0]));
    CHECK_OK(fsdp_stream_create(device, FSDP_STREAM_WORKER, &streams[1]));
    CHECK_OK(fsdp_event_create(device, &event));
    CHECK_OK(fsdp__device_alloc(device, 2 * sizeof *memory, FSDP_MEMORY_ACTIVATION, (void **)&memory));
    fsdp__device_delay(device, delays);
    CHECK_OK(fsdp__launch_fill(streams[1], &(fsdp__fill_args){memory, FSDP_F32, 2, 1.5}));
    for (int i = 0; i < COUNT; i++) {
        CHECK_OK(fsdp_event_record(event, streams[(i + 1) % 2]));
        CHECK_OK(fsdp_stream_wait_event(streams[i % 2], event));
        CHECK_OK(fsdp__launch_binary(
            streams[i % 2],
            &(fsdp__binary_args){.a = memory, .b = memory, .y = memory, .dtype = FSDP_F32, .op = FSDP__ADD}));
        CHECK_OK(fsdp__copy_on_device(streams[i % 2], memory + 1, memory, sizeof *memory));
    }
    CHECK_OK(fsdp_stream_synchronize(streams[1]));
    CHECK_OK(fsdp_stream_synchronize(streams[0]));
    CHECK_OK(fsdp__copy_to_host(fsdp_device_stream(device), result, memory, sizeof result));
    CHECK(result[0] == result[1]);
    fsdp__device_free(device, memory, 2 * sizeof *memory, FSDP_MEMORY_ACTIVATION);
    fsdp_event_free(event);
    fsdp_stream_free(streams[0]);
    fsdp_stream_free(streams[1]);
    test_check_races(context);
    fsdp_context_free(context);
    return result[0];
}

TEST(delays_change_nothing_but_time)
{
    float plain = chain(NULL);

    for (uint64_t seed = 1; seed <= 5; seed++)
        CHECK(chain(&(fsdp__delays){.seed = seed, .most_us = 50}) == plain);
}

TEST(copies_collectives_and_one_stream_are_held_up)
{
    fsdp_context *context = test_context();
    fsdp_device *device = fsdp_cpu(context);
    fsdp_stream *own = fsdp_device_stream(device);
    float a = 1.0f, b = 2.0f;
    const fsdp__binary_args add = {.a = &a, .b = &b, .y = &b, .dtype = FSDP_F32};
    fsdp__delays delays = {.seed = 3, .most_us = 1};

    CHECK_OK(fsdp__copy_on_device(own, &a, &b, sizeof a));
    CHECK_EQ(fsdp__device_delay_draws(device), 0);
    fsdp__device_delay(device, &delays);
    CHECK_OK(fsdp__launch_binary(own, &add));
    CHECK_EQ(fsdp__device_delay_draws(device), 0);
    CHECK_OK(fsdp__copy_on_device(own, &a, &b, sizeof a));
    CHECK_EQ(fsdp__device_delay_draws(device), 1);
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    CHECK_EQ(fsdp__device_delay_draws(device), 2);
    delays.stream = own;
    fsdp__device_delay(device, &delays);
    CHECK_OK(fsdp__launch_binary(own, &add));
    CHECK_EQ(fsdp__device_delay_draws(device), 3);
    fsdp__device_delay(device, NULL);
    CHECK_OK(fsdp__copy_on_device(own, &a, &b, sizeof a));
    CHECK_EQ(fsdp__device_delay_draws(device), 3);
    fsdp_context_free(context);
}
