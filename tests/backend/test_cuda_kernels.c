/* The kernels of CUDA devices, compiled for the host (cudash) and held to the oracle on its memory. */
#include <math.h>

#include "backend/cuda/kernels_table.h"
#include "oracle/hold.h"

/* The table's products and attention may ask cuBLAS and cuDNN, which need a GPU: here they are the own ones. */
#define OWN(name)                                                             \
    fsdp_status fsdp__cuda_own_##name(fsdp_stream *stream, const void *args); \
    fsdp_status fsdp__cuda_##name(fsdp_stream *stream, const void *args);     \
    fsdp_status fsdp__cuda_##name(fsdp_stream *stream, const void *args)      \
    {                                                                         \
        return fsdp__cuda_own_##name(stream, args);                           \
    }
OWN(matmul)
OWN(attention_forward)
OWN(attention_backward)
#undef OWN

/* Puts together the tables for a kernel: the CPU's, if it has the same bits, and CUDA's. Returns how many. */
static int tables_for(fsdp__kernel kernel, oracle_table tables[2])
{
    const oracle_table *bits = oracle_bits(kernel);
    int count = 0;

    if (bits)
        tables[count++] = *bits;
    tables[count++] = (oracle_table){.name = "cudash",
                                     .kernels = fsdp__cuda_kernels,
                                     .most_threads = 1,
                                     .own_functions = true,
                                     .rounds_factors = true,
                                     .same_bits = bits != NULL};
    return count;
}

static void hold(fsdp__kernel kernel)
{
    fsdp_context *context = test_context();
    fsdp_device *cpu = CHECK_PTR(fsdp_cpu(context));
    oracle_table tables[2];
    int count = tables_for(kernel, tables);

    if (!fsdp__cuda_kernels[kernel])
        skip();
    oracle_hold_kernel(fsdp_device_stream(cpu), tables, count, test_long() ? 100 : test_brief() ? 1 : 2, kernel);
    fsdp_context_free(context);
}

