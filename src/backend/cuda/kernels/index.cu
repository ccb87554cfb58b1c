/* index.cu - rows and elements by index: embeddings, gather and scatter.
 *
 * What is scattered is sorted by where it goes, in the order in which it lies; so all that goes to one place is
 * together. Whoever has the last of it stores it; it is added up in chunks of one size, and then over chunks. */
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
static __global__ void gather_words(GRID_CONSTANT(gather_plan) k)
{
    EACH_ITEM (at, k.map.outer * k.map.count * k.map.inner) {
        int64_t row = quotient(at, k.by_inner), i = at - row * k.map.inner;
        int64_t o = quotient(row, k.by_count), j = row - o * k.map.count;

        ((W *)k.y)[at] =
            ((const W *)k.x)[(o * k.map.size + clamped(k.map, index_at(k.map, o, j, i))) * k.map.inner + i];
    }
}

/* Expands to a statement, the last argument, that calls the word of so many bytes W. */
#define EACH_SIZE(bytes, W, ...) \
    switch (bytes) {             \
    case 1: {                    \
        using W = uint8_t;       \
        __VA_ARGS__;             \
    } break;                     \
    case 2: {                    \
        using W = uint16_t;      \
        __VA_ARGS__;             \
    } break;                     \
    case 4: {                    \
        using W = uint32_t;      \
        __VA_ARGS__;             \
    } break;                     \
    case 8: {                    \
        using W = uint64_t;      \
        __VA_ARGS__;             \
    } break;                     \
    default: {                   \
        using W = uint4;         \
        __VA_ARGS__;             \
    } break;                     \
    }

/* Returns the size of the words in which rows of `inner` elements are copied: 16 bytes where addresses and sizes
 * allow. */
static int64_t word_bytes(const void *x, const void *y, int64_t inner, int64_t size)
{
    return is_aligned(x, inner * size) && is_aligned(y, 0) ? (int64_t)ACCESS : size;
}

static int64_t size_of(fsdp_dtype dtype)
{
    return (int64_t)fsdp_dtype_size(dtype);
}

ENTRY(gather, a)
{
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
    EACH_SIZE(bytes, W, FSDP_TRY(launch(stream, "gather", gather_words<W>, blocks_for(items, BLOCK), BLOCK, 0, k)));
    return FSDP_OK;
}

/* ---- embeddings ---- */

struct lookup_plan {
    fsdp__embedding_forward_args args;
    int64_t words; /* of a row */
    divisor by_words;
};

template <class W>
static __global__ void look_up(GRID_CONSTANT(lookup_plan) k)
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

ENTRY(embedding_forward, a)
{
    int64_t size = size_of(a->dtype), bytes = word_bytes(a->table, a->y, a->cols, size), items;
    lookup_plan k = {*a, a->cols * size / bytes, {}};

    if (a->bad_row)
        FSDP_TRY(launch(stream, "embedding_forward", find_bad_id, 1, MOST_THREADS, 0, a->ids, a->rows, a->table_rows,
                        a->bad_row));
    items = a->rows * k.words;
    if (items == 0)
        return FSDP_OK;
    k.by_words = divisor_of(k.words, items);
    EACH_SIZE(bytes, W,
              FSDP_TRY(launch(stream, "embedding_forward", look_up<W>, blocks_for(items, BLOCK), BLOCK, 0, k)));
    return FSDP_OK;
}

/* ---- scatter ---- */

enum {
    CHUNK = 32 /* sorted words that a thread adds up; a place may have many more, as a frequent token has */
};

/* Describes items of x, `width` elements each, that go to places of y of the same width. An item is an element where
 * each has an index of its own, otherwise a row of `inner`. */
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
    int64_t chunks, pack_length; /* of words; of elements */
    float *sums;                 /* (chunks, 2, packs, pack_length), see shared_sums() */
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

static __global__ void make_words(GRID_CONSTANT(scatter_plan) k, uint64_t *words)
{
    EACH_ITEM (item, k.items)
        words[item] = (uint64_t)place_of(k, item) << k.shift | (uint64_t)item;
}

/* Returns whether the word at `at` goes to the same place. */
DEVICE bool goes_to(const scatter_plan &k, int64_t at, uint64_t place)
{
    return at >= 0 && at < k.items && k.words[at] >> k.shift == place;
}

