/* kernel_buffers.c - lists the memory that each kernel reads and writes: one function for each kernel, in agreement
 * with kernels.h.
 *
 * A device whose memory only its kernels can touch moves their arguments by this list; tests compare it with what the
 * kernels do. */
#include "device/kernel_visits.h"

/* ---- sizes ---- */

/* Describes one dimension. The function below counts from the first to the last element of several, with their
 * strides. */
typedef struct extent {
    int64_t size, stride;
} extent;

static inline size_t strided(fsdp_dtype dtype, const extent *dims, int count)
{
    int64_t last = 0;

    for (int d = 0; d < count; d++) {
        if (dims[d].size <= 0)
            return 0;
        last += (dims[d].size - 1) * dims[d].stride;
    }
    return elements(dtype, last + 1);
}

#define STRIDED(dtype, ...) \
    strided((dtype), (const extent[]){__VA_ARGS__}, (int)(sizeof((const extent[]){__VA_ARGS__}) / sizeof(extent)))

/* Returns the bytes of an operand of `shape` with strides. The other function is for a whole result. */
static size_t operand(fsdp_dtype dtype, int ndim, const int64_t *shape, const int64_t *strides)
{
    extent dims[6];

    for (int d = 0; d < ndim; d++)
        dims[d] = (extent){shape[d], strides[d]};
    return strided(dtype, dims, ndim);
}

static size_t whole(fsdp_dtype dtype, int ndim, const int64_t *shape)
{
    int64_t numel = 1;

    for (int d = 0; d < ndim; d++)
        numel *= shape[d];
    return elements(dtype, numel);
}

/* ---- matrices and memory ---- */

static void matmul(fsdp__matmul_args *a, const visitor *v)
{
    READS(a, STRIDED(a->a_dtype, {a->batch, a->a_batch}, {a->m, a->a_row}, {a->k, a->a_col}));
    READS(b, STRIDED(a->b_dtype, {a->batch, a->b_batch}, {a->k, a->b_row}, {a->n, a->b_col}));
    READS(bias, a->m > 0 ? elements(a->bias_dtype, a->n) : 0);
    ADDS(c, STRIDED(a->c_dtype, {a->batch, a->c_batch}, {a->m, a->c_row}, {a->n, 1}), a->accumulate);
    WRITES(sums, elements(a->c_dtype, a->sums_of_b ? a->n : a->m));
    if (a->gelu == FSDP__PRODUCT_GELU_GRADIENT)
        READS(before, STRIDED(a->c_dtype, {a->m, a->c_row}, {a->n, 1}));
    else
        WRITES(before, STRIDED(a->c_dtype, {a->m, a->c_row}, {a->n, 1}));
}

static size_t conv2d_x(const fsdp__conv2d_sizes *s)
{
    return elements(s->dtype, s->batch * s->in * s->in_height * s->in_width);
}

static size_t conv2d_y(const fsdp__conv2d_sizes *s)
{
    return elements(s->dtype, s->batch * s->out * s->out_height * s->out_width);
}

static size_t conv2d_w(const fsdp__conv2d_sizes *s)
{
    return elements(s->dtype, s->out * (s->in / s->groups) * s->kernel_height * s->kernel_width);
}

static void conv2d_forward(fsdp__conv2d_forward_args *a, const visitor *v)
{
    READS(x, conv2d_x(&a->sizes));
    READS(weight, conv2d_w(&a->sizes));
    READS(bias, elements(a->sizes.dtype, a->sizes.out));
    WRITES(y, conv2d_y(&a->sizes));
}

static void conv2d_input(fsdp__conv2d_input_args *a, const visitor *v)
{
    READS(dy, conv2d_y(&a->sizes));
    READS(weight, conv2d_w(&a->sizes));
    ADDS(dx, conv2d_x(&a->sizes), a->accumulate);
}

static void conv2d_weight(fsdp__conv2d_weight_args *a, const visitor *v)
{
    READS(x, conv2d_x(&a->sizes));
    READS(dy, conv2d_y(&a->sizes));
    ADDS(dweight, conv2d_w(&a->sizes), a->accumulate);
}

