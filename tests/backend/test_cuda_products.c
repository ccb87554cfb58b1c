/* Matrix products of a CUDA device: which calls of cublasLt they are. */
#include "backend/cuda/libraries.h"
#include "backend/cuda/product_call.h"
#include "base/compiler.h"
#include "oracle/oracle.h"
#include "support/dice.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#if __has_include(<cublasLt.h>)
#include "backend/cuda/product_plans.h"
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
    unsetenv("FSDP_CUDA_LIBRARIES");
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
    free(path);
    test_directory_free(folder);
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

/* ---- plans ---- */

#if __has_include(<cublasLt.h>)

/* A cublasLt that only counts. It fails at its call number fail_at. */
static struct counted {
    int calls, fail_at, living, asked;
    cublasStatus_t heuristic;
    uint32_t reductions, alignment_a;
} counted;

static cublasStatus_t count(void)
{
    return ++counted.calls == counted.fail_at ? CUBLAS_STATUS_INTERNAL_ERROR : CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t made(void **out)
{
    cublasStatus_t answer = count();

    if (answer == CUBLAS_STATUS_SUCCESS)
        *out = &counted, counted.living++;
    return answer;
}

static const char *say(cublasStatus_t answer)
{
    return answer == CUBLAS_STATUS_INTERNAL_ERROR ? "an internal error" : "another";
}

static cublasStatus_t make_operation(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    CHECK_EQ(compute, CUBLAS_COMPUTE_32F);
    CHECK_EQ(scale, CUDA_R_32F);
    return made((void **)out);
}

static cublasStatus_t free_operation(cublasLtMatmulDesc_t operation)
{
    counted.living -= operation != NULL;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set_operation(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                    const void *value, size_t bytes)
{
    CHECK_PTR(operation);
    CHECK_PTR(value);
    CHECK_EQ(bytes, attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? sizeof(void *) : sizeof(int32_t));
    return count();
}

static cublasStatus_t make_layout(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                  int64_t ld)
{
    CHECK_EQ(type, CUDA_R_32F);
    CHECK(rows > 0 && cols > 0 && ld >= (int64_t)rows);
    return made((void **)out);
}

static cublasStatus_t free_layout(cublasLtMatrixLayout_t layout)
{
    counted.living -= layout != NULL;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set_layout(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                                 const void *value, size_t bytes)
{
    CHECK_PTR(layout);
    CHECK_PTR(value);
    CHECK_EQ(bytes, attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? sizeof(int32_t) : sizeof(int64_t));
    return count();
}

static cublasStatus_t make_preference(cublasLtMatmulPreference_t *out)
{
    return made((void **)out);
}

static cublasStatus_t free_preference(cublasLtMatmulPreference_t preference)
{
    counted.living -= preference != NULL;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t set_preference(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t bytes)
{
    CHECK_PTR(preference);
    CHECK_EQ(bytes, attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(uint64_t) : sizeof(uint32_t));
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        memcpy(&counted.reductions, value, bytes);
    if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
        memcpy(&counted.alignment_a, value, bytes);
    return count();
}

static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                cublasLtMatmulPreference_t preference, int most,
                                cublasLtMatmulHeuristicResult_t *results, int *out)
{
    cublasStatus_t answer = count();

    CHECK(!handle && operation && a && b && c && c == d && preference && most == 1);
    counted.asked++;
    if (answer != CUBLAS_STATUS_SUCCESS || counted.heuristic != CUBLAS_STATUS_SUCCESS)
        return answer != CUBLAS_STATUS_SUCCESS ? answer : counted.heuristic;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    results[0].workspaceSize = 1234;
    *out = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static const fsdp__cublaslt counting = {.GetStatusString = say,
                                        .MatmulDescCreate = make_operation,
                                        .MatmulDescDestroy = free_operation,
                                        .MatmulDescSetAttribute = set_operation,
                                        .MatrixLayoutCreate = make_layout,
                                        .MatrixLayoutDestroy = free_layout,
                                        .MatrixLayoutSetAttribute = set_layout,
                                        .MatmulPreferenceCreate = make_preference,
                                        .MatmulPreferenceDestroy = free_preference,
                                        .MatmulPreferenceSetAttribute = set_preference,
                                        .MatmulAlgoGetHeuristic = heuristic};

/* A biased call of a batch, which sets all there is to set. */
static fsdp__product_call any_call(int64_t side)
{
    _Alignas(64) static float memory[16];
    fsdp__product_call call;
    const fsdp__matmul_args k = {.a = memory,
                                 .b = memory + 1,
                                 .c = memory,
                                 .bias = memory,
                                 .m = side,
                                 .n = 2,
                                 .k = 2,
                                 .a_row = 2,
                                 .a_col = 1,
                                 .b_row = 2,
                                 .b_col = 1,
                                 .c_row = 2,
                                 .batch = 2,
                                 .a_dtype = FSDP_F32,
                                 .b_dtype = FSDP_F32,
                                 .c_dtype = FSDP_F32,
                                 .bias_dtype = FSDP_F32};

    CHECK(fsdp__product_call_of(&k, &call));
    return call;
}

TEST(a_call_is_planned_once)
{
    fsdp__product_plans plans = {.count = 0};
    fsdp__product_call call = any_call(2), other = any_call(3);
    fsdp__product_plan *plan, *again;

    counted = (struct counted){.fail_at = -1};
    CHECK_OK(fsdp__product_plan_of(&plans, &counting, NULL, &call, &plan));
    CHECK(plan->taken);
    CHECK_EQ(plan->workspace_bytes, 1234);
    CHECK_EQ(counted.reductions, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    CHECK_EQ(counted.alignment_a, sizeof(float)); /* the first matrix is our b */
    CHECK_OK(fsdp__product_plan_of(&plans, &counting, NULL, &call, &again));
    CHECK(again == plan);
    CHECK_EQ(counted.asked, 1);
    CHECK_OK(fsdp__product_plan_of(&plans, &counting, NULL, &other, &again));
    CHECK(again != plan);
    CHECK_EQ(counted.asked, 2);
    fsdp__product_plans_drop(&plans, &counting);
    CHECK_EQ(counted.living, 0);
}

TEST(a_call_without_an_algorithm_is_not_asked_for_again)
{
    fsdp__product_plans plans = {.count = 0};
    fsdp__product_call call = any_call(2);
    fsdp__product_plan *plan;

    counted = (struct counted){.fail_at = -1, .heuristic = CUBLAS_STATUS_NOT_SUPPORTED};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(fsdp__product_plan_of(&plans, &counting, NULL, &call, &plan));
        CHECK(!plan->taken);
    }
    CHECK_EQ(counted.asked, 1);
    fsdp__product_plans_drop(&plans, &counting);
    CHECK_EQ(counted.living, 0);
}

TEST(plans_of_shapes_that_never_come_again_are_dropped)
{
    fsdp__product_plans plans = {.count = 0};
    fsdp__product_plan *plan;

    counted = (struct counted){.fail_at = -1};
    for (int64_t side = 1; side <= 10000; side++) {
        fsdp__product_call call = any_call(side);

        CHECK_OK(fsdp__product_plan_of(&plans, &counting, NULL, &call, &plan));
        CHECK_EQ(counted.living, 4 * plans.count);
        CHECK(plans.count <= 4096);
    }
    fsdp__product_plans_drop(&plans, &counting);
    CHECK_EQ(counted.living, 0);
}

TEST(each_call_of_cublaslt_that_fails_leaves_nothing_behind)
{
    fsdp__product_call call = any_call(2);
    fsdp_status status = FSDP_UNSUPPORTED;

    for (int nth = 1; status != FSDP_OK; nth++) {
        fsdp__product_plans plans = {.count = 0};
        fsdp__product_plan *plan;

        counted = (struct counted){.fail_at = nth};
        status = fsdp__product_plan_of(&plans, &counting, NULL, &call, &plan);
        CHECK(status == FSDP_OK || (status == FSDP_UNSUPPORTED && !plan && plans.count == 0));
        if (status != FSDP_OK)
            CHECK_CONTAINS(fsdp_last_error(), "failed: an internal error");
        fsdp__product_plans_drop(&plans, &counting);
        CHECK_EQ(counted.living, 0);
    }
    CHECK(counted.calls > 15);
}

TEST(a_plan_without_memory_is_an_error)
{
    fsdp__product_call call = any_call(2);

    counted = (struct counted){.fail_at = -1};
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__product_plans plans = {.count = 0};
        fsdp__product_plan *plan;

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__product_plan_of(&plans, &counting, NULL, &call, &plan));
        fsdp__product_plans_drop(&plans, &counting);
        CHECK_EQ(counted.living, 0);
    }
}

#endif
