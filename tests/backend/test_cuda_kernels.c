/* The kernels of CUDA devices, compiled for the host (cudash) and held to the oracle on its memory. */
#include "backend/cuda/kernels_table.h"
#include "oracle/hold.h"

/* The table's product asks cuBLAS first, which needs a GPU: here it is the own one. */
fsdp_status fsdp__cuda_own_matmul(fsdp_stream *stream, const void *args);
fsdp_status fsdp__cuda_matmul(fsdp_stream *stream, const void *args);

fsdp_status fsdp__cuda_matmul(fsdp_stream *stream, const void *args)
{
    return fsdp__cuda_own_matmul(stream, args);
}

static void hold(fsdp__kernel kernel)
{
    fsdp_context *context = test_context();
    fsdp_device *cpu = CHECK_PTR(fsdp_cpu(context));
    const oracle_table table = {
        .name = "cudash", .kernels = fsdp__cuda_kernels, .most_threads = 1, .own_bits = true};

    if (!fsdp__cuda_kernels[kernel])
        skip();
    oracle_hold_kernel(fsdp_device_stream(cpu), &table, 1, test_long() ? 100 : test_brief() ? 2 : 5, kernel);
    fsdp_context_free(context);
}

#define CASE(NAME, name, class)        \
    TEST(name##_agrees_with_the_oracle) \
    {                                  \
        hold(FSDP__KERNEL_##NAME);     \
    }
FSDP__KERNEL_MAP(CASE)
