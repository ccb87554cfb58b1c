/* pool.cu - max and average over windows of a plane, and their backward. */
#include "backend/cuda/kernels/pack.cuh"

/* Says where window `i` of a side begins and ends, and how many of its places count. */
struct window {
    int64_t first, end, step, counted;
};

DEVICE window window_of(const fsdp__pool_sizes &s, int side, int64_t i)
{
    int64_t size = s.in[side], results = s.out[side], outside;
    window w;

    if (s.kind == FSDP__POOL_ADAPTIVE) {
        w.step = 1;
        w.first = i * size / results;
        w.end = ((i + 1) * size + results - 1) / results;
        w.counted = w.end - w.first;
        return w;
    }
    w.step = s.dilation[side];
    w.first = i * s.stride[side] - s.padding[side];
    w.end = w.first + (s.kernel[side] - 1) * w.step + 1;
    outside = w.first < 0 ? (-w.first + w.step - 1) / w.step : 0;
    w.first += outside * w.step;
    w.end = w.end < size ? w.end : size;
    w.counted = s.count_padding ? s.kernel[side] : w.end > w.first ? w.end - w.first : 0;
    return w;
}

/* ---- forward: a thread for each result ---- */

/* The first maximum stays, and so does a NaN. */
template <class T>
DEVICE float maximum_of(const T *x, const fsdp__pool_sizes &s, const window &rows, const window &cols, int32_t *index)
{
    float top = -INFINITY;

    *index = -1;
    for (int64_t r = rows.first; r < rows.end; r += rows.step)
        for (int64_t c = cols.first; c < cols.end; c += cols.step) {
            float value = load(x, r * s.in[1] + c);
            bool more = value > top || value != value || *index < 0;

            top = more ? value : top;
            *index = more ? (int32_t)(r * s.in[1] + c) : *index;
        }
    return top;
}

template <class T>
DEVICE float mean_of(const T *x, const fsdp__pool_sizes &s, const window &rows, const window &cols)
{
    float sum = 0.0f;

    for (int64_t r = rows.first; r < rows.end; r += rows.step)
        for (int64_t c = cols.first; c < cols.end; c += cols.step)
            sum += load(x, r * s.in[1] + c);
    return sum / (float)(rows.counted * cols.counted);
}

template <class T>
static __global__ void pool(GRID_CONSTANT(fsdp__pool_forward_args) k, const divisor by_width, const divisor by_height)
{
    const fsdp__pool_sizes &s = k.sizes;

    EACH_ITEM (at, s.planes * s.out[0] * s.out[1]) {
        int64_t line = quotient(at, by_width), plane = quotient(line, by_height);
        const T *x = (const T *)k.x + plane * s.in[0] * s.in[1];
        window rows = window_of(s, 0, line - plane * s.out[0]), cols = window_of(s, 1, at - line * s.out[1]);
        int32_t index;

        if (s.kind != FSDP__POOL_MAX) {
            store((T *)k.y, at, mean_of(x, s, rows, cols));
            continue;
        }
        store((T *)k.y, at, maximum_of(x, s, rows, cols, &index));
        if (k.index)
            k.index[at] = index;
    }
}

ENTRY(pool_forward, k)
{
    int64_t lines = k->sizes.planes * k->sizes.out[0], results = lines * k->sizes.out[1];

    EACH_FLOAT(k->sizes.dtype, T,
               FSDP_TRY(launch(stream, "pool_forward", pool<T>, blocks_for(results, BLOCK), BLOCK, 0, *k,
                               divisor_of(k->sizes.out[1], results), divisor_of(k->sizes.out[0], lines))));
    return FSDP_OK;
}

/* ---- backward of a mean: a thread for each element, which asks the windows that it is in ---- */

/* Finds the windows [*first, *end) of a side that contain a place. */
DEVICE void windows_with(const fsdp__pool_sizes &s, int side, int64_t place, int64_t *first, int64_t *end)
{
    int64_t size = s.in[side], results = s.out[side], from = place + s.padding[side] - s.kernel[side] + 1;

    if (s.kind == FSDP__POOL_ADAPTIVE) {
        *first = place * results / size;
        *end = ((place + 1) * results + size - 1) / size;
        return;
    }
    *first = from > 0 ? (from + s.stride[side] - 1) / s.stride[side] : 0;
    *end = (place + s.padding[side]) / s.stride[side] + 1;
    *end = *end < results ? *end : results;
}

