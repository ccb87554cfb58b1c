/* channel_norm.cu - batch and group normalisation: x (batch, channels, inner), with a weight for each channel. A row is
 * contiguous: `inner` elements of one channel of one image. Sums go over rows first, then, in f64, over the rows of a
 * set. */
#include "backend/cuda/kernels/kernel.cuh"

typedef fsdp__channel_norm_sizes norm_sizes;

/* Returns the set of a row (image n, channel c). */
DEVICE int64_t set_of(const norm_sizes &s, int64_t row)
{
    int64_t c = row % s.channels;

    return s.groups == 0 ? c : row / s.channels * s.groups + c / (s.channels / s.groups);
}

/* Returns row i of a set. */
DEVICE int64_t row_of(const norm_sizes &s, int64_t set, int64_t i)
{
    return s.groups == 0 ? i * s.channels + set : set * (s.channels / s.groups) + i;
}

HOST_DEVICE int64_t sets_of(const norm_sizes &s)
{
    return s.groups == 0 ? s.channels : s.batch * s.groups;
}

DEVICE int64_t rows_of_set(const norm_sizes &s)
{
    return s.groups == 0 ? s.batch : s.channels / s.groups;
}

/* Element i, of a dtype that is the same for all threads; or `otherwise`, where there are none. */
DEVICE float load_as(fsdp_dtype dtype, const void *p, int64_t i, float otherwise)
{
    if (!p)
        return otherwise;
    return dtype == FSDP_F32    ? load((const float *)p, i)
           : dtype == FSDP_BF16 ? load((const bf16 *)p, i)
                                : load((const f16 *)p, i);
}

DEVICE void store_as(fsdp_dtype dtype, void *p, int64_t i, float x)
{
    if (dtype == FSDP_F32)
        store((float *)p, i, x);
    else if (dtype == FSDP_BF16)
        store((bf16 *)p, i, x);
    else
        store((f16 *)p, i, x);
}

/* ---- rows: one thread for a short one, a block for a long one ---- */

#define EACH_ROW_OF(LANES, row, rows)                                                       \
    for (int64_t row = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / (LANES); row < (rows); \
         row += (int64_t)gridDim.x * (BLOCK / (LANES)))

/* Every so-manieth element of a row of n. */
#define EACH_OF_ROW(LANES, i, n) for (int64_t i = threadIdx.x % (LANES); i < (n); i += (LANES))

/* The sum over a row's threads, for all of them. */
template <int LANES>
DEVICE float row_sum(float x)
{
    __shared__ float partial[WARP];

    return LANES == 1 ? x : LANES == WARP ? warp_sum(x) : block_sum(x, partial);
}

/* Issues kernel<T, LANES>(...). */
#define LAUNCH_ROWS(name, kernel, T, s, ...)                                                                          \
    if ((s).inner < WARP / 2)                                                                                         \
        FSDP_TRY(launch(stream, name, kernel<T, 1>, blocks_for(rows_of(s), BLOCK), BLOCK, 0, __VA_ARGS__));           \
    else if ((s).inner <= 4 * BLOCK)                                                                                  \
        FSDP_TRY(launch(stream, name, kernel<T, WARP>, blocks_for(rows_of(s), BLOCK / WARP), BLOCK, 0, __VA_ARGS__)); \
    else                                                                                                              \
        FSDP_TRY(launch(stream, name, kernel<T, BLOCK>, blocks_for(rows_of(s), 1), BLOCK, 0, __VA_ARGS__))

HOST_DEVICE int64_t rows_of(const norm_sizes &s)
{
    return s.batch * s.channels;
}

/* ---- forward ---- */

/* Computes each row's mean, and the sum of squared deviations from it. */
template <class T, int LANES>
static __global__ void measure_rows(const __grid_constant__ fsdp__channel_norm_forward_args k, float *row_sums)
{
    int64_t n = k.sizes.inner;

    EACH_ROW_OF (LANES, row, rows_of(k.sizes)) {
        const T *x = (const T *)k.x + row * n;
        float sum = 0.0f, squares = 0.0f, mean;

        EACH_OF_ROW (LANES, i, n)
            sum += load(x, i);
        mean = row_sum<LANES>(sum) / (float)n;
        EACH_OF_ROW (LANES, i, n)
            squares += (load(x, i) - mean) * (load(x, i) - mean);
        squares = row_sum<LANES>(squares);
        row_sums[2 * row] = mean;
        row_sums[2 * row + 1] = squares;
    }
}

