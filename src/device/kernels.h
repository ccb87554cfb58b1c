/* kernels.h - every computation that a device can do, as one list (kernel_args.h).
 *
 * A kernel takes one plain struct of pointers and sizes, is launched on a stream and cannot fail for a reason of its
 * own (ops/ has checked the arguments, the stream provides workspace). The list gives the enum, the table of a backend,
 * the typed launch functions fsdp__launch_<name>() and the table that tests and profiles walk. */
#pragma once

#include "device/device.h"
#include "device/kernel_args.h"

typedef fsdp_status (*fsdp__kernel_function)(fsdp_stream *stream, const void *args);

/* Holds the arguments of any kernel. */
typedef union fsdp__kernel_args {
#define FSDP__KERNEL_ARGS(NAME, name, class) fsdp__##name##_args name;
    FSDP__KERNEL_MAP(FSDP__KERNEL_ARGS)
#undef FSDP__KERNEL_ARGS
} fsdp__kernel_args;

/* ---- the memory that a kernel uses ---- */

typedef enum fsdp__access {
    FSDP__READS = 1,
    FSDP__WRITES = 2,
    FSDP__READS_AND_WRITES = 3
} fsdp__access;

/* Describes a piece of memory that a kernel uses. It uses nothing outside [pointer, pointer + bytes) of its buffers,
 * and reads or writes there as `access` says; between strided rows there may be bytes that it leaves alone. `name` is
 * the field of the arguments. */
typedef struct fsdp__buffer {
    const char *name;
    const void *pointer;
    size_t bytes;
    fsdp__access access;
} fsdp__buffer;

/* Returns the bytes of the call's table in host memory, an array of pointers to buffers; 0 when the call has none. */
size_t fsdp__kernel_table(fsdp__kernel kernel, const void *args, const void **out);
/* Puts another table in its place. */
void fsdp__kernel_set_table(fsdp__kernel kernel, void *args, const void *table);

/* ---- kernel_flops.c ---- */

/* Returns the floating point operations of a call's products, two for each multiplication; 0 for kernels that are no
 * products. */
int64_t fsdp__kernel_flops(fsdp__kernel kernel, const void *args);
/* Returns the bytes of a call's buffers, once for reading and once for writing: no call moves fewer. 0: out of memory.
 */
double fsdp__kernel_bytes(fsdp__kernel kernel, const void *args);

typedef struct fsdp__kernel_info {
    const char *name;
    size_t args_bytes;
    fsdp__kernel_class class;
} fsdp__kernel_info;

extern const fsdp__kernel_info fsdp__kernel_infos[FSDP__KERNELS];

/* Runs the device's kernel on `stream`. The struct is copied, and so is its table where the work is queued: both belong
 * to the caller again on return. What they point to must live until the work is done. [stream] */
fsdp_status fsdp__launch(fsdp_stream *stream, fsdp__kernel kernel, const void *args);
/* Runs the kernel in the calling thread, for work that already runs in the order of `stream`; buffers may lie in the
 * stream's workspace. On return the kernel is issued: what runs on the stream after it sees what it has written. Others
 * see that after fsdp__stream_settle, or at once where the host may follow the device's pointers. */
fsdp_status fsdp__run_kernel(fsdp_stream *stream, fsdp__kernel kernel, const void *args);

/* Says that the stream's work, from inside which it is called, uses memory without a kernel; `what` says how. Fails
 * where a subscriber refuses (base/probe.h). */
static inline fsdp_status fsdp__stream_uses(fsdp_stream *stream, const void *memory, size_t bytes, fsdp__access access,
                                            const char *what)
{
    return FSDP__ASK(MEMORY_USED, .context = fsdp_device_context(fsdp__stream_device(stream)), .stream = stream,
                     .memory = memory, .bytes = bytes, .kind = (int)access, .name = what);
}

#define FSDP__KERNEL_LAUNCH(NAME, name, class)                                                          \
    static inline fsdp_status fsdp__launch_##name(fsdp_stream *stream, const fsdp__##name##_args *args) \
    {                                                                                                   \
        return fsdp__launch(stream, FSDP__KERNEL_##NAME, args);                                         \
    }
FSDP__KERNEL_MAP(FSDP__KERNEL_LAUNCH)
#undef FSDP__KERNEL_LAUNCH

/* Fills `numel` elements from `dst` on; does nothing for none. [stream] */
fsdp_status fsdp__launch_fill_run(fsdp_stream *stream, void *dst, fsdp_dtype dtype, int64_t numel, double value);