template <class T>
static __global__ void spread_means(GRID_CONSTANT(fsdp__pool_backward_args) k, const divisor by_width,
                                    const divisor by_height)
{
    const fsdp__pool_sizes &s = k.sizes;

    EACH_ITEM (at, s.planes * s.in[0] * s.in[1]) {
        int64_t line = quotient(at, by_width), plane = quotient(line, by_height), row, row_end, first_col, col_end;
        const T *dy = (const T *)k.dy + plane * s.out[0] * s.out[1];
        float sum = 0.0f;

        windows_with(s, 0, line - plane * s.in[0], &row, &row_end);
        windows_with(s, 1, at - line * s.in[1], &first_col, &col_end);
        for (; row < row_end; row++) {
            int64_t counted = window_of(s, 0, row).counted;

            for (int64_t col = first_col; col < col_end; col++)
                sum += load(dy, row * s.out[1] + col) / (float)(counted * window_of(s, 1, col).counted);
        }
        store((T *)k.dx, at, k.accumulate ? load((T *)k.dx, at) + sum : sum);
    }
}

static fsdp_status means_backward(fsdp_stream *stream, const fsdp__pool_backward_args *k)
{
    int64_t lines = k->sizes.planes * k->sizes.in[0], numel = lines * k->sizes.in[1];
    divisor by_width = divisor_of(k->sizes.in[1], numel), by_height = divisor_of(k->sizes.in[0], lines);

    EACH_FLOAT(k->sizes.dtype, T,
               FSDP_TRY(launch(stream, "pool_backward", spread_means<T>, blocks_for(numel, BLOCK), BLOCK, 0, *k,
                               by_width, by_height)));
    return FSDP_OK;
}

/* ---- backward of a maximum: a warp for each plane, which takes the results in order ---- */

enum {
    MOST_PLANES = 2048 /* that have scratch at the same time */
};

/* Adds a warp's numbers to the places that they name, those for one place by the order of the lanes. */
DEVICE void add_in_order(float *sum, int32_t index, float x)
{
    int before = 0; /* lanes of the same index */

    for (int lane = 0; lane < WARP; lane++) {
        int32_t other = __shfl_sync(ALL_LANES, index, lane);

        before += other == index && lane < lane_of_warp();
    }
    for (int turn = 0; __any_sync(ALL_LANES, index >= 0 && before >= turn); turn++) {
        if (index >= 0 && before == turn)
            sum[index] += x;
        __syncwarp();
    }
}

template <class T>
static __global__ void spread_maxima(GRID_CONSTANT(fsdp__pool_backward_args) k, float *planes)
{
    const fsdp__pool_sizes &s = k.sizes;
    int64_t numel = s.in[0] * s.in[1], results = s.out[0] * s.out[1];
    float *sum = planes + blockIdx.x * numel;

    EACH_ROW (plane, s.planes) {
        for (int64_t i = threadIdx.x; i < numel; i += WARP)
            sum[i] = 0.0f;
        __syncwarp();
        for (int64_t first = 0; first < results; first += WARP) {
            int64_t i = first + threadIdx.x, at = plane * results + i;

            add_in_order(sum, i < results ? k.index[at] : -1, i < results ? load((const T *)k.dy, at) : 0.0f);
        }
        for (int64_t i = threadIdx.x; i < numel; i += WARP) {
            int64_t at = plane * numel + i;

            store((T *)k.dx, at, k.accumulate ? load((T *)k.dx, at) + sum[i] : sum[i]);
        }
        __syncwarp();
    }
}

ENTRY(pool_backward, k)
{
    int64_t numel = k->sizes.in[0] * k->sizes.in[1];
    int64_t planes = k->sizes.planes < MOST_PLANES ? k->sizes.planes : (int64_t)MOST_PLANES;
    float *sums;

    if (k->sizes.kind != FSDP__POOL_MAX)
        return means_backward(stream, k);
    sums = (float *)fsdp__stream_workspace(stream, (size_t)(planes * numel) * sizeof *sums + 1);
    if (!sums)
        return fsdp_last_status();
    EACH_FLOAT(k->sizes.dtype, T,
               FSDP_TRY(launch(stream, "pool_backward", spread_maxima<T>, (unsigned)planes, WARP, 0, *k, sums)));
    return FSDP_OK;
}