static void copy(fsdp__copy_args *a, const visitor *v)
{
    READS(src, operand(a->src_dtype, a->ndim, a->shape, a->src_strides));
    ADDS(dst, operand(a->dst_dtype, a->ndim, a->shape, a->dst_strides), a->accumulate);
}

static void fill(fsdp__fill_args *a, const visitor *v)
{
    WRITES(dst, elements(a->dtype, a->numel));
}

static void cast_spans(fsdp__cast_spans_args *args, const visitor *v)
{
    fsdp__span *spans = (fsdp__span *)(uintptr_t)args->spans;

    for (int64_t i = 0; i < args->count; i++) {
        fsdp__span *a = &spans[i];

        READS(src, elements(args->src_dtype, a->numel));
        WRITES(dst, elements(args->dst_dtype, a->numel));
    }
}

static void split_spans(fsdp__split_spans_args *args, const visitor *v)
{
    fsdp__split_span *spans = (fsdp__split_span *)(uintptr_t)args->spans;

    for (int64_t i = 0; i < args->count; i++) {
        fsdp__split_span *a = &spans[i];
        fsdp__access halves = args->join ? FSDP__READS : FSDP__WRITES;

        a->high = visit(v, "high", a->high, elements(FSDP_BF16, a->numel), halves);
        a->low = visit(v, "low", a->low, elements(FSDP_BF16, a->numel), halves);
        a->whole = visit(v, "whole", a->whole, elements(FSDP_F32, a->numel), args->join ? FSDP__WRITES : FSDP__READS);
    }
}

static void reduce_ranks(fsdp__reduce_ranks_args *a, const visitor *v)
{
    const void **srcs = (const void **)(uintptr_t)a->srcs;

    for (int i = 0; i < a->count; i++)
        srcs[i] = visit(v, "srcs", srcs[i], elements(a->src_dtype, a->numel), FSDP__READS);
    ADDS(dst, elements(a->dst_dtype, a->numel), a->accumulate);
}

/* ---- fewer bits ---- */

static void amax(fsdp__amax_args *args, const visitor *v)
{
    fsdp__span *spans = (fsdp__span *)(uintptr_t)args->spans;

    for (int64_t i = 0; i < args->count; i++) {
        fsdp__span *a = &spans[i];

        READS(src, elements(args->dtype, a->numel));
        WRITES(dst, sizeof(float));
    }
}

static size_t scale_bytes(const fsdp__coded_span *a, fsdp__code code)
{
    int64_t numel = a->runs * a->run;

    return elements(FSDP_F32, code == FSDP__CODE_FLOAT8 ? 1 : (numel + FSDP__CODE_BLOCK - 1) / FSDP__CODE_BLOCK);
}

static void quantize(fsdp__quantize_args *args, const visitor *v)
{
    fsdp__coded_span *spans = (fsdp__coded_span *)(uintptr_t)args->spans;

    for (int64_t i = 0; i < args->count; i++) {
        fsdp__coded_span *a = &spans[i];

        READS(values, elements(args->dtype, a->runs * a->run));
        READS(amax, sizeof(float));
        ADDS(codes, elements(FSDP_U8, a->runs * a->run), a->keep);
        ADDS(scales, scale_bytes(a, args->code), a->keep);
    }
}

static void dequantize(fsdp__dequantize_args *args, const visitor *v)
{
    fsdp__coded_span *spans = (fsdp__coded_span *)(uintptr_t)args->spans;

    for (int64_t i = 0; i < args->count; i++) {
        fsdp__coded_span *a = &spans[i];

        READS(codes, elements(FSDP_U8, a->runs * a->run));
        READS(scales, a->runs * a->run > 0 ? scale_bytes(a, args->code) : 0);
        WRITES(values, STRIDED(args->dtype, {a->runs, a->stride}, {a->run, 1}));
    }
}

static void decode_weight(fsdp__decode_weight_args *a, const visitor *v)
{
    int64_t rows = (a->numel + a->row_numel - 1) / a->row_numel;

    READS(rows, elements(FSDP_U8, rows * a->row_bytes));
    WRITES(values, elements(a->dtype, a->numel));
}

