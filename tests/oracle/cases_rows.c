/* cases_rows.c - the calls of kernels over rows: norms, losses, embeddings, attention. */
#include "oracle/cases.h"

#include <math.h>

#include "base/compiler.h"

/* ---- rows ---- */

/* Draws the sizes of a matrix: now and then few rows that are very long, or very many that are short. */
static void draw_rows(test_case *c, int64_t *rows, int64_t *cols)
{
    switch (between(c, 0, 9)) {
    case 0:
        *rows = between(c, 1, 2);
        *cols = 8 * between(c, 1025, 1200) + (coin(c) ? between(c, 0, 7) : 0);
        break;
    case 1:
        *rows = between(c, 1025, 1200);
        *cols = between(c, 16, 24);
        break;
    default:
        break;
    }
}

/* Puts numbers that are none into f32s, and now and then a row of -infinity. */
static void spoil(test_case *c, void *x, int64_t rows, int64_t cols)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, -INFINITY};
    float *p = x;

    if (c->dtype != FSDP_F32 || rows == 0 || coin(c))
        return;
    for (size_t i = 0; i < FSDP__COUNT_OF(odd); i++)
        p[between(c, 0, rows * cols - 1)] = odd[i];
    if (coin(c))
        for (int64_t i = 0, row = between(c, 0, rows - 1); i < cols; i++)
            p[row * cols + i] = -INFINITY;
}

void norm_forward_case(test_case *c)
{
    int64_t rows = a_size(c, 80), cols = between(c, 1, 600);
    fsdp__norm_forward_args a = {
        .eps = 1e-5f, .rms = coin(c), .dtype = c->dtype, .weight_dtype = coin(c) ? FSDP_F32 : c->dtype};

    draw_rows(c, &rows, &cols);
    a.rows = rows, a.cols = cols;

    a.x = an_input(c, c->dtype, rows * cols, -3.0, 5.0);
    if (coin(c)) {
        a.residual = an_input(c, c->dtype, rows * cols, -3.0, 3.0);
        a.sum = coin(c) ? (void *)(uintptr_t)a.x : an_output(c, c->dtype, rows * cols, 0.0, 0.0);
        also_output(c, a.sum, 0.0, 0.0);
    }
    a.weight = between(c, 0, 3) ? an_input(c, a.weight_dtype, cols, -2.0, 2.0) : NULL;
    a.bias = !a.rms && between(c, 0, 3) ? an_input(c, a.weight_dtype, cols, -2.0, 2.0) : NULL;
    a.plus_one = a.weight && coin(c);
    a.y = an_output(c, c->dtype, rows * cols, 2e-6, 4e-6);
    a.mean = !a.rms && coin(c) ? an_output(c, FSDP_F32, rows, 2e-6, 2e-6) : NULL;
    a.rstd = coin(c) ? an_output(c, FSDP_F32, rows, 4e-6, 0.0) : NULL;
    if (cols == 1 && !a.rms)
        a.eps = 0.5f; /* with one column the variance is rounding noise */
    check(c, &a, "%ld x %ld, rms %d, residual %d, weight %d, bias %d, plus one %d", (long)rows, (long)cols, a.rms,
          a.residual != NULL, a.weight != NULL, a.bias != NULL, a.plus_one);
}

void norm_backward_case(test_case *c)
{
    int64_t rows = a_size(c, 200), cols = between(c, 1, 400);
    fsdp__norm_backward_args a = {.rms = coin(c),
                                  .accumulate_weight = coin(c),
                                  .accumulate_bias = coin(c),
                                  .dtype = c->dtype,
                                  .weight_dtype = coin(c) ? FSDP_F32 : c->dtype,
                                  .dweight_dtype = coin(c) ? FSDP_F32 : c->dtype};

    draw_rows(c, &rows, &cols);
    a.rows = rows, a.cols = cols;
    a.s = an_input(c, c->dtype, rows * cols, -2.0, 3.0);
    a.dy = an_input(c, c->dtype, rows * cols, -2.0, 2.0);
    a.dsum = coin(c) ? an_input(c, c->dtype, rows * cols, -2.0, 2.0) : NULL;
    a.weight = between(c, 0, 3) ? an_input(c, a.weight_dtype, cols, -2.0, 2.0) : NULL;
    a.plus_one = a.weight && coin(c);
    a.mean = a.rms ? NULL : an_input(c, FSDP_F32, rows, -0.5, 0.5);
    a.rstd = an_input(c, FSDP_F32, rows, 0.5, 1.5);
    if (between(c, 0, 5)) {
        a.dx = coin(c) ? (void *)(uintptr_t)(a.dsum && coin(c) ? a.dsum : a.dy)
                       : an_output(c, c->dtype, rows * cols, 0.0, 0.0);
        also_output(c, a.dx, 4e-6, 2e-5);
    }
    a.dweight = coin(c) ? an_output(c, a.dweight_dtype, cols, 4e-6, 2e-7 * (double)(rows + 20)) : NULL;
    a.dbias = coin(c) ? an_output(c, a.dweight_dtype, cols, 4e-6, 2e-7 * (double)(rows + 20)) : NULL;
    check(c, &a, "%ld x %ld, rms %d, dsum %d, weight %d, dx %d, plus one %d", (long)rows, (long)cols, a.rms,
          a.dsum != NULL, a.weight != NULL, a.dx != NULL, a.plus_one);
}

