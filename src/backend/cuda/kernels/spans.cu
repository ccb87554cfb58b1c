/* spans.cu - many copies at once, and sums over ranks. */
#include "backend/cuda/kernels/halves.cuh"
#include "backend/cuda/kernels/numbers.cuh"
#include "backend/cuda/kernels/spans.cuh"

/* ---- copies ---- */

/* Elements of one type are moved as they are. */
template <class Unit>
static __global__ void move_spans(GRID_CONSTANT(span_list<fsdp__span>) list)
{
    const int N = pack_of<Unit, Unit>::length;
    chunk c = chunk_of_block(list);
    const Unit *src = (const Unit *)list.spans[c.span].src;
    Unit *dst = (Unit *)list.spans[c.span].dst;

    EACH_PACK (at, c, N) {
        put<N>(dst + at, c.end - at, get<N>(src + at, c.end - at));
    }
}

template <class S, class D>
static __global__ void convert_spans(GRID_CONSTANT(span_list<fsdp__span>) list)
{
    const int N = pack_of<S, D>::length;
    chunk c = chunk_of_block(list);
    const S *src = (const S *)list.spans[c.span].src;
    D *dst = (D *)list.spans[c.span].dst;

    EACH_PACK (at, c, N) {
        float x[N];

        load_pack(src + at, c.end - at, x);
        store_pack(dst + at, c.end - at, x);
    }
}

/* Converts between any dtypes. */
static __global__ void convert_numbers(GRID_CONSTANT(span_list<fsdp__span>) list, fsdp_dtype from, fsdp_dtype to)
{
    chunk c = chunk_of_block(list);

    EACH_PACK (at, c, 1)
        put_number(to, list.spans[c.span].dst, at, number_at(from, list.spans[c.span].src, at));
}

static fsdp_status cast_any(fsdp_stream *stream, const fsdp__cast_spans_args *k)
{
    span_lists<fsdp__span> lists = lists_of(k->spans, k->count);

    while (next_list(&lists))
        FSDP_TRY(launch(stream, "cast_spans", convert_numbers, lists.blocks, BLOCK, 0, lists.list, k->src_dtype,
                        k->dst_dtype));
    return FSDP_OK;
}

template <class Unit>
static fsdp_status move(fsdp_stream *stream, const fsdp__cast_spans_args *k)
{
    span_lists<fsdp__span> lists = lists_of(k->spans, k->count);

    while (next_list(&lists))
        FSDP_TRY(launch(stream, "cast_spans", move_spans<Unit>, lists.blocks, BLOCK, 0, lists.list));
    return FSDP_OK;
}

static fsdp_status convert(fsdp_stream *stream, const fsdp__cast_spans_args *k)
{
    span_lists<fsdp__span> lists = lists_of(k->spans, k->count);

    while (next_list(&lists))
        EACH_PAIR(k->src_dtype, k->dst_dtype, S, D,
                  FSDP_TRY(launch(stream, "cast_spans", convert_spans<S, D>, lists.blocks, BLOCK, 0, lists.list)));
    return FSDP_OK;
}

ENTRY(cast_spans, k)
{
    fsdp_dtype from = k->src_dtype, to = k->dst_dtype;

    if (from != to && is_float(from) && is_float(to))
        return convert(stream, k);
    if (from != to)
        return cast_any(stream, k);
    if (from == FSDP_I64)
        return move<uint64_t>(stream, k);
    if (from == FSDP_F32 || from == FSDP_I32)
        return move<uint32_t>(stream, k);
    return from == FSDP_BF16 || from == FSDP_F16 ? move<uint16_t>(stream, k) : move<uint8_t>(stream, k);
}

static __global__ void split_numbers(GRID_CONSTANT(span_list<fsdp__split_span>) list, bool join)
{
    chunk c = chunk_of_block(list);
    const fsdp__split_span &s = list.spans[c.span];

    EACH_PACK (at, c, HALVES) {
        int64_t n = c.end - at;
        float x[HALVES];

        if (join) {
            load_halves(s.high + at, s.low + at, n, x);
            store_pack(s.whole + at, n, x);
        } else {
            load_pack((const float *)s.whole + at, n, x);
            store_halves(s.high + at, s.low + at, n, x);
        }
    }
}

ENTRY(split_spans, k)
{
    span_lists<fsdp__split_span> lists = lists_of(k->spans, k->count);

    while (next_list(&lists))
        FSDP_TRY(launch(stream, "split_spans", split_numbers, lists.blocks, BLOCK, 0, lists.list, k->join));
    return FSDP_OK;
}

/* ---- over ranks ---- */

enum {
    RANKS_BY_VALUE = 480
};

/* Says where the ranks' elements are: in the arguments, or in scratch if there are too many. */
struct rank_sources {
    const void *const *in_scratch;
    const void *by_value[RANKS_BY_VALUE];
};

static __global__ void put_sources(GRID_CONSTANT(rank_sources) from, const void **to, int count)
{
    EACH_ITEM (i, count)
        to[i] = from.by_value[i];
}

static fsdp_status sources_of(fsdp_stream *stream, const fsdp__reduce_ranks_args *k, rank_sources *out)
{
    const void **scratch;

    memset(out, 0, sizeof *out);
    if (k->count <= RANKS_BY_VALUE) {
        memcpy(out->by_value, k->srcs, (size_t)k->count * sizeof *k->srcs);
        return FSDP_OK;
    }
    scratch = (const void **)fsdp__stream_workspace(stream, (size_t)k->count * sizeof *scratch);
    if (!scratch)
        return fsdp_last_status();
    for (int at = 0; at < k->count; at += RANKS_BY_VALUE) {
        int count = k->count - at < RANKS_BY_VALUE ? k->count - at : RANKS_BY_VALUE;

        memcpy(out->by_value, k->srcs + at, (size_t)count * sizeof *k->srcs);
        FSDP_TRY(launch(stream, "reduce_ranks", put_sources, 1, BLOCK, 0, *out, scratch + at, count));
    }
    out->in_scratch = scratch;
    return FSDP_OK;
}

