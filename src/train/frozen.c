/* frozen.c - which parameters are not trained. */
#include <fnmatch.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "models/models.h"
#include "tensor/tensor.h"
#include "train/checkpoint_values.h"
#include "train/run_config.h"
#include "train/run_start.h"

/* Returns whether the first `length` characters of a pattern, followed by anything, match the name. */
static bool begins_like(const char *pattern, size_t length, const char *name)
{
    FSDP__FREED char *begin = fsdp__sprintf("%.*s*", (int)length, pattern);

    return begin && fnmatch(begin, name, 0) == 0;
}

const char *fsdp__train_nearest_parameter(const char *pattern, const fsdp_parameters *parameters)
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
                     fsdp__train_nearest_parameter(pattern, parameters));
}

/* ---- state that was there before ---- */

/* Returns whether the optimizer state in the checkpoint that the run goes on from has any for a parameter of this name,
 * or for one whose name begins with it. */
static bool has_state(const fsdp_train_run *run, const char *name, bool begins)
{
    const fsdp_checkpoint_reader *from = run->resume.from;
    size_t length = strlen(name), prefix = strlen("state.");

    if (!from || !fsdp__train_loads(run->config, FSDP__TRAIN_OPTIMIZER))
        return false;
    for (int64_t i = 0; i < fsdp_checkpoint_count(from); i++) {
        const fsdp_checkpoint_tensor *t = fsdp_checkpoint_at(from, i);
        const char *own = strncmp(t->name, "state.", prefix) == 0 ? t->name + prefix : NULL;

        if (strcmp(t->section, FSDP__SECTION_OPTIMIZER) == 0 && own && strncmp(own, name, length) == 0 &&
            (begins || (own[length] == '.' && !strchr(own + length + 1, '.'))))
            return true;
    }
    return false;
}

/* Counts what is kept, and reports it. */
static void note_kept(fsdp_train_run *run, const fsdp_parameters *parameters)
{
    fsdp__names names = {.count = 0};

    run->kept_parameters = 0;
    for (int64_t i = 0; i < parameters->count; i++) {
        const fsdp_parameter *p = &parameters->items[i];

        if (fsdp_tensor_requires_grad(p->tensor) || !has_state(run, p->name, false))
            continue;
        run->kept_parameters += fsdp_tensor_numel(p->tensor);
        fsdp__names_add(&names, p->name);
    }
    if (names.count > 0 && fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_WARNING,
                 "'%s' has optimizer state of parameters that model.frozen names: %s: it is kept unchanged, in memory "
                 "and in checkpoints, and is used when they are trained again",
                 run->resume.path, fsdp__names_text(&names));
}

/* Returns whether a parameter keeps state. A flat parameter is frozen as a whole, and has state under the names of the
 * parameters in it. */
static bool keeps_state(const fsdp_train_run *run, const char *name)
{
    static const char flat[] = "_flat_param";
    FSDP__FREED char *prefix = NULL;

    if (fsdp__ends_with(name, flat))
        prefix = fsdp__sprintf("%.*s", (int)(strlen(name) - strlen(flat)), name);
    return has_state(run, prefix ? prefix : name, prefix != NULL);
}

fsdp_status fsdp__train_thaw_kept(const fsdp_train_run *run, const fsdp_parameters *parameters, bool *thawed)
{
    for (int64_t i = 0; i < parameters->count && run->kept_parameters > 0; i++) {
        const fsdp_parameter *p = &parameters->items[i];

        if (fsdp_tensor_requires_grad(p->tensor) || !keeps_state(run, p->name))
            continue;
        FSDP_TRY(fsdp_tensor_set_requires_grad(p->tensor, true));
        thawed[i] = true;
    }
    return FSDP_OK;
}

fsdp_status fsdp__train_freeze_kept(const fsdp_parameters *parameters, const bool *thawed)
{
    for (int64_t i = 0; i < parameters->count; i++)
        if (thawed[i])
            FSDP_TRY(fsdp_tensor_set_requires_grad(parameters->items[i].tensor, false));
    return FSDP_OK;
}

/* ---- all of it ---- */

static void count_trained(fsdp_train_run *run, const fsdp_parameter *p)
{
    int64_t numel = fsdp_tensor_numel(p->tensor);

    run->trained_parameters += numel;
    if (strstr(p->name, ".lora_"))
        run->adapter_products += numel;
    else if (!fsdp__is_looked_up(&run->model_config, p->name))
        run->trained_products += numel;
}

fsdp_status fsdp__train_freeze(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    FSDP__SCOPED(fsdp_parameters_release) fsdp_parameters parameters = {0};

    FSDP_TRY(fsdp_module_parameters(run->model, &parameters));
    for (int64_t i = 0; i < c->model.frozen_count; i++)
        FSDP_TRY(freeze_matching(c->model.frozen[i], &parameters));
    run->trained_parameters = run->trained_products = run->adapter_products = 0;
    run->parameter_bytes = 0;
    for (int64_t i = 0; i < parameters.count; i++) {
        const fsdp_tensor *t = parameters.items[i].tensor;

        run->parameter_bytes += (double)fsdp_tensor_numel(t) * (double)fsdp_dtype_size(fsdp_tensor_dtype(t));
        if (fsdp_tensor_requires_grad(t))
            count_trained(run, &parameters.items[i]);
    }
    note_kept(run, &parameters);
    if (run->trained_parameters == 0)
        return FSDP_FAIL(FSDP_INVALID, "model.frozen leaves no parameter to train");
    return FSDP_OK;
}
