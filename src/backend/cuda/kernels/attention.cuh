/* attention.cuh - what the kernels of attention share.
 *
 * [Note: attention by tiles]
 * A block owns a tile of queries (forward, dQ) or of keys (dK and dV) and walks over tiles of the other side, so each
 * result has one owner, who adds in the order of time: no atomics, and the same bits every time. The backward computes
 * the probabilities again, once for keys and once for queries. Query heads that share a key head are added up by the
 * owner of the keys, in their order.
 *
 * There are two ways to multiply. Elements of 16 bits in heads of up to 128 go through tensor cores
 * (attention_warps.cuh); f32 and wider heads through ordinary arithmetic (attention_tiles.cuh). A forward of one query
 * has a kernel of its own (attention_single.cuh). All take any stride and alignment.
 *
 * Where documents or a window hide the first keys, a walk begins at the first tile that somebody sees and ends at the
 * last. There are kernels of their own for that and for capped scores (NARROW), so that others do not pay. */
#pragma once

#include "backend/cuda/kernels/kernel.cuh"

#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f

namespace attention
{

/* Describes the heads of a batch element, or their gradients: where they begin, and what lies between rows. */
template <class T>
struct rows_of {
    T *data;
    int64_t stride;
};

HOST_DEVICE int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Returns by how many places the first query lies behind the first key. */
DEVICE int64_t ahead(const fsdp__attention_forward_args &k)
{
    return k.kv_time - k.q_time + k.lead;
}

/* Returns how many keys query t sees. */
DEVICE int64_t keys_seen(const fsdp__attention_forward_args &k, int64_t t)
{
    int64_t seen = k.causal ? at_most(t + ahead(k) + 1, k.kv_time) : k.kv_time;

    return seen > 0 ? seen : 0;
}

/* Returns the first query that sees key s, or q_time if there is none. */
DEVICE int64_t first_query(const fsdp__attention_forward_args &k, int64_t s)
{
    int64_t first = k.causal ? at_most(s - ahead(k), k.q_time) : 0;

    return first > 0 ? first : 0;
}

/* Returns whether there is more to do than to look at all keys, or at all up to the query. */
HOST_DEVICE bool is_narrow(const fsdp__attention_forward_args &k)
{
    return k.positions || k.window > 0 || k.softcap > 0.0f;
}

/* Returns the first key that query t of batch element b sees; for a t past the last query, what that one sees. */
DEVICE int64_t first_key(const fsdp__attention_forward_args &k, int64_t b, int64_t t)
{
    int64_t first = 0, start;

    t = at_most(t, k.q_time - 1);
    if (k.window > 0)
        first = t + ahead(k) + 1 - k.window;
    if (k.positions) {
        start = t + ahead(k) - k.positions[b * k.q_time + t];
        first = start > first ? start : first;
    }
    return first > 0 ? at_most(first, k.kv_time) : 0;
}

/* Returns the query behind the last that sees key s, at least `first`: first_key() never falls from query to query. */
DEVICE int64_t end_query(const fsdp__attention_forward_args &k, int64_t b, int64_t s, int64_t first)
{
    int64_t end = k.q_time;

    if (!k.positions && k.window == 0)
        return end;
    while (first < end) {
        int64_t t = first + (end - first) / 2;

        if (first_key(k, b, t) <= s)
            first = t + 1;
        else
            end = t;
    }
    return end;
}

/* Answers the same questions for kernels that are NARROW or not: the others have the answers of plain attention at
 * once. */
template <bool NARROW>
DEVICE int64_t first_seen(const fsdp__attention_forward_args &k, int64_t b, int64_t t)
{
    return NARROW ? first_key(k, b, t) : 0;
}

template <bool NARROW>
DEVICE int64_t end_seen(const fsdp__attention_forward_args &k, int64_t b, int64_t s, int64_t first)
{
    return NARROW ? end_query(k, b, s, first) : k.q_time;
}

/* Returns a score, made of the product of a query and a key. */
template <bool NARROW>
DEVICE float score_of(const fsdp__attention_forward_args &k, float product)
{
    float score = product * k.scale;

    return NARROW && k.softcap > 0.0f ? k.softcap * tanhf(score / k.softcap) : score;
}

/* Returns the derivative of a capped score by what it was before. */
template <bool NARROW>
DEVICE float slope_of(const fsdp__attention_forward_args &k, float score)
{
    return NARROW && k.softcap > 0.0f ? 1.0f - score / k.softcap * (score / k.softcap) : 1.0f;
}

/* Returns how many parts of `each` make up n. */
HOST_DEVICE int64_t parts(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

/* Says which tile of which head a block computes. */
struct place {
    int64_t tile, head, batch, column; /* the first of its columns */
};

/* Returns the place of a task: columns first, then heads, batch elements and tiles. */
template <int COLUMNS>
DEVICE place place_of(int64_t task, int64_t heads, int64_t batch, int64_t dim)
{
    int64_t slices = parts(dim, COLUMNS);
    place p;

    p.column = task % slices * COLUMNS;
    p.head = task / slices % heads;
    p.batch = task / slices / heads % batch;
    p.tile = task / slices / heads / batch;
    return p;
}

/* Returns where head h of batch element b begins at time t. */
template <class T>
DEVICE rows_of<T> rows_at(const void *base, int64_t b, int64_t batch, int64_t t, int64_t time, int64_t h, int64_t head)
{
    rows_of<T> rows = {(T *)base + b * batch + t * time + h * head, time};

    return rows;
}

/* Returns the rows from time t on. */
template <class T>
DEVICE rows_of<T> later(rows_of<T> rows, int64_t t)
{
    rows.data += t * rows.stride;
    return rows;
}

/* Returns whether rows of `dim` elements can be read in pieces of 16 bytes. */
template <class T>
DEVICE bool in_pieces(rows_of<T> rows, int64_t dim)
{
    return ((uint64_t)(uintptr_t)rows.data | (uint64_t)(rows.stride | dim) * sizeof(T)) % 16 == 0;
}

#define Q_ROWS(k, b, t, h) rows_at<const T>((k).q, b, (k).q_batch, t, (k).q_stride_time, h, (k).q_head)
#define K_ROWS(k, b, t, h) rows_at<const T>((k).k, b, (k).k_batch, t, (k).k_stride_time, h, (k).k_head)
#define V_ROWS(k, b, t, h) rows_at<const T>((k).v, b, (k).v_batch, t, (k).v_stride_time, h, (k).v_head)
#define OUT_ROWS(k, base, b, t, h) rows_at<const T>(base, b, (k).out_batch, t, (k).out_stride_time, h, (k).out_head)

} // namespace attention
