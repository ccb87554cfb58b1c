/* optimizer.c - parameter groups and their options; creates and frees optimizers. */
#include "optim/originals.h"
#include "optim/partition.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/status.h"
#include "base/text.h"
#include "device/steps.h"
#include "nn/managers.h"
#include "tensor/tensor.h"

fsdp_adam_options fsdp_adam_options_default(void)
{
    return (fsdp_adam_options){.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
}

/* Written so that NaN is refused too. */
static fsdp_status check_at_least_zero(const char *name, double value)
{
    if (!(value >= 0 && value <= INFINITY))
        return FSDP_FAIL(FSDP_INVALID, "optimizer option %s is %g: it must not be negative", name, value);
    return FSDP_OK;
}

static fsdp_status check_beta(const char *name, double value)
{
    if (!(value >= 0 && value < 1))
        return FSDP_FAIL(FSDP_INVALID, "optimizer option %s is %g: it must be at least 0 and below 1", name, value);
    return FSDP_OK;
}

static fsdp_status check_adam(const fsdp_adam_options *options)
{
    if (options->beta1 == 0 && options->beta2 == 0 && options->eps == 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "optimizer options beta1, beta2 and eps are all 0, as in a struct of which only some fields "
                         "were set: begin with fsdp_adam_options_default()");
    FSDP_TRY(check_at_least_zero("eps", options->eps));
    FSDP_TRY(check_at_least_zero("weight_decay", options->weight_decay));
    FSDP_TRY(check_beta("beta1", options->beta1));
    FSDP_TRY(check_beta("beta2", options->beta2));
    if (options->state_bits != 0 && options->state_bits != 8 && options->state_bits != 32)
        return FSDP_FAIL(FSDP_INVALID, "optimizer option state_bits is %d: it must be 8 or 32", options->state_bits);
    if (options->state_bits == 8 && options->eps == 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "optimizer option eps is 0: it must be above 0 with state_bits 8, since the code of "
                         "a second moment may be 0 where the first one is not");
    return FSDP_OK;
}

fsdp_lion_options fsdp_lion_options_default(void)
{
    return (fsdp_lion_options){.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99};
}

static fsdp_status check_lion(const fsdp_lion_options *options)
{
    if (options->beta1 == 0 && options->beta2 == 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "optimizer options beta1 and beta2 are both 0, as in a struct of which only some "
                         "fields were set: begin with fsdp_lion_options_default()");
    FSDP_TRY(check_at_least_zero("weight_decay", options->weight_decay));
    FSDP_TRY(check_beta("beta1", options->beta1));
    return check_beta("beta2", options->beta2);
}

fsdp_muon_options fsdp_muon_options_default(void)
{
    return (fsdp_muon_options){.lr = 1e-3, .momentum = 0.95, .weight_decay = 0.1, .nesterov = true};
}

static fsdp_status check_muon(const fsdp_muon_options *options)
{
    FSDP_TRY(check_at_least_zero("weight_decay", options->weight_decay));
    if (options->adjust != FSDP_MUON_ORIGINAL && options->adjust != FSDP_MUON_MATCH_RMS_ADAMW)
        return FSDP_FAIL(FSDP_INVALID,
                         "optimizer option adjust is %d: it must be FSDP_MUON_ORIGINAL or FSDP_MUON_MATCH_RMS_ADAMW",
                         (int)options->adjust);
    return check_beta("momentum", options->momentum);
}

fsdp_adafactor_options fsdp_adafactor_options_default(void)
{
    return (fsdp_adafactor_options){.lr = 1e-2, .beta2_decay = -0.8, .eps2 = 1e-3, .d = 1};
}

static fsdp_status check_adafactor(const fsdp_adafactor_options *options)
{
    FSDP_TRY(check_at_least_zero("weight_decay", options->weight_decay));
    FSDP_TRY(check_at_least_zero("eps1", options->eps1));
    FSDP_TRY(check_at_least_zero("eps2", options->eps2));
    if (!(options->beta2_decay <= 0) || isinf(options->beta2_decay))
        return FSDP_FAIL(FSDP_INVALID, "optimizer option beta2_decay is %g: it must be finite and not above 0",
                         options->beta2_decay);
    if (!(options->d >= 1))
        return FSDP_FAIL(FSDP_INVALID,
                         "optimizer option d is %g: it must be at least 1 (fsdp_adafactor_options_default() has 1)",
                         options->d);
    return FSDP_OK;
}

static fsdp_status check_sgd(const fsdp_sgd_options *options)
{
    FSDP_TRY(check_at_least_zero("momentum", options->momentum));
    FSDP_TRY(check_at_least_zero("weight_decay", options->weight_decay));
    if (options->nesterov && (options->momentum <= 0 || options->dampening != 0))
        return FSDP_FAIL(FSDP_INVALID, "nesterov needs momentum over 0 and dampening 0, not %g and %g",
                         options->momentum, options->dampening);
    if (!isfinite(options->dampening))
        return FSDP_FAIL(FSDP_INVALID, "optimizer option dampening is %g: it must be finite", options->dampening);
    return FSDP_OK;
}

fsdp_status fsdp__optimizer_check_options(const fsdp__optimizer_group *group)
{
    FSDP_TRY(check_at_least_zero("lr", group->lr));
    switch (group->kind) {
    case FSDP__OPTIMIZER_SGD:
        return check_sgd(&group->options.sgd);
    case FSDP__OPTIMIZER_LION:
        return check_lion(&group->options.lion);
    case FSDP__OPTIMIZER_MUON:
        return check_muon(&group->options.muon);
    case FSDP__OPTIMIZER_ADAFACTOR:
        return check_adafactor(&group->options.adafactor);
    default:
        return check_adam(&group->options.adam);
    }
}

fsdp_status fsdp__optimizer_check(const fsdp_optimizer *optimizer, const char *what)
{
    return optimizer ? FSDP_OK : FSDP__FAIL_NULL("cannot %s: the optimizer is NULL", what);
}

fsdp_status fsdp__optimizer_check_param(const char *name, const fsdp_tensor *tensor)
{
    if (fsdp_device_is_meta(fsdp_tensor_device(tensor)))
        return FSDP_FAIL(FSDP_STATE, "cannot optimize '%s': it is on the meta device; materialize the module first",
                         name);
    if (fsdp__leaf_is_part(tensor))
        return FSDP_FAIL(FSDP_STATE,
                         "cannot optimize '%s': it is a part of a flat parameter, which has the gradient: make the "
                         "optimizer of fsdp_module_parameters after wrapping, or wrap with original parameters",
                         name);
    FSDP_TRY(fsdp__check_not_gathered(tensor, "optimize", "", name));
    if (!fsdp_dtype_is_floating(fsdp_tensor_dtype(tensor)))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot optimize '%s': it is %s, which is not floating", name,
                         fsdp_dtype_name(fsdp_tensor_dtype(tensor)));
    if (!fsdp_tensor_is_contiguous(tensor))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot optimize '%s': its shape %s is not contiguous", name,
                         FSDP__SHAPE_OF(tensor));
    return FSDP_OK;
}

