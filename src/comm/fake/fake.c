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

static fsdp_status fake_all_gather_coalesced(void *g, const fsdp__call *call, fsdp_stream *stream,
                                             fsdp__traffic *traffic)
{
    const fsdp_process_group *group = g;
    size_t element = fsdp_dtype_size(call->unsharded_dtype);

    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        int64_t own = fsdp__sharded_buffer_rows(b, group->rank);

        for (int r = 0; r < group->size; r++) {
            int64_t rows = fsdp__sharded_buffer_rows(b, r), held = FSDP__MIN(rows, own);
            char *dst = (char *)b->unsharded + (size_t)(r * b->chunk) * element;

            FSDP_TRY(cast(stream, b->shard, call->shard_dtype, dst, call->unsharded_dtype, held, traffic));
            if (held < rows)
                FSDP_TRY(zero(stream, dst + (size_t)held * element, (size_t)(rows - held) * element));
        }
    }
    return FSDP_OK;
}

/* This rank's contribution, for the sum of all. */
static fsdp_status sum_one(fsdp_stream *stream, const fsdp__call *call, const void *src, fsdp_dtype src_dtype,
                           void *dst, int64_t numel)
{
    return fsdp__sum_rows(call, stream, &src, 1, src_dtype, dst, numel);
}

static fsdp_status reduce_rounded(fsdp_stream *stream, const fsdp__call *call, const char *src, char *dst,
                                  int64_t numel)
{
    unsigned char *rounded = fsdp__stream_workspace(stream, ROUND_BYTES);
    int64_t piece = ROUND_BYTES / (int64_t)fsdp_dtype_size(call->wire_dtype);
    size_t unsharded_element = fsdp_dtype_size(call->unsharded_dtype),
           shard_element = fsdp_dtype_size(call->shard_dtype);
    fsdp__traffic ignored = {0};

    if (!rounded)
        return FSDP_NO_MEMORY;
    for (int64_t at = 0; at < numel; at += piece) {
        int64_t n = FSDP__MIN(piece, numel - at);
        FSDP_TRY(cast(stream, src + (size_t)at * unsharded_element, call->unsharded_dtype, rounded, call->wire_dtype, n,
                      &ignored));
        FSDP_TRY(sum_one(stream, call, rounded, call->wire_dtype, dst + (size_t)at * shard_element, n));
    }
    return FSDP_OK;
}

static fsdp_status fake_reduce_scatter_coalesced(void *g, const fsdp__call *call, fsdp_stream *stream,
                                                 fsdp__traffic *traffic)
{
    const fsdp_process_group *group = g;
    size_t element = fsdp_dtype_size(call->unsharded_dtype);

    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        int64_t rows = fsdp__sharded_buffer_rows(b, group->rank);
        const char *src = (const char *)b->unsharded + (size_t)(group->rank * b->chunk) * element;

        if (rows == 0)
            continue;
        traffic->moved_bytes += rows * (int64_t)element;
        FSDP_TRY(call->wire_dtype == call->unsharded_dtype
                     ? sum_one(stream, call, src, call->unsharded_dtype, b->shard, rows)
                     : reduce_rounded(stream, call, src, b->shard, rows));
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
