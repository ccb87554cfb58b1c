/* results.c - finds places for what a reduction brings: in gradients that shards have, or in new ones. */
#include "shard/reduce/results.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "device/kernels.h"

int64_t fsdp__result_count(const fsdp__reduction *r)
{
    return r->group->vector.sharded ? 1 : r->count;
}

/* Returns the parameter, or the vector, that the i-th result is for. */
static const fsdp__param *holder_of(const fsdp__reduction *r, int64_t i)
{
    return r->group->vector.sharded ? &r->group->vector : r->params[i];
}

fsdp_tensor *fsdp__result_shard(const fsdp__reduction *r, int64_t i)
{
    return holder_of(r, i)->sharded;
}

/* Makes a gradient of the shard `like`, a distributed tensor as that is, from byte `offset` of `storage` on. */
static fsdp_status make_gradient(const fsdp_tensor *like, fsdp__storage *storage, size_t offset, fsdp_tensor **out)
{
    FSDP_TRY(fsdp__tensor_create_view(storage, like->dtype, like->ndim, like->shape, NULL,
                                      (int64_t)(offset / fsdp_dtype_size(like->dtype)), out));
    return fsdp__distribute_like(like, out);
}

/* Makes a result that hooks will see, or that may be none. It has a storage of its own, so that it can become a
 * gradient as it is. */
static fsdp_status make_arriving(fsdp__reduction *r, int64_t i)
{
    fsdp__in_flight *flight = &r->comm->in_flight;
    const fsdp__param *p = r->params[i];
    size_t bytes = (size_t)fsdp__param_shard_numel(p) * fsdp_dtype_size(p->orig_dtype);
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;

    FSDP_TRY(fsdp__storage_create(r->group->residence.shard_device, bytes, FSDP_MEMORY_GRADIENT, true, &storage));
    FSDP_TRY(make_gradient(p->sharded, storage, 0, &flight->gradients[i]));
    flight->arriving[i] = fsdp_tensor_ref(p->sharded);
    flight->count = i + 1;
    return r->add ? fsdp_tensor_fill_(flight->gradients[i], 0.0) : FSDP_OK;
}

/* Returns whether a result arrives later. A result that nobody has contributed to must leave the shard's gradient as it
 * is: comm then writes nothing, but partial gradients would. */
static bool arrives(const fsdp__reduction *r, int64_t i)
{
    bool maybe_none = !fsdp__in_flight_contributed(&r->comm->in_flight, i);

    return r->hooked || (maybe_none && (r->partial || !fsdp_tensor_grad(fsdp__result_shard(r, i))));
}

/* Returns whether the gradient of a rank that is alone is the result as it is, and nobody else holds it. */
static bool is_result(const fsdp__reduction *r, int64_t i)
{
    const fsdp__param *p = r->params[i];
    const fsdp_tensor *grad = fsdp__param_unreduced(p);

    return grad && r->group->residence.mesh.ranks == 1 && !r->partial && !r->add &&
           r->division.before * r->division.after == 1.0f && grad->dtype == p->orig_dtype &&
           fsdp__param_sent_dtype(p) == p->orig_dtype && !fsdp__residence_is_offloaded(&r->group->residence) &&
           fsdp_tensor_is_contiguous(grad) && fsdp__grad_exclusive(grad);
}

/* Makes one storage for the results whose shards have no gradient; NULL if all have one. */
static fsdp_status make_storage(fsdp__reduction *r, fsdp__storage **out)
{
    size_t bytes = 0;
    bool any = false; /* may be true with no bytes: parameters without elements */

    *out = NULL;
    for (int64_t i = 0; i < r->count; i++) {
        FSDP_TRY(fsdp__param_make_grad_contiguous(r->params[i]));
        if (fsdp_tensor_grad(r->params[i]->sharded) || arrives(r, i) || is_result(r, i))
            continue;
        any = true;
        bytes += fsdp__param_padded_bytes(r->params[i], 1, r->params[i]->orig_dtype);
    }
    if (!any)
        return FSDP_OK;
    return fsdp__residence_shard_storage(&r->group->residence, bytes, out);
}

