/* tensor_copy.c - copies elements from one place to another, on the device's stream. */
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/status.h"
#include "device/device.h"
#include "device/kernels.h"
#include "tensor/tensor.h"

/* Returns FSDP_STATE while the bytes of a tensor that has elements are dropped. */
static fsdp_status check_bytes(const fsdp_tensor *tensor, const char *what)
{
    FSDP_TRY(fsdp__storage_bring(tensor->storage));
    if (!tensor->storage->data && fsdp_tensor_numel(tensor) > 0)
        return FSDP_FAIL(FSDP_STATE, "cannot %s a tensor of shape %s: its storage has dropped its bytes", what,
                         FSDP__SHAPE_OF(tensor));
    return FSDP_OK;
}

/* Refuses an expanded tensor, where two indices are one element: the result of a write would depend on the order. */
static fsdp_status check_writable(const fsdp_tensor *tensor, const char *what)
{
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->shape[d] > 1 && tensor->strides[d] == 0)
            return FSDP_FAIL(FSDP_INVALID, "cannot %s a tensor of shape %s: dimension %d repeats its elements", what,
                             FSDP__SHAPE_OF(tensor), d);
    return check_bytes(tensor, what);
}

static fsdp_status launch_copy(fsdp_device *device, const fsdp__copy_args *args)
{
    return fsdp__launch_copy(fsdp_device_stream(device), args);
}

static fsdp_status check_copy(const fsdp_tensor *dst, const fsdp_tensor *src)
{
    if (!fsdp__shape_equal(dst, src))
        return FSDP_FAIL(FSDP_INVALID, "cannot copy shape %s to shape %s", FSDP__SHAPE_OF(src), FSDP__SHAPE_OF(dst));
    if (dst->storage->device != src->storage->device)
        return FSDP_FAIL(FSDP_INVALID, "cannot copy from device '%s' to device '%s'%s",
                         fsdp_device_name(src->storage->device), fsdp_device_name(dst->storage->device),
                         fsdp__device_elsewhere(dst->storage->device, src->storage->device));
    FSDP_TRY(check_bytes(src, "copy from"));
    return check_writable(dst, "copy to");
}

/* Returns whether the elements, of which there are some, fill one range of memory, each once. */
static bool is_dense(const fsdp_tensor *tensor)
{
    int64_t filled = 1; /* by the dimensions found so far, the innermost in memory first */

    for (int found = 0; found < tensor->ndim; found++)
        for (int d = 0; d < tensor->ndim; d++)
            if (tensor->shape[d] != 1 && tensor->strides[d] == filled) {
                filled *= tensor->shape[d];
                break;
            }
    return filled == fsdp_tensor_numel(tensor);
}

/* Returns whether two tensors of one shape and storage, which begin at the same byte, have each element in common. */
static bool is_same(const fsdp_tensor *a, const fsdp_tensor *b)
{
    bool same = a->dtype == b->dtype;

    for (int d = 0; d < a->ndim; d++)
        same &= a->shape[d] == 1 || a->strides[d] == b->strides[d];
    return same;
}

/* Refuses two dense views of one storage of which an element would be read after it was written, as PyTorch does.
 * `*same`: they are the same elements. */
static fsdp_status check_overlap(const fsdp_tensor *dst, const fsdp_tensor *src, bool *same)
{
    int64_t to_size = (int64_t)fsdp_dtype_size(dst->dtype), from_size = (int64_t)fsdp_dtype_size(src->dtype);
    int64_t numel = fsdp_tensor_numel(dst), to = dst->offset * to_size, from = src->offset * from_size;

    *same = false;
    if (dst->storage != src->storage || numel == 0 || !is_dense(dst) || !is_dense(src) ||
        to >= from + numel * from_size || from >= to + numel * to_size)
        return FSDP_OK;
    *same = to == from && is_same(dst, src);
    if (*same)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot copy shape %s from element %lld of a storage to shape %s at element %lld of it: the two "
                     "overlap; copy the first to a tensor of its own, and from there",
                     FSDP__SHAPE_OF(src), (long long)src->offset, FSDP__SHAPE_OF(dst), (long long)dst->offset);
}