#define CASE(NAME, name, class)         \
    TEST(name##_agrees_with_the_oracle) \
    {                                   \
        hold(FSDP__KERNEL_##NAME);      \
    }
FSDP__KERNEL_MAP(CASE)

/* ---- more spans or ranks than a launch takes, and dtypes that the oracle does not draw ---- */

enum {
    MANY = TEST_SANITIZED ? 300 : 1200,      /* spans: several launches */
    MANY_LONG = TEST_SANITIZED ? 700 : 1200, /* of lists that take all arguments of a launch */
    MANY_RANKS = 1000,
    MOST_NUMEL = 40
};

/* Runs `make` for every floating dtype; in a brief test for two of them, since those of 16 bits share their code. */
static void with_tables(fsdp__kernel kernel, void (*make)(test_case *c))
{
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    fsdp_context *context = test_context();
    oracle_table tables[2];
    int count = tables_for(kernel, tables);

    for (int t = 0; t < (test_brief() ? 2 : 3); t++) {
        test_case c = {.stream = fsdp_device_stream(CHECK_PTR(fsdp_cpu(context))),
                       .tables = tables,
                       .table_count = count,
                       .key = 77 + (uint64_t)t,
                       .dtype = types[t],
                       .kernel = kernel};
        make(&c);
    }
    fsdp_context_free(context);
}

/* Draws the sizes of `count` pieces of one buffer, of which some are empty; returns their sum. */
static int64_t pieces(test_case *c, int count, int64_t *numel)
{
    int64_t total = 0;

    for (int s = 0; s < count; s++)
        total += numel[s] = between(c, 0, 4) ? between(c, 1, MOST_NUMEL) : 0;
    return total;
}

static const void *piece(const void *p, fsdp_dtype dtype, int64_t at)
{
    return (const char *)p + at * (int64_t)fsdp_dtype_size(dtype);
}

static void cast_many(test_case *c)
{
    int64_t numel[MANY], total = pieces(c, MANY, numel), at = 0;
    fsdp_dtype to = c->dtype == FSDP_BF16 ? FSDP_F32 : FSDP_BF16;
    const void *src = an_input(c, c->dtype, total, -3.0, 3.0);
    void *dst = an_output(c, to, total, 0.0, 0.0);
    fsdp__span spans[MANY];

    for (int s = 0; s < MANY; at += numel[s++])
        spans[s] = (fsdp__span){piece(src, c->dtype, at), (void *)(uintptr_t)piece(dst, to, at), numel[s]};
    check(c, (&(fsdp__cast_spans_args){spans, MANY, c->dtype, to}), "%d spans", MANY);
}

static void amax_many(test_case *c)
{
    int64_t numel[MANY], total = pieces(c, MANY, numel), at = 0;
    const void *src = an_input(c, c->dtype, total, -3.0, 3.0);
    float *dst = an_output(c, FSDP_F32, MANY, 0.0, 0.0);
    fsdp__span spans[MANY];

    for (int s = 0; s < MANY; at += numel[s++])
        spans[s] = (fsdp__span){piece(src, c->dtype, at), dst + s, numel[s]};
    check(c, (&(fsdp__amax_args){spans, MANY, c->dtype}), "%d spans", MANY);
}

static void code_many(test_case *c)
{
    int64_t numel[MANY], total = pieces(c, MANY, numel), at = 0;
    void *values = (void *)(uintptr_t)an_input(c, c->dtype, total, -3.0, 3.0);
    const float *amax = an_input(c, FSDP_F32, MANY, 1.0, 3.0);
    uint8_t *codes = an_output(c, FSDP_U8, total, 0.0, 0.0);
    float *scales = an_output(c, FSDP_F32, MANY, 0.0, 0.0);
    fsdp__coded_span spans[MANY];

    for (int s = 0; s < MANY; at += numel[s++])
        spans[s] = (fsdp__coded_span){.values = (void *)(uintptr_t)piece(values, c->dtype, at),
                                      .codes = codes + at,
                                      .scales = scales + s,
                                      .amax = amax + s,
                                      .runs = 1,
                                      .run = numel[s],
                                      .stride = numel[s]};
    check(c, (&(fsdp__quantize_args){spans, MANY, c->dtype, FSDP__CODE_FLOAT8}), "%d spans", MANY);
}

static void step_many(test_case *c)
{
    int64_t numel[MANY_LONG], total = pieces(c, MANY_LONG, numel), at = 0;
    float *param = an_output(c, FSDP_F32, total, 1e-6, 1e-6), *moment1 = an_output(c, FSDP_F32, total, 1e-6, 1e-6);
    float *moment2 = a_buffer(c, FSDP_F32, total, 0.01, 1.0, true, 1e-6, 1e-6);
    const void *grad = an_input(c, c->dtype, total, -1.0, 1.0);
    fsdp__optimizer_span spans[MANY_LONG];
    const fsdp__adam_args a = {.spans = spans,
                               .count = MANY_LONG,
                               .param_dtype = FSDP_F32,
                               .grad_dtype = c->dtype,
                               .lr = 1e-3,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .grad_scale = 0.3f,
                               .step = 3,
                               .decoupled = true};

    for (int s = 0; s < MANY_LONG; at += numel[s++])
        spans[s] =
            (fsdp__optimizer_span){param + at, piece(grad, c->dtype, at), moment1 + at, moment2 + at, numel[s], NULL};
    check(c, &a, "%d spans", MANY_LONG);
}

TEST(spans_of_several_launches_are_all_visited)
{
    with_tables(FSDP__KERNEL_CAST_SPANS, cast_many);
    with_tables(FSDP__KERNEL_AMAX, amax_many);
    with_tables(FSDP__KERNEL_QUANTIZE, code_many);
    with_tables(FSDP__KERNEL_ADAM, step_many);
}

static void reduce_many(test_case *c)
{
    const void *srcs[MANY_RANKS], *src = an_input(c, c->dtype, MANY_RANKS * MOST_NUMEL, -1.0, 1.0);
    fsdp__reduce_ranks_args a = {.srcs = srcs,
                                 .count = MANY_RANKS,
                                 .numel = MOST_NUMEL,
                                 .src_dtype = c->dtype,
                                 .dst_dtype = FSDP_F32,
                                 .divisor = 3.0f,
                                 .block = 7,
                                 .block_dtype = FSDP_F32};

    for (int s = 0; s < MANY_RANKS; s++)
        srcs[s] = between(c, 0, 9) ? piece(src, c->dtype, s * MOST_NUMEL) : NULL;
    a.dst = an_output(c, FSDP_F32, MOST_NUMEL, 1e-5, 1e-4);
    check(c, &a, "%d ranks", MANY_RANKS);
}

TEST(a_thousand_ranks_are_added_in_order)
{
    with_tables(FSDP__KERNEL_REDUCE_RANKS, reduce_many);
}

static void reduce_integers(test_case *c)
{
    static const fsdp_dtype types[] = {FSDP_BOOL, FSDP_U8, FSDP_I32, FSDP_I64};
    const void *srcs[3];
    fsdp__reduce_ranks_args a = {.srcs = srcs, .count = 3, .numel = MANY};

    for (int t = 0; t < 4 * 3 * 2; t++) {
        a.src_dtype = a.dst_dtype = types[t % 4];
        a.op = (fsdp__rank_op)(t / 4 % 3);
        a.accumulate = t >= 12;
        for (int s = 0; s < a.count; s++)
            srcs[s] = an_input(c, a.src_dtype, a.numel, 0.0, 1.0);
        a.dst = an_output(c, a.dst_dtype, a.numel, 0.0, 0.0);
        check(c, &a, "%s, op %d, accumulate %d", fsdp_dtype_name(a.src_dtype), a.op, a.accumulate);
    }
}

TEST(ranks_of_integers_and_bools_are_reduced)
{
    with_tables(FSDP__KERNEL_REDUCE_RANKS, reduce_integers);
}

static void cast_between_all(test_case *c)
{
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_I32, FSDP_I64, FSDP_U8, FSDP_BOOL};

    for (int t = 0; t < 7 * 7; t++) {
        fsdp__span span = {.numel = between(c, 1, MANY)};
        fsdp__cast_spans_args a = {&span, 1, types[t / 7], types[t % 7]};

        span.src = an_input(c, a.src_dtype, span.numel, 0.0, a.src_dtype == FSDP_BOOL ? 1.0 : 100.0);
        span.dst = an_output(c, a.dst_dtype, span.numel, 0.0, 0.0);
        check(c, &a, "%s to %s", fsdp_dtype_name(a.src_dtype), fsdp_dtype_name(a.dst_dtype));
    }
}

TEST(spans_of_any_dtype_become_any_other)
{
    with_tables(FSDP__KERNEL_CAST_SPANS, cast_between_all);
}

/* ---- images that the oracle does not draw ---- */

static void norm_long_rows(test_case *c)
{
    const fsdp__channel_norm_sizes sizes = {.batch = 2, .channels = 4, .inner = 2500, .groups = 2, .dtype = c->dtype};
    int64_t numel = sizes.batch * sizes.channels * sizes.inner, sets = sizes.batch * sizes.groups;
    fsdp__channel_norm_forward_args a = {.eps = 1e-2f, .sizes = sizes};

    a.x = an_input(c, c->dtype, numel, -2.0, 5.0);
    a.y = an_output(c, c->dtype, numel, 1e-5, 2e-5);
    a.mean = an_output(c, FSDP_F32, sets, 2e-6, 2e-6);
    a.rstd = an_output(c, FSDP_F32, sets, 1e-5, 0.0);
    check(c, &a, "rows of %ld", (long)sizes.inner);
}

static void norm_long_rows_backward(test_case *c)
{
    const fsdp__channel_norm_sizes sizes = {
        .batch = 3, .channels = 2, .inner = 2500, .dtype = c->dtype, .weight_dtype = FSDP_F32};
    int64_t numel = sizes.batch * sizes.channels * sizes.inner;
    fsdp__channel_norm_backward_args a = {.sizes = sizes};

    a.x = an_input(c, c->dtype, numel, -2.0, 3.0);
    a.dy = an_input(c, c->dtype, numel, -2.0, 2.0);
    a.mean = an_input(c, FSDP_F32, sizes.channels, -0.5, 0.5);
    a.rstd = an_input(c, FSDP_F32, sizes.channels, 0.5, 1.5);
    a.dx = an_output(c, c->dtype, numel, 1e-5, 3e-5);
    a.dweight = an_output(c, FSDP_F32, sizes.channels, 4e-6, 1e-3);
    a.dbias = an_output(c, FSDP_F32, sizes.channels, 4e-6, 1e-3);
    check(c, &a, "rows of %ld", (long)sizes.inner);
}

TEST(norms_of_long_rows_agree_with_the_oracle)
{
    with_tables(FSDP__KERNEL_CHANNEL_NORM_FORWARD, norm_long_rows);
    with_tables(FSDP__KERNEL_CHANNEL_NORM_BACKWARD, norm_long_rows_backward);
}

/* More than have scratch at a time. */
static void pool_many_planes(test_case *c)
{
    const fsdp__pool_sizes sizes = {.planes = 2100,
                                    .in = {1, 2},
                                    .out = {2, 2},
                                    .kernel = {1, 1},
                                    .stride = {1, 1},
                                    .dilation = {1, 1},
                                    .kind = FSDP__POOL_MAX,
                                    .dtype = c->dtype};
    fsdp__pool_backward_args a = {.sizes = sizes};

    if (c->dtype != FSDP_F32)
        return;
    a.dy = an_input(c, c->dtype, sizes.planes * 4, -2.0, 2.0);
    a.index = an_input(c, FSDP_I32, sizes.planes * 4, -1.0, 1.0);
    a.dx = an_output(c, c->dtype, sizes.planes * 2, 1e-6, 1e-5);
    check(c, &a, "%ld planes", (long)sizes.planes);
}

TEST(the_backward_of_maxima_visits_all_planes)
{
    with_tables(FSDP__KERNEL_POOL_BACKWARD, pool_many_planes);
}

/* ---- rows that a block keeps ---- */

/* Draws rows that are in registers and shared memory, rows for which registers are more than enough, though half of a
 * card's shared memory is not, and rows that are not whole packs; a block has several, of which one does not count. */
static void keep_logits(test_case *c)
{
    static const int64_t sizes[][3] = {{3, 41000, 41000}, {3, 40800, 40800}, {40, 701, 704}};

    for (int i = 0; i < 3; i++) {
        int64_t rows = sizes[i][0], cols = sizes[i][1], row = sizes[i][2];
        int32_t *targets = an_input(c, FSDP_I32, rows, 0.0, (double)(cols - 1));
        fsdp__cross_entropy_args a = {.rows = rows,
                                      .cols = cols,
                                      .logits_row = row,
                                      .targets = targets,
                                      .loss_scale = 0.5f,
                                      .ignore_index = -100,
                                      .dtype = c->dtype,
                                      .dlogits_dtype = c->dtype};

        targets[0] = (int32_t)cols - 1;
        targets[1] = -100;
        a.logits = an_input(c, c->dtype, rows * row, -8.0, 8.0);
        a.dlogits = (void *)(uintptr_t)a.logits;
        also_output(c, a.dlogits, 3e-6, 1e-7);
        a.loss = an_output(c, FSDP_F32, 1, 2e-6, 2e-6 * (double)rows);
        check(c, &a, "%ld x %ld, row %ld", (long)rows, (long)cols, (long)row);
    }
}

TEST(rows_of_logits_that_a_block_keeps_agree_with_the_oracle)
{
    with_tables(FSDP__KERNEL_CROSS_ENTROPY, keep_logits);
}

/* ---- many rows ---- */

/* Each group of a norm's 132 panels has a row, and some have a second one. */
static void norm_panels(test_case *c)
{
    const int64_t rows = 3200, cols = 8;
    fsdp__norm_backward_args a = {
        .rows = rows, .cols = cols, .dtype = c->dtype, .weight_dtype = c->dtype, .dweight_dtype = FSDP_F32};

    a.s = an_input(c, c->dtype, rows * cols, -2.0, 3.0);
    a.dy = an_input(c, c->dtype, rows * cols, -2.0, 2.0);
    a.weight = an_input(c, c->dtype, cols, -2.0, 2.0);
    a.mean = an_input(c, FSDP_F32, rows, -0.5, 0.5);
    a.rstd = an_input(c, FSDP_F32, rows, 0.5, 1.5);
    a.dx = an_output(c, c->dtype, rows * cols, 4e-6, 2e-5);
    a.dweight = an_output(c, FSDP_F32, cols, 4e-6, 2e-7 * (double)rows);
    a.dbias = an_output(c, FSDP_F32, cols, 4e-6, 2e-7 * (double)rows);
    check(c, &a, "%ld x %ld", (long)rows, (long)cols);
}

TEST(panels_of_norms_agree_with_the_oracle)
{
    with_tables(FSDP__KERNEL_NORM_BACKWARD, norm_panels);
}

/* Of 32,768 words and fewer a pass of the sort is one kernel; it has room for 18 bits. */
static void sort_many(test_case *c)
{
    static const struct {
        int64_t rows, table_rows;
    } sizes[] = {{32768, 600}, {32769, 600}, {70, 300000}};

    for (size_t i = 0; i < FSDP__COUNT_OF(sizes); i++) {
        fsdp__embedding_backward_args a = {.rows = sizes[i].rows,
                                           .cols = 1,
                                           .table_rows = sizes[i].table_rows,
                                           .dtype = c->dtype,
                                           .dtable_dtype = FSDP_F32};

        a.ids = an_input(c, FSDP_I32, a.rows, 0.0, (double)(a.table_rows - 1));
        a.dy = an_input(c, c->dtype, a.rows, -2.0, 2.0);
        a.dtable = an_output(c, FSDP_F32, a.table_rows, 1e-6, 2e-5);
        check(c, &a, "%ld of %ld", (long)a.rows, (long)a.table_rows);
    }
}

TEST(embeddings_of_many_rows_agree_with_the_oracle)
{
    with_tables(FSDP__KERNEL_EMBEDDING_BACKWARD, sort_many);
}

/* ---- addresses ---- */

enum {
    ROWS = 37,
    COLS = 520,
    ROOM = ROWS * COLS + 4, /* a multiple of 4, so that every array is aligned as the first one is */
    ARRAYS = 10
};

static void run_kernel(fsdp_stream *stream, fsdp__kernel kernel, const void *args)
{
    CHECK_OK(fsdp__cuda_kernels[kernel](stream, args));
}

/* Runs kernels that add along rows or over them, each on what those before it have left, on arrays that begin `shift`
 * elements behind an aligned address. */
static void run_rows(fsdp_stream *stream, float (*memory)[ROOM], int shift)
{
    float *m[ARRAYS];
    int32_t ids[ROWS];

    for (int i = 0; i < ARRAYS; i++)
        m[i] = memory[i] + shift;
    for (int i = 0; i < ROWS * COLS; i++)
        m[0][i] = sinf((float)i);
    for (int i = 0; i < COLS; i++)
        m[1][i] = cosf((float)i);
    for (int i = 0; i < ROWS; i++)
        ids[i] = i * 7 % 5;
#define SIZES .rows = ROWS, .cols = COLS, .dtype = FSDP_F32
    run_kernel(stream, FSDP__KERNEL_NORM_FORWARD,
               &(fsdp__norm_forward_args){SIZES, .x = m[0], .weight = m[1], .y = m[2], .mean = m[8], .rstd = m[9]});
    run_kernel(stream, FSDP__KERNEL_NORM_BACKWARD,
               &(fsdp__norm_backward_args){SIZES, .s = m[0], .dy = m[2], .weight = m[1], .mean = m[8], .rstd = m[9],
                                           .dx = m[3], .dweight = m[4]});
    run_kernel(stream, FSDP__KERNEL_SOFTMAX_FORWARD, &(fsdp__softmax_forward_args){SIZES, .x = m[3], .y = m[5]});
    run_kernel(stream, FSDP__KERNEL_SOFTMAX_BACKWARD,
               &(fsdp__softmax_backward_args){SIZES, .y = m[5], .dy = m[2], .dx = m[6]});
    run_kernel(stream, FSDP__KERNEL_CROSS_ENTROPY,
               &(fsdp__cross_entropy_args){SIZES, .logits = m[2], .targets = ids, .dlogits = m[3], .loss = m[8],
                                           .loss_scale = 1.0f});
    run_kernel(stream, FSDP__KERNEL_EMBEDDING_BACKWARD,
               &(fsdp__embedding_backward_args){SIZES, .ids = ids, .dy = m[3], .dtable = m[7], .table_rows = 5});
#undef SIZES
}

TEST(rows_have_the_same_bits_at_any_address)
{
    static _Alignas(16) float memory[2][ARRAYS][ROOM];
    fsdp_context *context = test_context();
    fsdp_stream *stream = fsdp_device_stream(CHECK_PTR(fsdp_cpu(context)));

    run_rows(stream, memory[0], 0);
    run_rows(stream, memory[1], 1);
    for (int i = 0; i < ARRAYS; i++)
        CHECK(memcmp(memory[0][i], memory[1][i] + 1, ROWS * COLS * sizeof(float)) == 0);
    fsdp_context_free(context);
}
