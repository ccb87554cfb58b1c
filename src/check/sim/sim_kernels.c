/* sim_kernels.c - runs the CPU's kernels on memory that only they reach: each call's buffers are moved to the second
 * mapping (check/kernel_buffers.c says which they are), then the CPU's kernel runs. */
#include <string.h>

#include "base/alloc.h"
#include "check/kernel_buffers.h"
#include "check/sim/sim_device.h"

enum {
    TABLE_BYTES = 4096 /* on the stack */
};

/* A walk over a call's buffers; keeps the first one that cannot be used. */
typedef struct walk {
    fsdp_stream *stream;
    bool failed;
    fsdp__buffer bad;
} walk;

static fsdp_status report(const walk *w, fsdp__kernel kernel)
{
    if (!w->failed)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot run kernel '%s' on device '%s': '%s' of %zu bytes at %p is neither memory of the device "
                     "nor host memory registered with it",
                     fsdp__kernel_infos[kernel].name, fsdp_device_name(w->stream->device), w->bad.name, w->bad.bytes,
                     w->bad.pointer);
}

static void *fail(walk *w, const fsdp__buffer *buffer)
{
    /* Let the walk go on with what it has; a call that failed runs no kernel. */
    if (!w->failed)
        w->bad = *buffer;
    w->failed = true;
    return (void *)(uintptr_t)buffer->pointer;
}

/* ---- when it is queued: what the host holds now ---- */

/* Checks more strictly than a kernel that runs: by then the host may have given the block to somebody else. */
static void *check_buffer(void *arg, const fsdp__buffer *buffer)
{
    walk *w = arg;
    const fsdp_device *device = w->stream->device;
    void *mapped = fsdp__sim_translate(device, buffer->pointer, buffer->bytes);

    if (!mapped ||
        (mapped != buffer->pointer && !fsdp__allocator_covers(device->allocator, buffer->pointer, buffer->bytes)))
        return fail(w, buffer);
    return (void *)(uintptr_t)buffer->pointer;
}

fsdp_status fsdp__sim_check_launch(fsdp_stream *stream, fsdp__kernel kernel, void *args)
{
    walk w = {.stream = stream};

    fsdp__kernel_buffers(kernel, args, check_buffer, &w);
    return report(&w, kernel);
}

/* ---- when it runs ---- */

static void *move_buffer(void *arg, const fsdp__buffer *buffer)
{
    walk *w = arg;
    void *mapped = fsdp__sim_reach(w->stream, buffer->pointer, buffer->bytes);

    return mapped ? mapped : fail(w, buffer);
}

/* Runs the kernel on moved buffers; the caller's arguments and table stay as they are. */
static fsdp_status run_moved(fsdp_stream *stream, fsdp__kernel kernel, const void *args)
{
    _Alignas(16) unsigned char on_stack[TABLE_BYTES];
    void *table = on_stack, *on_heap = NULL;
    walk w = {.stream = stream};
    fsdp__kernel_args own;
    const void *theirs;
    size_t table_bytes = fsdp__kernel_table(kernel, args, &theirs);
    fsdp_status status;

    memcpy(&own, args, fsdp__kernel_infos[kernel].args_bytes);
    if (table_bytes > TABLE_BYTES) {
        table = on_heap = fsdp__malloc(table_bytes);
        if (!table)
            return FSDP_NO_MEMORY;
    }
    if (table_bytes > 0) {
        memcpy(table, theirs, table_bytes);
        fsdp__kernel_set_table(kernel, &own, table);
    }
    fsdp__kernel_buffers(kernel, &own, move_buffer, &w);
    status = report(&w, kernel);
    if (status == FSDP_OK)
        status = fsdp__cpu_kernels[kernel](stream, &own);
    fsdp__free(on_heap);
    return status;
}

#define MOVED(NAME, name, class)                                           \
    static fsdp_status moved_##name(fsdp_stream *stream, const void *args) \
    {                                                                      \
        return run_moved(stream, FSDP__KERNEL_##NAME, args);               \
    }
FSDP__KERNEL_MAP(MOVED)
#undef MOVED

#define ENTRY(NAME, name, class) [FSDP__KERNEL_##NAME] = moved_##name,
const fsdp__kernel_function fsdp__sim_kernels[FSDP__KERNELS] = {FSDP__KERNEL_MAP(ENTRY)};
