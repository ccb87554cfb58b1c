/* parts.c - a front door with nothing of its own but the choice of groups. */
#include "shard/parts.h"

#include "shard/doors/fully_shard.h"
#include "shard/doors/zero.h"
#include "shard/group/default_groups.h"
#include "shard/state/attach.h"

typedef struct division {
    fsdp__module_state *state;
    fsdp_mesh *mesh;
    const fsdp_shard_options *options;
    int parts;
    int64_t chosen;
} division;

static fsdp_status choose(division *d, fsdp_tensor *tensor, fsdp__param **out)
{
    const fsdp_mp_policy *policy = &d->options->mp_policy;
    int64_t part = d->chosen++ % d->parts;
    fsdp__param_group *group;

    if (part == d->state->group_count)
        FSDP_TRY(fsdp__module_state_add_group(d->state, d->mesh, !d->options->no_shared_memory, &group));
    FSDP_TRY(fsdp__param_group_add(d->state->groups[part], tensor, out));
    (*out)->param_dtype = policy->param_dtype ? policy->param_dtype : tensor->dtype;
    (*out)->reduce_dtype = policy->reduce_dtype ? policy->reduce_dtype : tensor->dtype;
    if (d->options->gather_extension && part > 0) /* of all parameters but those of the first group */
        (*out)->extension = *d->options->gather_extension;
    return FSDP_OK;
}

static fsdp_status divide(division *d, fsdp_module *module)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];
        fsdp__param *param = *slot->slot ? fsdp__module_state_find(d->state, *slot->slot) : NULL;

        if (!*slot->slot)
            continue;
        if (!param)
            FSDP_TRY(choose(d, *slot->slot, &param));
        FSDP_TRY(fsdp__param_add_field(param, (fsdp__param_field){module, slot->slot, NULL}));
    }
    for (int64_t i = 0; i < module->parts->child_count; i++)
        if (!fsdp__module_state_of(module->parts->children[i].module))
            FSDP_TRY(divide(d, module->parts->children[i].module));
    return FSDP_OK;
}

fsdp_status shard_in_parts(fsdp_module *const *modules, int count, const fsdp_shard_options *options, int parts)
{
    division d = {.options = options, .parts = parts};
    fsdp_status status;

    d.mesh = options->mesh;
    if (!d.mesh)
        FSDP_TRY(fsdp__default_mesh(modules[0]->context, &d.mesh));
    FSDP_TRY(fsdp__module_state_create(&fsdp__door_fully_shard, modules, count, options, &d.state));
    fsdp__zero_set(d.state, options->zero_stage);
    FSDP_TRY_GOTO(status, fsdp__root_create(modules[0]->context, d.state), out);
    for (int i = 0; i < count; i++)
        FSDP_TRY_GOTO(status, divide(&d, modules[i]), out);
    status = fsdp__module_state_attach(d.state);
out:
    fsdp__module_state_unref(d.state);
    return status;
}
