/* json.c - an explanation as one JSON object. */
#include <jansson.h>

#include "base/text.h"
#include "explain/show.h"

/* Takes `value` over; a failure leaves *object NULL, and everything after it does nothing. */
static void put(json_t **object, const char *key, json_t *value)
{
    if (!*object)
        json_decref(value);
    else if (!value || json_object_set_new(*object, key, value) != 0) {
        json_decref(*object);
        *object = NULL;
    }
}

static void append(json_t **array, json_t *value)
{
    if (!*array)
        json_decref(value);
    else if (!value || json_array_append_new(*array, value) != 0) {
        json_decref(*array);
        *array = NULL;
    }
}

static json_t *text(const char *value)
{
    return value ? json_string(value) : json_null();
}

static json_t *by_kind(const size_t bytes[FSDP_MEMORY_KINDS])
{
    json_t *object = json_object();
    char key[FSDP__JSON_NAME];

    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        put(&object, fsdp__json_name(fsdp_memory_kind_name((fsdp_memory_kind)kind), key, sizeof key),
            json_integer((json_int_t)bytes[kind]));
    return object;
}

static json_t *by_collective(const int64_t numbers[FSDP_COLLECTIVES])
{
    json_t *object = json_object();

    for (int kind = 0; kind < FSDP_COLLECTIVES; kind++)
        put(&object, fsdp_collective_name((fsdp_collective)kind), json_integer(numbers[kind]));
    return object;
}

static json_t *step_of(const fsdp_explained_step *step)
{
    json_t *object = json_object();

    put(&object, "live_bytes", by_kind(step->live_bytes));
    put(&object, "peak_bytes", by_kind(step->peak_bytes));
    put(&object, "peak_total_bytes", json_integer((json_int_t)step->peak_total_bytes));
    put(&object, "calls", by_collective(step->calls));
    put(&object, "bytes_sent", by_collective(step->bytes_sent));
    put(&object, "flops", json_real(step->flops));
    return object;
}

static json_t *lives_of(const fsdp_explained_unit *u)
{
    json_t *array = json_array();

    for (int64_t i = 0; i < u->life_count; i++) {
        const fsdp_explained_life *life = &u->lives[i];
        json_t *object = json_object();

        put(&object, "begin", json_integer(life->begin));
        put(&object, "end", json_integer(life->end));
        put(&object, "ahead", json_boolean(life->ahead));
        put(&object, "bytes", json_integer(life->bytes));
        put(&object, "flops", json_real(life->flops));
        append(&array, object);
    }
    return array;
}

static json_t *unit_of(const fsdp_explained_unit *u)
{
    json_t *object = json_object();

    put(&object, "name", text(u->name));
    put(&object, "type", text(u->type));
    put(&object, "parameters", json_integer(u->parameter_count));
    put(&object, "elements", json_integer(u->numel));
    put(&object, "padded_elements", json_integer(u->padded_numel));
    put(&object, "shard_elements", json_integer(u->shard_numel));
    put(&object, "gathers", json_integer(u->gathers));
    put(&object, "gathered_bytes", json_integer(u->gathered_bytes));
    put(&object, "reductions", json_integer(u->reductions));
    put(&object, "reduced_bytes", json_integer(u->reduced_bytes));
    put(&object, "flops", json_real(u->flops));
    put(&object, "lives", lives_of(u));
    return object;
}

static json_t *parts_of(const fsdp_explanation *e, const fsdp_explained_parameter *p)
{
    json_t *array = json_array();

    for (int i = 0; i < e->part_count; i++) {
        json_t *object = json_object();

        put(&object, "rank", json_integer(e->first_part + i));
        put(&object, "first", json_integer(p->parts[i].first));
        put(&object, "count", json_integer(p->parts[i].count));
        put(&object, "elements", json_integer(p->parts[i].numel));
        append(&array, object);
    }
    return array;
}

