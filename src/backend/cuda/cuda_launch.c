/* cuda_launch.c - issues the device's own kernels (kernels/kernel.cuh). */
#include "backend/cuda/cuda.h"

enum {
    SHARED_BYTES = 48 << 10 /* dynamic shared memory that a kernel has without asking */
};

fsdp_status fsdp__cuda_launch(fsdp_stream *stream, const char *name, const void *kernel, dim3 grid, unsigned block,
                              size_t shared_bytes, void **args);
fsdp_status fsdp__cuda_set_bytes(fsdp_stream *stream, void *device, int byte, size_t bytes);
void fsdp__cuda_card(fsdp_stream *stream, int *multiprocessors, size_t *shared_bytes_of_block);

void fsdp__cuda_card(fsdp_stream *stream, int *multiprocessors, size_t *shared_bytes_of_block)
{
    const fsdp__cuda_state *state = fsdp__cuda_state_of(stream->device);

    *multiprocessors = state->multiprocessors;
    *shared_bytes_of_block = state->shared_bytes;
}

fsdp_status fsdp__cuda_launch(fsdp_stream *stream, const char *name, const void *kernel, dim3 grid, unsigned block,
                              size_t shared_bytes, void **args)
{
    const fsdp_device *device = stream->device;
    const dim3 threads = {block, 1, 1};
    fsdp_status status;

    if (shared_bytes > fsdp__cuda_state_of(device)->shared_bytes)
        return FSDP_FAIL(
            FSDP_UNSUPPORTED,
            "kernel '%s' needs %zu bytes of shared memory for a block, and %s (%s) has %zu: use a GPU with "
            "more, or smaller heads",
            name, shared_bytes, device->name, fsdp__cuda_state_of(device)->model,
            fsdp__cuda_state_of(device)->shared_bytes);
    FSDP_TRY(fsdp__cuda_use(device));
    if (shared_bytes > SHARED_BYTES)
        FSDP__CUDA_TRY(device,
                       cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
    status =
        FSDP__CUDA_CALL(device, cudaLaunchKernel(kernel, grid, threads, args, shared_bytes, fsdp__cuda_native(stream)));
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "kernel '%s'", name);
    fsdp__cuda_count_issued(device);
    return FSDP_OK;
}

fsdp_status fsdp__cuda_set_bytes(fsdp_stream *stream, void *device, int byte, size_t bytes)
{
    FSDP_TRY(fsdp__cuda_use(stream->device));
    FSDP__CUDA_TRY(stream->device, cudaMemsetAsync(device, byte, bytes, fsdp__cuda_native(stream)));
    if (bytes > 0)
        fsdp__cuda_count_issued(stream->device);
    return FSDP_OK;
}
