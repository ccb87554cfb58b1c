/* give_back.c - walks over the groups that were resharded. */
#include "shard/state/give_back.h"

#include "comm/group_calls.h"

static void give_back(fsdp__param_group *group)
{
    const fsdp__residence *r = &group->residence;
    bool remote = r->kind == FSDP__RESIDENCE_CAST && fsdp__process_group_machines(r->mesh.shard_pg) > 1;

    for (int64_t i = 0; remote && i < group->buffer_count; i++) {
        fsdp_sharded_buffer buffer = fsdp__gather_buffer(group, i);

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