/* Makes any other result: the gradient that the shard has, or a new one at `*offset` of `storage`. */
static fsdp_status make_in_place(fsdp__reduction *r, int64_t i, fsdp__storage *storage, size_t *offset)
{
    fsdp__in_flight *flight = &r->comm->in_flight;
    fsdp__param *p = r->params[i];
    fsdp_tensor *grad = fsdp_tensor_ref(fsdp_tensor_grad(p->sharded));
    bool made = !grad;

    if (is_result(r, i)) {
        fsdp__storage *there = fsdp__param_unreduced(p)->storage;

        FSDP_TRY(make_gradient(p->sharded, there,
                               (size_t)fsdp__param_unreduced(p)->offset * fsdp_dtype_size(p->orig_dtype), &grad));
    } else if (made) {
        FSDP_TRY(make_gradient(p->sharded, storage, *offset, &grad));
        *offset += fsdp__param_padded_bytes(p, 1, p->orig_dtype);
    }
    flight->gradients[i] = grad;
    flight->count = i + 1; /* from here on the flight releases it, even after a failure */
    FSDP_TRY(fsdp_tensor_begin_write(grad));
    return made && r->add ? fsdp_tensor_fill_(grad, 0.0) : FSDP_OK; /* one collective adds for all, or none */
}

void *fsdp__result_place(const fsdp__reduction *r, int64_t i)
{
    const fsdp__in_flight *flight = &r->comm->in_flight;
    const fsdp__param *p = r->params[i];

    if (flight->results)
        return (char *)flight->results->data + r->places[i];
    if (r->together)
        return (char *)fsdp__result_vector(r) + (size_t)p->part.in_shard * fsdp_dtype_size(p->orig_dtype);
    return fsdp_tensor_data(flight->gradients[i]);
}

fsdp_dtype fsdp__result_dtype(const fsdp__reduction *r, int64_t i)
{
    return r->dtype != FSDP_DTYPE_NONE ? r->dtype : r->params[i]->orig_dtype;
}

/* Prepares a result that may get no contribution. comm then writes nothing, and adding it must change nothing, not even
 * the sign of a zero. */
static fsdp_status zero_result(const fsdp__reduction *r, int64_t i)
{
    fsdp_stream *stream = fsdp_device_stream(r->group->residence.device);
    /* A vector is filled with its padding. */
    void *place = r->together ? fsdp__result_vector(r) : fsdp__result_place(r, i);
    int64_t numel = r->together ? r->group->vector.chunk_numel : fsdp__param_shard_numel(r->params[i]);

    if (fsdp__in_flight_contributed(&r->comm->in_flight, i))
        return FSDP_OK;
    return fsdp__launch_fill_run(stream, place, FSDP_F32, numel, -0.0);
}

/* Makes places on the device for results of offloaded shards. Results that are added to gradients on the host come in
 * f32, so that the sum is rounded once, as always. */
static fsdp_status make_on_device(fsdp__reduction *r)
{
    int64_t bytes = 0;

    if (!fsdp__residence_is_offloaded(&r->group->residence))
        return FSDP_OK;
    FSDP__TRY_NEW(r->places = fsdp__calloc((size_t)r->count, sizeof *r->places));
    r->dtype = r->add ? FSDP_F32 : FSDP_DTYPE_NONE;
    for (int64_t i = 0; i < r->count; i++) {
        const fsdp__param *p = r->params[i], *buffer = &r->group->buffers[fsdp__param_buffer_index(p)];

        r->places[i] = bytes + p->part.in_shard * (int64_t)fsdp_dtype_size(fsdp__result_dtype(r, i));
        if (!r->together || i == r->count - 1)
            bytes += (int64_t)fsdp__param_padded_bytes(buffer, 1, fsdp__result_dtype(r, i));
    }
    FSDP_TRY(fsdp__storage_create(r->group->residence.device, (size_t)bytes, FSDP_MEMORY_GRADIENT, true,
                                  &r->comm->in_flight.results));
    for (int64_t i = 0; i < (r->together ? 1 : r->count) && r->add; i++)
        FSDP_TRY(zero_result(r, i));
    return FSDP_OK;
}

