/* bucket_all_reduce.c - takes one bucket from where its gradients were computed to the gradients of its parameters. */
#include "shard/reduce/bucket_all_reduce.h"

#include <stdio.h>

#include "autograd/autograd.h"
#include "base/context.h"
#include "comm/group_calls.h"
#include "device/kernels.h"

typedef struct sending {
    fsdp__param_group *group;
    fsdp__buckets *buckets;
    fsdp__bucket *bucket;
    fsdp__comm_context *comm;
    const fsdp__reduce_settings *settings;
    fsdp_stream *stream;
    fsdp__region *from, *to; /* references; both the same if results stay in the bucket */
    bool hooked;             /* some parameter has gradient hooks */
} sending;

static fsdp__param *param_of(const sending *s, int64_t i)
{
    return &s->group->params[s->bucket->params[i]];
}

static size_t place_of(const sending *s, int64_t i)
{
    return (size_t)s->buckets->places[s->bucket->params[i]].at * fsdp_dtype_size(s->bucket->dtype);
}

/* ---- what is sent ---- */

/* Sends -0, which changes no sum, not even the sign of a zero. */
static fsdp_status send_nothing(const sending *s, int64_t i)
{
    return fsdp__launch_fill_run(fsdp_device_stream(s->group->residence.device), (char *)s->from->data + place_of(s, i),
                                 s->bucket->dtype, fsdp__param_numel(param_of(s, i)), -0.0);
}

static bool lies_in(const sending *s, int64_t i, const fsdp__region *region)
{
    const fsdp_tensor *grad = fsdp__param_unreduced(param_of(s, i));

    if (fsdp_tensor_numel(grad) == 0) /* without elements any place will do */
        return true;
    return fsdp_tensor_data(grad) == (char *)region->data + place_of(s, i) && fsdp_tensor_is_contiguous(grad);
}

/* Returns whether nobody else holds the gradient: a graph that is kept might, or the caller. */
static bool is_exclusive(const fsdp__param *param)
{
    return fsdp__grad_exclusive(fsdp__param_unreduced(param));
}

/* Chooses where gradients are sent from. That is where they were computed, and they may be averaged there, unless one
 * lies elsewhere (the buckets were divided anew meanwhile, or the caller has set it). They are also copied to other
 * memory if somebody else's would be written: a gradient that a kept graph will give again, or one that another forward
 * has made for its backward. */
static fsdp_status choose_source(sending *s)
{
    const fsdp__region *region = s->bucket->region;
    bool in_place = true;

    for (int64_t i = 0; region && i < s->bucket->count; i++) {
        const fsdp__param *param = param_of(s, i);

        in_place = in_place && (fsdp__param_unreduced(param) ? lies_in(s, i, region) && is_exclusive(param)
                                                             : !fsdp__grad_is_reserved(param->unsharded));
    }
    return in_place ? fsdp__bucket_region(s->group, s->bucket, &s->from)
                    : fsdp__bucket_make_region(s->group, s->bucket, &s->from);
}

static fsdp_status send_gradient(const sending *s, int64_t i)
{
    fsdp__param *param = param_of(s, i);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *moved = NULL;

    if (lies_in(s, i, s->from))
        return FSDP_OK;
    FSDP_TRY(fsdp__bucket_tensor(param, s->from, &moved));
    FSDP_TRY(fsdp__tensor_copy(moved, fsdp__param_unreduced(param), false));
    fsdp__put_grad(param->unsharded, moved);
    return FSDP_OK;
}

static fsdp_status fill_bucket(sending *s)
{
    const fsdp__buckets *b = s->buckets;

    FSDP_TRY(choose_source(s));
    for (int64_t i = 0; i < s->bucket->count; i++) {
        fsdp__param *param = param_of(s, i);
        const fsdp__bucket_place *place = &b->places[s->bucket->params[i]];
        bool expected = place->expected && (!b->options.static_graph || place->used_here);

        s->hooked = s->hooked || fsdp__has_grad_hooks(param->sharded);
        if (fsdp__param_unreduced(param)) {
            FSDP_TRY(send_gradient(s, i));
            continue;
        }
        FSDP_TRY(send_nothing(s, i));
        if (!b->options.find_unused_parameters && !b->absent && expected)
            s->buckets->complete = 0;
    }
    return FSDP_OK;
}

