/* quantize.c - weights in fewer bits. For gathers: e4m3 with one scale, or int8 with one scale for each block. Frozen
 * ones, which are kept so: NF4, or int8 by rows. The loops are memory-bound. */
#include "backend/cpu/kernels/dtype.h"
#include "backend/cpu/kernels/spans.h"

/* ---- the largest magnitude ---- */

/* Returns the bits of the largest magnitude. Without the sign, bits have the order of the numbers, and those of a NaN
 * are the largest. */
FSDP__INLINE int32_t largest_bits(fsdp_dtype dtype, const void *x, int64_t n)
{
    int32_t largest = 0;

#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)(fsdp__float_bits(fsdp__load(dtype, x, i)) & 0x7fffffffu);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static int32_t largest_of(fsdp_dtype dtype, const void *x, int64_t n)
{
    int32_t largest = 0;

    FSDP__EACH_FLOAT(dtype, T, largest = largest_bits(T, x, n));
    return largest;
}

FSDP__KERNEL(amax, k)
{
    for (int64_t s = 0; s < k->count; s++) {
        const fsdp__span *span = &k->spans[s];
        int64_t pieces = fsdp__ceil_div(span->numel, FSDP__CHUNK);
        int32_t largest = 0;

#pragma omp parallel for schedule(static) reduction(max : largest) if (span->numel > FSDP__PARALLEL_MIN)
        for (int64_t p = 0; p < pieces; p++) {
            int64_t at = p * FSDP__CHUNK;
            int32_t bits =
                largest_of(k->dtype, fsdp__at(k->dtype, span->src, at), FSDP__MIN(span->numel - at, FSDP__CHUNK));
            largest = bits > largest ? bits : largest;
        }
        *(float *)span->dst = fsdp__bits_float((uint32_t)largest);
    }
    return FSDP_OK;
}

/* ---- e4m3 ---- */

static bool float8_is_kept(const fsdp__coded_span *s)
{
    return s->keep && fsdp__float_bits(*s->scales) == fsdp__float_bits(fsdp__float8_scale(*s->amax));
}

FSDP__INLINE void encode_float8(fsdp_dtype dtype, const void *restrict x, uint8_t *restrict codes, int64_t n,
                                float scale)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        codes[i] = fsdp__to_float8(fsdp__load(dtype, x, i) * scale);
}

FSDP__INLINE void decode_float8(fsdp_dtype dtype, const uint8_t *restrict codes, void *restrict x, int64_t n,
                                float scale)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        fsdp__store(dtype, x, i, fsdp__from_float8(codes[i]) / scale);
}

/* ---- int8 ---- */

FSDP__INLINE void encode_block(fsdp_dtype dtype, const void *restrict x, uint8_t *restrict codes, int64_t n,
                               float *scale)
{
    float amax = fsdp__bits_float((uint32_t)largest_bits(dtype, x, n)), inverse;
    bool none = amax < FSDP__SMALLEST_BLOCK;

    inverse = none ? 0.0f : 127.0f / amax;
    *scale = none ? 0.0f : amax / 127.0f;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        codes[i] = fsdp__to_int8(fsdp__load(dtype, x, i) * inverse);
}

FSDP__INLINE void decode_block(fsdp_dtype dtype, const uint8_t *restrict codes, void *restrict x, int64_t n,
                               float scale)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        fsdp__store(dtype, x, i, (float)(int8_t)codes[i] * scale);
}

/* ---- quantize ---- */

/* Counts in whole blocks: the cuts between threads are at multiples of them (spans.h). */
FSDP__SPAN_NUMEL(quantized_numel, fsdp__quantize_args,
                 fsdp__round_up(a->spans[span].runs * a->spans[span].run, FSDP__CODE_BLOCK))

static void quantize_float8(const fsdp__quantize_args *k, const fsdp__coded_span *s, int64_t begin, int64_t end)
{
    float scale = fsdp__float8_scale(*s->amax);

    if (float8_is_kept(s))
        return;
    FSDP__EACH_FLOAT(k->dtype, T,
                     encode_float8(T, fsdp__at(T, s->values, begin), s->codes + begin, end - begin, scale));
}

static void quantize_int8(const fsdp__quantize_args *k, const fsdp__coded_span *s, int64_t begin, int64_t end)
{
    for (int64_t at = begin; at < end; at += FSDP__CODE_BLOCK) {
        int64_t n = FSDP__MIN(end - at, FSDP__CODE_BLOCK);

        FSDP__EACH_FLOAT(
            k->dtype, T,
            encode_block(T, fsdp__at(T, s->values, at), s->codes + at, n, &s->scales[at / FSDP__CODE_BLOCK]));
    }
}