/* ---- elementwise ---- */

static void operands(fsdp__binary_args *a, const visitor *v)
{
    READS(a, operand(a->dtype, a->ndim, a->shape, a->a_strides));
    READS(b, operand(a->dtype, a->ndim, a->shape, a->b_strides));
}

static void binary(fsdp__binary_args *a, const visitor *v)
{
    operands(a, v);
    WRITES(y, whole(a->op >= FSDP__EQ ? FSDP_BOOL : a->dtype, a->ndim, a->shape));
}

static void binary_backward(fsdp__binary_backward_args *a, const visitor *v)
{
    fsdp__binary_args *f = &a->forward;

    operands(f, v);
    READS(dy, operand(f->dtype, f->ndim, f->shape, a->dy_strides));
    WRITES(da, whole(f->dtype, f->ndim, f->shape));
    WRITES(db, whole(f->dtype, f->ndim, f->shape));
}

static void where(fsdp__where_args *a, const visitor *v)
{
    READS(mask, operand(FSDP_BOOL, a->ndim, a->shape, a->mask_strides));
    READS(a, operand(a->dtype, a->ndim, a->shape, a->a_strides));
    READS(b, operand(a->dtype, a->ndim, a->shape, a->b_strides));
    WRITES(y, whole(a->dtype, a->ndim, a->shape));
}

static void unary_forward(fsdp__unary_forward_args *a, const visitor *v)
{
    READS(x, elements(a->dtype, a->numel));
    WRITES(y, elements(a->dtype, a->numel));
}

static void unary_backward(fsdp__unary_backward_args *a, const visitor *v)
{
    READS(saved, elements(a->dtype, a->numel));
    READS(dy, elements(a->dtype, a->numel));
    WRITES(dx, elements(a->dtype, a->numel));
}

static void scale(fsdp__scale_args *a, const visitor *v)
{
    READS(x, elements(a->dtype, a->numel));
    READS(scalar, sizeof(float));
    ADDS(y, elements(a->dtype, a->numel), a->accumulate);
}

static void reduce(fsdp__reduce_args *a, const visitor *v)
{
    READS(x, elements(a->x_dtype, a->outer * a->reduced * a->inner));
    READS(center, elements(FSDP_F32, a->outer * a->inner));
    ADDS(y, elements(a->y_dtype, a->outer * a->inner), a->accumulate);
}

static void activation_forward(fsdp__activation_forward_args *a, const visitor *v)
{
    READS(x, elements(a->dtype, a->rows * a->cols));
    READS(bias, elements(a->dtype, a->cols));
    WRITES(y, elements(a->dtype, a->rows * a->cols));
}

static void activation_backward(fsdp__activation_backward_args *a, const visitor *v)
{
    READS(x, elements(a->dtype, a->rows * a->cols));
    READS(bias, elements(a->dtype, a->cols));
    READS(dy, elements(a->dtype, a->rows * a->cols));
    WRITES(dx, elements(a->dtype, a->rows * a->cols));
}

static void swiglu_forward(fsdp__swiglu_forward_args *a, const visitor *v)
{
    READS(gate, STRIDED(a->dtype, {a->rows, a->gate_row}, {a->cols, 1}));
    READS(up, STRIDED(a->dtype, {a->rows, a->up_row}, {a->cols, 1}));
    WRITES(y, STRIDED(a->dtype, {a->rows, a->y_row}, {a->cols, 1}));
}

static void swiglu_backward(fsdp__swiglu_backward_args *a, const visitor *v)
{
    READS(gate, STRIDED(a->dtype, {a->rows, a->gate_row}, {a->cols, 1}));
    READS(up, STRIDED(a->dtype, {a->rows, a->up_row}, {a->cols, 1}));
    READS(dy, STRIDED(a->dtype, {a->rows, a->dy_row}, {a->cols, 1}));
    WRITES(dgate, STRIDED(a->dtype, {a->rows, a->dgate_row}, {a->cols, 1}));
    WRITES(dup, STRIDED(a->dtype, {a->rows, a->dup_row}, {a->cols, 1}));
    WRITES(y, STRIDED(a->dtype, {a->rows, a->y_row}, {a->cols, 1}));
}