/* ---- where results go ---- */

/* Returns whether the result becomes a new gradient. Hooks see what arrives first, and make their own. */
static bool is_new(const sending *s, int64_t i)
{
    fsdp__param *param = param_of(s, i);

    return fsdp__param_unreduced(param) && !fsdp_tensor_grad(param->sharded) && !s->hooked;
}

static fsdp_status choose_target(sending *s)
{
    bool any = false;

    for (int64_t i = 0; i < s->bucket->count; i++)
        any = any || is_new(s, i);
    if (any && !s->buckets->options.gradient_as_bucket_view && s->group->residence.mesh.replicas > 1)
        return fsdp__bucket_make_region(s->group, s->bucket, &s->to);
    s->to = s->from;
    s->to->refs++;
    return FSDP_OK;
}

/* Makes the i-th result as a gradient. The caller owns `*out`. */
static fsdp_status make_result(const sending *s, int64_t i, fsdp_tensor **out)
{
    FSDP_TRY(fsdp__bucket_tensor(param_of(s, i), s->to, out));
    return fsdp__distribute_like(param_of(s, i)->sharded, out);
}

/* Makes a late result: only when all buckets have been sent is it known whether other ranks have a gradient that this
 * one lacks. */
static fsdp_status make_late(const sending *s, int64_t i)
{
    fsdp__late_result *late = &s->buckets->late[s->buckets->late_count];

    FSDP_TRY(make_result(s, i, &late->result));
    late->param = param_of(s, i);
    s->buckets->late_count++;
    return FSDP_OK;
}

static fsdp_status make_results(sending *s)
{
    fsdp__in_flight *flight = &s->comm->in_flight;

    for (int64_t i = 0; i < s->bucket->count; i++) {
        fsdp__param *param = param_of(s, i);

        flight->count = i + 1; /* from here on the flight releases what it holds, even after a failure */
        flight->contributed[i] = 1;
        if (!fsdp__param_unreduced(param)) {
            FSDP_TRY(make_late(s, i));
            continue;
        }
        flight->unsharded[i] = fsdp_tensor_ref(fsdp__param_unreduced(param));
        FSDP_TRY(fsdp__param_make_grad_contiguous(param));
        if (is_new(s, i) || s->hooked)
            FSDP_TRY(make_result(s, i, &flight->gradients[i]));
        else
            flight->gradients[i] = fsdp_tensor_ref(fsdp_tensor_grad(param->sharded));
        FSDP_TRY(fsdp_tensor_begin_write(flight->gradients[i]));
        if (s->hooked)
            flight->arriving[i] = fsdp_tensor_ref(param->sharded);
    }
    return FSDP_OK;
}

/* ---- averaging: as it lies, in 16 bits, or by a function of the caller's ---- */

static int replicas_of(const sending *s)
{
    return s->group->residence.mesh.replicas;
}

/* Returns what the sum of all ranks is divided by. */
static float divisor_of(const sending *s)
{
    const fsdp__buckets *b = s->buckets;

    if (s->settings->divide_factor > 0)
        return s->settings->divide_factor;
    return b->divisor > 0 ? b->divisor : (float)replicas_of(s);
}

/* Returns whether this is the last bucket, with which each rank says whether it is complete. */
static bool asks(const sending *s)
{
    const fsdp__buckets *b = s->buckets;

    return s->bucket == &b->items[b->last] && !b->options.find_unused_parameters;
}

static fsdp_status all_reduce(const sending *s, const void *from, void *to, fsdp_dtype dtype, fsdp_reduce_op op)
{
    fsdp__buckets *b = s->buckets;
    fsdp_process_group *pg = s->group->residence.mesh.replicate_pg;
    bool ask = asks(s);
    char label[32];
    fsdp_status status;

    if (replicas_of(s) == 1)
        return FSDP_OK; /* `from` and `to` are the same */
    snprintf(label, sizeof label, "bucket %lld", (long long)(s->bucket - b->items));
    fsdp__process_group_set_label(pg, label);
    status = fsdp__process_group_any(pg, &(fsdp__any){.flags = ask ? &b->complete : NULL,
                                                      .count = ask,
                                                      .lacking = ask ? &b->lacking : NULL,
                                                      .stream = s->stream,
                                                      .send = from,
                                                      .recv = to,
                                                      .numel = s->bucket->numel,
                                                      .dtype = dtype,
                                                      .op = op,
                                                      .labelled = true});
    fsdp__process_group_set_label(pg, NULL);
    return status;
}

