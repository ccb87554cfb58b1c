/* optimizer_state.c - saves and loads the state of an optimizer under the names of its parameters. */
#include <string.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/compiler.h"
#include "fsdp/state.h"
#include "optim/originals.h"
#include "optim/param_groups.h"
#include "optim/partition.h"
#include "state/entry.h"
#include "tensor/tensor.h"

#define STEP "step"

static char *name_of(const fsdp__optimizer_param *param, const char *what)
{
    return fsdp__sprintf("state.%s.%s", param->name, what);
}

/* ---- saving ---- */

fsdp_status fsdp_optimizer_init_state(fsdp_optimizer *optimizer)
{
    FSDP_TRY(fsdp__optimizer_check(optimizer, "make state"));
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        if (!fsdp__partition_owns(optimizer, w.param))
            continue;
        FSDP_TRY(fsdp__optimizer_check_param(w.param->name, w.param->tensor));
        FSDP_TRY(fsdp__optimizer_fit_state(w.group, w.param));
    }
    return FSDP_OK;
}

fsdp_status fsdp__optimizer_add_part(fsdp_state_dict *state, const fsdp__optimizer_param *param, const char *what,
                                     fsdp_tensor *tensor)
{
    FSDP__FREED char *name = name_of(param, what);

    return name ? fsdp_state_dict_add(state, name, tensor) : FSDP_NO_MEMORY;
}

/* Adds a tensor with a copy of the count, which itself is not a tensor. */
fsdp_status fsdp__optimizer_add_step(fsdp_state_dict *state, const fsdp__optimizer_param *param, fsdp_device *device,
                                     int64_t steps)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;

    FSDP_TRY(fsdp_tensor_create(device, FSDP_I64, 0, NULL, FSDP_MEMORY_OPTIMIZER_STATE, &tensor));
    FSDP_TRY(fsdp_tensor_write(tensor, FSDP_I64, &steps));
    return fsdp__optimizer_add_part(state, param, STEP, tensor);
}

/* Makes the state fit its parameter. An original's state is that of the flat parameter. */
static fsdp_status fit_state(const fsdp__optimizer_group *group, fsdp__optimizer_param *param)
{
    if (fsdp__leaf_is_part(param->tensor))
        return FSDP_OK;
    FSDP_TRY(fsdp__optimizer_check_param(param->name, param->tensor));
    return fsdp__optimizer_fit_state(group, param);
}

static fsdp_status add_param(const fsdp__optimizer_group *group, fsdp__optimizer_param *param, fsdp_state_dict *state)
{
    fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS];

    fsdp__optimizer_parts(group, param, parts);
    /* A parameter that was sharded since its last step has its state cut first. */
    FSDP_TRY(fit_state(group, param));
    FSDP_TRY(fsdp__optimizer_add_step(state, param, param->tensor->storage->device, param->steps));
    for (int p = 0; p < FSDP__OPTIMIZER_PARTS; p++)
        if (parts[p].moment)
            FSDP_TRY(fsdp__optimizer_add_part(state, param, parts[p].name, *parts[p].moment));
    return FSDP_OK;
}

static fsdp_status make_state_dict(fsdp_optimizer *optimizer, bool all, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    *out = NULL;
    FSDP_TRY(fsdp__state_dict_create_in(optimizer->context, &state));
    for (fsdp__optimizer_walk w = {0}; fsdp__next_original(optimizer, &w);)
        if (all || w.param->steps > 0 || w.param->moment1)
            FSDP_TRY(add_param(w.group, w.param, state));
    *out = fsdp__take(&state);
    return FSDP_OK;
}

static fsdp_status consolidated(const fsdp_optimizer *optimizer, fsdp_state_dict **out)
{
    const fsdp_state_dict *all = optimizer->partition->consolidated;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    *out = NULL;
    if (!all)
        return FSDP_FAIL(FSDP_STATE,
                         "the optimizer's state has not been consolidated on this rank since its last step: call "
                         "fsdp_optimizer_consolidate_state_dict(optimizer, %d) on all ranks first",
                         fsdp_process_group_rank(optimizer->partition->group));
    FSDP_TRY(fsdp__state_dict_create_in(fsdp__state_dict_context(all), &state));
    for (int64_t i = 0; i < all->count; i++)
        FSDP_TRY(fsdp_state_dict_add(state, all->entries[i].name, all->entries[i].tensor));
    *out = fsdp__take(&state);
    return FSDP_OK;
}

