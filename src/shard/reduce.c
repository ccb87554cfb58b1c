/* reduce.c - one reduction of a group's gradients. What it reads and writes is collected in the communication context's
 * `in_flight`. */
#include "shard/reduce.h"

#include <math.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "comm/internal.h"
#include "device/kernels.h"
#include "shard/partial.h"

/* What the sum of all ranks is divided by: `before` it is sent, and after. */
typedef struct division {
    float before, after;
} division;

typedef struct reduction {
    fsdp__param_group *group;
    fsdp__comm_context *comm;
    fsdp_stream *stream; /* of the reduction */
    const fsdp__reduce_settings *settings;
    /* `scattered` that are due, the same on all ranks; then those with a partial gradient alone. */
    fsdp__param **params;
    fsdp_sharded_buffer *buffers;
    int64_t count, scattered;
    division division;
    bool present;      /* this rank has a gradient to reduce, or a partial one to complete */
    bool complete;     /* shards get their gradients */
    bool partial;      /* by way of the group's partial gradients */
    bool accumulated;  /* some come from backwards without reduction */
    bool hooked;       /* some shard has gradient hooks: results arrive when all is done */
    bool add;          /* the result is added to gradients that shards have */
    int64_t *places;   /* offloaded: in bytes, where the results lie in the flight's storage of them; else NULL */
    fsdp_dtype dtype;  /* and their dtype; NONE: that of the shards */
    bool adds_partial; /* what is reduced inside the replica is added to partial gradients */
} reduction;

/* This rank has a gradient, or takes part for the sake of those that may have one. */
static bool is_due(const fsdp__param *param)
{
    return param->due || fsdp__param_unreduced(param);
}

static bool has_due(const fsdp__param_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++)
        if (is_due(&group->params[i]))
            return true;
    return false;
}

/* Which way it goes; whether there is anything to do. */
static bool plan(reduction *r)
{
    const fsdp__mesh_info *mesh = &r->group->residence.mesh;
    bool pending = r->group->partial.storage != NULL;

    r->complete = r->settings->all_reduce || !mesh->replicate_pg;
    r->partial = !r->complete || pending || mesh->replicas > 1 || r->settings->hook;
    return has_due(r->group) || (r->complete && pending);
}

static void choose(reduction *r)
{
    fsdp__param_group *group = r->group;

    for (int64_t i = 0; i < group->param_count; i++)
        if (is_due(&group->params[i]))
            r->params[r->count++] = &group->params[i];
    r->scattered = r->count;
    for (int64_t i = 0; i < group->param_count && r->complete; i++)
        if (!is_due(&group->params[i]) && fsdp__param_has_partial(&group->params[i]))
            r->params[r->count++] = &group->params[i];
    for (int64_t i = 0; i < r->count; i++) {
        fsdp__param *p = r->params[i];
        bool has = fsdp__param_unreduced(p);

        r->present = r->present || has || (r->complete && p->partial_used);
        r->hooked = r->hooked || (r->complete && fsdp__has_grad_hooks(p->sharded));
        r->add = r->add || (r->complete && fsdp_tensor_grad(p->sharded));
    }
    r->add = r->add && !r->hooked; /* hooks see what this reduction brings, not the sum */
}

/* f16 has no room for sums of many ranks: contributions are divided by about the root of it (PyTorch's rule). Of a
 * group all are or none is, whichever are reduced now: what adds up between reductions has one divisor. */
static division divide(const reduction *r)
{
    const fsdp__mesh_info *mesh = &r->group->residence.mesh;
    float total =
        r->settings->divide_factor > 0 ? r->settings->divide_factor : (float)mesh->ranks * (float)mesh->replicas;
    bool narrow = false;
    float before = 1;

    for (int64_t i = 0; i < r->group->param_count; i++)
        narrow = narrow || r->group->params[i].reduce_dtype == FSDP_F16;
    while (narrow && fmodf(total, before) == 0 && total / before > before)
        before *= 2;
    return (division){before, total / before};
}

/* As far as it is known: what this rank has a gradient of, and what some rank of the replica had one of before. */
static void note_contributed(reduction *r)
{
    fsdp__in_flight *flight = &r->comm->in_flight;

    flight->asked = false;
    for (int64_t i = 0; i < r->count; i++) {
        flight->contributed[i] = fsdp__param_unreduced(r->params[i]) || r->params[i]->partial_used;
        flight->asked = flight->asked || !flight->contributed[i];
    }
}

