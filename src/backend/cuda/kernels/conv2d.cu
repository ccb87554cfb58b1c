/* conv2d.cu - convolutions as products of matrices (tile.cuh), whose elements are found in the images when they are
 * read. Each group is a product of its own:
 *     forward   y (channels, places of y)     = weight (channels, taps) x x (taps, places of y)
 *     input     dx (channels, places of x)    = weight (channels, taps) x dy (taps, places of x)
 *     weight    dweight (channels of y, taps) = dy (channels, places of y) x x (places of y, taps)
 * A place is an image, a row and a column; a tap is a channel on the other side, a row and a column of the kernel. The
 * gradient of the weight is summed in panels of places, and then over the panels: how many depends on the sizes alone.
 */
#include "backend/cuda/kernels/tile.cuh"

enum {
    PANEL = 4096,            /* places, at least */
    PARTIAL_BYTES = 64 << 20 /* sums of panels, at most, if there are several */
};

typedef fsdp__conv2d_sizes sizes;

/* Holds an index of (first, height, width), taken apart. */
struct place {
    int64_t first, row, col;
};

DEVICE place place_of(int64_t i, int64_t height, int64_t width)
{
    return {i / (height * width), i / width % height, i % width};
}

HOST_DEVICE int64_t taps_of(const sizes &s, int64_t channels)
{
    return channels / s.groups * s.kernel_height * s.kernel_width;
}

/* Lists what all operands have beside their elements: the matrix they are found in, of `sides` rows or columns in a
 * group. A deep one has neighbours in memory along the sum. */
#define OPERAND(is_deep)                                                                    \
    const T *data;                                                                          \
    const sizes &s;                                                                         \
    int64_t group, sides;                                                                   \
    static constexpr int AT_ONCE = 1;                                                       \
    DEVICE bool deep() const                                                                \
    {                                                                                       \
        return is_deep;                                                                     \
    }                                                                                       \
    DEVICE void read(int64_t i0, int64_t p0, int64_t end, float4(*slice)[TILE_PITCH]) const \
    {                                                                                       \
        read_slice(*this, i0, p0, end, slice);                                              \
    }

/* Reads the weight as (channels of y, taps of x). */
template <class T>
struct weight_rows {
    OPERAND(true)
    DEVICE float get(int64_t i, int64_t p) const
    {
        return load(data, (group * sides + i) * taps_of(s, s.in) + p);
    }
};

/* Reads the weight as (channels of x, taps of y). */
template <class T>
struct weight_cols {
    OPERAND(true)
    DEVICE float get(int64_t i, int64_t p) const
    {
        int64_t area = s.kernel_height * s.kernel_width, channel = group * (s.out / s.groups) + p / area;

        return load(data, (channel * sides + i) * area + p % area);
    }
};

/* Returns the element of x that a tap on a place of y reads; 0 outside. */
template <class T>
DEVICE float x_at(const T *x, const sizes &s, int64_t group, place to, place tap)
{
    int64_t row = to.row * s.stride[0] - s.padding[0] + tap.row * s.dilation[0];
    int64_t col = to.col * s.stride[1] - s.padding[1] + tap.col * s.dilation[1];
    int64_t plane = to.first * s.in + group * (s.in / s.groups) + tap.first;

    if (row < 0 || row >= s.in_height || col < 0 || col >= s.in_width)
        return 0.0f;
    return load(x, (plane * s.in_height + row) * s.in_width + col);
}

/* Reads x as (places of y, taps). */
template <class T>
struct x_of_places {
    OPERAND(false)
    DEVICE float get(int64_t i, int64_t p) const
    {
        return x_at(data, s, group, place_of(i, s.out_height, s.out_width),
                    place_of(p, s.kernel_height, s.kernel_width));
    }
};

/* Reads x as (taps, places of y). */
template <class T>
struct x_of_taps {
    OPERAND(true)
    DEVICE float get(int64_t i, int64_t p) const
    {
        return x_at(data, s, group, place_of(p, s.out_height, s.out_width),
                    place_of(i, s.kernel_height, s.kernel_width));
    }
};

