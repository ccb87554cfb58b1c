/* reduce.c - one reduction of a group's gradients. What it reads and writes is collected in the communication context's
 * `in_flight`. */
#include "shard/reduce.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "comm/internal.h"

typedef struct reduction {
    fsdp__param_group *group;
    fsdp__comm_context *comm;
    fsdp_stream *stream;  /* of the reduction */
    fsdp__param **params; /* those that have a gradient to reduce */
    fsdp_sharded_buffer *buffers;
    int64_t count;
    bool accumulated; /* some come from backwards without reduction */
    bool hooked;      /* some shard has gradient hooks: results arrive when all is done */
    bool add;         /* the result is added to gradients that shards have */
} reduction;

static bool has_unreduced(const fsdp__param_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++)
        if (fsdp__param_unreduced(&group->params[i]))
            return true;
    return false;
}

static fsdp_status begin(reduction *r)
{
    size_t most = (size_t)r->group->param_count;

    FSDP_TRY(fsdp__comm_context_reduce_stream(r->comm, r->group->reduce_pg != NULL, &r->stream));
    FSDP_TRY(fsdp__comm_context_make_room(r->comm)); /* none in flight is one that hooks wait for, see below */
    for (int64_t i = 0; i < r->group->param_count; i++)
        r->accumulated = r->accumulated || r->group->params[i].accumulated_grad;
    if (r->accumulated)
        FSDP_TRY(fsdp__param_group_fold_gradients(r->group));
    r->params = fsdp__calloc(most, sizeof *r->params);
    r->buffers = fsdp__calloc(most, sizeof *r->buffers);
    if (!r->params || !r->buffers)
        return FSDP_NO_MEMORY;
    for (int64_t i = 0; i < r->group->param_count; i++) {
        fsdp__param *p = &r->group->params[i];

        if (!fsdp__param_unreduced(p))
            continue;
        r->params[r->count++] = p;
        r->hooked = r->hooked || fsdp__has_grad_hooks(p->sharded);
        r->add = r->add || fsdp_tensor_grad(p->sharded);
    }
    r->add = r->add && !r->hooked; /* hooks see what this reduction brings, not the sum */
    return fsdp__in_flight_reserve(&r->comm->in_flight, r->count, r->stream);
}

/* ---- where results go ---- */

/* A gradient of the shard, a distributed tensor like it, from byte `offset` of `storage` on. */
static fsdp_status make_gradient(const fsdp__param *param, fsdp__storage *storage, size_t offset, fsdp_tensor **out)
{
    const fsdp_tensor *like = param->sharded;
    fsdp_status status;

    FSDP_TRY(fsdp__tensor_create_view(storage, like->dtype, like->ndim, like->shape, NULL,
                                      (int64_t)(offset / fsdp_dtype_size(like->dtype)), out));
    status = fsdp_tensor_set_distribution(*out, fsdp_tensor_distribution(like));
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_tensor_unref(*out);
    *out = NULL;
    return status;
}

/* A gradient that the caller set may lie in strides: the reduction adds to rows that lie together. */
static fsdp_status make_contiguous(fsdp__param *param)
{
    fsdp_tensor *grad = fsdp_tensor_grad(param->sharded), *copy = NULL;
    fsdp_status status;

    if (!grad || fsdp_tensor_is_contiguous(grad))
        return FSDP_OK;
    FSDP_TRY(
        fsdp_tensor_create(grad->storage->device, grad->dtype, grad->ndim, grad->shape, FSDP_MEMORY_GRADIENT, &copy));
    FSDP_TRY_GOTO(status, fsdp__tensor_copy(copy, grad, false), out);
    FSDP_TRY_GOTO(status, fsdp_tensor_set_distribution(copy, fsdp_tensor_distribution(param->sharded)), out);
    fsdp__put_grad(param->sharded, copy);
out:
    fsdp_tensor_unref(copy);
    return status;
}

/* Results that hooks will see: a storage each, so that they can become gradients as they are. */
static fsdp_status make_arriving(reduction *r)
{
    fsdp__in_flight *flight = &r->comm->in_flight;

    for (int64_t i = 0; i < r->count; i++) {
        fsdp__param *p = r->params[i];
        size_t bytes = (size_t)fsdp__param_shard_numel(p) * fsdp_dtype_size(p->orig_dtype);
        fsdp__storage *storage;
        fsdp_status status;

        FSDP_TRY(fsdp__storage_create(r->group->residence.device, bytes, FSDP_MEMORY_GRADIENT, true, &storage));
        status = make_gradient(p, storage, 0, &flight->gradients[i]);
        fsdp__storage_unref(storage);
        FSDP_TRY(status);
        flight->arriving[i] = fsdp_tensor_ref(p->sharded);
        flight->count = i + 1;
    }
    return FSDP_OK;
}

