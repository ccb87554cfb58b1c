/* pack.cuh - several elements at a time, by accesses of 16 bytes where the addresses allow them; and functions of rows
 * of elements that are written so. */
#pragma once

#include "backend/cuda/kernels/intrinsics.cuh"

#ifdef FSDP_CUDASH
#define UNROLL
#define UNROLL_BY(times)
#else
#define UNROLL _Pragma("unroll")
#define UNROLL_BY(times) PRAGMA_OF(unroll times)
#define PRAGMA_OF(text) _Pragma(#text)
#endif

enum {
    ACCESS = 16 /* bytes of the widest access */
};

/* ---- division by a number that is the same for all threads ---- */

/* Dividends below 2^31 are multiplied by a reciprocal: a division of 64 bits takes a hundred instructions. */
struct divisor {
    int64_t value;
    uint32_t factor, shift;
    bool wide; /* a dividend may be larger */
};

/* `value` is at least 1 and divides numbers of at most `largest`. */
static inline divisor divisor_of(int64_t value, int64_t largest)
{
    divisor d = {value, 0, 0, largest > 0x7fffffff || value > 0x7fffffff};

    if (d.wide)
        return d;
    while (((int64_t)1 << d.shift) < value)
        d.shift++;
    d.factor = (uint32_t)(((((uint64_t)1 << d.shift) - (uint64_t)value) << 32) / (uint64_t)value + 1);
    return d;
}

DEVICE int64_t quotient(int64_t i, const divisor &d)
{
    if (d.wide)
        return i / d.value;
    return (__umulhi((uint32_t)i, d.factor) + (uint32_t)i) >> d.shift;
}

/* ---- packs ---- */

template <class T, int N>
struct alignas(sizeof(T) * N < ACCESS ? sizeof(T) * N : (size_t)ACCESS) [[gnu::may_alias]] pack {
    T at[N];
};

template <class T>
struct is_half_word {
    static constexpr bool value = false;
};
template <>
struct is_half_word<bf16> {
    static constexpr bool value = true;
};
template <>
struct is_half_word<f16> {
    static constexpr bool value = true;
};

/* Returns elements [i, i + N) of an array of n. Without `whole` they are fetched one by one, as the address may be no
 * pack's, and those outside the array come out as zeros. */
template <int N, class T>
DEVICE pack<T, N> get(const T *p, int64_t i, int64_t n, bool whole)
{
    pack<T, N> x;

    if (whole)
        return *(const pack<T, N> *)(p + i);
    UNROLL
    for (int e = 0; e < N; e++)
        x.at[e] = i + e >= 0 && i + e < n ? p[i + e] : T();
    return x;
}

/* Stores a pack that is aligned. */
template <int N, class T>
DEVICE void put_whole(T *p, const pack<T, N> &x)
{
    if constexpr (is_half_word<T>::value && sizeof x % ACCESS == 0) {
        uint32_t words[sizeof x / ACCESS][ACCESS / sizeof(uint32_t)];

        memcpy(words, &x, sizeof x);
        UNROLL
        for (int w = 0; w < (int)(sizeof x / ACCESS); w++)
            store_16((char *)p + w * ACCESS, words[w]);
    } else {
        *(pack<T, N> *)p = x;
    }
}

template <int N, class T>
DEVICE void put(T *p, int64_t i, int64_t n, bool whole, const pack<T, N> &x)
{
    if (whole) {
        put_whole(p + i, x);
        return;
    }
    UNROLL
    for (int e = 0; e < N; e++)
        if (i + e >= 0 && i + e < n)
            p[i + e] = x.at[e];
}

/* Rounds N numbers, those of 16 bits two by two. */
template <class T, int N>
DEVICE pack<T, N> rounded(const float (&x)[N])
{
    pack<T, N> y;

    if constexpr (is_half_word<T>::value && N % 2 == 0) {
        UNROLL
        for (int i = 0; i < N; i += 2) {
            uint32_t two = pack_two<T>(x[i], x[i + 1]);

            memcpy(&y.at[i], &two, sizeof two);
        }
    } else {
        UNROLL
        for (int i = 0; i < N; i++)
            y.at[i] = from_float<T>(x[i]);
    }
    return y;
}

/* Gives the elements of a word, as f32. */
template <class T>
DEVICE void unpack_word(uint32_t word, float *x)
{
    if constexpr (is_half_word<T>::value) {
        x[0] = to_float(T{(uint16_t)word});
        x[1] = to_float(T{(uint16_t)(word >> 16)});
    } else {
        x[0] = fsdp__bits_float(word);
    }
}

template <>
DEVICE void unpack_word<bf16>(uint32_t word, float *x)
{
    x[0] = fsdp__bits_float(word << 16);
    x[1] = fsdp__bits_float(word & 0xffff0000u);
}

