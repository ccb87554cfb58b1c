/* group.c - the life cycle of one group's whole parameters: unshard, wait, leave, reshard. Where the bytes lie is
 * memory.c's; gradients are reduce.c's; when each of these happens is state.c's. */
#include "base/alloc.h"
#include "comm/internal.h"
#include "shard/shard.h"

/* ---- readers and writers: see the note in shard.h ---- */

static bool is_common(const fsdp__shard_group *group)
{
    return group->ranks > 1 && (group->layout == FSDP__LAYOUT_IN_PLACE || group->layout == FSDP__LAYOUT_CAST);
}

void fsdp__group_resume_reading(fsdp__shard_group *group)
{
    if (group->reading || !is_common(group))
        return;
    fsdp__group_begin_read(group->comm, group->whole->data);
    group->reading = true;
}

void fsdp__group_stop_reading(fsdp__shard_group *group)
{
    if (!group->reading)
        return;
    group->reading = false;
    if (fsdp__group_end_read(group->comm, group->whole->data, fsdp_device_stream(group->device)) != FSDP_OK)
        fsdp_abort(fsdp_group_context(group->comm), fsdp_last_error()); /* or writers wait for ever */
}

fsdp_status fsdp__group_await_peers(fsdp__shard_group *group, fsdp_stream *stream)
{
    return is_common(group) ? fsdp__group_await_readers(group->comm, group->whole->data, stream) : FSDP_OK;
}

/* ---- gathering ---- */

/* The gather waits for who wrote the shards and for who had its memory before. Of shards that were written since the
 * iteration began, and of memory new from the device, nothing better is known than "after all that the device's stream
 * has been given". A spare region, and common memory that is cast into, have waits of their own. */
static fsdp_status order_gather(fsdp__shard_group *group, fsdp__shard_tree *tree)
{
    if (group->layout == FSDP__LAYOUT_CAST)
        FSDP_TRY(fsdp__group_await_peers(group, tree->stream));
    if (group->written || group->fresh_whole)
        FSDP_TRY(fsdp__tree_follow_compute(tree, group->device));
    group->written = group->fresh_whole = false;
    return FSDP_OK;
}

static fsdp_status gather(fsdp__shard_group *group, fsdp__shard_tree *tree)
{
    fsdp_block *blocks = fsdp__calloc((size_t)group->param_count, sizeof *blocks);
    fsdp_status st = FSDP_OK;

    if (!blocks)
        return FSDP_NO_MEMORY;
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];

        blocks[i] = (fsdp_block){.whole = p->unsharded->storage->data,
                                 .shard = p->sharded->storage->data,
                                 .numel = fsdp__param_numel(p),
                                 .chunk = fsdp__param_chunk_numel(p)};
    }
    FSDP_TRY_GOTO(st, order_gather(group, tree), out);
    FSDP_TRY_GOTO(st,
                  fsdp_all_gather_blocks(group->comm, blocks, group->param_count, group->orig_dtype, group->param_dtype,
                                         tree->stream),
                  out);
    st = fsdp_event_record(group->gathered, tree->stream);
out:
    fsdp__free(blocks);
    return st;
}

fsdp_status fsdp__group_unshard(fsdp__shard_group *group, fsdp__shard_tree *tree)
{
    fsdp_status st;

    if (group->state != FSDP_SHARDED || group->param_count == 0)
        return FSDP_OK; /* a prefetch was here first */
    if (group->layout == FSDP__LAYOUT_NONE)
        return FSDP_FAIL(FSDP_STATE,
                         "cannot unshard parameters on the meta device: call fsdp_module_materialize first");
    FSDP_TRY(fsdp__group_whole_begin(group, tree));
    st = gather(group, tree);
    if (st != FSDP_OK) {
        fsdp__group_whole_end(group, tree);
        return st;
    }
    fsdp__group_resume_reading(group);
    group->state = FSDP_GATHERING;
    return FSDP_OK;
}

fsdp_status fsdp__group_wait(fsdp__shard_group *group, fsdp__shard_tree *tree)
{
    if (group->state == FSDP_SHARDED)
        return FSDP_OK;
    if (group->state == FSDP_GATHERING) {
        fsdp_status st;

        fsdp__group_host_waits(group->comm, +1);
        st = fsdp_stream_wait_event(fsdp_device_stream(group->device), group->gathered);
        fsdp__group_host_waits(group->comm, -1);
        if (st == FSDP_OK)
            st = fsdp__stream_check(tree->stream);
        if (st != FSDP_OK) {
            fsdp__group_reshard(group, tree); /* what lies there is not the parameters */
            return st;
        }
        group->state = FSDP_UNSHARDED;
    }
    fsdp__group_resume_reading(group);
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__param_publish(&group->params[i], true);
    return FSDP_OK;
}

void fsdp__group_leave(fsdp__shard_group *group)
{
    if (group->state != FSDP_UNSHARDED || group->explicit)
        return;
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__param_publish(&group->params[i], false);
    fsdp__group_stop_reading(group);
    group->kept = true;
}

void fsdp__group_reshard(fsdp__shard_group *group, fsdp__shard_tree *tree)
{
    group->explicit = group->kept = false;
    if (group->state == FSDP_SHARDED)
        return;
    /* A prefetch that nobody waited for must land before its memory goes. */
    if (group->state == FSDP_GATHERING &&
        fsdp_stream_wait_event(fsdp_device_stream(group->device), group->gathered) != FSDP_OK)
        (void)fsdp_event_synchronize(group->gathered);
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__param_publish(&group->params[i], false);
    fsdp__group_stop_reading(group);
    fsdp__group_whole_end(group, tree);
    group->state = FSDP_SHARDED;
}