void rope_case(test_case *c)
{
    int64_t d = 2 * between(c, 1, 40);
    fsdp__rope_args a = {.batch = between(c, 1, 3),
                         .time = a_size(c, 60),
                         .heads = between(c, 1, 4),
                         .head_dim = d,
                         .position0 = coin(c) ? between(c, 0, 5000) : between(c, 900000, 999900),
                         .dtype = c->dtype,
                         .inverse = coin(c),
                         .accumulate = coin(c)};

    a.x_head = d + 2 * between(c, 0, 1);
    a.x_time = a.heads * a.x_head + 1;
    a.x_batch = a.time * a.x_time;
    a.rotated = coin(c) ? 0 : 2 * between(c, 1, d / 2);
    a.scale = coin(c) ? 0.0f : 1.25f;
    a.frequency = an_input(c, FSDP_F32, (a.rotated ? a.rotated : d) / 2, 0.0, 1.0);
    a.positions = coin(c) ? an_input(c, FSDP_I32, a.batch * a.time, 0.0, 999900.0) : NULL;
    a.x = an_input(c, c->dtype, a.batch * a.x_batch, -2.0, 2.0);
    if (coin(c)) {
        a.y = (void *)(uintptr_t)a.x;
        a.y_batch = a.x_batch, a.y_time = a.x_time, a.y_head = a.x_head;
        a.accumulate = false;
    } else {
        a.y_head = a.time * d, a.y_time = d, a.y_batch = a.heads * a.time * d; /* heads first */
        a.y = an_output(c, c->dtype, a.batch * a.y_batch, 0.0, 0.0);
    }
    also_output(c, a.y, 1e-6, 2e-6);
    check(c, &a, "batch %ld time %ld heads %ld dim %ld, %ld of it, from %ld, positions %d", (long)a.batch, (long)a.time,
          (long)a.heads, (long)d, (long)a.rotated, (long)a.position0, a.positions != NULL);
}

void softmax_forward_case(test_case *c)
{
    fsdp__softmax_forward_args a = {
        .rows = a_size(c, 60), .cols = between(c, 1, 900), .log = coin(c), .dtype = c->dtype};
    void *x;

    draw_rows(c, &a.rows, &a.cols);
    a.x = x = an_input(c, c->dtype, a.rows * a.cols, -12.0, 12.0);
    spoil(c, x, a.rows, a.cols);
    a.y = coin(c) ? (void *)(uintptr_t)a.x : an_output(c, c->dtype, a.rows * a.cols, 0.0, 0.0);
    also_output(c, a.y, 3e-6, a.log ? 2e-6 : 1e-7);
    check(c, &a, "%ld x %ld, log %d", (long)a.rows, (long)a.cols, a.log);
}

void softmax_backward_case(test_case *c)
{
    fsdp__softmax_backward_args a = {
        .rows = a_size(c, 60), .cols = between(c, 1, 900), .log = coin(c), .dtype = c->dtype};

    draw_rows(c, &a.rows, &a.cols);
    a.y = an_input(c, c->dtype, a.rows * a.cols, a.log ? -9.0 : 0.0, a.log ? -1.0 : 2.0 / (double)a.cols);
    a.dy = an_input(c, c->dtype, a.rows * a.cols, -2.0, 2.0);
    a.dx = an_output(c, c->dtype, a.rows * a.cols, 2e-6, a.log ? 1e-5 : 4e-6 / (double)a.cols);
    check(c, &a, "%ld x %ld, log %d", (long)a.rows, (long)a.cols, a.log);
}

