/* The product as a primitive of oneDNN, against the reference. With f32 it runs on every machine, with bf16 where the
 * cores multiply bf16. */
#include "backend/cpu/native_matmul.h"
#include "backend/reference.h"
#include "base/compiler.h"
#include "base/rng.h"
#include "support/test.h"

enum {
    ROUNDS = 200,
    MOST = 80
};

typedef struct dice {
    uint64_t key, draws;
} dice;

static int64_t between(dice *d, int64_t low, int64_t high)
{
    uint32_t words[4];

    fsdp__philox(d->key, d->draws++, words);
    return low + (int64_t)(words[0] % (uint64_t)(high - low + 1));
}

static void *random_matrix(dice *d, fsdp_dtype dtype, int64_t numel)
{
    void *p = malloc((size_t)numel * fsdp_dtype_size(dtype));

    for (int64_t i = 0; i < numel; i++)
        ref_put(dtype, p, i, (double)between(d, -1000, 1000) * 1e-3);
    return p;
}

/* Uneven sides, both layouts, rows further apart than they are long; C keeps what lies between its rows. */
static void check_product(dice *d, fsdp_dtype dtype)
{
    int64_t m = between(d, 1, MOST), n = between(d, 1, MOST), k = between(d, 1, MOST), extra = between(d, 0, 3);
    bool ta = between(d, 0, 1), tb = between(d, 0, 1), biased = between(d, 0, 1);
    int64_t a_ld = (ta ? m : k) + extra, b_ld = (tb ? k : n) + extra, c_ld = n + extra;
    fsdp__matmul_args args = {.m = m,
                              .n = n,
                              .k = k,
                              .a_row = ta ? 1 : a_ld,
                              .a_col = ta ? a_ld : 1,
                              .b_row = tb ? 1 : b_ld,
                              .b_col = tb ? b_ld : 1,
                              .c_row = c_ld,
                              .batch = 1,
                              .a_dtype = dtype,
                              .b_dtype = dtype,
                              .c_dtype = between(d, 0, 1) ? dtype : FSDP_F32,
                              .bias_dtype = between(d, 0, 1) ? dtype : FSDP_F32,
                              .alpha = 1.0f,
                              .accumulate = between(d, 0, 1)};
    size_t bytes = (size_t)(m * c_ld) * fsdp_dtype_size(args.c_dtype);
    void *a = random_matrix(d, dtype, (ta ? k : m) * a_ld), *b = random_matrix(d, dtype, (tb ? n : k) * b_ld);
    void *bias = random_matrix(d, args.bias_dtype, n), *c = random_matrix(d, args.c_dtype, m * c_ld);
    void *expected = malloc(bytes);
    bool done;

    memcpy(expected, c, bytes);
    args.a = a, args.b = b, args.bias = biased ? bias : NULL, args.c = expected;
    ref_matmul(&args);
    args.c = c;
    CHECK_OK(fsdp__native_matmul(&args, &done));
    CHECK(done);
    for (int64_t i = 0; i < m * c_ld; i++) {
        double want = ref_get(args.c_dtype, expected, i), rounding = args.c_dtype == FSDP_BF16 ? 0x1p-7 : 0x1p-23;
        CHECK_NEAR(ref_get(args.c_dtype, c, i), want, rounding * fabs(want) + 4e-7 * (double)(k + 4));
    }
    free(a), free(b), free(bias), free(c), free(expected);
}

static void products_of_f32_agree_with_the_reference(void **state)
{
    dice d = {.key = 17};

    (void)state;
    for (int i = 0; i < ROUNDS; i++)
        check_product(&d, FSDP_F32);
}

static void products_of_bf16_agree_with_the_reference(void **state)
{
    dice d = {.key = 18};

    (void)state;
    if (!fsdp__has_native_bf16())
        skip();
    for (int i = 0; i < ROUNDS; i++)
        check_product(&d, FSDP_BF16);
}

static void what_it_does_not_take_is_left_alone(void **state)
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

TEST_MAIN(cmocka_unit_test(products_of_f32_agree_with_the_reference),
          cmocka_unit_test(products_of_bf16_agree_with_the_reference),
          cmocka_unit_test(what_it_does_not_take_is_left_alone))
