/* random.cu - Philox draws by element index, bit for bit those of base/rng.h, and dropout by them. */
#include "backend/cuda/kernels/pack.cuh"

struct words {
    uint32_t at[4];
};

/* Computes the words of a counter. */
DEVICE words philox(uint64_t key, uint64_t counter)
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

    UNROLL
    for (int round = 0; round < 10; round++) {
        uint32_t high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        uint32_t high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;

        c0 = high1 ^ c1 ^ k0;
        c2 = high0 ^ c3 ^ k1;
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return words{{c0, c1, c2, c3}};
}

DEVICE float uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

/* Replaces draws by a counter's normal ones: Box-Muller, the logarithm's argument is in (0, 1]. */
DEVICE void normals(const words &w, float *draws)
{
    UNROLL
    for (int j = 0; j < 4; j += 2) {
        float radius = sqrtf(-2.0f * logf((float)w.at[j] * 0x1p-32f + 0x1p-33f)), sine, cosine;

        sincospif(2.0f * uniform(w.at[j + 1]), &sine, &cosine);
        draws[j] = radius * cosine;
        draws[j + 1] = radius * sine;
    }
}

struct draw_args {
    uint64_t key, offset;
    int64_t numel;
    bool aligned; /* every pack's address, where offset begins a counter */
};

/* Thread `item` takes N elements from this one on: whole counters, so it may be negative. */
DEVICE int64_t first_element(const draw_args &k, int64_t item, int n)
{
    return item * n - (int64_t)(k.offset % 4);
}

template <int N, bool NORMAL>
DEVICE void draw(const draw_args &k, int64_t first, float *draws)
{
    UNROLL
    for (int e = 0; e < N; e += 4) {
        words w = philox(k.key, (k.offset + (uint64_t)(first + e)) / 4);

        if (NORMAL) {
            normals(w, draws + e);
        } else {
            UNROLL
            for (int j = 0; j < 4; j++)
                draws[e + j] = uniform(w.at[j]);
        }
    }
}

static draw_args draws_of(uint64_t key, uint64_t offset, int64_t numel, const void *x, const void *y)
{
    return draw_args{key, offset, numel, offset % 4 == 0 && is_aligned(x, 0) && is_aligned(y, 0)};
}

static unsigned draw_blocks(const draw_args &k, int n)
{
    return k.numel == 0 ? 0 : blocks_for(k.numel + (int64_t)(k.offset % 4), (int64_t)BLOCK * n);
}

template <class T, bool NORMAL>
static __global__ void fill_random(T *dst, const draw_args k, float a, float b)
{
    const int n = ACCESS / (int)sizeof(T);

    EACH_ITEM (item, (k.numel + (int64_t)(k.offset % 4) + n - 1) / n) {
        int64_t first = first_element(k, item, n);
        bool whole = k.aligned && first + n <= k.numel;
        float draws[n];
        pack<T, n> y;

        draw<n, NORMAL>(k, first, draws);
        UNROLL
        for (int e = 0; e < n; e++)
            y.at[e] = from_float<T>(fmaf(b, draws[e], a));
        put<n>(dst, first, k.numel, whole, y);
    }
}

template <class T>
static fsdp_status random_elements(fsdp_stream *stream, const fsdp__random_args *k)
{
    draw_args draws = draws_of(k->key, k->offset, k->numel, k->dst, k->dst);

    return launch(stream, "random", k->distribution == FSDP__NORMAL ? fill_random<T, true> : fill_random<T, false>,
                  draw_blocks(draws, ACCESS / (int)sizeof(T)), BLOCK, 0, (T *)k->dst, draws, k->a, k->b);
}

FLOAT_ENTRY(random, random_elements)

template <class T>
static __global__ void drop(const T *x, T *y, const draw_args k, float p, float scale)
{
    const int n = ACCESS / (int)sizeof(T);

    EACH_ITEM (item, (k.numel + (int64_t)(k.offset % 4) + n - 1) / n) {
        int64_t first = first_element(k, item, n);
        bool whole = k.aligned && first + n <= k.numel;
        float draws[n];
        pack<T, n> v = get<n>(x, first, k.numel, whole);

        draw<n, false>(k, first, draws);
        UNROLL
        for (int e = 0; e < n; e++)
            v.at[e] = from_float<T>(draws[e] >= p ? to_float(v.at[e]) * scale : 0.0f);
        put<n>(y, first, k.numel, whole, v);
    }
}

ENTRY(dropout, k)
{
    draw_args draws = draws_of(k->key, k->offset, k->numel, k->x, k->y);
    float scale = k->p < 1.0f ? 1.0f / (1.0f - k->p) : 0.0f;

    EACH_FLOAT(k->dtype, T,
               return launch(stream, "dropout", drop<T>, draw_blocks(draws, ACCESS / (int)sizeof(T)), BLOCK, 0,
                             (const T *)k->x, (T *)k->y, draws, k->p, scale));
    return FSDP_OK;
}
