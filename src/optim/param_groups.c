/* param_groups.c - the options of an optimizer's groups as state of their parameters, and the keys of such state. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "optim/param_groups.h"
#include "state/entry.h"
#include "tensor/tensor.h"

#define PREFIX "param_groups."

enum {
    NOWHERE = -1
};

#define PLACE(field) offsetof(fsdp__optimizer_group, field)

/* Says where an option lies in a group, by the kind of it. */
static const struct option {
    const char *name;
    ptrdiff_t adam, sgd, lion, muon, adafactor;
} options[] = {
    {"lr", PLACE(lr), PLACE(lr), PLACE(lr), PLACE(lr), PLACE(lr)},
    {"beta1", PLACE(options.adam.beta1), NOWHERE, PLACE(options.lion.beta1), NOWHERE, NOWHERE},
    {"beta2", PLACE(options.adam.beta2), NOWHERE, PLACE(options.lion.beta2), NOWHERE, NOWHERE},
    {"eps", PLACE(options.adam.eps), NOWHERE, NOWHERE, NOWHERE, NOWHERE},
    {"momentum", NOWHERE, PLACE(options.sgd.momentum), NOWHERE, PLACE(options.muon.momentum), NOWHERE},
    {"dampening", NOWHERE, PLACE(options.sgd.dampening), NOWHERE, NOWHERE, NOWHERE},
    {"weight_decay", PLACE(options.adam.weight_decay), PLACE(options.sgd.weight_decay),
     PLACE(options.lion.weight_decay), PLACE(options.muon.weight_decay), PLACE(options.adafactor.weight_decay)},
    {"beta2_decay", NOWHERE, NOWHERE, NOWHERE, NOWHERE, PLACE(options.adafactor.beta2_decay)},
    {"eps1", NOWHERE, NOWHERE, NOWHERE, NOWHERE, PLACE(options.adafactor.eps1)},
    {"eps2", NOWHERE, NOWHERE, NOWHERE, NOWHERE, PLACE(options.adafactor.eps2)},
    {"d", NOWHERE, NOWHERE, NOWHERE, NOWHERE, PLACE(options.adafactor.d)},
};

/* Returns the address of the option's value; NULL if the group has no such option. */
static double *value_of(fsdp__optimizer_group *group, const struct option *option)
{
    ptrdiff_t at = group->kind == FSDP__OPTIMIZER_SGD         ? option->sgd
                   : group->kind == FSDP__OPTIMIZER_LION      ? option->lion
                   : group->kind == FSDP__OPTIMIZER_MUON      ? option->muon
                   : group->kind == FSDP__OPTIMIZER_ADAFACTOR ? option->adafactor
                                                              : option->adam;

    return at == NOWHERE ? NULL : (double *)(void *)((char *)group + at);
}

static char *name_of(const fsdp__optimizer_param *param, const struct option *option)
{
    return fsdp__sprintf(PREFIX "%s.%s", param->name, option->name);
}

/* ---- saving ---- */

/* Adds the bits of the value, since no dtype of a tensor has as many. */
static fsdp_status add_value(fsdp_state_dict *state, const fsdp__optimizer_param *param, const struct option *option,
                             double value)
{
    FSDP__FREED char *name = name_of(param, option);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;
    int64_t bits;

    memcpy(&bits, &value, sizeof bits);
    FSDP__TRY_NEW(name);
    FSDP_TRY(
        fsdp_tensor_create(param->tensor->storage->device, FSDP_I64, 0, NULL, FSDP_MEMORY_OPTIMIZER_STATE, &tensor));
    FSDP_TRY(fsdp_tensor_write(tensor, FSDP_I64, &bits));
    return fsdp_state_dict_add(state, name, tensor);
}

fsdp_status fsdp_optimizer_add_param_groups(fsdp_optimizer *optimizer, fsdp_state_dict *state)
{
    FSDP_TRY(fsdp__optimizer_check(optimizer, "add parameter groups to a state dict"));
    if (!state)
        return FSDP_FAIL(FSDP_INVALID, "cannot add parameter groups to a state dict: it is NULL");
    for (int g = 0; g < optimizer->group_count; g++)
        for (size_t o = 0; o < FSDP__COUNT_OF(options); o++) {
            fsdp__optimizer_group *group = &optimizer->groups[g];
            const double *value = value_of(group, &options[o]);

            for (fsdp__optimizer_walk w = {.next_group = g};
                 value && fsdp__next_original(optimizer, &w) && w.group == group;)
                FSDP_TRY(add_value(state, w.param, &options[o], *value));
        }
    return FSDP_OK;
}

/* ---- loading ---- */

static fsdp_status read_value(const fsdp_state_dict_entry *entry, double *out)
{
    int64_t bits;

    if (fsdp_tensor_numel(entry->tensor) != 1 || fsdp_tensor_dtype(entry->tensor) != FSDP_I64)
        return FSDP_FAIL(FSDP_INVALID, "cannot load '%s': it is not one int64, the bits of a number", entry->name);
    FSDP_TRY(fsdp_tensor_read(entry->tensor, FSDP_I64, &bits));
    memcpy(out, &bits, sizeof bits);
    return FSDP_OK;
}

/* Gives the value of the parameters of group `g`, which must be the same for all; `*found` stays false if none has it.
 */
