/* wrap_policy.c - the kinds of wrap policies. */
#include "shard/doors/wrap_policy.h"

#include <string.h>

#include "base/alloc.h"
#include "nn/module.h"

bool fsdp__wrap_is_of_class(const fsdp_module *module, const char *const *classes, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(module->type->name, classes[i]) == 0)
            return true;
    return false;
}

/* ---- deciding ---- */

int64_t fsdp__wrap_policy_size(const fsdp_wrap_policy *p)
{
    return p->min_num_params ? p->min_num_params : 100000000;
}

static bool decide_by_size(const fsdp_wrap_policy *p, const fsdp_module *module, bool recurse, int64_t numel)
{
    static const char *const leaves[] = {"MultiheadAttention"}, *const containers[] = {"ModuleList", "ModuleDict"};

    if (numel < fsdp__wrap_policy_size(p))
        return false;
    if (recurse)
        return p->force_leaf ? !fsdp__wrap_is_of_class(module, p->force_leaf, p->force_leaf_count)
                             : !fsdp__wrap_is_of_class(module, leaves, 1);
    return p->exclude ? !fsdp__wrap_is_of_class(module, p->exclude, p->exclude_count)
                      : !fsdp__wrap_is_of_class(module, containers, 2);
}

bool fsdp__wrap_policy_decide(const fsdp_wrap_policy *p, const fsdp_module *module, const char *name, bool recurse,
                              int64_t numel)
{
    switch (p->kind) {
    case FSDP_WRAP_SIZE:
        return decide_by_size(p, module, recurse, numel);
    case FSDP_WRAP_CLASSES:
        return recurse || fsdp__wrap_is_of_class(module, p->classes, p->class_count);
    case FSDP_WRAP_ALWAYS:
        return recurse || fsdp__module_has_forward(module);
    case FSDP_WRAP_LAMBDA:
        return recurse || p->wraps(p->arg, module, name);
    case FSDP_WRAP_FUNCTION:
        return p->decide(p->arg, module, name, recurse, numel);
    case FSDP_WRAP_ANY:
        for (int i = 0; i < p->policy_count; i++)
            if (fsdp__wrap_policy_decide(&p->policies[i], module, name, recurse, numel))
                return true;
        return false;
    default:
        return false;
    }
}

/* ---- checks ---- */

static fsdp_status check_classes(const char *what, const char *const *classes, int count)
{
    if (count < 0 || (count > 0 && !classes))
        return FSDP_FAIL(FSDP_INVALID, "wrap policy: %d names in %s, but no list of them", count, what);
    for (int i = 0; i < count; i++)
        if (!classes[i])
            return FSDP_FAIL(FSDP_INVALID, "wrap policy: %s[%d] is null", what, i);
    return FSDP_OK;
}

static fsdp_status check_lists(const fsdp_wrap_policy *p)
{
    FSDP_TRY(check_classes("force_leaf", p->force_leaf, p->force_leaf_count));
    FSDP_TRY(check_classes("exclude", p->exclude, p->exclude_count));
    FSDP_TRY(check_classes("classes", p->classes, p->class_count));
    FSDP_TRY(check_classes("full_precision_classes", p->full_precision_classes, p->full_precision_class_count));
    if (p->ignored_module_count < 0 || (p->ignored_module_count > 0 && !p->ignored_modules))
        return FSDP_FAIL(FSDP_INVALID, "wrap policy: %lld modules in ignored_modules, but no list of them",
                         (long long)p->ignored_module_count);
    for (int64_t i = 0; i < p->ignored_module_count; i++)
        if (!p->ignored_modules[i])
            return FSDP_FAIL(FSDP_INVALID, "wrap policy: ignored_modules[%lld] is null", (long long)i);
    if (p->ignored_param_count < 0 || (p->ignored_param_count > 0 && !p->ignored_params))
        return FSDP_FAIL(FSDP_INVALID, "wrap policy: %lld tensors in ignored_params, but no list of them",
                         (long long)p->ignored_param_count);
    for (int64_t i = 0; i < p->ignored_param_count; i++)
        if (!p->ignored_params[i])
            return FSDP_FAIL(FSDP_INVALID, "wrap policy: ignored_params[%lld] is null", (long long)i);
    return FSDP_OK;
}

static fsdp_status check_part_of_any(const fsdp_wrap_policy *p)
{
    if (p->kind == FSDP_WRAP_NONE || p->kind == FSDP_WRAP_CUSTOM)
        return FSDP_FAIL(FSDP_INVALID,
                         "wrap policy: a part of ANY is %s: it must be a policy that can be asked by size",
                         p->kind == FSDP_WRAP_NONE ? "NONE" : "CUSTOM");
    if (p->ignored_module_count || p->ignored_param_count || p->full_precision_class_count)
        return FSDP_FAIL(FSDP_INVALID,
                         "wrap policy: a part of ANY has ignored modules, ignored parameters or full_precision_classes "
                         "of its own: give them to the whole policy");
    return FSDP_OK;
}

static fsdp_status check_any(const fsdp_wrap_policy *p)
{
    if (p->policy_count < 1 || !p->policies)
        return FSDP_FAIL(FSDP_INVALID, "wrap policy: ANY needs at least one policy");
    for (int i = 0; i < p->policy_count; i++) {
        FSDP_TRY(check_part_of_any(&p->policies[i]));
        FSDP_TRY(fsdp__wrap_policy_check(&p->policies[i]));
    }
    return FSDP_OK;
}

