/* fake.c - the transport without peers. Every rank of the world is taken to hold what this one holds: a gather repeats
 * it, a reduction returns it. In a group of one that is the whole truth. Where the world has several machines, what
 * would go between them is counted. */
#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/comm.h"
#include "comm/transport/fake/fake_world.h"
#include "comm/transport/network/network_calls.h"
#include "comm/transport/sharded_buffer.h"
#include "device/device.h"
#include "device/kernels.h"

enum {
    ROUND_BYTES = 8192 /* scratch for rounding before a reduction; the kernels used here need none of their own */
};

static fsdp_status cast(const void *src, fsdp_dtype src_dtype, void *dst, fsdp_dtype dst_dtype, int64_t numel,
                        fsdp__traffic *traffic)
{
    fsdp__copies one = {.traffic = traffic, .src_dtype = src_dtype, .dst_dtype = dst_dtype};

    FSDP_TRY(fsdp__copies_add(&one, dst, src, numel));
    return fsdp__copies_flush(&one);
}

static fsdp_status copy(fsdp__traffic *traffic, void *dst, const void *src, size_t bytes)
{
    return cast(src, FSDP_U8, dst, FSDP_U8, (int64_t)bytes, traffic);
}

/* Writes what every rank has sent: `src`, once for each of them. Each copy doubles what there is. Without a place for
 * it the call is only counted. */
static fsdp_status repeat(const fsdp__fake_group *group, const fsdp__call *call, const void *src,
                          fsdp__traffic *traffic)
{
    size_t bytes = (size_t)call->count * fsdp_dtype_size(call->dtype), all = (size_t)group->size * bytes;

    if (!call->recv)
        return FSDP_OK;
    FSDP_TRY(copy(traffic, call->recv, src, bytes));
    for (size_t done = bytes, more; done < all; done += more) {
        more = FSDP__MIN(done, all - done);
        FSDP_TRY(copy(traffic, (char *)call->recv + done, call->recv, more));
    }
    return FSDP_OK;
}

static fsdp_status fake_all_gather(void *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    FSDP_TRY(fsdp__fake_count(g, fsdp__network_all_gather, call, traffic));
    return repeat(g, call, call->send, traffic);
}

static fsdp_status fake_reduce_scatter(void *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__fake_group *group = g;
    size_t bytes = (size_t)call->count * fsdp_dtype_size(call->dtype);

    FSDP_TRY(fsdp__fake_count(g, fsdp__network_reduce_scatter, call, traffic));
    return copy(traffic, call->recv, (const char *)call->send + (size_t)group->rank * bytes, bytes);
}

static fsdp_status fake_all_reduce(void *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    FSDP_TRY(fsdp__fake_count(g, fsdp__network_all_reduce, call, traffic));
    return copy(traffic, call->recv, call->send, (size_t)call->count * fsdp_dtype_size(call->dtype));
}

static fsdp_status fake_broadcast(void *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    return fsdp__fake_count(g, fsdp__network_broadcast, call, traffic);
}

static fsdp_status fake_barrier(void *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    return fsdp__fake_count(g, fsdp__network_barrier, call, traffic);
}

static fsdp_status fake_all_to_all(void *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__fake_group *group = g;
    size_t bytes = (size_t)call->count * fsdp_dtype_size(call->dtype);

    FSDP_TRY(fsdp__fake_count(g, fsdp__network_all_to_all, call, traffic));
    return repeat(group, call, (const char *)call->send + (size_t)group->rank * bytes, traffic);
}

/* ---- buffers ---- */

static fsdp_status zero(fsdp__traffic *traffic, void *dst, size_t bytes)
{
    const fsdp__fill_args args = {.dst = dst, .dtype = FSDP_U8, .numel = (int64_t)bytes};

    return fsdp__run_kernel(traffic->stream, FSDP__KERNEL_FILL, &args);
}

/* Copies `held` elements of one run of the shard, and zeros up to `rows`. */
static fsdp_status repeat_run(fsdp__copies *copies, const fsdp_sharded_buffer *b, int64_t index, int64_t at,
                              int64_t held, int64_t rows)
{
    char *dst = fsdp__place(b->unsharded, index, b->unsharded_dtype);
    size_t element = fsdp_dtype_size(b->unsharded_dtype);

    FSDP_TRY(fsdp__copies_add(copies, dst, fsdp__place(b->shard, at, b->shard_dtype), held));
    if (held < rows)
        FSDP_TRY(zero(copies->traffic, dst + (size_t)held * element, (size_t)(rows - held) * element));
    return FSDP_OK;
}

