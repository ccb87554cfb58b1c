/* index.cu - rows and elements by index: embeddings, gather and scatter.
 *
 * What is scattered is sorted by where it goes, in the order in which it lies; so all that goes to one place is
 * together, and whoever has the first of them adds, or stores, for the place. */
#include "backend/cuda/kernels/rows.cuh"
#include "backend/cuda/kernels/sort.cuh"

/* ---- gather ---- */

/* Returns the index of element (o, j, i). */
DEVICE int64_t index_at(const fsdp__index_map &m, int64_t o, int64_t j, int64_t i)
{
    return m.index[o * m.index_outer + j * m.index_along + i * m.index_inner];
}

/* Returns an index that is in range: one that is not was refused before, where it could be read. */
DEVICE int64_t clamped(const fsdp__index_map &m, int64_t index)
{
    return index < 0 ? 0 : index >= m.size ? m.size - 1 : index;
}

struct gather_plan {
    const void *x;
    void *y;
    fsdp__index_map map; /* inner: words of the kernel's type */
    divisor by_inner, by_count;
};

/* W is a word of an element's size; or of more, where a whole row has one index. */
template <class W>
static __global__ void gather_words(const __grid_constant__ gather_plan k)
{
    EACH_ITEM (at, k.map.outer * k.map.count * k.map.inner) {
        int64_t row = quotient(at, k.by_inner), i = at - row * k.map.inner;
        int64_t o = quotient(row, k.by_count), j = row - o * k.map.count;

        ((W *)k.y)[at] =
            ((const W *)k.x)[(o * k.map.size + clamped(k.map, index_at(k.map, o, j, i))) * k.map.inner + i];
    }
}

/* Expands CALL(W) for the word of so many bytes, as a statement. */
#define EACH_SIZE(bytes, CALL) \
    switch (bytes) {           \
    case 1:                    \
        CALL(uint8_t);         \
        break;                 \
    case 2:                    \
        CALL(uint16_t);        \
        break;                 \
    case 4:                    \
        CALL(uint32_t);        \
        break;                 \
    case 8:                    \
        CALL(uint64_t);        \
        break;                 \
    default:                   \
        CALL(uint4);           \
        break;                 \
    }

/* The size of the words in which rows of `inner` elements are copied: 16 bytes where addresses and sizes allow. */
static int64_t word_bytes(const void *x, const void *y, int64_t inner, int64_t size)
{
    return is_aligned(x, inner * size) && is_aligned(y, 0) ? (int64_t)ACCESS : size;
}

static int64_t size_of(fsdp_dtype dtype)
{
    return (int64_t)fsdp_dtype_size(dtype);
}

ENTRY(gather)
{
    const fsdp__gather_args *a = (const fsdp__gather_args *)args;
    int64_t size = size_of(a->dtype),
            bytes = a->map.index_inner == 0 ? word_bytes(a->x, a->y, a->map.inner, size) : size;
    gather_plan k = {a->x, a->y, a->map, {}, {}};
    int64_t items;

    k.map.inner = a->map.inner * size / bytes;
    items = k.map.outer * k.map.count * k.map.inner;
    if (items == 0)
        return FSDP_OK;
    k.by_inner = divisor_of(k.map.inner, items);
    k.by_count = divisor_of(k.map.count, items);
#define GATHER(W) FSDP_TRY(launch(stream, "gather", gather_words<W>, blocks_for(items, BLOCK), BLOCK, 0, k))
    EACH_SIZE(bytes, GATHER)
#undef GATHER
    return FSDP_OK;
}

/* ---- embeddings ---- */

struct lookup_plan {
    fsdp__embedding_forward_args args;
    int64_t words; /* of a row */
    divisor by_words;
};

template <class W>
static __global__ void look_up(const __grid_constant__ lookup_plan k)
{
    EACH_ITEM (at, k.args.rows * k.words) {
        int64_t row = quotient(at, k.by_words), i = at - row * k.words, id = k.args.ids[row];
        bool valid = id >= 0 && id < k.args.table_rows;

        ((W *)k.args.y)[at] = valid ? ((const W *)k.args.table)[id * k.words + i] : W();
    }
}

/* One block looks for the first id that is out of range. */
static __global__ __launch_bounds__(MOST_THREADS) void find_bad_id(const int32_t *ids, int64_t rows, int64_t table_rows,
                                                                   int64_t *bad_row)
{
    __shared__ int64_t least[WARP];
    int64_t bad = rows;

    EACH_ITEM (row, rows)
        if ((ids[row] < 0 || ids[row] >= table_rows) && row < bad)
            bad = row;
    bad = block_min(bad, least);
    if (threadIdx.x == 0 && bad < rows)
        *bad_row = bad;
}