/* Adds a pack of sums to that of a place, or stores them there. */
template <int N, class Y>
DEVICE void add_to_place(const scatter_plan &k, uint64_t place, int64_t col, const float (&sums)[N])
{
    Y *y = (Y *)k.y + (int64_t)place * k.width;
    pack<Y, N> out = {};

    if (place == (uint64_t)k.places)
        return;
    if (k.keep)
        out = get<N>(y, col, k.width, k.aligned);
    UNROLL
    for (int e = 0; e < N; e++)
        out.at[e] = from_float<Y>(to_float(out.at[e]) + sums[e]);
    put<N>(y, col, k.width, k.aligned, out);
}

/* Returns where a chunk of words leaves the sums of a place that it shares with other chunks: one whose words began
 * before it, or one whose words go on behind it. */
DEVICE float *shared_sums(const scatter_plan &k, int64_t chunk, bool began_before, int64_t col)
{
    return k.sums + (2 * chunk + !began_before) * k.packs * k.pack_length + col;
}

/* Brings a chunk's sums of a place, whose words end before `end`, where they belong. */
template <int N, class Y>
DEVICE void leave_sums(const scatter_plan &k, int64_t chunk, int64_t end, uint64_t place, int64_t col, float (&sums)[N])
{
    bool began_before = goes_to(k, chunk * CHUNK - 1, place);

    if (began_before || goes_to(k, end, place)) {
        UNROLL
        for (int e = 0; e < N; e++)
            shared_sums(k, chunk, began_before, col)[e] = sums[e];
    } else {
        add_to_place<N, Y>(k, place, col, sums);
    }
    UNROLL
    for (int e = 0; e < N; e++)
        sums[e] = 0.0f;
}

/* A thread adds up a pack of the items of a chunk of words, in order, some of which are fetched at a time. */
template <class X, class Y>
static __global__ void add_chunks(GRID_CONSTANT(scatter_plan) k)
{
    const int n = ACCESS / (int)sizeof(X), ahead = 4;
    const uint64_t item = ((uint64_t)1 << k.shift) - 1;

    EACH_ITEM (work, k.chunks * k.packs) {
        int64_t chunk = quotient(work, k.by_packs), col = (work - chunk * k.packs) * n, at = chunk * CHUNK;
        int64_t end = FSDP__MIN(at + CHUNK, k.items);
        uint64_t place = k.words[at] >> k.shift;
        float sums[n] = {};

        for (; at < end; at += ahead) {
            uint64_t words[ahead];
            pack<X, n> x[ahead];

            UNROLL
            for (int a = 0; a < ahead; a++) {
                words[a] = k.words[at + a < end ? at + a : end - 1];
                x[a] = get<n>((const X *)k.x + (int64_t)(words[a] & item) * k.width, col, k.width, k.aligned);
            }
            UNROLL
            for (int a = 0; a < ahead; a++) {
                if (at + a < end && words[a] >> k.shift != place) {
                    leave_sums<n, Y>(k, chunk, at + a, place, col, sums);
                    place = words[a] >> k.shift;
                }
                UNROLL
                for (int e = 0; e < n; e++)
                    sums[e] += at + a < end ? to_float(x[a].at[e]) : 0.0f;
            }
        }
        leave_sums<n, Y>(k, chunk, end, place, col, sums);
    }
}

/* Adds up, chunk by chunk, what chunks have left of a place: whoever has the one in which its words begin. */
template <class X, class Y>
static __global__ void add_shared(GRID_CONSTANT(scatter_plan) k)
{
    const int n = ACCESS / (int)sizeof(X), ahead = 8;

    EACH_ITEM (work, k.chunks * k.packs) {
        int64_t chunk = quotient(work, k.by_packs), col = (work - chunk * k.packs) * n, next = (chunk + 1) * CHUNK;
        uint64_t place = k.words[FSDP__MIN(next, k.items) - 1] >> k.shift;
        float sums[n];

        if (!goes_to(k, next, place) || goes_to(k, chunk * CHUNK - 1, place))
            continue;
        UNROLL
        for (int e = 0; e < n; e++)
            sums[e] = shared_sums(k, chunk, false, col)[e];
        for (; goes_to(k, next, place); next += ahead * CHUNK) {
            float more[ahead][n];

            UNROLL
            for (int a = 0; a < ahead; a++)
                UNROLL
            for (int e = 0; e < n; e++)
                more[a][e] =
                    goes_to(k, next + a * CHUNK, place) ? shared_sums(k, next / CHUNK + a, true, col)[e] : 0.0f;
            UNROLL
            for (int a = 0; a < ahead; a++)
                UNROLL
            for (int e = 0; e < n; e++)
                sums[e] += more[a][e];
        }
        add_to_place<n, Y>(k, place, col, sums);
    }
}

