/* kernel.c - launches a kernel of the caller's on tensors. */
#include "base/alloc.h"
#include "device/host_kernel.h"
#include "tensor/tensor.h"

static fsdp_status check_tensor(const char *name, const fsdp_tensor *tensor, const fsdp_tensor *first, int index,
                                const char *what)
{
    char text[FSDP__SHAPE_TEXT];

    if (!tensor)
        return FSDP_FAIL(FSDP_INVALID, "kernel '%s': tensor %d that it %s is NULL", name, index, what);
    fsdp__shape_text(tensor->ndim, tensor->shape, text);
    if (first && tensor->storage->device != first->storage->device)
        return FSDP_FAIL(FSDP_INVALID, "kernel '%s': tensors are on %s and on %s%s", name,
                         fsdp_device_name(first->storage->device), fsdp_device_name(tensor->storage->device),
                         fsdp__device_elsewhere(tensor->storage->device, first->storage->device));
    if (!fsdp_tensor_is_contiguous(tensor))
        return FSDP_FAIL(FSDP_INVALID,
                         "kernel '%s': tensor %d %s that it %s is not contiguous: fsdp_contiguous makes "
                         "it so",
                         name, index, text, what);
    FSDP_TRY(fsdp__storage_bring(tensor->storage));
    if (!tensor->storage->data && tensor->storage->bytes > 0)
        return FSDP_FAIL(FSDP_STATE,
                         "kernel '%s': tensor %d %s that it %s has no bytes now (a sharded parameter outside its "
                         "module's call?)",
                         name, index, text, what);
    return FSDP_OK;
}

static fsdp_status check_tensors(const char *name, fsdp_tensor *const *tensors, int count, const fsdp_tensor *first,
                                 const char *what)
{
    for (int i = 0; i < count; i++)
        FSDP_TRY(check_tensor(name, tensors[i], first, i, what));
    return FSDP_OK;
}

static fsdp__buffer buffer_of(const fsdp_tensor *tensor, fsdp__access access)
{
    return (fsdp__buffer){.pointer = fsdp_tensor_data(tensor),
                          .bytes = (size_t)fsdp_tensor_numel(tensor) * fsdp_dtype_size(tensor->dtype),
                          .access = access};
}

static fsdp_status launch(fsdp__host_kernel *kernel, fsdp_tensor *const *reads, int read_count,
                          fsdp_tensor *const *writes, int write_count)
{
    fsdp_device *device = (read_count > 0 ? reads[0] : writes[0])->storage->device;
    FSDP__FREED fsdp__buffer *buffers = fsdp__calloc((size_t)kernel->count, sizeof *buffers);

    FSDP__TRY_NEW(buffers);
    for (int i = 0; i < read_count; i++)
        buffers[i] = buffer_of(reads[i], FSDP__READS);
    for (int i = 0; i < write_count; i++)
        buffers[read_count + i] = buffer_of(writes[i], FSDP__WRITES);
    kernel->buffers = buffers;
    return fsdp__launch_host_kernel(fsdp_device_stream(device), kernel);
}

/* Launches the kernel, whose function and argument are set. */
static fsdp_status launch_checked(fsdp__host_kernel *kernel, fsdp_tensor *const *reads, int read_count,
                                  fsdp_tensor *const *writes, int write_count)
{
    const fsdp_tensor *first;
    uint64_t from;

    if (!kernel->name || (!kernel->function && !kernel->device_function) || (kernel->arg_bytes > 0 && !kernel->arg))
        return FSDP_FAIL(FSDP_INVALID, "a kernel needs a name, a function and its argument");
    if (read_count < 0 || write_count < 0 || kernel->count == 0 || (read_count > 0 && !reads) ||
        (write_count > 0 && !writes))
        return FSDP_FAIL(FSDP_INVALID, "kernel '%s': %d tensors to read and %d to write", kernel->name, read_count,
                         write_count);
    first = read_count > 0 ? reads[0] : writes[0];
    FSDP_TRY(check_tensors(kernel->name, reads, read_count, first, "reads"));
    FSDP_TRY(check_tensors(kernel->name, writes, write_count, first, "writes"));
    from = fsdp__origin_of(reads, read_count);
    /* Do this before any pointer is taken: the guard may give the tensor other bytes. */
    for (int i = 0; i < write_count; i++)
        FSDP_TRY(fsdp_tensor_begin_write(writes[i]));
    for (int i = 0; i < write_count; i++)
        fsdp__origin_write(writes[i], from, true); /* what a kernel changes it also reads */
    return launch(kernel, reads, read_count, writes, write_count);
}

fsdp_status fsdp_launch_kernel(const char *name, fsdp_kernel function, const void *arg, size_t arg_bytes,
                               fsdp_tensor *const *reads, int read_count, fsdp_tensor *const *writes, int write_count)
{
    fsdp__host_kernel kernel = {
        .name = name, .function = function, .arg = arg, .arg_bytes = arg_bytes, .count = read_count + write_count};

    return launch_checked(&kernel, reads, read_count, writes, write_count);
}

fsdp_status fsdp_launch_device_kernel(const char *name, fsdp_device_kernel function, const void *arg, size_t arg_bytes,
                                      fsdp_tensor *const *reads, int read_count, fsdp_tensor *const *writes,
                                      int write_count)
{
    fsdp__host_kernel kernel = {.name = name,
                                .device_function = function,
                                .arg = arg,
                                .arg_bytes = arg_bytes,
                                .count = read_count + write_count};

    return launch_checked(&kernel, reads, read_count, writes, write_count);
}
