/* fsdp/tensor.h - n-dimensional arrays: shape, strides, storage, views.
 *
 * A tensor is a view of a storage. Views share the storage; a storage can drop its bytes and get new ones while its
 * views stay valid (this is how an unsharded parameter is freed and gathered again under tensors that autograd saved).
 *
 * There are two rules of ownership:
 *   - functions with `fsdp_tensor **out` give the caller a reference, to be released by fsdp_tensor_unref;
 *   - functions that return `fsdp_tensor *` (operations, views, fsdp_zeros, ...) return a tensor that belongs to the
 *     innermost scope of the context and is freed with it; call fsdp_tensor_ref to keep it longer.
 * A function of the second kind that is given a NULL tensor returns NULL and does not change the last error, so a whole
 * expression needs only one check at its end.
 */
#ifndef FSDP_TENSOR_H
#define FSDP_TENSOR_H

#include <stdio.h>

#include "fsdp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FSDP_MAX_DIMS 6

typedef struct fsdp_tensor fsdp_tensor;

/* ---- scopes ---- */

/* Opens a scope, which owns the tensors returned from now on. Scopes nest. One per training step is usual; calling a
 * module opens another for the call. Outside any scope, tensors belong to the context and are freed with it. */
FSDP_API fsdp_status fsdp_scope_begin(fsdp_context *context);
/* Closes the innermost scope and drops its tensors, except `keep` (may be NULL), which moves to the enclosing scope. If
 * no scope is open, nothing happens, and the log says so. */
FSDP_API void fsdp_scope_end(fsdp_context *context, fsdp_tensor *keep);
/* Does the same with several tensors to keep. `keep` may contain NULLs and duplicates. */
FSDP_API void fsdp_scope_end_many(fsdp_context *context, fsdp_tensor *const *keep, int count);

/* ---- life cycle ---- */

FSDP_API fsdp_tensor *fsdp_tensor_ref(fsdp_tensor *tensor); /* returns its argument; NULL is allowed */
FSDP_API void fsdp_tensor_unref(fsdp_tensor *tensor);       /* NULL is allowed */

/* Creates an uninitialised, contiguous tensor; the caller owns `*out`. Zero-sized dimensions are allowed. */
FSDP_API fsdp_status fsdp_tensor_create(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                        fsdp_memory_kind kind, fsdp_tensor **out);

/* Return a new contiguous tensor that belongs to the scope; its memory counts as activation. fsdp_empty's is
 * uninitialised. */
FSDP_API fsdp_tensor *fsdp_empty(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape);
FSDP_API fsdp_tensor *fsdp_zeros(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape);
FSDP_API fsdp_tensor *fsdp_full(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape, double value);
/* Copies numel elements of `dtype` from host memory into a new tensor. */
FSDP_API fsdp_tensor *fsdp_from_data(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                     const void *data);
/* Returns the numbers start, start + step, ... before `end`; step may be negative. */
FSDP_API fsdp_tensor *fsdp_arange(fsdp_device *device, fsdp_dtype dtype, int64_t start, int64_t end, int64_t step);
/* Returns the (n, n) identity matrix: ones on the diagonal, zeros elsewhere. */
FSDP_API fsdp_tensor *fsdp_eye(fsdp_device *device, fsdp_dtype dtype, int64_t n);

/* Expands to ndim and shape: fsdp_zeros(cpu, FSDP_F32, FSDP_SHAPE(2, 3)). In C++ the array lasts until the end of the
 * full expression. */
#ifdef __cplusplus
extern "C++" {
template <int count>
struct fsdp__shape {
    static constexpr int ndim = count;
    int64_t sizes[count];
    const int64_t *data() const
    {
        return sizes;
    }
};
template <typename... Sizes>
fsdp__shape<sizeof...(Sizes)> fsdp__shape_of(Sizes... sizes)
{
    return {{static_cast<int64_t>(sizes)...}};
}
}
#define FSDP_SHAPE(...) int(decltype(fsdp__shape_of(__VA_ARGS__))::ndim), fsdp__shape_of(__VA_ARGS__).data()
#else
#define FSDP_SHAPE(...)                                                          \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) \
    {                                                                            \
        __VA_ARGS__                                                              \
    }
#endif

/* ---- properties ---- */

FSDP_API int fsdp_tensor_ndim(const fsdp_tensor *tensor);
FSDP_API const int64_t *fsdp_tensor_shape(const fsdp_tensor *tensor);   /* ndim entries */
FSDP_API const int64_t *fsdp_tensor_strides(const fsdp_tensor *tensor); /* in elements */
FSDP_API int64_t fsdp_tensor_size(const fsdp_tensor *tensor, int dim);  /* dim < 0: from the end; gives -1 for none */
FSDP_API int64_t fsdp_tensor_numel(const fsdp_tensor *tensor);
FSDP_API fsdp_dtype fsdp_tensor_dtype(const fsdp_tensor *tensor);
FSDP_API fsdp_device *fsdp_tensor_device(const fsdp_tensor *tensor);
FSDP_API bool fsdp_tensor_is_contiguous(const fsdp_tensor *tensor);
/* Returns the address of the first element as the device's kernels use it; the host may dereference it on the CPU only.
 * It is NULL on the meta device, for zero elements, and while the storage's bytes are dropped. To write through the
 * pointer, call fsdp_tensor_begin_write first and ask for the pointer after that. */
