/* fsdp/tensor.h - n-dimensional arrays: shape, strides, storage, views.
 *
 * A tensor is a view of a storage. Views share the storage; a storage can drop its bytes and get new ones while its
 * views stay valid (that is how a sharded parameter comes and goes under tensors that autograd saved).
 *
 * Two rules of ownership:
 *   - functions with `fsdp_tensor **out` give the caller a reference: fsdp_tensor_unref it;
 *   - functions that return `fsdp_tensor *` (operations, views, fsdp_zeros, ...) return a tensor that belongs to the
 *     innermost scope of the context and dies with it: fsdp_tensor_ref it to keep it longer.
 * A tensor-returning function given a NULL tensor returns NULL and leaves the last error alone, so a whole
 * expression needs one check at its end.
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

/* Opens a scope; tensors returned from now on belong to it. Scopes nest. One per training step is usual; calling a
 * module opens one of its own. Without any, tensors belong to the context and die with it. */
FSDP_API fsdp_status fsdp_scope_begin(fsdp_context *context);
/* Drops the scope's tensors, except `keep` (may be NULL), which moves to the enclosing scope. */
FSDP_API void fsdp_scope_end(fsdp_context *context, fsdp_tensor *keep);
/* The same with several to keep. NULLs among them, and the same one twice, are allowed. */
FSDP_API void fsdp_scope_end_many(fsdp_context *context, fsdp_tensor *const *keep, int count);

/* ---- life cycle ---- */

FSDP_API fsdp_tensor *fsdp_tensor_ref(fsdp_tensor *tensor); /* returns its argument; NULL is allowed */
FSDP_API void fsdp_tensor_unref(fsdp_tensor *tensor);       /* NULL is allowed */

/* Uninitialised, contiguous; the caller owns `*out`. Zero-sized dimensions are allowed. */
FSDP_API fsdp_status fsdp_tensor_create(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                        fsdp_memory_kind kind, fsdp_tensor **out);

/* As above, owned by the scope, counted as activation. */
FSDP_API fsdp_tensor *fsdp_empty(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape);
FSDP_API fsdp_tensor *fsdp_zeros(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape);
FSDP_API fsdp_tensor *fsdp_full(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape, double value);
/* Copies numel elements of `dtype` from host memory. */
FSDP_API fsdp_tensor *fsdp_from_data(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                     const void *data);
/* start, start + step, ... before `end`; step may be negative. */
FSDP_API fsdp_tensor *fsdp_arange(fsdp_device *device, fsdp_dtype dtype, int64_t start, int64_t end, int64_t step);
/* (n, n): ones from the first corner to the last, zeros elsewhere. */
FSDP_API fsdp_tensor *fsdp_eye(fsdp_device *device, fsdp_dtype dtype, int64_t n);

/* Shape literal: fsdp_zeros(cpu, FSDP_F32, FSDP_SHAPE(2, 3)). In C++ it lasts until the end of that expression. */
#ifdef __cplusplus
extern "C++" {
template <int count> struct fsdp__shape {
    static constexpr int ndim = count;
    int64_t sizes[count];
    const int64_t *data() const
    {
        return sizes;
    }
};
template <typename... Sizes> fsdp__shape<sizeof...(Sizes)> fsdp__shape_of(Sizes... sizes)
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
FSDP_API int64_t fsdp_tensor_size(const fsdp_tensor *tensor, int dim);  /* negative dims count from the end */
FSDP_API int64_t fsdp_tensor_numel(const fsdp_tensor *tensor);
FSDP_API fsdp_dtype fsdp_tensor_dtype(const fsdp_tensor *tensor);
FSDP_API fsdp_device *fsdp_tensor_device(const fsdp_tensor *tensor);
FSDP_API bool fsdp_tensor_is_contiguous(const fsdp_tensor *tensor);
/* First element, as the device's kernels address it: the host follows the pointer only to the CPU. NULL on the meta
 * device, for zero elements, and while the storage's bytes are dropped. Whoever writes through the pointer calls
 * fsdp_tensor_begin_write before, and asks for the pointer after that. */
FSDP_API void *fsdp_tensor_data(const fsdp_tensor *tensor);

/* Host copy of all elements in row-major order, converted to `dtype`. `data` holds numel elements. [blocks] */
FSDP_API fsdp_status fsdp_tensor_read(const fsdp_tensor *tensor, fsdp_dtype dtype, void *data);
FSDP_API fsdp_status fsdp_tensor_write(fsdp_tensor *tensor, fsdp_dtype dtype, const void *data);
/* One element of a tensor that has exactly one. [blocks] */
FSDP_API fsdp_status fsdp_tensor_item(const fsdp_tensor *tensor, double *out);

/* The caller is going to write to the tensor's bytes by a way of its own (the functions here do it themselves, and so
 * do optimizers). Of a sharded parameter peers may be reading the bytes, and what was derived from them becomes stale:
 * this waits for the former and drops the latter. A backward that needs the old bytes is an error (fsdp/autograd.h):
 * they have another version from now on, for all views. Tensors without elements count too. FSDP_STATE, naming the
 * parameter, while its module's forward or backward runs, and for a parameter that is gathered. [blocks] */
FSDP_API fsdp_status fsdp_tensor_begin_write(fsdp_tensor *tensor);
/* In place, no gradient: same shape; casts. / set every element. */
FSDP_API fsdp_status fsdp_tensor_copy_(fsdp_tensor *dst, const fsdp_tensor *src);
FSDP_API fsdp_status fsdp_tensor_fill_(fsdp_tensor *tensor, double value);

/* ---- kernels of one's own ---- */

/* Computes on host memory: data[i] is the first element of tensor i, those that are read before those that are written,
 * NULL where it has no elements. A failure (fsdp_fail, in fsdp/status.h, gives it a message) is that of the stream's
 * work. Threads it starts must have ended when it returns. */
typedef fsdp_status (*fsdp_kernel)(const void *arg, void *const *data);
/* Runs `kernel` in the order of the device's stream: after what was queued to write the tensors, before what is queued
 * later to read them. Where the stream is a thread's that is after this call has returned, on that thread; so what it
 * needs beside the tensors goes into `arg`, of which `arg_bytes` are copied. Memory stays in place until it has run,
 * whatever happens to the tensors. All must be contiguous and of one device; a tensor that is changed, or written in
 * part, is in both lists (equal pointers then), and what is written shares no element with another. Devices whose
 * memory the host cannot reach get copies there and back. Nothing runs on the meta device. Written tensors count as
 * written to (fsdp_tensor_begin_write). `name` is for messages and must stay. */
FSDP_API fsdp_status fsdp_launch_kernel(const char *name, fsdp_kernel kernel, const void *arg, size_t arg_bytes,
                                        fsdp_tensor *const *reads, int read_count, fsdp_tensor *const *writes,
                                        int write_count);

/* As PyTorch prints, with a line break at the end: tensor([[1.0000, 2.5000], ...], dtype=torch.bfloat16), edges only
 * above 1000 elements. */
FSDP_API fsdp_status fsdp_tensor_print(const fsdp_tensor *tensor, FILE *stream);

#ifdef __cplusplus
}
#endif
#endif
