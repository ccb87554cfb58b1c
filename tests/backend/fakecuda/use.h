/* use.h - what tests on the fake GPU do alike. */
#ifndef TESTS_FAKECUDA_USE_H
#define TESTS_FAKECUDA_USE_H

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

#endif