/* ---- flat groups ---- */

/* Returns the vector that holds the gradients of all results already; NULL if they have none, or they lie elsewhere. */
static fsdp__storage *vector_of(const fsdp__reduction *r)
{
    const fsdp_tensor *first = fsdp_tensor_grad(fsdp__result_shard(r, 0));
    fsdp_dtype dtype = r->params[0]->orig_dtype;
    size_t bytes = (size_t)r->group->vector.chunk_numel * fsdp_dtype_size(dtype);

    for (int64_t i = 0; i < fsdp__result_count(r); i++) {
        const fsdp_tensor *grad = fsdp_tensor_grad(fsdp__result_shard(r, i));

        if (!grad || grad->storage != first->storage || grad->dtype != dtype || grad->storage->bytes != bytes ||
            grad->offset != holder_of(r, i)->part.in_shard || !fsdp_tensor_is_contiguous(grad))
            return NULL;
    }
    return first->storage;
}

static fsdp_status make_in_vector(fsdp__reduction *r, int64_t i, fsdp__storage *vector)
{
    fsdp__in_flight *flight = &r->comm->in_flight;
    fsdp_tensor *shard = fsdp__result_shard(r, i), *grad = fsdp_tensor_grad(shard);
    size_t offset = (size_t)holder_of(r, i)->part.in_shard * fsdp_dtype_size(shard->dtype);

    if (grad && grad->storage == vector)
        flight->gradients[i] = fsdp_tensor_ref(grad);
    else
        FSDP_TRY(make_gradient(shard, vector, offset, &flight->gradients[i]));
    FSDP_TRY(fsdp_tensor_begin_write(flight->gradients[i]));
    if (grad != flight->gradients[i] && (grad || arrives(r, i)))
        flight->arriving[i] = fsdp_tensor_ref(shard);
    flight->count = i + 1;
    return FSDP_OK;
}

static fsdp_status clear(const fsdp__storage *vector, fsdp_dtype dtype)
{
    return fsdp__launch_fill_run(fsdp_device_stream(vector->device), vector->data, dtype,
                                 (int64_t)(vector->bytes / fsdp_dtype_size(dtype)), 0.0);
}

/* Makes the results of a flat group. One collective cannot add to gradients that lie elsewhere, or do not exist. */
static fsdp_status make_vector_results(fsdp__reduction *r)
{
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *vector = r->add && !arrives(r, 0) ? vector_of(r) : NULL;
    size_t bytes = (size_t)r->group->vector.chunk_numel * fsdp_dtype_size(r->group->vector.orig_dtype);

    r->add = vector != NULL;
    if (vector)
        vector->refs++;
    else
        FSDP_TRY(fsdp__residence_shard_storage(&r->group->residence, bytes, &vector));
    if (!r->add && (r->partial || vector->device != r->group->residence.device)) /* padding stays zero */
        FSDP_TRY(clear(vector, r->params[0]->orig_dtype));
    for (int64_t i = 0; i < fsdp__result_count(r); i++)
        FSDP_TRY(make_in_vector(r, i, vector));
    return FSDP_OK;
}

void *fsdp__result_vector(const fsdp__reduction *r)
{
    const fsdp__in_flight *flight = &r->comm->in_flight;

    return flight->results ? flight->results->data : flight->gradients[0]->storage->data;
}

fsdp_status fsdp__make_results(fsdp__reduction *r)
{
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;
    size_t offset = 0;

    if (!r->complete) {
        r->comm->in_flight.count = r->count; /* no results, but the flight holds what is reduced */
        return FSDP_OK;
    }
    if (r->together) {
        FSDP_TRY(make_vector_results(r));
        return make_on_device(r);
    }
    FSDP_TRY(make_storage(r, &storage));
    for (int64_t i = 0; i < r->count; i++)
        FSDP_TRY(arrives(r, i) ? make_arriving(r, i) : make_in_place(r, i, storage, &offset));
    return make_on_device(r);
}

bool fsdp__adds_in_place(const fsdp__reduction *r)
{
    return r->add && !r->comm->in_flight.results;
}
