/* random.c - Philox draws by element index, bit for bit those of base/rng.h, four at a time. */
#include <math.h>

#include "backend/cpu/kernels/dtype.h"

/* Counters made at a time, on the stack. Their words are stored word by word, so that the rounds are plain vector
 * loops. */
#define COUNTERS 256

typedef struct words {
    uint32_t w[4][COUNTERS];
} words;

/* Computes the words of counters first ... first + n - 1. */
static void philox(uint64_t key, uint64_t first, int64_t n, words *out)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        uint64_t counter = first + (uint64_t)i;
        uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
        uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

        for (int round = 0; round < 10; round++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;

            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        out->w[0][i] = c0;
        out->w[1][i] = c1;
        out->w[2][i] = c2;
        out->w[3][i] = c3;
    }
}

/* Computes draws for elements [4 first, 4 (first + n)) in element order. */
static void uniforms(const words *w, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < 4; j++)
            out[4 * i + j] = (float)(w->w[j][i] >> 8) * 0x1p-24f;
}

/* Computes standard normal draws by Box-Muller, with libm: the logarithm's argument is in (0, 1]. */
static void normals(const words *w, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++) {
        for (int j = 0; j < 4; j += 2) {
            float radius = sqrtf(-2.0f * logf((float)w->w[j][i] * 0x1p-32f + 0x1p-33f));
            float angle = 6.283185307179586f * ((float)(w->w[j + 1][i] >> 8) * 0x1p-24f);
            out[4 * i + j] = radius * cosf(angle);
            out[4 * i + j + 1] = radius * sinf(angle);
        }
    }
}

/* draw calls `use` with draws for elements [begin, end) of the stream that starts at `offset`. */
typedef void (*user)(const void *args, const float *draws, int64_t at, int64_t n);

static void draw(uint64_t key, uint64_t offset, bool normal, int64_t begin, int64_t end, user use, const void *args)
{
    words w;
    float draws[4 * COUNTERS];

    for (int64_t at = begin; at < end;) {
        uint64_t index = offset + (uint64_t)at, first = index / 4;
        int64_t skip = (int64_t)(index % 4), n = FSDP__MIN(end - at, 4 * COUNTERS - skip);
        int64_t counters = fsdp__ceil_div(skip + n, 4);

        philox(key, first, counters, &w);
        if (normal)
            normals(&w, counters, draws);
        else
            uniforms(&w, counters, draws);
        use(args, draws + skip, at, n);
        at += n;
    }
}

static void use_random(const void *args, const float *draws, int64_t at, int64_t n)
{
    const fsdp__random_args *k = args;
    float a = k->a, b = k->b;

    FSDP__EACH_FLOAT(k->dtype, T, for (int64_t i = 0; i < n; i++) fsdp__store(T, k->dst, at + i, a + b * draws[i]));
}

FSDP__RANGE_KERNEL(random, k, k->numel, 1)
{
    draw(k->key, k->offset, k->distribution == FSDP__NORMAL, begin, end, use_random, k);
}

static void use_dropout(const void *args, const float *draws, int64_t at, int64_t n)
{
    const fsdp__dropout_args *k = args;
    float p = k->p, scale = p < 1.0f ? 1.0f / (1.0f - p) : 0.0f;

    FSDP__EACH_FLOAT(k->dtype, T,
                     _Pragma("omp simd") for (int64_t i = 0; i < n; i++)
                         fsdp__store(T, k->y, at + i, draws[i] >= p ? fsdp__load(T, k->x, at + i) * scale : 0.0f));
}

FSDP__RANGE_KERNEL(dropout, k, k->numel, 1)
{
    draw(k->key, k->offset, false, begin, end, use_dropout, k);
}