static fsdp_status find_value(const fsdp_optimizer *optimizer, int g, const struct option *option,
                              const fsdp_state_dict *state, bool *found, double *out)
{
    const fsdp__optimizer_param *first = NULL;

    for (fsdp__optimizer_walk w = {.next_group = g};
         fsdp__next_original(optimizer, &w) && w.group == &optimizer->groups[g];) {
        const fsdp__optimizer_param *param = w.param;
        char *name = name_of(param, option);
        const fsdp_state_dict_entry *entry = name ? fsdp_state_dict_find(state, name) : NULL;
        double value;

        FSDP__TRY_NEW(name);
        fsdp__free(name);
        if (first && (entry != NULL) != *found)
            return FSDP_FAIL(
                FSDP_INVALID,
                "cannot load the parameter groups: '%s' and '%s' are in one group, but only one of them has '%s'",
                first->name, param->name, option->name);
        first = first ? first : param;
        if (!entry)
            continue;
        FSDP_TRY(read_value(entry, &value));
        if (*found && memcmp(&value, out, sizeof value) != 0)
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot load the parameter groups: '%s' and '%s' are in one group and would have '%s' %g "
                             "and %g",
                             first->name, param->name, option->name, *out, value);
        *found = true;
        *out = value;
    }
    return FSDP_OK;
}

fsdp_status fsdp__optimizer_load_groups(fsdp_optimizer *optimizer, const fsdp_state_dict *state, bool check)
{
    for (int g = 0; g < optimizer->group_count; g++) {
        fsdp__optimizer_group changed = optimizer->groups[g];

        for (size_t o = 0; o < FSDP__COUNT_OF(options); o++) {
            double *value = value_of(&changed, &options[o]);
            bool found = false;

            if (value)
                FSDP_TRY(find_value(optimizer, g, &options[o], state, &found, value));
        }
        FSDP_TRY(fsdp__optimizer_check_options(&changed));
        if (!check)
            optimizer->groups[g] = changed;
    }
    return FSDP_OK;
}

/* ---- keys ---- */

bool fsdp__optimizer_split_key(const char *name, fsdp__optimizer_key *out)
{
    static const char *const prefixes[] = {"state.", PREFIX};
    const char *last = strrchr(name, '.');

    for (size_t p = 0; p < FSDP__COUNT_OF(prefixes); p++) {
        size_t length = strlen(prefixes[p]);

        if (strncmp(name, prefixes[p], length) != 0 || !last || last < name + length)
            continue;
        *out = (fsdp__optimizer_key){.prefix = prefixes[p],
                                     .parameter = name + length,
                                     .length = (size_t)(last - name) - length,
                                     .what = last + 1};
        return true;
    }
    return false;
}

bool fsdp__optimizer_has_option(const fsdp_optimizer *optimizer, const char *name)
{
    bool has = false;

    for (int g = 0; g < optimizer->group_count; g++)
        for (size_t o = 0; o < FSDP__COUNT_OF(options); o++)
            has = has || (value_of(&optimizer->groups[g], &options[o]) && strcmp(options[o].name, name) == 0);
    return has;
}

/* Returns the number as to_ids writes it, without a sign or leading zeros; -1 if it is not one. */
static int64_t number_of(const fsdp__optimizer_key *key)
{
    char *end = NULL, text[32];
    int64_t number = strtoll(key->parameter, &end, 10);
    int length = snprintf(text, sizeof text, "%lld", (long long)number);

    return number >= 0 && end == key->parameter + key->length && (size_t)length == key->length &&
                   memcmp(text, key->parameter, key->length) == 0
               ? number
               : -1;
}

/* Returns the parameter that the key means, and gives its number. */
static const fsdp__optimizer_param *find_param(const fsdp_optimizer *optimizer, const fsdp__optimizer_key *key,
                                               bool by_id, int64_t *id)
{
    int64_t wanted = by_id ? number_of(key) : -1;

    *id = 0;
    for (fsdp__optimizer_walk w = {0}; fsdp__next_original(optimizer, &w); ++*id)
        if (by_id ? *id == wanted
                  : strlen(w.param->name) == key->length && strncmp(w.param->name, key->parameter, key->length) == 0)
            return w.param;
    return NULL;
}

static fsdp_status add_rekeyed(const fsdp_optimizer *optimizer, const fsdp_state_dict_entry *entry, bool to_ids,
                               fsdp_state_dict *out)
{
    const fsdp__optimizer_param *param = NULL;
    fsdp__optimizer_key key;
    int64_t id;
    FSDP__FREED char *name = NULL;

    if (fsdp__optimizer_split_key(entry->name, &key))
        param = find_param(optimizer, &key, !to_ids, &id);
    if (!param)
        return FSDP_FAIL(FSDP_INVALID, "cannot rekey '%s': the optimizer has no such parameter%s", entry->name,
                         to_ids ? "" : " number");
    name = to_ids ? fsdp__sprintf("%s%lld.%s", key.prefix, (long long)id, key.what)
                  : fsdp__sprintf("%s%s.%s", key.prefix, param->name, key.what);
    return name ? fsdp_state_dict_add(out, name, entry->tensor) : FSDP_NO_MEMORY;
}

fsdp_status fsdp_optimizer_rekey_state_dict(const fsdp_optimizer *optimizer, const fsdp_state_dict *state, bool to_ids,
                                            fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *rekeyed = NULL;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "a rekeyed state dict needs a place for the result");
    *out = NULL;
    if (!optimizer || !state)
        return FSDP_FAIL(FSDP_INVALID, "cannot rekey the state of an optimizer: both are required");
    FSDP_TRY(fsdp__state_dict_create_in(fsdp__state_dict_context(state), &rekeyed));
    for (int64_t i = 0; i < state->count; i++)
        FSDP_TRY(add_rekeyed(optimizer, &state->entries[i], to_ids, rekeyed));
    *out = fsdp__take(&rekeyed);
    return FSDP_OK;
}
