/* Every kernel against the reference: one table, random uneven shapes from a fixed seed. */
#include "backend/cases_rows.h"
#include "backend/cpu/native_matmul.h"

typedef void (*case_maker)(test_case *);

/* A kernel without an entry fails the test below. */
#define CASES(NAME, name, class) [FSDP__KERNEL_##NAME] = name##_case,
static const case_maker makers[FSDP__KERNELS] = {FSDP__KERNEL_MAP(CASES)};

static void every_kernel_agrees_with_its_reference(void **state)
{
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    fsdp_context *context = test_context();
    fsdp_device *cpu = fsdp_cpu(context), *sim = fsdp__device_open(context, "sim", 0);
    int rounds = test_long() ? 200 : 10;

    (void)state;
    CHECK(cpu != NULL && sim != NULL);
    for (fsdp__kernel kernel = 0; kernel < FSDP__KERNELS; kernel++)
        for (int round = 0; round < rounds; round++)
            for (size_t t = 0; t < FSDP__COUNT_OF(types); t++) {
                test_case c = {.stream = fsdp_device_stream(cpu),
                               .elsewhere = sim,
                               .key = fsdp__rng_key((uint64_t)round, fsdp__kernel_infos[kernel].name) + t,
                               .dtype = types[t],
                               .kernel = kernel};
                makers[kernel](&c);
            }
    fsdp_context_free(context);
}

/* ---- the product as a primitive of oneDNN: with f32 on every machine, with bf16 where the cores multiply it ---- */

enum {
    NATIVE_ROUNDS = 200,
    NATIVE_MOST = 80
};

static fsdp_status native(fsdp_stream *stream, const void *args)
{
    bool done;

    (void)stream;
    FSDP_TRY(fsdp__native_matmul(args, &done));
    CHECK(done);
    return FSDP_OK;
}

static void check_products(fsdp_dtype dtype)
{
    test_case c = {.key = 17, .dtype = dtype, .kernel = FSDP__KERNEL_MATMUL};

    for (int i = 0; i < NATIVE_ROUNDS; i++) {
        fsdp__matmul_args a = {.m = between(&c, 1, NATIVE_MOST),
                               .n = between(&c, 1, NATIVE_MOST),
                               .k = between(&c, 1, NATIVE_MOST),
                               .batch = 1,
                               .a_dtype = dtype,
                               .b_dtype = dtype,
                               .c_dtype = coin(&c) ? dtype : FSDP_F32,
                               .bias_dtype = coin(&c) ? dtype : FSDP_F32,
                               .alpha = 1.0f};
        draw_product(&c, &a);
        expect(&c, &a, PRODUCT_TEXT, PRODUCT_VALUES(a));
        run(&c, native, &a, "native");
        compare_all(&c, "native");
        free_case(&c);
    }
}

static void native_products_of_f32_agree_with_their_reference(void **state)
{
    (void)state;
    check_products(FSDP_F32);
}

static void native_products_of_bf16_agree_with_their_reference(void **state)
{
    (void)state;
    if (!fsdp__has_native_bf16())
        skip();
    check_products(FSDP_BF16);
}

static void what_the_native_product_does_not_take_is_left_alone(void **state)
{
    float a[16] = {0}, c[16] = {5};
    const fsdp__matmul_args good = {.a = a,
                                    .b = a,
                                    .c = c,
                                    .m = 2,
                                    .n = 2,
                                    .k = 2,
                                    .a_row = 2,
                                    .a_col = 1,
                                    .b_row = 2,
                                    .b_col = 1,
                                    .c_row = 2,
                                    .batch = 1,
                                    .a_dtype = FSDP_F32,
                                    .b_dtype = FSDP_F32,
                                    .c_dtype = FSDP_F32,
                                    .alpha = 1.0f};
    fsdp__matmul_args bad[] = {good, good, good, good, good};

    (void)state;
    bad[0].batch = 2;
    bad[1].alpha = 0.5f;
    bad[2].a_dtype = FSDP_F16;
    bad[3].k = 0;
    bad[4].c_row = 1; /* overlaps */
    for (size_t i = 0; i < FSDP__COUNT_OF(bad); i++) {
        bool done = true;
        CHECK_OK(fsdp__native_matmul(&bad[i], &done));
        CHECK(!done);
        CHECK_EQ(c[0], 5);
    }
}

TEST_MAIN(cmocka_unit_test(every_kernel_agrees_with_its_reference),
          cmocka_unit_test(native_products_of_f32_agree_with_their_reference),
          cmocka_unit_test(native_products_of_bf16_agree_with_their_reference),
          cmocka_unit_test(what_the_native_product_does_not_take_is_left_alone))
