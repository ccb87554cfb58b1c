/* backend.h - the two tables that a backend fills. registry.c lists the backends; nobody includes a backend's
 * headers. */
#pragma once

#include "device/clique.h"
#include "device/kernels.h"
#include "device/links.h"
#include "device/worker.h"

typedef struct fsdp__backend {
    const char *name; /* "cpu", "meta", "dry" */
    int most;         /* devices of this backend in a context, at most; if it is one, messages show no ordinal */
    bool has_bytes;   /* false: pointers are never followed (meta, dry) */
    bool is_meta;     /* modules are built here, and get their memory on another device */

    /* What may be done with the device's memory other than by its own kernels. */
    bool host_access; /* the host may follow the device's pointers, and its kernels the host's */
    /* It computes on memory that the ranks of a machine share: parameters may lie there in place or be cast into it.
     * Without this each rank gathers a copy (shard/group/residence.h). */
    bool shared_memory;
    /* One product of several weights that lie side by side takes less time than a product of each
     * (fsdp_linear_group). */
    bool joins_products;
    /* A head and its loss take at least so many rows at a time; 0: as few as are worth reading the weight for. */
    int head_rows;
    /* Its products of 16-bit matrices write f32 in as little time. Gradients that are reduced in f32 are made so. */
    bool wide_gradients;
    bool gelu_products; /* a product takes GELU or its gradient along (fsdp__matmul_args) in less time than a pass takes
                         */
    /* Memory is worth more than the time in which it computes cheap results of a forward again, in its backward. */
    bool makes_again;
    bool sums_operands; /* a product adds up an operand (fsdp__matmul_args) in less time than a pass over it takes */
    bool carries;       /* collectives can be issued on its streams (comm/carrier.h) */
    bool narrow_logits; /* their logits are in the dtype of the weight, which may have 16 bits; otherwise in f32 */

    /* Optional. Counts the devices that there are, of which ranks take turns; fails, and says why, where there is none.
     * NULL: a rank takes the first. [thread-safe] */
    fsdp_status (*count)(int *out);
    /* Optional. Open and close the device's own state in device->state; `close` is called after the last segment and
     * stream are gone. */
    fsdp_status (*open)(fsdp_device *device);
    void (*close)(fsdp_device *device);

    /* Optional. Fills in what fsdp__device_look returns, which is zero. */
    void (*look)(fsdp_device *device, fsdp__device_facts *out);

    /* Optional. Writes what fsdp__device_links does, of at least two; nothing if that fails. Returns the worst way. */
    fsdp__link (*links)(fsdp_device *device, int count, char *text, size_t bytes);

    /* Optional. Fails, as all that the device is asked for does, where it has failed for good. NULL: no device does.
     * [thread-safe] */
    fsdp_status (*alive)(const fsdp_device *device);
    /* For a device that carries. Makes all that it is asked for later, and what it is being asked for, fail with
     * `text`. The first text stays. [thread-safe] */
    void (*condemn)(fsdp_device *device, fsdp_status status, const char *text);
    /* The same: asks `judge` after each wait for the device, and condemns it when that fails. */
    void (*judge)(fsdp_device *device, fsdp_status (*judge)(void *world), void *world);

    /* Optional. Called once per device, on the thread that creates it: sets the floating point mode and the number of
     * threads. */
    fsdp_status (*prepare_thread)(fsdp_device *device);
    /* Optional. Called by a thread before each kernel that it runs itself: it may not be the one that has created the
     * device, and another device may have set it otherwise. */
    fsdp_status (*prepare_kernel)(const fsdp_device *device);

    /* Optional. Gets ready for attention by a library's kernels, and fails where there is no such library; may be
     * called again. NULL: there are only the own ones. */
    fsdp_status (*open_attention)(fsdp_device *device);

    /* Large pieces of memory for the ledger's allocator; at least 64-byte aligned. [thread-safe] */
    fsdp_status (*segment_alloc)(fsdp_device *device, size_t bytes, void **out);
    void (*segment_free)(fsdp_device *device, void *segment, size_t bytes);
    /* For a device whose `grows` was set when it was opened: as fsdp__segment_source has them. */
    fsdp_status (*segment_grow)(fsdp_device *device, void *segment, size_t bytes, size_t more);
    void (*segment_fit)(fsdp_device *device, void *segment, size_t *from, size_t *end);
    void (*segment_cut)(fsdp_device *device, void *segment, size_t from, size_t end);
    /* Optional. As fsdp__segment_source has it; may be called while the device's own stream is entered. */
    fsdp_status (*issued)(fsdp_device *device, fsdp__device_moment **out);
    /* Scratch that the stream's kernels ask for while they run, as kernels see it; what was issued to the stream before
     * may still use scratch that is freed. NULL: it is taken from segments. [thread-safe] */
    fsdp_status (*scratch_alloc)(fsdp_stream *stream, size_t bytes, void **out);
    void (*scratch_free)(fsdp_stream *stream, void *scratch, size_t bytes);
    /* Optional, both. Return whether scratch was freed for which nobody has waited yet; and wait until the streams have
     * come to where it was, so that its memory is the device's again. [thread-safe] */
    bool (*scratch_owed)(fsdp_device *device);
    void (*scratch_settle)(fsdp_device *device);

    /* Host memory that kernels and collectives of the device may use in place. `host_register` makes such memory of
     * what somebody else has allocated; FSDP_UNSUPPORTED where the system refuses. NULL: any host memory will do, or
     * (meta) nobody asks. [thread-safe] */
    fsdp_status (*host_alloc)(fsdp_device *device, size_t bytes, void **out);
    void (*host_free)(fsdp_device *device, void *memory, size_t bytes);
    fsdp_status (*host_register)(fsdp_device *device, void *memory, size_t bytes);
    void (*host_unregister)(fsdp_device *device, void *memory, size_t bytes);

    /* For a device that carries: as fsdp__device_export and what follows it have them, without counting. On a device
     * that is lost, the last two wait for what its streams still do: nobody else can tell. */
    fsdp_status (*export_alloc)(fsdp_device *device, size_t bytes, fsdp__export *out);
    void (*export_free)(fsdp_device *device, const fsdp__export *memory);
    fsdp_status (*import_open)(fsdp_device *device, const fsdp__export *theirs, void **out);
    void (*import_close)(fsdp_device *device, const fsdp__export *theirs, void *memory);
    fsdp_status (*mark_all)(fsdp_device *device, fsdp__device_moment **out);
    bool (*has_ended)(fsdp_device *device);
    fsdp_status (*try_words)(fsdp_device *device, uint32_t *word);
    fsdp_status (*write_word)(fsdp_stream *stream, uint32_t *word, uint32_t value);
    fsdp_status (*await_word)(fsdp_stream *stream, uint32_t *word, uint32_t value);

    /* Copy bytes between the host and the device, from inside the stream's work, in the calling thread: as with a
     * kernel, the copy is issued on return. The host's memory may be any; the device's may be the stream's scratch.
     * NULL: nothing is copied. */
    fsdp_status (*copy_to_device)(fsdp_stream *stream, void *device, const void *host, size_t bytes);
    fsdp_status (*copy_to_host)(fsdp_stream *stream, void *host, const void *device, size_t bytes);
    /* Optional. Copies in the same way, and has read the host's memory on return. NULL: the host waits for a copy. */
    fsdp_status (*hand_to_device)(fsdp_stream *stream, void *device, const void *host, size_t bytes);

    /* Optional. Waits, inside the stream's work, until the kernels that were run there are complete. NULL: a kernel is
     * complete when it returns, as where kernels run on threads of the host. */
    fsdp_status (*stream_settle)(fsdp_stream *stream);

    /* Streams. `mode` is what was asked for; a backend may give a stronger order, never a weaker one, and
     * may run behind the host even if it was asked to be in step with it. */
    fsdp_status (*stream_create)(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out);
    void (*stream_free)(fsdp_stream *stream);
    /* Also runs the work on a device without bytes: the work itself must not follow such pointers. */
    fsdp_status (*stream_enqueue)(fsdp_stream *stream, fsdp_status (*work)(fsdp_stream *, const void *),
                                  const void *argument, size_t bytes);
    fsdp_status (*stream_synchronize)(fsdp_stream *stream);
    fsdp_status (*stream_check)(fsdp_stream *stream); /* returns the failure of work done so far, without waiting */
    /* Optional, both. Return the mark behind what was queued so far, which the caller owns; and make later work start
     * after a mark, of a stream of any device with bytes. NULL: everything is done when it is queued. */
    fsdp_status (*stream_mark)(fsdp_stream *stream, fsdp__mark *out);
    fsdp_status (*stream_await)(fsdp_stream *stream, fsdp__mark mark);
    /* Optional, both. Returns whether the caller may issue kernels to the stream in its own thread, by
     * fsdp__run_kernel, until it leaves: nothing is queued that would come before. NULL: work is always queued, unless
     * the stream is inline. */
    bool (*stream_enter)(fsdp_stream *stream);
    void (*stream_leave)(fsdp_stream *stream);
    /* Optional. Issues, from inside the stream's work, a moment that has a `time`, which the caller owns. NULL: what
     * runs in the work is done when it returns, and the device's clock is the host's. Not called on a device without
     * bytes, where nothing takes time. */
    fsdp_status (*stream_stamp)(fsdp_stream *stream, fsdp__device_moment **out);
    /* Optional, all four. As fsdp__device_activities_start and what follows it have them; where a device keeps no
     * record of its own, NULL. */
    fsdp_status (*activities_start)(fsdp_device *device);
    fsdp_status (*activities_stop)(fsdp_device *device, fsdp__activity_listener *tell, void *arg,
                                   fsdp__activity_sum *out);
    void (*activity_enter)(fsdp_device *device, uint64_t number);
    void (*activity_leave)(fsdp_device *device);
    /* Optional. Returns the handle by which the device's own library knows the stream, when all that was queued has
     * been issued to it; NULL on failure. */
    void *(*stream_native)(fsdp_stream *stream);
    /* What joins devices of several ranks. NULL: nothing does. */
    const fsdp__clique_ops *cliques;

    /* FSDP__KERNELS functions. NULL on a device without bytes, where a launch is told to subscribers and does nothing.
     */
    const fsdp__kernel_function *kernels;
    /* Optional. Refuses a launch before it is queued; `args` is the launch's own copy. */
    fsdp_status (*check_launch)(fsdp_stream *stream, fsdp__kernel kernel, void *args);
} fsdp__backend;

/* A backend that is found as if it were in the list of registry.c. Register it while the process has one thread. */
typedef struct fsdp__registered_backend {
    const fsdp__backend *backend;
    struct fsdp__registered_backend *next; /* for registry.c */
} fsdp__registered_backend;
void fsdp__backend_register(fsdp__registered_backend *place);

/* All are defined in backend/ and listed in device/registry.c. */
extern const fsdp__backend fsdp__backend_cpu;
extern const fsdp__backend fsdp__backend_meta;
extern const fsdp__backend fsdp__backend_dry;

/* Has a function for every kernel (backend/cpu/kernels_table.c). */
extern const fsdp__kernel_function fsdp__cpu_kernels[FSDP__KERNELS];
