/* Matrix products of a CUDA device: which calls of cublasLt they are. */
#include "backend/cuda/libraries.h"
#include "backend/cuda/product_call.h"
#include "base/compiler.h"
#include "oracle/oracle.h"
#include "support/dice.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/use.h"
#include "device/device.h"
#endif

/* ---- what a call computes ---- */

enum {
    SIDE = 9,
    BATCH = 3,
    ELEMENTS = BATCH * (SIDE + 3) * (SIDE + 3)
};

typedef struct operands {
    float a[ELEMENTS], b[ELEMENTS], c[ELEMENTS], bias[SIDE];
} operands;

static double element(const fsdp__product_matrix *matrix, const float *data, int64_t batch, int64_t row, int64_t col)
{
    int64_t at = matrix->transposed ? col + row * matrix->ld : row + col * matrix->ld;

    return (double)data[batch * matrix->batch + at];
}

/* Does what cublasLt's manual says of such a call. */
static void run_call(const fsdp__product_call *call, const fsdp__matmul_args *k, float *c)
{
    int64_t depth = call->first.transposed ? call->first.rows : call->first.cols;

    for (int64_t e = 0; e < call->batch; e++)
        for (int64_t col = 0; col < call->out.cols; col++)
            for (int64_t row = 0; row < call->out.rows; row++) {
                float *out = &c[e * call->out.batch + row + col * call->out.ld];
                double sum = 0.0;

                for (int64_t p = 0; p < depth; p++)
                    sum += element(&call->first, k->b, e, row, p) * element(&call->second, k->a, e, p, col);
                sum = (double)k->alpha * sum + (k->accumulate ? (double)*out : 0.0);
                *out = (float)(sum + (call->bias_alignment > 0 ? (double)((const float *)k->bias)[row] : 0.0));
            }
}

static int64_t between(uint64_t *dice, int low, int high)
{
    return low + dice_below(dice, high - low + 1);
}

static fsdp__matmul_args f32_product(uint64_t *dice, operands *x)
{
    fsdp__matmul_args k = {.a = x->a, .b = x->b, .c = x->c, .batch = between(dice, 1, BATCH), .alpha = 0.5f};
    bool ta = dice_chance(dice, 50), tb = dice_chance(dice, 50);
    int64_t extra = between(dice, 0, 3);

    k.m = between(dice, 1, SIDE), k.n = between(dice, 1, SIDE), k.k = between(dice, 1, SIDE);
    k.a_row = ta ? 1 : k.k + extra, k.a_col = ta ? k.m + extra : 1;
    k.b_row = tb ? 1 : k.n + extra, k.b_col = tb ? k.k + extra : 1;
    k.c_row = k.n + extra;
    k.a_batch = k.b_batch = k.c_batch = ELEMENTS / BATCH;
    if (dice_chance(dice, 50))
        k.b_batch = 0;
    k.bias = dice_chance(dice, 50) ? x->bias : NULL;
    k.accumulate = dice_chance(dice, 50);
    k.a_dtype = k.b_dtype = k.c_dtype = k.bias_dtype = FSDP_F32;
    return k;
}

/* Small integers: every order of a sum gives the same bits. */
static void draw(uint64_t *dice, operands *x)
{
    for (int i = 0; i < ELEMENTS; i++) {
        x->a[i] = (float)between(dice, -8, 8);
        x->b[i] = (float)between(dice, -8, 8);
        x->c[i] = (float)between(dice, -8, 8);
    }
    for (int i = 0; i < SIDE; i++)
        x->bias[i] = (float)between(dice, -8, 8);
}

static void check_leading(const fsdp__product_matrix *matrix)
{
    CHECK(matrix->ld >= matrix->rows);
}

