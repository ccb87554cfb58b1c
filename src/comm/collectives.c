/* collectives.c - the public collectives: the one place where arguments are checked, and calls are counted and passed
 * on. */
#include <string.h>

#include "base/compiler.h"
#include "base/context.h"
#include "comm/choose_carrier.h"
#include "comm/counters.h"
#include "comm/group_calls.h"
#include "comm/issue.h"
#include "comm/shared_memory.h"
#include "comm/transport/sharded_buffer.h"

static bool known_dtype(fsdp_dtype dtype)
{
    return fsdp_dtype_size(dtype) > 0;
}

/* Checks what every plain collective has. `copies` says how many times `count` elements the larger buffer holds. */
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
    return fsdp__carrier_ready(group, stream);
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

fsdp_status fsdp_all_gather(fsdp_process_group *group, const void *send, void *recv, int64_t count, fsdp_dtype dtype,
                            fsdp_stream *stream)
{
    fsdp__call call = {.name = FSDP__CALL_ALL_GATHER, .send = send, .recv = recv, .count = count, .dtype = dtype};

    FSDP_TRY(check(group, call.name, &call, group ? group->size : 1, stream));
    fsdp__comm_count(group, FSDP_ALL_GATHER, (group->size - 1) * bytes_of(&call));
    return fsdp__comm_issue(group, FSDP_ALL_GATHER, fsdp__collectives_of(group, stream)->all_gather, &call, stream);
}

fsdp_status fsdp_reduce_scatter(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                fsdp_dtype dtype, fsdp_reduce_op op, fsdp_stream *stream)
{
    fsdp__call call = {
        .name = FSDP__CALL_REDUCE_SCATTER, .send = send, .recv = recv, .count = count, .dtype = dtype, .op = op};

    FSDP_TRY(check(group, call.name, &call, group ? group->size : 1, stream));
    FSDP_TRY(check_reduction(group, &call));
    fsdp__comm_count_reduction(group, FSDP_REDUCE_SCATTER, op, (group->size - 1) * bytes_of(&call));
    return fsdp__comm_issue(group, FSDP_REDUCE_SCATTER, fsdp__collectives_of(group, stream)->reduce_scatter, &call,
                            stream);
}

static fsdp_status issue_all_reduce(fsdp_process_group *group, fsdp__call *call, fsdp_stream *stream)
{
    call->name = FSDP__CALL_ALL_REDUCE;
    FSDP_TRY(check(group, call->name, call, 2, stream));
    FSDP_TRY(check_reduction(group, call));
    /* 2 (W-1)/W n, rounded to whole bytes */
    fsdp__comm_count_reduction(group, FSDP_ALL_REDUCE, call->op, 2 * bytes_of(call) * (group->size - 1) / group->size);
    return fsdp__comm_issue(group, FSDP_ALL_REDUCE, fsdp__collectives_of(group, stream)->all_reduce, call, stream);
}

fsdp_status fsdp_all_reduce(fsdp_process_group *group, const void *send, void *recv, int64_t count, fsdp_dtype dtype,
                            fsdp_reduce_op op, fsdp_stream *stream)
{
    fsdp__call call = {.send = send, .recv = recv, .count = count, .dtype = dtype, .op = op};

    return issue_all_reduce(group, &call, stream);
}

fsdp_status fsdp__process_group_any(fsdp_process_group *group, const fsdp__any *any)
{
    fsdp__call call = {.name = FSDP__CALL_ANY, .dtype = FSDP_U8, .op = FSDP_MAX};

    if (any->stream) {
        call.flags = any->flags;
        call.flag_count = any->count;
        call.lacking = any->lacking;
    } else { /* on the host they are what is reduced */
        call.send = call.recv = any->flags;
        call.count = any->count;
    }
    if (any->dtype != FSDP_DTYPE_NONE) {
        call.send = any->send;
        call.recv = any->recv;
        call.count = any->numel;
        call.dtype = any->dtype;
        call.op = any->op;
        if (any->labelled)
            memcpy(call.label, group->label, sizeof call.label);
        return issue_all_reduce(group, &call, any->stream);
    }
    FSDP_TRY(fsdp__comm_enter(group, call.name));
    if (group->size == 1)
        return FSDP_OK;
    if (any->stream)
        FSDP_TRY(fsdp__carrier_ready(group, any->stream));
    return any->stream
               ? fsdp__comm_issue(group, FSDP_COLLECTIVES, fsdp__collectives_of(group, any->stream)->all_reduce, &call,
                                  any->stream)
               : fsdp__comm_issue_host(group, FSDP_COLLECTIVES, fsdp__collectives_of(group, NULL)->all_reduce, &call);
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
    return fsdp__comm_issue(group, FSDP_BROADCAST, fsdp__collectives_of(group, stream)->broadcast, &call, stream);
}