/* Checks an added parameter against a group. `number` -1 stands for the group that is being made. */
static fsdp_status check_against(const fsdp__optimizer_group *group, int number, const fsdp_parameter *added)
{
    char place[40] = "comes earlier in the list";

    if (number >= 0)
        snprintf(place, sizeof place, "is in group %d already", number);
    for (int64_t i = 0; i < group->count; i++) {
        if (group->params[i].tensor == added->tensor)
            return FSDP_FAIL(FSDP_INVALID, "cannot optimize '%s' twice: it %s", added->name, place);
        if (strcmp(group->params[i].name, added->name) == 0)
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot optimize two parameters called '%s', one of which %s: state is found by names, so "
                             "take those of a module that holds both (fsdp_module_parameters)",
                             added->name, place);
    }
    return FSDP_OK;
}

/* Checks that the parameter and its name are new among the optimizer's parameters and those of the group `more`. */
static fsdp_status check_new(const fsdp_optimizer *optimizer, const fsdp__optimizer_group *more,
                             const fsdp_parameter *added)
{
    for (int g = 0; g < optimizer->group_count; g++)
        FSDP_TRY(check_against(&optimizer->groups[g], g, added));
    return check_against(more, -1, added);
}

static void free_group(fsdp__optimizer_group *group)
{
    for (int64_t i = 0; i < group->count; i++) {
        fsdp__optimizer_forget_state(&group->params[i]);
        fsdp_tensor_unref(group->params[i].tensor);
        fsdp__originals_free(&group->params[i]);
        fsdp__free(group->params[i].name);
    }
    FSDP__FREE_ALL(group->params, group->sorted);
    *group = (fsdp__optimizer_group){.params = NULL};
}