/* Returns the row of y whose window has row `at` of x at the tap; -1 if there is none. */
DEVICE int64_t window_at(int64_t at, int64_t tap, const sizes &s, int side, int64_t windows)
{
    int64_t from = at + s.padding[side] - tap * s.dilation[side], window = from / s.stride[side];

    return from >= 0 && window < windows && window * s.stride[side] == from ? window : -1;
}

/* Reads dy as (places of x, taps). */
template <class T>
struct dy_of_places {
    OPERAND(false)
    DEVICE float get(int64_t i, int64_t p) const
    {
        place to = place_of(i, s.in_height, s.in_width), tap = place_of(p, s.kernel_height, s.kernel_width);
        int64_t row = window_at(to.row, tap.row, s, 0, s.out_height);
        int64_t col = window_at(to.col, tap.col, s, 1, s.out_width);
        int64_t plane = to.first * s.out + group * (s.out / s.groups) + tap.first;

        return row < 0 || col < 0 ? 0.0f : load(data, (plane * s.out_height + row) * s.out_width + col);
    }
};

/* Reads dy as (channels, places of y). */
template <class T>
struct dy_of_channels {
    OPERAND(true)
    DEVICE float get(int64_t i, int64_t p) const
    {
        int64_t area = s.out_height * s.out_width;

        return load(data, (p / area * s.out + group * sides + i) * area + p % area);
    }
};

/* Runs `body` for each element of the thread's part that is in the matrix: row, col and sum. */
template <class Body>
DEVICE void each_of_part(const tile_part &part, int64_t i0, int64_t j0, int64_t rows, int64_t cols, Body body)
{
    for (int i = 0; i < TILE_PART; i++)
        for (int j = 0; j < TILE_PART; j++)
            if (i0 + tile_row() + i < rows && j0 + tile_col() + j < cols)
                body(i0 + tile_row() + i, j0 + tile_col() + j, part.sum[i][j]);
}

/* Describes the tile that a block has: of which group, panel and where. */
struct tile_place {
    int64_t group, panel, i0, j0;
};

DEVICE tile_place tile_at(int64_t tile, int64_t panels, int64_t rows, int64_t cols)
{
    int64_t across = tiles_of(cols), tiles = tiles_of(rows) * across, rest = tile / tiles;

    return {rest / panels, rest % panels, tile % tiles / across * TILE, tile % across * TILE};
}

static int64_t all_tiles(const sizes *s, int64_t panels, int64_t rows, int64_t cols)
{
    return s->groups * panels * tiles_of(rows) * tiles_of(cols);
}

template <class T>
static __global__ void __launch_bounds__(BLOCK) forward(GRID_CONSTANT(fsdp__conv2d_forward_args) k)
{
    const sizes &s = k.sizes;
    int64_t rows = s.out / s.groups, area = s.out_height * s.out_width, cols = s.batch * area;

    EACH_ROW (tile, s.groups * tiles_of(rows) * tiles_of(cols)) {
        tile_place at = tile_at(tile, 1, rows, cols);
        weight_rows<T> a = {(const T *)k.weight, s, at.group, rows};
        x_of_places<T> b = {(const T *)k.x, s, at.group, cols};
        tile_part part = tile_product(a, b, at.i0, at.j0, 0, taps_of(s, s.in));

        each_of_part(part, at.i0, at.j0, rows, cols, [&](int64_t row, int64_t col, float sum) {
            int64_t channel = at.group * rows + row;

            store((T *)k.y, (col / area * s.out + channel) * area + col % area,
                  sum + (k.bias ? load((const T *)k.bias, channel) : 0.0f));
        });
    }
}

template <class T>
static __global__ void __launch_bounds__(BLOCK) input_gradient(GRID_CONSTANT(fsdp__conv2d_input_args) k)
{
    const sizes &s = k.sizes;
    int64_t rows = s.in / s.groups, area = s.in_height * s.in_width, cols = s.batch * area;

    EACH_ROW (tile, s.groups * tiles_of(rows) * tiles_of(cols)) {
        tile_place at = tile_at(tile, 1, rows, cols);
        weight_cols<T> a = {(const T *)k.weight, s, at.group, rows};
        dy_of_places<T> b = {(const T *)k.dy, s, at.group, cols};
        tile_part part = tile_product(a, b, at.i0, at.j0, 0, taps_of(s, s.out));

        each_of_part(part, at.i0, at.j0, rows, cols, [&](int64_t row, int64_t col, float sum) {
            int64_t to = (col / area * s.in + at.group * rows + row) * area + col % area;

            store((T *)k.dx, to, k.accumulate ? load((const T *)k.dx, to) + sum : sum);
        });
    }
}

