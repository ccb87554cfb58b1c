/* channel_norm.cu - batch and group normalisation: x (batch, channels, inner), with a weight for each channel. A row is
 * contiguous: `inner` elements of one channel of one image. Sums go over rows first, then, in f64, over the rows of a
 * set. */
#include "backend/cuda/kernels/rows.cuh"

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

/* Returns element i, or `otherwise` where there are none. */
DEVICE float load_or(fsdp_dtype dtype, const void *p, int64_t i, float otherwise)
{
    return p ? load_any(dtype, p, i) : otherwise;
}

HOST_DEVICE int64_t rows_of(const norm_sizes &s)
{
    return s.batch * s.channels;
}

static row_threads threads_of(const norm_sizes &s)
{
    return threads_of_rows(rows_of(s), s.inner, 8);
}

/* A thread's packs of a row of n elements: `i` is the first element of one. */
#define EACH_PACK(i, n, group) \
    for (int64_t i = (int64_t)(threadIdx.x % (unsigned)(group)) * N; i < (n); i += (int64_t)(group)*N)

/* ---- forward ---- */

/* Computes each row's mean, and the sum of squared deviations from it. */
template <class T>
static __global__ void measure_rows(GRID_CONSTANT(fsdp__channel_norm_forward_args) k, int group, float *row_sums)
{
    __shared__ float partial[WARP];
    const int N = pack_of<T, T>::length;
    int64_t n = k.sizes.inner;

    EACH_GROUP (row, rows_of(k.sizes), group) {
        const T *x = (const T *)k.x + row * n;
        float sum = 0.0f, squares = 0.0f, mean, v[N];

        EACH_PACK (i, n, group) {
            load_pack(x + i, n - i, v);
            UNROLL
            for (int e = 0; e < N; e++)
                sum += v[e];
        }
        mean = group_sum(sum, partial, group) / (float)n;
        EACH_PACK (i, n, group) {
            load_pack(x + i, n - i, v);
            UNROLL
            for (int e = 0; e < N; e++)
                squares += i + e < n ? (v[e] - mean) * (v[e] - mean) : 0.0f;
        }
        squares = group_sum(squares, partial, group);
        if (threadIdx.x % (unsigned)group == 0) {
            row_sums[2 * row] = mean;
            row_sums[2 * row + 1] = squares;
        }
    }
}

DEVICE void update(const fsdp__channel_norm_forward_args &k, int64_t c, double mean, double variance)
{
    double factor = k.cumulative ? 1.0 / (double)*k.batches : k.momentum;
    double old_mean = load_or(k.running_dtype, k.running_mean, c, 0.0f);
    double old_variance = load_or(k.running_dtype, k.running_var, c, 0.0f);

    store_any(k.running_dtype, k.running_mean, c, (float)(factor * mean + (1.0 - factor) * old_mean));
    store_any(k.running_dtype, k.running_var, c, (float)(factor * variance + (1.0 - factor) * old_variance));
}

/* Computes the mean and variance of sets from their rows: each row adds its own squares, and those of how far its mean
 * is off. */
static __global__ void measure_sets(GRID_CONSTANT(fsdp__channel_norm_forward_args) k, const float *row_sums)
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

static __global__ void take_running(GRID_CONSTANT(fsdp__channel_norm_forward_args) k)
{
    EACH_ITEM (c, k.sizes.channels) {
        double variance = load_or(k.running_dtype, k.running_var, c, 0.0f);

        k.mean[c] = load_or(k.running_dtype, k.running_mean, c, 0.0f);
        k.rstd[c] = (float)(1.0 / sqrt(variance + (double)k.eps));
    }
}

static __global__ void count_call(int64_t *batches)
{
    ++*batches;
}

template <class T>
static __global__ void scale_rows(GRID_CONSTANT(fsdp__channel_norm_forward_args) k, int group)
{
    const int N = pack_of<T, T>::length;
    int64_t n = k.sizes.inner;

    EACH_GROUP (row, rows_of(k.sizes), group) {
        int64_t set = set_of(k.sizes, row), c = row % k.sizes.channels;
        float scale = k.rstd[set] * load_or(k.sizes.weight_dtype, k.weight, c, 1.0f), mean = k.mean[set];
        float bias = load_or(k.sizes.weight_dtype, k.bias, c, 0.0f);

        EACH_PACK (i, n, group) {
            float v[N];

            load_pack((const T *)k.x + row * n + i, n - i, v);
            UNROLL
            for (int e = 0; e < N; e++)
                v[e] = (v[e] - mean) * scale + bias;
            store_pack((T *)k.y + row * n + i, n - i, v);
        }
    }
}

ENTRY(channel_norm_forward, k)
{
    const char *name = "channel_norm_forward";
    unsigned set_blocks = blocks_for(sets_of(k->sizes), WARP);
    row_threads t = threads_of(k->sizes);
    float *row_sums;

    if (k->batches)
        FSDP_TRY(launch(stream, name, count_call, 1, 1, 0, k->batches));
    if (k->fixed) {
        FSDP_TRY(launch(stream, name, take_running, set_blocks, WARP, 0, *k));
    } else {
        row_sums = (float *)fsdp__stream_workspace(stream, (size_t)(2 * rows_of(k->sizes)) * sizeof *row_sums);
        if (!row_sums)
            return fsdp_last_status();
        EACH_FLOAT(k->sizes.dtype, T,
                   FSDP_TRY(launch(stream, name, measure_rows<T>, t.grid, t.block, 0, *k, t.group, row_sums)));
        FSDP_TRY(launch(stream, name, measure_sets, set_blocks, WARP, 0, *k, row_sums));
    }
    EACH_FLOAT(k->sizes.dtype, T, FSDP_TRY(launch(stream, name, scale_rows<T>, t.grid, t.block, 0, *k, t.group)));
    return FSDP_OK;
}

