/* explain_json.c - prints an explanation as one JSON object. */
#include "explain/json_value.h"
#include "explain/show.h"

json_t *fsdp__json_network(const fsdp_explained_network *network)
{
    json_t *object = json_object();

    fsdp__json_put(&object, "sent", fsdp__json_by_collective(network->sent, FSDP_COLLECTIVES));
    fsdp__json_put(&object, "received", fsdp__json_by_collective(network->received, FSDP_COLLECTIVES));
    fsdp__json_put(&object, "messages", fsdp__json_by_collective(network->messages, FSDP_COLLECTIVES));
    return object;
}

static bool is_sent(const int64_t *calls)
{
    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++)
        if (calls[kind] > 0)
            return true;
    return false;
}

static json_t *step_of(const fsdp_explained_step *step)
{
    json_t *object = json_object();

    fsdp__json_put(&object, "live_bytes", fsdp__json_by_kind(step->live_bytes));
    fsdp__json_put(&object, "peak_bytes", fsdp__json_by_kind(step->peak_bytes));
    fsdp__json_put(&object, "peak_total_bytes", json_integer((json_int_t)step->peak_total_bytes));
    fsdp__json_put(&object, "peak_with_workspace_bytes", json_integer((json_int_t)step->peak_with_workspace_bytes));
    if (step->reserved_bytes > 0)
        fsdp__json_put(&object, "reserved_bytes", json_integer((json_int_t)step->reserved_bytes));
    fsdp__json_put(&object, "calls", fsdp__json_by_collective(step->calls, FSDP_COLLECTIVES));
    fsdp__json_put(&object, "bytes_sent", fsdp__json_by_collective(step->bytes_sent, FSDP_COLLECTIVES));
    if (is_sent(step->team_calls)) {
        fsdp__json_put(&object, "team_calls", fsdp__json_by_collective(step->team_calls, FSDP_COLLECTIVES));
        fsdp__json_put(&object, "team_bytes_sent", fsdp__json_by_collective(step->team_bytes_sent, FSDP_COLLECTIVES));
    }
    fsdp__json_put(&object, "network", fsdp__json_network(&step->network));
    fsdp__json_put(&object, "flops", json_real(step->flops));
    return object;
}

static json_t *lives_of(const fsdp_explained_unit *u)
{
    json_t *array = json_array();

    for (int64_t i = 0; i < u->life_count; i++) {
        const fsdp_explained_life *life = &u->lives[i];
        json_t *object = json_object();

        fsdp__json_put(&object, "begin", json_integer(life->begin));
        fsdp__json_put(&object, "end", json_integer(life->end));
        fsdp__json_put(&object, "ahead", json_boolean(life->ahead));
        fsdp__json_put(&object, "bytes", json_integer(life->bytes));
        fsdp__json_put(&object, "flops", json_real(life->flops));
        fsdp__json_append(&array, object);
    }
    return array;
}

static json_t *unit_of(const fsdp_explained_unit *u)
{
    json_t *object = json_object();

    fsdp__json_put(&object, "name", fsdp__json_text(u->name));
    fsdp__json_put(&object, "type", fsdp__json_text(u->type));
    fsdp__json_put(&object, "parameters", json_integer(u->parameter_count));
    fsdp__json_put(&object, "elements", json_integer(u->numel));
    fsdp__json_put(&object, "padded_elements", json_integer(u->padded_numel));
    fsdp__json_put(&object, "shard_elements", json_integer(u->shard_numel));
    fsdp__json_put(&object, "gathers", json_integer(u->gathers));
    fsdp__json_put(&object, "gathered_bytes", json_integer(u->gathered_bytes));
    fsdp__json_put(&object, "reductions", json_integer(u->reductions));
    fsdp__json_put(&object, "reduced_bytes", json_integer(u->reduced_bytes));
    fsdp__json_put(&object, "flops", json_real(u->flops));
    fsdp__json_put(&object, "lives", lives_of(u));
    return object;
}

/* Lists [first, count, first across, count across] of each box of a part. */
static json_t *boxes_of(const fsdp_explained_parameter *p, int part)
{
    json_t *list = json_array();

    for (int i = 0; i < p->box_count; i++) {
        fsdp_explained_box b = fsdp__part_box(p, part, i);

        json_array_append_new(list, json_pack("[I, I, I, I]", (json_int_t)b.first, (json_int_t)b.count,
                                              (json_int_t)b.across_first, (json_int_t)b.across_count));
    }
    return list;
}

static json_t *parts_of(const fsdp_explanation *e, const fsdp_explained_parameter *p)
{
    json_t *array = json_array();

    for (int i = 0; i < e->part_count; i++) {
        json_t *object = json_object();

        fsdp__json_put(&object, "rank", json_integer(e->first_part + i));
        fsdp__json_put(&object, "first", json_integer(p->parts[i].first));
        fsdp__json_put(&object, "count", json_integer(p->parts[i].count));
        fsdp__json_put(&object, "elements", json_integer(p->parts[i].numel));
        if (p->across >= 0) {
            fsdp__json_put(&object, "across_first", json_integer(p->parts[i].across_first));
            fsdp__json_put(&object, "across_count", json_integer(p->parts[i].across_count));
        }
        if (p->boxes)
            fsdp__json_put(&object, "boxes", boxes_of(p, i));
        fsdp__json_append(&array, object);
    }
    return array;
}