/* Draws targets: all that are to be ignored or are none, now and then, or some. */
static int32_t *draw_targets(test_case *c, const fsdp__cross_entropy_args *a)
{
    int32_t *targets = an_input(c, FSDP_I32, a->rows, 0.0, (double)(a->cols - 1));
    int64_t few = between(c, 0, 7) == 0 ? 0 : 15;

    for (int64_t r = 0; r < a->rows; r++)
        if (between(c, 0, few) == 0)
            targets[r] = coin(c) ? a->ignore_index : coin(c) ? (int32_t)a->cols : -7;
    return targets;
}

/* Makes the columns a part of larger rows. */
static void make_part(test_case *c, fsdp__cross_entropy_args *a)
{
    bool gradient = a->dlogits;

    a->first_col = between(c, -3, 3);
    a->largest = an_input(c, FSDP_F32, a->rows, 0.0, 8.0);
    a->sums = gradient ? an_input(c, FSDP_F32, a->rows, 1.0, 100.0) : an_output(c, FSDP_F32, a->rows, 4e-6, 1e-6);
    a->at_targets = gradient ? NULL : an_output(c, FSDP_F32, a->rows, 1e-6, 1e-6);
}

void cross_entropy_case(test_case *c)
{
    bool part = between(c, 0, 2) == 0;
    int64_t rows = a_size(c, 60), cols = between(c, 1, 1500);
    fsdp__cross_entropy_args a = {.loss_scale = coin(c) ? 1.0f : 0.01f,
                                  .dtype = c->dtype,
                                  .dlogits_dtype = coin(c) ? c->dtype : any_float(c),
                                  .accumulate_loss = coin(c),
                                  .softcap = between(c, 0, 2) ? 0.0f : (float)real(c, 2.0, 40.0)};
    int64_t row;
    void *logits;

    draw_rows(c, &rows, &cols);
    a.rows = rows, a.cols = cols;
    a.logits_row = coin(c) ? 0 : coin(c) ? (cols + 7) / 8 * 8 : cols + between(c, 0, 9);
    row = a.logits_row > 0 ? a.logits_row : cols;
    a.ignore_index = coin(c) ? -100 : (int32_t)between(c, 0, cols - 1);
    a.logits = logits = an_input(c, c->dtype, rows * row, -8.0, 8.0);
    if (!part)
        spoil(c, logits, rows, row);
    a.targets = draw_targets(c, &a);
    if (between(c, 0, 3)) {
        a.dlogits =
            a.dlogits_dtype == c->dtype && coin(c) ? logits : an_output(c, a.dlogits_dtype, rows * row, 0.0, 0.0);
        /* a capped logit has an error of its cap's last bits, and the power of e has it as a factor */
        also_output(c, a.dlogits, 3e-6 + 4e-7 * (double)a.softcap, 2e-7 * (double)a.loss_scale);
    }
    if (part)
        make_part(c, &a);
    else
        a.loss = an_output(c, FSDP_F32, 1, 2e-6, 2e-6 * (double)rows);
    a.bad_row = !part && coin(c) ? an_output(c, FSDP_I64, 1, 0.0, 0.0) : NULL;
    check(c, &a, "%ld x %ld, row %ld, dlogits %s, ignore %d, softcap %g%s", (long)rows, (long)cols, (long)row,
          a.dlogits ? fsdp_dtype_name(a.dlogits_dtype) : "none", a.ignore_index, (double)a.softcap,
          part ? ", a part" : "");
}

/* Draws ids of rows of a table: all different ones, or mostly one; none is in the table now and then, or some are not.
 */
static int32_t *draw_ids(test_case *c, int64_t rows, int64_t table_rows)
{
    int32_t *ids = an_input(c, FSDP_I32, rows, 0.0, (double)(table_rows - 1));
    int64_t few = between(c, 0, 7) == 0 ? 0 : between(c, 1, 30);
    bool many = between(c, 0, 3) == 0;

    for (int64_t r = 0; r < rows; r++)
        if (between(c, 0, few) == 0)
            ids[r] = coin(c) ? -1 : (int32_t)table_rows;
        else if (many && between(c, 0, 9))
            ids[r] = (int32_t)(table_rows / 2);
    return ids;
}