static fsdp_status check_bytes(const fsdp_parameters *parameters)
{
    fsdp__names meta = {.count = 0};

    for (int64_t i = 0; i < parameters->count; i++)
        if (fsdp_tensor_requires_grad(parameters->items[i].tensor))
            fsdp__name_without_values(parameters->items[i].tensor, parameters->items[i].name, &meta, NULL);
    if (meta.count > 0)
        return FSDP_FAIL(FSDP_STATE,
                         "cannot optimize what is still on the meta device: %s: call fsdp_module_materialize first",
                         fsdp__names_text(&meta));
    return FSDP_OK;
}

static fsdp_status fill_group(const fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                              fsdp__optimizer_group *group)
{
    FSDP__TRY_NEW(group->params = fsdp__calloc((size_t)parameters->count, sizeof *group->params));
    for (int64_t i = 0; i < parameters->count; i++) {
        const fsdp_parameter *from = &parameters->items[i];
        fsdp__optimizer_param *to = &group->params[group->count];

        if (!fsdp_tensor_requires_grad(from->tensor))
            continue;
        if (!from->name || !*from->name)
            return FSDP_FAIL(FSDP_INVALID, "cannot optimize parameter %lld of the list: it has no name", (long long)i);
        FSDP_TRY(fsdp__optimizer_check_param(from->name, from->tensor));
        if (group->kind == FSDP__OPTIMIZER_MUON)
            FSDP_TRY(fsdp__muon_check(from->name, from->tensor));
        if (group->kind == FSDP__OPTIMIZER_ADAFACTOR)
            FSDP_TRY(fsdp__adafactor_check(from->name, from->tensor));
        FSDP_TRY(check_new(optimizer, group, from));
        FSDP__TRY_NEW(to->name = fsdp__strdup(from->name));
        to->tensor = fsdp_tensor_ref(from->tensor);
        group->count++;
        FSDP_TRY(fsdp__originals_create(to));
    }
    return FSDP_OK;
}

/* Moves `group`, whose options are set, into the optimizer with its parameters. */
static fsdp_status add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters, fsdp__optimizer_group like)
{
    FSDP__SCOPED(free_group) fsdp__optimizer_group group = like;
    fsdp__optimizer_group *groups;

    if (!parameters || parameters->count < 0 || (parameters->count > 0 && !parameters->items))
        return FSDP_FAIL(FSDP_INVALID, "an optimizer needs parameters%s",
                         parameters ? ": there is a number of them, but no list" : "");
    FSDP_TRY(check_bytes(parameters));
    FSDP_TRY(fill_group(optimizer, parameters, &group));
    FSDP__TRY_NEW(groups = fsdp__realloc(optimizer->groups, (size_t)(optimizer->group_count + 1) * sizeof *groups));
    optimizer->groups = groups;
    FSDP_TRY(fsdp__partition_add_group(optimizer, &group));
    optimizer->groups[optimizer->group_count++] = group;
    group = (fsdp__optimizer_group){.params = NULL};
    if (!optimizer->context && parameters->count > 0)
        optimizer->context = fsdp_device_context(fsdp_tensor_device(parameters->items[0].tensor));
    return FSDP_OK;
}

