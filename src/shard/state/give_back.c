/* give_back.c - walks over the groups that were resharded. */
#include "shard/state/give_back.h"

#include "comm/internal.h"
#include "shard/state/module_state.h"

/* Describes the buffer as it is gathered; its shard does not matter. */
static fsdp_sharded_buffer describe(const fsdp__param_group *group, int64_t index)
{
    const fsdp__residence *r = &group->residence;
    const fsdp__param *p = &group->params[index];
    fsdp_sharded_buffer buffer;

    if (group->flat.on)
        return fsdp__flat_gather_buffer(&group->flat, r, group->params, NULL);
    buffer = fsdp__param_buffer(p);
    buffer.unsharded = (char *)r->unsharded->data + p->unsharded_offset;
    buffer.unsharded_dtype = p->param_dtype;
    return buffer;
}

static void give_back(fsdp__param_group *group)
{
    const fsdp__residence *r = &group->residence;
    bool remote = r->kind == FSDP__RESIDENCE_CAST && fsdp__process_group_machines(r->mesh.shard_pg) > 1;
    int64_t count = !remote ? 0 : group->flat.on ? 1 : group->param_count;

    for (int64_t i = 0; i < count; i++) {
        fsdp_sharded_buffer buffer = describe(group, i);

        if (!fsdp__process_group_give_back(r->mesh.shard_pg, r->unsharded->data, &buffer))
            return;
    }
    group->gives_back = false;
}

void fsdp__give_back(const fsdp__root *root)
{
    for (int64_t s = 0; s < root->state_count; s++)
        for (int64_t g = 0; g < root->states[s]->group_count; g++)
            if (root->states[s]->groups[g]->gives_back)
                give_back(root->states[s]->groups[g]);
}