void embedding_forward_case(test_case *c)
{
    fsdp__embedding_forward_args a = {
        .rows = a_size(c, 90), .cols = a_size(c, 500), .table_rows = between(c, 1, 50), .dtype = c->dtype};

    a.ids = draw_ids(c, a.rows, a.table_rows);
    a.table = an_input(c, c->dtype, a.table_rows * a.cols, -2.0, 2.0);
    a.y = an_output(c, c->dtype, a.rows * a.cols, 0.0, 0.0);
    a.bad_row = coin(c) ? an_output(c, FSDP_I64, 1, 0.0, 0.0) : NULL;
    check(c, &a, "%ld x %ld of %ld", (long)a.rows, (long)a.cols, (long)a.table_rows);
}

void embedding_backward_case(test_case *c)
{
    bool many = between(c, 0, 4) == 0;
    fsdp__embedding_backward_args a = {.rows = many ? between(c, 2049, 5000) : a_size(c, 200),
                                       .cols = many      ? between(c, 1, 2)
                                               : coin(c) ? a_size(c, 60)
                                                         : between(c, 1000, 1100),
                                       .table_rows = many ? between(c, 64, 300) : between(c, 1, 60),
                                       .dtype = c->dtype,
                                       .dtable_dtype = coin(c) ? FSDP_F32 : c->dtype,
                                       .accumulate = coin(c)};

    a.ids = draw_ids(c, a.rows, a.table_rows);
    a.dy = an_input(c, c->dtype, a.rows * a.cols, -2.0, 2.0);
    a.dtable = an_output(c, a.dtable_dtype, a.table_rows * a.cols, 1e-6, 2e-7 * (double)(a.rows + 10));
    check(c, &a, "%ld x %ld of %ld, accumulate %d", (long)a.rows, (long)a.cols, (long)a.table_rows, a.accumulate);
}

/* ---- by index ---- */

static const fsdp_dtype any_dtypes[] = {FSDP_I32, FSDP_I64, FSDP_U8, FSDP_BOOL};

/* One index for all of a row, as index_select has it, or one for each element. */
static fsdp__index_map draw_index(test_case *c)
{
    bool each = coin(c);
    fsdp__index_map m = {
        .outer = a_size(c, 6), .size = between(c, 1, 40), .inner = coin(c) ? 1 : a_size(c, 70), .count = a_size(c, 60)};

    if (each) {
        m.index_outer = m.count * m.inner;
        m.index_along = m.inner;
        m.index_inner = 1;
    } else {
        m.index_along = 1;
    }
    m.index = an_input(c, FSDP_I32, each ? m.outer * m.count * m.inner : m.count, 0.0, (double)(m.size - 1));
    return m;
}

void gather_case(test_case *c)
{
    fsdp__gather_args a = {.map = draw_index(c), .dtype = between(c, 0, 2) ? c->dtype : any_dtypes[between(c, 0, 3)]};

    a.x = an_input(c, a.dtype, a.map.outer * a.map.size * a.map.inner, 0.0, 1.0);
    a.y = an_output(c, a.dtype, a.map.outer * a.map.count * a.map.inner, 0.0, 0.0);
    check(c, &a, "%s %ld x %ld of %ld x %ld, index %ld", fsdp_dtype_name(a.dtype), (long)a.map.outer, (long)a.map.count,
          (long)a.map.size, (long)a.map.inner, (long)a.map.index_inner);
}

void scatter_case(test_case *c)
{
    fsdp__scatter_args a = {.map = draw_index(c), .dtype = c->dtype, .add = coin(c), .keep = coin(c)};

    if (!a.add && coin(c))
        a.dtype = any_dtypes[between(c, 0, 3)];
    a.x = an_input(c, a.dtype, a.map.outer * a.map.count * a.map.inner, 0.0, 1.0);
    a.y = an_output(c, a.dtype, a.map.outer * a.map.size * a.map.inner, a.add ? 1e-6 : 0.0,
                    a.add ? 2e-7 * (double)(a.map.count + 10) : 0.0);
    check(c, &a, "%s %ld x %ld of %ld x %ld, index %ld, add %d, keep %d", fsdp_dtype_name(a.dtype), (long)a.map.outer,
          (long)a.map.count, (long)a.map.size, (long)a.map.inner, (long)a.map.index_inner, a.add, a.keep);
}