static json_t *parameter_of(const fsdp_explanation *e, const fsdp_explained_parameter *p)
{
    json_t *object = json_object(), *shape = json_array();

    for (int d = 0; d < p->ndim; d++)
        append(&shape, json_integer(p->shape[d]));
    put(&object, "name", text(p->name));
    put(&object, "unit", p->unit < 0 ? json_null() : text(e->units[p->unit].name));
    put(&object, "dtype", text(fsdp_dtype_name(p->dtype)));
    put(&object, "trained", json_boolean(p->trained));
    put(&object, "shape", shape);
    put(&object, "dim", p->dim < 0 ? json_null() : json_integer(p->dim));
    put(&object, "parts", parts_of(e, p));
    return object;
}

static json_t *event_of(const fsdp_explanation *e, const fsdp_explained_event *event)
{
    static const char *const names[] = {"unshard",      "wait",         "reshard",       "pre_forward",
                                        "post_forward", "pre_backward", "post_backward", "reduce"};
    json_t *object = json_object();

    put(&object, "event", text(names[event->event]));
    put(&object, "unit", text(e->units[event->unit].name));
    put(&object, "phase", text(fsdp__phase_name(event->phase)));
    put(&object, "microbatch", json_integer(event->microbatch));
    put(&object, "flops", json_real(event->flops));
    put(&object, "live_bytes", by_kind(event->live_bytes));
    return object;
}

static json_t *variant_of(const fsdp_explained_variant *v)
{
    json_t *object = json_object();

    put(&object, "policy", text(v->policy));
    put(&object, "asked", json_boolean(v->asked));
    put(&object, "units", json_integer(v->units));
    put(&object, "largest_elements", json_integer(v->largest));
    put(&object, "step", step_of(&v->step));
    return object;
}

static void put_lists(json_t **object, const fsdp_explanation *e)
{
    json_t *units = json_array(), *parameters = json_array(), *events = json_array(), *variants = json_array();

    for (int64_t i = 0; i < e->unit_count; i++)
        append(&units, unit_of(&e->units[i]));
    for (int64_t i = 0; i < e->parameter_count; i++)
        append(&parameters, parameter_of(e, &e->parameters[i]));
    for (int64_t i = 0; i < e->event_count; i++)
        append(&events, event_of(e, &e->events[i]));
    for (int64_t i = 0; i < e->variant_count; i++)
        append(&variants, variant_of(&e->variants[i]));
    put(object, "units", units);
    put(object, "parameters", parameters);
    put(object, "events", events);
    put(object, "variants", variants);
}

fsdp_status fsdp_explanation_json(const fsdp_explanation *e, FILE *out)
{
    json_t *object = json_object();
    bool written;

    if (!e || !out) {
        json_decref(object);
        return FSDP_FAIL(FSDP_INVALID, "there is no explanation, or no stream, to write");
    }
    put(&object, "model", text(e->model));
    put(&object, "strategy", text(e->strategy));
    put(&object, "policy", text(e->policy));
    put(&object, "world_size", json_integer(e->world_size));
    put(&object, "rank", json_integer(e->rank));
    put(&object, "replicas", json_integer(e->replicas));
    put(&object, "microbatches", json_integer(e->microbatches));
    put(&object, "local_batch", json_integer(e->local_batch));
    put(&object, "seq_len", json_integer(e->seq_len));
    put(&object, "elements", json_integer(e->numel));
    put(&object, "trained_elements", json_integer(e->trained_numel));
    if (e->microbatches > 0)
        put(&object, "step", step_of(&e->step));
    put_lists(&object, e);
    if (!object)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot write an explanation as JSON: out of memory");
    written = json_dumpf(object, out, JSON_INDENT(1)) == 0 && fputc('\n', out) != EOF;
    json_decref(object);
    return written ? FSDP_OK : FSDP_FAIL(FSDP_IO, "cannot write the explanation");
}
