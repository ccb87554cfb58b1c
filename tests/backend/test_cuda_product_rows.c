/* The table of cublasLt's algorithms: what is in it, how it is looked up, and what a device does with it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/product_rows.h"
#include "base/compiler.h"
#include "oracle/oracle.h"
#include "support/test.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#include "device/device.h"
#endif

enum {
    M = 5,
    N = 8,
    K = 80,
    VERSION = 130100
};

/* ---- rows ---- */

static _Alignas(64) char memory[256];

/* What a linear of a model launches: x (M,K), W (N,K). */
static fsdp__matmul_args linear(void)
{
    return (fsdp__matmul_args){.a = memory,
                               .b = memory + 64,
                               .c = memory + 128,
                               .m = M,
                               .n = N,
                               .k = K,
                               .a_row = K,
                               .a_col = 1,
                               .b_row = 1,
                               .b_col = K,
                               .c_row = N,
                               .batch = 1,
                               .alpha = 1,
                               .a_dtype = FSDP_BF16,
                               .b_dtype = FSDP_BF16,
                               .c_dtype = FSDP_BF16,
                               .bias_dtype = FSDP_BF16};
}

static fsdp__product_call call_of(const fsdp__matmul_args *args)
{
    fsdp__product_call call;

    CHECK(fsdp__product_call_of(args, &call));
    return call;
}

TEST(a_row_is_found_for_its_call_card_and_version_only)
{
    fsdp__product_row rows[3] = {0};
    const fsdp__matmul_args good = linear();
    fsdp__product_call call = call_of(&good);
    fsdp__matmul_args k;

    CHECK(fsdp__product_row_of(&call, &rows[1]));
    rows[0] = rows[1];
    rows[0].card = rows[1].card = "a card";
    rows[0].version = VERSION - 100;
    rows[1].version = VERSION;
    CHECK(fsdp__product_row_find(rows, "a card", VERSION, &call) == &rows[1]);
    CHECK(fsdp__product_row_find(rows, "a card", VERSION - 100, &call) == &rows[0]);
    CHECK_NULL(fsdp__product_row_find(rows, "a card", VERSION + 1, &call));
    CHECK_NULL(fsdp__product_row_find(rows, "another", VERSION, &call));
    CHECK_NULL(fsdp__product_row_find(rows + 2, "a card", VERSION, &call));
#define OTHER(change) \
    (k = good, change, call = call_of(&k), CHECK_NULL(fsdp__product_row_find(rows, "a card", VERSION, &call)))
    OTHER(k.m = M + 1);
    OTHER((k.n = N + 1, k.c_row = N + 1));
    OTHER((k.k = K - 1));
    OTHER(k.a_row = K + 8);
    OTHER(k.b_col = K + 8);
    OTHER(k.c_row = N + 8);
    OTHER((k.a_row = 1, k.a_col = M));
    OTHER((k.b_row = N, k.b_col = 1));
    OTHER(k.bias = memory);
    OTHER(k.sums = memory);
    OTHER(k.c_dtype = FSDP_F32);
    OTHER((k.a_dtype = k.b_dtype = k.c_dtype = FSDP_F16));
    OTHER((k.batch = 2, k.a_batch = M * K, k.b_batch = N * K, k.c_batch = M * N));
    OTHER(k.a = memory + 8); /* less aligned than what was measured */
    OTHER(k.b = memory + 8);
    OTHER(k.c = memory + 8);
#undef OTHER
}

TEST(a_bias_that_is_less_aligned_has_no_row)
{
    fsdp__matmul_args k = linear();
    fsdp__product_call call;
    fsdp__product_row row;

    k.bias = memory + 192;
    call = call_of(&k);
    CHECK(fsdp__product_row_of(&call, &row));
    CHECK_EQ(row.epilogue, FSDP__EPILOGUE_BIAS);
    k.bias = memory + 196;
    call = call_of(&k);
    CHECK(!fsdp__product_row_of(&call, &row));
}

TEST(rows_of_a_card_are_counted)
{
    const fsdp__product_row rows[] = {{.card = "a", .version = 1},
                                      {.card = "b", .version = 2},
                                      {.card = "a", .version = 1},
                                      {.card = "b", .version = 3},
                                      {.card = NULL}};
    const fsdp__product_row *other;

    CHECK_EQ(fsdp__product_rows_count(rows, "a", 1, &other), 2);
    CHECK_NULL(other);
    CHECK_EQ(fsdp__product_rows_count(rows, "b", 3, &other), 1);
    CHECK(other == &rows[1]);
    CHECK_EQ(fsdp__product_rows_count(rows, "a", 3, &other), 0);
    CHECK_EQ(other->version, 1);
    CHECK_EQ(fsdp__product_rows_count(rows, "c", 1, &other), 0);
    CHECK_NULL(other);
}