/* Holds the words of errors for a kind of optimizer, and its options. */
static const struct kind {
    const char *name, *defaults;
    size_t bytes; /* of the options, of which the learning rate comes first */
} kinds[] = {
    [FSDP__OPTIMIZER_ADAM] = {"Adam", ": fsdp_adam_options_default() has some", sizeof(fsdp_adam_options)},
    [FSDP__OPTIMIZER_ADAMW] = {"AdamW", ": fsdp_adam_options_default() has some", sizeof(fsdp_adam_options)},
    [FSDP__OPTIMIZER_SGD] = {"SGD", "", sizeof(fsdp_sgd_options)},
    [FSDP__OPTIMIZER_LION] = {"Lion", ": fsdp_lion_options_default() has some", sizeof(fsdp_lion_options)},
    [FSDP__OPTIMIZER_MUON] = {"Muon", ": fsdp_muon_options_default() has some", sizeof(fsdp_muon_options)},
    [FSDP__OPTIMIZER_ADAFACTOR] = {"Adafactor", ": fsdp_adafactor_options_default() has some",
                                   sizeof(fsdp_adafactor_options)},
};

_Static_assert(offsetof(fsdp_adam_options, lr) == 0 && offsetof(fsdp_sgd_options, lr) == 0 &&
                   offsetof(fsdp_lion_options, lr) == 0 && offsetof(fsdp_muon_options, lr) == 0 &&
                   offsetof(fsdp_adafactor_options, lr) == 0,
               "begin_group takes the learning rate from there");

/* Begins a group without parameters; checks its options. */
static fsdp_status begin_group(fsdp__optimizer_kind kind, const void *options, fsdp__optimizer_group *out)
{
    *out = (fsdp__optimizer_group){.kind = kind};
    if (!options)
        return FSDP_FAIL(FSDP_INVALID, "an optimizer needs options%s", kinds[kind].defaults);
    memcpy(&out->options, options, kinds[kind].bytes);
    memcpy(&out->lr, options, sizeof out->lr);
    return fsdp__optimizer_check_options(out);
}

static fsdp_status create(fsdp__optimizer_kind kind, const fsdp_parameters *parameters, const void *options,
                          fsdp_optimizer **out)
{
    FSDP__SCOPED(fsdp_optimizer_free_at) fsdp_optimizer *optimizer = NULL;
    fsdp__optimizer_group group;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "an optimizer needs a place for the result");
    *out = NULL;
    FSDP_TRY(begin_group(kind, options, &group));
    FSDP__TRY_NEW(optimizer = fsdp__calloc(1, sizeof *optimizer));
    optimizer->grad_scale = 1;
    optimizer->holds = 1; /* the caller's */
    FSDP_TRY(add_group(optimizer, parameters, group));
    *out = fsdp__take(&optimizer);
    return FSDP_OK;
}

fsdp_status fsdp_adamw_create(const fsdp_parameters *parameters, const fsdp_adam_options *options, fsdp_optimizer **out)
{
    return create(FSDP__OPTIMIZER_ADAMW, parameters, options, out);
}

fsdp_status fsdp_adam_create(const fsdp_parameters *parameters, const fsdp_adam_options *options, fsdp_optimizer **out)
{
    return create(FSDP__OPTIMIZER_ADAM, parameters, options, out);
}

fsdp_status fsdp_sgd_create(const fsdp_parameters *parameters, const fsdp_sgd_options *options, fsdp_optimizer **out)
{
    return create(FSDP__OPTIMIZER_SGD, parameters, options, out);
}

fsdp_status fsdp_lion_create(const fsdp_parameters *parameters, const fsdp_lion_options *options, fsdp_optimizer **out)
{
    return create(FSDP__OPTIMIZER_LION, parameters, options, out);
}

fsdp_status fsdp_muon_create(const fsdp_parameters *parameters, const fsdp_muon_options *options, fsdp_optimizer **out)
{
    return create(FSDP__OPTIMIZER_MUON, parameters, options, out);
}

fsdp_status fsdp_adafactor_create(const fsdp_parameters *parameters, const fsdp_adafactor_options *options,
                                  fsdp_optimizer **out)
{
    return create(FSDP__OPTIMIZER_ADAFACTOR, parameters, options, out);
}

/* Adds a group to an optimizer whose first group is of the same kind; Muon and AdamW go together, and Adam's options
 * are also AdamW's. */