DEVICE void update(const fsdp__channel_norm_forward_args &k, int64_t c, double mean, double variance)
{
    double factor = k.cumulative ? 1.0 / (double)*k.batches : k.momentum;
    double old_mean = load_as(k.running_dtype, k.running_mean, c, 0.0f);
    double old_variance = load_as(k.running_dtype, k.running_var, c, 0.0f);

    store_as(k.running_dtype, k.running_mean, c, (float)(factor * mean + (1.0 - factor) * old_mean));
    store_as(k.running_dtype, k.running_var, c, (float)(factor * variance + (1.0 - factor) * old_variance));
}

/* Computes the mean and variance of sets from their rows: each row adds its own squares, and those of how far its mean
 * is off. */
static __global__ void measure_sets(const __grid_constant__ fsdp__channel_norm_forward_args k, const float *row_sums)
{
    double n = (double)k.sizes.inner;

    EACH_ITEM (set, sets_of(k.sizes)) {
        double mean = 0.0, squares = 0.0, count = 0.0;

        for (int64_t i = 0; i < rows_of_set(k.sizes); i++) {
            const float *row = row_sums + 2 * row_of(k.sizes, set, i);
            double off = (double)row[0] - mean;

            mean += off * n / (count + n);
            squares += (double)row[1] + off * off * count * n / (count + n);
            count += n;
        }
        k.mean[set] = (float)mean;
        k.rstd[set] = (float)(1.0 / sqrt(squares / count + (double)k.eps));
        if (k.running_mean)
            update(k, set, mean, squares / (count - 1.0));
    }
}

static __global__ void take_running(const __grid_constant__ fsdp__channel_norm_forward_args k)
{
    EACH_ITEM (c, k.sizes.channels) {
        double variance = load_as(k.running_dtype, k.running_var, c, 0.0f);

        k.mean[c] = load_as(k.running_dtype, k.running_mean, c, 0.0f);
        k.rstd[c] = (float)(1.0 / sqrt(variance + (double)k.eps));
    }
}

static __global__ void count_call(int64_t *batches)
{
    ++*batches;
}

template <class T, int LANES>
static __global__ void scale_rows(const __grid_constant__ fsdp__channel_norm_forward_args k)
{
    int64_t n = k.sizes.inner;

    EACH_ROW_OF (LANES, row, rows_of(k.sizes)) {
        int64_t set = set_of(k.sizes, row), c = row % k.sizes.channels;
        float scale = k.rstd[set] * load_as(k.sizes.weight_dtype, k.weight, c, 1.0f), mean = k.mean[set];
        float bias = load_as(k.sizes.weight_dtype, k.bias, c, 0.0f);
        const T *x = (const T *)k.x + row * n;

        EACH_OF_ROW (LANES, i, n)
            store((T *)k.y + row * n, i, (load(x, i) - mean) * scale + bias);
    }
}

ENTRY(channel_norm_forward)
{
    const fsdp__channel_norm_forward_args *k = (const fsdp__channel_norm_forward_args *)args;
    const char *name = "channel_norm_forward";
    unsigned set_blocks = blocks_for(sets_of(k->sizes), WARP);
    float *row_sums;

    if (k->batches)
        FSDP_TRY(launch(stream, name, count_call, 1, 1, 0, k->batches));
    if (k->fixed) {
        FSDP_TRY(launch(stream, name, take_running, set_blocks, WARP, 0, *k));
    } else {
        row_sums = (float *)fsdp__stream_workspace(stream, (size_t)(2 * rows_of(k->sizes)) * sizeof *row_sums);
        if (!row_sums)
            return FSDP_NO_MEMORY;
#define MEASURE(T) LAUNCH_ROWS(name, measure_rows, T, k->sizes, *k, row_sums)
        EACH_FLOAT(k->sizes.dtype, MEASURE)
#undef MEASURE
        FSDP_TRY(launch(stream, name, measure_sets, set_blocks, WARP, 0, *k, row_sums));
    }
#define SCALE(T) LAUNCH_ROWS(name, scale_rows, T, k->sizes, *k)
    EACH_FLOAT(k->sizes.dtype, SCALE)
#undef SCALE
    return FSDP_OK;
}

/* ---- backward ---- */

/* Computes each row's sums of dy and of dy times the normalised x. */
template <class T, int LANES>
static __global__ void sum_rows(const __grid_constant__ fsdp__channel_norm_backward_args k, float *row_sums)
{
    int64_t n = k.sizes.inner;

    EACH_ROW_OF (LANES, row, rows_of(k.sizes)) {
        const T *x = (const T *)k.x + row * n, *dy = (const T *)k.dy + row * n;
        int64_t set = set_of(k.sizes, row);
        float sum = 0.0f, dot = 0.0f, mean = k.mean[set];

        EACH_OF_ROW (LANES, i, n) {
            sum += load(dy, i);
            dot += load(dy, i) * (load(x, i) - mean);
        }
        sum = row_sum<LANES>(sum);
        dot = row_sum<LANES>(dot);
        row_sums[2 * row] = sum;
        row_sums[2 * row + 1] = dot * k.rstd[set];
    }
}

