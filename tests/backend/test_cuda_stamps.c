/* The times that CUDA gives to what happens in a stream, on the fake runtime (tests/backend/fakecuda): they are in the
 * order of the stream, cost nothing while nobody takes them, and a failure leaves nothing behind. */
#include "support/test.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <unistd.h>

#include "backend/fakecuda/use.h"
#include "base/clock.h"
#include "device/device.h"
#include "device/stamps.h"

enum {
    OUT_OF_MEMORY = 2, /* cudaError_t */
    SLACK_NS = 20000000
};

/* Returns how many events and streams were made since the count began. */
static long made(void)
{
    return fakecuda.uses("cudaEventCreateWithFlags") + fakecuda.uses("cudaStreamCreateWithPriority");
}

TEST(stamps_have_times_in_the_order_of_the_stream)
{
    fsdp_context *context = test_context();
    fsdp_device *gpu = open_gpu(context);
    fsdp_stream *other = NULL;
    long before = 0;

    CHECK_OK(fsdp_stream_create(gpu, FSDP_STREAM_WORKER, &other));
    fakecuda.fail_call("cudaEventCreateWithFlags", 0, 0, false);
    fakecuda.fail_call("cudaStreamCreateWithPriority", 0, 0, false);
    /* The second takes the events of the first; one in which the clock is set anew takes two more, once. */
    for (int i = 0; i < 4 && (i < 2 || made() != before); i++) {
        before = made();
        stamps_check(fsdp_device_stream(gpu));
        CHECK(made() > 0);
    }
    CHECK_EQ(made(), before);
    stamps_check(other);
    fsdp_stream_free(other);
    fsdp_context_free(context);
    check_nothing_lives();
}

static fsdp_status stamp_inside(fsdp_stream *stream, const void *argument)
{
    return fsdp__stream_stamp(stream, *(fsdp__stamp *const *)argument);
}

TEST(a_stamp_that_cuda_refuses_is_none)
{
    static const char *const calls[] = {"cudaEventCreateWithFlags", "cudaStreamCreateWithPriority", "cudaEventRecord",
                                        "cudaEventSynchronize", "cudaEventElapsedTime"};

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (long n = 1, failed = 1; failed; n++) {
            fsdp_context *context = test_context();
            fsdp_stream *stream = fsdp_device_stream(open_gpu(context));
            fsdp__stamp stamp = {.moment = NULL}, *out = &stamp;
            fsdp_status status;
            int64_t ns = 0;

            fakecuda.fail_call(calls[i], n, OUT_OF_MEMORY, false);
            status = fsdp__stream_enqueue(stream, stamp_inside, &out, sizeof out);
            if (status == FSDP_OK)
                status = fsdp_stream_synchronize(stream);
            CHECK(status == FSDP_OK || !stamp.moment);
            if (status == FSDP_OK)
                status = fsdp__stamp_read(&stamp, &ns);
            failed = fakecuda.failed(calls[i]);
            CHECK_EQ(status == FSDP_OK, !failed);
            CHECK_EQ(ns > 0, !failed);
            fakecuda.fail_call(calls[i], 0, 0, false);
            fsdp_context_free(context);
            check_nothing_lives();
        }
}

/* Takes a stamp, and checks that the host's clock was so when the device was there. The clock is set meanwhile, so a
 * stamp is late by no more than all of this takes. */
static void check_on_time(fsdp_stream *stream)
{
    fsdp__stamp stamp = {.moment = NULL}, *out = &stamp;
    int64_t before = fsdp__clock_ns(), ns = 0, after;

    CHECK_OK(fsdp__stream_enqueue(stream, stamp_inside, &out, sizeof out));
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_OK(fsdp__stamp_read(&stamp, &ns));
    after = fsdp__clock_ns();
    CHECK(ns > before - SLACK_NS && ns < after + (after - before) + SLACK_NS);
}

/* The device's clock runs one percent fast: over the pause that is more than twice the slack. */
TEST(a_stamp_behind_a_pause_has_the_time_of_the_host)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = fsdp_device_stream(open_gpu(context));

    fakecuda.set_clock_rate(10000);
    check_on_time(stream);
    (void)usleep(5200000);
    check_on_time(stream);
    fakecuda.set_clock_rate(0);
    fsdp_context_free(context);
    check_nothing_lives();
}

#else
MISSING_TEST(cuda)
#endif
