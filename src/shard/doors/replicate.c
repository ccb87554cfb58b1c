/* replicate.c - the front door of data parallel with whole parameters: one group, reduced in buckets. */
#include "fsdp/replicate.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "shard/doors/fully_shard.h"
#include "shard/doors/replicate_join.h"
#include "shard/group/compare_ranks.h"
#include "shard/group/default_groups.h"
#include "shard/reduce/owner.h"
#include "shard/state/attach.h"
#include "shard/state/methods.h"

/* ---- the door ---- */

/* Checks that the module is not in one tree with sharded ones: its buckets would be sent in the middle of the others'
 * gathers and reductions, at another place on each rank. */
static fsdp_status check_tree(const fsdp__root *root, const fsdp__module_state *state, const char *name)
{
    if (root->state_count > 1 && state->group_count > 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "'%s' is replicated, and is in one tree with sharded modules: replicate a module outside of "
                         "them, or give fully_shard a mesh that replicates",
                         *name ? name : "the root");
    return FSDP_OK;
}

static const fsdp__door door = {.kind = FSDP_DOOR_REPLICATE,
                                .call = "fsdp_replicate",
                                .title = "replicate",
                                .check_tree = check_tree,
                                .begin_forward = fsdp__replica_begin_forward,
                                .end_forward = fsdp__replica_end_forward,
                                .not_begun = fsdp__replica_not_begun};

/* ---- choosing the parameters ---- */

typedef struct selection {
    fsdp__module_state *state;
    fsdp_mesh *mesh; /* of shape W x 1; a reference */
    fsdp__param_group *group;
    const fsdp_replicate_options *options;
    fsdp_module **modules; /* the ignored modules, with everything below them */
    int64_t module_count, module_capacity;
} selection;

/* ---- what is ignored ---- */

static fsdp_status ignore_module(void *arg, fsdp_module *module, const char *name)
{
    selection *sel = arg;

    (void)name;
    FSDP_TRY(fsdp__grow(&sel->modules, sel->module_count, &sel->module_capacity, sizeof *sel->modules));
    sel->modules[sel->module_count++] = module;
    return FSDP_OK;
}

static fsdp_status check_list(const char *what, const void *list, int64_t count)
{
    if (count < 0 || (count > 0 && !list))
        return FSDP_FAIL(FSDP_INVALID, "%s: %lld, but no list of them", what, (long long)count);
    return FSDP_OK;
}

typedef struct search {
    const fsdp_module *wanted;
    bool found;
} search;

static fsdp_status look_at(void *arg, fsdp_module *module, const char *name)
{
    search *s = arg;

    (void)name;
    s->found = s->found || module == s->wanted;
    return FSDP_OK;
}

static fsdp_status check_ignored_module(const fsdp_module *module, int64_t number, fsdp_module *root)
{
    search s = {.wanted = module};

    if (!module || module == root)
        return FSDP_FAIL(FSDP_INVALID, "ignored_modules[%lld] is %s", (long long)number,
                         module ? "the module that is to be replicated" : "NULL");
    FSDP_TRY(fsdp__module_walk(root, look_at, &s));
    return s.found
               ? FSDP_OK
               : FSDP_FAIL(FSDP_INVALID, "ignored_modules[%lld], a %s, is not below the %s that is to be replicated",
                           (long long)number, module->type->name, root->type->name);
}

static fsdp_status ignore_modules(selection *sel, fsdp_module *root)
{
    const fsdp_replicate_options *o = sel->options;

    FSDP_TRY(check_list("ignored_params", o->ignored_params, o->ignored_param_count));
    FSDP_TRY(check_list("ignored_modules", o->ignored_modules, o->ignored_module_count));
    for (int64_t i = 0; i < o->ignored_param_count; i++)
        if (!o->ignored_params[i])
            return FSDP_FAIL(FSDP_INVALID, "ignored_params[%lld] is NULL", (long long)i);
    for (int64_t i = 0; i < o->ignored_module_count; i++) {
        FSDP_TRY(check_ignored_module(o->ignored_modules[i], i, root));
        FSDP_TRY(fsdp__module_walk(o->ignored_modules[i], ignore_module, sel));
    }
    return FSDP_OK;
}

