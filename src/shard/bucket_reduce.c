/* bucket_reduce.c - one all-reduce a bucket, from where its gradients were computed to the gradients of its parameters.
 */
#include "shard/bucket_reduce.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text.h"
#include "comm/internal.h"
#include "device/kernels.h"
#include "shard/state.h"

typedef struct sending {
    fsdp__param_group *group;
    fsdp__buckets *buckets;
    fsdp__bucket *bucket;
    fsdp__comm_context *comm;
    const fsdp__reduce_settings *settings;
    fsdp_stream *stream;
    fsdp__region *from, *to; /* references; the same where results are left in the bucket */
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

static bool is_due(const fsdp__param *param)
{
    return param->due || fsdp__param_unreduced(param);
}

static bool has_due(const fsdp__param_group *group, const fsdp__bucket *bucket)
{
    bool any = false;

    for (int64_t i = 0; i < bucket->count; i++)
        any = any || is_due(&group->params[bucket->params[i]]);
    return any;
}

/* ---- what is sent ---- */

/* Nothing: it changes no sum, not even a zero's sign. */
static fsdp_status send_nothing(const sending *s, int64_t i)
{
    const fsdp__fill_args args = {.dst = (char *)s->from->data + place_of(s, i),
                                  .dtype = s->bucket->dtype,
                                  .numel = fsdp__param_numel(param_of(s, i)),
                                  .value = -0.0};

    return args.numel > 0 ? fsdp__launch_fill(fsdp_device_stream(s->group->residence.device), &args) : FSDP_OK;
}

/* Gradients were computed where they are sent from, unless the buckets were divided anew meanwhile, or the caller has
 * set one. */
static fsdp_status send_gradient(const sending *s, int64_t i)
{
    fsdp__param *param = param_of(s, i);
    fsdp_tensor *grad = fsdp__param_unreduced(param), *moved = NULL;
    fsdp_status status;

    if (fsdp_tensor_data(grad) == (char *)s->from->data + place_of(s, i) && fsdp_tensor_is_contiguous(grad))
        return FSDP_OK;
    FSDP_TRY(fsdp__bucket_tensor(param, s->from, &moved));
    status = fsdp__tensor_copy(moved, grad, false);
    if (status == FSDP_OK)
        fsdp__put_grad(param->unsharded, moved);
    fsdp_tensor_unref(moved);
    return status;
}

static fsdp_status fill_bucket(sending *s)
{
    const fsdp__buckets *b = s->buckets;
    const fsdp__bucket_place *places = b->places;

    FSDP_TRY(fsdp__bucket_region(s->group, s->bucket, &s->from));
    for (int64_t i = 0; i < s->bucket->count; i++) {
        fsdp__param *param = param_of(s, i);
        bool expected = !b->options.static_graph || places[s->bucket->params[i]].used_here;

        s->hooked = s->hooked || fsdp__has_grad_hooks(param->sharded);
        if (fsdp__param_unreduced(param)) {
            FSDP_TRY(send_gradient(s, i));
            continue;
        }
        FSDP_TRY(send_nothing(s, i));
        if (!b->options.find_unused_parameters && expected)
            s->buckets->complete = 0;
    }
    return FSDP_OK;
}

/* ---- where results go ---- */

/* A gradient that has to be made. Hooks see what arrives first, and make theirs. */
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

/* The i-th result as a gradient. The caller owns `*out`. */
static fsdp_status make_result(const sending *s, int64_t i, fsdp_tensor **out)
{
    const fsdp__param *param = param_of(s, i);
    fsdp_status status;

    FSDP_TRY(fsdp__bucket_tensor(param, s->to, out));
    status = fsdp_tensor_set_distribution(*out, fsdp_tensor_distribution(param->sharded));
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_tensor_unref(*out);
    *out = NULL;
    return status;
}

/* A gradient that the caller has set may lie in strides, and what is added to it does not. */
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

/* Whether others have a gradient of what this rank has not is known when all buckets have been sent. */
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

        flight->count = i + 1; /* from here on the flight gives back what it holds, whatever fails */
        flight->contributed[i] = 1;
        if (!fsdp__param_unreduced(param)) {
            FSDP_TRY(make_late(s, i));
            continue;
        }
        flight->unsharded[i] = fsdp_tensor_ref(fsdp__param_unreduced(param));
        FSDP_TRY(make_contiguous(param));
        if (is_new(s, i) || s->hooked)
            FSDP_TRY(make_result(s, i, &flight->gradients[i]));
        else
            flight->gradients[i] = fsdp_tensor_ref(fsdp_tensor_grad(param->sharded));
        if (s->hooked)
            flight->arriving[i] = fsdp_tensor_ref(param->sharded);
    }
    return FSDP_OK;
}