TEST(a_row_is_printed_as_the_table_has_it)
{
    fsdp__matmul_args k = linear();
    fsdp__product_call call;
    fsdp__product_row row;
    char text[256] = "";
    FILE *out = CHECK_PTR(fmemopen(text, sizeof text, "w"));

    k.bias = memory;
    k.c_dtype = k.bias_dtype = FSDP_F32;
    call = call_of(&k);
    CHECK(fsdp__product_row_of(&call, &row));
    row.card = "NVIDIA H200";
    row.version = VERSION;
    row.algorithm = (fsdp__product_algorithm){66, 513, 36, 2, 2, 1, 5, 4, 3};
    fsdp__product_row_print(&row, out);
    CHECK_EQ(fclose(out), 0);
    CHECK_STRING(text, "ROW(\"NVIDIA H200\", 130100, \"TN\", BF16, F32, BIAS, 8, 5, 80, 80, 80, 8, "
                       "66, 513, 36, 2, 2, 1, 5, 4, 3)");
}

static bool same_key(const fsdp__product_row *a, const fsdp__product_row *b)
{
    return strcmp(a->card, b->card) == 0 && a->version == b->version && strcmp(a->layout, b->layout) == 0 &&
           a->in == b->in && a->out == b->out && a->epilogue == b->epilogue && a->n == b->n && a->m == b->m &&
           a->k == b->k && a->first_ld == b->first_ld && a->second_ld == b->second_ld && a->out_ld == b->out_ld;
}

/* A row whose sums depend on time would be refused by every device, and the second of two for one call never used. */
TEST(the_table_of_this_build_has_each_call_once_with_sums_in_order)
{
    for (const fsdp__product_row *row = fsdp__product_rows; row->card; row++) {
        CHECK(row->version > 100000 && row->n > 0 && row->m > 0 && row->k > 0);
        CHECK(row->algorithm.reduction == 0 || row->algorithm.reduction == 2);
        CHECK(row->algorithm.id >= 0 || row->epilogue >= FSDP__EPILOGUE_GELU);
        for (const fsdp__product_row *other = fsdp__product_rows; other < row; other++)
            CHECK(!same_key(other, row));
    }
}

/* ---- on a device, with the fake CUDA and its table (fakecuda/product_rows.inc) ---- */

#ifdef FSDP_HAVE_FAKECUDA

typedef struct numbers {
    _Alignas(64) float a[M * K];
    _Alignas(64) float b[K * N];
    _Alignas(64) float c[M * N];
    _Alignas(64) float vector[64];
} numbers;

typedef struct setting {
    fsdp_context *context;
    fsdp_device *device;
    numbers *on_device;
    int lines; /* of the log */
    char line[512];
} setting;

static void keep_line(void *arg, fsdp_log_level level, const char *text)
{
    setting *s = arg;

    (void)level;
    s->lines++;
    snprintf(s->line, sizeof s->line, "%s", text);
}

static void set_up(setting *s, const char *card)
{
    void *memory_there;

    setenv("FSDP_FAKECUDA_NAME", card, 1);
    *s = (setting){.context = test_context()};
    fsdp_context_set_log(s->context, FSDP_LOG_INFO, keep_line, s);
    s->device = CHECK_PTR(fsdp_cuda(s->context, 0));
    CHECK_OK(fsdp__device_alloc(s->device, sizeof(numbers), FSDP_MEMORY_WORKSPACE, &memory_there));
    s->on_device = memory_there;
    for (const char *const *call = fakecuda.calls; *call; call++)
        fakecuda.fail_call(*call, 0, 0, false); /* counts from here */
}

static void tear_down(setting *s)
{
    char text[128];

    fsdp__device_free(s->device, s->on_device, sizeof(numbers), FSDP_MEMORY_WORKSPACE);
    fsdp_context_free(s->context);
    unsetenv("FSDP_FAKECUDA_NAME");
    if (fakecuda.live(text, sizeof text) != 0)
        TEST_FAIL("left over: %s", text);
}

static fsdp__matmul_args product_of(numbers *x, fsdp__product_epilogue epilogue)
{
    fsdp__matmul_args k = linear();

    k.a = x->a, k.b = x->b, k.c = x->c;
    k.b_row = N, k.b_col = 1;
    k.a_dtype = k.b_dtype = k.c_dtype = k.bias_dtype = FSDP_F32;
    k.bias = epilogue == FSDP__EPILOGUE_BIAS ? x->vector : NULL;
    k.sums = epilogue >= FSDP__EPILOGUE_SUMS_OF_FIRST ? x->vector : NULL;
    k.sums_of_b = epilogue == FSDP__EPILOGUE_SUMS_OF_FIRST;
    return k;
}

