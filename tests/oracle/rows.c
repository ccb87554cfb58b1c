/* rows.c - kernels over rows. */
#include "oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void oracle_norm_forward(const fsdp__norm_forward_args *k)
{
    for (int64_t r = 0; r < k->rows; r++) {
        double mean = 0.0, variance = 0.0, rstd;
        const void *s = k->residual ? k->sum : k->x;
        for (int64_t c = 0; k->residual && c < k->cols; c++)
            oracle_put(k->dtype, k->sum, r * k->cols + c,
                       oracle_get(k->dtype, k->x, r * k->cols + c) +
                           oracle_get(k->dtype, k->residual, r * k->cols + c));
        for (int64_t c = 0; !k->rms && c < k->cols; c++)
            mean += oracle_get(k->dtype, s, r * k->cols + c) / (double)k->cols;
        for (int64_t c = 0; c < k->cols; c++)
            variance += pow(oracle_get(k->dtype, s, r * k->cols + c) - mean, 2.0) / (double)k->cols;
        rstd = 1.0 / sqrt(variance + (double)k->eps);
        for (int64_t c = 0; c < k->cols; c++) {
            double y = (oracle_get(k->dtype, s, r * k->cols + c) - mean) * rstd;
            y = y * ((k->weight ? oracle_get(k->weight_dtype, k->weight, c) : 1.0) + (k->plus_one ? 1.0 : 0.0));
            oracle_put(k->dtype, k->y, r * k->cols + c, y + (k->bias ? oracle_get(k->weight_dtype, k->bias, c) : 0.0));
        }
        if (k->mean && !k->rms)
            k->mean[r] = (float)mean;
        if (k->rstd)
            k->rstd[r] = (float)rstd;
    }
}

void oracle_norm_backward(const fsdp__norm_backward_args *k)
{
    int64_t n = k->cols;
    double *dw = calloc((size_t)n + 1, sizeof(double)), *db = calloc((size_t)n + 1, sizeof(double));

    for (int64_t r = 0; r < k->rows; r++) {
        double mean = k->rms ? 0.0 : (double)k->mean[r], rstd = (double)k->rstd[r], sum = 0.0, dot = 0.0;
        for (int64_t c = 0; c < n; c++) {
            double dy = oracle_get(k->dtype, k->dy, r * n + c),
                   x = (oracle_get(k->dtype, k->s, r * n + c) - mean) * rstd;
            double g = dy * ((k->weight ? oracle_get(k->weight_dtype, k->weight, c) : 1.0) + (k->plus_one ? 1.0 : 0.0));
            dw[c] += dy * x;
            db[c] += dy;
            sum += k->rms ? 0.0 : g / (double)n;
            dot += g * x / (double)n;
        }
        for (int64_t c = 0; k->dx && c < n; c++) {
            double w = (k->weight ? oracle_get(k->weight_dtype, k->weight, c) : 1.0) + (k->plus_one ? 1.0 : 0.0);
            double g = oracle_get(k->dtype, k->dy, r * n + c) * w;
            double x = (oracle_get(k->dtype, k->s, r * n + c) - mean) * rstd;
            double extra = k->dsum ? oracle_get(k->dtype, k->dsum, r * n + c) : 0.0;
            oracle_put(k->dtype, k->dx, r * n + c, (g - sum - x * dot) * rstd + extra);
        }
    }
    for (int64_t c = 0; c < n; c++) {
        fsdp_dtype t = k->dweight_dtype;
        if (k->dweight)
            oracle_put(t, k->dweight, c, dw[c] + (k->accumulate_weight ? oracle_get(t, k->dweight, c) : 0.0));
        if (k->dbias)
            oracle_put(t, k->dbias, c, db[c] + (k->accumulate_bias ? oracle_get(t, k->dbias, c) : 0.0));
    }
    free(dw);
    free(db);
}