/* ---- issuing ---- */

/* Over all elements of the bucket's results, in place. */
static fsdp_status divide(const sending *s, float divisor)
{
    const void *from = s->to->data;
    const fsdp__reduce_ranks_args args = {.srcs = &from,
                                          .count = 1,
                                          .dst = s->to->data,
                                          .numel = s->bucket->numel,
                                          .src_dtype = s->bucket->dtype,
                                          .dst_dtype = s->bucket->dtype,
                                          .op = FSDP__RANK_SUM,
                                          .divisor = divisor};

    return args.numel > 0 && divisor != 1 ? fsdp__launch_reduce_ranks(s->stream, &args) : FSDP_OK;
}

static fsdp_status call_hook(const sending *s)
{
    fsdp__storage *storage;
    fsdp_tensor *gradients = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__storage_create(s->group->residence.device, fsdp__bucket_bytes(s->bucket), FSDP_MEMORY_GRADIENT,
                                  false, &storage));
    fsdp__region_lend(s->to, 0, storage);
    status = fsdp__tensor_create_view(storage, s->bucket->dtype, 1, &s->bucket->numel, NULL, 0, &gradients);
    if (status == FSDP_OK)
        status = s->settings->hook(s->settings->hook_arg, gradients, s->stream);
    fsdp_tensor_unref(gradients);
    fsdp__storage_unref(storage);
    return status;
}

/* The average over the ranks, from the one region to the other. */
static fsdp_status all_reduce(const sending *s)
{
    const fsdp__mesh_info *mesh = &s->group->residence.mesh;
    float divisor = s->settings->divide_factor > 0 ? s->settings->divide_factor : (float)mesh->replicas;
    bool average = s->settings->divide_factor == 0 && !s->settings->force_sum;
    bool last = s->bucket == &s->buckets->items[s->buckets->last];

    last = last && !s->buckets->options.find_unused_parameters;
    if (mesh->replicas > 1) /* who is not complete says so with the last */
        FSDP_TRY(fsdp__all_reduce_and_ask(mesh->replicate_pg, s->from->data, s->to->data, s->bucket->numel,
                                          s->bucket->dtype, average ? FSDP_AVG : FSDP_SUM,
                                          last ? &s->buckets->complete : NULL, last ? &s->buckets->lacking : NULL,
                                          s->stream));
    if (!average)
        FSDP_TRY(divide(s, divisor));
    return s->settings->hook ? call_hook(s) : FSDP_OK;
}

/* To a gradient that the parameter has. */
static fsdp_status add(const sending *s, int64_t i)
{
    const fsdp__in_flight *flight = &s->comm->in_flight;
    const void *result = (char *)s->to->data + place_of(s, i);
    const fsdp__reduce_ranks_args args = {.srcs = &result,
                                          .count = 1,
                                          .dst = fsdp_tensor_data(flight->gradients[i]),
                                          .numel = fsdp__param_numel(param_of(s, i)),
                                          .src_dtype = s->bucket->dtype,
                                          .dst_dtype = s->bucket->dtype,
                                          .op = FSDP__RANK_SUM,
                                          .divisor = 1,
                                          .accumulate = true};

    return args.numel > 0 ? fsdp__launch_reduce_ranks(s->stream, &args) : FSDP_OK;
}

static fsdp_status issue(const sending *s)
{
    fsdp__in_flight *flight = &s->comm->in_flight;

    FSDP_TRY(fsdp__comm_context_follow_compute_on(s->comm, s->group->residence.device, s->stream));
    FSDP_TRY(all_reduce(s));
    for (int64_t i = 0; i < s->bucket->count; i++)
        if (flight->gradients[i] && flight->gradients[i] == fsdp_tensor_grad(param_of(s, i)->sharded))
            FSDP_TRY(add(s, i));
    return fsdp__in_flight_depart(flight);
}

/* The flight has the gradients now. */
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
    flight->landed = s->settings->landed;
    flight->landed_arg = s->settings->landed_arg;
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
    comm->in_flight.packed = s.from; /* held until it has landed, also after a failure */
    s.from->refs++;
    FSDP_TRY_GOTO(status, issue(&s), out);
    hand_over(&s);
    if (s.hooked || fsdp__stream_is_inline(s.stream)) /* hooks run at the same moment on any stream */
        status = fsdp__comm_context_finish_reduction(comm);
out:
    if (status != FSDP_OK)
        fsdp__in_flight_drop(&comm->in_flight);
    fsdp__region_unref(s.from);
    fsdp__region_unref(s.to);
    return status;
}

/* ---- as the backward goes on ---- */

static const fsdp__reduce_settings *settings_of(const fsdp__param_group *group)
{
    return &group->state->reduction;
}