FSDP_API void *fsdp_tensor_data(const fsdp_tensor *tensor);

/* Copy all elements from the tensor to the host (read) or from the host to it (write), in row-major order, converting
 * from or to `dtype`. `data` holds numel elements, and is the caller's again on return. [blocks] */
FSDP_API fsdp_status fsdp_tensor_read(const fsdp_tensor *tensor, fsdp_dtype dtype, void *data);
FSDP_API fsdp_status fsdp_tensor_write(fsdp_tensor *tensor, fsdp_dtype dtype, const void *data);
/* Reads the element of a tensor that has exactly one. [blocks] */
FSDP_API fsdp_status fsdp_tensor_item(const fsdp_tensor *tensor, double *out);

/* Write in place, without a gradient: copy `src`, which has the same shape and is cast if need be, or set every
 * element. FSDP_INVALID: `src` overlaps `dst` without being the same elements, and each fills one range of memory;
 * other overlaps are not noticed, and their result is undefined. */
FSDP_API fsdp_status fsdp_tensor_copy_(fsdp_tensor *dst, const fsdp_tensor *src);
FSDP_API fsdp_status fsdp_tensor_fill_(fsdp_tensor *tensor, double value);

/* Prints the tensor as PyTorch does, with a line break at the end: tensor([[1.0000, 2.5000], ...],
 * dtype=torch.bfloat16). Above 1000 elements only the edges are printed. */
FSDP_API fsdp_status fsdp_tensor_print(const fsdp_tensor *tensor, FILE *stream);

/* ======== for experts: most programs need nothing below ======== */

/* Announces that the caller is about to write to the tensor's bytes itself, through the pointer or a kernel (the
 * functions of this header and the optimizers do this themselves). For a sharded parameter, peers may be reading the
 * bytes, and tensors derived from them become stale: the call waits for the readers and drops those tensors. A later
 * backward that needs the old bytes is an error (fsdp/autograd.h), because the bytes of all views have a new version
 * from now on. Tensors without elements count too. FSDP_STATE, naming the parameter: its module's forward or backward
 * is running, or the parameter is gathered. [blocks] */
FSDP_API fsdp_status fsdp_tensor_begin_write(fsdp_tensor *tensor);

/* ---- custom kernels ---- */

/* Computes on host memory. data[i] is the address of the first element of tensor i, NULL if it has no elements; tensors
 * that are read come before those that are written. A failure (give it a message with fsdp_fail, see fsdp/status.h) is
 * one of the stream's work. Threads that the kernel starts must have ended when it returns. A kernel cannot wait for
 * its stream: on one with a thread, reading or writing a tensor there or synchronizing with it is FSDP_STATE. */
typedef fsdp_status (*fsdp_kernel)(const void *arg, void *const *data);
/* Runs `kernel` in the order of the device's stream: after the queued work that writes the tensors, and before later
 * work that reads them. If the stream has a thread, the kernel runs on that thread and after this call has returned, so
 * whatever it needs besides the tensors goes into `arg`, of which `arg_bytes` are copied. The tensors' memory stays in
 * place until the kernel has run, even if the tensors are freed. All tensors must be contiguous and on one device. A
 * tensor that is changed, or only partly written, is in both lists (with equal pointers in `data`); a written tensor
 * shares no element with another one. On devices whose memory the host cannot reach, the data is copied to the host and
 * back. Nothing runs on the meta device. Written tensors count as written to (fsdp_tensor_begin_write). `name` is used
 * in messages and must stay valid. */
FSDP_API fsdp_status fsdp_launch_kernel(const char *name, fsdp_kernel kernel, const void *arg, size_t arg_bytes,
                                        fsdp_tensor *const *reads, int read_count, fsdp_tensor *const *writes,
                                        int write_count);

/* Computes on the device's memory: data[i] is the device's address of tensor i. On a GPU the function launches its own
 * kernels on fsdp_stream_native(stream) and does not wait for them; on the CPU it computes at once, as above. */
typedef fsdp_status (*fsdp_device_kernel)(fsdp_stream *stream, const void *arg, void *const *data);
/* Runs `kernel` as fsdp_launch_kernel does, but copies nothing to the host. What it launches runs after the stream's
 * earlier work and before its later work. */
FSDP_API fsdp_status fsdp_launch_device_kernel(const char *name, fsdp_device_kernel kernel, const void *arg,
                                               size_t arg_bytes, fsdp_tensor *const *reads, int read_count,
                                               fsdp_tensor *const *writes, int write_count);

#ifdef __cplusplus
}
#endif
#endif
