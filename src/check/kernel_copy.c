/* kernel_copy.c - walks over a copy of a kernel's call, and runs the kernel on it. */
#include "check/kernel_copy.h"

#include <string.h>

#include "base/alloc.h"
#include "device/impl.h"

enum {
    TABLE_BYTES = 4096 /* of a table on the stack */
};

fsdp_status fsdp__kernel_copied(fsdp__kernel kernel, const void *args, fsdp__buffer_visit visit_one, fsdp__copy_use use,
                                void *arg)
{
    _Alignas(16) unsigned char on_stack[TABLE_BYTES];
    void *table = on_stack, *on_heap = NULL;
    fsdp__kernel_args own;
    const void *theirs;
    size_t table_bytes = fsdp__kernel_table(kernel, args, &theirs);
    fsdp_status status = FSDP_OK;

    memcpy(&own, args, fsdp__kernel_infos[kernel].args_bytes);
    if (table_bytes > TABLE_BYTES) {
        table = on_heap = fsdp__malloc(table_bytes);
        FSDP__TRY_NEW(table);
    }
    if (table_bytes > 0) {
        memcpy(table, theirs, table_bytes);
        fsdp__kernel_set_table(kernel, &own, table);
    }
    fsdp__kernel_buffers(kernel, &own, visit_one, arg);
    if (use)
        status = use(arg, &own);
    fsdp__free(on_heap);
    return status;
}

/* Describes a kernel that runs on other addresses. */
typedef struct move {
    fsdp_stream *stream;
    fsdp__kernel kernel;
    fsdp__kernel_function run;
    fsdp__reach reach;
    bool failed;
    fsdp__buffer bad; /* the first one that cannot be used */
} move;

/* Lets the walk go on with what it has: a call that failed runs no kernel. */
static void *move_buffer(void *arg, const fsdp__buffer *buffer)
{
    move *m = arg;
    void *there = m->reach(m->stream, buffer->pointer, buffer->bytes);

    if (there)
        return there;
    if (!m->failed)
        m->bad = *buffer;
    m->failed = true;
    return (void *)(uintptr_t)buffer->pointer;
}

fsdp_status fsdp__kernel_unreached(const fsdp_stream *stream, fsdp__kernel kernel, const fsdp__buffer *buffer)
{
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot run kernel '%s' on device '%s': '%s' of %zu bytes at %p is neither memory of the device "
                     "nor host memory registered with it",
                     fsdp__kernel_infos[kernel].name, stream->device->name, buffer->name, buffer->bytes,
                     buffer->pointer);
}

static fsdp_status run_moved(void *arg, const void *args)
{
    move *m = arg;

    if (m->failed)
        return fsdp__kernel_unreached(m->stream, m->kernel, &m->bad);
    return m->run(m->stream, args);
}

fsdp_status fsdp__kernel_run_moved(fsdp_stream *stream, fsdp__kernel kernel, const void *args, fsdp__reach reach,
                                   fsdp__kernel_function run)
{
    move m = {.stream = stream, .kernel = kernel, .run = run, .reach = reach};

    return fsdp__kernel_copied(kernel, args, move_buffer, run_moved, &m);
}
