/* sharded_buffer.c - the parts, copies and sums of coalesced calls. */
#include "comm/transport/sharded_buffer.h"

#include <string.h>

#include "base/compiler.h"
#include "device/device.h"

enum {
    LINE = 64,               /* bytes of a cache line */
    AT_ONCE_BYTES = 16 << 10 /* a copy up to this size is done before a kernel would have begun */
};

/* ---- whose rows lie where ---- */

static int64_t runs_of(const fsdp_sharded_buffer *buffer)
{
    return FSDP__MAX(buffer->outer, 1);
}

/* Returns how many elements the rank has of each run. */
static int64_t rows_of(const fsdp_sharded_buffer *buffer, int rank)
{
    int64_t left = buffer->numel - rank * buffer->chunk;

    return left < 0 ? 0 : FSDP__MIN(left, buffer->chunk);
}

int64_t fsdp__part_numel(const fsdp_sharded_buffer *buffer, int rank)
{
    return runs_of(buffer) * rows_of(buffer, rank);
}

int64_t fsdp__chunk_numel(const fsdp_sharded_buffer *buffer)
{
    return runs_of(buffer) * buffer->chunk;
}

int64_t fsdp__unsharded_numel(const fsdp_sharded_buffer *buffer)
{
    return runs_of(buffer) * buffer->numel;
}

int64_t fsdp__part_run(const fsdp_sharded_buffer *buffer, int rank, int64_t at, int64_t most, int64_t *index)
{
    int64_t rows = rows_of(buffer, rank), in_run = at % rows;

    *index = at / rows * buffer->numel + rank * buffer->chunk + in_run;
    return FSDP__MIN(rows - in_run, most);
}

char *fsdp__place(const void *base, int64_t index, fsdp_dtype dtype)
{
    return (char *)(uintptr_t)base + (size_t)index * fsdp_dtype_size(dtype);
}

fsdp_dtype fsdp__reduce_dtype(const fsdp_sharded_buffer *buffer)
{
    return buffer->reduce_dtype == FSDP_DTYPE_NONE ? buffer->unsharded_dtype : buffer->reduce_dtype;
}

fsdp_dtype fsdp__wire_dtype(const fsdp__call *call, const fsdp_sharded_buffer *buffer)
{
    fsdp_dtype dtype = fsdp__reduce_dtype(buffer);

    /* Widening rounds nothing, so it is left to the sum; a quotient would be rounded. */
    return dtype == FSDP_F32 && call->predivide == 1.0f ? buffer->unsharded_dtype : dtype;
}

/* ---- copies ---- */

void fsdp__copies_begin(fsdp__copies *copies, fsdp__traffic *traffic)
{
    copies->traffic = traffic;
    copies->divisor = 0.0f;
    copies->issues = false;
    copies->src_dtype = copies->dst_dtype = FSDP_DTYPE_NONE;
    copies->count = 0;
}

static fsdp_status run(const fsdp__copies *copies, fsdp__kernel kernel, const void *args)
{
    return copies->issues ? fsdp__launch(copies->traffic->stream, kernel, args)
                          : fsdp__run_kernel(copies->traffic->stream, kernel, args);
}

fsdp_status fsdp__copies_flush(fsdp__copies *copies)
{
    fsdp__cast_spans_args args = {copies->spans, copies->count, copies->src_dtype, copies->dst_dtype};

    if (copies->count == 0)
        return FSDP_OK;
    copies->count = 0;
    return run(copies, FSDP__KERNEL_CAST_SPANS, &args);
}

fsdp_status fsdp__copies_set(fsdp__copies *copies, fsdp_dtype src_dtype, fsdp_dtype dst_dtype)
{
    if (copies->src_dtype != src_dtype || copies->dst_dtype != dst_dtype)
        FSDP_TRY(fsdp__copies_flush(copies));
    copies->src_dtype = src_dtype;
    copies->dst_dtype = dst_dtype;
    return FSDP_OK;
}