TEST(a_call_of_cublaslt_computes_the_product)
{
    uint64_t dice = 34;
    operands x;
    float expected[ELEMENTS];

    for (int round = 0; round < 500; round++) {
        fsdp__matmul_args k = f32_product(&dice, &x);
        fsdp__product_call call;

        draw(&dice, &x);
        memcpy(expected, x.c, sizeof expected);
        CHECK(fsdp__product_call_of(&k, &call));
        check_leading(&call.first);
        check_leading(&call.second);
        check_leading(&call.out);
        run_call(&call, &k, expected);
        oracle_matmul(&k);
        CHECK_BYTES(x.c, expected, sizeof expected);
    }
}

TEST(blocks_of_memory_give_the_same_call_wherever_they_lie)
{
    _Alignas(64) static char memory[5][64];
    fsdp__matmul_args k = {.m = 2, .n = 2, .k = 2, .a_row = 2, .a_col = 1, .b_row = 2, .b_col = 1, .c_row = 2};
    fsdp__product_call call, other;

    k.a_dtype = k.b_dtype = k.c_dtype = k.bias_dtype = FSDP_BF16;
    k.batch = 1;
    k.a = memory[0], k.b = memory[1], k.c = memory[2], k.bias = memory[3];
    CHECK(fsdp__product_call_of(&k, &call));
    k.a = memory[3], k.c = memory[4], k.bias = memory[0] + 16, k.a_batch = 7;
    CHECK(fsdp__product_call_of(&k, &other));
    CHECK_BYTES(&other, &call, sizeof call);
    for (int bytes = 2; bytes < 16; bytes += 2) {
        k.a = memory[3] + bytes;
        CHECK(fsdp__product_call_of(&k, &other));
        CHECK(memcmp(&other, &call, sizeof call) != 0);
        CHECK_EQ((intptr_t)k.a % other.second.alignment, 0);
    }
}

/* ---- which products are calls ---- */

static bool is_call(int64_t m, int64_t n, int64_t depth, bool ta, bool tb, fsdp_dtype in, fsdp_dtype out, bool biased)
{
    _Alignas(64) static char memory[64];
    fsdp__product_call call;
    const fsdp__matmul_args k = {.a = memory,
                                 .b = memory,
                                 .c = memory,
                                 .bias = biased ? memory : NULL,
                                 .m = m,
                                 .n = n,
                                 .k = depth,
                                 .a_row = ta ? 1 : depth,
                                 .a_col = ta ? m : 1,
                                 .b_row = tb ? 1 : n,
                                 .b_col = tb ? depth : 1,
                                 .c_row = n,
                                 .batch = 1,
                                 .a_dtype = in,
                                 .b_dtype = in,
                                 .c_dtype = out,
                                 .bias_dtype = out};

    return fsdp__product_call_of(&k, &call);
}

/* The three products of x (rows,in) and a weight, as ops/linear.c and ops/linear_cross_entropy.c launch them. */
static void check_layer(int64_t rows, int64_t in, int64_t out, bool conv1d, fsdp_dtype dtype, fsdp_dtype y,
                        fsdp_dtype dweight, bool biased)
{
    CHECK(is_call(rows, out, in, false, !conv1d, dtype, y, biased));
    CHECK(is_call(rows, in, out, false, conv1d, dtype, dtype, false));
    if (conv1d)
        CHECK(is_call(in, out, rows, true, false, dtype, dweight, false));
    else
        CHECK(is_call(out, in, rows, true, false, dtype, dweight, false));
}

