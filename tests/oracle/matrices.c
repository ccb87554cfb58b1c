/* matrices.c - matrices and memory. */
#include "oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add_up(const fsdp__matmul_args *k)
{
    int64_t sides = k->sums_of_b ? k->n : k->m;

    for (int64_t i = 0; i < sides; i++) {
        double sum = 0.0;

        for (int64_t p = 0; p < k->k; p++)
            sum += k->sums_of_b ? oracle_get(k->b_dtype, k->b, p * k->b_row + i * k->b_col)
                                : oracle_get(k->a_dtype, k->a, i * k->a_row + p * k->a_col);
        oracle_put(k->c_dtype, k->sums, i, sum);
    }
}

static double with_gelu(const fsdp__matmul_args *k, int64_t at, double r)
{
    if (k->gelu == FSDP__PRODUCT_GELU_GRADIENT)
        return r * oracle_derivative(FSDP__GELU_TANH, oracle_get(k->c_dtype, k->before, at));
    if (k->before)
        oracle_put(k->c_dtype, k->before, at, r);
    return oracle_activate(FSDP__GELU_TANH, r);
}

void oracle_matmul(const fsdp__matmul_args *k)
{
    if (k->sums)
        add_up(k);
    for (int64_t e = 0; e < k->batch; e++)
        for (int64_t i = 0; i < k->m; i++)
            for (int64_t j = 0; j < k->n; j++) {
                int64_t at = e * k->c_batch + i * k->c_row + j;
                double sum = 0.0;
                for (int64_t p = 0; p < k->k; p++)
                    sum += oracle_get(k->a_dtype, k->a, e * k->a_batch + i * k->a_row + p * k->a_col) *
                           oracle_get(k->b_dtype, k->b, e * k->b_batch + p * k->b_row + j * k->b_col);
                sum *= (double)k->alpha;
                if (k->bias)
                    sum += oracle_get(k->bias_dtype, k->bias, j);
                if (k->accumulate)
                    sum += oracle_get(k->c_dtype, k->c, at);
                oracle_put(k->c_dtype, k->c, at, k->gelu ? with_gelu(k, at, sum) : sum);
            }
}

void oracle_copy(const fsdp__copy_args *k)
{
    int64_t numel = 1;
    double *values;

    for (int d = 0; d < k->ndim; d++)
        numel *= k->shape[d];
    values = malloc((size_t)numel * sizeof *values + 1); /* all reads before all writes: in place */
    for (int write = 0; write < 2; write++)
        for (int64_t e = 0; e < numel; e++) {
            int64_t rest = e, src = 0, dst = 0;
            for (int d = k->ndim - 1; d >= 0; d--) {
                src += rest % k->shape[d] * k->src_strides[d];
                dst += rest % k->shape[d] * k->dst_strides[d];
                rest /= k->shape[d];
            }
            if (!write)
                values[e] = oracle_get(k->src_dtype, k->src, src);
            else
                oracle_put(k->dst_dtype, k->dst, dst,
                           values[e] + (k->accumulate ? oracle_get(k->dst_dtype, k->dst, dst) : 0.0));
        }
    free(values);
}

void oracle_fill(const fsdp__fill_args *k)
{
    for (int64_t i = 0; i < k->numel; i++)
        oracle_put(k->dtype, k->dst, i, k->value);
}

void oracle_cast_spans(const fsdp__cast_spans_args *k)
{
    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++)
            oracle_put(k->dst_dtype, k->spans[s].dst, i, oracle_get(k->src_dtype, k->spans[s].src, i));
}

/* Makes the upper half the nearest bf16: it is one more where the lower half is at least half of its range. */
void oracle_split_spans(const fsdp__split_spans_args *k)
{
    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++) {
            const fsdp__split_span *x = &k->spans[s];
            uint32_t bits, joined = (uint32_t)x->high[i] << 16;

            if (k->join) {
                joined = (x->low[i] & 0x8000u ? joined - 0x10000u : joined) + x->low[i];
                memcpy(&x->whole[i], &joined, sizeof joined);
                continue;
            }
            memcpy(&bits, &x->whole[i], sizeof bits);
            x->low[i] = (uint16_t)(bits % 0x10000u);
            x->high[i] = (uint16_t)(bits / 0x10000u + (x->low[i] >= 0x8000u));
        }
}

static double combined(fsdp__rank_op op, double x, double v)
{
    return op == FSDP__RANK_SUM ? x + v : op == FSDP__RANK_MAX ? fmax(x, v) : fmin(x, v);
}

/* Of the sources [first, last) that are there; false: there is none. */
static bool reduced_ranks(const fsdp__reduce_ranks_args *k, int first, int last, int64_t i, double *out)
{
    bool any = false;

    for (int s = first; s < last; s++) {
        if (!k->srcs[s])
            continue;
        *out = any ? combined(k->op, *out, oracle_get(k->src_dtype, k->srcs[s], i))
                   : oracle_get(k->src_dtype, k->srcs[s], i);
        any = true;
    }
    return any;
}

static double reduced_blocks(const fsdp__reduce_ranks_args *k, int64_t i)
{
    double x = 0.0, block = 0.0, rounded;
    bool any = false;

    for (int s = 0; s < k->count; s += k->block) {
        if (!reduced_ranks(k, s, s + k->block < k->count ? s + k->block : k->count, i, &block))
            continue;
        oracle_put(k->block_dtype, &rounded, 0, block);
        block = oracle_get(k->block_dtype, &rounded, 0);
        x = any ? combined(k->op, x, block) : block;
        any = true;
    }
    return x;
}

void oracle_reduce_ranks(const fsdp__reduce_ranks_args *k)
{
    for (int64_t i = 0; i < k->numel; i++) {
        double x = 0.0;
        if (k->block > 0 && fsdp_dtype_is_floating(k->src_dtype))
            x = reduced_blocks(k, i);
        else
            (void)reduced_ranks(k, 0, k->count, i, &x);
        if (fsdp_dtype_is_floating(k->src_dtype))
            x /= k->divisor != 0 ? (double)k->divisor : 1.0;
        if (k->accumulate)
            x += oracle_get(k->dst_dtype, k->dst, i);
        oracle_put(k->dst_dtype, k->dst, i, x);
    }
}

void oracle_reduce(const fsdp__reduce_args *k)
{
    for (int64_t o = 0; o < k->outer; o++)
        for (int64_t i = 0; i < k->inner; i++) {
            double sum = 0.0;
            for (int64_t r = 0; r < k->reduced; r++) {
                double x = oracle_get(k->x_dtype, k->x, (o * k->reduced + r) * k->inner + i);
                double center = k->center ? (double)k->center[o * k->inner + i] : 0.0;
                if (k->center)
                    sum += (x - center) * (x - center);
                else if (k->op == FSDP__REDUCE_SUM)
                    sum += x;
                else if (r == 0 || (k->op == FSDP__REDUCE_MAX ? x > sum : x < sum))
                    sum = x;
            }
            sum *= (double)k->alpha;
            if (k->accumulate)
                sum += oracle_get(k->y_dtype, k->y, o * k->inner + i);
            oracle_put(k->y_dtype, k->y, o * k->inner + i, sum);
        }
}