fsdp_status fsdp_optimizer_state_dict(fsdp_optimizer *optimizer, fsdp_state_dict **out)
{
    fsdp_status status;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "an optimizer's state dict needs a place for the result");
    *out = NULL;
    FSDP_TRY(fsdp__optimizer_check(optimizer, "take the state"));
    if (optimizer->partition)
        return consolidated(optimizer, out);
    FSDP_TRY(fsdp__originals_open(optimizer, false));
    status = make_state_dict(optimizer, false, out);
    (void)fsdp__originals_close(optimizer, false);
    return status;
}

/* ---- loading ---- */

static fsdp_status find(const fsdp_state_dict *state, const fsdp__optimizer_param *param, const char *what,
                        const fsdp_state_dict_entry **out)
{
    FSDP__FREED char *name = name_of(param, what);

    FSDP__TRY_NEW(name);
    *out = fsdp_state_dict_find(state, name);
    return FSDP_OK;
}

/* Checks that a parameter's state is there as a whole or not at all, and counts what is there. */
static fsdp_status check_param_state(const fsdp_state_dict *state, const fsdp__optimizer_param *param,
                                     const fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS], int64_t *count)
{
    const char *missing = NULL, *there = NULL;

    for (int p = -1; p < FSDP__OPTIMIZER_PARTS; p++) {
        const char *name = p < 0 ? STEP : parts[p].name;
        const fsdp_state_dict_entry *entry;

        if (!name)
            continue;
        FSDP_TRY(find(state, param, name, &entry));
        *count += entry != NULL;
        *(entry ? &there : &missing) = name;
    }
    if (there && missing)
        return FSDP_FAIL(FSDP_INVALID, "cannot load the state of '%s': it has '%s' but no '%s'", param->name, there,
                         missing);
    return FSDP_OK;
}

/* Returns whether the parameter keeps such state, and not only another kind of optimizer's. */
static bool keeps(const fsdp__optimizer_walk *w, const char *what)
{
    fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS];

    fsdp__optimizer_parts(w->group, w->param, parts);
    for (int p = 0; p < FSDP__OPTIMIZER_PARTS; p++)
        if (parts[p].name && strcmp(parts[p].name, what) == 0)
            return true;
    return strcmp(what, STEP) == 0;
}

static bool belongs(fsdp_optimizer *optimizer, const char *name)
{
    fsdp__optimizer_key key;

    if (!fsdp__optimizer_split_key(name, &key) ||
        (strcmp(key.prefix, "state.") != 0 && !fsdp__optimizer_has_option(optimizer, key.what)))
        return false;
    for (fsdp__optimizer_walk w = {0}; fsdp__next_original(optimizer, &w);)
        if (strlen(w.param->name) == key.length && strncmp(w.param->name, key.parameter, key.length) == 0)
            return strcmp(key.prefix, "state.") != 0 || keeps(&w, key.what);
    return false;
}

static fsdp_status check_state(fsdp_optimizer *optimizer, const fsdp_state_dict *state, bool partial)
{
    int64_t count = 0;

    if (!state)
        return FSDP_FAIL(FSDP_INVALID, "cannot load the state of an optimizer: the state dict is NULL");
    for (fsdp__optimizer_walk w = {0}; fsdp__next_original(optimizer, &w);) {
        fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS];

        fsdp__optimizer_parts(w.group, w.param, parts);
        FSDP_TRY(check_param_state(state, w.param, parts, &count));
    }
    for (int64_t i = 0; i < state->count && count < state->count && !partial; i++)
        if (!belongs(optimizer, state->entries[i].name))
            return FSDP_FAIL(FSDP_INVALID, "cannot load '%s': no parameter of the optimizer has such state",
                             state->entries[i].name);
    return fsdp__optimizer_load_groups(optimizer, state, true);
}