ENTRY(embedding_forward)
{
    const fsdp__embedding_forward_args *a = (const fsdp__embedding_forward_args *)args;
    int64_t size = size_of(a->dtype), bytes = word_bytes(a->table, a->y, a->cols, size), items;
    lookup_plan k = {*a, a->cols * size / bytes, {}};

    if (a->bad_row)
        FSDP_TRY(launch(stream, "embedding_forward", find_bad_id, 1, MOST_THREADS, 0, a->ids, a->rows, a->table_rows,
                        a->bad_row));
    items = a->rows * k.words;
    if (items == 0)
        return FSDP_OK;
    k.by_words = divisor_of(k.words, items);
#define LOOK_UP(W) FSDP_TRY(launch(stream, "embedding_forward", look_up<W>, blocks_for(items, BLOCK), BLOCK, 0, k))
    EACH_SIZE(bytes, LOOK_UP)
#undef LOOK_UP
    return FSDP_OK;
}

/* ---- scatter ---- */

/* Items of x, `width` elements each, that go to places of y of the same width. An item is an element where each has an
 * index of its own, otherwise a row of `inner`. */
struct scatter_plan {
    const void *x;
    void *y;
    fsdp__index_map map;
    bool by_element;
    bool drop; /* an index that is out of range is left out, otherwise clamped */
    bool keep; /* what y holds */
    bool aligned;
    int64_t items, places, width, packs;
    int shift; /* words are place << shift | item */
    divisor by_packs;
    const uint64_t *words;
};

/* Returns where an item goes: `places` for nowhere. */
DEVICE int64_t place_of(const scatter_plan &k, int64_t item)
{
    const fsdp__index_map &m = k.map;
    int64_t row = k.by_element ? item / m.inner : item, i = k.by_element ? item % m.inner : 0;
    int64_t o = row / m.count, j = row % m.count;
    int64_t index = index_at(m, o, j, i), place = o * m.size + clamped(m, index);

    if (k.drop && index != clamped(m, index))
        return k.places;
    return k.by_element ? place * m.inner + i : place;
}

static __global__ void make_words(const __grid_constant__ scatter_plan k, uint64_t *words)
{
    EACH_ITEM (item, k.items)
        words[item] = (uint64_t)place_of(k, item) << k.shift | (uint64_t)item;
}

/* Whether the word at `at` goes to the same place. */
DEVICE bool goes_to(const scatter_plan &k, int64_t at, uint64_t place)
{
    return at >= 0 && at < k.items && k.words[at] >> k.shift == place;
}

/* Adds up a pack of all items of a place that begin at word `at`, in order, several of which are fetched at a time. */
template <int N, class X>
DEVICE void add_items(const scatter_plan &k, int64_t at, uint64_t place, int64_t col, float *sums)
{
    const int ahead = 4;
    const uint64_t item = ((uint64_t)1 << k.shift) - 1;
    bool more[ahead];

    do {
        pack<X, N> x[ahead];

        UNROLL
        for (int a = 0; a < ahead; a++) {
            more[a] = goes_to(k, at + a, place);
            x[a] = pack<X, N>();
            if (more[a])
                x[a] = get<N>((const X *)k.x + (int64_t)(k.words[at + a] & item) * k.width, col, k.width, k.aligned);
        }
        UNROLL
        for (int a = 0; a < ahead; a++)
            UNROLL
        for (int e = 0; e < N; e++)
            sums[e] += more[a] ? to_float(x[a].at[e]) : 0.0f;
        at += ahead;
    } while (more[ahead - 1]);
}

template <class X, class Y>
static __global__ void add_scattered(const __grid_constant__ scatter_plan k)
{
    const int n = ACCESS / (int)sizeof(X);

    EACH_ITEM (item, k.items * k.packs) {
        int64_t at = quotient(item, k.by_packs), col = (item - at * k.packs) * n;
        uint64_t place = k.words[at] >> k.shift;
        Y *y = (Y *)k.y + (int64_t)place * k.width;
        pack<Y, n> out = {};
        float sums[n] = {};

        if (place == (uint64_t)k.places || goes_to(k, at - 1, place))
            continue;
        if (k.keep)
            out = get<n>(y, col, k.width, k.aligned);
        UNROLL
        for (int e = 0; e < n; e++)
            sums[e] = to_float(out.at[e]);
        add_items<n, X>(k, at, place, col, sums);
        UNROLL
        for (int e = 0; e < n; e++)
            out.at[e] = from_float<Y>(sums[e]);
        put<n>(y, col, k.width, k.aligned, out);
    }
}

/* Stores the last item of each place. `width` counts words. */
template <class W>
static __global__ void store_scattered(const __grid_constant__ scatter_plan k)
{
    const uint64_t item = ((uint64_t)1 << k.shift) - 1;

    EACH_ITEM (word, k.items * k.packs) {
        int64_t at = quotient(word, k.by_packs), i = word - at * k.packs;
        uint64_t place = k.words[at] >> k.shift;

        if (place != (uint64_t)k.places && !goes_to(k, at + 1, place))
            ((W *)k.y)[(int64_t)place * k.width + i] = ((const W *)k.x)[(int64_t)(k.words[at] & item) * k.width + i];
    }
}

