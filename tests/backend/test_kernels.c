/* Every kernel against the reference: one table, random uneven shapes from a fixed seed. */
#include "backend/cases_rows.h"

typedef void (*case_maker)(test_case *);

/* A kernel without an entry fails the test below. */
#define CASES(NAME, name, class) [FSDP__KERNEL_##NAME] = name##_case,
static const case_maker makers[FSDP__KERNELS] = {FSDP__KERNEL_MAP(CASES)};

static void every_kernel_agrees_with_its_reference(void **state)
{
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    fsdp_context *context = test_context();
    fsdp_device *cpu = fsdp_cpu(context);
    int rounds = test_long() ? 200 : 10;

    (void)state;
    CHECK(cpu != NULL);
    for (fsdp__kernel kernel = 0; kernel < FSDP__KERNELS; kernel++)
        for (int round = 0; round < rounds; round++)
            for (size_t t = 0; t < FSDP__COUNT_OF(types); t++) {
                test_case c = {.stream = fsdp_device_stream(cpu),
                               .key = fsdp__rng_key((uint64_t)round, fsdp__kernel_infos[kernel].name) + t,
                               .dtype = types[t],
                               .kernel = kernel};
                makers[kernel](&c);
            }
    fsdp_context_free(context);
}

TEST_MAIN(cmocka_unit_test(every_kernel_agrees_with_its_reference))