/* partial (panels, elements of the weight): the sums of panels of `depth` places. */
template <class T>
static __global__ void __launch_bounds__(BLOCK)
    weight_panels(GRID_CONSTANT(fsdp__conv2d_weight_args) k, float *partial, int64_t panels, int64_t depth)
{
    const sizes &s = k.sizes;
    int64_t rows = s.out / s.groups, cols = taps_of(s, s.in), places = s.batch * s.out_height * s.out_width;

    EACH_ROW (tile, s.groups * panels * tiles_of(rows) * tiles_of(cols)) {
        tile_place at = tile_at(tile, panels, rows, cols);
        dy_of_channels<T> a = {(const T *)k.dy, s, at.group, rows};
        x_of_taps<T> b = {(const T *)k.x, s, at.group, cols};
        int64_t begin = at.panel * depth, end = begin + depth < places ? begin + depth : places;
        tile_part part = tile_product(a, b, at.i0, at.j0, begin, end);
        float *to = partial + (at.panel * s.out + at.group * rows) * cols;

        each_of_part(part, at.i0, at.j0, rows, cols,
                     [&](int64_t row, int64_t col, float sum) { to[row * cols + col] = sum; });
    }
}

template <class T>
static __global__ void add_panels(const float *partial, int64_t panels, int64_t numel, T *dweight, bool accumulate)
{
    EACH_ITEM (i, numel) {
        float sum = accumulate ? load(dweight, i) : 0.0f;

        for (int64_t panel = 0; panel < panels; panel++)
            sum += partial[panel * numel + i];
        store(dweight, i, sum);
    }
}

ENTRY(conv2d_forward, k)
{
    const sizes *s = &k->sizes;
    int64_t tiles = all_tiles(s, 1, s->out / s->groups, s->batch * s->out_height * s->out_width);

    EACH_FLOAT(s->dtype, T, return launch(stream, "conv2d_forward", forward<T>, blocks_for(tiles, 1), BLOCK, 0, *k));
    return FSDP_OK;
}

ENTRY(conv2d_input, k)
{
    const sizes *s = &k->sizes;
    int64_t tiles = all_tiles(s, 1, s->in / s->groups, s->batch * s->in_height * s->in_width);

    EACH_FLOAT(s->dtype, T,
               return launch(stream, "conv2d_input", input_gradient<T>, blocks_for(tiles, 1), BLOCK, 0, *k));
    return FSDP_OK;
}

template <class T>
static fsdp_status weight_gradient(fsdp_stream *stream, const fsdp__conv2d_weight_args *k)
{
    const sizes *s = &k->sizes;
    int64_t taps = taps_of(*s, s->in), numel = s->out * taps, places = s->batch * s->out_height * s->out_width;
    int64_t most = FSDP__MAX(PARTIAL_BYTES / ((int64_t)sizeof(float) * numel), 1);
    int64_t panels = FSDP__MIN((places + PANEL - 1) / PANEL, most), depth = (places + panels - 1) / panels;
    float *partial = (float *)fsdp__stream_workspace(stream, (size_t)(panels * numel) * sizeof(float));

    if (!partial)
        return fsdp_last_status();
    FSDP_TRY(launch(stream, "conv2d_weight", weight_panels<T>,
                    blocks_for(all_tiles(s, panels, s->out / s->groups, taps), 1), BLOCK, 0, *k, partial, panels,
                    depth));
    return launch(stream, "conv2d_weight_sum", add_panels<T>, blocks_for(numel, BLOCK), BLOCK, 0, partial, panels,
                  numel, (T *)k->dweight, k->accumulate);
}

ENTRY(conv2d_weight, k)
{
    EACH_FLOAT(k->sizes.dtype, T, return weight_gradient<T>(stream, k));
    return FSDP_OK;
}