static fsdp_status fake_all_gather_coalesced(void *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__fake_group *group = g;
    fsdp__copies copies = {.traffic = traffic};

    FSDP_TRY(fsdp__fake_count(g, fsdp__network_all_gather_coalesced, call, traffic));
    if (!fsdp__device_has_bytes(fsdp__stream_device(traffic->stream)))
        return FSDP_OK;
    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        int64_t runs = FSDP__MAX(b->outer, 1), own = fsdp__part_numel(b, group->rank) / runs;

        FSDP_TRY(fsdp__copies_set(&copies, b->shard_dtype, b->unsharded_dtype));
        for (int r = 0; r < group->size; r++) {
            int64_t rows = fsdp__part_numel(b, r) / runs, held = FSDP__MIN(rows, own);

            for (int64_t run = 0; run < runs; run++)
                FSDP_TRY(repeat_run(&copies, b, run * b->numel + r * b->chunk, run * own, held, rows));
        }
    }
    return fsdp__copies_flush(&copies);
}

/* Returns whether the sum of a rank that is alone lies where it goes. */
static bool lies_there(const fsdp__call *call, const fsdp_sharded_buffer *b)
{
    return b->unsharded == b->shard && b->unsharded_dtype == b->shard_dtype &&
           fsdp__wire_dtype(call, b) == b->shard_dtype && call->predivide == 1.0f && call->divisor == 1.0f &&
           !call->accumulate;
}

/* Writes this rank's contribution, from element `index` on, as the sum of all, as if there were no others. */
static fsdp_status sum_run(fsdp_stream *stream, const fsdp__call *call, const fsdp_sharded_buffer *b, int64_t index,
                           int64_t at, int64_t numel)
{
    fsdp_dtype wire = fsdp__wire_dtype(call, b);
    bool as_it_is = wire == b->unsharded_dtype && call->predivide == 1.0f;
    int64_t piece = as_it_is ? numel : ROUND_BYTES / (int64_t)fsdp_dtype_size(wire);
    fsdp__traffic ignored = {.stream = stream};
    fsdp__copies in = {
        .traffic = &ignored, .divisor = call->predivide, .src_dtype = b->unsharded_dtype, .dst_dtype = wire};

    for (int64_t done = 0; done < numel; done += piece) {
        int64_t n = FSDP__MIN(piece, numel - done);
        const void *src = fsdp__place(b->unsharded, index + done, b->unsharded_dtype);
        fsdp__sum sum = {.srcs = &src, .count = 1, .ranks = 1, .dtype = wire};

        if (!as_it_is) {
            void *rounded = fsdp__stream_workspace(stream, ROUND_BYTES);

            FSDP__TRY_NEW(rounded);
            FSDP_TRY(fsdp__copies_add(&in, rounded, src, n));
            FSDP_TRY(fsdp__copies_flush(&in));
            src = rounded;
        }
        FSDP_TRY(fsdp__sum_rows(call, stream, b, &sum, fsdp__place(b->shard, at + done, b->shard_dtype), n));
    }
    return FSDP_OK;
}

static fsdp_status fake_reduce_scatter_coalesced(void *g, const fsdp__call *call, fsdp__traffic *traffic)
{
    const fsdp__fake_group *group = g;

    FSDP_TRY(fsdp__fake_count(g, fsdp__network_reduce_scatter_coalesced, call, traffic));
    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        int64_t rows = fsdp__part_numel(b, group->rank);

        fsdp__contributed(call, i, b->unsharded, group->size, traffic);
        if (!b->unsharded || (group->size == 1 && lies_there(call, b)))
            continue;
        traffic->moved_bytes += rows * (int64_t)fsdp_dtype_size(b->unsharded_dtype);
        for (int64_t at = 0, index, n; at < rows; at += n) {
            n = fsdp__part_run(b, group->rank, at, rows - at, &index);
            FSDP_TRY(sum_run(traffic->stream, call, b, index, at, n));
        }
    }
    return FSDP_OK;
}

/* Does nothing: nobody waits. */
static void fake_abort(void *fake, const char *text)
{
    (void)fake, (void)text;
}

static const fsdp__collective_ops collectives = {
    .all_gather = fake_all_gather,
    .reduce_scatter = fake_reduce_scatter,
    .all_reduce = fake_all_reduce,
    .broadcast = fake_broadcast,
    .all_to_all = fake_all_to_all,
    .barrier = fake_barrier,
    .all_gather_coalesced = fake_all_gather_coalesced,
    .reduce_scatter_coalesced = fake_reduce_scatter_coalesced,
};
static const fsdp__memory_ops memory = {
    .alloc = fsdp__fake_alloc,
    .free = fsdp__fake_free,
    .alloc_shared = fsdp__fake_alloc_shared,
    .free_shared = fsdp__fake_free_shared,
};
const fsdp__comm_ops fsdp__comm_fake_ops = {
    .name = "fake",
    .collectives = &collectives,
    .memory = &memory, /* its readers have no peers that write there */
    .group_open = fsdp__fake_group_open,
    .group_free = fsdp__fake_group_free,
    .abort = fake_abort,
    .close = fsdp__fake_close,
    .machines = fsdp__fake_machines,
    .can_share = fsdp__fake_can_share,
};