static fsdp_status read_step(const fsdp__optimizer_param *param, const fsdp_state_dict_entry *entry, int64_t *out)
{
    int64_t steps;

    if (fsdp_tensor_numel(entry->tensor) != 1)
        return FSDP_FAIL(FSDP_INVALID, "cannot load the state of '%s': its step is not one number", param->name);
    FSDP_TRY(fsdp_tensor_read(entry->tensor, FSDP_I64, &steps));
    *out = steps;
    return FSDP_OK;
}

/* Returns whether the tensor was read straight into the moment's place. */
static bool lies_there(const fsdp_tensor *loaded, const fsdp_tensor *moment)
{
    return loaded->storage == moment->storage && loaded->offset == moment->offset && fsdp__shape_equal(loaded, moment);
}

static fsdp_status load_param(const fsdp_optimizer *optimizer, const fsdp__optimizer_group *group,
                              fsdp__optimizer_param *param, const fsdp_state_dict *state)
{
    const fsdp_state_dict_entry *step, *entry;
    int64_t steps;
    fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS];

    FSDP_TRY(find(state, param, STEP, &step));
    if (!step || !fsdp__partition_owns(optimizer, param)) {
        fsdp__optimizer_forget_state(param);
        return FSDP_OK;
    }
    FSDP_TRY(read_step(param, step, &steps));
    FSDP_TRY(fit_state(group, param));
    fsdp__optimizer_parts(group, param, parts);
    for (int p = 0; p < FSDP__OPTIMIZER_PARTS; p++) {
        if (!parts[p].moment)
            continue;
        FSDP_TRY(find(state, param, parts[p].name, &entry));
        if (lies_there(entry->tensor, *parts[p].moment))
            continue;
        FSDP_TRY(
            fsdp_fail_prefix(fsdp__tensor_copy_across(*parts[p].moment, entry->tensor), "loading '%s'", entry->name));
    }
    param->steps = steps;
    return FSDP_OK;
}

static fsdp_status load_params(const fsdp_optimizer *optimizer, const fsdp_state_dict *state)
{
    for (fsdp__optimizer_walk w = {0}; fsdp__next_original(optimizer, &w);)
        FSDP_TRY(load_param(optimizer, w.group, w.param, state));
    return FSDP_OK;
}

static fsdp_status check_step(const fsdp_state_dict *state, const fsdp__optimizer_param *param)
{
    const fsdp_state_dict_entry *entry;
    int64_t steps = 0;

    FSDP_TRY(find(state, param, STEP, &entry));
    if (entry)
        FSDP_TRY(read_step(param, entry, &steps));
    return steps >= 0 ? FSDP_OK
                      : FSDP_FAIL(FSDP_INVALID, "cannot load the state of '%s': its step is %lld", param->name,
                                  (long long)steps);
}

static fsdp_status check_moments(const fsdp_state_dict *state, const fsdp__optimizer_param *param,
                                 const fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS])
{
    for (int p = 0; p < FSDP__OPTIMIZER_PARTS; p++) {
        const fsdp_state_dict_entry *entry = NULL;
        const fsdp_tensor *own = param->tensor;
        int64_t shape[FSDP_MAX_DIMS];
        int ndim = fsdp__optimizer_part_shape(own, &parts[p], shape);

        if (parts[p].moment)
            FSDP_TRY(find(state, param, parts[p].name, &entry));
        if (entry &&
            (entry->tensor->ndim != ndim || memcmp(entry->tensor->shape, shape, (size_t)ndim * sizeof *shape) != 0))
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot load '%s': it has shape %s, but this rank's part of the parameter has shape %s",
                             entry->name, FSDP__SHAPE_OF(entry->tensor), FSDP__SHOWN_SHAPE(ndim, shape));
        if (entry && fsdp_device_is_meta(entry->tensor->storage->device) && !fsdp_device_is_meta(own->storage->device))
            return FSDP_FAIL(FSDP_INVALID, "cannot load '%s': it is on the meta device, but the parameter is on %s",
                             entry->name, fsdp_device_name(own->storage->device));
    }
    return FSDP_OK;
}

/* Checks the state of this rank's parts of its parameters, as far as loading it could fail. */
static fsdp_status check_parts(const fsdp_optimizer *optimizer, const fsdp_state_dict *state)
{
    for (fsdp__optimizer_walk w = {0}; fsdp__next_original(optimizer, &w);) {
        fsdp__optimizer_part parts[FSDP__OPTIMIZER_PARTS];

        fsdp__optimizer_parts(w.group, w.param, parts);
        if (!fsdp__partition_owns(optimizer, w.param))
            continue;
        FSDP_TRY(check_moments(state, w.param, parts));
        FSDP_TRY(check_step(state, w.param));
    }
    return FSDP_OK;
}