static fsdp_status begin(reduction *r)
{
    size_t most = (size_t)r->group->param_count;

    FSDP_TRY(fsdp__comm_context_reduce_stream(r->comm, r->group->reduce_pg != NULL, &r->stream));
    FSDP_TRY(fsdp__comm_context_make_room(r->comm)); /* none in flight is one that hooks wait for, see below */
    r->accumulated = r->group->kept;
    if (r->accumulated)
        FSDP_TRY(fsdp__param_group_fold_gradients(r->group));
    r->params = fsdp__calloc(most, sizeof *r->params);
    r->buffers = fsdp__calloc(most, sizeof *r->buffers);
    if (!r->params || !r->buffers)
        return FSDP_NO_MEMORY;
    choose(r);
    r->division = divide(r);
    if (r->group->partial.storage) /* a reduction into it may be in flight, and it may have to move */
        FSDP_TRY(fsdp__comm_context_land_reductions(r->comm));
    if (r->partial)
        FSDP_TRY(fsdp__param_group_make_partial(r->group, r->params, r->count, &r->adds_partial));
    for (int64_t i = 0; r->partial && !r->adds_partial && i < r->count; i++)
        if (!fsdp__param_unreduced(r->params[i]))
            FSDP_TRY(fsdp__param_zero_partial(r->params[i]));
    FSDP_TRY(fsdp__in_flight_reserve(&r->comm->in_flight, r->count, r->stream));
    note_contributed(r);
    return FSDP_OK;
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

/* A result that hooks will see, or that may be none, has a storage of its own: it can become a gradient as it is. */
static fsdp_status make_arriving(reduction *r, int64_t i)
{
    fsdp__in_flight *flight = &r->comm->in_flight;
    const fsdp__param *p = r->params[i];
    size_t bytes = (size_t)fsdp__param_shard_numel(p) * fsdp_dtype_size(p->orig_dtype);
    fsdp__storage *storage;
    fsdp_status status;

    FSDP_TRY(fsdp__storage_create(r->group->residence.shard_device, bytes, FSDP_MEMORY_GRADIENT, true, &storage));
    status = make_gradient(p, storage, 0, &flight->gradients[i]);
    fsdp__storage_unref(storage);
    FSDP_TRY(status);
    flight->arriving[i] = fsdp_tensor_ref(p->sharded);
    flight->count = i + 1;
    return r->add ? fsdp_tensor_fill_(flight->gradients[i], 0.0) : FSDP_OK;
}

/* What nobody has contributed to leaves the shard's gradient as it is: comm writes nothing, but partial gradients do.
 */
static bool arrives(const reduction *r, int64_t i)
{
    bool maybe_none = !r->comm->in_flight.contributed[i];

    return r->hooked || (maybe_none && (r->partial || !fsdp_tensor_grad(r->params[i]->sharded)));
}

/* One storage for those results that find no gradient to go to; NULL when all do. */
static fsdp_status make_storage(reduction *r, fsdp__storage **out)
{
    size_t bytes = 0;

    *out = NULL;
    for (int64_t i = 0; i < r->count; i++) {
        FSDP_TRY(make_contiguous(r->params[i]));
        if (!fsdp_tensor_grad(r->params[i]->sharded) && !arrives(r, i))
            bytes += fsdp__param_padded_bytes(r->params[i], 1, r->params[i]->orig_dtype);
    }
    if (bytes == 0)
        return FSDP_OK;
    return fsdp__residence_shard_storage(&r->group->residence, bytes, FSDP_MEMORY_GRADIENT, out);
}

/* Another result goes to the gradient that the shard has, or to a new one at `*offset` of `storage`. */
static fsdp_status make_in_place(reduction *r, int64_t i, fsdp__storage *storage, size_t *offset)
{
    fsdp__in_flight *flight = &r->comm->in_flight;
    fsdp__param *p = r->params[i];
    fsdp_tensor *grad = fsdp_tensor_ref(fsdp_tensor_grad(p->sharded));
    bool made = !grad;

    if (made) {
        FSDP_TRY(make_gradient(p, storage, *offset, &grad));
        *offset += fsdp__param_padded_bytes(p, 1, p->orig_dtype);
    }
    flight->gradients[i] = grad;
    flight->count = i + 1; /* from here on the flight gives it back, whatever fails */
    return made && r->add ? fsdp_tensor_fill_(grad, 0.0) : FSDP_OK; /* one collective adds for all, or for none */
}

static void *result_of(const reduction *r, int64_t i)
{
    const fsdp__in_flight *flight = &r->comm->in_flight;

    return flight->results ? (char *)flight->results->data + r->places[i] : fsdp_tensor_data(flight->gradients[i]);
}

static fsdp_dtype result_dtype(const reduction *r, int64_t i)
{
    return r->dtype != FSDP_DTYPE_NONE ? r->dtype : r->params[i]->orig_dtype;
}

/* Where nobody contributes comm writes nothing, and what is added then must change nothing: not a zero's sign either.
 */
static fsdp_status zero_result(const reduction *r, int64_t i)
{
    const fsdp__fill_args args = {
        .dst = result_of(r, i), .dtype = FSDP_F32, .numel = fsdp__param_shard_numel(r->params[i]), .value = -0.0};

    if (r->comm->in_flight.contributed[i] || args.numel == 0)
        return FSDP_OK;
    return fsdp__launch_fill(fsdp_device_stream(r->group->residence.device), &args);
}

/* Where shards are offloaded results lie on the device first. What is added to gradients on the host comes in f32, so
 * that the sum is rounded once, as ever. */
static fsdp_status make_on_device(reduction *r)
{
    int64_t bytes = 0;

    if (!fsdp__residence_is_offloaded(&r->group->residence))
        return FSDP_OK;
    r->places = fsdp__calloc((size_t)r->count, sizeof *r->places);
    if (!r->places)
        return FSDP_NO_MEMORY;
    r->dtype = r->add ? FSDP_F32 : FSDP_DTYPE_NONE;
    for (int64_t i = 0; i < r->count; i++) {
        r->places[i] = bytes;
        bytes += (int64_t)fsdp__param_padded_bytes(r->params[i], 1, result_dtype(r, i));
    }
    FSDP_TRY(fsdp__storage_create(r->group->residence.device, (size_t)bytes, FSDP_MEMORY_GRADIENT, true,
                                  &r->comm->in_flight.results));
    for (int64_t i = 0; i < r->count && r->add; i++)
        FSDP_TRY(zero_result(r, i));
    return FSDP_OK;
}

static fsdp_status make_results(reduction *r)
{
    fsdp__storage *storage;
    size_t offset = 0;
    fsdp_status status = FSDP_OK;

    if (!r->complete) {
        r->comm->in_flight.count = r->count; /* none: but it holds what is reduced */
        return FSDP_OK;
    }
    FSDP_TRY(make_storage(r, &storage));
    for (int64_t i = 0; i < r->count && status == FSDP_OK; i++)
        status = arrives(r, i) ? make_arriving(r, i) : make_in_place(r, i, storage, &offset);
    fsdp__storage_unref(storage);
    return status == FSDP_OK ? make_on_device(r) : status;
}

/* To what shards have, by the reduction itself. */
static bool adds_there(const reduction *r)
{
    return r->add && !r->comm->in_flight.results;
}

/* ---- issuing ---- */

static fsdp_reduce_options scatter_options(const reduction *r)
{
    division d = r->division;
    bool average = r->settings->divide_factor == 0 && !r->settings->force_sum && d.before == 1;

    if (r->partial) /* divided when all have been added */
        return (fsdp_reduce_options){.op = FSDP_SUM, .predivide = d.before, .accumulate = r->adds_partial};
    return (fsdp_reduce_options){.op = average ? FSDP_AVG : FSDP_SUM,
                                 .predivide = d.before,
                                 .divisor = average ? 0 : d.after,
                                 .accumulate = adds_there(r)};
}

/* Of its function's sum nothing is known, so that what ranks have contributed to is asked apart. */
static fsdp_status scatter_by_caller(reduction *r, const fsdp_reduce_options *options)
{
    fsdp_process_group *pg = fsdp__param_group_reduce_pg(r->group);
    fsdp__in_flight *flight = &r->comm->in_flight;

    FSDP_TRY(fsdp__custom_reduce_scatter(&r->group->reduce_scatter, r->comm, pg, r->buffers, r->scattered, options,
                                         r->stream, &flight->packed));
    return fsdp__process_group_any_later(pg, flight->asked ? flight->contributed : NULL, r->scattered, r->stream);
}

/* Inside the replica. A gradient that this rank has not is none of the sum's. */
static fsdp_status scatter(reduction *r)
{
    fsdp_reduce_options options = scatter_options(r);
    fsdp__in_flight *flight = &r->comm->in_flight;

    for (int64_t i = 0; i < r->scattered; i++) {
        fsdp__param *p = r->params[i];
        fsdp_sharded_buffer *b = &r->buffers[i];

        flight->unsharded[i] = fsdp_tensor_ref(fsdp__param_unreduced(p));
        *b = fsdp__param_buffer(p);
        b->unsharded = flight->unsharded[i] ? fsdp_tensor_data(flight->unsharded[i]) : NULL;
        b->shard = r->partial ? fsdp__param_partial(p) : result_of(r, i);
        b->unsharded_dtype = r->accumulated ? p->reduce_dtype : p->param_dtype;
        b->shard_dtype = r->partial ? p->reduce_dtype : result_dtype(r, i);
        b->reduce_dtype = p->reduce_dtype;
    }
    if (r->scattered == 0)
        return FSDP_OK;
    if (r->group->reduce_scatter.run && r->group->residence.mesh.ranks > 1)
        return scatter_by_caller(r, &options);
    options.contributed = flight->asked ? flight->contributed : NULL;
    return fsdp_reduce_scatter_coalesced(fsdp__param_group_reduce_pg(r->group), r->buffers, r->scattered, &options,
                                         r->stream);
}

/* From a parameter's partial gradient to its shard's gradient. */
static fsdp_status finish_param(const reduction *r, int64_t i, float divisor)
{
    const fsdp__param *param = r->params[i];
    const void *partial = fsdp__param_partial(param);
    const fsdp__reduce_ranks_args args = {.srcs = &partial,
                                          .count = 1,
                                          .dst = result_of(r, i),
                                          .numel = fsdp__param_shard_numel(param),
                                          .src_dtype = param->reduce_dtype,
                                          .dst_dtype = result_dtype(r, i),
                                          .op = FSDP__RANK_SUM,
                                          .divisor = divisor,
                                          .accumulate = adds_there(r)};

    return args.numel > 0 ? fsdp__launch_reduce_ranks(r->stream, &args) : FSDP_OK;
}

/* Shows partial gradients to the caller's hook, as what they will be. */
static fsdp_status call_hook(const reduction *r, const fsdp__partial_run *run, void *data, float divisor)
{
    const void *const from = data;
    const fsdp__reduce_ranks_args args = {.srcs = &from,
                                          .count = 1,
                                          .dst = data,
                                          .numel = run->numel,
                                          .src_dtype = run->dtype,
                                          .dst_dtype = run->dtype,
                                          .op = FSDP__RANK_SUM,
                                          .divisor = divisor};
    int64_t offset = run->at / (int64_t)fsdp_dtype_size(run->dtype);
    fsdp_tensor *gradients;
    fsdp_status status;

    FSDP_TRY(fsdp__launch_reduce_ranks(r->stream, &args));
    FSDP_TRY(fsdp__tensor_create_view(r->group->partial.storage, run->dtype, 1, &run->numel, NULL, offset, &gradients));
    status = r->settings->hook(r->settings->hook_arg, gradients, r->stream);
    fsdp_tensor_unref(gradients);
    return status;
}

/* Over the replicas, and into the shards' gradients. */
static fsdp_status finish_partial(reduction *r)
{
    const fsdp__mesh_info *mesh = &r->group->residence.mesh;
    const fsdp__partial *partial = &r->group->partial;
    fsdp__in_flight *flight = &r->comm->in_flight;
    float divisor = r->division.after;

    for (int i = 0; i < partial->run_count; i++) {
        const fsdp__partial_run *run = &partial->runs[i];
        void *data = (char *)partial->storage->data + run->at;

        if (mesh->replicas > 1) /* the first joins the replicas' flags */
            FSDP_TRY(fsdp__all_reduce_with_flags(mesh->replicate_pg, data, run->numel, run->dtype, FSDP_SUM,
                                                 flight->asked ? flight->contributed : NULL, i == 0 ? r->count : 0,
                                                 r->stream));
        if (r->settings->hook)
            FSDP_TRY(call_hook(r, run, data, divisor));
    }
    if (r->settings->hook)
        divisor = 1; /* it has seen the quotient */
    for (int64_t i = 0; i < r->count; i++)
        FSDP_TRY(finish_param(r, i, divisor));
    return FSDP_OK;
}

/* To the host. */
static fsdp_status bring(const reduction *r)
{
    fsdp__arriving *arriving = fsdp__calloc((size_t)r->count, sizeof *arriving);
    fsdp_status status;

    if (!arriving)
        return FSDP_NO_MEMORY;
    for (int64_t i = 0; i < r->count; i++)
        arriving[i] = (fsdp__arriving){result_of(r, i), result_dtype(r, i), r->comm->in_flight.gradients[i]};
    status = fsdp__arrivals_bring(&r->comm->arrivals, r->stream, arriving, r->count, r->add);
    fsdp__free(arriving);
    return status;
}

static fsdp_status issue(reduction *r)
{
    /* The gradients are computed by the device's stream; the memory of the results comes from there, too. */
    FSDP_TRY(fsdp__comm_context_follow_compute_on(r->comm, r->group->residence.device, r->stream));
    FSDP_TRY(scatter(r));
    if (r->partial && r->complete)
        FSDP_TRY(finish_partial(r));
    if (r->comm->in_flight.results)
        FSDP_TRY(bring(r));
    return fsdp__in_flight_depart(&r->comm->in_flight);
}

/* The flight has the gradients now. */
static void hand_over(reduction *r)
{
    fsdp__in_flight *flight = &r->comm->in_flight;

    for (int64_t i = 0; i < r->count; i++) {
        fsdp__param *p = r->params[i];

        if (r->complete && !flight->arriving[i])
            fsdp__put_grad(p->sharded, flight->gradients[i]);
        fsdp__put_grad(p->unsharded, NULL);
        fsdp_tensor_unref(p->accumulated_grad);
        p->accumulated_grad = NULL;
        p->due = false;
        p->partial_used = !r->complete && flight->contributed[i];
        if (r->complete && r->settings->landed)
            flight->shards[i] = fsdp_tensor_ref(p->sharded);
    }
    flight->landed = r->complete ? r->settings->landed : NULL;
    flight->landed_arg = r->settings->landed_arg;
    r->group->kept = false;
    fsdp__param_group_leave_gradient_buffers(r->group);
}

/* What the stream is at may be dropped meanwhile: the flight holds it. */
static void hold_partial(reduction *r)
{
    fsdp__storage *storage = r->group->partial.storage;

    if (!r->partial)
        return;
    if (r->complete)
        (void)fsdp__param_group_take_partial(r->group);
    else
        storage->refs++;
    r->comm->in_flight.partial = storage;
}

fsdp_status fsdp__param_group_reduce(fsdp__param_group *group, fsdp__comm_context *comm,
                                     const fsdp__reduce_settings *settings, bool *reduced)
{
    reduction r = {.group = group, .comm = comm, .settings = settings};
    fsdp_status status = FSDP_OK;

    *reduced = false;
    if (!plan(&r))
        return FSDP_OK;
    FSDP_TRY_GOTO(status, begin(&r), out);
    if (r.count == 0)
        goto out;
    FSDP_TRY_GOTO(status, make_results(&r), out);
    status = issue(&r);
    hold_partial(&r); /* also after a failure: the stream may be at a part of it */
    FSDP_TRY_GOTO(status, status, out);
    if (comm->in_flight.asked && !r.complete) /* what was used is remembered with the partial gradients */
        FSDP_TRY_GOTO(status, fsdp_event_synchronize(comm->in_flight.done), out);
    hand_over(&r);
    if (r.hooked || fsdp__stream_is_inline(r.stream)) /* hooks run at the same moment on any stream */
        FSDP_TRY_GOTO(status, fsdp__comm_context_finish_reduction(comm), out);
    *reduced = r.present;
out:
    fsdp__free(r.params);
    fsdp__free(r.buffers);
    fsdp__free(r.places);
    if (status != FSDP_OK) /* this one alone: those before it may be others' */
        fsdp__in_flight_drop(&comm->in_flight);
    return status;
}