/* Copies by way of a sum of one contribution, since a sum can be divided. */
static fsdp_status copy_divided(const fsdp__copies *copies, void *dst, const void *src, int64_t numel)
{
    fsdp__reduce_ranks_args args = {.srcs = &src,
                                    .count = 1,
                                    .dst = dst,
                                    .numel = numel,
                                    .src_dtype = copies->src_dtype,
                                    .dst_dtype = copies->dst_dtype,
                                    .op = FSDP__RANK_SUM,
                                    .divisor = copies->divisor};

    return run(copies, FSDP__KERNEL_REDUCE_RANKS, &args);
}

static fsdp_status copy_at_once(const fsdp__copies *copies, void *dst, const void *src, size_t bytes)
{
    FSDP_TRY(fsdp__stream_uses(copies->traffic->stream, src, bytes, FSDP__READS, "copy"));
    FSDP_TRY(fsdp__stream_uses(copies->traffic->stream, dst, bytes, FSDP__WRITES, "copy"));
    memcpy(dst, src, bytes);
    return FSDP_OK;
}

fsdp_status fsdp__copies_add(fsdp__copies *copies, void *dst, const void *src, int64_t numel)
{
    size_t bytes = (size_t)numel * fsdp_dtype_size(copies->dst_dtype);
    const fsdp_device *device = fsdp__stream_device(copies->traffic->stream);
    bool divides = copies->divisor != 0.0f && copies->divisor != 1.0f, casts = copies->src_dtype != copies->dst_dtype;

    /* What is in place already is neither moved nor counted. */
    if (numel <= 0 || (dst == src && !casts && !divides))
        return FSDP_OK;
    copies->traffic->moved_bytes += (int64_t)bytes;
    if (divides)
        return copy_divided(copies, dst, src, numel);
    if (bytes <= AT_ONCE_BYTES && !casts && !copies->issues && fsdp__device_host_access(device) &&
        fsdp__device_has_bytes(device))
        return copy_at_once(copies, dst, src, bytes);
    if (copies->count == FSDP__COPIES)
        FSDP_TRY(fsdp__copies_flush(copies));
    copies->spans[copies->count++] = (fsdp__span){src, dst, numel};
    return FSDP_OK;
}

fsdp_status fsdp__copies_spread(fsdp__copies *copies, const fsdp_sharded_buffer *buffer, int rank, int64_t at,
                                int64_t numel, const void *src)
{
    for (int64_t done = 0, index, n; done < numel; done += n) {
        n = fsdp__part_run(buffer, rank, at + done, numel - done, &index);
        FSDP_TRY(fsdp__copies_add(copies, fsdp__place(buffer->unsharded, index, copies->dst_dtype),
                                  fsdp__place(src, done, copies->src_dtype), n));
    }
    return FSDP_OK;
}

fsdp_status fsdp__place_own_rows(const fsdp__call *call, int rank, fsdp__traffic *traffic)
{
    fsdp__copies own;

    fsdp__copies_begin(&own, traffic);
    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];

        FSDP_TRY(fsdp__copies_set(&own, b->shard_dtype, b->unsharded_dtype));
        FSDP_TRY(fsdp__copies_spread(&own, b, rank, 0, fsdp__part_numel(b, rank), b->shard));
    }
    return fsdp__copies_flush(&own);
}

fsdp_status fsdp__copies_collect(fsdp__copies *copies, const fsdp_sharded_buffer *buffer, const void *unsharded,
                                 int rank, int64_t at, int64_t numel, void *dst)
{
    for (int64_t done = 0, index, n; done < numel; done += n) {
        n = fsdp__part_run(buffer, rank, at + done, numel - done, &index);
        FSDP_TRY(fsdp__copies_add(copies, fsdp__place(dst, done, copies->dst_dtype),
                                  fsdp__place(unsharded, index, copies->src_dtype), n));
    }
    return FSDP_OK;
}

fsdp_status fsdp__copies_mirror(fsdp__copies *copies, const fsdp_sharded_buffer *buffer, const void *unsharded,
                                int rank)
{
    int64_t numel = fsdp__part_numel(buffer, rank);

    for (int64_t at = 0, index, n; at < numel; at += n) {
        n = fsdp__part_run(buffer, rank, at, numel - at, &index);
        FSDP_TRY(fsdp__copies_add(copies, fsdp__place(buffer->unsharded, index, copies->dst_dtype),
                                  fsdp__place(unsharded, index, copies->src_dtype), n));
    }
    return FSDP_OK;
}