TEST(all_products_of_a_training_step_are_calls)
{
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    static const int64_t rows[] = {16384, 4096, 513, 1};
    static const int64_t llama[][2] = {{2048, 2048}, {2048, 512}, {2048, 8192}, {8192, 2048}, {576, 192}, {576, 1536}};
    static const int64_t gpt2[][2] = {{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}};
    static const int64_t heads[][3] = {{4096, 2048, 128256}, {130, 2048, 128256}, {333, 768, 50257}};

    for (size_t t = 0; t < FSDP__COUNT_OF(types); t++)
        for (int wide = 0; wide < 2; wide++) { /* a weight's gradient has its dtype, or is f32 */
            fsdp_dtype dweight = wide ? FSDP_F32 : types[t];

            for (size_t r = 0; r < FSDP__COUNT_OF(rows); r++) {
                for (size_t i = 0; i < FSDP__COUNT_OF(llama); i++)
                    check_layer(rows[r], llama[i][0], llama[i][1], false, types[t], types[t], dweight, false);
                for (size_t i = 0; i < FSDP__COUNT_OF(gpt2); i++)
                    check_layer(rows[r], gpt2[i][0], gpt2[i][1], true, types[t], types[t], dweight, true);
            }
            for (size_t i = 0; i < FSDP__COUNT_OF(heads); i++)
                check_layer(heads[i][0], heads[i][1], heads[i][2], false, types[t], FSDP_F32, dweight, false);
        }
}

TEST(what_cublaslt_has_no_call_for_is_told)
{
    operands x;
    uint64_t dice = 1;
    fsdp__matmul_args good = f32_product(&dice, &x), k;
    fsdp__product_call call;

    good.m = good.n = good.k = 4, good.a_row = good.b_row = good.c_row = 4, good.a_col = good.b_col = 1;
    good.bias = x.bias;
    CHECK(fsdp__product_call_of(&good, &call));
#define REFUSED(change) (k = good, change, CHECK(!fsdp__product_call_of(&k, &call)))
    REFUSED(k.a_dtype = FSDP_BF16);                /* operands of two dtypes */
    REFUSED(k.c_dtype = k.bias_dtype = FSDP_BF16); /* narrower than its operands */
    REFUSED(k.bias_dtype = FSDP_F16);              /* not of the output */
    REFUSED((k.a_dtype = k.b_dtype = FSDP_F16, k.c_dtype = k.bias_dtype = FSDP_BF16));
    REFUSED(k.a_row = 3); /* rows that overlap */
    REFUSED((k.b_row = 1, k.b_col = 3));
    REFUSED(k.c_row = 3);
    good.c_row = 8, good.gelu = FSDP__PRODUCT_GELU, good.before = x.c;
    good.accumulate = false, good.batch = 1;
    CHECK(fsdp__product_call_of(&good, &call));
    CHECK_EQ(call.epilogue, FSDP__EPILOGUE_GELU_AUX_BIAS);
    REFUSED(k.c_row = 12); /* what GELU is of must have columns that are multiples of 8 apart */
    REFUSED(k.accumulate = true);
    REFUSED(k.batch = 2);
    REFUSED((k.a_dtype = k.b_dtype = FSDP_BF16));
    good.gelu = FSDP__PRODUCT_PLAIN, good.before = NULL, good.c_row = 4;
    REFUSED(k.a_row = 0);
    REFUSED((k.m = (int64_t)INT32_MAX + 1));
#undef REFUSED
}

/* ---- libraries ---- */

static const fsdp__cuda_library absent = {"libfsdp-absent.so.7", "tests", "nothing"};

TEST(a_missing_library_is_told_with_where_it_was_looked_for)
{
    void *handle = &handle;

    unsetenv("FSDP_CUDA_LIBRARIES");
    CHECK_ERROR(fsdp__cuda_library_open(&absent, &handle), FSDP_NOT_FOUND, "which tests on a GPU need");
    CHECK_NULL(handle);
    CHECK_CONTAINS(fsdp_last_error(), "FSDP_CUDA_LIBRARIES (not set)");
    CHECK_CONTAINS(fsdp_last_error(), "install nothing, or name the folder");
    setenv("FSDP_CUDA_LIBRARIES", "::/nowhere:", 1);
    CHECK_ERROR(fsdp__cuda_library_open(&absent, &handle), FSDP_NOT_FOUND, "FSDP_CUDA_LIBRARIES (::/nowhere:)");
}

