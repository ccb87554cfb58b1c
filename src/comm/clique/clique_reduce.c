/* clique_reduce.c - reductions, in our order or in NCCL's.
 *
 * In our order, contributions are packed, exchanged by all-to-all and added here (comm/transport/packed.h): the bits
 * are those of every other way. A small all-reduce gathers all and adds on each rank.
 *
 * In NCCL's, contributions are packed in the same way, of one dtype at a time, and NCCL adds them: it sends less
 * between machines, and rounds to that dtype at each addition. Ranks that have nothing to add give zeros. */
#include "comm/clique/clique_memory.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/transport/sharded_buffer.h"
#include "device/device.h"

enum {
    AT_ONCE_BYTES = 64 << 10 /* of an all_reduce up to this size every rank adds up all */
};

/* ---- packed ---- */

static fsdp__rank_op rank_op(fsdp_reduce_op op)
{
    return op == FSDP_MAX ? FSDP__RANK_MAX : op == FSDP_MIN ? FSDP__RANK_MIN : FSDP__RANK_SUM;
}

/* Lets NCCL add a piece, of which each rank has packed a part for each. It stands in for the all-to-all: this rank's
 * sum then lies where rank 0's part would, which is the same place on all. */
static fsdp_status sum_piece(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__clique_group *g = group;
    fsdp_dtype dtype = fsdp__wire_dtype(call, &call->buffers[0]);
    const fsdp__clique_call k = {.kind = FSDP__CLIQUE_SCATTER,
                                 .send = call->send,
                                 .recv = call->recv,
                                 .count = call->count / (int64_t)fsdp_dtype_size(dtype),
                                 .dtype = dtype,
                                 .op = rank_op(call->op)};

    return fsdp__clique_issue(g, FSDP__CLIQUE_FOR_SUMS, &k, 1, traffic);
}

/* Returns whether any rank adds to buffer i of the call. */
static bool any_adds(const fsdp__clique_group *g, int64_t i)
{
    bool any = !g->adds;

    for (int r = 0; r < g->size && !any; r++)
        any = g->adds[r * g->adds_count + i];
    return any;
}

/* Returns whether a rank adds to a buffer. Where NCCL adds, the sum lies where rank 0's part would, and the others have
 * nothing more. */
static bool adds(void *group, int rank, int64_t buffer)
{
    const fsdp__clique_group *g = group;
    int64_t i = g->numbers ? g->numbers[buffer] : buffer;

    if (g->own_order)
        return rank == 0 && any_adds(g, i);
    return !g->adds || g->adds[rank * g->adds_count + i];
}

static fsdp_status reduce_packed(fsdp__clique_group *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__plain_way way = {.group = g,
                           .rank = g->rank,
                           .size = g->size,
                           .block = g->own_order ? 0 : g->block,
                           .piece_bytes = FSDP__CLIQUE_PIECE_BYTES,
                           .adds = adds,
                           .all_gather = fsdp__clique_all_gather,
                           .all_to_all = g->own_order ? sum_piece : fsdp__clique_all_to_all};

    for (int64_t i = 0; i < call->buffer_count && g->own_order; i++)
        way.zeroes = way.zeroes || !call->buffers[i].unsharded;
    return fsdp__clique_packed(g, FSDP__CLIQUE_FOR_SUMS, &way, call, traffic);
}

/* Lets NCCL reduce those buffers of a call whose contributions travel in one dtype. */
static fsdp_status reduce_dtype(const fsdp__clique_group *g, const fsdp__call *call, fsdp_dtype dtype,
                                fsdp_sharded_buffer *buffers, int64_t *numbers, fsdp__traffic *traffic)
{
    fsdp__clique_group some = *g;
    fsdp__call part = *call;

    part.buffers = buffers;
    part.buffer_count = 0;
    part.contributed = NULL; /* that was told */
    part.counted = true;
    some.numbers = numbers;
    for (int64_t i = 0; i < call->buffer_count; i++)
        if (fsdp__wire_dtype(call, &call->buffers[i]) == dtype) {
            numbers[part.buffer_count] = i;
            buffers[part.buffer_count++] = call->buffers[i];
        }
    return part.buffer_count > 0 ? reduce_packed(&some, &part, traffic) : FSDP_OK;
}

static fsdp_status reduce_by_nccl(fsdp__clique_group *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_I32, FSDP_I64, FSDP_U8};
    size_t count = (size_t)call->buffer_count;
    FSDP__FREED fsdp_sharded_buffer *buffers = fsdp__malloc(count * sizeof *buffers);
    FSDP__FREED int64_t *numbers = fsdp__malloc(count * sizeof *numbers);

    FSDP__TRY_NEW(buffers);
    FSDP__TRY_NEW(numbers);
    for (int64_t i = 0; i < call->buffer_count; i++)
        fsdp__contributed(call, i, any_adds(g, i), g->size, traffic);
    for (size_t d = 0; d < FSDP__COUNT_OF(dtypes); d++)
        FSDP_TRY(reduce_dtype(g, call, dtypes[d], buffers, numbers, traffic));
    return FSDP_OK;
}

