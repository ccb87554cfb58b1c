/* cuda_memory.c - memory of the device, and of the host where the device reaches it. */
#include "backend/cuda/cuda.h"

#include "base/alloc.h"

/* ---- segments ---- */

fsdp_status fsdp__cuda_segment_alloc(fsdp_device *device, size_t bytes, void **out)
{
    FSDP_TRY(fsdp__cuda_use(device));
    FSDP__CUDA_TRY(device, cudaMalloc(out, bytes));
    return FSDP_OK;
}

/* Frees a segment; CUDA waits until the device has done all that may still use it. */
void fsdp__cuda_segment_free(fsdp_device *device, void *segment, size_t bytes)
{
    (void)bytes;
    (void)fsdp__cuda_use(device);
    FSDP__CUDA_GIVE_BACK(device, cudaFree(segment));
}

/* ---- scratch ---- */

fsdp_status fsdp__cuda_scratch_alloc(fsdp_stream *stream, size_t bytes, void **out)
{
    fsdp_device *device = stream->device;

    if (!fsdp__cuda_state_of(device)->pools)
        return fsdp__cuda_segment_alloc(device, bytes, out);
    FSDP_TRY(fsdp__cuda_use(device));
    FSDP__CUDA_TRY(device, cudaMallocAsync(out, bytes, fsdp__cuda_native(stream)));
    return FSDP_OK;
}

void fsdp__cuda_scratch_free(fsdp_stream *stream, void *scratch, size_t bytes)
{
    fsdp_device *device = stream->device;

    if (!fsdp__cuda_state_of(device)->pools) {
        fsdp__cuda_segment_free(device, scratch, bytes);
        return;
    }
    (void)fsdp__cuda_use(device);
    FSDP__CUDA_GIVE_BACK(device, cudaFreeAsync(scratch, fsdp__cuda_native(stream)));
}

/* ---- host memory ---- */

fsdp_status fsdp__cuda_host_alloc(fsdp_device *device, size_t bytes, void **out)
{
    FSDP_TRY(fsdp__cuda_use(device));
    FSDP__CUDA_TRY(device, cudaHostAlloc(out, bytes, cudaHostAllocPortable));
    return FSDP_OK;
}

void fsdp__cuda_host_free(fsdp_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    (void)fsdp__cuda_use(device);
    FSDP__CUDA_GIVE_BACK(device, cudaFreeHost(memory));
}