/* Long rows, of which more is thrown away than kept; those that rise or fall all the way, too. */
void topk_case(test_case *c)
{
    bool is_long = between(c, 0, 3) == 0;
    fsdp__topk_args a = {.rows = is_long ? between(c, 1, 3) : a_size(c, 40),
                         .cols = is_long ? between(c, 600, 2300) : between(c, 1, 300),
                         .largest = coin(c),
                         .dtype = c->dtype};
    float *x;

    a.k = coin(c) ? a.cols : between(c, 0, is_long ? 40 : a.cols);
    a.x = x = an_input(c, c->dtype, a.rows * a.cols, -2.0, 2.0);
    if (c->dtype == FSDP_F32 && coin(c)) {
        float step = coin(c) ? 1e-3f : -1e-3f;

        for (int64_t i = 0; i < a.rows * a.cols; i++)
            x[i] = (float)(i % a.cols) * step;
    }
    if (c->dtype == FSDP_F32 && a.rows > 0) /* equal ones, both zeros, a NaN */
        for (int i = 0; i < 4; i++)
            x[between(c, 0, a.rows * a.cols - 1)] = (float[]){0.0f, -0.0f, 0.0f, NAN}[i];
    a.indices = an_output(c, FSDP_I32, a.rows * a.k, 0.0, 0.0);
    check(c, &a, "%ld of %ld x %ld, largest %d", (long)a.k, (long)a.rows, (long)a.cols, a.largest);
}

/* ---- attention ---- */

/* Draws positions: documents that are short, long, or one for each row. */
static int32_t *draw_positions(test_case *c, const fsdp__attention_forward_args *a)
{
    int32_t *positions = an_input(c, FSDP_I32, a->batch * a->q_time, 0.0, 0.0);
    int64_t longest = coin(c) ? between(c, 0, 5) : between(c, 0, 150);

    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t t = 0; t < a->q_time; t++)
            positions[b * a->q_time + t] =
                t == 0 || between(c, 0, longest) == 0 ? 0 : positions[b * a->q_time + t - 1] + 1;
    return positions;
}

/* Draws what narrows the view of a causal query, and a softcap. */
static void draw_view(test_case *c, fsdp__attention_forward_args *a)
{
    a->softcap = between(c, 0, 2) ? 0.0f : (float)real(c, 1.0, 30.0);
    if (!a->causal)
        return;
    a->window = coin(c) ? 0 : coin(c) ? between(c, 1, 5) : between(c, 1, 140);
    if (a->q_time == a->kv_time && coin(c))
        a->positions = draw_positions(c, a);
}

/* Draws shapes, strides and inputs. Queries, keys and values may lie in one matrix, as they do after one product. */
static fsdp__attention_forward_args attention_inputs(test_case *c)
{
    static const int64_t dims[] = {1, 16, 24, 33, 64, 128};
    int64_t d = dims[between(c, 0, 5)], group = between(c, 1, 3);
    fsdp__attention_forward_args a = {.batch = between(c, 1, 3),
                                      .kv_heads = between(c, 1, 3),
                                      .head_dim = d,
                                      .scale = 1.0f / sqrtf((float)d),
                                      .causal = coin(c),
                                      .dtype = c->dtype};

    a.heads = a.kv_heads * group;
    a.q_time = between(c, 0, 2) ? between(c, 1, 110) : between(c, 1, 5);
    a.kv_time = coin(c) ? a.q_time : between(c, 1, 130);
    if (between(c, 0, 5) == 0) /* the next token */
        a.q_time = 1;
    a.q_head = a.k_head = a.v_head = a.out_head = d;
    if (a.kv_time == a.q_time && coin(c)) {
        int64_t row = (a.heads + 2 * a.kv_heads) * d;
        const char *qkv = an_input(c, c->dtype, a.batch * a.q_time * row, -2.0, 2.0);
        a.q = qkv;
        a.k = qkv + a.heads * d * (int64_t)fsdp_dtype_size(c->dtype);
        a.v = qkv + (a.heads + a.kv_heads) * d * (int64_t)fsdp_dtype_size(c->dtype);
        a.q_stride_time = a.k_stride_time = a.v_stride_time = row;
        a.q_batch = a.k_batch = a.v_batch = a.q_time * row;
    } else {
        a.q_stride_time = a.heads * d + 1;
        a.k_stride_time = a.v_stride_time = a.kv_heads * d;
        a.q_batch = a.q_time * a.q_stride_time;
        a.k_batch = a.v_batch = a.kv_time * a.k_stride_time;
        a.q = an_input(c, c->dtype, a.batch * a.q_batch, -2.0, 2.0);
        a.k = an_input(c, c->dtype, a.batch * a.k_batch, -2.0, 2.0);
        a.v = an_input(c, c->dtype, a.batch * a.v_batch, -2.0, 2.0);
    }
    a.out_stride_time = a.heads * d + 2;
    a.out_batch = a.q_time * a.out_stride_time;
    draw_view(c, &a);
    return a;
}