static void quantize_piece(const void *args, int64_t span, int64_t begin, int64_t end)
{
    const fsdp__quantize_args *k = args;
    const fsdp__coded_span *s = &k->spans[span];

    end = FSDP__MIN(end, s->runs * s->run);
    if (begin >= end)
        return;
    if (k->code == FSDP__CODE_FLOAT8)
        quantize_float8(k, s, begin, end);
    else
        quantize_int8(k, s, begin, end);
}

FSDP__KERNEL(quantize, k)
{
    fsdp__for_spans(k->count, quantized_numel, quantize_piece, k);
    for (int64_t s = 0; s < k->count && k->code == FSDP__CODE_FLOAT8; s++) /* all threads have compared it by now */
        *k->spans[s].scales = fsdp__float8_scale(*k->spans[s].amax);
    return FSDP_OK;
}

/* ---- dequantize ---- */

FSDP__SPAN_NUMEL(coded_numel, fsdp__dequantize_args, a->spans[span].runs * a->spans[span].run)

/* Decodes a part of one run, which is also inside one block if blocks have scales. */
static void dequantize_part(const fsdp__dequantize_args *k, const fsdp__coded_span *s, int64_t at, int64_t n)
{
    int64_t to = at / s->run * s->stride + at % s->run;

    if (k->code == FSDP__CODE_FLOAT8) {
        FSDP__EACH_FLOAT(k->dtype, T, decode_float8(T, s->codes + at, fsdp__at(T, s->values, to), n, *s->scales));
    } else {
        FSDP__EACH_FLOAT(
            k->dtype, T,
            decode_block(T, s->codes + at, fsdp__at(T, s->values, to), n, s->scales[at / FSDP__CODE_BLOCK]));
    }
}

static void dequantize_piece(const void *args, int64_t span, int64_t begin, int64_t end)
{
    const fsdp__dequantize_args *k = args;
    const fsdp__coded_span *s = &k->spans[span];

    while (begin < end) {
        int64_t n = FSDP__MIN(end, (begin / s->run + 1) * s->run) - begin;

        if (k->code == FSDP__CODE_INT8)
            n = FSDP__MIN(n, FSDP__CODE_BLOCK - begin % FSDP__CODE_BLOCK);
        dequantize_part(k, s, begin, n);
        begin += n;
    }
}

FSDP__KERNEL(dequantize, k)
{
    fsdp__for_spans(k->count, coded_numel, dequantize_piece, k);
    return FSDP_OK;
}

/* ---- frozen weights ---- */

FSDP__INLINE void decode_nf4(fsdp_dtype dtype, const uint8_t *codes, float scale, void *values, int64_t at, int64_t n)
{
    static const float levels[16] = FSDP__NF4_LEVELS;
    float scaled[16];

    for (int i = 0; i < 16; i++)
        scaled[i] = scale * levels[i];
    for (int64_t i = 0; i < n; i++)
        fsdp__store(dtype, values, at + i, scaled[codes[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15]);
}

FSDP__INLINE void decode_row(fsdp_dtype dtype, const uint8_t *codes, float scale, void *values, int64_t at, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        fsdp__store(dtype, values, at + i, (float)(int8_t)codes[i] * scale * FSDP__INT8_STEP);
}

static void decode_weight_rows(const void *args, int64_t begin, int64_t end)
{
    const fsdp__decode_weight_args *k = args;

    for (int64_t r = begin; r < end; r++) {
        const uint8_t *row = k->rows + r * k->row_bytes, *codes = row + sizeof(float);
        int64_t at = r * k->row_numel, n = FSDP__MIN(k->numel - at, k->row_numel);
        float scale;

        memcpy(&scale, row, sizeof scale);
        if (k->code == FSDP__WEIGHT_NF4) {
            FSDP__EACH_FLOAT(k->dtype, T, decode_nf4(T, codes, scale, k->values, at, n));
        } else {
            FSDP__EACH_FLOAT(k->dtype, T, decode_row(T, codes, scale, k->values, at, n));
        }
    }
}

FSDP__KERNEL(decode_weight, k)
{
    fsdp__for_ranges(fsdp__ceil_div(k->numel, k->row_numel), k->row_numel, decode_weight_rows, k);
    return FSDP_OK;
}