TEST(a_library_is_taken_from_the_folder_that_is_named)
{
    static const fsdp__cuda_library library = {"libm.so.6", "tests", "the C library"};
    char *folder = test_directory(), *path = test_path(folder, library.file), folders[1100];
    void *handle;

    test_write_file(path, "no library", 10);
    snprintf(folders, sizeof folders, "/nowhere:%s", folder);
    setenv("FSDP_CUDA_LIBRARIES", folders, 1);
    CHECK_ERROR(fsdp__cuda_library_open(&library, &handle), FSDP_NOT_FOUND, path);
    unsetenv("FSDP_CUDA_LIBRARIES");
    CHECK_OK(fsdp__cuda_library_open(&library, &handle)); /* by the loader */
    CHECK_PTR(handle);
}

TEST(a_function_that_a_library_lacks_is_named)
{
    static const fsdp__cuda_library library = {"libm.so.6", "tests", "the C library"};
    static const char *const names[] = {"cos", "cosine"};
    void *handle, *functions[2] = {NULL, NULL};

    CHECK_OK(fsdp__cuda_library_open(&library, &handle));
    CHECK_OK(fsdp__cuda_library_functions(&library, handle, names, functions, 1));
    CHECK_PTR(functions[0]);
    CHECK_ERROR(fsdp__cuda_library_functions(&library, handle, names, functions, 2), FSDP_UNSUPPORTED,
                "libm.so.6 has no function cosine: install the C library");
}

/* ---- on a device, with the fake CUDA ---- */

#ifdef FSDP_HAVE_FAKECUDA

enum {
    M = 5,
    N = 7,
    K = 80,             /* enough for scratch */
    INTERNAL_ERROR = 14 /* of cublasLt */
};

typedef struct numbers {
    float a[M * K], b[K * N], c[M * N], bias[N];
} numbers;

static fsdp__matmul_args product_of(numbers *x)
{
    return (fsdp__matmul_args){.a = x->a,
                               .b = x->b,
                               .c = x->c,
                               .bias = x->bias,
                               .m = M,
                               .n = N,
                               .k = K,
                               .a_row = K,
                               .a_col = 1,
                               .b_row = N,
                               .b_col = 1,
                               .c_row = N,
                               .batch = 1,
                               .alpha = 1.0f,
                               .a_dtype = FSDP_F32,
                               .b_dtype = FSDP_F32,
                               .c_dtype = FSDP_F32,
                               .bias_dtype = FSDP_F32};
}

/* Computes a product there. If that succeeds, it is right. */
static fsdp_status compute(const setting *s)
{
    static numbers host, back;
    fsdp_stream *stream = fsdp_device_stream(s->device);
    fsdp__matmul_args args = product_of(s->on_device), here = product_of(&host);

    for (size_t i = 0; i < sizeof host / sizeof(float); i++)
        ((float *)&host)[i] = (float)(i % 5);
    FSDP_TRY(fsdp__copy_to_device(stream, s->on_device, &host, sizeof host));
    FSDP_TRY(fsdp__launch_matmul(stream, &args));
    FSDP_TRY(fsdp__copy_to_host(stream, &back, s->on_device, sizeof back));
    FSDP_TRY(fsdp_stream_synchronize(stream));
    oracle_matmul(&here);
    CHECK_BYTES(back.c, host.c, sizeof host.c);
    return FSDP_OK;
}

TEST(a_product_is_one_call_of_cublaslt_and_no_kernel)
{
    setting s;

    set_up(&s, test_context(), sizeof(numbers));
    for (int i = 0; i < 3; i++)
        CHECK_OK(compute(&s));
    CHECK_EQ(fakecuda.uses("cublasLtMatmul"), 3);
    CHECK_EQ(fakecuda.uses("cublasLtMatmulAlgoGetHeuristic"), 1);
    CHECK_EQ(fakecuda.uses("kernel"), 0);
    tear_down(&s);
}

