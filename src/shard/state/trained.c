/* trained.c - collects which parameters are trained. */
#include "shard/state/trained.h"

#include "base/alloc.h"
#include "shard/reduce/buckets.h"

static bool is_trained(const fsdp__param *param)
{
    const fsdp__mesh_info *mesh = &param->group->residence.mesh;

    return (mesh->ranks * mesh->replicas > 1 || param->group->buckets) && fsdp_tensor_requires_grad(param->sharded);
}

/* Goes through the trained parameters: counts them, puts them into `out` (or NULL), and returns whether they are those
 * of `same` (or NULL) so far. */
static bool collect(const fsdp__module_state *state, const fsdp__trained *same, fsdp__param **out, int64_t *count)
{
    bool equal = true;

    for (int64_t g = 0; g < state->group_count; g++)
        for (int64_t i = 0; i < state->groups[g]->param_count; i++) {
            fsdp__param *p = &state->groups[g]->params[i];

            if (!is_trained(p))
                continue;
            equal = equal && same && *count < same->count && same->params[*count] == p;
            if (out)
                out[*count] = p;
            ++*count;
        }
    for (int64_t i = 0; i < state->companion_count; i++)
        equal = collect(state->companions[i], same, out, count) && equal;
    return equal;
}

fsdp_status fsdp__trained_now(fsdp__module_state *state, fsdp__trained **out)
{
    fsdp__trained *last = state->trained;
    int64_t count = 0;

    if (!collect(state, last, NULL, &count) || !last || count != last->count) {
        fsdp__trained *made = fsdp__calloc(1, sizeof *made);

        if (!made)
            return FSDP_NO_MEMORY;
        made->refs = 1;
        made->state = state;
        made->params = fsdp__calloc((size_t)count + 1, sizeof *made->params);
        if (!made->params) {
            fsdp__trained_unref(made);
            return FSDP_NO_MEMORY;
        }
        (void)collect(state, NULL, made->params, &made->count);
        fsdp__trained_unref(last);
        state->trained = last = made;
    }
    last->refs++;
    *out = last;
    return FSDP_OK;
}

void fsdp__trained_unref(fsdp__trained *trained)
{
    if (!trained || --trained->refs > 0)
        return;
    fsdp__free(trained->params);
    fsdp__free(trained);
}

/* Returns whether the running backward of a replicated module has already made the parameter due, at another output or
 * forward. It may have been sent since, on this rank and not on another. */
static bool was_due(const fsdp__param *param)
{
    const fsdp__buckets *b = param->group->buckets;

    return b->running && b->places[param - param->group->params].expected;
}

void fsdp__trained_are_due(const fsdp__trained *trained)
{
    for (int64_t i = 0; i < trained->count; i++) {
        fsdp__param *param = trained->params[i];
        fsdp__buckets *b = param->group->buckets;

        if (b && was_due(param))
            continue;
        param->due = true;
        if (b)
            b->places[param - param->group->params].expected = true;
    }
}