/* Converts and divides all elements of the bucket. */
static fsdp_status convert(const sending *s, const void *from, fsdp_dtype from_dtype, void *to, fsdp_dtype to_dtype,
                           float divisor)
{
    if (from == to && divisor == 1)
        return FSDP_OK;
    return fsdp__divide_run(s->stream, from, from_dtype, to, to_dtype, s->bucket->numel, divisor, false);
}

static fsdp_status average_as_it_lies(const sending *s)
{
    float divisor = divisor_of(s);
    bool average = divisor == (float)replicas_of(s) && !s->settings->force_sum;
    void *to = s->to->data;
    fsdp_dtype dtype = s->bucket->dtype;

    FSDP_TRY(all_reduce(s, s->from->data, to, dtype, average ? FSDP_AVG : FSDP_SUM));
    return average ? FSDP_OK : convert(s, to, dtype, to, dtype, divisor);
}

/* Averages as PyTorch's compression hooks do: casts, divides by the ranks, sums, and casts back. */
static fsdp_status average_compressed(const sending *s)
{
    fsdp_dtype dtype = s->bucket->dtype, sent = s->buckets->options.compress;
    fsdp__bucket like = {.numel = s->bucket->numel, .dtype = sent};
    FSDP__SCOPED(fsdp__region_unref_at) fsdp__region *region = NULL; /* the flight holds it in the end */

    FSDP_TRY(fsdp__bucket_make_region(s->group, &like, &region));
    FSDP_TRY(fsdp__storage_create(s->group->residence.device, fsdp__bucket_bytes(&like), FSDP_MEMORY_GRADIENT, false,
                                  &s->comm->in_flight.partial));
    fsdp__region_lend(region, 0, s->comm->in_flight.partial);
    /* The memory is available in the order of the device's stream. */
    FSDP_TRY(fsdp__comm_context_follow_compute_on(s->comm, s->group->residence.device, s->stream));
    FSDP_TRY(convert(s, s->from->data, dtype, region->data, sent, divisor_of(s)));
    FSDP_TRY(all_reduce(s, region->data, region->data, sent, FSDP_SUM));
    return convert(s, region->data, sent, s->to->data, dtype, 1);
}

/* Makes a view of `region` in one dimension. The caller owns `*out`. */
static fsdp_status view_of(const sending *s, fsdp__region *region, fsdp_tensor **out)
{
    return fsdp__region_tensor(region, 0, s->bucket->dtype, 1, &s->bucket->numel, out);
}

/* Lets the caller's hook average in place, and then copies the average to where it belongs. */
static fsdp_status average_by_caller(const sending *s)
{
    fsdp__buckets *b = s->buckets;
    fsdp_process_group *pg = s->group->residence.mesh.replicate_pg;
    fsdp_gradient_bucket call = {.index = s->bucket - b->items, .last = s->bucket == &b->items[b->last], .group = pg};
    fsdp_status status;

    FSDP_TRY(view_of(s, s->from, &call.gradients));
    status = b->hook(b->hook_arg, &call, s->stream);
    fsdp_tensor_unref(call.gradients);
    FSDP_TRY(status);
    if (asks(s) && replicas_of(s) > 1) {
        b->incomplete = !b->complete;
        FSDP_TRY(fsdp__process_group_any(pg, &(fsdp__any){.flags = &b->incomplete, .count = 1, .stream = s->stream}));
    }
    if (s->from == s->to)
        return FSDP_OK;
    return convert(s, s->from->data, s->bucket->dtype, s->to->data, s->bucket->dtype, 1);
}

/* Shows the average to the hook of fsdp_module_set_all_reduce_hook, which may change it. */
static fsdp_status show(const sending *s)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *gradients = NULL;

    FSDP_TRY(view_of(s, s->to, &gradients));
    return s->settings->hook(s->settings->hook_arg, gradients, s->stream);
}

