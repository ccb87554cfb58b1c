/* trained_parameters.c - collects which parameters are trained. */
#include "shard/state/trained_parameters.h"

#include "base/alloc.h"
#include "shard/reduce/buckets.h"

static bool is_trained(const fsdp__param *param)
{
    const fsdp__mesh_info *mesh = &param->group->residence.mesh;

    return (mesh->ranks * mesh->replicas > 1 || param->group->buckets || fsdp__param_is_contributed(param)) &&
           fsdp_tensor_requires_grad(param->sharded);
}

/* A look at the parameters that are trained now. */
typedef struct look {
    const fsdp__trained *same;
    bool equal; /* they are those of `same` so far */
    int64_t count;
    fsdp__param **out; /* NULL: they are only counted and compared */
} look;

static fsdp_status collect(void *arg, fsdp__module_state *state)
{
    look *l = arg;

    for (int64_t g = 0; g < state->group_count; g++)
        for (int64_t i = 0; i < state->groups[g]->param_count; i++) {
            fsdp__param *p = &state->groups[g]->params[i];

            if (!is_trained(p))
                continue;
            l->equal = l->equal && l->count < l->same->count && l->same->params[l->count] == p;
            if (l->out)
                l->out[l->count] = p;
            l->count++;
        }
    return FSDP_OK;
}

fsdp_status fsdp__trained_now(fsdp__module_state *state, fsdp__trained **out)
{
    FSDP__SCOPED(fsdp__trained_unref_at) fsdp__trained *made = NULL;
    fsdp__trained *last = state->trained;
    look now = {.same = last, .equal = last != NULL};

    (void)fsdp__module_state_each(state, collect, &now);
    if (!now.equal || now.count != last->count) {
        FSDP__TRY_NEW(made = fsdp__calloc(1, sizeof *made));
        made->refs = 1;
        made->state = state;
        FSDP__TRY_NEW(made->params = fsdp__calloc((size_t)now.count + 1, sizeof *made->params));
        now = (look){.out = made->params};
        (void)fsdp__module_state_each(state, collect, &now);
        made->count = now.count;
        fsdp__trained_unref(last);
        state->trained = last = fsdp__take(&made);
    }
    last->refs++;
    *out = last;
    return FSDP_OK;
}

void fsdp__trained_unref(fsdp__trained *trained)
{
    if (!trained || --trained->refs > 0)
        return;
    FSDP__FREE_ALL(trained->params, trained);
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