static fsdp_status issue_all_to_all(fsdp_process_group *group, fsdp__call *call, fsdp_stream *stream)
{
    call->name = FSDP__CALL_ALL_TO_ALL;
    FSDP_TRY(check(group, call->name, call, group ? group->size : 1, stream));
    if (call->count > 0 && call->send == call->recv)
        return FSDP_FAIL(FSDP_INVALID, "cannot all_to_all in group '%s': not possible in place", group->name);
    fsdp__comm_count(group, FSDP_ALL_TO_ALL, (group->size - 1) * bytes_of(call));
    return fsdp__comm_issue(group, FSDP_ALL_TO_ALL, fsdp__collectives_of(group, stream)->all_to_all, call, stream);
}

fsdp_status fsdp_all_to_all(fsdp_process_group *group, const void *send, void *recv, int64_t count, fsdp_dtype dtype,
                            fsdp_stream *stream)
{
    fsdp__call call = {.send = send, .recv = recv, .count = count, .dtype = dtype};

    return issue_all_to_all(group, &call, stream);
}

fsdp_status fsdp__process_group_all_to_all(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                           fsdp_dtype dtype, fsdp_stream *stream)
{
    fsdp__call call = {.send = send, .recv = recv, .count = count, .dtype = dtype};

    memcpy(call.label, group->label, sizeof call.label);
    return issue_all_to_all(group, &call, stream);
}

fsdp_status fsdp_barrier(fsdp_process_group *group)
{
    fsdp__call call = {.name = FSDP__CALL_BARRIER};

    FSDP_TRY(fsdp__comm_enter(group, call.name));
    fsdp__comm_count(group, FSDP_BARRIER, 0);
    return fsdp__comm_issue_host(group, FSDP_BARRIER, fsdp__collectives_of(group, NULL)->barrier, &call);
}

/* ---- buffers ---- */

static fsdp_status fail_buffer(const fsdp_process_group *group, fsdp__call_name name, int64_t i, const char *what)
{
    return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': buffer %lld: %s", fsdp__call_text(name), group->name,
                     (long long)i, what);
}

static fsdp_status check_buffer(const fsdp_process_group *group, const fsdp__call *call, int64_t i)
{
    const fsdp_sharded_buffer *b = &call->buffers[i];
    bool reduces = call->name == FSDP__CALL_REDUCE_SCATTER_COALESCED;
    int64_t padded;

    if (b->numel < 0 || b->chunk < 0 || b->outer < 0 ||
        __builtin_mul_overflow(b->chunk, (int64_t)group->size, &padded) || padded < b->numel ||
        __builtin_mul_overflow(padded, FSDP__MAX(b->outer, 1), &padded) ||
        __builtin_mul_overflow(padded, (int64_t)sizeof(int64_t), &padded))
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot %s in group '%s': buffer %lld: the ranks' chunks do not cover it: %d of %lld, of a "
                         "numel of %lld (outer %lld)",
                         fsdp__call_text(call->name), group->name, (long long)i, group->size, (long long)b->chunk,
                         (long long)b->numel, (long long)b->outer);
    if (b->numel > 0 && !b->unsharded && !reduces)
        return fail_buffer(group, call->name, i, "its unsharded memory is NULL");
    if (!b->shard && group->rank * b->chunk < b->numel)
        return fail_buffer(group, call->name, i, "this rank has rows but its shard is NULL");
    if (reduces && (!fsdp_dtype_is_floating(b->unsharded_dtype) || !fsdp_dtype_is_floating(b->shard_dtype) ||
                    (b->reduce_dtype != FSDP_DTYPE_NONE && !fsdp_dtype_is_floating(b->reduce_dtype))))
        return fail_buffer(group, call->name, i, "all its dtypes must be floating");
    if (!known_dtype(b->shard_dtype) ||
        (b->shard_dtype != b->unsharded_dtype &&
         !(fsdp_dtype_is_floating(b->shard_dtype) && fsdp_dtype_is_floating(b->unsharded_dtype))))
        return FSDP_FAIL(
            FSDP_INVALID,
            "cannot %s in group '%s': buffer %lld: shard_dtype is %d and unsharded_dtype %d, which do not go "
            "together",
            fsdp__call_text(call->name), group->name, (long long)i, (int)b->shard_dtype, (int)b->unsharded_dtype);
    return FSDP_OK;
}