static fsdp_status average(const sending *s)
{
    fsdp_dtype compress = s->buckets->options.compress;

    if (s->buckets->hook)
        FSDP_TRY(average_by_caller(s));
    else if (compress != FSDP_DTYPE_NONE && compress != s->bucket->dtype && replicas_of(s) > 1)
        FSDP_TRY(average_compressed(s));
    else
        FSDP_TRY(average_as_it_lies(s));
    return s->settings->hook ? show(s) : FSDP_OK;
}

/* ---- issuing ---- */

/* Adds the i-th result to the gradient that the parameter has. */
static fsdp_status add(const sending *s, int64_t i)
{
    const fsdp__in_flight *flight = &s->comm->in_flight;
    fsdp_dtype dtype = s->bucket->dtype;

    return fsdp__divide_run(s->stream, (char *)s->to->data + place_of(s, i), dtype,
                            fsdp_tensor_data(flight->gradients[i]), dtype, fsdp__param_numel(param_of(s, i)), 1, true);
}

static fsdp_status issue(const sending *s)
{
    fsdp__in_flight *flight = &s->comm->in_flight;
    fsdp__exposed *exposed = &s->comm->reductions;
    fsdp__stretch stretch;
    fsdp_status status;

    FSDP_TRY(fsdp__exposed_begin(exposed, fsdp_device_stream(s->group->residence.device), s->stream, true, &stretch));
    status = fsdp__comm_context_follow_compute_on(s->comm, s->group->residence.device, s->stream);
    if (status == FSDP_OK)
        status = average(s);
    FSDP_KEEP_FIRST(status, fsdp__exposed_end(exposed, &stretch, status == FSDP_OK));
    FSDP_TRY(status);
    for (int64_t i = 0; i < s->bucket->count; i++)
        if (flight->gradients[i] && flight->gradients[i] == fsdp_tensor_grad(param_of(s, i)->sharded))
            FSDP_TRY(add(s, i));
    return fsdp__in_flight_depart(flight);
}

/* Hands the gradients over to the flight. */
static void hand_over(const sending *s)
{
    fsdp__in_flight *flight = &s->comm->in_flight;

    for (int64_t i = 0; i < s->bucket->count; i++) {
        fsdp__param *p = param_of(s, i);

        if (flight->gradients[i] && !flight->arriving[i])
            fsdp__put_grad(p->sharded, flight->gradients[i]);
        fsdp__put_grad(p->unsharded, NULL);
        p->due = false;
        if (s->settings->landed)
            flight->shards[i] = fsdp_tensor_ref(p->sharded);
    }
    flight->landed = fsdp__landed_hook_ref(s->settings->landed);
    fsdp__bucket_leave_region(s->bucket);
}

static fsdp_status send(fsdp__param_group *group, fsdp__comm_context *comm, const fsdp__reduce_settings *settings,
                        int64_t index)
{
    sending s = {.group = group,
                 .buckets = group->buckets,
                 .bucket = &group->buckets->items[index],
                 .comm = comm,
                 .settings = settings};
    fsdp_status status;

    FSDP_TRY(fsdp__comm_context_reduce_stream(comm, false, &s.stream));
    FSDP_TRY(fsdp__comm_context_make_room(comm));
    FSDP_TRY_GOTO(status, fill_bucket(&s), out);
    FSDP_TRY_GOTO(status, choose_target(&s), out);
    FSDP_TRY_GOTO(status, fsdp__in_flight_reserve(&comm->in_flight, s.bucket->count, s.stream), out);
    FSDP_TRY_GOTO(status, make_results(&s), out);
    comm->in_flight.packed = s.from; /* held until it has landed, even after a failure */
    s.from->refs++;
    FSDP_TRY_GOTO(status, issue(&s), out);
    hand_over(&s);
    if (s.hooked || fsdp__stream_is_inline(s.stream)) /* hooks run at the same moment whatever the stream */
        status = fsdp__comm_context_finish_reduction(comm);
out:
    if (status != FSDP_OK)
        fsdp__in_flight_drop(&comm->in_flight);
    fsdp__region_unref(s.from);
    fsdp__region_unref(s.to);
    return status;
}

fsdp_status fsdp__bucket_all_reduce(fsdp__param_group *group, fsdp__comm_context *comm,
                                    const fsdp__reduce_settings *settings, int64_t index)
{
    fsdp__taker before = fsdp__context_enter(comm->context, group->owner);
    fsdp_status status = send(group, comm, settings, index);

    fsdp__context_set_taker(comm->context, before);
    return status;
}