DEVICE float combine(fsdp__rank_op op, float a, float b)
{
    if (op == FSDP__RANK_SUM)
        return a + b;
    if (op == FSDP__RANK_MAX)
        return b > a || b != b ? b : a;
    return b < a || b != b ? b : a;
}

/* sum = sum op x, or x where there is no sum yet. */
template <int N>
DEVICE void combine_pack(fsdp__rank_op op, bool *any, float (&sum)[N], const float (&x)[N])
{
    UNROLL
    for (int i = 0; i < N; i++)
        sum[i] = *any ? combine(op, sum[i], x[i]) : x[i];
    *any = true;
}

template <int N>
DEVICE void round_pack(fsdp_dtype dtype, float (&x)[N])
{
    UNROLL
    for (int i = 0; i < N; i++)
        x[i] = dtype == FSDP_BF16  ? to_float(from_float<bf16>(x[i]))
               : dtype == FSDP_F16 ? to_float(from_float<f16>(x[i]))
                                   : x[i];
}

/* Reduces a thread's elements of the ranks in [first, last) that are there, in their order; returns whether there is
 * any. Several are fetched at once. */
template <int N, class S>
DEVICE bool reduce_some(fsdp__rank_op op, const void *const *srcs, int first, int last, int64_t at, int64_t n,
                        float (&sum)[N])
{
    const int AHEAD = 4;
    bool any = false;

    for (; first < last; first += AHEAD) {
        float x[AHEAD][N];
        bool there[AHEAD];

        UNROLL
        for (int s = 0; s < AHEAD; s++) {
            there[s] = first + s < last && srcs[first + s];
            if (there[s])
                load_pack((const S *)srcs[first + s] + at, n, x[s]);
        }
        UNROLL
        for (int s = 0; s < AHEAD; s++)
            if (there[s])
                combine_pack(op, &any, sum, x[s]);
    }
    return any;
}

/* Each thread has a pack of elements. */
template <class S, class D>
static __global__ void reduce_floats(GRID_CONSTANT(rank_sources) from, GRID_CONSTANT(fsdp__reduce_ranks_args) k)
{
    const int N = pack_of<S, D>::length;
    const void *const *srcs = from.in_scratch ? from.in_scratch : from.by_value;
    int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;

    for (; at < k.numel; at += (int64_t)gridDim.x * blockDim.x * N) {
        int64_t n = k.numel - at;
        float sum[N], part[N];
        bool any = false;

        if (k.block <= 0)
            (void)reduce_some<N, S>(k.op, srcs, 0, k.count, at, n, sum);
        for (int s = 0; k.block > 0 && s < k.count; s += k.block) {
            int end = s + k.block < k.count ? s + k.block : k.count;

            if (!reduce_some<N, S>(k.op, srcs, s, end, at, n, part))
                continue;
            round_pack(k.block_dtype, part);
            combine_pack(k.op, &any, sum, part);
        }
        load_pack((const D *)k.dst + at, k.accumulate ? n : 0, part);
        UNROLL
        for (int i = 0; i < N; i++) {
            float quotient = k.divisor != 0.0f && k.divisor != 1.0f ? sum[i] / k.divisor : sum[i];

            part[i] = k.accumulate ? part[i] + quotient : quotient;
        }
        store_pack((D *)k.dst + at, n, part);
    }
}

template <class T>
static __global__ void reduce_integers(GRID_CONSTANT(rank_sources) from, GRID_CONSTANT(fsdp__reduce_ranks_args) k)
{
    const void *const *srcs = from.in_scratch ? from.in_scratch : from.by_value;

    EACH_ITEM (i, k.numel) {
        T *dst = (T *)k.dst + i;
        int64_t x = 0;
        bool any = false;

        for (int s = 0; s < k.count; s++) {
            int64_t v;

            if (!srcs[s])
                continue;
            v = ((const T *)srcs[s])[i];
            if (!any)
                x = v;
            else if (k.op == FSDP__RANK_SUM)
                x = (int64_t)((uint64_t)x + (uint64_t)v);
            else
                x = (k.op == FSDP__RANK_MAX ? v > x : v < x) ? v : x;
            any = true;
        }
        if (k.accumulate)
            x = (int64_t)((uint64_t)x + (uint64_t)*dst);
        *dst = (T)(k.dst_dtype == FSDP_BOOL ? x != 0 : x);
    }
}

template <class T>
static fsdp_status reduce_as(fsdp_stream *stream, const rank_sources &from, const fsdp__reduce_ranks_args *k)
{
    return launch(stream, "reduce_ranks", reduce_integers<T>, blocks_for(k->numel, BLOCK), BLOCK, 0, from, *k);
}

ENTRY(reduce_ranks, k)
{
    rank_sources from;

    FSDP_TRY(sources_of(stream, k, &from));
    if (k->src_dtype == FSDP_I64)
        return reduce_as<int64_t>(stream, from, k);
    if (k->src_dtype == FSDP_I32)
        return reduce_as<int32_t>(stream, from, k);
    if (k->src_dtype == FSDP_U8 || k->src_dtype == FSDP_BOOL)
        return reduce_as<uint8_t>(stream, from, k);
    EACH_PAIR(k->src_dtype, k->dst_dtype, S, D,
              return launch(stream, "reduce_ranks", reduce_floats<S, D>,
                            blocks_for(k->numel, BLOCK * pack_of<S, D>::length), BLOCK, 0, from, *k));
    return FSDP_OK;
}
