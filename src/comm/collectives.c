/* collectives.c - the public collectives: the one place where arguments are checked, calls counted and handed on. */
#include <string.h>

#include "base/context.h"
#include "comm/coalesced.h"
#include "comm/counters.h"
#include "comm/issue.h"

static bool known_dtype(fsdp_dtype dtype)
{
    return fsdp_dtype_size(dtype) > 0;
}

/* Checks what every plain collective has. `copies`: how often `count` elements stand in the larger buffer. */
static fsdp_status check(fsdp_process_group *group, fsdp__call_name name, const fsdp__call *call, int64_t copies,
                         fsdp_stream *stream)
{
    int64_t bytes;

    FSDP_TRY(fsdp__comm_enter(group, name));
    if (!stream)
        return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': the stream is NULL", fsdp__call_text(name),
                         group->name);
    if (!known_dtype(call->dtype))
        return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': unknown dtype %d", fsdp__call_text(name), group->name,
                         (int)call->dtype);
    if (call->count < 0 || __builtin_mul_overflow(call->count, copies, &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)fsdp_dtype_size(call->dtype), &bytes))
        return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': bad count %lld", fsdp__call_text(name), group->name,
                         (long long)call->count);
    if (call->count > 0 && (!call->send || !call->recv))
        return FSDP_FAIL(FSDP_INVALID, "cannot %s %lld elements in group '%s': a buffer is NULL", fsdp__call_text(name),
                         (long long)call->count, group->name);
    return FSDP_OK;
}

static fsdp_status check_reduction(const fsdp_process_group *group, const fsdp__call *call)
{
    if ((unsigned)call->op > FSDP_MIN)
        return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': unknown reduction %d", fsdp__call_text(call->name),
                         group->name, (int)call->op);
    if ((call->op == FSDP_AVG && !fsdp_dtype_is_floating(call->dtype)) ||
        (call->op == FSDP_SUM && call->dtype == FSDP_BOOL))
        return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': %s has no %s", fsdp__call_text(call->name),
                         group->name, fsdp_dtype_name(call->dtype), call->op == FSDP_AVG ? "average" : "sum");
    return FSDP_OK;
}

static int64_t bytes_of(const fsdp__call *call)
{
    return call->count * (int64_t)fsdp_dtype_size(call->dtype);
}

/* For who follows the order of calls. `count`: elements of the large side, padding included. */
static void log_call(const fsdp_process_group *group, fsdp_collective kind, int64_t count, fsdp_dtype dtype)
{
    fsdp_context *context = group->comm->context;

    if (group->size > 1 && fsdp__log_shows(context, FSDP_LOG_DEBUG))
        fsdp_log(context, FSDP_LOG_DEBUG, "%s: %lld %s over %d ranks of group '%s'", fsdp_collective_name(kind),
                 (long long)count, fsdp_dtype_name(dtype), group->size, group->name);
}

fsdp_status fsdp_all_gather(fsdp_process_group *group, const void *send, void *recv, int64_t count, fsdp_dtype dtype,
                            fsdp_stream *stream)
{
    fsdp__call call = {.name = FSDP__CALL_ALL_GATHER, .send = send, .recv = recv, .count = count, .dtype = dtype};

    FSDP_TRY(check(group, call.name, &call, group ? group->size : 1, stream));
    fsdp__comm_count(group, FSDP_ALL_GATHER, (group->size - 1) * bytes_of(&call));
    log_call(group, FSDP_ALL_GATHER, count * group->size, dtype);
    FSDP_TRY(fsdp__comm_issue(group, FSDP_ALL_GATHER, group->ops->all_gather, &call, stream));
    return FSDP_OK;
}

fsdp_status fsdp_reduce_scatter(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                fsdp_dtype dtype, fsdp_reduce_op op, fsdp_stream *stream)
{
    fsdp__call call = {
        .name = FSDP__CALL_REDUCE_SCATTER, .send = send, .recv = recv, .count = count, .dtype = dtype, .op = op};

    FSDP_TRY(check(group, call.name, &call, group ? group->size : 1, stream));
    FSDP_TRY(check_reduction(group, &call));
    fsdp__comm_count(group, FSDP_REDUCE_SCATTER, (group->size - 1) * bytes_of(&call));
    log_call(group, FSDP_REDUCE_SCATTER, count * group->size, dtype);
    FSDP_TRY(fsdp__comm_issue(group, FSDP_REDUCE_SCATTER, group->ops->reduce_scatter, &call, stream));
    return FSDP_OK;
}