fsdp_status fsdp_optimizer_load_state_dict(fsdp_optimizer *optimizer, const fsdp_state_dict *state)
{
    fsdp_status status;

    FSDP_TRY(fsdp__optimizer_check(optimizer, "load state"));
    FSDP_TRY(check_state(optimizer, state, false));
    FSDP_TRY(check_parts(optimizer, state));
    fsdp__partition_forget(optimizer);
    FSDP_TRY(fsdp__originals_open(optimizer, true));
    status = load_params(optimizer, state);
    FSDP_KEEP_FIRST(status, fsdp__originals_close(optimizer, true));
    FSDP_TRY(status);
    return fsdp__optimizer_load_groups(optimizer, state, false);
}

/* ---- full state dicts ---- */

enum {
    NOT_LOADED = -1 /* a step that was not among what was loaded */
};

static fsdp_status mark_steps(fsdp_optimizer *optimizer, const fsdp_state_dict *state)
{
    const int64_t mark = NOT_LOADED;

    for (fsdp__optimizer_walk w = {0}; fsdp__next_original(optimizer, &w);) {
        const fsdp_state_dict_entry *entry;

        FSDP_TRY(find(state, w.param, STEP, &entry));
        FSDP_TRY(fsdp_tensor_write(entry->tensor, FSDP_I64, &mark));
    }
    return FSDP_OK;
}

/* Takes over the steps; the moments are where they belong. */
static fsdp_status take_steps(fsdp_optimizer *optimizer, const fsdp_state_dict *state)
{
    for (fsdp__optimizer_walk w = {0}; fsdp__next_original(optimizer, &w);) {
        const fsdp_state_dict_entry *entry;

        FSDP_TRY(find(state, w.param, STEP, &entry));
        FSDP_TRY(read_step(w.param, entry, &w.param->steps));
        if (w.param->steps < 0 || !fsdp__partition_owns(optimizer, w.param))
            fsdp__optimizer_forget_state(w.param);
    }
    return FSDP_OK;
}

fsdp_status fsdp_optimizer_load_full_state_dict(fsdp_optimizer *optimizer, const fsdp_state_dict *full,
                                                const fsdp_full_state_options *options)
{
    fsdp_full_state_options some = options ? *options : (fsdp_full_state_options){.partial = false};
    fsdp_context *context;
    fsdp_status status = FSDP_OK;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *own = NULL;

    FSDP_TRY(fsdp__optimizer_check(optimizer, "load state"));
    context = optimizer->context || !full ? optimizer->context : fsdp__state_dict_context(full);
    if (!context)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot load the state of an optimizer that was given no parameters: it does not "
                         "know its ranks");
    FSDP__TRY_MADE(fsdp_world(context));
    if (!some.broadcast_from_rank0 || fsdp_context_rank(context) == 0)
        status = check_state(optimizer, full, some.partial);
    if (status == FSDP_OK)
        status = fsdp__originals_open(optimizer, true);
    if (status == FSDP_OK)
        status = make_state_dict(optimizer, true, &own);
    if (status == FSDP_OK)
        /* Places, which keep their values where nothing comes. */
        status = fsdp_optimizer_add_param_groups(optimizer, own);
    FSDP_TRY_GOTO(status, fsdp_agree(fsdp_world(context), status), out);
    fsdp__partition_forget(optimizer);
    some.partial = true; /* parameters that have not stepped have no state */
    FSDP_TRY_GOTO(status, mark_steps(optimizer, own), out);
    FSDP_TRY_GOTO(status, fsdp_state_dict_load_full(own, full, &some), out);
    FSDP_TRY_GOTO(status, take_steps(optimizer, own), out);
    FSDP_TRY_GOTO(status, fsdp__originals_close(optimizer, true), out);
    FSDP_TRY_GOTO(status, fsdp__optimizer_load_groups(optimizer, own, false), out);
out:
    (void)fsdp__originals_close(optimizer, false);
    return status;
}
