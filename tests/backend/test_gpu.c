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
    oracle_table table = {.name = "cuda:0", .own_bits = true, .device = gpu(context)};

    oracle_hold_kernel(fsdp_device_stream(CHECK_PTR(fsdp_cpu(context))), &table, 1,
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