static void launch(const setting *s, const fsdp__matmul_args *args)
{
    fsdp_stream *stream = fsdp_device_stream(s->device);

    CHECK_OK(fsdp__launch_matmul(stream, args));
    CHECK_OK(fsdp_stream_synchronize(stream));
}

TEST(what_cublaslt_does_not_compute_is_a_kernel)
{
    setting s;
    fsdp__matmul_args args;

    set_up(&s, test_context(), sizeof(numbers));
    args = product_of(s.on_device);
    args.a_dtype = FSDP_BF16; /* operands of two dtypes are no call */
    launch(&s, &args);
    CHECK_EQ(fakecuda.uses("cublasLtCreate"), 0);
    CHECK_EQ(fakecuda.uses("kernel"), 1);
    args.a_dtype = args.b_dtype = FSDP_F16;
    args.a = (const char *)args.a + 2; /* at such an address it has no algorithm, and is asked once */
    for (int i = 0; i < 2; i++)
        launch(&s, &args);
    CHECK_EQ(fakecuda.uses("cublasLtMatmulAlgoGetHeuristic"), 1);
    CHECK_EQ(fakecuda.uses("cublasLtMatmul"), 0);
    CHECK_EQ(fakecuda.uses("kernel"), 3);
    tear_down(&s);
}

/* ---- with GELU ---- */

enum {
    F = 16 /* columns */
};

typedef struct gelu_numbers {
    _Alignas(64) float a[M * K];
    _Alignas(64) float b[K * F];
    _Alignas(64) float c[M * (F + 1)];
    _Alignas(64) float before[M * (F + 1)];
    _Alignas(64) float bias[F];
} gelu_numbers;

static fsdp__matmul_args gelu_product(gelu_numbers *x, fsdp__product_gelu gelu, bool before, bool bias)
{
    fsdp__matmul_args k = product_of(NULL);

    k.a = x->a, k.b = x->b, k.c = x->c;
    k.bias = bias ? x->bias : NULL;
    k.before = before ? x->before : NULL;
    k.n = k.b_row = k.c_row = F;
    k.gelu = gelu;
    return k;
}

/* Computes such a product there, which agrees with the oracle: `apart` tells that rows have room between them. */
static void compute_gelu(const setting *s, fsdp__product_gelu gelu, bool before, bool bias, bool apart)
{
    static gelu_numbers host, back;
    fsdp_stream *stream = fsdp_device_stream(s->device);
    fsdp__matmul_args here = gelu_product(&host, gelu, before, bias), there;
    void *memory;

    for (size_t i = 0; i < sizeof host / sizeof(float); i++)
        ((float *)&host)[i] = (float)((int)(i * 7 % 11) - 5) * 0.1f;
    CHECK_OK(fsdp__device_alloc(s->device, sizeof host, FSDP_MEMORY_WORKSPACE, &memory));
    there = gelu_product(memory, gelu, before, bias);
    here.c_row = there.c_row = F + apart;
    CHECK_OK(fsdp__copy_to_device(stream, memory, &host, sizeof host));
    CHECK_OK(fsdp__launch_matmul(stream, &there));
    CHECK_OK(fsdp__copy_to_host(stream, &back, memory, sizeof back));
    CHECK_OK(fsdp_stream_synchronize(stream));
    oracle_matmul(&here);
    CHECK_CLOSE(back.c, host.c, M * (F + 1), 1e-5, 1e-5);
    CHECK_CLOSE(back.before, host.before, M * (F + 1), 1e-5, 1e-5);
    fsdp__device_free(s->device, memory, sizeof host, FSDP_MEMORY_WORKSPACE);
}