fsdp_status fsdp_all_reduce(fsdp_process_group *group, const void *send, void *recv, int64_t count, fsdp_dtype dtype,
                            fsdp_reduce_op op, fsdp_stream *stream)
{
    fsdp__call call = {
        .name = FSDP__CALL_ALL_REDUCE, .send = send, .recv = recv, .count = count, .dtype = dtype, .op = op};

    FSDP_TRY(check(group, call.name, &call, 2, stream));
    FSDP_TRY(check_reduction(group, &call));
    /* 2 (W-1)/W n, rounded to whole bytes */
    fsdp__comm_count(group, FSDP_ALL_REDUCE, 2 * bytes_of(&call) * (group->size - 1) / group->size);
    log_call(group, FSDP_ALL_REDUCE, count, dtype);
    FSDP_TRY(fsdp__comm_issue(group, FSDP_ALL_REDUCE, group->ops->all_reduce, &call, stream));
    return FSDP_OK;
}

fsdp_status fsdp_broadcast(fsdp_process_group *group, void *buffer, int64_t count, fsdp_dtype dtype, int root,
                           fsdp_stream *stream)
{
    fsdp__call call = {
        .name = FSDP__CALL_BROADCAST, .send = buffer, .recv = buffer, .count = count, .dtype = dtype, .root = root};

    FSDP_TRY(check(group, call.name, &call, 1, stream));
    if (root < 0 || root >= group->size)
        return FSDP_FAIL(FSDP_INVALID, "cannot broadcast in group '%s': root %d is not one of its %d ranks",
                         group->name, root, group->size);
    fsdp__comm_count(group, FSDP_BROADCAST, bytes_of(&call) * (group->size - 1) / group->size);
    log_call(group, FSDP_BROADCAST, count, dtype);
    FSDP_TRY(fsdp__comm_issue(group, FSDP_BROADCAST, group->ops->broadcast, &call, stream));
    return FSDP_OK;
}

fsdp_status fsdp_all_to_all(fsdp_process_group *group, const void *send, void *recv, int64_t count, fsdp_dtype dtype,
                            fsdp_stream *stream)
{
    fsdp__call call = {.name = FSDP__CALL_ALL_TO_ALL, .send = send, .recv = recv, .count = count, .dtype = dtype};

    FSDP_TRY(check(group, call.name, &call, group ? group->size : 1, stream));
    if (count > 0 && send == recv)
        return FSDP_FAIL(FSDP_INVALID, "cannot all_to_all in group '%s': not possible in place", group->name);
    fsdp__comm_count(group, FSDP_ALL_TO_ALL, (group->size - 1) * bytes_of(&call));
    log_call(group, FSDP_ALL_TO_ALL, count * group->size, dtype);
    FSDP_TRY(fsdp__comm_issue(group, FSDP_ALL_TO_ALL, group->ops->all_to_all, &call, stream));
    return FSDP_OK;
}

fsdp_status fsdp_barrier(fsdp_process_group *group)
{
    fsdp__call call = {.name = FSDP__CALL_BARRIER};

    FSDP_TRY(fsdp__comm_enter(group, call.name));
    fsdp__comm_count(group, FSDP_BARRIER, 0);
    FSDP_TRY(fsdp__comm_issue_host(group, FSDP_BARRIER, group->ops->barrier, &call));
    return FSDP_OK;
}

/* ---- buffers ---- */

static fsdp_status fail_buffer(const fsdp_process_group *group, fsdp__call_name name, int64_t i, const char *what)
{
    return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': buffer %lld: %s", fsdp__call_text(name), group->name,
                     (long long)i, what);
}

/* Adds up the chunks: what a rank gives or gets, padding included. */
static fsdp_status check_buffers(fsdp_process_group *group, const fsdp__call *call, fsdp_stream *stream,
                                 int64_t *out_rows)
{
    int64_t rows = 0;

    FSDP_TRY(fsdp__comm_enter(group, call->name));
    if (!stream)
        return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': the stream is NULL", fsdp__call_text(call->name),
                         group->name);
    if (call->buffer_count < 0 || (call->buffer_count > 0 && !call->buffers))
        return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': no buffers", fsdp__call_text(call->name), group->name);
    for (int64_t i = 0; i < call->buffer_count; i++) {
        const fsdp_sharded_buffer *b = &call->buffers[i];
        int64_t padded;

        if (b->numel < 0 || b->chunk < 0 || __builtin_mul_overflow(b->chunk, (int64_t)group->size, &padded) ||
            padded < b->numel || __builtin_add_overflow(rows, b->chunk, &rows))
            return fail_buffer(group, call->name, i, "the ranks' chunks do not cover it");
        if (b->numel > 0 && !b->unsharded)
            return fail_buffer(group, call->name, i, "its unsharded memory is NULL");
        if (!b->shard && group->rank * b->chunk < b->numel)
            return fail_buffer(group, call->name, i, "this rank has rows but its shard is NULL");
    }
    *out_rows = rows;
    return FSDP_OK;
}