/* ---- sums ---- */

static const fsdp__rank_op rank_ops[] = {
    [FSDP_SUM] = FSDP__RANK_SUM, [FSDP_AVG] = FSDP__RANK_SUM, [FSDP_MAX] = FSDP__RANK_MAX, [FSDP_MIN] = FSDP__RANK_MIN};

void fsdp__sum_add(fsdp__sum *sum, const void *src)
{
    /* Blocks count positions, so there a rank with nothing to add takes a position, too. */
    if (src || sum->block > 0)
        sum->srcs[sum->count++] = src;
}

fsdp_status fsdp__sum_rows(const fsdp__call *call, fsdp_stream *stream, const fsdp_sharded_buffer *buffer,
                           const fsdp__sum *sum, void *dst, int64_t numel)
{
    fsdp__reduce_ranks_args args = {.srcs = sum->srcs,
                                    .count = sum->count,
                                    .dst = dst,
                                    .numel = numel,
                                    .src_dtype = sum->dtype,
                                    .dst_dtype = buffer->shard_dtype,
                                    .op = rank_ops[call->op],
                                    .divisor = call->op == FSDP_AVG ? call->divisor * (float)sum->ranks : call->divisor,
                                    .accumulate = call->accumulate,
                                    .block = sum->block,
                                    .block_dtype = fsdp__reduce_dtype(buffer)};

    return fsdp__run_kernel(stream, FSDP__KERNEL_REDUCE_RANKS, &args);
}

int64_t fsdp__reduced_bytes(const fsdp_sharded_buffer *buffer, int ranks)
{
    return (ranks - 1) * fsdp__chunk_numel(buffer) * (int64_t)fsdp_dtype_size(fsdp__reduce_dtype(buffer));
}

void fsdp__contributed(const fsdp__call *call, int64_t i, bool any, int ranks, fsdp__traffic *traffic)
{
    if (call->contributed)
        call->contributed[i] |= any;
    if (call->counted || !any)
        return;
    traffic->counts = true;
    traffic->op = call->op;
    traffic->sent_bytes += fsdp__reduced_bytes(&call->buffers[i], ranks);
}

/* ---- plain calls, by rows ---- */

fsdp_sharded_buffer fsdp__plain_buffer(const fsdp__call *call, const void *unsharded, const void *shard, int64_t numel,
                                       int64_t chunk)
{
    return (fsdp_sharded_buffer){.unsharded = (void *)(uintptr_t)unsharded,
                                 .shard = (void *)(uintptr_t)shard,
                                 .numel = numel,
                                 .chunk = chunk,
                                 .unsharded_dtype = call->dtype,
                                 .shard_dtype = call->dtype};
}

fsdp__call fsdp__call_by_rows(const fsdp__call *call, const fsdp_sharded_buffer *buffers, int64_t count)
{
    fsdp__call rows = *call;

    rows.plain = call->plain ? call->plain : call;
    rows.buffers = buffers;
    rows.buffer_count = count;
    rows.predivide = rows.divisor = 1.0f;
    rows.accumulate = rows.shared = false;
    rows.places = 0;
    rows.contributed = NULL;
    rows.counted = true;
    return rows;
}

int64_t fsdp__even_chunk(int64_t count, int ranks, size_t element)
{
    int64_t line = LINE / (int64_t)element;

    return FSDP__ROUND_UP((count + ranks - 1) / ranks, line);
}

fsdp__reduce_ranks_args fsdp__call_reduction(const fsdp__call *call, int size, int block)
{
    return (fsdp__reduce_ranks_args){.src_dtype = call->dtype,
                                     .dst_dtype = call->dtype,
                                     .op = rank_ops[call->op],
                                     .divisor = call->op == FSDP_AVG ? (float)size : 1.0f,
                                     .block = block,
                                     .block_dtype = call->dtype};
}
