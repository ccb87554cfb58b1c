/* compare_json.c - prints a comparison as JSON. */
#include "compare/compare_table.h"

#include "explain/json_value.h"

static json_t *memory_of(const size_t kinds[FSDP_MEMORY_KINDS], size_t total)
{
    json_t *object = fsdp__json_by_kind(kinds);

    fsdp__json_put(&object, "total", json_integer((json_int_t)total));
    return object;
}

static json_t *losses_of(const fsdp__figures *f)
{
    json_t *array = json_array();

    for (int i = 0; i < f->loss_count; i++)
        fsdp__json_append(&array, fsdp__json_real(f->losses[i]));
    return array;
}

static void put_figures(json_t **object, const fsdp__comparison *c, const fsdp__figures *f)
{
    int digits = fsdp__figures_agree(&c->figures[fsdp__comparison_first(c)], f);

    fsdp__json_put(object, "device", fsdp__json_text(f->device));
    if (f->links[0])
        fsdp__json_put(object, "links", fsdp__json_text(f->links));
    fsdp__json_put(object, "units", json_integer(f->units));
    fsdp__json_put(object, "microbatches", json_integer(f->microbatches));
    fsdp__json_put(object, "tokens_per_step", json_integer(f->tokens_per_step));
    fsdp__json_put(object, "losses", losses_of(f));
    fsdp__json_put(object, "equal_digits", json_integer(digits));
    fsdp__json_put(object, "same_bits", json_boolean(digits == FSDP__SAME_BITS));
    fsdp__json_put(object, "starts_agree", json_boolean(f->starts_agree));
    fsdp__json_put(object, "measured_steps", json_integer(f->step_count));
    fsdp__json_put(object, "step_ms", fsdp__json_real(f->step_ms));
    fsdp__json_put(object, "spread_ms", fsdp__json_real(f->spread_ms));
    fsdp__json_put(object, "gather_ms", fsdp__json_real(f->gather_ms));
    fsdp__json_put(object, "reduce_ms", fsdp__json_real(f->reduce_ms));
    fsdp__json_put(object, "tokens_per_second", fsdp__json_real(f->tokens_per_second));
    fsdp__json_put(object, "calls", fsdp__json_by_collective(f->comm.calls, FSDP_BARRIER));
    fsdp__json_put(object, "bytes_sent", fsdp__json_by_collective(f->comm.bytes_sent, FSDP_BARRIER));
    fsdp__json_put(object, "memory_peak", memory_of(f->memory.peak_bytes, f->memory.peak_total_bytes));
    fsdp__json_put(object, "memory_rest", memory_of(f->memory.live_bytes, f->memory.live_total_bytes));
    fsdp__json_put(object, "resident_bytes", json_integer((json_int_t)f->resident_bytes));
    fsdp__json_put(object, "resident_peak_bytes", json_integer((json_int_t)f->resident_peak_bytes));
}

/* Returns the figures on another number of ranks. If nothing could be found out, that number is all there is. */
static json_t *world_of(const fsdp__comparison *c, int variant, int world)
{
    const fsdp_explained_step *step = &c->worlds.figures[variant][world].step;
    json_t *object = json_object();

    fsdp__json_put(&object, "ranks", json_integer(c->worlds.ranks[world]));
    if (c->worlds.figures[variant][world].peak_bytes < 0)
        return object;
    fsdp__json_put(&object, "calls", fsdp__json_by_collective(step->calls, FSDP_BARRIER));
    fsdp__json_put(&object, "bytes_sent", fsdp__json_by_collective(step->bytes_sent, FSDP_BARRIER));
    fsdp__json_put(&object, "memory_peak", memory_of(step->peak_bytes, step->peak_total_bytes));
    return object;
}

static json_t *variant_of(const fsdp__comparison *c, int i)
{
    const fsdp__variant *v = &c->variants.items[i];
    json_t *object = json_object(), *worlds = json_array();

    fsdp__json_put(&object, "strategy", fsdp__json_text(v->strategy));
    if (v->policy[0])
        fsdp__json_put(&object, "policy", fsdp__json_text(v->policy));
    if (c->figures[i].has)
        put_figures(&object, c, &c->figures[i]);
    else if (v->refused[0])
        fsdp__json_put(&object, "left_out", fsdp__json_text(v->refused));
    else
        fsdp__json_put(&object, "failed", fsdp__json_text(c->figures[i].failure));
    for (int world = 0; world < c->worlds.count; world++)
        fsdp__json_append(&worlds, world_of(c, i, world));
    fsdp__json_put(&object, "worlds", worlds);
    return object;
}

fsdp_status fsdp__comparison_print_json(const fsdp__comparison *c, FILE *out)
{
    const char *model = c->config->model.path ? c->config->model.path : c->config->model.preset;
    json_t *object = json_object(), *variants = json_array();

    fsdp__json_put(&object, "version", json_integer(1));
    fsdp__json_put(&object, "model", fsdp__json_text(model));
    fsdp__json_put(&object, "ranks", json_integer(c->ranks));
    fsdp__json_put(&object, "steps", json_integer(c->steps));
    fsdp__json_put(&object, "warmup_steps", json_integer(FSDP__WARMUP_STEPS));
    fsdp__json_put(&object, "rounds", json_integer(c->rounds));
    for (int i = 0; i < c->variants.count; i++)
        fsdp__json_append(&variants, variant_of(c, i));
    fsdp__json_put(&object, "variants", variants);
    return fsdp__json_print(object, out);
}