void oracle_rope(const fsdp__rope_args *k)
{
    int64_t rotated = k->rotated > 0 ? k->rotated : k->head_dim, half = rotated / 2;

    for (int64_t e = 0; e < k->batch * k->time * k->heads * half; e++) {
        int64_t i = e % half, h = e / half % k->heads, t = e / half / k->heads % k->time;
        int64_t b = e / half / k->heads / k->time;
        int64_t x = b * k->x_batch + t * k->x_time + h * k->x_head + i;
        int64_t y = b * k->y_batch + t * k->y_time + h * k->y_head + i;
        int64_t position = k->positions ? k->positions[b * k->time + t] : k->position0 + t;
        double angle = (double)((float)position * k->frequency[i]) * (k->inverse ? -1.0 : 1.0);
        double scale = k->scale != 0 ? (double)k->scale : 1.0, cosine = scale * cos(angle), sine = scale * sin(angle);
        double low = oracle_get(k->dtype, k->x, x), high = oracle_get(k->dtype, k->x, x + half);
        double add0 = k->accumulate ? oracle_get(k->dtype, k->y, y) : 0.0;
        double add1 = k->accumulate ? oracle_get(k->dtype, k->y, y + half) : 0.0;
        oracle_put(k->dtype, k->y, y, low * cosine - high * sine + add0);
        oracle_put(k->dtype, k->y, y + half, high * cosine + low * sine + add1);
        for (int64_t d = rotated; i == 0 && d < k->head_dim; d++) {
            double old = k->accumulate ? oracle_get(k->dtype, k->y, y + d) : 0.0;
            oracle_put(k->dtype, k->y, y + d, oracle_get(k->dtype, k->x, x + d) + old);
        }
    }
}

void oracle_softmax_forward(const fsdp__softmax_forward_args *k)
{
    for (int64_t r = 0; r < k->rows; r++) {
        double top = -INFINITY, sum = 0.0;
        for (int64_t c = 0; c < k->cols; c++)
            top = fmax(top, oracle_get(k->dtype, k->x, r * k->cols + c));
        for (int64_t c = 0; c < k->cols; c++)
            sum += exp(oracle_get(k->dtype, k->x, r * k->cols + c) - top);
        for (int64_t c = 0; c < k->cols; c++) {
            double x = oracle_get(k->dtype, k->x, r * k->cols + c) - top;
            oracle_put(k->dtype, k->y, r * k->cols + c, k->log ? x - log(sum) : exp(x) / sum);
        }
    }
}

void oracle_softmax_backward(const fsdp__softmax_backward_args *k)
{
    for (int64_t r = 0; r < k->rows; r++) {
        double dot = 0.0;
        for (int64_t c = 0; c < k->cols; c++)
            dot += (k->log ? 1.0 : oracle_get(k->dtype, k->y, r * k->cols + c)) *
                   oracle_get(k->dtype, k->dy, r * k->cols + c);
        for (int64_t c = 0; c < k->cols; c++) {
            int64_t i = r * k->cols + c;
            double y = oracle_get(k->dtype, k->y, i), dy = oracle_get(k->dtype, k->dy, i);
            oracle_put(k->dtype, k->dx, i, k->log ? dy - exp(y) * dot : y * (dy - dot));
        }
    }
}

static double logit(const fsdp__cross_entropy_args *k, int64_t at)
{
    double x = oracle_get(k->dtype, k->logits, at), cap = (double)k->softcap;

    return cap > 0.0 ? cap * tanh(x / cap) : x;
}

static double cap_slope(const fsdp__cross_entropy_args *k, double y)
{
    double cap = (double)k->softcap;

    return cap > 0.0 ? 1.0 - y / cap * (y / cap) : 1.0;
}

/* Rows that are parts of larger ones. */
static void oracle_parts(const fsdp__cross_entropy_args *k, int64_t row)
{
    for (int64_t r = 0; r < k->rows; r++) {
        bool counts = k->targets[r] != k->ignore_index;
        int64_t target = k->targets[r] - k->first_col;
        double sum = counts ? 0.0 : 1.0;

        for (int64_t c = 0; c < k->cols; c++) {
            double y = logit(k, r * row + c), e = counts ? exp(y - (double)k->largest[r]) : 0.0;

            sum += e;
            if (k->dlogits)
                oracle_put(k->dlogits_dtype, k->dlogits, r * row + c,
                           (double)k->loss_scale * (e / (double)k->sums[r] - (counts && c == target)) *
                               cap_slope(k, y));
        }
        if (k->dlogits)
            continue;
        k->sums[r] = (float)sum;
        k->at_targets[r] = counts && target >= 0 && target < k->cols ? (float)logit(k, r * row + target) : 0.0f;
    }
}

