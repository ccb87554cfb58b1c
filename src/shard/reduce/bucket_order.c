/* bucket_order.c - buckets in the course of a backward: which are ready, which are left, and which parameters were not
 * used. */
#include "shard/reduce/bucket_order.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text.h"
#include "shard/reduce/bucket_all_reduce.h"
#include "shard/reduce/reduce.h"

static bool has_due(const fsdp__param_group *group, const fsdp__bucket *bucket)
{
    bool any = false;

    for (int64_t i = 0; i < bucket->count; i++)
        any = any || fsdp__param_is_due(&group->params[bucket->params[i]]);
    return any;
}

/* Returns whether gradients are reduced. With one replica, all of that happens inside it. */
static bool reduces(const fsdp__param_group *group, const fsdp__reduce_settings *settings)
{
    return settings->all_reduce || group->residence.mesh.replicas == 1;
}

/* ---- as the backward goes on ---- */

/* Sends the buckets that are ready, up to the first one that is not. */
static fsdp_status send_ready(fsdp__param_group *group)
{
    fsdp__buckets *b = group->buckets;

    while (b->running && b->next <= b->last && b->items[b->next].waiting == 0) {
        int64_t next = b->next++;

        if (has_due(group, &b->items[next]))
            FSDP_TRY(fsdp__bucket_all_reduce(group, b->comm, b->settings, next));
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
    /* With a static graph the first backward learns only at its end who uses what. */
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

static void begin(fsdp__param_group *group, fsdp__comm_context *comm, const fsdp__reduce_settings *settings)
{
    fsdp__buckets *b = group->buckets;

    b->running = true;
    b->comm = comm;
    b->settings = settings;
    b->complete = 1;
    b->incomplete = 0;
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

fsdp_status fsdp__buckets_begin_backward(fsdp__param_group *group, fsdp__comm_context *comm,
                                         const fsdp__reduce_settings *settings)
{
    fsdp__buckets *b = group->buckets;

    b->open = false;
    if (b->running)
        return FSDP_OK;
    if (!settings || !reduces(group, settings)) {
        fsdp__buckets_reset(b); /* this backward sends no buckets */
        return FSDP_OK;
    }
    begin(group, comm, settings);
    return b->options.static_graph && b->backwards == 0 ? FSDP_OK : send_ready(group);
}

/* ---- the end of the backward ---- */

/* Returns whether this rank used the parameter, also in an earlier backward without synchronisation. */
static bool is_used_here(const fsdp__buckets *b, const fsdp__param *param)
{
    bool late = false;

    for (int64_t i = 0; i < b->late_count; i++)
        late = late || b->late[i].param == param;
    return !late && (b->next > 0 || fsdp__param_unreduced(param));
}

/* Asks which parameters any rank used. After a backward has sent buckets, this rank did not use those with late
 * results; before anything was sent, those without a gradient. */
static fsdp_status ask_users(fsdp__param_group *group)
{
    fsdp__buckets *b = group->buckets;
    FSDP__FREED int32_t *users = fsdp__calloc((size_t)group->param_count, sizeof *users);
    int64_t at = 0;

    FSDP__TRY_NEW(users);
    for (int64_t i = 0; i < group->param_count; i++)
        if (b->places[i].bucket >= 0) {
            b->places[i].used_here = is_used_here(b, &group->params[i]);
            users[at++] = b->places[i].used_here;
        }
    FSDP_TRY(fsdp__buckets_add_up(group, users, at));
    at = 0;
    for (int64_t i = 0; i < group->param_count; i++)
        if (b->places[i].bucket >= 0)
            b->places[i].used = users[at++] > 0;
    return FSDP_OK;
}

static fsdp_status install(const fsdp__buckets *b, const fsdp__late_result *late, const fsdp__reduce_settings *settings)
{
    fsdp_tensor *parameter = late->param->sharded;

    if (b->options.gradient_as_bucket_view && !fsdp_tensor_grad(parameter) && !fsdp__has_grad_hooks(parameter))
        fsdp__put_grad(parameter, late->result);
    else
        FSDP_TRY(fsdp__leaf_accumulate(parameter, late->result));
    return fsdp__landed_hook_call(settings->landed, &parameter, 1);
}

/* Installs late results: what another rank has used arrives here as well. */
static fsdp_status settle_late(fsdp__param_group *group, const fsdp__reduce_settings *settings)
{
    fsdp_context *context = fsdp_mesh_context(group->residence.mesh.mesh);
    fsdp__buckets *b = group->buckets;
    fsdp_status status = FSDP_OK;

    if (b->late_count == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__comm_context_land_reductions(b->comm)); /* the device's stream waits for the results */
    FSDP_TRY(fsdp_scope_begin(context));
    for (int64_t i = 0; i < b->late_count && status == FSDP_OK; i++)
        if (b->places[b->late[i].param - group->params].used)
            status = install(b, &b->late[i], settings);
    fsdp_scope_end(context, NULL);
    return status;
}

/* Fails with one message on all ranks. */
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
    else if (b->comm->in_flight.count > 0) /* otherwise it has landed */
        FSDP_TRY(fsdp_event_synchronize(b->comm->in_flight.done));
    b->lacking = b->lacking || b->incomplete;
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
            FSDP_TRY(fsdp__bucket_all_reduce(group, comm, settings, next));
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
    bool others = false;

    *reduced = false;
    if (!reduces(group, settings))
        return fsdp__param_group_keep_gradients(group);
    if (!b->running)
        begin(group, comm, settings); /* the caller asked for it without a backward */
    *reduced = b->last >= 0;
    if (b->last >= 0) {
        status = send_rest(group, comm, settings);
        b->backwards++;
        group->kept = false;
    }
    fsdp__buckets_reset(b);
    if (status == FSDP_OK) /* parameters frozen between the forward and this backward are in no bucket */
        status = fsdp__param_group_reduce(group, comm, settings, &others);
    *reduced = *reduced || others;
    return status;
}