/* Those that are ready, as far as those before them have been sent. */
static fsdp_status send_ready(fsdp__param_group *group)
{
    fsdp__buckets *b = group->buckets;

    while (b->running && b->next <= b->last && b->items[b->next].waiting == 0) {
        int64_t next = b->next++;

        if (has_due(group, &b->items[next]))
            FSDP_TRY(send(group, group->state->comm, settings_of(group), next));
    }
    return FSDP_OK;
}

static fsdp_status grad_complete(fsdp__param *param)
{
    fsdp__param_group *group = param->group;
    fsdp__buckets *b = group->buckets;
    int32_t index = (int32_t)(param - group->params);
    fsdp__bucket_place *place = &b->places[index];

    if (!b->running || !place->waited)
        return FSDP_OK;
    place->waited = false;
    if (place->bucket < 0)
        return FSDP_OK;
    if (!b->rebuilt && b->arrival_count < group->param_count)
        b->arrivals[b->arrival_count++] = index;
    b->items[place->bucket].waiting--;
    /* With a static graph the first one learns at its end who uses what. */
    return b->options.static_graph && b->backwards == 0 ? FSDP_OK : send_ready(group);
}

static void find_last(const fsdp__param_group *group)
{
    fsdp__buckets *b = group->buckets;

    b->last = -1;
    for (int64_t i = 0; i < b->count; i++)
        if (has_due(group, &b->items[i]))
            b->last = i;
}

static void begin(fsdp__param_group *group)
{
    fsdp__buckets *b = group->buckets;

    fsdp__buckets_reset(b);
    b->running = true;
    b->complete = 1;
    b->arrival_count = b->rebuilt ? b->arrival_count : 0;
    b->grad_complete = grad_complete;
    for (int64_t i = 0; i < b->count; i++)
        b->items[i].waiting = 0;
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__bucket_place *place = &b->places[i];

        place->waited = fsdp__leaf_uses(group->params[i].unsharded) > 0;
        if (place->waited && place->bucket >= 0)
            b->items[place->bucket].waiting++;
    }
    find_last(group);
}

fsdp_status fsdp__buckets_begin_backward(fsdp__param_group *group)
{
    const fsdp__module_state *state = group->state;

    group->buckets->open = false;
    if (group->buckets->running || !state->reduce_grads || !state->reduction.all_reduce)
        return FSDP_OK;
    begin(group);
    return group->buckets->options.static_graph && group->buckets->backwards == 0 ? FSDP_OK : send_ready(group);
}

/* ---- its end ---- */

/* How many ranks had a gradient of each parameter. */
static fsdp_status count_users(const fsdp__param_group *group, int32_t *users)
{
    const fsdp__residence *r = &group->residence;
    int64_t count = 0;
    fsdp_tensor *tensor;
    fsdp_status status;

    for (int64_t i = 0; i < group->param_count; i++)
        if (group->buckets->places[i].bucket >= 0)
            count++;
    FSDP_TRY(fsdp_tensor_create(r->device, FSDP_I32, 1, &count, FSDP_MEMORY_WORKSPACE, &tensor));
    FSDP_TRY_GOTO(status, fsdp_tensor_write(tensor, FSDP_I32, users), out);
    if (r->mesh.replicas > 1)
        FSDP_TRY_GOTO(status,
                      fsdp_all_reduce(r->mesh.replicate_pg, fsdp_tensor_data(tensor), fsdp_tensor_data(tensor), count,
                                      FSDP_I32, FSDP_SUM, fsdp_device_stream(r->device)),
                      out);
    status = fsdp_tensor_read(tensor, FSDP_I32, users);
out:
    fsdp_tensor_unref(tensor);
    return status;
}

/* Of an earlier backward without synchronisation, too. */
static bool is_used_here(const fsdp__buckets *b, const fsdp__param *param)
{
    bool late = false;

    for (int64_t i = 0; i < b->late_count; i++)
        late = late || b->late[i].param == param;
    return !late && (b->next > 0 || fsdp__param_unreduced(param));
}

/* Which parameters any rank used. After a backward the late ones are those that this rank has not; before anything was
 * sent, those without a gradient. */
static fsdp_status ask_users(fsdp__param_group *group)
{
    fsdp__buckets *b = group->buckets;
    int32_t *users = fsdp__calloc((size_t)group->param_count, sizeof *users);
    int64_t at = 0;
    fsdp_status status = users ? FSDP_OK : FSDP_NO_MEMORY;

    FSDP_TRY_GOTO(status, status, out);
    for (int64_t i = 0; i < group->param_count; i++)
        if (b->places[i].bucket >= 0) {
            b->places[i].used_here = is_used_here(b, &group->params[i]);
            users[at++] = b->places[i].used_here;
        }
    FSDP_TRY_GOTO(status, count_users(group, users), out);
    at = 0;
    for (int64_t i = 0; i < group->param_count; i++)
        if (b->places[i].bucket >= 0)
            b->places[i].used = users[at++] > 0;
out:
    fsdp__free(users);
    return status;
}

