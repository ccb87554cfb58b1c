/* The tables of kernels, held to the oracle; and the native matrix product, which is a part of one. */
#include "backend/cpu/kernels_table.h"
#include "backend/cpu/native_matmul.h"
#include "oracle/cases.h"
#include "oracle/hold.h"

/* Every instruction set of this machine, and the one that the device has chosen. oneDNN, which has the products, shares
 * out the terms of a sum over its threads. */
TEST(every_kernel_agrees_with_the_oracle)
{
    fsdp_context *context = test_context();
    fsdp_device *cpu = CHECK_PTR(fsdp_cpu(context)), *sim = CHECK_PTR(fsdp__device_open(context, "sim", 0));
    oracle_table tables[FSDP__CPU_ISAS + 2];
    int count = 0;

    for (fsdp__cpu_isa isa = 0; isa < FSDP__CPU_ISAS; isa++)
        if (fsdp__cpu_isa_kernels(isa))
            tables[count++] = (oracle_table){.name = fsdp__cpu_isa_name(isa),
                                             .kernels = fsdp__cpu_isa_kernels(isa),
                                             .most_threads = 3,
                                             .products_by_threads = true};
    tables[count++] =
        (oracle_table){.name = "cpu", .kernels = fsdp__backend_cpu.kernels, .most_threads = 1, .lists = true};
    tables[count++] = (oracle_table){.name = "sim:0", .device = sim}; /* the same kernels: the same bits as before */
    oracle_hold(fsdp_device_stream(cpu), tables, count, test_long() ? 200 : test_brief() ? 2 : 3);
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
        draw_product(&c, &a, false);
        expect(&c, &a, PRODUCT_TEXT, PRODUCT_VALUES(a));
        run(&c, native, &a, "native");
        compare_all(&c, "native");
        free_case(&c);
    }
}

TEST(native_products_of_f32_agree_with_the_oracle)
{
    check_products(FSDP_F32);
}

TEST(native_products_of_bf16_agree_with_the_oracle)
{
    if (!fsdp__has_native_bf16())
        skip();
    check_products(FSDP_BF16);
}

TEST(what_the_native_product_does_not_take_is_left_alone)
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
