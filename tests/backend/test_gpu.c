/* The device "cuda:0", held to the oracle: each kernel twice, with the same bits. Beside a build that is the fake
 * GPU (fakecuda); tools/gpu_check.sh runs this on a GPU. */
#include "oracle/hold.h"

static fsdp_device *gpu(fsdp_context *context)
{
    fsdp_device *device = fsdp__device_open(context, "cuda", 0);

    test_skip_if(!device, "%s", fsdp_last_error());
    return device;
}

/* Returns how often each kernel is called. Without a GPU test_cuda_kernels draws more calls of the same kernels. */
static int rounds(fsdp_device *device)
{
    bool fake = strcmp(fsdp__device_look(device).card, "fake GPU") == 0;

    return test_long() ? 100 : test_brief() || fake ? 2 : 20;
}

static void hold(fsdp__kernel kernel)
{
    fsdp_context *context = test_context();
    fsdp_device *device = gpu(context);
    const oracle_table *bits = oracle_bits(kernel);
    oracle_table tables[2];
    int count = 0;

    if (bits)
        tables[count++] = *bits;
    tables[count++] = (oracle_table){
        .name = "cuda:0", .own_functions = true, .rounds_factors = true, .own_bits = !bits, .device = device};
    oracle_hold_kernel(fsdp_device_stream(CHECK_PTR(fsdp_cpu(context))), tables, count, rounds(device), kernel);
    fsdp_context_free(context);
}

#define CASE(NAME, name, class)         \
    TEST(name##_agrees_with_the_oracle) \
    {                                   \
        hold(FSDP__KERNEL_##NAME);      \
    }
FSDP__KERNEL_MAP(CASE)

/* The products with 0.5 are exact, so that it does not matter where the sum is rounded. */
TEST(uniform_numbers_have_the_cpu_s_bits)
{
    enum {
        COUNT = 100003
    };
    static float numbers[2][COUNT];
    fsdp_context *context = test_context();
    fsdp_device *devices[] = {CHECK_PTR(fsdp_cpu(context)), gpu(context)};

    for (int d = 0; d < 2; d++) {
        fsdp_stream *stream = fsdp_device_stream(devices[d]);
        fsdp__random_args k = {.numel = COUNT,
                               .key = 0x123456789abcdefull,
                               .offset = 4 * 0xffffffffull - 6,
                               .a = -0.25f,
                               .b = 0.5f,
                               .distribution = FSDP__UNIFORM,
                               .dtype = FSDP_F32};

        CHECK_OK(fsdp__device_alloc(devices[d], sizeof numbers[d], FSDP_MEMORY_ACTIVATION, &k.dst));
        CHECK_OK(fsdp__launch(stream, FSDP__KERNEL_RANDOM, &k));
        CHECK_OK(fsdp__copy_to_host(stream, numbers[d], k.dst, sizeof numbers[d]));
        CHECK_OK(fsdp_stream_synchronize(stream));
        fsdp__device_free(devices[d], k.dst, sizeof numbers[d], FSDP_MEMORY_ACTIVATION);
    }
    CHECK(memcmp(numbers[0], numbers[1], sizeof numbers[0]) == 0);
    fsdp_context_free(context);
}
