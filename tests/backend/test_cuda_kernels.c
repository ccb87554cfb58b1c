/* The kernels of CUDA devices, compiled for the host (cudash) and held to the oracle on its memory. */
#include "backend/cuda/kernels_table.h"
#include "oracle/hold.h"

static void hold(fsdp__kernel kernel)
{
    fsdp_context *context = test_context();
    fsdp_device *cpu = CHECK_PTR(fsdp_cpu(context));
    const oracle_table table = {
        .name = "cudash", .kernels = fsdp__cuda_kernels, .most_threads = 1, .own_functions = true};

    if (!fsdp__cuda_kernels[kernel])
        skip();
    oracle_hold_kernel(fsdp_device_stream(cpu), &table, 1, test_long() ? 100 : test_brief() ? 2 : 5, kernel);
    fsdp_context_free(context);
}

#define CASE(NAME, name, class)         \
    TEST(name##_agrees_with_the_oracle) \
    {                                   \
        hold(FSDP__KERNEL_##NAME);      \
    }
FSDP__KERNEL_MAP(CASE)