static bool is_ignored_module(const selection *sel, const fsdp_module *module)
{
    bool ignored = false;

    for (int64_t i = 0; i < sel->module_count; i++)
        ignored = ignored || sel->modules[i] == module;
    return ignored;
}

/* Returns whether the parameter is ignored: itself, or as one of an ignored module, even if others have it, too. */
static bool is_ignored(const selection *sel, const fsdp_tensor *t)
{
    bool ignored = false;

    for (int64_t i = 0; i < sel->options->ignored_param_count; i++)
        ignored = ignored || sel->options->ignored_params[i] == t;
    for (int64_t m = 0; m < sel->module_count; m++)
        for (int64_t i = 0; i < sel->modules[m]->parts->parameter_count; i++)
            ignored = ignored || *sel->modules[m]->parts->parameters[i].slot == t;
    return ignored;
}

static fsdp_status check_parameter(const selection *sel, const char *name, const fsdp_tensor *t)
{
    if (fsdp__param_of(t) || fsdp_tensor_distribution(t))
        return FSDP_FAIL(FSDP_STATE,
                         "cannot replicate '%s': it is a distributed tensor already: give fsdp_fully_shard a mesh of "
                         "replicas x 1",
                         name);
    return fsdp__check_parameter("replicate", name, t, sel->group ? sel->group->params[0].sharded : NULL);
}

static fsdp_status select_parameter(selection *sel, fsdp_module *module, const char *path,
                                    const fsdp__parameter_slot *slot)
{
    fsdp__param *p = fsdp__module_state_find(sel->state, *slot->slot);
    char name[256];

    if (!*slot->slot || is_ignored(sel, *slot->slot))
        return FSDP_OK;
    if (!p) {
        snprintf(name, sizeof name, "%s%s%s", path, *path ? "." : "", slot->name);
        FSDP_TRY(check_parameter(sel, name, *slot->slot));
        if (!sel->group)
            FSDP_TRY(fsdp__module_state_add_group(sel->state, sel->mesh, false, &sel->group));
        FSDP_TRY(fsdp__param_group_add(sel->group, *slot->slot, &p));
        p->param_dtype = p->reduce_dtype = (*slot->slot)->dtype;
    }
    FSDP_TRY(fsdp__param_add_field(p, (fsdp__param_field){module, slot->slot, NULL}));
    return p->fields[0].field == slot->slot ? fsdp__param_set_name(p, path, slot->name) : FSDP_OK;
}

static fsdp_status select_module(void *arg, fsdp_module *module, const char *name)
{
    const fsdp__module_state *other = fsdp__module_state_of(module);
    selection *sel = arg;

    if (other)
        return FSDP_FAIL(FSDP_STATE, "cannot replicate the %s: %s%s%s is %s already",
                         sel->state->modules[0]->type->name, *name ? "'" : "", *name ? name : "it", *name ? "'" : "",
                         other->door == &door ? "replicated" : "sharded");
    for (int64_t i = 0; i < module->parts->parameter_count && !is_ignored_module(sel, module); i++)
        FSDP_TRY(select_parameter(sel, module, name, &module->parts->parameters[i]));
    return FSDP_OK;
}

/* ---- what all ranks must have in common ---- */

/* Describes as text, which the caller frees, the options and then the parameters. */
static fsdp_status describe(const selection *sel, char **out)
{
    const fsdp_replicate_options *o = sel->options;
    size_t bytes;
    FILE *text = open_memstream(out, &bytes);

    if (!text)
        return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for a list of what is replicated");
    fprintf(text,
            "options: bucket_cap_mb %g, find_unused_parameters %d, static_graph %d, keep_buffers %d, "
            "no_init_sync %d, compress %s\n",
            o->bucket_cap_mb, o->find_unused_parameters, o->static_graph, o->keep_buffers, o->no_init_sync,
            o->compress ? fsdp_dtype_name(o->compress) : "none");
    if (sel->group)
        fsdp__write_parameters(text, sel->group);
    if (fclose(text) != 0 || !*out)
        return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory for a list of what is replicated");
    return FSDP_OK;
}

