/* pool.c - max and average over windows of a plane, and their backward. Planes do not depend on each other. */
#include <math.h>

#include "backend/cpu/kernels/dtype.h"
#include "base/alloc.h"

/* ---- windows ---- */

/* Says where window `i` of a side begins and ends, and how many of its places count. */
typedef struct span {
    int64_t first, end, step, counted;
} span;

static span span_of(const fsdp__pool_sizes *s, int side, int64_t i)
{
    int64_t size = s->in[side], results = s->out[side];
    span w = {.step = s->dilation[side]};

    if (s->kind == FSDP__POOL_ADAPTIVE) {
        w.first = i * size / results;
        w.end = fsdp__ceil_div((i + 1) * size, results);
        w.counted = w.end - w.first;
        return w;
    }
    w.first = i * s->stride[side] - s->padding[side];
    w.end = w.first + (s->kernel[side] - 1) * w.step + 1;
    w.counted = s->kernel[side];
    if (w.first < 0)
        w.first += fsdp__round_up(-w.first, w.step);
    w.end = FSDP__MIN(w.end, size);
    if (!s->count_padding)
        w.counted = FSDP__MAX(w.end - w.first, 0);
    return w;
}

/* ---- forward: a run of results in a row, one place of their windows after the other ---- */

enum {
    RUN = 256
};

typedef struct run {
    int64_t first, count; /* results of the row */
    float value[RUN];
    int32_t index[RUN];
} run;

/* Finds the results of the run for which place `k` of the window is inside the row: [*from, *to). */
static void results_with(const fsdp__pool_sizes *s, const run *m, int64_t k, int64_t *from, int64_t *to)
{
    int64_t stride = s->stride[1], first = m->first * stride - s->padding[1] + k * s->dilation[1];
    int64_t left = s->in[1] - 1 - first;

    *from = FSDP__MIN(first < 0 ? fsdp__ceil_div(-first, stride) : 0, m->count);
    *to = left < 0 ? 0 : FSDP__MIN(left / stride + 1, m->count);
}

/* Visits the places of the windows in one row; `at` is where that row of x begins in the plane. The first maximum
 * stays, and so does a NaN. */
FSDP__INLINE void visit_row(fsdp_dtype dtype, const fsdp__pool_sizes *s, const void *x, int64_t at, run *m)
{
    for (int64_t k = 0; k < s->kernel[1]; k++) {
        int64_t from, to, stride = s->stride[1];
        int64_t first = at + m->first * stride - s->padding[1] + k * s->dilation[1];

        results_with(s, m, k, &from, &to);
        if (s->kind == FSDP__POOL_AVG) {
            for (int64_t j = from; j < to; j++)
                m->value[j] += fsdp__load(dtype, x, first + j * stride);
            continue;
        }
        for (int64_t j = from; j < to; j++) {
            float value = fsdp__load(dtype, x, first + j * stride), top = m->value[j];
            bool more = (value > top) | (value != value) | (m->index[j] < 0);

            m->value[j] = more ? value : top;
            m->index[j] = more ? (int32_t)(first + j * stride) : m->index[j];
        }
    }
}

FSDP__INLINE void forward_run(fsdp_dtype dtype, const fsdp__pool_forward_args *k, int64_t plane, int64_t i, run *m)
{
    const fsdp__pool_sizes *s = &k->sizes;
    const void *x = fsdp__at(dtype, k->x, plane * s->in[0] * s->in[1]);
    int64_t at = (plane * s->out[0] + i) * s->out[1] + m->first;
    span rows = span_of(s, 0, i);

    for (int64_t j = 0; j < m->count; j++) {
        m->value[j] = s->kind == FSDP__POOL_MAX ? -INFINITY : 0.0f;
        m->index[j] = -1;
    }
    for (int64_t r = rows.first; r < rows.end; r += rows.step)
        visit_row(dtype, s, x, r * s->in[1], m);
    for (int64_t j = 0; j < m->count; j++)
        fsdp__store(dtype, k->y, at + j,
                    s->kind == FSDP__POOL_MAX ? m->value[j]
                    : s->count_padding        ? m->value[j] / (float)(rows.counted * s->kernel[1])
                                       : m->value[j] / (float)(rows.counted * span_of(s, 1, m->first + j).counted));
    if (s->kind == FSDP__POOL_MAX && k->index)
        memcpy(k->index + at, m->index, (size_t)m->count * sizeof *m->index);
}

