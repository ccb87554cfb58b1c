/* backend.h - the two tables a backend fills. registry.c lists the backends; nobody includes a backend's headers. */
#ifndef DEVICE_BACKEND_H
#define DEVICE_BACKEND_H

#include "device/kernels.h"

typedef struct fsdp__backend {
    const char *name; /* "cpu", "meta", "dry", "sim" */
    int most;         /* devices of it in a context; where it is one, its messages show no ordinal */
    bool has_bytes;   /* false: pointers are never followed (meta, dry) */
    bool is_meta;     /* modules are built here, and get their memory elsewhere */

    /* What others than the device's own kernels may do with its memory. */
    bool host_access;   /* the host follows its pointers, and its kernels follow the host's */
    bool shared_memory; /* it computes on memory that ranks of the machine share: parameters may lie there in place or
                         * be cast into it. Without, each rank gathers a copy (shard/residence.h) */

    /* Optional. State of the device's own in device->state; `close` comes after the last segment and stream are gone.
     */
    fsdp_status (*open)(fsdp_device *device);
    void (*close)(fsdp_device *device);

    /* Optional. Once per device, on the thread that creates it: floating point mode, thread count. */
    void (*prepare_thread)(fsdp_device *device);

    /* Large pieces of memory for the ledger allocator; at least 64-byte aligned. [thread-safe] */
    fsdp_status (*segment_alloc)(fsdp_device *device, size_t bytes, void **out);
    void (*segment_free)(fsdp_device *device, void *segment, size_t bytes);
    /* Scratch that kernels ask for while they run, as the kernels see it. NULL: segments. [thread-safe] */
    fsdp_status (*scratch_alloc)(size_t bytes, void **out);
    void (*scratch_free)(void *scratch, size_t bytes);

    /* Host memory that kernels and collectives of the device may use where it lies. `register` says it of memory that
     * somebody else has allocated. NULL: any host memory is such memory, or (meta) nobody asks. [thread-safe] */
    fsdp_status (*host_alloc)(fsdp_device *device, size_t bytes, void **out);
    void (*host_free)(fsdp_device *device, void *memory, size_t bytes);
    fsdp_status (*host_register)(fsdp_device *device, void *memory, size_t bytes);
    void (*host_unregister)(fsdp_device *device, void *memory, size_t bytes);

    /* Bytes between the host and the device, in stream order. NULL: nothing is copied. */
    fsdp_status (*copy_to_device)(fsdp_stream *stream, void *device, const void *host, size_t bytes);
    fsdp_status (*copy_to_host)(fsdp_stream *stream, void *host, const void *device, size_t bytes);
    /* The same from inside work of the stream, in the calling thread: after what that work has started, done on return.
     * The stream's scratch is memory of the device here. NULL: nothing is copied. */
    fsdp_status (*run_copy_to_device)(fsdp_stream *stream, void *device, const void *host, size_t bytes);
    fsdp_status (*run_copy_to_host)(fsdp_stream *stream, void *host, const void *device, size_t bytes);

    /* Streams and events. `mode` as asked for; a backend may give stronger order, never weaker, and may run behind the
     * host where it was asked to be in step with it. */
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

    /* FSDP__KERNELS functions. NULL on a device without bytes: of launches only the products are counted. */
    const fsdp__kernel_function *kernels;
    /* Optional. Refuses a launch before it is queued; `args` are the launch's own copy. */
    fsdp_status (*check_launch)(fsdp_stream *stream, fsdp__kernel kernel, void *args);
} fsdp__backend;

/* All defined in backend/, listed in device/registry.c. */
extern const fsdp__backend fsdp__backend_cpu;
extern const fsdp__backend fsdp__backend_meta;
extern const fsdp__backend fsdp__backend_dry;
extern const fsdp__backend fsdp__backend_sim;

/* Fills every kernel slot of the CPU's table (backend/cpu/kernels_table.c). */
extern const fsdp__kernel_function fsdp__cpu_kernels[FSDP__KERNELS];

#endif
