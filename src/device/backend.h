/* backend.h - the two tables a backend fills. registry.c lists the backends; nobody includes a backend's headers. */
#ifndef DEVICE_BACKEND_H
#define DEVICE_BACKEND_H

#include "device/kernels.h"

typedef struct fsdp__backend {
    const char *name; /* "cpu", "meta" */
    bool has_bytes;   /* false: pointers are never followed (meta) */

    /* Optional. Once per device, on the thread that creates it: floating point mode, thread count. */
    void (*prepare_thread)(fsdp_device *device);

    /* Large pieces of memory for the ledger allocator; at least 64-byte aligned. [thread-safe] */
    fsdp_status (*segment_alloc)(size_t bytes, void **out);
    void (*segment_free)(void *segment, size_t bytes);

    /* Streams and events. `mode` as asked for; a backend may give stronger order, never weaker. */
    fsdp_status (*stream_create)(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out);
    void (*stream_free)(fsdp_stream *stream);
    /* A device without bytes runs the work too: it is the work that must not follow such pointers. */
    fsdp_status (*stream_enqueue)(fsdp_stream *stream, fsdp_status (*work)(fsdp_stream *, const void *),
                                  const void *argument, size_t bytes);
    fsdp_status (*stream_synchronize)(fsdp_stream *stream);
    fsdp_status (*stream_check)(fsdp_stream *stream); /* the failure of work done so far, without waiting */
    fsdp_status (*event_create)(fsdp_device *device, fsdp_event **out);
    void (*event_free)(fsdp_event *event);
    fsdp_status (*event_record)(fsdp_event *event, fsdp_stream *stream);
    fsdp_status (*stream_wait_event)(fsdp_stream *stream, fsdp_event *event);
    fsdp_status (*event_synchronize)(fsdp_event *event);

    /* FSDP__KERNELS functions. NULL on a device without bytes: launches do nothing. */
    const fsdp__kernel_function *kernels;
} fsdp__backend;

/* Both defined in backend/, listed in device/registry.c. */
extern const fsdp__backend fsdp__backend_cpu;
extern const fsdp__backend fsdp__backend_meta;

/* Fills every kernel slot of the CPU's table (backend/cpu/kernels_table.c). */
extern const fsdp__kernel_function fsdp__cpu_kernels[FSDP__KERNELS];

#endif