fsdp_status fsdp__clique_reduce_scatter_coalesced(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__clique_group *g = group;

    return g->own_order ? reduce_by_nccl(g, call, traffic) : reduce_packed(g, call, traffic);
}

/* ---- plain calls ---- */

/* Divides a sum of NCCL's, in place. */
static fsdp_status divide(const fsdp__clique_group *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__reduce_ranks_args args = fsdp__call_reduction(call, g->size, 0);
    const void *sum = call->recv;

    args.srcs = &sum;
    args.count = 1;
    args.dst = call->recv;
    args.numel = call->count;
    return call->op == FSDP_AVG && call->count > 0 ? fsdp__run_kernel(traffic->stream, FSDP__KERNEL_REDUCE_RANKS, &args)
                                                   : FSDP_OK;
}

/* Does a plain reduction as NCCL does it. */
static fsdp_status by_nccl(fsdp__clique_group *g, fsdp__clique_kind kind, const fsdp__call *call,
                           fsdp__traffic *traffic)
{
    const fsdp__clique_call k = {.kind = kind,
                                 .send = call->send,
                                 .recv = call->recv,
                                 .count = call->count,
                                 .dtype = call->dtype,
                                 .op = rank_op(call->op)};

    FSDP_TRY(fsdp__clique_issue(g, FSDP__CLIQUE_FOR_SUMS, &k, 1, traffic));
    return divide(g, call, traffic);
}

/* Reduces the rows of one buffer, to which all ranks add. */
static fsdp_status by_rows(const fsdp__clique_group *g, const fsdp__call *call, const fsdp_sharded_buffer *buffer,
                           fsdp__traffic *traffic)
{
    fsdp__clique_group all_add = *g;
    fsdp__call rows = fsdp__call_by_rows(call, buffer, 1);

    rows.name = FSDP__CALL_REDUCE_SCATTER_COALESCED;
    all_add.adds = NULL;
    return reduce_packed(&all_add, &rows, traffic);
}

fsdp_status fsdp__clique_reduce_scatter(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__clique_group *g = group;
    fsdp_sharded_buffer one = fsdp__plain_buffer(call, call->send, call->recv, g->size * call->count, call->count);

    return g->own_order ? by_nccl(g, FSDP__CLIQUE_SCATTER, call, traffic) : by_rows(g, call, &one, traffic);
}

/* Every rank gathers what all have, and adds it up. */
static fsdp_status reduce_at_once(fsdp__clique_group *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    size_t bytes = (size_t)call->count * fsdp_dtype_size(call->dtype);
    fsdp__reduce_ranks_args args = fsdp__call_reduction(call, g->size, g->block);
    FSDP__FREED const void **srcs = fsdp__malloc((size_t)g->size * sizeof *srcs);
    char *all = bytes ? fsdp__stream_workspace(traffic->stream, bytes * (size_t)g->size) : NULL;
    fsdp__clique_call k = {
        .kind = FSDP__CLIQUE_GATHER, .send = call->send, .recv = all, .count = call->count, .dtype = call->dtype};

    FSDP__TRY_NEW(srcs);
    if (bytes == 0)
        return FSDP_OK;
    FSDP__TRY_NEW(all);
    FSDP_TRY(fsdp__clique_issue(g, FSDP__CLIQUE_FOR_SUMS, &k, 1, traffic));
    for (int r = 0; r < g->size; r++)
        srcs[r] = all + (size_t)r * bytes;
    args.srcs = srcs;
    args.count = g->size;
    args.dst = call->recv;
    args.numel = call->count;
    return fsdp__run_kernel(traffic->stream, FSDP__KERNEL_REDUCE_RANKS, &args);
}

/* Every rank adds up its chunk, and gathers the others'. */
static fsdp_status reduce_and_gather(fsdp__clique_group *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    int64_t chunk = fsdp__even_chunk(call->count, g->size, fsdp_dtype_size(call->dtype));
    char *own = fsdp__place(call->recv, FSDP__MIN(g->rank * chunk, call->count), call->dtype);
    fsdp_sharded_buffer one = fsdp__plain_buffer(call, call->send, own, call->count, chunk);

    FSDP_TRY(by_rows(g, call, &one, traffic));
    one.unsharded = call->recv;
    return fsdp__clique_gather_rows(g, FSDP__CLIQUE_FOR_SUMS, &one, 1, traffic);
}

fsdp_status fsdp__clique_all_reduce(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    fsdp__clique_group *g = group;
    bool at_once = (size_t)call->count * fsdp_dtype_size(call->dtype) <= AT_ONCE_BYTES;

    if (g->own_order)
        return by_nccl(g, FSDP__CLIQUE_REDUCE, call, traffic);
    return at_once ? reduce_at_once(g, call, traffic) : reduce_and_gather(g, call, traffic);
}
