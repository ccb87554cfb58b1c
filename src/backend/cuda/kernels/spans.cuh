/* spans.cuh - one launch over many pieces of memory. The host's table of spans travels by value, in lists as long as
 * the arguments of a launch may be; each span is cut into chunks of one size, and each block has one chunk. So large
 * and small spans fill the device evenly. */
#pragma once

#include "backend/cuda/kernels/pack.cuh"

enum {
    CHUNK = 8192,             /* elements; a multiple of FSDP__CODE_BLOCK */
    BYTE_ROWS = BLOCK / WARP, /* blocks of a byte span (FSDP__BYTE_BLOCK) that are one chunk: a warp has each */
    SPAN_LIST_BYTES = 3900,   /* of a short list */
    LONG_LIST_BYTES = 32400   /* of one that takes all arguments of a launch: it costs more to issue */
};

HOST_DEVICE int64_t numel_of(const fsdp__span &s)
{
    return s.numel;
}

HOST_DEVICE int64_t numel_of(const fsdp__optimizer_span &s)
{
    return s.numel;
}

HOST_DEVICE int64_t numel_of(const fsdp__split_span &s)
{
    return s.numel;
}

HOST_DEVICE int64_t numel_of(const fsdp__coded_span &s)
{
    return s.runs * s.run;
}

/* Returns how many chunks a span is cut into. */
template <class Span>
HOST_DEVICE int64_t chunks_of(const Span &s)
{
    return (numel_of(s) + CHUNK - 1) / CHUNK;
}

/* Counts the blocks of a byte span, row after row. */
HOST_DEVICE int64_t blocks_in_row(const fsdp__byte_span &s)
{
    return (s.cols + FSDP__BYTE_BLOCK - 1) / FSDP__BYTE_BLOCK;
}

HOST_DEVICE int64_t chunks_of(const fsdp__byte_span &s)
{
    return (s.rows * blocks_in_row(s) + BYTE_ROWS - 1) / BYTE_ROWS;
}

template <class Span, int BYTES = SPAN_LIST_BYTES>
struct span_list {
    enum {
        MOST = BYTES / (sizeof(Span) + sizeof(unsigned))
    };
    Span spans[MOST];
    unsigned chunks[MOST]; /* of this span and all before it */
    int count;
};

/* Serves kernels of which a step has few: 500 spans and more are one launch. */
template <class Span>
using long_list = span_list<Span, LONG_LIST_BYTES>;

/* Holds what is left of a table, and the list that was taken from it last. */
template <class Span, int BYTES = SPAN_LIST_BYTES>
struct span_lists {
    const Span *spans;
    int64_t count;
    span_list<Span, BYTES> list;
    unsigned blocks; /* chunks of the list */
};

template <class Span>
using long_lists = span_lists<Span, LONG_LIST_BYTES>;

template <int BYTES = SPAN_LIST_BYTES, class Span>
static inline span_lists<Span, BYTES> lists_of(const Span *spans, int64_t count)
{
    span_lists<Span, BYTES> lists;

    memset(&lists, 0, sizeof lists);
    lists.spans = spans;
    lists.count = count;
    return lists;
}

/* Takes the next list; returns false if there is none. Empty spans are in the lists, and have no chunk. */
template <class Span, int BYTES>
static inline bool next_list(span_lists<Span, BYTES> *lists)
{
    span_list<Span, BYTES> *list = &lists->list;

    lists->blocks = 0;
    list->count = 0;
    for (; lists->count > 0 && list->count < list->MOST; lists->count--) {
        int64_t chunks = chunks_of(*lists->spans);

        if (lists->blocks + chunks > 0x7fffffff)
            break;
        lists->blocks += (unsigned)chunks;
        list->spans[list->count] = *lists->spans++;
        list->chunks[list->count++] = lists->blocks;
    }
    return list->count > 0;
}

/* Elements [begin, end) of a span. */
struct chunk {
    int span;
    int64_t begin, end;
};

/* Finds the span that the block's chunk is of. Returns the chunk's number in it. */
template <class Span, int BYTES>
DEVICE int64_t number_of_chunk(const span_list<Span, BYTES> &list, int *span)
{
    int low = 0, high = list.count - 1;

    while (low < high) {
        int middle = (low + high) / 2;

        if (list.chunks[middle] > blockIdx.x)
            high = middle;
        else
            low = middle + 1;
    }
    *span = low;
    return blockIdx.x - (low > 0 ? list.chunks[low - 1] : 0);
}

/* Finds the block's chunk. */
template <class Span, int BYTES>
DEVICE chunk chunk_of_block(const span_list<Span, BYTES> &list)
{
    chunk c;

    c.begin = number_of_chunk(list, &c.span) * CHUNK;
    c.end = c.begin + CHUNK < numel_of(list.spans[c.span]) ? c.begin + CHUNK : numel_of(list.spans[c.span]);
    return c;
}

/* Every thread takes packs of `length` elements of a chunk, which begin at `at`. */
#define EACH_PACK(at, c, length) \
    for (int64_t at = (c).begin + (int64_t)threadIdx.x * (length); at < (c).end; at += (int64_t)blockDim.x * (length))

/* Returns the bits of |x|. They have the order of the numbers, and those of a NaN are the largest. */
DEVICE unsigned magnitude_bits(float x)
{
    return fsdp__float_bits(x) & 0x7fffffffu;
}

/* Returns the largest number of a warp. */
DEVICE unsigned warp_largest(unsigned x)
{
    for (int step = WARP / 2; step > 0; step /= 2) {
        unsigned other = __shfl_xor_sync(ALL_LANES, x, step);

        x = other > x ? other : x;
    }
    return x;
}

/* Returns the largest number of a block of BLOCK threads to all of them. */
DEVICE unsigned block_largest(unsigned x)
{
    __shared__ unsigned partial[BLOCK / WARP];

    x = warp_largest(x);
    __syncthreads();
    if (lane_of_warp() == 0)
        partial[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_largest(lane_of_warp() < BLOCK / WARP ? partial[lane_of_warp()] : 0);
}

/* Returns the bits of the largest magnitude of the block's chunk to all of its threads. */
template <class T>
DEVICE unsigned chunk_largest(const T *src, chunk c)
{
    const int N = pack_of<T, T>::length;
    unsigned largest = 0;

    EACH_PACK (at, c, N) {
        float x[N];

        load_pack(src + at, c.end - at, x);
        UNROLL
        for (int i = 0; i < N; i++)
            largest = magnitude_bits(x[i]) > largest ? magnitude_bits(x[i]) : largest;
    }
    return block_largest(largest);
}