fsdp_status fsdp__tensor_copy(fsdp_tensor *dst, const fsdp_tensor *src, bool accumulate)
{
    fsdp__copy_args args = {.src_dtype = src->dtype, .dst_dtype = dst->dtype, .accumulate = accumulate};

    FSDP_TRY(check_copy(dst, src));
    if (accumulate && !(fsdp_dtype_is_floating(dst->dtype) && fsdp_dtype_is_floating(src->dtype)))
        return FSDP_FAIL(FSDP_INVALID, "cannot add %s to %s: both must be floating", fsdp_dtype_name(src->dtype),
                         fsdp_dtype_name(dst->dtype));
    if (fsdp__origin_runs(dst->storage))
        fsdp__origin_write(dst, fsdp__origin_of((fsdp_tensor *[]){(fsdp_tensor *)(uintptr_t)src}, 1), !accumulate);
    if (fsdp_tensor_numel(dst) == 0)
        return FSDP_OK;
    args.src = fsdp_tensor_data(src);
    args.dst = fsdp_tensor_data(dst);
    args.ndim = dst->ndim;
    memcpy(args.shape, dst->shape, sizeof args.shape);
    memcpy(args.src_strides, src->strides, sizeof args.src_strides);
    memcpy(args.dst_strides, dst->strides, sizeof args.dst_strides);
    return launch_copy(dst->storage->device, &args);
}

fsdp_status fsdp_tensor_copy_(fsdp_tensor *dst, const fsdp_tensor *src)
{
    bool same;

    if (!dst || !src)
        return FSDP__FAIL_NULL("cannot copy: both tensors are required");
    FSDP_TRY(check_copy(dst, src));
    FSDP_TRY(check_overlap(dst, src, &same));
    /* Do this before any pointer is taken: the guard may give the tensor other bytes. */
    FSDP_TRY(fsdp_tensor_begin_write(dst));
    return same ? FSDP_OK : fsdp__tensor_copy(dst, src, false);
}

/* Fills with one element made on the device and repeated by strides of 0. Its memory may be given back at once: the
 * device's memory follows the order of its stream. */
static fsdp_status fill_strided(const fsdp_tensor *tensor, double value)
{
    fsdp_device *device = tensor->storage->device;
    fsdp__copy_args args = {.src_dtype = tensor->dtype, .dst_dtype = tensor->dtype, .ndim = tensor->ndim};
    fsdp__fill_args fill = {.dtype = tensor->dtype, .numel = 1, .value = value};
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace one = {0};

    FSDP_TRY(fsdp__workspace_take(device, fsdp_dtype_size(tensor->dtype), &one));
    fill.dst = one.data;
    args.src = one.data;
    args.dst = fsdp_tensor_data(tensor);
    memcpy(args.shape, tensor->shape, sizeof args.shape);
    memcpy(args.dst_strides, tensor->strides, sizeof args.dst_strides);
    FSDP_TRY(fsdp__launch_fill(fsdp_device_stream(device), &fill));
    return launch_copy(device, &args);
}

fsdp_status fsdp__check_number(fsdp_dtype dtype, double value)
{
    bool fits = dtype == FSDP_I32   ? value > -2147483649.0 && value < 2147483648.0
                : dtype == FSDP_I64 ? value >= -0x1p63 && value < 0x1p63
                : dtype == FSDP_U8  ? value > -256.0 && value < 256.0
                                    : true;

    return fits ? FSDP_OK : FSDP_FAIL(FSDP_INVALID, "%s cannot be %g", fsdp_dtype_name(dtype), value);
}

fsdp_status fsdp_tensor_fill_(fsdp_tensor *tensor, double value)
{
    fsdp__fill_args args = {.value = value};

    if (!tensor)
        return FSDP__FAIL_NULL("cannot fill: the tensor is NULL");
    if (fsdp__check_number(tensor->dtype, value) != FSDP_OK)
        return fsdp_fail_prefix(FSDP_INVALID, "cannot fill");
    FSDP_TRY(check_writable(tensor, "fill"));
    FSDP_TRY(fsdp_tensor_begin_write(tensor));
    fsdp__origin_write(tensor, fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, &value, sizeof value), true);
    args.numel = fsdp_tensor_numel(tensor);
    if (args.numel == 0)
        return FSDP_OK;
    if (!fsdp_tensor_is_contiguous(tensor)) {
        FSDP_TRY(fill_strided(tensor, value));
        return FSDP_OK;
    }
    args.dst = fsdp_tensor_data(tensor);
    args.dtype = tensor->dtype;
    return fsdp__launch_fill(fsdp_device_stream(tensor->storage->device), &args);
}

