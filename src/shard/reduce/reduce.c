/* reduce.c - one reduction of a group's gradients. The communication context's `in_flight` collects what it reads and
 * writes. */
#include "shard/reduce/reduce.h"

#include <math.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/context.h"
#include "comm/group_calls.h"
#include "shard/reduce/contributions.h"
#include "shard/reduce/low_gradients.h"
#include "shard/reduce/partial.h"
#include "shard/reduce/results.h"

static bool has_due(const fsdp__param_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++)
        if (fsdp__param_is_due(&group->params[i]))
            return true;
    return false;
}

/* Plans the reduction, and returns whether there is anything to do. */
static bool plan(fsdp__reduction *r)
{
    const fsdp__mesh_info *mesh = &r->group->residence.mesh;
    bool pending = r->group->partial.storage != NULL;

    r->complete = r->settings->all_reduce || !mesh->replicate_pg;
    r->partial = !r->complete || pending || mesh->replicas > 1 || r->settings->hook;
    return has_due(r->group) || (r->complete && pending);
}

/* Returns whether the param is reduced. Where all parameters are one buffer, every trained one is. */
static bool is_reduced(const fsdp__reduction *r, const fsdp__param *param)
{
    return fsdp__param_is_due(param) || (r->together && fsdp_tensor_requires_grad(param->sharded));
}

static void choose(fsdp__reduction *r)
{
    fsdp__param_group *group = r->group;
    bool due = has_due(group);

    for (int64_t i = 0; i < group->param_count; i++)
        if (due && is_reduced(r, &group->params[i]))
            r->params[r->count++] = &group->params[i];
    r->scattered = r->count;
    for (int64_t i = 0; i < group->param_count && r->complete; i++)
        if (!(due && is_reduced(r, &group->params[i])) && fsdp__param_has_partial(&group->params[i]))
            r->params[r->count++] = &group->params[i];
    for (int64_t i = 0; i < r->count; i++) {
        fsdp__param *p = r->params[i];
        bool has = fsdp__param_unreduced(p);

        r->present = r->present || has || (r->complete && p->partial_used);
    }
    for (int64_t i = 0; r->complete && r->count > 0 && i < fsdp__result_count(r); i++) {
        const fsdp_tensor *shard = fsdp__result_shard(r, i);

        r->hooked = r->hooked || fsdp__has_grad_hooks(shard);
        r->add = r->add || fsdp_tensor_grad(shard);
    }
    r->add = r->add && !r->hooked; /* hooks see what this reduction brings, not the sum */
}

/* Chooses the division. f16 has no room for sums of many ranks, so contributions are divided by about the root of the
 * total first (PyTorch's rule). Within a group that holds for all parameters or for none, whichever are reduced now:
 * what adds up between reductions has one divisor. */
static fsdp__division divide(const fsdp__reduction *r)
{
    const fsdp__mesh_info *mesh = &r->group->residence.mesh;
    float total =
        r->settings->divide_factor > 0 ? r->settings->divide_factor : (float)mesh->ranks * (float)mesh->replicas;
    bool narrow = false;
    float before = 1;

    for (int64_t i = 0; i < r->group->param_count; i++)
        narrow = narrow || fsdp__param_sent_dtype(&r->group->params[i]) == FSDP_F16;
    while (narrow && fmodf(total, before) == 0 && total / before > before)
        before *= 2;
    return (fsdp__division){before, total / before};
}

/* Notes who has contributed, as far as that is known: this rank has a gradient, or some rank of the replica had one
 * before. */
static void note_contributed(fsdp__reduction *r)
{
    fsdp__in_flight *flight = &r->comm->in_flight;

    flight->asked = false;
    flight->together = r->together;
    for (int64_t i = 0; i < r->count; i++)
        flight->contributed[i] = fsdp__param_unreduced(r->params[i]) || r->params[i]->partial_used;
    for (int64_t i = 1; i < r->count && flight->together; i++)
        flight->contributed[0] |= flight->contributed[i];
    for (int64_t i = 0; i < r->count; i++)
        flight->asked = flight->asked || !fsdp__in_flight_contributed(flight, i);
}

static int64_t flag_count(const fsdp__reduction *r)
{
    return r->together ? 1 : r->count;
}

/* Returns whether the reduction runs beside gathers: on request, and where it crosses the network to replicas, because
 * gathers then use other links. Through the same links both would take as long as one after the other. */
static bool runs_apart(const fsdp__param_group *group)
{
    return group->reduce_pg || fsdp__mesh_info_replicas_span_machines(&group->residence.mesh);
}