FSDP__INLINE void adaptive_row(fsdp_dtype dtype, const fsdp__pool_forward_args *k, int64_t plane, int64_t i)
{
    const fsdp__pool_sizes *s = &k->sizes;
    const void *x = fsdp__at(dtype, k->x, plane * s->in[0] * s->in[1]);
    span rows = span_of(s, 0, i);

    for (int64_t j = 0; j < s->out[1]; j++) {
        span cols = span_of(s, 1, j);
        float sum = 0.0f;

        for (int64_t r = rows.first; r < rows.end; r++)
            for (int64_t c = cols.first; c < cols.end; c++)
                sum += fsdp__load(dtype, x, r * s->in[1] + c);
        fsdp__store(dtype, k->y, (plane * s->out[0] + i) * s->out[1] + j, sum / (float)(rows.counted * cols.counted));
    }
}

FSDP__INLINE void forward_plane(fsdp_dtype dtype, const fsdp__pool_forward_args *k, int64_t plane)
{
    const fsdp__pool_sizes *s = &k->sizes;
    run m;

    for (int64_t i = 0; i < s->out[0]; i++) {
        if (s->kind == FSDP__POOL_ADAPTIVE) {
            adaptive_row(dtype, k, plane, i);
            continue;
        }
        for (m.first = 0; m.first < s->out[1]; m.first += RUN) {
            m.count = FSDP__MIN(s->out[1] - m.first, RUN);
            forward_run(dtype, k, plane, i, &m);
        }
    }
}

static void forward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__pool_forward_args *k = args;

    for (int64_t p = begin; p < end; p++) {
        FSDP__EACH_FLOAT(k->sizes.dtype, T, forward_plane(T, k, p));
    }
}

FSDP__KERNEL(pool_forward, k)
{
    fsdp__for_ranges(k->sizes.planes, k->sizes.in[0] * k->sizes.in[1] + k->sizes.out[0] * k->sizes.out[1],
                     forward_range, k);
    return FSDP_OK;
}

/* ---- backward: a plane is summed up as f32, then rounded ---- */

typedef struct backward_plan {
    const fsdp__pool_backward_args *k;
    float *planes; /* one for each thread */
} backward_plan;

FSDP__INLINE void add_means(fsdp_dtype dtype, const fsdp__pool_sizes *s, const void *dy, float *sum)
{
    for (int64_t i = 0; i < s->out[0]; i++) {
        span rows = span_of(s, 0, i);

        for (int64_t j = 0; j < s->out[1]; j++) {
            span cols = span_of(s, 1, j);
            float share = fsdp__load(dtype, dy, i * s->out[1] + j) / (float)(rows.counted * cols.counted);

            for (int64_t r = rows.first; r < rows.end; r++)
                for (int64_t c = cols.first; c < cols.end; c++)
                    sum[r * s->in[1] + c] += share;
        }
    }
}

FSDP__INLINE void backward_plane(fsdp_dtype dtype, const fsdp__pool_backward_args *k, int64_t plane, float *sum)
{
    const fsdp__pool_sizes *s = &k->sizes;
    int64_t numel = s->in[0] * s->in[1], results = s->out[0] * s->out[1];
    const void *dy = fsdp__at(dtype, k->dy, plane * results);
    void *dx = fsdp__at(dtype, k->dx, plane * numel);

    memset(sum, 0, (size_t)numel * sizeof *sum);
    if (s->kind == FSDP__POOL_MAX) {
        for (int64_t i = 0; i < results; i++)
            if (k->index[plane * results + i] >= 0)
                sum[k->index[plane * results + i]] += fsdp__load(dtype, dy, i);
    } else {
        add_means(dtype, s, dy, sum);
    }
    if (k->accumulate)
        for (int64_t i = 0; i < numel; i++)
            fsdp__store(dtype, dx, i, fsdp__load(dtype, dx, i) + sum[i]);
    else
        for (int64_t i = 0; i < numel; i++)
            fsdp__store(dtype, dx, i, sum[i]);
}

static void backward_range(const void *args, int64_t begin, int64_t end)
{
    const backward_plan *plan = args;
    const fsdp__pool_sizes *s = &plan->k->sizes;

    for (int64_t p = begin; p < end; p++) {
        FSDP__EACH_FLOAT(s->dtype, T,
                         backward_plane(T, plan->k, p, plan->planes + (int64_t)fsdp__thread() * s->in[0] * s->in[1]));
    }
}

FSDP__KERNEL(pool_backward, k)
{
    int64_t numel = k->sizes.in[0] * k->sizes.in[1];
    backward_plan plan = {
        .k = k, .planes = fsdp__stream_workspace(stream, (size_t)(numel * fsdp__threads()) * sizeof(float) + 1)};

    FSDP__TRY_NEW(plan.planes);
    fsdp__for_ranges(k->sizes.planes, numel + k->sizes.out[0] * k->sizes.out[1], backward_range, &plan);
    return FSDP_OK;
}