/* Computes a product there, which is right. */
static fsdp_status compute(const setting *s, fsdp__product_epilogue epilogue)
{
    static numbers host, back;
    fsdp_stream *stream = fsdp_device_stream(s->device);
    fsdp__matmul_args args = product_of(s->on_device, epilogue), here = product_of(&host, epilogue);

    for (size_t i = 0; i < sizeof host / sizeof(float); i++)
        ((float *)&host)[i] = (float)(i % 5);
    FSDP_TRY(fsdp__copy_to_device(stream, s->on_device, &host, sizeof host));
    FSDP_TRY(fsdp__launch_matmul(stream, &args));
    FSDP_TRY(fsdp__copy_to_host(stream, &back, s->on_device, sizeof back));
    FSDP_TRY(fsdp_stream_synchronize(stream));
    oracle_matmul(&here);
    CHECK_BYTES(back.c, host.c, sizeof host.c);
    CHECK_BYTES(back.vector, host.vector, sizeof host.vector);
    return FSDP_OK;
}

static const char *const heuristic = "cublasLtMatmulAlgoGetHeuristic", *const check = "cublasLtMatmulAlgoCheck";

TEST(a_row_of_the_table_takes_the_place_of_the_heuristic)
{
    static const fsdp__product_epilogue in_the_table[] = {FSDP__EPILOGUE_BIAS, FSDP__EPILOGUE_NONE};
    setting s;

    set_up(&s, "measured GPU");
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < FSDP__COUNT_OF(in_the_table); i++)
            CHECK_OK(compute(&s, in_the_table[i]));
    CHECK_EQ(fakecuda.uses("cublasLtMatmul"), 4);
    CHECK_EQ(fakecuda.uses(check), 2);
    CHECK_EQ(fakecuda.uses(heuristic), 0);
    CHECK_EQ(s.lines, 0);
    tear_down(&s);
}

TEST(a_row_that_the_library_refuses_is_told_once_and_the_heuristic_chooses)
{
    setting s;

    set_up(&s, "measured GPU");
    CHECK_OK(compute(&s, FSDP__EPILOGUE_SUMS_OF_FIRST));
    CHECK_EQ(fakecuda.uses(check), 1);
    CHECK_EQ(fakecuda.uses(heuristic), 1);
    CHECK_CONTAINS(s.line, "cuBLAS refuses the algorithm that was measured for a product of 5 x 8 x 80 (float32 to "
                           "float32), and chooses another one");
    CHECK_OK(compute(&s, FSDP__EPILOGUE_SUMS_OF_SECOND)); /* its order of sums depends on time: it is not even tried */
    CHECK_EQ(fakecuda.uses(check), 1);
    CHECK_EQ(fakecuda.uses(heuristic), 2);
    CHECK_EQ(s.lines, 1);
    tear_down(&s);
}

TEST(a_row_may_say_that_a_pass_is_faster)
{
    fsdp_stream *stream;
    fsdp__matmul_args k;
    setting s;

    set_up(&s, "measured GPU");
    stream = fsdp_device_stream(s.device);
    CHECK_OK(compute(&s, FSDP__EPILOGUE_BIAS));
    k = product_of(s.on_device, FSDP__EPILOGUE_BIAS);
    k.gelu = FSDP__PRODUCT_GELU;
    CHECK_OK(fsdp__launch_matmul(stream, &k));
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_EQ(fakecuda.uses("cublasLtMatmul"), 2);
    CHECK_EQ(fakecuda.uses("kernel"), 1);
    CHECK_EQ(fakecuda.uses(heuristic), 0);
    CHECK_EQ(s.lines, 0);
    tear_down(&s);
}

TEST(other_cards_and_other_versions_have_the_heuristic)
{
    static const char *const cards[] = {"measured GPU2", "older GPU"};

    for (size_t i = 0; i < FSDP__COUNT_OF(cards); i++) {
        setting s;

        set_up(&s, cards[i]);
        CHECK_OK(compute(&s, FSDP__EPILOGUE_BIAS));
        CHECK_OK(compute(&s, FSDP__EPILOGUE_NONE));
        CHECK_EQ(fakecuda.uses(check), 0);
        CHECK_EQ(fakecuda.uses(heuristic), 2);
        CHECK_EQ(s.lines, (int)i);
        tear_down(&s);
        if (i == 1)
            CHECK_CONTAINS(s.line, "cuBLAS 130999 chooses the algorithms of products by itself: those that were "
                                   "measured on the older GPU are for its version 120000");
    }
}

TEST(calls_that_fail_while_a_row_is_made_leave_the_heuristic)
{
    static const char *const calls[] = {"cublasLtMatmulAlgoInit", "cublasLtMatmulAlgoConfigSetAttribute",
                                        "cublasLtMatmulAlgoCheck"};

    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++) {
        setting s;

        set_up(&s, "measured GPU");
        fakecuda.fail_call(calls[i], 1, 14, false);
        CHECK_OK(compute(&s, FSDP__EPILOGUE_BIAS));
        CHECK(fakecuda.failed(calls[i]));
        CHECK_EQ(fakecuda.uses(heuristic), 1);
        CHECK_EQ(s.lines, 1);
        fakecuda.mend();
        tear_down(&s);
    }
}

#endif