/* Returns whether a table rounds the left factors of attention's products with values, keys and queries. */
static bool rounds_factors(const test_case *c)
{
    bool rounds = false;

    for (int t = 0; t < c->table_count; t++)
        rounds = rounds || c->tables[t].rounds_factors;
    return rounds;
}

#define ATTENTION_TEXT "batch %ld times %ld %ld heads %ld %ld dim %ld causal %d window %ld softcap %g documents %d"
#define ATTENTION_VALUES(a)                                                                                        \
    (long)(a).batch, (long)(a).q_time, (long)(a).kv_time, (long)(a).heads, (long)(a).kv_heads, (long)(a).head_dim, \
        (a).causal, (long)(a).window, (double)(a).softcap, (a).positions != NULL

void attention_forward_of(test_case *c, fsdp__attention_forward_args a)
{
    a.out = an_output(c, c->dtype, a.batch * a.out_batch, 4e-6, 4e-6);
    a.lse = coin(c) ? an_output(c, FSDP_F32, a.batch * a.heads * a.q_time, 2e-6, 1e-5) : NULL;
    if (rounds_factors(c)) {
        fsdp__attention_forward_args terms = a;
        terms.lse = NULL, terms.out = terms_of(c, a.out);
        oracle_attention_forward_terms(&terms);
    }
    check(c, &a, ATTENTION_TEXT, ATTENTION_VALUES(a));
}

void attention_forward_case(test_case *c)
{
    attention_forward_of(c, attention_inputs(c));
}

void attention_backward_of(test_case *c, fsdp__attention_forward_args forward)
{
    fsdp__attention_backward_args a = {.forward = forward};
    fsdp__attention_forward_args *f = &a.forward;
    double absolute = 2e-5 + rounding(c->dtype) * 0.5; /* out, which is rounded, is an input here */

    f->out = an_input(c, c->dtype, f->batch * f->out_batch, 0.0, 0.0);
    f->lse = an_input(c, FSDP_F32, f->batch * f->heads * f->q_time, 0.0, 0.0);
    oracle_attention_forward(f);
    a.dout = an_input(c, c->dtype, f->batch * f->out_batch, -1.0, 1.0);
    if (coin(c)) { /* gradients lie differently: heads first */
        a.dq_head = f->q_time * f->head_dim, a.dq_stride_time = f->head_dim, a.dq_batch = f->heads * a.dq_head;
        a.dk_head = f->kv_time * f->head_dim, a.dk_stride_time = f->head_dim, a.dk_batch = f->kv_heads * a.dk_head;
        a.dv_head = a.dk_head, a.dv_stride_time = a.dk_stride_time, a.dv_batch = a.dk_batch;
    }
    a.dq = an_output(c, c->dtype, f->batch * (a.dq_batch ? a.dq_batch : f->q_batch), 1e-5, absolute);
    a.dk = an_output(c, c->dtype, f->batch * (a.dq_batch ? a.dk_batch : f->k_batch), 1e-5, absolute);
    a.dv = an_output(c, c->dtype, f->batch * (a.dq_batch ? a.dv_batch : f->v_batch), 1e-5, absolute);
    if (rounds_factors(c)) {
        fsdp__attention_backward_args terms = a;
        terms.dq = terms_of(c, a.dq), terms.dk = terms_of(c, a.dk), terms.dv = terms_of(c, a.dv);
        oracle_attention_backward_terms(&terms);
    }
    check(c, &a, ATTENTION_TEXT, ATTENTION_VALUES(*f));
}

void attention_backward_case(test_case *c)
{
    attention_backward_of(c, attention_inputs(c));
}
