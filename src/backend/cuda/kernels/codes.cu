/* codes.cu - weights in fewer bits. For gathers: e4m3 with one scale, or int8 with one scale for each block; the codes
 * and scales have the CPU's bits. Frozen ones, which are kept so: NF4, or int8 by rows. */
#include "backend/cuda/kernels/spans.cuh"

/* ---- the largest magnitude ---- */

static __global__ void clear_largest(GRID_CONSTANT(span_list<fsdp__span>) list)
{
    EACH_ITEM (i, list.count)
        *(float *)list.spans[i].dst = 0.0f;
}

template <class T>
static __global__ void find_largest(GRID_CONSTANT(span_list<fsdp__span>) list)
{
    chunk c = chunk_of_block(list);
    unsigned largest = chunk_largest((const T *)list.spans[c.span].src, c);

    if (threadIdx.x == 0)
        atomicMax((unsigned *)list.spans[c.span].dst, largest);
}

ENTRY(amax, k)
{
    span_lists<fsdp__span> lists = lists_of(k->spans, k->count);

    while (next_list(&lists)) {
        FSDP_TRY(launch(stream, "amax", clear_largest, 1, BLOCK, 0, lists.list));
        EACH_FLOAT(k->dtype, T, FSDP_TRY(launch(stream, "amax", find_largest<T>, lists.blocks, BLOCK, 0, lists.list)));
    }
    return FSDP_OK;
}

/* ---- e4m3 ---- */

template <class T>
static __global__ void encode_float8(GRID_CONSTANT(span_list<fsdp__coded_span>) list)
{
    const int N = pack_of<T, T>::length;
    chunk c = chunk_of_block(list);
    const fsdp__coded_span &s = list.spans[c.span];
    const T *values = (const T *)s.values;
    float scale = fsdp__float8_scale(*s.amax);

    if (s.keep && fsdp__float_bits(*s.scales) == fsdp__float_bits(scale))
        return;
    EACH_PACK (at, c, N) {
        float x[N];
        pack<uint8_t, N> codes;

        load_pack(values + at, c.end - at, x);
        UNROLL
        for (int i = 0; i < N; i++)
            codes.at[i] = fsdp__to_float8(x[i] * scale);
        put(s.codes + at, c.end - at, codes);
    }
}

/* Stores scales, after all blocks have compared them. */
static __global__ void store_scales(GRID_CONSTANT(span_list<fsdp__coded_span>) list)
{
    EACH_ITEM (i, list.count)
        *list.spans[i].scales = fsdp__float8_scale(*list.spans[i].amax);
}

/* ---- int8 ---- */

enum {
    LANE_CODES = FSDP__CODE_BLOCK / WARP /* codes of a block that a lane has */
};

/* Each warp codes one block of values after the other. */
template <class T>
static __global__ void encode_int8(GRID_CONSTANT(span_list<fsdp__coded_span>) list)
{
    chunk c = chunk_of_block(list);
    const fsdp__coded_span &s = list.spans[c.span];
    const T *values = (const T *)s.values;

    for (int64_t block = c.begin + threadIdx.x / WARP * FSDP__CODE_BLOCK; block < c.end;
         block += BLOCK / WARP * FSDP__CODE_BLOCK) {
        int64_t at = block + lane_of_warp() * LANE_CODES;
        float x[LANE_CODES], amax, inverse;
        pack<uint8_t, LANE_CODES> codes;
        unsigned largest = 0;
        bool none;

        load_pack(values + at, c.end - at, x);
        for (int i = 0; i < LANE_CODES; i++)
            largest = magnitude_bits(x[i]) > largest ? magnitude_bits(x[i]) : largest;
        amax = fsdp__bits_float(warp_largest(largest));
        none = amax < FSDP__SMALLEST_BLOCK;
        inverse = none ? 0.0f : 127.0f / amax;
        for (int i = 0; i < LANE_CODES; i++)
            codes.at[i] = fsdp__to_int8(x[i] * inverse);
        put(s.codes + at, c.end - at, codes);
        if (lane_of_warp() == 0)
            s.scales[block / FSDP__CODE_BLOCK] = none ? 0.0f : amax / 127.0f;
    }
}

ENTRY(quantize, k)
{
    span_lists<fsdp__coded_span> lists = lists_of(k->spans, k->count);

    while (next_list(&lists)) {
        if (k->code == FSDP__CODE_INT8) {
            EACH_FLOAT(k->dtype, T,
                       FSDP_TRY(launch(stream, "quantize", encode_int8<T>, lists.blocks, BLOCK, 0, lists.list)));
            continue;
        }
        EACH_FLOAT(k->dtype, T,
                   FSDP_TRY(launch(stream, "quantize", encode_float8<T>, lists.blocks, BLOCK, 0, lists.list)));
        FSDP_TRY(launch(stream, "quantize", store_scales, 1, BLOCK, 0, lists.list));
    }
    return FSDP_OK;
}

