/* support/memory.c - what a context's devices hold. */
#include "base/context.h"
#include "fsdp/device.h"
#include "support/test.h"

int64_t test_live_bytes(fsdp_context *context)
{
    int64_t bytes = 0;

    for (int meta = 0; meta < 2; meta++) {
        fsdp_memory_stats stats;

        /* A device that was never used must not be made by asking. */
        if (!fsdp__context_get(context, meta ? FSDP__SLOT_META : FSDP__SLOT_CPU))
            continue;
        fsdp_device_memory(meta ? fsdp_meta(context) : fsdp_cpu(context), &stats);
        /* Streams keep their workspace for as long as they live. */
        bytes += (int64_t)(stats.live_total_bytes - stats.live_bytes[FSDP_MEMORY_WORKSPACE]);
    }
    return bytes;
}