/* ---- host ---- */

/* One side of a copy whose other side is the tensor: all its elements in row-major order, in any dtype. */
typedef struct packed {
    void *data;
    fsdp_dtype dtype;
    size_t bytes;
} packed;

/* Copies between the tensor and elements that the device's kernels reach. */
static fsdp_status copy_packed(const fsdp_tensor *tensor, const packed *elements, bool to_tensor)
{
    fsdp__copy_args args = {.ndim = tensor->ndim};
    int64_t strides[FSDP_MAX_DIMS] = {0};

    memcpy(args.shape, tensor->shape, sizeof args.shape);
    fsdp__shape_contiguous_strides(tensor->ndim, tensor->shape, strides);
    args.src = to_tensor ? elements->data : fsdp_tensor_data(tensor);
    args.dst = to_tensor ? fsdp_tensor_data(tensor) : elements->data;
    args.src_dtype = to_tensor ? elements->dtype : tensor->dtype;
    args.dst_dtype = to_tensor ? tensor->dtype : elements->dtype;
    memcpy(args.src_strides, to_tensor ? strides : tensor->strides, sizeof args.src_strides);
    memcpy(args.dst_strides, to_tensor ? tensor->strides : strides, sizeof args.dst_strides);
    return launch_copy(tensor->storage->device, &args);
}

/* Copies bytes as they are, and is done with the host's memory on return; nothing happens on the meta device. */
static fsdp_status copy_bytes(fsdp_device *device, void *on_device, void *on_host, size_t bytes, bool to_device)
{
    fsdp_stream *stream = fsdp_device_stream(device);
    fsdp_status status;

    if (to_device)
        return fsdp__hand_to_device(stream, on_device, on_host, bytes);
    status = fsdp__copy_to_host(stream, on_host, on_device, bytes);
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(stream)); /* also for what was queued before a failure */
    return status;
}

/* Copies on a device that the host cannot reach: its kernels handle strides and conversion, next to the tensor. */
static fsdp_status copy_through_device(const fsdp_tensor *tensor, const packed *host, bool to_tensor)
{
    fsdp_device *device = tensor->storage->device;
    packed staged = *host;
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace work = {0}; /* maybe before the copies have run */

    if (host->dtype == tensor->dtype && fsdp_tensor_is_contiguous(tensor))
        return copy_bytes(device, fsdp_tensor_data(tensor), host->data, host->bytes, to_tensor);
    FSDP_TRY(fsdp__workspace_take(device, host->bytes, &work));
    staged.data = work.data;
    if (to_tensor)
        FSDP_TRY(copy_bytes(device, staged.data, host->data, host->bytes, true));
    FSDP_TRY(copy_packed(tensor, &staged, to_tensor));
    return to_tensor ? FSDP_OK : copy_bytes(device, staged.data, host->data, host->bytes, false);
}

/* Copies between the tensor and the host, whose memory is the caller's again on return. */
static fsdp_status copy_host(const fsdp_tensor *tensor, fsdp_dtype dtype, void *data, bool to_tensor)
{
    fsdp_device *device = tensor->storage->device;
    packed host = {data, dtype, (size_t)fsdp_tensor_numel(tensor) * fsdp_dtype_size(dtype)};
    fsdp_status status;

    FSDP_TRY(fsdp__stream_check_caller(fsdp_device_stream(device), to_tensor ? "write a tensor" : "read a tensor"));
    if (!fsdp__device_has_bytes(device)) /* dry: see fsdp__dry */
        return copy_bytes(device, fsdp_tensor_data(tensor), data, host.bytes, to_tensor);
    if (!fsdp__device_host_access(device))
        return copy_through_device(tensor, &host, to_tensor);
    status = copy_packed(tensor, &host, to_tensor);
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(fsdp_device_stream(device))); /* also for what was queued before */
    return status;
}