static void dropout(fsdp__dropout_args *a, const visitor *v)
{
    READS(x, elements(a->dtype, a->numel));
    WRITES(y, elements(a->dtype, a->numel));
}

static void random_(fsdp__random_args *a, const visitor *v)
{
    WRITES(dst, elements(a->dtype, a->numel));
}

/* ---- rows ---- */

static void norm_forward(fsdp__norm_forward_args *a, const visitor *v)
{
    size_t matrix = elements(a->dtype, a->rows * a->cols), row = elements(a->weight_dtype, a->cols);

    READS(x, matrix);
    READS(residual, matrix);
    READS(weight, row);
    READS(bias, row);
    WRITES(sum, matrix);
    WRITES(y, matrix);
    WRITES(mean, elements(FSDP_F32, a->rows));
    WRITES(rstd, elements(FSDP_F32, a->rows));
}

static void norm_backward(fsdp__norm_backward_args *a, const visitor *v)
{
    size_t matrix = elements(a->dtype, a->rows * a->cols), row = elements(a->dweight_dtype, a->cols);

    READS(s, matrix);
    READS(dy, matrix);
    READS(dsum, matrix);
    READS(weight, elements(a->weight_dtype, a->cols));
    READS(mean, elements(FSDP_F32, a->rows));
    READS(rstd, elements(FSDP_F32, a->rows));
    WRITES(dx, matrix);
    ADDS(dweight, row, a->accumulate_weight);
    ADDS(dbias, row, a->accumulate_bias);
}

static size_t pool_bytes(const fsdp__pool_sizes *s, fsdp_dtype dtype, const int64_t plane[2])
{
    return elements(dtype, s->planes * plane[0] * plane[1]);
}

static void pool_forward(fsdp__pool_forward_args *a, const visitor *v)
{
    READS(x, pool_bytes(&a->sizes, a->sizes.dtype, a->sizes.in));
    WRITES(y, pool_bytes(&a->sizes, a->sizes.dtype, a->sizes.out));
    WRITES(index, pool_bytes(&a->sizes, FSDP_I32, a->sizes.out));
}

static void pool_backward(fsdp__pool_backward_args *a, const visitor *v)
{
    READS(dy, pool_bytes(&a->sizes, a->sizes.dtype, a->sizes.out));
    READS(index, pool_bytes(&a->sizes, FSDP_I32, a->sizes.out));
    ADDS(dx, pool_bytes(&a->sizes, a->sizes.dtype, a->sizes.in), a->accumulate);
}

static int64_t norm_sets(const fsdp__channel_norm_sizes *s)
{
    return s->groups == 0 ? s->channels : s->batch * s->groups;
}

static size_t norm_bytes(const fsdp__channel_norm_sizes *s)
{
    return elements(s->dtype, s->batch * s->channels * s->inner);
}

static void channel_norm_forward(fsdp__channel_norm_forward_args *a, const visitor *v)
{
    const fsdp__channel_norm_sizes *s = &a->sizes;

    READS(x, norm_bytes(s));
    READS(weight, elements(s->weight_dtype, s->channels));
    READS(bias, elements(s->weight_dtype, s->channels));
    WRITES(y, norm_bytes(s));
    WRITES(mean, elements(FSDP_F32, norm_sets(s)));
    WRITES(rstd, elements(FSDP_F32, norm_sets(s)));
    a->running_mean = visit(v, "running_mean", a->running_mean, elements(a->running_dtype, s->channels),
                            a->fixed ? FSDP__READS : FSDP__READS_AND_WRITES);
    a->running_var = visit(v, "running_var", a->running_var, elements(a->running_dtype, s->channels),
                           a->fixed ? FSDP__READS : FSDP__READS_AND_WRITES);
    CHANGES(batches, sizeof *a->batches);
}