/* The number of bits of numbers up to `largest`. */
static int bits_of(int64_t largest)
{
    int bits = 0;

    while (largest >> bits)
        bits++;
    return bits;
}

/* Clears y if nothing of it is kept, sets the plan's sizes, and sorts its words. Without items there are no words. */
static fsdp_status sort_items(fsdp_stream *stream, const char *name, scatter_plan *k, int64_t y_size)
{
    const fsdp__index_map *m = &k->map;
    void *scratch;

    k->by_element = m->index_inner != 0;
    k->width = k->by_element ? 1 : m->inner;
    k->items = m->outer * m->count * (k->by_element ? m->inner : 1);
    k->places = m->outer * m->size * (k->by_element ? m->inner : 1);
    k->shift = bits_of(k->items);
    if (!k->keep && k->places * k->width > 0)
        FSDP_TRY(fsdp__cuda_set_bytes(stream, k->y, 0, (size_t)(k->places * k->width * y_size)));
    if (k->width == 0 || k->places == 0)
        k->items = 0;
    if (k->items == 0)
        return FSDP_OK;
    if (k->shift + bits_of(k->places) > 64)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "%s: %lld items to %lld places are too many to sort: scatter fewer at a time", name,
                         (long long)k->items, (long long)k->places);
    scratch = fsdp__stream_workspace(stream, fsdp__cuda_sort_bytes(k->items));
    if (!scratch)
        return fsdp_last_status();
    FSDP_TRY(launch(stream, name, make_words, blocks_for(k->items, BLOCK), BLOCK, 0, *k, (uint64_t *)scratch));
    return fsdp__cuda_sort(stream, name, scratch, k->items, k->shift, bits_of(k->places), &k->words);
}

template <class X>
static fsdp_status add_sorted(fsdp_stream *stream, const char *name, scatter_plan k, fsdp_dtype y_dtype)
{
    const int n = ACCESS / (int)sizeof(X);

    k.packs = (k.width + n - 1) / n;
    k.by_packs = divisor_of(k.packs, k.items * k.packs);
    k.aligned = is_aligned(k.x, k.width * (int64_t)sizeof(X)) && is_aligned(k.y, k.width * size_of(y_dtype));
#define ADD(Y) FSDP_TRY(launch(stream, name, add_scattered<X, Y>, blocks_for(k.items *k.packs, BLOCK), BLOCK, 0, k))
    EACH_FLOAT(y_dtype, ADD)
#undef ADD
    return FSDP_OK;
}

static fsdp_status scatter_added(fsdp_stream *stream, const char *name, scatter_plan k, fsdp_dtype x_dtype,
                                 fsdp_dtype y_dtype)
{
    FSDP_TRY(sort_items(stream, name, &k, size_of(y_dtype)));
    if (k.items == 0)
        return FSDP_OK;
#define SORTED(X) FSDP_TRY(add_sorted<X>(stream, name, k, y_dtype))
    EACH_FLOAT(x_dtype, SORTED)
#undef SORTED
    return FSDP_OK;
}

static fsdp_status scatter_stored(fsdp_stream *stream, scatter_plan k, int64_t size)
{
    int64_t bytes;

    FSDP_TRY(sort_items(stream, "scatter", &k, size));
    if (k.items == 0)
        return FSDP_OK;
    bytes = word_bytes(k.x, k.y, k.width, size);
    k.width = k.packs = k.width * size / bytes;
    k.by_packs = divisor_of(k.packs, k.items * k.packs);
#define STORE(W) \
    FSDP_TRY(launch(stream, "scatter", store_scattered<W>, blocks_for(k.items *k.packs, BLOCK), BLOCK, 0, k))
    EACH_SIZE(bytes, STORE)
#undef STORE
    return FSDP_OK;
}

ENTRY(scatter)
{
    const fsdp__scatter_args *a = (const fsdp__scatter_args *)args;
    scatter_plan k = {};

    k.x = a->x;
    k.y = a->y;
    k.map = a->map;
    k.keep = a->keep;
    return a->add ? scatter_added(stream, "scatter", k, a->dtype, a->dtype)
                  : scatter_stored(stream, k, size_of(a->dtype));
}

ENTRY(embedding_backward)
{
    const fsdp__embedding_backward_args *a = (const fsdp__embedding_backward_args *)args;
    scatter_plan k = {};

    k.x = a->dy;
    k.y = a->dtable;
    k.map.index = a->ids;
    k.map.index_along = 1;
    k.map.outer = 1;
    k.map.size = a->table_rows;
    k.map.inner = a->cols;
    k.map.count = a->rows;
    k.drop = true;
    k.keep = a->accumulate;
    return scatter_added(stream, "embedding_backward", k, a->dtype, a->dtable_dtype);
}