TEST(a_product_with_gelu_is_one_call_of_cublaslt_and_no_kernel)
{
    setting s;

    set_up(&s, test_context(), sizeof(numbers));
    for (int i = 0; i < 4; i++)
        compute_gelu(&s, FSDP__PRODUCT_GELU, i & 1, i & 2, false);
    compute_gelu(&s, FSDP__PRODUCT_GELU_GRADIENT, true, false, false);
    CHECK_EQ(fakecuda.uses("cublasLtMatmul"), 5);
    CHECK_EQ(fakecuda.uses("cublasLtMatmulAlgoGetHeuristic"), 5);
    CHECK_EQ(fakecuda.uses("kernel"), 0);
    tear_down(&s);
}

TEST(gelu_that_cublaslt_does_not_take_along_is_a_pass)
{
    enum {
        NOT_SUPPORTED = 15
    };
    setting s;

    set_up(&s, test_context(), sizeof(numbers));
    compute_gelu(&s, FSDP__PRODUCT_GELU, true, true, true); /* rows 17 apart: no multiple of 8 */
    CHECK_EQ(fakecuda.uses("cublasLtMatmul"), 1);
    CHECK_EQ(fakecuda.uses("kernel"), M);
    for (int gelu = FSDP__PRODUCT_GELU; gelu <= FSDP__PRODUCT_GELU_GRADIENT; gelu++) { /* it has no algorithm */
        fakecuda.fail_call("kernel", 0, 0, false);
        fakecuda.fail_call("cublasLtMatmul", 0, 0, false);
        fakecuda.fail_call("cublasLtMatmulAlgoGetHeuristic", 1, NOT_SUPPORTED, false);
        compute_gelu(&s, (fsdp__product_gelu)gelu, true, false, false);
        CHECK(fakecuda.failed("cublasLtMatmulAlgoGetHeuristic"));
        CHECK_EQ(fakecuda.uses("cublasLtMatmul"), 1);
        CHECK_EQ(fakecuda.uses("kernel"), 1);
        fakecuda.mend();
    }
    tear_down(&s);
}

TEST(plans_of_layouts_that_never_come_again_are_dropped)
{
    setting s;
    fsdp__matmul_args args;
    char text[128];

    set_up(&s, test_context(), sizeof(numbers));
    args = product_of(s.on_device);
    args.m = 2, args.n = args.k = args.b_row = 1;
    for (args.a_row = 1; args.a_row <= 140; args.a_row++)
        for (args.c_row = 1; args.c_row <= 35; args.c_row++)
            launch(&s, &args);
    CHECK_EQ(fakecuda.uses("cublasLtMatmul"), 140 * 35);
    CHECK_EQ(fakecuda.uses("cublasLtMatmulAlgoGetHeuristic"), 140 * 35);
    CHECK(fakecuda.live(text, sizeof text) < 4 * 1000); /* 4900 plans have 4 objects each */
    tear_down(&s);
}

TEST(a_product_without_memory_is_an_error)
{
    setting s;

    set_up(&s, test_context(), sizeof(numbers));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, compute(&s));
    CHECK_EQ(fakecuda.uses("kernel"), 0);
    tear_down(&s);
}

/* Returns whether the n-th use of the call failed, of those for a device's first product. */
static bool fails_cleanly(const char *call, long nth)
{
    setting s;
    bool failed;

    set_up(&s, test_context(), sizeof(numbers));
    fakecuda.fail_call(call, nth, INTERNAL_ERROR, false);
    failed = compute(&s) != FSDP_OK;
    CHECK_EQ(failed, fakecuda.failed(call));
    if (failed)
        CHECK_CONTAINS(fsdp_last_error(), call);
    fakecuda.mend();
    fsdp_clear_error();
    CHECK_OK(compute(&s));
    tear_down(&s);
    return failed;
}

TEST(each_call_of_cublaslt_that_fails_is_told_and_the_next_product_is_right)
{
    int failures = 0;

    for (const char *const *call = fakecuda.calls; *call; call++)
        if (strncmp(*call, "cublasLt", 8) == 0 && !strstr(*call, "Destroy"))
            for (long nth = 1; fails_cleanly(*call, nth); nth++)
                failures++;
    CHECK(failures > 15);
}

#endif