static void channel_norm_backward(fsdp__channel_norm_backward_args *a, const visitor *v)
{
    const fsdp__channel_norm_sizes *s = &a->sizes;
    size_t row = elements(s->weight_dtype, s->channels);

    READS(x, norm_bytes(s));
    READS(dy, norm_bytes(s));
    READS(weight, row);
    READS(mean, elements(FSDP_F32, norm_sets(s)));
    READS(rstd, elements(FSDP_F32, norm_sets(s)));
    ADDS(dx, norm_bytes(s), a->accumulate);
    ADDS(dweight, row, a->accumulate_weight);
    ADDS(dbias, row, a->accumulate_bias);
}

static void softmax_forward(fsdp__softmax_forward_args *a, const visitor *v)
{
    READS(x, elements(a->dtype, a->rows * a->cols));
    WRITES(y, elements(a->dtype, a->rows * a->cols));
}

static void softmax_backward(fsdp__softmax_backward_args *a, const visitor *v)
{
    READS(y, elements(a->dtype, a->rows * a->cols));
    READS(dy, elements(a->dtype, a->rows * a->cols));
    WRITES(dx, elements(a->dtype, a->rows * a->cols));
}

static void cross_entropy(fsdp__cross_entropy_args *a, const visitor *v)
{
    int64_t row = a->logits_row > 0 ? a->logits_row : a->cols;

    READS(logits, STRIDED(a->dtype, {a->rows, row}, {a->cols, 1}));
    READS(targets, elements(FSDP_I32, a->rows));
    READS(largest, elements(FSDP_F32, a->rows));
    if (a->dlogits)
        READS(sums, elements(FSDP_F32, a->rows));
    else
        WRITES(sums, elements(FSDP_F32, a->rows));
    WRITES(at_targets, elements(FSDP_F32, a->rows));
    WRITES(dlogits, STRIDED(a->dlogits_dtype, {a->rows, row}, {a->cols, 1}));
    ADDS(loss, sizeof *a->loss, a->accumulate_loss);
    CHANGES(bad_row, sizeof *a->bad_row);
}

static void embedding_forward(fsdp__embedding_forward_args *a, const visitor *v)
{
    READS(table, elements(a->dtype, a->table_rows * a->cols));
    READS(ids, elements(FSDP_I32, a->rows));
    WRITES(y, elements(a->dtype, a->rows * a->cols));
    CHANGES(bad_row, sizeof *a->bad_row);
}

static void embedding_backward(fsdp__embedding_backward_args *a, const visitor *v)
{
    READS(ids, elements(FSDP_I32, a->rows));
    READS(dy, elements(a->dtype, a->rows * a->cols));
    ADDS(dtable, elements(a->dtable_dtype, a->table_rows * a->cols), a->accumulate);
}

static size_t index_bytes(const fsdp__index_map *m)
{
    return STRIDED(FSDP_I32, {m->outer, m->index_outer}, {m->count, m->index_along}, {m->inner, m->index_inner});
}

static void gather(fsdp__gather_args *a, const visitor *v)
{
    READS(x, elements(a->dtype, a->map.outer * a->map.size * a->map.inner));
    READS(map.index, index_bytes(&a->map));
    WRITES(y, elements(a->dtype, a->map.outer * a->map.count * a->map.inner));
}

static void scatter(fsdp__scatter_args *a, const visitor *v)
{
    READS(x, elements(a->dtype, a->map.outer * a->map.count * a->map.inner));
    READS(map.index, index_bytes(&a->map));
    ADDS(y, elements(a->dtype, a->map.outer * a->map.size * a->map.inner), a->keep);
}

static void topk(fsdp__topk_args *a, const visitor *v)
{
    READS(x, elements(a->dtype, a->rows * a->cols));
    WRITES(indices, elements(FSDP_I32, a->rows * a->k));
}

/* ---- attention ---- */

/* Returns the bytes of heads (batch, time, heads, D) with strides. */
static size_t heads_bytes(fsdp_dtype dtype, extent batch, extent time, extent heads, int64_t head_dim)
{
    return STRIDED(dtype, batch, time, heads, {head_dim, 1});
}