static fsdp_status check_buffers(fsdp_process_group *group, const fsdp__call *call, fsdp_stream *stream)
{
    FSDP_TRY(fsdp__comm_enter(group, call->name));
    if (!stream)
        return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': the stream is NULL", fsdp__call_text(call->name),
                         group->name);
    if (call->buffer_count < 0 || (call->buffer_count > 0 && !call->buffers))
        return FSDP_FAIL(FSDP_INVALID, "cannot %s in group '%s': no buffers", fsdp__call_text(call->name), group->name);
    for (int64_t i = 0; i < call->buffer_count; i++)
        FSDP_TRY(check_buffer(group, call, i));
    return fsdp__carrier_ready(group, stream);
}

/* Checks a gather into shared memory, of which each row has one writer on each machine. */
static fsdp_status check_shared(const fsdp_process_group *group, const fsdp__call *call)
{
    if (!call->shared)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot all_gather_coalesced in group '%s': some of its buffers lie in shared memory, others "
                         "do not",
                         group->name);
    if (!fsdp_process_group_can_share(group, FSDP_MEMORY_SHARED))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot all_gather_coalesced in group '%s' into shared memory: it does not have the same "
                         "local ranks of each machine",
                         group->name);
    return FSDP_OK;
}

fsdp_status fsdp_all_gather_coalesced(fsdp_process_group *group, const fsdp_sharded_buffer *buffers, int64_t count,
                                      fsdp_stream *stream)
{
    fsdp__call call = {.name = FSDP__CALL_ALL_GATHER_COALESCED, .buffers = buffers, .buffer_count = count};
    int64_t bytes = 0, beyond;

    FSDP_TRY(check_buffers(group, &call, stream));
    beyond = fsdp__shared_memory_find(group->comm, &call);
    if (beyond >= 0)
        return fail_buffer(group, call.name, beyond,
                           "it reaches beyond the end of the shared memory that it begins in");
    if (group->size > 1 && call.places != 0)
        FSDP_TRY(check_shared(group, &call));
    for (int64_t i = 0; i < count; i++)
        bytes += fsdp__chunk_numel(&buffers[i]) * (int64_t)fsdp_dtype_size(buffers[i].unsharded_dtype);
    fsdp__comm_count(group, FSDP_ALL_GATHER, (group->size - 1) * bytes);
    memcpy(call.label, group->label, sizeof call.label);
    return fsdp__comm_issue(group, FSDP_ALL_GATHER, fsdp__collectives_of(group, stream)->all_gather_coalesced, &call,
                            stream);
}

/* Counts a reduction that contributes to everything: then this rank knows what will be sent. */
static void count_reduction(fsdp_process_group *group, fsdp__call *call)
{
    int64_t bytes = 0;

    call->counted = true;
    for (int64_t i = 0; i < call->buffer_count; i++) {
        bool contributes = call->buffers[i].unsharded;

        call->counted = call->counted && contributes;
        bytes += fsdp__reduced_bytes(&call->buffers[i], group->size);
        if (call->contributed) /* what is known here; on a device without bytes nothing is added later */
            call->contributed[i] |= contributes;
    }
    if (call->counted)
        fsdp__comm_count_reduction(group, FSDP_REDUCE_SCATTER, call->op, bytes);
}

fsdp_status fsdp_reduce_scatter_coalesced(fsdp_process_group *group, const fsdp_sharded_buffer *buffers, int64_t count,
                                          const fsdp_reduce_options *options, fsdp_stream *stream)
{
    fsdp__call call = {.name = FSDP__CALL_REDUCE_SCATTER_COALESCED, .buffers = buffers, .buffer_count = count};

    FSDP_TRY(check_buffers(group, &call, stream));
    if (!options || (options->op != FSDP_SUM && options->op != FSDP_AVG))
        return FSDP_FAIL(FSDP_INVALID, "cannot reduce_scatter_coalesced in group '%s': op must be sum or average",
                         group->name);
    call.op = options->op;
    call.predivide = options->predivide == 0.0f ? 1.0f : options->predivide;
    call.divisor = options->divisor == 0.0f ? 1.0f : options->divisor;
    call.accumulate = options->accumulate;
    call.contributed = options->contributed;
    count_reduction(group, &call);
    memcpy(call.label, group->label, sizeof call.label);
    return fsdp__comm_issue(group, FSDP_REDUCE_SCATTER, fsdp__collectives_of(group, stream)->reduce_scatter_coalesced,
                            &call, stream);
}
