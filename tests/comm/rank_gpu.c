/* rank_gpu.c - opens GPUs for ranks. */
#include "comm/rank_gpu.h"

#include "device/device.h"

rank_gpu rank_gpu_open(fsdp_context *context)
{
    rank_gpu g = {.context = context, .group = fsdp_world(context), .rank = fsdp_context_rank(context)};

    g.size = fsdp_process_group_size(g.group);
    CHECK_OK(fsdp_context_set_carrier(context, FSDP_CARRIER_NCCL));
    g.device = CHECK_PTR(fsdp_cuda(context, g.rank));
    CHECK_OK(fsdp_stream_create(g.device, FSDP_STREAM_WORKER, &g.stream));
    return g;
}

void rank_gpu_close(const rank_gpu *g)
{
    (void)fsdp_stream_synchronize(g->stream);
    fsdp_stream_free(g->stream);
}

void *rank_gpu_new(const rank_gpu *g, const void *host, size_t bytes)
{
    void *data = NULL;

    CHECK_OK(fsdp__device_alloc(g->device, bytes + 1, FSDP_MEMORY_ACTIVATION, &data));
    if (host)
        CHECK_OK(fsdp__copy_to_device(g->stream, data, host, bytes));
    return data;
}

void rank_gpu_free(const rank_gpu *g, void *data, size_t bytes)
{
    fsdp__device_free(g->device, data, bytes + 1, FSDP_MEMORY_ACTIVATION);
}

void rank_gpu_run(int world, test_rank_body body, void *arg)
{
    setenv("FSDP_FAKECUDA_DEVICES", "8", 1);
    test_run_ranks(world, body, arg);
    unsetenv("FSDP_FAKECUDA_DEVICES");
}