/* Gives the elements of a pack, as f32. */
template <class T, int N>
DEVICE void unpack(const pack<T, N> &from, float (&x)[N])
{
    const int of_word = sizeof(uint32_t) / sizeof(T);

    if constexpr (N % of_word == 0) {
        uint32_t words[N / of_word];

        memcpy(words, &from, sizeof from);
        UNROLL
        for (int w = 0; w < N / of_word; w++)
            unpack_word<T>(words[w], x + w * of_word);
    } else {
        UNROLL
        for (int e = 0; e < N; e++)
            x[e] = to_float(from.at[e]);
    }
}

static inline bool is_aligned(const void *p, int64_t stride_bytes)
{
    return (uintptr_t)p % ACCESS == 0 && stride_bytes % ACCESS == 0;
}

/* ---- packs where every pointer may be aligned as it likes ---- */

/* Says how long a pack of the wider of two types is. */
template <class A, class B>
struct pack_of {
    enum {
        length = ACCESS / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B))
    };
};

/* Reads and writes elements [0, N) of what p points to, of which n are there. */
template <int N, class T>
DEVICE pack<T, N> get(const T *p, int64_t n)
{
    return get<N>(p, 0, n, n >= N && (uintptr_t)p % sizeof(pack<T, N>) == 0);
}

template <int N, class T>
DEVICE void put(T *p, int64_t n, const pack<T, N> &x)
{
    put<N>(p, 0, n, n >= N && (uintptr_t)p % sizeof(pack<T, N>) == 0, x);
}

/* Returns the same as f32. */
template <int N, class T>
DEVICE void load_pack(const T *p, int64_t n, float (&x)[N])
{
    pack<T, N> raw = get<N>(p, n);

    UNROLL
    for (int i = 0; i < N; i++)
        x[i] = to_float(raw.at[i]);
}

template <int N, class T>
DEVICE void store_pack(T *p, int64_t n, const float (&x)[N])
{
    put<N>(p, n, rounded<T>(x));
}

/* ---- functions of rows ---- */

/* Describes matrices of (rows, cols) elements, whose rows lie `..._row` elements apart (0: one row, repeated). An
 * output may be an input, or NULL. */
template <int INPUTS, int OUTPUTS>
struct rows_args {
    const void *in[INPUTS];
    void *out[OUTPUTS];
    int64_t in_row[INPUTS], out_row[OUTPUTS];
    int64_t rows, cols;
    int64_t packs = 0; /* of a row; this and what follows is set by launch_rows */
    divisor by_packs = {};
    bool aligned = false;
};

/* Each thread takes one pack of a row. F has `void operator()(const float *in, float *out) const` for one element. */
template <class T, class F, int INPUTS, int OUTPUTS>
static __global__ void map_rows(GRID_CONSTANT(rows_args<INPUTS, OUTPUTS>) k, const F f)
{
    const int n = ACCESS / (int)sizeof(T);

    EACH_ITEM (item, k.rows * k.packs) {
        int64_t row = quotient(item, k.by_packs), col = (item - row * k.packs) * n;
        bool whole = k.aligned && col + n <= k.cols;
        pack<T, n> in[INPUTS];
        float out[OUTPUTS][n];

        UNROLL
        for (int s = 0; s < INPUTS; s++)
            in[s] = get<n>((const T *)k.in[s] + row * k.in_row[s], col, k.cols, whole);
        UNROLL
        for (int e = 0; e < n; e++) {
            float x[INPUTS], y[OUTPUTS];

            UNROLL
            for (int s = 0; s < INPUTS; s++)
                x[s] = to_float(in[s].at[e]);
            f(x, y);
            UNROLL
            for (int s = 0; s < OUTPUTS; s++)
                out[s][e] = y[s];
        }
        UNROLL
        for (int s = 0; s < OUTPUTS; s++)
            if (k.out[s])
                put<n>((T *)k.out[s] + row * k.out_row[s], col, k.cols, whole, rounded<T>(out[s]));
    }
}

template <class T, class F, int INPUTS, int OUTPUTS>
static fsdp_status launch_rows(fsdp_stream *stream, const char *name, rows_args<INPUTS, OUTPUTS> k, F f)
{
    const int64_t size = (int64_t)sizeof(T), n = ACCESS / size;

    if (k.rows == 0 || k.cols == 0)
        return FSDP_OK;
    k.packs = (k.cols + n - 1) / n;
    k.by_packs = divisor_of(k.packs, k.rows * k.packs);
    k.aligned = true;
    for (int s = 0; s < INPUTS; s++)
        k.aligned = k.aligned && is_aligned(k.in[s], k.in_row[s] * size);
    for (int s = 0; s < OUTPUTS; s++)
        k.aligned = k.aligned && is_aligned(k.out[s], k.out_row[s] * size);
    return launch(stream, name, map_rows<T, F, INPUTS, OUTPUTS>, blocks_for(k.rows * k.packs, BLOCK), BLOCK, 0, k, f);
}