/* Stores the last item of each place. `width` counts words. */
template <class W>
static __global__ void store_scattered(GRID_CONSTANT(scatter_plan) k)
{
    const uint64_t item = ((uint64_t)1 << k.shift) - 1;

    EACH_ITEM (word, k.items * k.packs) {
        int64_t at = quotient(word, k.by_packs), i = word - at * k.packs;
        uint64_t place = k.words[at] >> k.shift;

        if (place != (uint64_t)k.places && !goes_to(k, at + 1, place))
            ((W *)k.y)[(int64_t)place * k.width + i] = ((const W *)k.x)[(int64_t)(k.words[at] & item) * k.width + i];
    }
}

/* Returns how many bits numbers up to `largest` have. */
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
    size_t sort_bytes;
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
    k->chunks = (k->items + CHUNK - 1) / CHUNK;
    k->packs = k->pack_length > 0 ? (k->width + k->pack_length - 1) / k->pack_length : 0;
    sort_bytes = FSDP__ROUND_UP(fsdp__cuda_sort_bytes(k->items), ACCESS);
    scratch = fsdp__stream_workspace(stream,
                                     sort_bytes + (size_t)(2 * k->chunks * k->packs * k->pack_length) * sizeof(float));
    if (!scratch)
        return fsdp_last_status();
    k->sums = (float *)((char *)scratch + sort_bytes);
    FSDP_TRY(launch(stream, name, make_words, blocks_for(k->items, BLOCK), BLOCK, 0, *k, (uint64_t *)scratch));
    return fsdp__cuda_sort(stream, name, scratch, k->items, k->shift, bits_of(k->places), &k->words);
}

template <class X>
static fsdp_status add_sorted(fsdp_stream *stream, const char *name, scatter_plan k, fsdp_dtype y_dtype)
{
    unsigned blocks = blocks_for(k.chunks * k.packs, BLOCK);

    k.by_packs = divisor_of(k.packs, k.chunks * k.packs);
    k.aligned = is_aligned(k.x, k.width * (int64_t)sizeof(X)) && is_aligned(k.y, k.width * size_of(y_dtype));
#define ADD(Y)                                                             \
    FSDP_TRY(launch(stream, name, add_chunks<X, Y>, blocks, BLOCK, 0, k)); \
    FSDP_TRY(launch(stream, name, add_shared<X, Y>, blocks, BLOCK, 0, k))
    EACH_FLOAT(y_dtype, Y, ADD(Y));
#undef ADD
    return FSDP_OK;
}

static fsdp_status scatter_added(fsdp_stream *stream, const char *name, scatter_plan k, fsdp_dtype x_dtype,
                                 fsdp_dtype y_dtype)
{
    k.pack_length = ACCESS / size_of(x_dtype);
    FSDP_TRY(sort_items(stream, name, &k, size_of(y_dtype)));
    if (k.items == 0)
        return FSDP_OK;
    EACH_FLOAT(x_dtype, X, FSDP_TRY(add_sorted<X>(stream, name, k, y_dtype)));
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
    EACH_SIZE(
        bytes, W,
        FSDP_TRY(launch(stream, "scatter", store_scattered<W>, blocks_for(k.items * k.packs, BLOCK), BLOCK, 0, k)));
    return FSDP_OK;
}

ENTRY(scatter, a)
{
    scatter_plan k = {};

    k.x = a->x;
    k.y = a->y;
    k.map = a->map;
    k.keep = a->keep;
    return a->add ? scatter_added(stream, "scatter", k, a->dtype, a->dtype)
                  : scatter_stored(stream, k, size_of(a->dtype));
}

ENTRY(embedding_backward, a)
{
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