static fsdp_status add(fsdp_optimizer *optimizer, fsdp__optimizer_kind kind, const fsdp_parameters *parameters,
                       const void *options)
{
    fsdp__optimizer_kind first;
    fsdp__optimizer_group group;

    FSDP_TRY(fsdp__optimizer_check(optimizer, "add a group"));
    first = optimizer->groups[0].kind;
    kind = kind == FSDP__OPTIMIZER_ADAMW && first == FSDP__OPTIMIZER_ADAM ? first : kind;
    FSDP_TRY(begin_group(kind, options, &group));
    if (first != kind && !(first == FSDP__OPTIMIZER_ADAMW && kind == FSDP__OPTIMIZER_MUON) &&
        !(first == FSDP__OPTIMIZER_MUON && kind == FSDP__OPTIMIZER_ADAMW))
        return FSDP_FAIL(FSDP_INVALID, "cannot add a group: the optimizer is not %s", kinds[kind].name);
    return add_group(optimizer, parameters, group);
}

fsdp_status fsdp_adam_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                const fsdp_adam_options *options)
{
    return add(optimizer, FSDP__OPTIMIZER_ADAMW, parameters, options);
}

fsdp_status fsdp_sgd_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                               const fsdp_sgd_options *options)
{
    return add(optimizer, FSDP__OPTIMIZER_SGD, parameters, options);
}

fsdp_status fsdp_lion_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                const fsdp_lion_options *options)
{
    return add(optimizer, FSDP__OPTIMIZER_LION, parameters, options);
}

fsdp_status fsdp_muon_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                const fsdp_muon_options *options)
{
    return add(optimizer, FSDP__OPTIMIZER_MUON, parameters, options);
}

fsdp_status fsdp_adafactor_add_group(fsdp_optimizer *optimizer, const fsdp_parameters *parameters,
                                     const fsdp_adafactor_options *options)
{
    return add(optimizer, FSDP__OPTIMIZER_ADAFACTOR, parameters, options);
}

fsdp_optimizer *fsdp__optimizer_hold(fsdp_optimizer *optimizer)
{
    optimizer->holds++;
    return optimizer;
}

void fsdp__optimizer_drop(fsdp_optimizer *optimizer)
{
    if (--optimizer->holds == 0)
        fsdp__free(optimizer);
}

void fsdp_optimizer_free(fsdp_optimizer *optimizer)
{
    if (!optimizer)
        return;
    fsdp__partition_free(optimizer);
    for (int g = 0; g < optimizer->group_count; g++)
        free_group(&optimizer->groups[g]);
    FSDP__FREE_ALL(optimizer->groups, optimizer->spans, optimizer->byte_spans);
    fsdp__optimizer_drop(optimizer);
}

int64_t fsdp__optimizer_count(const fsdp_optimizer *optimizer)
{
    int64_t count = 0;

    for (int g = 0; g < optimizer->group_count; g++)
        count += optimizer->groups[g].count;
    return count;
}

int fsdp_optimizer_group_count(const fsdp_optimizer *optimizer)
{
    return optimizer ? optimizer->group_count : 0;
}

double fsdp_optimizer_lr(const fsdp_optimizer *optimizer, int group)
{
    return group >= 0 && group < fsdp_optimizer_group_count(optimizer) ? optimizer->groups[group].lr : 0;
}

fsdp_status fsdp_optimizer_set_lr(fsdp_optimizer *optimizer, int group, double lr)
{
    FSDP_TRY(fsdp__optimizer_check(optimizer, "set a learning rate"));
    if (group < 0 || group >= optimizer->group_count)
        return FSDP_FAIL(FSDP_INVALID, "cannot set the learning rate of group %d: the optimizer has %d", group,
                         optimizer->group_count);
    FSDP_TRY(check_at_least_zero("lr", lr));
    optimizer->groups[group].lr = lr;
    return FSDP_OK;
}

fsdp_status fsdp_optimizer_zero_grad(fsdp_optimizer *optimizer)
{
    const fsdp_context *context = NULL;

    FSDP_TRY(fsdp__optimizer_check(optimizer, "drop gradients"));
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        FSDP_TRY(fsdp_tensor_set_grad(w.param->tensor, NULL));
        context = fsdp_device_context(fsdp_tensor_device(w.param->tensor));
    }
    optimizer->grad_scale = 1;
    if (context)
        fsdp__end_step(context);
    return FSDP_OK;
}