/* ---- backward ---- */

/* Computes each row's sums of dy and of dy times the normalised x. */
template <class T>
static __global__ void sum_rows(GRID_CONSTANT(fsdp__channel_norm_backward_args) k, int group, float *row_sums)
{
    __shared__ float partial[2 * WARP];
    const int N = pack_of<T, T>::length;
    int64_t n = k.sizes.inner;

    EACH_GROUP (row, rows_of(k.sizes), group) {
        int64_t set = set_of(k.sizes, row);
        float mean = k.mean[set], sums[2] = {0.0f, 0.0f};

        EACH_PACK (i, n, group) {
            float x[N], dy[N];

            load_pack((const T *)k.x + row * n + i, n - i, x);
            load_pack((const T *)k.dy + row * n + i, n - i, dy);
            UNROLL
            for (int e = 0; e < N; e++) {
                sums[0] += dy[e];
                sums[1] += dy[e] * (x[e] - mean); /* behind the end dy is 0 */
            }
        }
        group_sums(sums, partial, group);
        if (threadIdx.x % (unsigned)group == 0) {
            row_sums[2 * row] = sums[0];
            row_sums[2 * row + 1] = sums[1] * k.rstd[set];
        }
    }
}

DEVICE void add_to(fsdp_dtype dtype, void *to, int64_t i, bool accumulate, double sum)
{
    if (to)
        store_any(dtype, to, i, (float)(sum + (accumulate ? (double)load_any(dtype, to, i) : 0.0)));
}

/* Computes the gradients of weight and bias, over the images. */
static __global__ void sum_channels(GRID_CONSTANT(fsdp__channel_norm_backward_args) k, const float *row_sums)
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
static __global__ void sum_sets(GRID_CONSTANT(fsdp__channel_norm_backward_args) k, const float *row_sums, float *terms)
{
    double count = (double)(rows_of_set(k.sizes) * k.sizes.inner);

    EACH_ITEM (set, sets_of(k.sizes)) {
        double sum = 0.0, dot = 0.0;

        for (int64_t i = 0; i < rows_of_set(k.sizes) && !k.fixed; i++) {
            int64_t row = row_of(k.sizes, set, i);
            double weight = load_or(k.sizes.weight_dtype, k.weight, row % k.sizes.channels, 1.0f);

            sum += weight * (double)row_sums[2 * row];
            dot += weight * (double)row_sums[2 * row + 1];
        }
        terms[2 * set] = (float)(sum / count);
        terms[2 * set + 1] = (float)(dot / count);
    }
}

/* Computes dx [+]= rstd (weight dy - terms[0] - normalised x terms[1]). */
template <class T>
static __global__ void spread_rows(GRID_CONSTANT(fsdp__channel_norm_backward_args) k, int group, const float *terms)
{
    const int N = pack_of<T, T>::length;
    int64_t n = k.sizes.inner;

    EACH_GROUP (row, rows_of(k.sizes), group) {
        T *dx = (T *)k.dx + row * n;
        int64_t set = set_of(k.sizes, row);
        float rstd = k.rstd[set], mean = k.mean[set], slope = rstd * rstd * terms[2 * set + 1];
        float factor = rstd * load_or(k.sizes.weight_dtype, k.weight, row % k.sizes.channels, 1.0f);
        float shift = rstd * terms[2 * set];

        EACH_PACK (i, n, group) {
            float x[N], dy[N], old[N];

            load_pack((const T *)k.x + row * n + i, n - i, x);
            load_pack((const T *)k.dy + row * n + i, n - i, dy);
            load_pack(dx + i, k.accumulate ? n - i : 0, old);
            UNROLL
            for (int e = 0; e < N; e++)
                x[e] = old[e] + dy[e] * factor - shift - (x[e] - mean) * slope;
            store_pack(dx + i, n - i, x);
        }
    }
}

ENTRY(channel_norm_backward, k)
{
    const char *name = "channel_norm_backward";
    int64_t rows = rows_of(k->sizes), sets = sets_of(k->sizes);
    float *row_sums = (float *)fsdp__stream_workspace(stream, (size_t)(2 * rows + 2 * sets) * sizeof *row_sums);
    float *terms = row_sums + 2 * rows;
    row_threads t = threads_of(k->sizes);

    if (!row_sums)
        return fsdp_last_status();
    EACH_FLOAT(k->sizes.dtype, T,
               FSDP_TRY(launch(stream, name, sum_rows<T>, t.grid, t.block, 0, *k, t.group, row_sums)));
    if (k->dweight || k->dbias)
        FSDP_TRY(launch(stream, name, sum_channels, blocks_for(k->sizes.channels, WARP), WARP, 0, *k, row_sums));
    if (!k->dx)
        return FSDP_OK;
    FSDP_TRY(launch(stream, name, sum_sets, blocks_for(sets, WARP), WARP, 0, *k, row_sums, terms));
    EACH_FLOAT(k->sizes.dtype, T,
               FSDP_TRY(launch(stream, name, spread_rows<T>, t.grid, t.block, 0, *k, t.group, terms)));
    return FSDP_OK;
}
