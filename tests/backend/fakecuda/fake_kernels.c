/* fake_kernels.c - the plug-in's table of kernels, in place of kernels_table.c: each moves its buffers to the mapping
 * that can be read and written ([Note: memory that is mapped twice] in fake_memory.c), as the simulated device does,
 * and then runs. So does the scratch that kernels ask for. */
#include "backend/cuda/kernels_table.h"
#include "backend/fakecuda/fake.h"
#include "check/kernel_copy.h"
#include "device/impl.h"

/* Memory of the stream's device, or memory of the host that is pinned. */
static void *reach(const fsdp_stream *stream, const void *pointer, size_t bytes)
{
    fake_place place = fake_find(pointer, bytes);

    if (!place.found || !place.whole ||
        (place.kind <= FAKE_DEVICE_MEMORY_OF_STREAM && !fake_reaches(stream->device->ordinal, place.device)))
        return NULL;
    return place.mapped;
}

#define MOVED(NAME, name, class)                                                                    \
    extern fsdp_status fsdp__cuda_##name(fsdp_stream *stream, const void *args);                    \
    static fsdp_status moved_##name(fsdp_stream *stream, const void *args)                          \
    {                                                                                               \
        return fsdp__kernel_run_moved(stream, FSDP__KERNEL_##NAME, args, reach, fsdp__cuda_##name); \
    }
FSDP__KERNEL_MAP(MOVED)
#undef MOVED

#define ENTRY(NAME, name, class) [FSDP__KERNEL_##NAME] = moved_##name,
const fsdp__kernel_function fsdp__cuda_kernels[FSDP__KERNELS] = {FSDP__KERNEL_MAP(ENTRY)};

/* The linker puts this in place of the function that kernels call (--wrap). */
void *__real_fsdp__stream_workspace(fsdp_stream *stream, size_t bytes);
void *__wrap_fsdp__stream_workspace(fsdp_stream *stream, size_t bytes);
void *__wrap_fsdp__stream_workspace(fsdp_stream *stream, size_t bytes)
{
    void *scratch = __real_fsdp__stream_workspace(stream, bytes);

    return scratch ? reach(stream, scratch, bytes) : NULL;
}
