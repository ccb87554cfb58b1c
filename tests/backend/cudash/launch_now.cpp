/* launch_now.cpp - kernels that have run when they are launched, on memory of the host. */
#include "cudash/cudash.h"

fsdp_status cudash_issue(fsdp_stream *, const char *, const void *, dim3 grid, unsigned block, size_t shared_bytes,
                         const cudash_body *kind, const void *body)
{
    const unsigned blocks[3] = {grid.x, grid.y, grid.z};

    kind->run(blocks, block, shared_bytes, body);
    return FSDP_OK;
}

fsdp_status fsdp__cuda_set_bytes(fsdp_stream *, void *device, int byte, size_t bytes)
{
    memset(device, byte, bytes);
    return FSDP_OK;
}

/* One multiprocessor of 8.0: its blocks have several rows each. */
extern "C" void fsdp__cuda_card(fsdp_stream *, int *multiprocessors, size_t *shared_bytes_of_block)
{
    *multiprocessors = 1;
    *shared_bytes_of_block = 163 << 10;
}