static void rope(fsdp__rope_args *a, const visitor *v)
{
    READS(x, heads_bytes(a->dtype, (extent){a->batch, a->x_batch}, (extent){a->time, a->x_time},
                         (extent){a->heads, a->x_head}, a->head_dim));
    READS(frequency, elements(FSDP_F32, (a->rotated > 0 ? a->rotated : a->head_dim) / 2));
    READS(positions, elements(FSDP_I32, a->batch * a->time));
    ADDS(y,
         heads_bytes(a->dtype, (extent){a->batch, a->y_batch}, (extent){a->time, a->y_time},
                     (extent){a->heads, a->y_head}, a->head_dim),
         a->accumulate);
}

static size_t query_bytes(const fsdp__attention_forward_args *a, int64_t batch, int64_t time, int64_t head)
{
    return heads_bytes(a->dtype, (extent){a->batch, batch}, (extent){a->q_time, time}, (extent){a->heads, head},
                       a->head_dim);
}

static size_t key_bytes(const fsdp__attention_forward_args *a, int64_t batch, int64_t time, int64_t head)
{
    return heads_bytes(a->dtype, (extent){a->batch, batch}, (extent){a->kv_time, time}, (extent){a->kv_heads, head},
                       a->head_dim);
}

/* Visits q, k, v, and what the forward leaves: the forward writes it, the backward reads it. */
static void attention(fsdp__attention_forward_args *a, const visitor *v, fsdp__access left)
{
    size_t out = query_bytes(a, a->out_batch, a->out_stride_time, a->out_head);

    READS(q, query_bytes(a, a->q_batch, a->q_stride_time, a->q_head));
    READS(k, key_bytes(a, a->k_batch, a->k_stride_time, a->k_head));
    READS(v, key_bytes(a, a->v_batch, a->v_stride_time, a->v_head));
    READS(positions, elements(FSDP_I32, a->batch * a->q_time));
    a->out = visit(v, "out", a->out, out, left);
    a->lse = visit(v, "lse", a->lse, elements(FSDP_F32, a->batch * a->heads * a->q_time), left);
}

static void attention_forward(fsdp__attention_forward_args *a, const visitor *v)
{
    attention(a, v, FSDP__WRITES);
}

static void attention_backward(fsdp__attention_backward_args *a, const visitor *v)
{
    const fsdp__attention_forward_args *f = &a->forward;
    bool own = a->dq_batch != 0;

    attention(&a->forward, v, FSDP__READS);
    READS(dout, query_bytes(f, f->out_batch, f->out_stride_time, f->out_head));
    WRITES(dq, own ? query_bytes(f, a->dq_batch, a->dq_stride_time, a->dq_head)
                   : query_bytes(f, f->q_batch, f->q_stride_time, f->q_head));
    WRITES(dk, own ? key_bytes(f, a->dk_batch, a->dk_stride_time, a->dk_head)
                   : key_bytes(f, f->k_batch, f->k_stride_time, f->k_head));
    WRITES(dv, own ? key_bytes(f, a->dv_batch, a->dv_stride_time, a->dv_head)
                   : key_bytes(f, f->v_batch, f->v_stride_time, f->v_head));
}

/* ---- the list ---- */

#define random random_ /* not the C library's */
#define power_sum fsdp__visit_power_sum
#define judge_step fsdp__visit_judge_step
#define adam fsdp__visit_adam
#define sgd fsdp__visit_sgd
#define lion fsdp__visit_lion
#define byte_adam fsdp__visit_byte_adam
#define lerp_spans fsdp__visit_lerp_spans
void fsdp__kernel_buffers(fsdp__kernel kernel, void *args, fsdp__buffer_visit visit_one, void *arg)
{
    const visitor v = {visit_one, arg};

    switch (kernel) {
#define CASE(NAME, name, class) \
    case FSDP__KERNEL_##NAME:   \
        name(args, &v);         \
        break;
        FSDP__KERNEL_MAP(CASE)
#undef CASE
    case FSDP__KERNELS:
        break;
    }
}