static json_t *parameter_of(const fsdp_explanation *e, const fsdp_explained_parameter *p)
{
    json_t *object = json_object(), *shape = json_array();

    for (int d = 0; d < p->ndim; d++)
        fsdp__json_append(&shape, json_integer(p->shape[d]));
    fsdp__json_put(&object, "name", fsdp__json_text(p->name));
    fsdp__json_put(&object, "unit", p->unit < 0 ? json_null() : fsdp__json_text(e->units[p->unit].name));
    fsdp__json_put(&object, "dtype", fsdp__json_text(fsdp_dtype_name(p->dtype)));
    fsdp__json_put(&object, "trained", json_boolean(p->trained));
    fsdp__json_put(&object, "shape", shape);
    fsdp__json_put(&object, "dim", p->dim < 0 ? json_null() : json_integer(p->dim));
    if (p->across >= 0)
        fsdp__json_put(&object, "across", json_integer(p->across));
    fsdp__json_put(&object, "parts", parts_of(e, p));
    return object;
}

static json_t *event_of(const fsdp_explanation *e, const fsdp_explained_event *event)
{
    static const char *const names[] = {"unshard",      "wait",         "reshard",       "pre_forward",
                                        "post_forward", "pre_backward", "post_backward", "reduce"};
    json_t *object = json_object();

    fsdp__json_put(&object, "event", fsdp__json_text(names[event->event]));
    fsdp__json_put(&object, "unit", fsdp__json_text(e->units[event->unit].name));
    fsdp__json_put(&object, "phase", fsdp__json_text(fsdp__phase_name(event->phase)));
    fsdp__json_put(&object, "microbatch", json_integer(event->microbatch));
    fsdp__json_put(&object, "flops", json_real(event->flops));
    fsdp__json_put(&object, "live_bytes", fsdp__json_by_kind(event->live_bytes));
    return object;
}

static json_t *variant_of(const fsdp_explained_variant *v)
{
    json_t *object = json_object();

    fsdp__json_put(&object, "policy", fsdp__json_text(v->policy));
    fsdp__json_put(&object, "asked", json_boolean(v->asked));
    fsdp__json_put(&object, "units", json_integer(v->units));
    fsdp__json_put(&object, "largest_elements", json_integer(v->largest));
    fsdp__json_put(&object, "step", step_of(&v->step));
    return object;
}

static void put_lists(json_t **object, const fsdp_explanation *e)
{
    json_t *units = json_array(), *parameters = json_array(), *events = json_array(), *variants = json_array();

    for (int64_t i = 0; i < e->unit_count; i++)
        fsdp__json_append(&units, unit_of(&e->units[i]));
    for (int64_t i = 0; i < e->parameter_count; i++)
        fsdp__json_append(&parameters, parameter_of(e, &e->parameters[i]));
    for (int64_t i = 0; i < e->event_count; i++)
        fsdp__json_append(&events, event_of(e, &e->events[i]));
    for (int64_t i = 0; i < e->variant_count; i++)
        fsdp__json_append(&variants, variant_of(&e->variants[i]));
    fsdp__json_put(object, "units", units);
    fsdp__json_put(object, "parameters", parameters);
    fsdp__json_put(object, "events", events);
    fsdp__json_put(object, "variants", variants);
}

json_t *fsdp__explanation_object(const fsdp_explanation *e)
{
    json_t *object = json_object();

    fsdp__json_put(&object, "model", fsdp__json_text(e->model));
    fsdp__json_put(&object, "strategy", fsdp__json_text(e->strategy));
    fsdp__json_put(&object, "policy", fsdp__json_text(e->policy));
    fsdp__json_put(&object, "world_size", json_integer(e->world_size));
    fsdp__json_put(&object, "rank", json_integer(e->rank));
    fsdp__json_put(&object, "machines", json_integer(e->machines));
    fsdp__json_put(&object, "one_level", json_boolean(e->one_level));
    fsdp__json_put(&object, "replicas", json_integer(e->replicas));
    fsdp__json_put(&object, "team", json_integer(e->team));
    fsdp__json_put(&object, "microbatches", json_integer(e->microbatches));
    fsdp__json_put(&object, "local_batch", json_integer(e->local_batch));
    fsdp__json_put(&object, "seq_len", json_integer(e->seq_len));
    fsdp__json_put(&object, "elements", json_integer(e->numel));
    fsdp__json_put(&object, "trained_elements", json_integer(e->trained_numel));
    if (e->microbatches > 0)
        fsdp__json_put(&object, "step", step_of(&e->step));
    if (e->machines > 1 && e->microbatches > 0)
        fsdp__json_put(&object, "machine_network", fsdp__json_network(&e->machine));
    put_lists(&object, e);
    return object;
}

fsdp_status fsdp_explanation_json(const fsdp_explanation *e, FILE *out)
{
    if (!e || !out)
        return FSDP_FAIL(FSDP_INVALID, "there is no explanation, or no stream, to write");
    return fsdp__json_print(fsdp__explanation_object(e), out);
}