/* ---- dequantize ---- */

/* Says where a value lies. */
struct place {
    int64_t run, in_run;
};

DEVICE place place_of(const fsdp__coded_span &s, int64_t at)
{
    place p;

    if (((uint64_t)at | (uint64_t)s.run) >> 32 == 0) { /* a division of 32 bits takes a fraction of the time */
        p.run = (uint32_t)at / (uint32_t)s.run;
        p.in_run = (uint32_t)at % (uint32_t)s.run;
    } else {
        p.run = at / s.run;
        p.in_run = at % s.run;
    }
    return p;
}

template <class T>
static __global__ void decode(GRID_CONSTANT(span_list<fsdp__coded_span>) list, fsdp__code code)
{
    const int N = pack_of<T, T>::length;
    chunk c = chunk_of_block(list);
    const fsdp__coded_span &s = list.spans[c.span];
    T *values = (T *)s.values;

    EACH_PACK (at, c, N) {
        int64_t n = c.end - at < N ? c.end - at : N;
        place p = place_of(s, at);
        pack<uint8_t, N> codes = get<N>(s.codes + at, n);
        float x[N];

        if (code == FSDP__CODE_FLOAT8) {
            UNROLL
            for (int i = 0; i < N; i++)
                x[i] = fsdp__from_float8(codes.at[i]) / *s.scales;
        } else {
            UNROLL
            for (int i = 0; i < N; i++)
                x[i] = (float)(int8_t)codes.at[i] * s.scales[at / FSDP__CODE_BLOCK];
        }
        if (p.in_run + n <= s.run) {
            store_pack(values + p.run * s.stride + p.in_run, n, x);
            continue;
        }
        UNROLL
        for (int i = 0; i < N; i++) { /* runs end inside */
            if (i >= n)
                break;
            store(values, p.run * s.stride + p.in_run, x[i]);
            p.run += p.in_run + 1 == s.run;
            p.in_run = p.in_run + 1 == s.run ? 0 : p.in_run + 1;
        }
    }
}

ENTRY(dequantize, k)
{
    span_lists<fsdp__coded_span> lists = lists_of(k->spans, k->count);

    while (next_list(&lists)) {
        EACH_FLOAT(k->dtype, T,
                   FSDP_TRY(launch(stream, "dequantize", decode<T>, lists.blocks, BLOCK, 0, lists.list, k->code)));
    }
    return FSDP_OK;
}

/* ---- frozen weights ---- */

/* Returns the value of one code. NF4's levels are in shared memory, since each lane asks for another one. */
DEVICE float decoded(const uint8_t *codes, int64_t in_row, float scale, const float *levels)
{
    if (levels)
        return scale * levels[codes[in_row / 2] >> (in_row % 2 == 0 ? 4 : 0) & 15];
    return (float)(int8_t)codes[in_row] * scale * FSDP__INT8_STEP;
}

struct nf4_levels {
    float at[16];
};

/* Each thread decodes one pack of values after the other; a pack may have the end of a row in it. */
template <class T>
static __global__ void decode_rows(const fsdp__decode_weight_args k, const divisor by_row,
                                   GRID_CONSTANT(nf4_levels) nf4)
{
    const int N = pack_of<T, T>::length;
    __shared__ float levels[16];

    if (threadIdx.x < 16)
        levels[threadIdx.x] = nf4.at[threadIdx.x];
    __syncthreads();
    EACH_ITEM (item, (k.numel + N - 1) / N) {
        int64_t at = item * N, row = quotient(at, by_row), in_row = at - row * k.row_numel;
        float x[N];

        UNROLL
        for (int i = 0; i < N; i++) {
            const uint8_t *from = k.rows + row * k.row_bytes;

            x[i] = at + i < k.numel ? decoded(from + sizeof(float), in_row, *(const float *)from,
                                              k.code == FSDP__WEIGHT_NF4 ? levels : NULL)
                                    : 0.0f;
            row += in_row + 1 == k.row_numel;
            in_row = in_row + 1 == k.row_numel ? 0 : in_row + 1;
        }
        store_pack((T *)k.values + at, k.numel - at, x);
    }
}

ENTRY(decode_weight, k)
{
    const nf4_levels nf4 = {FSDP__NF4_LEVELS};

    if (k->numel == 0)
        return FSDP_OK;
    EACH_FLOAT(
        k->dtype, T,
        FSDP_TRY(launch(stream, "decode_weight", decode_rows<T>, blocks_for(k->numel, BLOCK * pack_of<T, T>::length),
                        BLOCK, 0, *k, divisor_of(k->row_numel, k->numel), nf4)));
    return FSDP_OK;
}