DEVICE void add_to(fsdp_dtype dtype, void *to, int64_t i, bool accumulate, double sum)
{
    if (to)
        store_as(dtype, to, i, (float)(sum + (accumulate ? (double)load_as(dtype, to, i, 0.0f) : 0.0)));
}

/* Computes the gradients of weight and bias, over the images. */
static __global__ void sum_channels(const __grid_constant__ fsdp__channel_norm_backward_args k, const float *row_sums)
{
    EACH_ITEM (c, k.sizes.channels) {
        double sum = 0.0, dot = 0.0;

        for (int64_t n = 0; n < k.sizes.batch; n++) {
            sum += (double)row_sums[2 * (n * k.sizes.channels + c)];
            dot += (double)row_sums[2 * (n * k.sizes.channels + c) + 1];
        }
        add_to(k.sizes.weight_dtype, k.dweight, c, k.accumulate_weight, dot);
        add_to(k.sizes.weight_dtype, k.dbias, c, k.accumulate_bias, sum);
    }
}

/* Computes what a set subtracts from each of its elements: the means of the two sums over the set. */
static __global__ void sum_sets(const __grid_constant__ fsdp__channel_norm_backward_args k, const float *row_sums,
                                float *terms)
{
    double count = (double)(rows_of_set(k.sizes) * k.sizes.inner);

    EACH_ITEM (set, sets_of(k.sizes)) {
        double sum = 0.0, dot = 0.0;

        for (int64_t i = 0; i < rows_of_set(k.sizes) && !k.fixed; i++) {
            int64_t row = row_of(k.sizes, set, i);
            double weight = load_as(k.sizes.weight_dtype, k.weight, row % k.sizes.channels, 1.0f);

            sum += weight * (double)row_sums[2 * row];
            dot += weight * (double)row_sums[2 * row + 1];
        }
        terms[2 * set] = (float)(sum / count);
        terms[2 * set + 1] = (float)(dot / count);
    }
}

/* Computes dx [+]= rstd (weight dy - terms[0] - normalised x terms[1]). */
template <class T, int LANES>
static __global__ void spread_rows(const __grid_constant__ fsdp__channel_norm_backward_args k, const float *terms)
{
    int64_t n = k.sizes.inner;

    EACH_ROW_OF (LANES, row, rows_of(k.sizes)) {
        const T *x = (const T *)k.x + row * n, *dy = (const T *)k.dy + row * n;
        T *dx = (T *)k.dx + row * n;
        int64_t set = set_of(k.sizes, row);
        float rstd = k.rstd[set], mean = k.mean[set], slope = rstd * rstd * terms[2 * set + 1];
        float factor = rstd * load_as(k.sizes.weight_dtype, k.weight, row % k.sizes.channels, 1.0f);
        float shift = rstd * terms[2 * set];

        EACH_OF_ROW (LANES, i, n) {
            float d = load(dy, i) * factor - shift - (load(x, i) - mean) * slope;

            store(dx, i, k.accumulate ? load(dx, i) + d : d);
        }
    }
}

ENTRY(channel_norm_backward)
{
    const fsdp__channel_norm_backward_args *k = (const fsdp__channel_norm_backward_args *)args;
    const char *name = "channel_norm_backward";
    int64_t rows = rows_of(k->sizes), sets = sets_of(k->sizes);
    float *row_sums = (float *)fsdp__stream_workspace(stream, (size_t)(2 * rows + 2 * sets) * sizeof *row_sums);
    float *terms = row_sums + 2 * rows;

    if (!row_sums)
        return FSDP_NO_MEMORY;
#define SUM(T) LAUNCH_ROWS(name, sum_rows, T, k->sizes, *k, row_sums)
    EACH_FLOAT(k->sizes.dtype, SUM)
#undef SUM
    if (k->dweight || k->dbias)
        FSDP_TRY(launch(stream, name, sum_channels, blocks_for(k->sizes.channels, WARP), WARP, 0, *k, row_sums));
    if (!k->dx)
        return FSDP_OK;
    FSDP_TRY(launch(stream, name, sum_sets, blocks_for(sets, WARP), WARP, 0, *k, row_sums, terms));
#define SPREAD(T) LAUNCH_ROWS(name, spread_rows, T, k->sizes, *k, terms)
    EACH_FLOAT(k->sizes.dtype, SPREAD)
#undef SPREAD
    return FSDP_OK;
}