void oracle_cross_entropy(const fsdp__cross_entropy_args *k)
{
    int64_t row = k->logits_row > 0 ? k->logits_row : k->cols;
    double loss = 0.0;
    bool bad = false;

    if (k->largest) {
        oracle_parts(k, row);
        return;
    }
    for (int64_t r = 0; r < k->rows; r++) {
        int32_t target = k->targets[r];
        bool counts = target != k->ignore_index && target >= 0 && target < k->cols;
        double top = -INFINITY, sum = 0.0;
        if (target != k->ignore_index && !counts && !bad && k->bad_row) {
            *k->bad_row = r;
            bad = true;
        }
        for (int64_t c = 0; c < k->cols; c++)
            top = fmax(top, logit(k, r * row + c));
        for (int64_t c = 0; c < k->cols; c++)
            sum += exp(logit(k, r * row + c) - top);
        if (counts)
            loss += log(sum) + top - logit(k, r * row + target);
        for (int64_t c = 0; k->dlogits && c < k->cols; c++) {
            double y = logit(k, r * row + c), p = exp(y - top) / sum;
            oracle_put(k->dlogits_dtype, k->dlogits, r * row + c,
                       counts ? (double)k->loss_scale * (p - (c == target)) * cap_slope(k, y) : 0.0);
        }
    }
    *k->loss = (float)((double)k->loss_scale * loss + (k->accumulate_loss ? (double)*k->loss : 0.0));
}

void oracle_embedding_forward(const fsdp__embedding_forward_args *k)
{
    bool bad = false;

    for (int64_t r = 0; r < k->rows; r++) {
        bool valid = k->ids[r] >= 0 && k->ids[r] < k->table_rows;
        if (!valid && !bad && k->bad_row) {
            *k->bad_row = r;
            bad = true;
        }
        for (int64_t c = 0; c < k->cols; c++)
            oracle_put(k->dtype, k->y, r * k->cols + c,
                       valid ? oracle_get(k->dtype, k->table, k->ids[r] * k->cols + c) : 0.0);
    }
}

void oracle_embedding_backward(const fsdp__embedding_backward_args *k)
{
    for (int64_t id = 0; id < k->table_rows; id++)
        for (int64_t c = 0; c < k->cols; c++) {
            double sum = k->accumulate ? oracle_get(k->dtable_dtype, k->dtable, id * k->cols + c) : 0.0;
            for (int64_t r = 0; r < k->rows; r++)
                if (k->ids[r] == id)
                    sum += oracle_get(k->dtype, k->dy, r * k->cols + c);
            oracle_put(k->dtable_dtype, k->dtable, id * k->cols + c, sum);
        }
}

/* Where element e of the tensor of (outer,count,inner) belongs in the one of (outer,size,inner). */
static int64_t place_of(const fsdp__index_map *m, int64_t e)
{
    int64_t i = e % m->inner, j = e / m->inner % m->count, o = e / m->inner / m->count;

    return (o * m->size + m->index[o * m->index_outer + j * m->index_along + i * m->index_inner]) * m->inner + i;
}

void oracle_gather(const fsdp__gather_args *k)
{
    size_t size = fsdp_dtype_size(k->dtype);

    for (int64_t e = 0; e < k->map.outer * k->map.count * k->map.inner; e++)
        memcpy((char *)k->y + (size_t)e * size, (const char *)k->x + (size_t)place_of(&k->map, e) * size, size);
}

void oracle_scatter(const fsdp__scatter_args *k)
{
    int64_t numel = k->map.outer * k->map.size * k->map.inner, count = k->map.outer * k->map.count * k->map.inner;
    size_t size = fsdp_dtype_size(k->dtype);

    if (!k->keep)
        memset(k->y, 0, (size_t)numel * size);
    for (int64_t e = 0; !k->add && e < count; e++)
        memcpy((char *)k->y + (size_t)place_of(&k->map, e) * size, (const char *)k->x + (size_t)e * size, size);
    for (int64_t at = 0; k->add && at < numel; at++) {
        double sum = oracle_get(k->dtype, k->y, at);

        for (int64_t e = 0; e < count; e++)
            if (place_of(&k->map, e) == at)
                sum += oracle_get(k->dtype, k->x, e);
        oracle_put(k->dtype, k->y, at, sum);
    }
}

/* Whether a comes before b. */
static bool comes_before(const fsdp__topk_args *k, int64_t row, int64_t a, int64_t b)
{
    double x = oracle_get(k->dtype, k->x, row * k->cols + a), y = oracle_get(k->dtype, k->x, row * k->cols + b);
    bool above = isnan(x) ? !isnan(y) : x > y, below = isnan(y) ? !isnan(x) : x < y;

    if (above || below)
        return k->largest ? above : below;
    return a < b;
}

void oracle_topk(const fsdp__topk_args *k)
{
    for (int64_t row = 0; row < k->rows; row++)
        for (int64_t c = 0; c < k->cols; c++) {
            int64_t rank = 0;

            for (int64_t other = 0; other < k->cols; other++)
                rank += other != c && comes_before(k, row, other, c);
            if (rank < k->k)
                k->indices[row * k->k + rank] = (int32_t)c;
        }
}
