/* originals.c - makes views of a flat parameter's state. */
#include "optim/originals.h"

#include <string.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "tensor/tensor.h"

static const char flat_name[] = "_flat_param";

/* Returns the name of a part, which begins where the flat parameter's own name does. */
static char *name_of(const fsdp__optimizer_param *param, const char *part)
{
    size_t length = strlen(param->name), own = strlen(flat_name);
    bool ends = length >= own && strcmp(param->name + length - own, flat_name) == 0;

    return fsdp__sprintf("%.*s%s", ends ? (int)(length - own) : 0, param->name, part);
}

static fsdp_status add(fsdp__optimizer_param *param, const fsdp__leaf_part *part, int64_t *capacity)
{
    fsdp__optimizer_param *original;

    FSDP_TRY(fsdp__grow(&param->originals, param->original_count, capacity, sizeof *param->originals));
    original = &param->originals[param->original_count];
    *original = (fsdp__optimizer_param){.name = name_of(param, part->name), .first = part->at};
    FSDP__TRY_NEW(original->name);
    original->tensor = fsdp_tensor_ref(part->tensor);
    param->original_count++;
    return FSDP_OK;
}

fsdp_status fsdp__originals_create(fsdp__optimizer_param *param)
{
    int64_t capacity = 0;
    fsdp__leaf_part part;

    while (fsdp__leaf_part_at(param->tensor, param->original_count, &part))
        FSDP_TRY(add(param, &part, &capacity));
    return FSDP_OK;
}

static void let_go(fsdp__optimizer_param *original)
{
    fsdp_tensor_unref(original->moment1);
    fsdp_tensor_unref(original->moment2);
    original->moment1 = original->moment2 = NULL;
    original->steps = 0;
}

void fsdp__originals_free(fsdp__optimizer_param *param)
{
    for (int64_t i = 0; i < param->original_count; i++) {
        let_go(&param->originals[i]);
        fsdp_tensor_unref(param->originals[i].tensor);
        fsdp__free(param->originals[i].name);
    }
    fsdp__free(fsdp__take(&param->originals));
    param->original_count = 0;
}

/* ---- open ---- */

/* Makes a view of a moment, which may be NULL. */
static fsdp_status view(const fsdp_tensor *moment, const fsdp__optimizer_param *original, fsdp_tensor **out)
{
    const fsdp_tensor *like = original->tensor;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *made = NULL;

    *out = NULL;
    if (!moment)
        return FSDP_OK;
    FSDP_TRY(fsdp__tensor_create_view(moment->storage, moment->dtype, like->ndim, like->shape, NULL,
                                      moment->offset + original->first, &made));
    FSDP_TRY(fsdp_tensor_set_distribution(made, fsdp_tensor_distribution(like)));
    *out = fsdp__take(&made);
    return FSDP_OK;
}

static fsdp_status open(const fsdp__optimizer_group *group, fsdp__optimizer_param *param, bool make)
{
    if (make || param->steps > 0 || param->moment1)
        FSDP_TRY(fsdp__optimizer_fit_state(group, param));
    for (int64_t i = 0; i < param->original_count; i++) {
        fsdp__optimizer_param *original = &param->originals[i];

        let_go(original);
        FSDP_TRY(view(param->moment1, original, &original->moment1));
        FSDP_TRY(view(param->moment2, original, &original->moment2));
        original->steps = param->steps;
    }
    return FSDP_OK;
}

fsdp_status fsdp__originals_open(const fsdp_optimizer *optimizer, bool make)
{
    fsdp_status status = FSDP_OK;

    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);)
        if (w.param->original_count > 0)
            FSDP_TRY_GOTO(status, open(w.group, w.param, make), out);
    return FSDP_OK;
out:
    (void)fsdp__originals_close(optimizer, false);
    return status;
}

/* ---- close ---- */

static bool has_state(const fsdp__optimizer_param *original)
{
    return original->steps > 0 || original->moment1;
}

/* Fills with zeros the part of an original without state; its views are gone. */
static fsdp_status clear(const fsdp__optimizer_param *param, const fsdp__optimizer_param *original)
{
    fsdp_tensor *const moments[] = {param->moment1, param->moment2};

    for (int m = 0; m < 2; m++) {
        fsdp_tensor *part;
        fsdp_status status;

        FSDP_TRY(view(moments[m], original, &part));
        status = part ? fsdp_tensor_fill_(part, 0.0) : FSDP_OK;
        fsdp_tensor_unref(part);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

/* Makes the flat parameter's state that of its originals. */
static fsdp_status take(fsdp__optimizer_param *param)
{
    const fsdp__optimizer_param *first = NULL;

    for (int64_t i = 0; i < param->original_count && !first; i++)
        if (has_state(&param->originals[i]))
            first = &param->originals[i];
    if (!first) {
        fsdp__optimizer_forget_state(param);
        return FSDP_OK;
    }
    param->steps = first->steps;
    for (int64_t i = 0; i < param->original_count; i++) {
        const fsdp__optimizer_param *original = &param->originals[i];

        if (!has_state(original))
            FSDP_TRY(clear(param, original));
        else if (original->steps != first->steps)
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot load the state of '%s': '%s' has taken %lld steps and '%s' %lld, but they are one "
                             "flat parameter here",
                             param->name, first->name, (long long)first->steps, original->name,
                             (long long)original->steps);
    }
    return FSDP_OK;
}

fsdp_status fsdp__originals_close(const fsdp_optimizer *optimizer, bool taken)
{
    fsdp_status status = FSDP_OK;

    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        if (taken && w.param->original_count > 0)
            FSDP_KEEP_FIRST(status, take(w.param));
        for (int64_t p = 0; p < w.param->original_count; p++)
            let_go(&w.param->originals[p]);
    }
    return status;
}

/* ---- walks ---- */

bool fsdp__next_param(const fsdp_optimizer *optimizer, fsdp__optimizer_walk *w)
{
    while (w->next_group < optimizer->group_count && w->next == optimizer->groups[w->next_group].count) {
        w->next_group++;
        w->next = 0;
    }
    if (w->next_group == optimizer->group_count)
        return false;
    w->group = &optimizer->groups[w->next_group];
    w->param = &w->group->params[w->next++];
    return true;
}

bool fsdp__next_original(const fsdp_optimizer *optimizer, fsdp__optimizer_walk *w)
{
    const fsdp__optimizer_param *flat = w->next > 0 ? &w->group->params[w->next - 1] : NULL;

    if (!flat || w->next_original == flat->original_count) {
        if (!fsdp__next_param(optimizer, w))
            return false;
        w->next_original = 0;
        flat = w->param;
    }
    if (flat->original_count > 0)
        w->param = &flat->originals[w->next_original++];
    return true;
}
