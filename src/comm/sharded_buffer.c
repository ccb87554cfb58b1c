/* sharded_buffer.c - rows, copies and sums of coalesced calls. */
#include "comm/sharded_buffer.h"

#include "base/compiler.h"

int64_t fsdp__sharded_buffer_rows(const fsdp_sharded_buffer *buffer, int rank)
{
    int64_t left = buffer->numel - rank * buffer->chunk;

    return left < 0 ? 0 : FSDP__MIN(left, buffer->chunk);
}

char *fsdp__place(const void *base, int64_t index, fsdp_dtype dtype)
{
    return (char *)(uintptr_t)base + (size_t)index * fsdp_dtype_size(dtype);
}

fsdp_status fsdp__copies_flush(fsdp__copies *copies)
{
    fsdp__cast_spans_args args = {copies->spans, copies->count, copies->src_dtype, copies->dst_dtype};

    if (copies->count == 0)
        return FSDP_OK;
    copies->count = 0;
    FSDP_TRY(fsdp__run_kernel(copies->stream, FSDP__KERNEL_CAST_SPANS, &args));
    return FSDP_OK;
}

fsdp_status fsdp__copies_add(fsdp__copies *copies, void *dst, const void *src, int64_t numel)
{
    /* In place already: neither moved nor counted. */
    if (numel <= 0 || (dst == src && copies->src_dtype == copies->dst_dtype))
        return FSDP_OK;
    if (copies->count == FSDP__COPIES)
        FSDP_TRY(fsdp__copies_flush(copies));
    copies->spans[copies->count++] = (fsdp__span){src, dst, numel};
    copies->traffic->moved_bytes += numel * (int64_t)fsdp_dtype_size(copies->dst_dtype);
    return FSDP_OK;
}

fsdp_status fsdp__sum_rows(const fsdp__call *call, fsdp_stream *stream, const void *const *srcs, int count,
                           fsdp_dtype src_dtype, void *dst, int64_t numel)
{
    fsdp__reduce_ranks_args args = {.srcs = srcs,
                                    .count = count,
                                    .dst = dst,
                                    .numel = numel,
                                    .src_dtype = src_dtype,
                                    .dst_dtype = call->shard_dtype,
                                    .op = FSDP__RANK_SUM,
                                    .divisor = call->op == FSDP_AVG ? call->divisor * (float)count : call->divisor,
                                    .accumulate = call->accumulate};

    FSDP_TRY(fsdp__run_kernel(stream, FSDP__KERNEL_REDUCE_RANKS, &args));
    return FSDP_OK;
}