/* One storage for those results that find no gradient to go to; NULL when all do. */
static fsdp_status make_storage(reduction *r, fsdp__storage **out)
{
    size_t bytes = 0;

    *out = NULL;
    for (int64_t i = 0; i < r->count; i++) {
        FSDP_TRY(make_contiguous(r->params[i]));
        if (!fsdp_tensor_grad(r->params[i]->sharded))
            bytes += fsdp__param_padded_bytes(r->params[i], 1, r->params[i]->orig_dtype);
    }
    if (bytes == 0)
        return FSDP_OK;
    return fsdp__storage_create(r->group->residence.device, bytes, FSDP_MEMORY_GRADIENT, true, out);
}

/* The other results go to the gradients that shards have, or to new ones. */
static fsdp_status make_in_place(reduction *r)
{
    fsdp__in_flight *flight = &r->comm->in_flight;
    fsdp__storage *storage;
    size_t offset = 0;
    fsdp_status status = FSDP_OK;

    FSDP_TRY(make_storage(r, &storage));
    for (int64_t i = 0; i < r->count; i++) {
        fsdp__param *p = r->params[i];
        fsdp_tensor *grad = fsdp_tensor_ref(fsdp_tensor_grad(p->sharded));

        if (!grad) {
            FSDP_TRY_GOTO(status, make_gradient(p, storage, offset, &grad), out);
            offset += fsdp__param_padded_bytes(p, 1, p->orig_dtype);
            status = r->add ? fsdp_tensor_fill_(grad, 0.0) : FSDP_OK; /* one collective adds for all, or for none */
        }
        flight->gradients[i] = grad;
        flight->count = i + 1; /* from here on the flight gives it back, whatever fails */
        FSDP_TRY_GOTO(status, status, out);
    }
out:
    fsdp__storage_unref(storage);
    return status;
}

/* ---- issuing ---- */

static fsdp_status issue(reduction *r, float divide_factor)
{
    const fsdp__residence *residence = &r->group->residence;
    fsdp__in_flight *flight = &r->comm->in_flight;
    const fsdp_reduce_options options = {
        .op = divide_factor > 0 ? FSDP_SUM : FSDP_AVG, .divisor = divide_factor, .accumulate = r->add};

    for (int64_t i = 0; i < r->count; i++) {
        const fsdp__param *p = r->params[i];

        flight->unsharded[i] = fsdp_tensor_ref(fsdp__param_unreduced(p));
        r->buffers[i] = fsdp__param_buffer(p);
        r->buffers[i].unsharded = fsdp_tensor_data(flight->unsharded[i]);
        r->buffers[i].shard = fsdp_tensor_data(flight->gradients[i]);
        r->buffers[i].unsharded_dtype = flight->unsharded[i]->dtype;
        r->buffers[i].shard_dtype = p->orig_dtype;
        r->buffers[i].reduce_dtype = p->reduce_dtype;
    }
    /* The gradients are computed by the device's stream; the memory of the results comes from there, too. */
    FSDP_TRY(fsdp__comm_context_follow_compute_on(r->comm, residence->device, r->stream));
    FSDP_TRY(fsdp_reduce_scatter_coalesced(fsdp__param_group_reduce_pg(r->group), r->buffers, r->count, &options,
                                           r->stream));
    return fsdp__in_flight_depart(flight);
}

/* The flight has the gradients now. */
static void hand_over(reduction *r)
{
    for (int64_t i = 0; i < r->count; i++) {
        fsdp__param *p = r->params[i];

        if (!r->hooked)
            fsdp__put_grad(p->sharded, r->comm->in_flight.gradients[i]);
        fsdp__put_grad(p->unsharded, NULL);
        fsdp_tensor_unref(p->accumulated_grad);
        p->accumulated_grad = NULL;
    }
    fsdp__param_group_leave_gradient_buffers(r->group);
}

fsdp_status fsdp__param_group_reduce(fsdp__param_group *group, fsdp__comm_context *comm, float divide_factor,
                                     bool *reduced)
{
    reduction r = {.group = group, .comm = comm};
    fsdp_status status = FSDP_OK;

    *reduced = false;
    if (!has_unreduced(group))
        return FSDP_OK;
    FSDP_TRY_GOTO(status, begin(&r), out);
    if (r.count == 0)
        goto out;
    FSDP_TRY_GOTO(status, r.hooked ? make_arriving(&r) : make_in_place(&r), out);
    FSDP_TRY_GOTO(status, issue(&r, divide_factor), out);
    hand_over(&r);
    if (r.hooked || fsdp__stream_is_inline(r.stream)) /* hooks run at the same moment on any stream */
        FSDP_TRY_GOTO(status, fsdp__comm_context_finish_reduction(comm), out);
    *reduced = true;
out:
    fsdp__free(r.params);
    fsdp__free(r.buffers);
    if (status != FSDP_OK)
        fsdp__comm_context_drop_reduction(comm);
    return status;
}
