/* use.h - what tests on the fake GPU do alike. */
#pragma once

#include <stdatomic.h>
#include <unistd.h>

#include "backend/fakecuda/control.h"
#include "base/compiler.h"
#include "device/device.h"
#include "support/test.h"

FSDP__UNUSED static void check_nothing_lives(void)
{
    char text[128];

    if (fakecuda.live(text, sizeof text) != 0)
        TEST_FAIL("left over: %s", text);
}

FSDP__UNUSED static fsdp_device *open_gpu(fsdp_context *context)
{
    return CHECK_PTR(fsdp_cuda(context, 0));
}

/* The work of a stream that waits until an int is not 0; and that fails. */
FSDP__UNUSED static fsdp_status wait_for_flag(fsdp_stream *stream, const void *argument)
{
    (void)stream;
    while (!atomic_load(*(atomic_int *const *)argument))
        (void)usleep(1000);
    return FSDP_OK;
}

FSDP__UNUSED static fsdp_status break_down(fsdp_stream *stream, const void *argument)
{
    (void)stream, (void)argument;
    return FSDP_FAIL(FSDP_IO, "the host's part is broken");
}

/* Orders the later work of a stream behind what another one has so far. */
FSDP__UNUSED static void follow(fsdp_stream *stream, fsdp_stream *first)
{
    fsdp_event *event = NULL;

    CHECK_OK(fsdp_event_create(fsdp__stream_device(stream), &event));
    CHECK_OK(fsdp_event_record(event, first));
    CHECK_OK(fsdp_stream_wait_event(stream, event));
    fsdp_event_free(event);
}

/* Drops what the log tells. */
FSDP__UNUSED static void no_line(void *arg, fsdp_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

/* A GPU with memory for all numbers of a call. */
typedef struct setting {
    fsdp_context *context;
    fsdp_device *device;
    void *on_device;
    size_t bytes;
} setting;

/* Counts the calls of CUDA from here on. */
FSDP__UNUSED static void set_up(setting *s, fsdp_context *context, size_t bytes)
{
    *s = (setting){.context = context, .device = open_gpu(context), .bytes = bytes};
    CHECK_OK(fsdp__device_alloc(s->device, bytes, FSDP_MEMORY_WORKSPACE, &s->on_device));
    for (const char *const *call = fakecuda.calls; *call; call++)
        fakecuda.fail_call(*call, 0, 0, false);
}

FSDP__UNUSED static void tear_down(setting *s)
{
    fsdp__device_free(s->device, s->on_device, s->bytes, FSDP_MEMORY_WORKSPACE);
    fsdp_context_free(s->context);
    check_nothing_lives();
}

/* Runs a play while the n-th use of a call fails: for each of the calls, and for n from 1 to `most`, or until the play
 * does not use the call so often. Where tests are to be brief, n grows by `step`. */
FSDP__UNUSED static void fail_each_call(const char *const *calls, size_t count, long most, long step,
                                        void (*play)(void))
{
    for (size_t i = 0; i < count; i++)
        for (long nth = 1; nth <= most; nth += test_brief() ? step : 1) {
            bool failed;

            fakecuda.fail_call(calls[i], nth, 801 /* cudaErrorNotSupported */, false);
            play();
            failed = fakecuda.failed(calls[i]);
            fakecuda.mend();
            if (!failed)
                break;
        }
}
