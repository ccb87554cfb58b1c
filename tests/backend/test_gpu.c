/* A real GPU, where there is one: every kernel held to the oracle, twice, with the same bits. */
#include "oracle/hold.h"

static fsdp_device *gpu(fsdp_context *context)
{
    fsdp_device *device = fsdp__device_open(context, "cuda", 0);

    if (!device) {
        print_message("skipped: %s\n", fsdp_last_error());
        skip();
    }
    return device;
}

static void hold(fsdp__kernel kernel)
{
    fsdp_context *context = test_context();
    const oracle_table *bits = oracle_bits(kernel);
    oracle_table tables[2];
    int count = 0;

    if (bits)
        tables[count++] = *bits;
    tables[count++] = (oracle_table){
        .name = "cuda:0", .own_functions = true, .rounds_factors = true, .own_bits = !bits, .device = gpu(context)};
    oracle_hold_kernel(fsdp_device_stream(CHECK_PTR(fsdp_cpu(context))), tables, count,
                       test_long()    ? 100
                       : test_brief() ? 2
                                      : 20,
                       kernel);
    fsdp_context_free(context);
}

#define CASE(NAME, name, class)         \
    TEST(name##_agrees_with_the_oracle) \
    {                                   \
        hold(FSDP__KERNEL_##NAME);      \
    }
FSDP__KERNEL_MAP(CASE)