/* ---- the call ---- */

static fsdp_status check_call(const fsdp_module *module, const fsdp_replicate_options *options)
{
    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "fsdp_replicate needs a module");
    if (options->mesh && fsdp_mesh_context(options->mesh) != module->context)
        return FSDP_FAIL(FSDP_INVALID, "fsdp_replicate was given a mesh of another context than the module's");
    if (options->mesh && fsdp_mesh_ndim(options->mesh) != 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "fsdp_replicate takes a mesh of one dimension, and this one has %d: give it a slice of it",
                         fsdp_mesh_ndim(options->mesh));
    return FSDP_OK;
}

/* Checks what may be wrong on one rank, and is then made known to all. */
static fsdp_status check_options(const fsdp_module *module, const fsdp_replicate_options *options)
{
    if (!fsdp__module_has_forward(module))
        return FSDP_FAIL(FSDP_INVALID, "cannot replicate a %s: it has no forward", module->type->name);
    if (!(options->bucket_cap_mb >= 0) || options->bucket_cap_mb > (double)(INT64_MAX >> 24))
        return FSDP_FAIL(FSDP_INVALID, "bucket_cap_mb %g: expected a positive number, or 0 for the default",
                         options->bucket_cap_mb);
    if (options->static_graph && options->find_unused_parameters)
        return FSDP_FAIL(FSDP_INVALID, "static_graph finds unused parameters by itself: leave out "
                                       "find_unused_parameters, which looks for them in every step");
    FSDP_TRY(fsdp__check_overlap(options->overlap));
    return fsdp__check_compression(options->compress);
}

static fsdp_status choose_mesh(selection *sel, fsdp_context *context)
{
    fsdp_dp_mesh_dims dims = {.replicate = {NULL}};
    fsdp_mesh *mesh = sel->options->mesh;

    if (!mesh)
        FSDP_TRY(fsdp__default_mesh(context, &mesh));
    dims.replicate[0] = fsdp_mesh_dim_name(mesh, 0);
    return fsdp__data_parallel_mesh(mesh, &dims, &sel->mesh);
}

/* Selects the parameters. What fails on one rank fails before others wait for it. */
static fsdp_status select_all(selection *sel, fsdp_module *module)
{
    FSDP__SCOPED(fsdp__mesh_info_release) fsdp__mesh_info mesh = fsdp__mesh_info_of(sel->mesh);
    fsdp_status status = check_options(module, sel->options);
    char *text = NULL;

    if (status == FSDP_OK)
        status = ignore_modules(sel, module);
    if (status == FSDP_OK)
        status = fsdp__module_walk(module, select_module, sel);
    if (status == FSDP_OK)
        status = describe(sel, &text);
    status = fsdp__mesh_info_agree(&mesh, status);
    if (status == FSDP_OK)
        status = fsdp__compare_texts(&mesh, text);
    free(text);
    return status;
}

static fsdp_status replicate(selection *sel, fsdp_module *module)
{
    FSDP_TRY(select_all(sel, module));
    if (!sel->group)
        return fsdp__module_state_attach(sel->state);
    FSDP_TRY(fsdp__buckets_create(sel->group, sel->options, &sel->group->buckets));
    sel->group->buckets->ignored = sel->modules;
    sel->group->buckets->ignored_count = sel->module_count;
    sel->modules = NULL;
    FSDP_TRY(fsdp__buckets_assign(sel->group));
    sel->group->residence.whole = true;
    FSDP_TRY(fsdp__module_state_attach(sel->state));
    return sel->options->no_init_sync ? FSDP_OK : fsdp__replica_broadcast(sel->state, 0);
}

