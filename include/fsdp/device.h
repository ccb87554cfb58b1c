/* fsdp/device.h - devices, their memory, and the streams that order their work.
 *
 * A rank has a `cpu` device and a `meta` device (shapes and accounting, no bytes), and `cuda` devices if there are
 * NVIDIA GPUs and the plug-in libfsdp-cuda.so. A stream is an ordered queue of work, which runs in the calling thread
 * (inline), on a worker thread, or on the GPU. An event marks a point in a stream that another stream or the host can
 * wait for. All kinds of stream have the same semantics.
 *
 * Every byte of a device is counted by its kind, that is, by its use. Counts change when work is issued, so the live
 * and peak bytes of a step are the same on every run.
 */
#ifndef FSDP_DEVICE_H
#define FSDP_DEVICE_H

#include "fsdp/context.h"
#include "fsdp/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory ---- */

/* Lists the kinds of memory use, with their names. */
#define FSDP_MEMORY_MAP(X)                        \
    X(PARAMETER_SHARD, "parameter shard")         \
    X(UNSHARDED_PARAMETER, "unsharded parameter") \
    X(GRADIENT, "gradient")                       \
    X(OPTIMIZER_STATE, "optimizer state")         \
    X(ACTIVATION, "activation")                   \
    X(WORKSPACE, "workspace")

typedef enum fsdp_memory_kind {
#define FSDP_MEMORY_ENUM(name, text) FSDP_MEMORY_##name,
    FSDP_MEMORY_MAP(FSDP_MEMORY_ENUM)
#undef FSDP_MEMORY_ENUM
    FSDP_MEMORY_KINDS
} fsdp_memory_kind;

typedef struct fsdp_memory_stats {
    size_t live_bytes[FSDP_MEMORY_KINDS];
    size_t peak_bytes[FSDP_MEMORY_KINDS]; /* each kind's own peak; they need not occur at the same time */
    size_t live_total_bytes, peak_total_bytes;
    size_t peak_without_workspace_bytes; /* of all kinds but workspace: the same for any number of threads */
    size_t shared_bytes;   /* part of live_total that peers on this machine also hold: resident once, not per rank */
    size_t reserved_bytes; /* allocated from the system, live or kept for reuse */
    uint64_t system_allocations; /* number of allocations from the system: constant in a steady state */
} fsdp_memory_stats;

FSDP_API const char *fsdp_memory_kind_name(fsdp_memory_kind kind);

/* ---- devices ---- */

typedef struct fsdp_device fsdp_device;

/* Return the context's devices, created on first use and owned by the context. NULL (and a last error) if out of
 * memory, or if the system does not start as many threads as the context has. A thread that opens the CPU, or computes
 * on it, from then on takes denormal numbers for zero (on x86). */
FSDP_API fsdp_device *fsdp_cpu(fsdp_context *context);
FSDP_API fsdp_device *fsdp_meta(fsdp_context *context);
/* Returns the GPU of this ordinal (from 0), created on first use and owned by the context. A negative ordinal stands
 * for the rank's own GPU: its local rank modulo the number of GPUs of its machine. Several ranks may use one GPU.
 *
 * It needs the plug-in libfsdp-cuda.so, which is looked for in the folders of FSDP_PLUGIN_PATH, beside this library (or
 * the program that contains it), in the folder `fsdp` there, and where it was installed; a driver of NVIDIA that is as
 * new as the CUDA with which the plug-in was built; and a GPU for which its kernels were compiled. NULL, and a last
 * error that says what is missing and what to do. A process that has opened a GPU must not be forked, unless the child
 * starts another program at once.
 *
 * All streams of a GPU run behind the host, whatever mode was asked for. The first failure of the GPU itself (not one
 * of memory: that can be survived) is final: every later call on the device fails with its text. */
FSDP_API fsdp_device *fsdp_cuda(fsdp_context *context, int ordinal);
/* Returns a device by its name: "cpu", "meta", "cuda" (the rank's own GPU), "cuda:1". NULL and a last error as above.
 */
FSDP_API fsdp_device *fsdp_device_open(fsdp_context *context, const char *name);
FSDP_API const char *fsdp_device_name(const fsdp_device *device); /* "cpu"; with an ordinal if there are several */
FSDP_API int fsdp_device_ordinal(const fsdp_device *device);      /* from 0, among devices of its kind */
FSDP_API bool fsdp_device_is_meta(const fsdp_device *device);
FSDP_API fsdp_context *fsdp_device_context(const fsdp_device *device);