fsdp_status fsdp_tensor_read(const fsdp_tensor *tensor, fsdp_dtype dtype, void *data)
{
    if (!tensor)
        return FSDP__FAIL_NULL("cannot read a tensor: tensor and dtype are required");
    if (fsdp_dtype_size(dtype) == 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot read a tensor: tensor and dtype are required");
    if (fsdp_tensor_numel(tensor) == 0)
        return FSDP_OK;
    if (fsdp_device_is_meta(tensor->storage->device))
        return FSDP_FAIL(FSDP_INVALID, "cannot read a tensor of shape %s: a meta tensor has no bytes",
                         FSDP__SHAPE_OF(tensor));
    if (!data)
        return FSDP_FAIL(FSDP_INVALID, "cannot read a tensor: there is no place for its elements");
    FSDP_TRY(check_bytes(tensor, "read"));
    return copy_host(tensor, dtype, data, false);
}

static int64_t integer_at(fsdp_dtype dtype, const void *data, int64_t i)
{
    return dtype == FSDP_I64 ? ((const int64_t *)data)[i] : ((const int32_t *)data)[i];
}

static fsdp__range range_of(fsdp_dtype dtype, const void *data, int64_t count)
{
    fsdp__range r = {.count = count, .lowest = integer_at(dtype, data, 0)};

    r.highest = r.lowest;
    for (int64_t i = 0; i < count; i++) {
        r.lowest = FSDP__MIN(r.lowest, integer_at(dtype, data, i));
        r.highest = FSDP__MAX(r.highest, integer_at(dtype, data, i));
    }
    r.next_lowest = r.highest;
    for (int64_t i = 0; i < count; i++) {
        int64_t value = integer_at(dtype, data, i);

        r.lowest_count += value == r.lowest;
        if (value > r.lowest)
            r.next_lowest = FSDP__MIN(r.next_lowest, value);
    }
    return r;
}

fsdp__documents fsdp__documents_of(const int32_t *positions, int64_t rows, int64_t row)
{
    fsdp__documents found = {.row = row, .wrong = -1};

    for (int64_t i = 0; i < rows * row; i++) {
        if (positions[i] != 0 && (i % row == 0 || positions[i] != positions[i - 1] + 1)) {
            found.wrong = i;
            return found;
        }
        found.pairs += (int64_t)positions[i] + 1;
        found.longest = FSDP__MAX(found.longest, (int64_t)positions[i] + 1);
    }
    return found;
}

/* Returns whether a tensor is all of its storage, in order. */
static bool is_whole(const fsdp_tensor *tensor)
{
    size_t bytes = (size_t)fsdp_tensor_numel(tensor) * fsdp_dtype_size(tensor->dtype);

    return bytes == tensor->storage->bytes && fsdp_tensor_is_contiguous(tensor);
}

void fsdp__tensor_note_documents(const fsdp_tensor *tensor, fsdp__documents found)
{
    if (!is_whole(tensor))
        return;
    tensor->storage->documents = found;
    tensor->storage->documents.version = tensor->storage->version;
}

const fsdp__documents *fsdp__tensor_documents(const fsdp_tensor *tensor)
{
    const fsdp__documents *known = &tensor->storage->documents;

    if (known->row == 0 || known->version != tensor->storage->version || known->row != tensor->shape[1] ||
        !is_whole(tensor))
        return NULL;
    return known;
}

/* Notes what is written to all of a storage: whoever must know that indices are right need not wait to read them. */
static void note_range(const fsdp_tensor *tensor, fsdp_dtype dtype, const void *data)
{
    fsdp__storage *storage = tensor->storage;
    int64_t count = fsdp_tensor_numel(tensor);

    storage->range.count = storage->documents.row = 0;
    if (tensor->dtype != dtype || (dtype != FSDP_I32 && dtype != FSDP_I64) ||
        fsdp__device_host_access(storage->device) || (size_t)count * fsdp_dtype_size(dtype) != storage->bytes)
        return;
    storage->range = range_of(dtype, data, count);
    storage->range.version = storage->version;
    if (dtype == FSDP_I32 && tensor->ndim == 2 && storage->range.lowest == 0) { /* it may be of positions */
        fsdp__documents found = fsdp__documents_of(data, tensor->shape[0], tensor->shape[1]);

        if (found.wrong < 0)
            fsdp__tensor_note_documents(tensor, found);
    }
}

bool fsdp__tensor_range(const fsdp_tensor *tensor, fsdp__range *out)
{
    const fsdp__storage *storage = tensor->storage;

    *out = storage->range;
    return out->count > 0 && out->version == storage->version &&
           (size_t)out->count * fsdp_dtype_size(tensor->dtype) == storage->bytes;
}

fsdp_status fsdp_tensor_write(fsdp_tensor *tensor, fsdp_dtype dtype, const void *data)
{
    if (!tensor)
        return FSDP__FAIL_NULL("cannot write a tensor: tensor and dtype are required");
    if (fsdp_dtype_size(dtype) == 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot write a tensor: tensor and dtype are required");
    FSDP_TRY(check_writable(tensor, "write"));
    if (!data && fsdp_tensor_numel(tensor) > 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot write a tensor: its elements are NULL");
    FSDP_TRY(fsdp_tensor_begin_write(tensor));
    if (fsdp_tensor_numel(tensor) == 0)
        return FSDP_OK;
    if (fsdp__origin_runs(tensor->storage)) { /* reading all of it takes time */
        size_t bytes = (size_t)fsdp_tensor_numel(tensor) * fsdp_dtype_size(dtype);

        fsdp__origin_write(tensor, fsdp__hash_bytes(FSDP__HASH_OF_NOTHING, data, bytes), true);
    }
    FSDP_TRY(copy_host(tensor, dtype, (void *)(uintptr_t)data, true));
    note_range(tensor, dtype, data);
    return FSDP_OK;
}

fsdp_status fsdp_tensor_item(const fsdp_tensor *tensor, double *out)
{
    if (!tensor)
        return FSDP__FAIL_NULL("cannot read an item: tensor and out are required");
    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot read an item: tensor and out are required");
    if (fsdp_tensor_numel(tensor) != 1)
        return FSDP_FAIL(FSDP_INVALID, "cannot read a tensor of shape %s as one item", FSDP__SHAPE_OF(tensor));
    if (fsdp_dtype_is_floating(tensor->dtype)) {
        float value = 0;
        FSDP_TRY(fsdp_tensor_read(tensor, FSDP_F32, &value));
        *out = value;
    } else {
        int64_t value = 0;
        FSDP_TRY(fsdp_tensor_read(tensor, FSDP_I64, &value));
        *out = (double)value;
    }
    return FSDP_OK;
}

fsdp_status fsdp__tensor_copy_across(fsdp_tensor *dst, const fsdp_tensor *src)
{
    size_t bytes = (size_t)fsdp_tensor_numel(dst) * fsdp_dtype_size(dst->dtype);
    FSDP__FREED void *host = NULL;

    if (dst->storage->device == src->storage->device)
        return fsdp_tensor_copy_(dst, src);
    FSDP__TRY_NEW(host = fsdp__malloc(bytes + 1));
    FSDP_TRY(fsdp_tensor_read(src, dst->dtype, host));
    return fsdp_tensor_write(dst, dst->dtype, host);
}

/* ---- conversion to another dtype ---- */

fsdp_status fsdp__tensor_convert(const fsdp_tensor *tensor, fsdp_dtype dtype, fsdp_tensor **out)
{
    const fsdp__storage *storage = tensor->storage;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *made = NULL;

    FSDP_TRY(fsdp_tensor_create(storage->device, dtype, tensor->ndim, tensor->shape, storage->kind, &made));
    made->storage->unwritten = storage->unwritten;
    if (!storage->unwritten && !fsdp_device_is_meta(storage->device))
        FSDP_TRY(fsdp__tensor_copy(made, tensor, false));
    *out = fsdp__take(&made);
    return FSDP_OK;
}

void fsdp__tensor_take(fsdp_tensor *tensor, const fsdp_tensor *from)
{
    fsdp__storage *old = tensor->storage;

    from->storage->version = old->version + 1;
    from->storage->refs++;
    tensor->storage = from->storage;
    tensor->offset = 0;
    tensor->dtype = from->dtype;
    memcpy(tensor->strides, from->strides, sizeof tensor->strides);
    fsdp__storage_unref(old);
}
