/* cpu_device.c - the CPU as a device: its memory, and its table. */
#include "backend/cpu/cpu_device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/limits.h"

#define HUGE_PAGE ((size_t)2 << 20)

/* ---- memory ---- */

/* Aligns to a huge page, since a segment would have none at its ends otherwise; what is outside is returned at once. */
fsdp_status fsdp__cpu_memory_alloc(size_t bytes, void **out)
{
    size_t padded = bytes + HUGE_PAGE, head;
    unsigned char *range = MAP_FAILED;

    if (padded > bytes)
        range = mmap(NULL, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (range == MAP_FAILED)
        return FSDP_FAIL(FSDP_NO_MEMORY, "the system has no segment of %zu bytes: %s%s", bytes, strerrordesc_np(errno),
                         fsdp__limit_behind(errno));
    head = (HUGE_PAGE - (uintptr_t)range % HUGE_PAGE) % HUGE_PAGE;
    if (head > 0)
        (void)munmap(range, head);
    (void)munmap(range + head + bytes, HUGE_PAGE - head);
#ifdef MADV_HUGEPAGE
    (void)madvise(range + head, bytes, MADV_HUGEPAGE); /* a kernel without huge pages refuses: no harm */
#endif
    *out = range + head;
    return FSDP_OK;
}

void fsdp__cpu_memory_free(void *memory, size_t bytes)
{
    (void)munmap(memory, bytes);
}

static fsdp_status cpu_segment_alloc(fsdp_device *device, size_t bytes, void **out)
{
    (void)device;
    return fsdp__cpu_memory_alloc(bytes, out);
}

static void cpu_segment_free(fsdp_device *device, void *segment, size_t bytes)
{
    (void)device;
    fsdp__cpu_memory_free(segment, bytes);
}

/* Copies in both directions by the kernel that copies, since all memory is the host's. It needs no scratch, which may
 * be one side. */
static fsdp_status cpu_copy(fsdp_stream *stream, void *dst, const void *src, size_t bytes)
{
    const fsdp__span span = {src, dst, (int64_t)bytes};

    return fsdp__run_kernel(stream, FSDP__KERNEL_CAST_SPANS, &(fsdp__cast_spans_args){&span, 1, FSDP_U8, FSDP_U8});
}

const fsdp__backend fsdp__backend_cpu = {
    .name = "cpu",
    .most = 1,
    .has_bytes = true,
    .host_access = true,
    .shared_memory = true,
    .prepare_thread = fsdp__cpu_prepare_creator,
    .prepare_kernel = fsdp__cpu_prepare_kernel,
    .segment_alloc = cpu_segment_alloc,
    .segment_free = cpu_segment_free,
    .copy_to_device = cpu_copy,
    .copy_to_host = cpu_copy,
    .stream_create = fsdp__cpu_stream_create,
    FSDP__CPU_STREAM_SLOTS,
    .kernels = fsdp__cpu_kernels,
};