fsdp_status fsdp_replicate(fsdp_module *module, const fsdp_replicate_options *options)
{
    static const fsdp_replicate_options defaults;
    selection sel = {.options = options ? options : &defaults};
    fsdp_shard_options shard = {.reshard_after_forward = FSDP_RESHARD_NEVER};
    fsdp_status status;

    FSDP_TRY(check_call(module, sel.options));
    shard.overlap = sel.options->overlap;
    FSDP_TRY(fsdp__module_state_create(&door, &module, 1, &shard, &sel.state));
    sel.state->max_inputs = INT_MAX; /* buckets in flight take no extra memory */
    FSDP_TRY_GOTO(status, fsdp__root_create(module->context, sel.state), out);
    FSDP_TRY_GOTO(status, choose_mesh(&sel, module->context), out);
    status = replicate(&sel, module);
out:
    fsdp__free(sel.modules);
    fsdp_mesh_unref(sel.mesh);
    fsdp__module_state_unref(sel.state);
    return status;
}

/* ---- methods ---- */

bool fsdp_module_is_replicated(fsdp_module *module)
{
    const fsdp__module_state *state = module ? fsdp__module_state_of(module) : NULL;

    return state && state->door == &door;
}

static fsdp_status group_of(fsdp_module *module, fsdp__param_group **out)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    *out = fsdp__replica_of(state);
    if (!*out)
        return FSDP_FAIL(FSDP_STATE, "this %s is not replicated: it has no buckets", module->type->name);
    return FSDP_OK;
}

fsdp_status fsdp_module_set_bucket_hook(fsdp_module *module, fsdp_bucket_hook hook, void *arg)
{
    fsdp__param_group *group;

    FSDP_TRY(group_of(module, &group));
    if (group->buckets->running)
        return FSDP_FAIL(FSDP_STATE, "cannot set the hook of buckets while a backward sends them");
    group->buckets->hook = hook;
    group->buckets->hook_arg = arg;
    return FSDP_OK;
}

static fsdp_status bucket_of(fsdp_module *module, int64_t index, fsdp__param_group **group, fsdp__bucket **out)
{
    FSDP_TRY(group_of(module, group));
    if (index < 0 || index >= (*group)->buckets->count)
        return FSDP_FAIL(FSDP_INVALID, "there is no bucket %lld: there are %lld", (long long)index,
                         (long long)(*group)->buckets->count);
    *out = &(*group)->buckets->items[index];
    return FSDP_OK;
}

fsdp_status fsdp_module_bucket_count(fsdp_module *module, int64_t *out)
{
    fsdp__param_group *group;

    FSDP_TRY(group_of(module, &group));
    *out = group->buckets->count;
    return FSDP_OK;
}

fsdp_status fsdp_module_bucket_info(fsdp_module *module, int64_t bucket, fsdp_bucket_info *out)
{
    fsdp__param_group *group;
    fsdp__bucket *b;

    FSDP_TRY(bucket_of(module, bucket, &group, &b));
    *out = (fsdp_bucket_info){.parameter_count = b->count, .numel = b->numel, .dtype = b->dtype};
    return FSDP_OK;
}

fsdp_status fsdp_module_bucket_parameter(fsdp_module *module, int64_t bucket, int64_t index, fsdp_parameter *out)
{
    fsdp__param_group *group;
    const fsdp__param *param;
    fsdp__bucket *b;

    FSDP_TRY(bucket_of(module, bucket, &group, &b));
    if (index < 0 || index >= b->count)
        return FSDP_FAIL(FSDP_INVALID, "there is no parameter %lld in bucket %lld: it has %lld", (long long)index,
                         (long long)bucket, (long long)b->count);
    param = &group->params[b->params[index]];
    *out = (fsdp_parameter){.name = param->name, .tensor = param->sharded};
    return FSDP_OK;
}