static fsdp_status install(const fsdp__buckets *b, const fsdp__late_result *late, const fsdp__reduce_settings *settings)
{
    fsdp_tensor *parameter = late->param->sharded;

    if (b->options.gradient_as_bucket_view && !fsdp_tensor_grad(parameter) && !fsdp__has_grad_hooks(parameter))
        fsdp__put_grad(parameter, late->result);
    else
        FSDP_TRY(fsdp__leaf_accumulate(parameter, late->result));
    return settings->landed ? settings->landed(settings->landed_arg, &parameter, 1) : FSDP_OK;
}

/* What another rank has used arrives here as well. */
static fsdp_status settle_late(fsdp__param_group *group, const fsdp__reduce_settings *settings)
{
    fsdp_context *context = fsdp_mesh_context(group->residence.mesh.mesh);
    fsdp__buckets *b = group->buckets;
    fsdp_status status = FSDP_OK;

    if (b->late_count == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__comm_context_land_reductions(group->state->comm)); /* the device's stream waits for the results */
    FSDP_TRY(fsdp_scope_begin(context));
    for (int64_t i = 0; i < b->late_count && status == FSDP_OK; i++)
        if (b->places[b->late[i].param - group->params].used)
            status = install(b, &b->late[i], settings);
    fsdp_scope_end(context, NULL);
    return status;
}

/* One message on all ranks. */
static fsdp_status fail_lacking(const fsdp__param_group *group)
{
    const fsdp__buckets *b = group->buckets;
    fsdp__names names = {.count = 0};
    fsdp_status mine = FSDP_OK;

    for (int64_t i = 0; i < b->late_count; i++) {
        const fsdp__param *p = b->late[i].param;

        if (!b->options.static_graph || b->places[p - group->params].used_here)
            fsdp__names_add(&names, p->name ? p->name : "?");
    }
    if (names.count > 0 && b->options.static_graph)
        mine = FSDP_FAIL(FSDP_STATE,
                         "this backward had no gradient of parameters that the first one had: %s; with static_graph "
                         "each must use the same",
                         fsdp__names_text(&names));
    else if (names.count > 0)
        mine = FSDP_FAIL(FSDP_STATE,
                         "this backward had no gradient of replicated parameters: %s; use them on every rank, or set "
                         "find_unused_parameters (or static_graph, if it is the same in every step)",
                         fsdp__names_text(&names));
    return fsdp__mesh_info_agree(&group->residence.mesh, mine);
}

static fsdp_status check_lacking(const fsdp__param_group *group)
{
    fsdp__buckets *b = group->buckets;

    if (b->options.find_unused_parameters)
        return FSDP_OK;
    if (group->residence.mesh.replicas == 1)
        b->lacking = !b->complete;
    else if (group->state->comm->in_flight.count > 0) /* else it has landed */
        FSDP_TRY(fsdp_event_synchronize(group->state->comm->in_flight.done));
    return b->lacking ? fail_lacking(group) : FSDP_OK;
}

static fsdp_status send_rest(fsdp__param_group *group, fsdp__comm_context *comm, const fsdp__reduce_settings *settings)
{
    fsdp__buckets *b = group->buckets;

    if (b->options.static_graph && b->backwards == 0)
        FSDP_TRY(ask_users(group));
    while (b->next <= b->last) {
        int64_t next = b->next++;

        if (has_due(group, &b->items[next]))
            FSDP_TRY(send(group, comm, settings, next));
    }
    FSDP_TRY(check_lacking(group));
    if (b->options.find_unused_parameters)
        FSDP_TRY(ask_users(group));
    return settle_late(group, settings);
}

fsdp_status fsdp__buckets_reduce(fsdp__param_group *group, fsdp__comm_context *comm,
                                 const fsdp__reduce_settings *settings, bool *reduced)
{
    fsdp__buckets *b = group->buckets;
    fsdp_status status = FSDP_OK;

    *reduced = false;
    if (!settings->all_reduce)
        return fsdp__param_group_keep_gradients(group);
    if (!b->running)
        begin(group); /* asked for without a backward */
    *reduced = b->last >= 0;
    if (b->last >= 0) {
        status = send_rest(group, comm, settings);
        b->backwards++;
        group->kept = false;
    }
    fsdp__buckets_reset(b);
    return status;
}
