/* support/memory.c - contexts, what their devices hold, and the one that tests compute on. */
#include <string.h>

#include "base/context.h"
#include "check/races.h"
#include "device/impl.h"
#include "support/test.h"

fsdp_context *test_context(void)
{
    fsdp_context *context = NULL;

    CHECK_OK(fsdp_context_create(&(fsdp_context_options){.threads = 1}, &context));
    test_watch_races(&context, 1);
    return context;
}

fsdp_device *test_device(fsdp_context *context)
{
    const char *name = getenv("FSDP_TEST_DEVICE");
    bool in_turn = name && strcmp(name, "cuda") == 0 && getenv("FSDP_FAKECUDA_DEVICES");
    fsdp_device *device = fsdp__device_open(context, name ? name : "cpu", in_turn ? -1 : 0);

    if (device)
        fsdp__set_front_device(device);
    return device;
}

bool test_has_gpu(void)
{
    int count = 0;
    bool has = fsdp__device_count("cuda", &count) == FSDP_OK;

    fsdp_clear_error();
    return has;
}

void test_need_gpu(void)
{
    test_skip_if(!test_has_gpu(), "there is no GPU, nor the plug-in of the fake one");
}

void test_run_behind(fsdp_device *device)
{
    fsdp_stream *stream = NULL;

    if (!fsdp__stream_is_inline(device->stream))
        return;
    CHECK_OK(fsdp_stream_synchronize(device->stream));
    CHECK_OK(fsdp_stream_create(device, FSDP_STREAM_WORKER, &stream));
    fsdp__stream_close(device->stream);
    device->stream = stream;
    fsdp__allocator_runs_behind(device->allocator);
}

int64_t test_live_bytes(fsdp_context *context)
{
    static const char *const names[] = {"cpu", "meta", "sim", "sim", "cuda", "cuda", "cuda", "cuda"};
    static const int ordinals[] = {0, 0, 0, 1, 0, 1, 2, 3};
    int64_t bytes = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        /* A device that was never used must not be made by asking. */
        const fsdp_device *device = fsdp__device_find(context, names[i], ordinals[i]);
        fsdp_memory_stats stats;

        if (!device)
            continue;
        fsdp_device_memory(device, &stats);
        /* Streams keep their workspace for as long as they live. */
        bytes += (int64_t)(stats.live_total_bytes - stats.live_bytes[FSDP_MEMORY_WORKSPACE]);
    }
    return bytes;
}

void test_drop_workspace(fsdp_context *context)
{
    fsdp_stream *stream = fsdp_device_stream(test_device(context));

    CHECK_OK(fsdp_stream_synchronize(stream));
    fsdp__stream_drop_workspace(stream);
}

void test_watch_races(fsdp_context *const *contexts, int count)
{
    const char *wanted = getenv("FSDP_TEST_RACES");

    for (int i = 0; i < count && wanted && strcmp(wanted, "1") == 0; i++)
        CHECK_OK(fsdp__races_check(contexts[i], i > 0 ? contexts[0] : NULL));
}

void test_check_races(const fsdp_context *context)
{
    char text[1024];

    if (fsdp__races_found(context, text, sizeof text))
        TEST_FAIL("%s", text);
}
