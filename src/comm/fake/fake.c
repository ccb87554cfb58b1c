/* fake.c - the transport without peers. Every rank of the world is taken to hold what this one holds: a gather repeats
 * it, a reduction returns it. In a group of one that is the whole truth. */
#include "base/compiler.h"
#include "comm/comm.h"
#include "comm/sharded_buffer.h"
#include "device/device.h"
#include "device/kernels.h"

enum {
    ROUND_BYTES = 8192 /* of scratch, for rounding before a reduction; the kernels used here ask for none */
};

static fsdp_status cast(fsdp_stream *stream, const void *src, fsdp_dtype src_dtype, void *dst, fsdp_dtype dst_dtype,
                        int64_t numel, fsdp__traffic *traffic)
{
    fsdp__copies one = {.stream = stream, .traffic = traffic, .src_dtype = src_dtype, .dst_dtype = dst_dtype};

    FSDP_TRY(fsdp__copies_add(&one, dst, src, numel));
    return fsdp__copies_flush(&one);
}

static fsdp_status copy(fsdp_stream *stream, fsdp__traffic *traffic, void *dst, const void *src, size_t bytes)
{
    return cast(stream, src, FSDP_U8, dst, FSDP_U8, (int64_t)bytes, traffic);
}

static fsdp_status fake_all_gather(void *g, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    const fsdp_process_group *group = g;
    size_t bytes = (size_t)call->count * fsdp_dtype_size(call->dtype);

    for (int r = 0; r < group->size; r++)
        FSDP_TRY(copy(stream, traffic, (char *)call->recv + (size_t)r * bytes, call->send, bytes));
    return FSDP_OK;
}

static fsdp_status fake_reduce_scatter(void *g, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    const fsdp_process_group *group = g;
    size_t bytes = (size_t)call->count * fsdp_dtype_size(call->dtype);

    return copy(stream, traffic, call->recv, (const char *)call->send + (size_t)group->rank * bytes, bytes);
}

static fsdp_status fake_all_reduce(void *g, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    (void)g;
    return copy(stream, traffic, call->recv, call->send, (size_t)call->count * fsdp_dtype_size(call->dtype));
}

static fsdp_status fake_nothing(void *g, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    (void)g, (void)call, (void)stream, (void)traffic;
    return FSDP_OK;
}

static fsdp_status fake_all_to_all(void *g, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic)
{
    const fsdp_process_group *group = g;
    size_t bytes = (size_t)call->count * fsdp_dtype_size(call->dtype);

    for (int r = 0; r < group->size; r++)
        FSDP_TRY(copy(stream, traffic, (char *)call->recv + (size_t)r * bytes,
                      (const char *)call->send + (size_t)group->rank * bytes, bytes));
    return FSDP_OK;
}

/* ---- buffers ---- */

static fsdp_status zero(fsdp_stream *stream, void *dst, size_t bytes)
{
    const fsdp__fill_args args = {.dst = dst, .dtype = FSDP_U8, .numel = (int64_t)bytes};

    return fsdp__run_kernel(stream, FSDP__KERNEL_FILL, &args);
}

/* `held` elements of one run of the shard, and zeros up to `rows`. */
static fsdp_status repeat_run(fsdp__copies *copies, const fsdp_sharded_buffer *b, int64_t index, int64_t at,
                              int64_t held, int64_t rows)
{
    char *dst = fsdp__place(b->unsharded, index, b->unsharded_dtype);
    size_t element = fsdp_dtype_size(b->unsharded_dtype);

    FSDP_TRY(fsdp__copies_add(copies, dst, fsdp__place(b->shard, at, b->shard_dtype), held));
    if (held < rows)
        FSDP_TRY(zero(copies->stream, dst + (size_t)held * element, (size_t)(rows - held) * element));
    return FSDP_OK;
}

static fsdp_status fake_all_gather_coalesced(void *g, const fsdp__call *call, fsdp_stream *stream,
                                             fsdp__traffic *traffic)
{
    const fsdp_process_group *group = g;
    fsdp__copies copies = {.stream = stream, .traffic = traffic};

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

/* This rank's contribution, from element `index` on, for the sum of all: as if there were no others. */
static fsdp_status sum_run(fsdp_stream *stream, const fsdp__call *call, const fsdp_sharded_buffer *b, int64_t index,
                           int64_t at, int64_t numel)
{
    fsdp_dtype wire = fsdp__wire_dtype(call, b);
    bool as_it_is = wire == b->unsharded_dtype && call->predivide == 1.0f;
    int64_t piece = as_it_is ? numel : ROUND_BYTES / (int64_t)fsdp_dtype_size(wire);
    fsdp__traffic ignored = {0};
    fsdp__copies in = {.stream = stream,
                       .traffic = &ignored,
                       .divisor = call->predivide,
                       .src_dtype = b->unsharded_dtype,
                       .dst_dtype = wire};

    for (int64_t done = 0; done < numel; done += piece) {
        int64_t n = FSDP__MIN(piece, numel - done);
        const void *src = fsdp__place(b->unsharded, index + done, b->unsharded_dtype);

        if (!as_it_is) {
            void *rounded = fsdp__stream_workspace(stream, ROUND_BYTES);

            if (!rounded)
                return FSDP_NO_MEMORY;
            FSDP_TRY(fsdp__copies_add(&in, rounded, src, n));
            FSDP_TRY(fsdp__copies_flush(&in));
            src = rounded;
        }
        FSDP_TRY(fsdp__sum_rows(call, stream, &src, 1, 1, wire, fsdp__place(b->shard, at + done, b->shard_dtype),
                                b->shard_dtype, n));
    }
    return FSDP_OK;
}

static fsdp_status fake_reduce_scatter_coalesced(void *g, const fsdp__call *call, fsdp_stream *stream,
                                                 fsdp__traffic *traffic)
{
    const fsdp_process_group *group = g;

    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        int64_t rows = fsdp__part_numel(b, group->rank);

        fsdp__contributed(call, i, b->unsharded, group->size, traffic);
        if (!b->unsharded)
            continue;
        traffic->moved_bytes += rows * (int64_t)fsdp_dtype_size(b->unsharded_dtype);
        for (int64_t at = 0, index, n; at < rows; at += n) {
            n = fsdp__part_run(b, group->rank, at, rows - at, &index);
            FSDP_TRY(sum_run(stream, call, b, index, at, n));
        }
    }
    return FSDP_OK;
}

static void fake_group_free(void *group)
{
    (void)group;
}

const fsdp__comm_ops fsdp__comm_fake_ops = {
    .name = "fake",
    .all_gather = fake_all_gather,
    .reduce_scatter = fake_reduce_scatter,
    .all_reduce = fake_all_reduce,
    .broadcast = fake_nothing,
    .all_to_all = fake_all_to_all,
    .barrier = fake_nothing,
    .all_gather_coalesced = fake_all_gather_coalesced,
    .reduce_scatter_coalesced = fake_reduce_scatter_coalesced,
    .group_free = fake_group_free,
    /* group_open, abort and close are never called: there is no transport */
};
