/* frozen.c - which parameters are not trained. */
#include <fnmatch.h>
#include <string.h>

#include "base/alloc.h"
#include "tensor/tensor.h"
#include "train/run.h"

/* Whether the first `length` characters of a pattern, and anything behind them, match. */
static bool begins_like(const char *pattern, size_t length, const char *name)
{
    char *begin = fsdp__sprintf("%.*s*", (int)length, pattern);
    bool matches = begin && fnmatch(begin, name, 0) == 0;

    fsdp__free(begin);
    return matches;
}

/* The parameter that as much as possible of the pattern fits, from its beginning. */
static const char *nearest(const char *pattern, const fsdp_parameters *parameters)
{
    for (size_t length = strlen(pattern); length > 0; length--)
        for (int64_t i = 0; i < parameters->count; i++)
            if (begins_like(pattern, length, parameters->items[i].name))
                return parameters->items[i].name;
    return parameters->items[0].name;
}

static fsdp_status freeze_matching(const char *pattern, const fsdp_parameters *parameters)
{
    bool any = false;

    for (int64_t i = 0; i < parameters->count; i++) {
        if (fnmatch(pattern, parameters->items[i].name, 0) != 0)
            continue;
        FSDP_TRY(fsdp_tensor_set_requires_grad(parameters->items[i].tensor, false));
        any = true;
    }
    if (any)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "model.frozen: '%s' matches no parameter; the nearest is '%s'", pattern,
                     nearest(pattern, parameters));
}

fsdp_status fsdp__train_freeze(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    fsdp_parameters parameters;
    fsdp_status status = FSDP_OK;

    FSDP_TRY(fsdp_module_parameters(run->model, &parameters));
    for (int64_t i = 0; i < c->model.frozen_count; i++)
        FSDP_TRY_GOTO(status, freeze_matching(c->model.frozen[i], &parameters), out);
    run->trained_parameters = 0;
    for (int64_t i = 0; i < parameters.count; i++)
        if (fsdp_tensor_requires_grad(parameters.items[i].tensor))
            run->trained_parameters += fsdp_tensor_numel(parameters.items[i].tensor);
    if (run->trained_parameters == 0)
        status = FSDP_FAIL(FSDP_INVALID, "model.frozen leaves no parameter to train");
out:
    fsdp_parameters_release(&parameters);
    return status;
}