static fsdp_status begin(fsdp__reduction *r)
{
    size_t most = (size_t)r->group->param_count;

    FSDP_TRY(fsdp__param_group_raise_gradients(r->group));
    FSDP_TRY(fsdp__comm_context_reduce_stream(r->comm, runs_apart(r->group), &r->stream));
    FSDP_TRY(fsdp__comm_context_make_room(r->comm)); /* none of those in flight is one that hooks wait for, see below */
    r->accumulated = r->group->kept;
    if (r->accumulated)
        FSDP_TRY(fsdp__param_group_fold_gradients(r->group));
    r->params = fsdp__calloc(most, sizeof *r->params);
    r->buffers = fsdp__calloc(most, sizeof *r->buffers);
    FSDP__TRY_NEW(r->params && r->buffers);
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

/* ---- issuing ---- */

static fsdp_reduce_options scatter_options(const fsdp__reduction *r)
{
    fsdp__division d = r->division;
    bool average = r->settings->divide_factor == 0 && !r->settings->force_sum && d.before == 1;

    if (r->partial) /* the division follows when all have been added */
        return (fsdp_reduce_options){.op = FSDP_SUM, .predivide = d.before, .accumulate = r->adds_partial};
    return (fsdp_reduce_options){.op = average ? FSDP_AVG : FSDP_SUM,
                                 .predivide = d.before,
                                 .divisor = average ? 0 : d.after,
                                 .accumulate = fsdp__adds_in_place(r)};
}

/* Reduces by the caller's function. Its sum does not tell which ranks have contributed, so that is asked separately. */
static fsdp_status scatter_by_caller(fsdp__reduction *r, const fsdp_reduce_options *options)
{
    fsdp_process_group *pg = fsdp__param_group_reduce_pg(r->group);
    fsdp__in_flight *flight = &r->comm->in_flight;

    FSDP_TRY(fsdp__custom_reduce_scatter(&r->group->reduce_scatter, r->comm, pg, r->buffers, r->buffer_count, options,
                                         r->stream, &flight->packed));
    return fsdp__process_group_any(pg, &(fsdp__any){.flags = flight->asked ? flight->contributed : NULL,
                                                    .count = r->buffer_count,
                                                    .stream = r->stream});
}

/* Returns the address of a gradient. One without elements needs an address, too: NULL means that there is none. */
static void *address_of(fsdp_tensor *gradient)
{
    return !gradient || fsdp_tensor_numel(gradient) == 0 ? gradient : fsdp_tensor_data(gradient);
}

/* Returns where the i-th buffer's part of the sum goes. */
static void *target_of(const fsdp__reduction *r, int64_t i)
{
    if (r->together)
        return r->partial ? r->group->partial.storage->data : fsdp__result_vector(r);
    return r->partial ? fsdp__param_partial(r->params[i]) : fsdp__result_place(r, i);
}

/* Describes the buffers: one for each parameter, or one for all. */
static fsdp_status describe_gradients(fsdp__reduction *r)
{
    fsdp_tensor **unsharded = r->comm->in_flight.unsharded;

    r->buffer_count = r->together && r->scattered > 0 ? 1 : r->scattered;
    for (int64_t i = 0; i < r->buffer_count; i++) {
        const fsdp__param *p = r->together ? &r->group->vector : r->params[i];
        fsdp_sharded_buffer *b = &r->buffers[i];

        if (r->together)
            FSDP_TRY(fsdp__param_group_flat_gradient(r->group, &unsharded[i]));
        else
            unsharded[i] = fsdp_tensor_ref(fsdp__param_unreduced(p));
        *b = fsdp__param_buffer(p);
        b->unsharded = address_of(unsharded[i]);
        b->shard = target_of(r, i);
        b->unsharded_dtype = unsharded[i] ? unsharded[i]->dtype : r->accumulated ? p->reduce_dtype : p->param_dtype;
        b->shard_dtype = r->partial ? fsdp__param_sent_dtype(p) : fsdp__result_dtype(r, i);
        b->reduce_dtype = fsdp__param_sent_dtype(p);
    }
    return FSDP_OK;
}

/* Reduces inside the replica. If this rank lacks a gradient, it adds nothing to the sum. */
static fsdp_status scatter(fsdp__reduction *r)
{
    fsdp_reduce_options options = scatter_options(r);
    fsdp__in_flight *flight = &r->comm->in_flight;

    if (r->scattered == 0)
        return FSDP_OK;
    if (r->group->reduce_scatter.run && r->group->residence.mesh.ranks > 1)
        return scatter_by_caller(r, &options);
    options.contributed = flight->asked ? flight->contributed : NULL;
    return fsdp_reduce_scatter_coalesced(fsdp__param_group_reduce_pg(r->group), r->buffers, r->buffer_count, &options,
                                         r->stream);
}

/* Finishes a parameter: divides its partial gradient into its shard's gradient. */
static fsdp_status finish_param(const fsdp__reduction *r, int64_t i, float divisor)
{
    const fsdp__param *param = r->params[i];

    return fsdp__divide_run(r->stream, fsdp__param_partial(param), fsdp__param_sent_dtype(param),
                            fsdp__result_place(r, i), fsdp__result_dtype(r, i), fsdp__param_shard_numel(param), divisor,
                            fsdp__adds_in_place(r));
}

/* Shows partial gradients to the caller's hook, divided as they will be. */
static fsdp_status call_hook(const fsdp__reduction *r, const fsdp__partial_run *run, void *data, float divisor)
{
    int64_t offset = run->at / (int64_t)fsdp_dtype_size(run->dtype);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *gradients = NULL;

    FSDP_TRY(fsdp__divide_run(r->stream, data, run->dtype, data, run->dtype, run->numel, divisor, false));
    FSDP_TRY(fsdp__tensor_create_view(r->group->partial.storage, run->dtype, 1, &run->numel, NULL, offset, &gradients));
    return r->settings->hook(r->settings->hook_arg, gradients, r->stream);
}

/* Asks whether another replica has gradients that this one lacks. */
static fsdp_status ask_replicas(const fsdp__reduction *r)
{
    fsdp__in_flight *flight = &r->comm->in_flight;

    return fsdp__process_group_any(
        r->group->residence.mesh.replicate_pg,
        &(fsdp__any){.flags = flight->asked ? flight->contributed : NULL, .count = flag_count(r), .stream = r->stream});
}

/* Reduces over the replicas: by the library, or in place by a function of the caller's, which does not report who has
 * contributed. The first run also joins the replicas' flags. */
static fsdp_status reduce_replicas(const fsdp__reduction *r, void *data, const fsdp__partial_run *run, bool first)
{
    const fsdp_custom_collective *custom = &r->group->all_reduce;
    fsdp_process_group *pg = r->group->residence.mesh.replicate_pg;
    fsdp__in_flight *flight = &r->comm->in_flight;
    uint8_t *contributed = flight->asked ? flight->contributed : NULL;
    const fsdp_custom_call call = {.group = pg,
                                   .send = data,
                                   .recv = data,
                                   .count = run->numel,
                                   .dtype = run->dtype,
                                   .op = FSDP_SUM,
                                   .stream = r->stream};

    if (!custom->run)
        return fsdp__process_group_any(pg, &(fsdp__any){.flags = contributed,
                                                        .count = first ? flag_count(r) : 0,
                                                        .stream = r->stream,
                                                        .send = data,
                                                        .recv = data,
                                                        .numel = run->numel,
                                                        .dtype = run->dtype,
                                                        .op = FSDP_SUM});
    FSDP_TRY(custom->run(custom->arg, &call));
    return first ? ask_replicas(r) : FSDP_OK;
}

/* Reduces partial gradients over the replicas, and puts them into the shards' gradients. */
static fsdp_status finish_partial(fsdp__reduction *r)
{
    const fsdp__mesh_info *mesh = &r->group->residence.mesh;
    const fsdp__partial *partial = &r->group->partial;
    float divisor = r->division.after;

    if (partial->run_count == 0 && mesh->replicas > 1) /* there are no elements, but there may be gradients */
        FSDP_TRY(ask_replicas(r));
    for (int i = 0; i < partial->run_count; i++) {
        const fsdp__partial_run *run = &partial->runs[i];
        void *data = (char *)partial->storage->data + run->at;

        if (mesh->replicas > 1)
            FSDP_TRY(reduce_replicas(r, data, run, i == 0));
        if (r->settings->hook)
            FSDP_TRY(call_hook(r, run, data, divisor));
    }
    if (r->settings->hook)
        divisor = 1; /* the hook has seen the quotient */
    for (int64_t i = 0; i < r->count; i++)
        FSDP_TRY(finish_param(r, i, divisor));
    return FSDP_OK;
}

/* Brings the results to the host. */
static fsdp_status bring(const fsdp__reduction *r)
{
    int64_t count = fsdp__result_count(r);
    FSDP__FREED fsdp__arriving *arriving = fsdp__calloc((size_t)count, sizeof *arriving);

    FSDP__TRY_NEW(arriving);
    for (int64_t i = 0; i < count; i++)
        arriving[i] = (fsdp__arriving){r->group->vector.sharded ? fsdp__result_vector(r) : fsdp__result_place(r, i),
                                       fsdp__result_dtype(r, i), r->comm->in_flight.gradients[i]};
    return fsdp__arrivals_bring(&r->comm->arrivals, r->stream, arriving, count, r->add);
}

static fsdp_status issue(fsdp__reduction *r)
{
    FSDP_TRY(describe_gradients(r));
    FSDP_TRY(fsdp__contributions_prepare(r));
    /* The device's stream computes the gradients, and the memory of the results comes from there, too. */
    FSDP_TRY(fsdp__comm_context_follow_compute_on(r->comm, r->group->residence.device, r->stream));
    FSDP_TRY(fsdp__contributions_add(r));
    FSDP_TRY(scatter(r));
    if (r->partial && r->complete)
        FSDP_TRY(finish_partial(r));
    if (r->comm->in_flight.results)
        FSDP_TRY(bring(r));
    return fsdp__in_flight_depart(&r->comm->in_flight);
}

static fsdp_status issue_timed(fsdp__reduction *r)
{
    fsdp__exposed *exposed = &r->comm->reductions;
    fsdp__stretch stretch;
    fsdp_status status;

    FSDP_TRY(fsdp__exposed_begin(exposed, fsdp_device_stream(r->group->residence.device), r->stream, true, &stretch));
    status = issue(r);
    FSDP_KEEP_FIRST(status, fsdp__exposed_end(exposed, &stretch, status == FSDP_OK));
    return status;
}

/* Hands the gradients over to the flight. */
static void hand_over(fsdp__reduction *r)
{
    fsdp__in_flight *flight = &r->comm->in_flight;

    for (int64_t i = 0; r->complete && i < fsdp__result_count(r); i++) {
        if (!flight->arriving[i])
            fsdp__put_grad(fsdp__result_shard(r, i), flight->gradients[i]);
        if (r->settings->landed)
            flight->shards[i] = fsdp_tensor_ref(fsdp__result_shard(r, i));
    }
    for (int64_t i = 0; i < r->count; i++) {
        fsdp__param *p = r->params[i];

        fsdp__put_grad(p->unsharded, NULL);
        fsdp_tensor_unref(fsdp__take(&p->accumulated_grad));
        p->due = false;
        p->partial_used = !r->complete && fsdp__in_flight_contributed(flight, i);
    }
    flight->landed = r->complete ? fsdp__landed_hook_ref(r->settings->landed) : NULL;
    r->group->kept = false;
    fsdp__param_group_leave_gradient_buffers(r->group);
}

/* Makes the flight hold the partial gradients, which may be dropped while the stream uses them. */
static void hold_partial(fsdp__reduction *r)
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
    fsdp__reduction r = {
        .group = group, .comm = comm, .settings = settings, .together = group->buffers == &group->vector};
    fsdp_status status = FSDP_OK;
    fsdp__taker before;

    *reduced = false;
    if (!plan(&r))
        return FSDP_OK;
    before = fsdp__context_enter(comm->context, group->owner);
    FSDP_TRY_GOTO(status, begin(&r), out);
    if (r.count == 0)
        goto out;
    FSDP_TRY_GOTO(status, fsdp__make_results(&r), out);
    status = issue_timed(&r);
    hold_partial(&r); /* even after a failure: the stream may use a part of it */
    FSDP_TRY_GOTO(status, status, out);
    if (comm->in_flight.asked && !r.complete) /* what was used is kept with the partial gradients */
        FSDP_TRY_GOTO(status, fsdp__in_flight_await(&comm->in_flight, &comm->reductions), out);
    hand_over(&r);
    if (r.hooked || fsdp__stream_is_inline(r.stream)) /* hooks run at the same moment whatever the stream */
        FSDP_TRY_GOTO(status, fsdp__comm_context_finish_reduction(comm), out);
    *reduced = r.present;
out:
    fsdp__context_set_taker(comm->context, before);
    FSDP__FREE_ALL(r.params, r.buffers, r.places);
    if (status != FSDP_OK) /* this one alone: earlier ones may belong to others */
        fsdp__in_flight_drop(&comm->in_flight);
    return status;
}