FSDP_API void fsdp_device_memory(const fsdp_device *device, fsdp_memory_stats *out);
/* Writes who owns the live memory of the device: the ten largest owners, a line each ("512.0MiB in 2 activation
 * layers.0.w1: linear"), with the module as named from the outermost one, and for activations the operation. If a
 * request was refused (FSDP_NO_MEMORY) since the last call, these are the owners at that moment. `bytes`: 2,048 are
 * enough; a text that does not fit is cut. Call it on the context's own thread; returns `text`, or "" if that is NULL.
 */
FSDP_API const char *fsdp_device_owners(fsdp_device *device, char *text, size_t bytes);
/* Resets the peaks to what is live now. */
FSDP_API void fsdp_device_reset_peak(fsdp_device *device);

/* ======== for experts: most programs need nothing below ======== */

/* ---- kernels ---- */

/* Says which kernels compute attention (fsdp_attention) on a GPU. */
typedef enum fsdp_attention_kernels {
    FSDP_ATTENTION_EXACT,           /* the library's own, which give the same bits every time */
    FSDP_ATTENTION_FAST,            /* cuDNN's; the gradient of q differs from run to run in its last bits */
    FSDP_ATTENTION_FAST_REPEATABLE, /* those of cuDNN's that NVIDIA calls deterministic; they take 2 bytes of scratch
                                     * for each pair of a query and a key of the batch, in all heads */
} fsdp_attention_kernels;

/* Chooses the kernels for later calls on the device. EXACT is the default, and the only choice on a device that is not
 * a GPU. The others need cuDNN, 9.10 or later, which is opened now: libcudnn.so.9, and libnvrtc, are looked for where
 * the plug-in looks for all of NVIDIA's libraries (FSDP_CUDA_LIBRARIES). FSDP_UNSUPPORTED, FSDP_NOT_FOUND: it is not
 * there; nothing has changed.
 *
 * They take bfloat16 and float16, heads of up to 128 that are multiples of 8, fewer heads of keys, causal or not, a
 * window, positions, strides that are multiples of 8. What they do not take (a softcap, float32) is an error of the
 * call, FSDP_UNSUPPORTED. Calls with more keys than queries, as with a cache of keys, are computed by the own kernels
 * in any case. The first call of each shape takes about half a second of the host. Call it while nothing runs. */
FSDP_API fsdp_status fsdp_device_set_attention(fsdp_device *device, fsdp_attention_kernels kernels);

/* ---- streams and events ---- */

typedef struct fsdp_stream fsdp_stream;
typedef struct fsdp_event fsdp_event;

typedef enum fsdp_stream_mode {
    FSDP_STREAM_INLINE, /* work runs in the calling thread before the call returns */
    FSDP_STREAM_WORKER, /* work runs in order on the stream's own thread */
} fsdp_stream_mode;

/* Returns the stream that operations run on, owned by the device. On the CPU it is inline. */
FSDP_API fsdp_stream *fsdp_device_stream(fsdp_device *device);

FSDP_API fsdp_status fsdp_stream_create(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out);
/* Frees a stream after its queued work has finished; not the device's own, nor NULL: nothing happens then. */
FSDP_API void fsdp_stream_free(fsdp_stream *stream);
/* Waits on the host until all work queued so far is done. Returns the first failure of that work and clears it.
 * FSDP_STATE: the caller is itself work of the stream. [blocks] */
FSDP_API fsdp_status fsdp_stream_synchronize(fsdp_stream *stream);

/* Returns the handle by which the device's own library knows the stream: on a CUDA device its cudaStream_t. Work that
 * the caller then issues to the handle runs after all work that was queued on the stream before. So the call waits
 * until that work has been issued, but not until it has run; inside the stream's own work (fsdp_launch_device_kernel)
 * it does not wait. A function of the host that the caller issues to it (cudaLaunchHostFunc) must not call this
 * library, whose calls may wait for the stream. NULL where there is no such handle, as on a CPU; NULL with a last error
 * when the device has failed. [blocks] */
FSDP_API void *fsdp_stream_native(fsdp_stream *stream);

FSDP_API fsdp_status fsdp_event_create(fsdp_device *device, fsdp_event **out);
FSDP_API void fsdp_event_free(fsdp_event *event);
/* Marks the work queued on `stream` so far; a later record moves the mark. */
FSDP_API fsdp_status fsdp_event_record(fsdp_event *event, fsdp_stream *stream);
/* Makes later work of `stream` start after the mark. An event that was never recorded is not waited for. [stream] */
FSDP_API fsdp_status fsdp_stream_wait_event(fsdp_stream *stream, fsdp_event *event);
/* Waits on the host for the mark. It does not report failures of the work before the mark; fsdp_stream_synchronize
 * does. FSDP_STATE: the caller is itself work of the marked stream, at or before the mark. [blocks] */
FSDP_API fsdp_status fsdp_event_synchronize(fsdp_event *event);

#ifdef __cplusplus
}
#endif
#endif
