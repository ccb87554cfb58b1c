/* write.c - prepares for writes to shards. */
#include "shard/state/write.h"

static fsdp_status fail_in_use(const fsdp__module_state *state, const fsdp__param_group *group,
                               const fsdp__storage *storage)
{
    const fsdp__param *param = group->params;
    char text[256];

    while (param->sharded->storage != storage && param < &group->params[group->param_count - 1])
        param++;
    return FSDP_FAIL(FSDP_STATE, "cannot write to parameter %s: a %s of its module is running",
                     fsdp__param_text(param, text, sizeof text), fsdp__module_state_use(state));
}

/* Notes a write to a flat parameter as one to all of its parts, and a write to a part as one to the flat parameter. */
static void note_flat_write(fsdp__param_group *group, const fsdp__storage *written)
{
    fsdp__storage *flat = group->vector.sharded->storage;

    for (int64_t i = 0; i < group->param_count && written == flat; i++) {
        group->params[i].sharded->storage->unwritten = false;
        group->params[i].sharded->storage->version++;
    }
    if (written == flat)
        return;
    flat->unwritten = false;
    flat->version++;
}

fsdp_status fsdp__begin_write(void *arg, const fsdp__storage *storage)
{
    fsdp__param_group *group = arg;
    fsdp__module_state *state = group->state;

    if (fsdp__module_state_in_use(state))
        return fail_in_use(state, group, storage);
    FSDP_TRY(fsdp__param_group_check_summon(group, "write to the shard of"));
    /* This comes before waiting: peers must not wait for this rank's own read. */
    fsdp__module_state_give_up_own(state);
    group->written = true;
    state->comm->after_optim = NULL; /* this write comes after that event */
    FSDP_TRY(group->way->before_write(group));
    /* In CAST peers read the unsharded rows, not the shards; the next gather writes those rows, and waits then. */
    if (group->residence.kind == FSDP__RESIDENCE_IN_PLACE)
        FSDP_TRY(fsdp__residence_await_readers(&group->residence, fsdp_device_stream(group->residence.device)));
    if (group->vector.sharded)
        note_flat_write(group, storage);
    return FSDP_OK;
}