fsdp_status fsdp__wrap_policy_check(const fsdp_wrap_policy *p)
{
    if (!p)
        return FSDP_FAIL(FSDP_INVALID, "the wrap policy is null");
    FSDP_TRY(check_lists(p));
    switch (p->kind) {
    case FSDP_WRAP_NONE:
    case FSDP_WRAP_ALWAYS:
        return FSDP_OK;
    case FSDP_WRAP_SIZE:
        return p->min_num_params >= 0
                   ? FSDP_OK
                   : FSDP_FAIL(FSDP_INVALID, "wrap policy: min_num_params is %lld: expected a number of elements",
                               (long long)p->min_num_params);
    case FSDP_WRAP_CLASSES:
        return p->class_count > 0
                   ? FSDP_OK
                   : FSDP_FAIL(FSDP_INVALID, "wrap policy: CLASSES needs the name of at least one class");
    case FSDP_WRAP_LAMBDA:
        return p->wraps ? FSDP_OK : FSDP_FAIL(FSDP_INVALID, "wrap policy: LAMBDA needs the function wraps");
    case FSDP_WRAP_FUNCTION:
        return p->decide ? FSDP_OK : FSDP_FAIL(FSDP_INVALID, "wrap policy: FUNCTION needs the function decide");
    case FSDP_WRAP_ANY:
        return check_any(p);
    case FSDP_WRAP_CUSTOM:
        return p->choose ? FSDP_OK : FSDP_FAIL(FSDP_INVALID, "wrap policy: CUSTOM needs the function choose");
    }
    return FSDP_FAIL(FSDP_INVALID, "wrap policy: there is no kind %d", (int)p->kind);
}

/* ---- what is ignored ---- */

fsdp_status fsdp__wrap_join(const char *what, const void *ours, int64_t our_count, const void *theirs,
                            int64_t their_count, void **out)
{
    void **joined;

    if (our_count < 0 || (our_count > 0 && !ours))
        return FSDP_FAIL(FSDP_INVALID, "%s: %lld, but no list of them", what, (long long)our_count);
    FSDP__TRY_NEW(joined = fsdp__calloc((size_t)(our_count + their_count) + 1, sizeof *joined));
    if (our_count > 0)
        memcpy(joined, ours, (size_t)our_count * sizeof *joined);
    if (their_count > 0)
        memcpy(joined + our_count, theirs, (size_t)their_count * sizeof *joined);
    *out = joined;
    return FSDP_OK;
}

/* ---- whether it did what it was for ---- */

typedef struct class_search {
    const char *class;
    bool found;
    char others[200]; /* ", Linear, ReLU": the classes that exist, as far as they fit */
} class_search;

static fsdp_status find_class(void *arg, fsdp_module *module, const char *name)
{
    class_search *s = arg;
    size_t used = strlen(s->others);
    char one[64];

    (void)name;
    s->found = s->found || strcmp(module->type->name, s->class) == 0;
    snprintf(one, sizeof one, ", %s,", module->type->name);
    if (used + strlen(one) + 1 < sizeof s->others && !strstr(s->others, one))
        memcpy(s->others + used - (used > 0), one, strlen(one) + 1); /* over the last comma */
    return FSDP_OK;
}

static fsdp_status check_classes_exist(fsdp_module *root, const fsdp_wrap_policy *policy)
{
    for (int i = 0; policy->kind == FSDP_WRAP_CLASSES && i < policy->class_count; i++) {
        class_search s = {.class = policy->classes[i]};

        FSDP_TRY(fsdp__module_walk(root, find_class, &s));
        if (!s.found)
            return FSDP_FAIL(FSDP_NOT_FOUND, "wrap policy: no module of this %s is of class '%s'; there are%.*s",
                             root->type->name, s.class, (int)strlen(s.others) - 2, s.others + 1);
    }
    for (int i = 0; policy->kind == FSDP_WRAP_ANY && i < policy->policy_count; i++)
        FSDP_TRY(check_classes_exist(root, &policy->policies[i]));
    return FSDP_OK;
}

fsdp_status fsdp__wrap_units_check(const fsdp_wrap_units *units, const fsdp_wrap_policy *policy)
{
    fsdp_module *root = units->items[0].module;

    for (int64_t i = 0; i < units->count; i++)
        if (!fsdp__module_has_forward(units->items[i].module))
            return FSDP_FAIL(FSDP_INVALID,
                             "wrap policy: cannot shard %s '%s': it has no forward to gather for: choose its children",
                             units->items[i].module->type->name, units->items[i].name);
    FSDP_TRY(check_classes_exist(root, policy));
    if (policy->kind == FSDP_WRAP_NONE || units->count > 1)
        return FSDP_OK;
    if (policy->kind == FSDP_WRAP_SIZE)
        return FSDP_FAIL(FSDP_INVALID,
                         "wrap policy: it makes no unit of any module below this %s: lower min_num_params, which is "
                         "%lld, or shard it as one unit without a policy",
                         root->type->name, (long long)fsdp__wrap_policy_size(policy));
    return FSDP_FAIL(FSDP_INVALID,
                     "wrap policy: it makes no unit of any module below this %s: shard it as one unit without a policy",
                     root->type->name);
}