/* The transport's own way, or that which all have. */
static fsdp_status issue_coalesced(fsdp_process_group *group, fsdp_collective kind, fsdp__collective own,
                                   fsdp__collective packed, fsdp__call *call, fsdp_stream *stream)
{
    memcpy(call->label, group->label, sizeof call->label);
    if (own)
        FSDP_TRY(fsdp__comm_issue(group, kind, own, call, stream));
    else
        FSDP_TRY(fsdp__comm_issue_above(group, kind, packed, call, stream));
    return FSDP_OK;
}

fsdp_status fsdp_all_gather_coalesced(fsdp_process_group *group, const fsdp_sharded_buffer *buffers, int64_t count,
                                      fsdp_dtype shard_dtype, fsdp_dtype unsharded_dtype, fsdp_stream *stream)
{
    fsdp__call call = {.name = FSDP__CALL_ALL_GATHER_COALESCED,
                       .buffers = buffers,
                       .buffer_count = count,
                       .shard_dtype = shard_dtype,
                       .unsharded_dtype = unsharded_dtype};
    int64_t rows;

    FSDP_TRY(check_buffers(group, &call, stream, &rows));
    if (!known_dtype(shard_dtype) || (shard_dtype != unsharded_dtype && !(fsdp_dtype_is_floating(shard_dtype) &&
                                                                          fsdp_dtype_is_floating(unsharded_dtype))))
        return FSDP_FAIL(FSDP_INVALID, "cannot all_gather_coalesced in group '%s' from dtype %d to dtype %d",
                         group->name, (int)shard_dtype, (int)unsharded_dtype);
    fsdp__comm_count(group, FSDP_ALL_GATHER, (group->size - 1) * rows * (int64_t)fsdp_dtype_size(unsharded_dtype));
    log_call(group, FSDP_ALL_GATHER, rows * group->size, unsharded_dtype);
    FSDP_TRY(issue_coalesced(group, FSDP_ALL_GATHER, group->ops->all_gather_coalesced, fsdp__coalesced_all_gather,
                             &call, stream));
    return FSDP_OK;
}

fsdp_status fsdp_reduce_scatter_coalesced(fsdp_process_group *group, const fsdp_sharded_buffer *buffers, int64_t count,
                                          const fsdp_reduce_options *options, fsdp_stream *stream)
{
    fsdp__call call = {.name = FSDP__CALL_REDUCE_SCATTER_COALESCED, .buffers = buffers, .buffer_count = count};
    fsdp_dtype reduce_dtype;
    int64_t rows;

    FSDP_TRY(check_buffers(group, &call, stream, &rows));
    if (!options || (options->op != FSDP_SUM && options->op != FSDP_AVG))
        return FSDP_FAIL(FSDP_INVALID, "cannot reduce_scatter_coalesced in group '%s': op must be sum or average",
                         group->name);
    reduce_dtype = options->reduce_dtype == FSDP_DTYPE_NONE ? options->unsharded_dtype : options->reduce_dtype;
    if (!fsdp_dtype_is_floating(options->unsharded_dtype) || !fsdp_dtype_is_floating(options->shard_dtype) ||
        !fsdp_dtype_is_floating(reduce_dtype))
        return FSDP_FAIL(FSDP_INVALID, "cannot reduce_scatter_coalesced in group '%s': all dtypes must be floating",
                         group->name);
    call.shard_dtype = options->shard_dtype;
    call.unsharded_dtype = options->unsharded_dtype;
    call.wire_dtype = reduce_dtype == FSDP_F32 ? options->unsharded_dtype : reduce_dtype; /* widening rounds nothing */
    call.op = options->op;
    call.divisor = options->divisor == 0.0f ? 1.0f : options->divisor;
    call.accumulate = options->accumulate;
    fsdp__comm_count(group, FSDP_REDUCE_SCATTER, (group->size - 1) * rows * (int64_t)fsdp_dtype_size(reduce_dtype));
    log_call(group, FSDP_REDUCE_SCATTER, rows * group->size, reduce_dtype);
    FSDP_TRY(issue_coalesced(group, FSDP_REDUCE_SCATTER, group->ops->reduce_scatter_coalesced,
                             fsdp__coalesced_reduce_scatter, &call, stream));
    return FSDP_OK;
}
