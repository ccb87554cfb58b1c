/* group.c - the life cycle of one group: unshard, wait, reshard, reduce. Where the bytes lie is memory.c's; when each
 * of these happens is state.c's. */
#include "base/alloc.h"
#include "shard/shard.h"

/* Only called for groups that have parameters. */
static void issued(fsdp__shard_group *group)
{
    if (group->ranks > 1)
        group->lane->issued++;
}

void fsdp__group_used(fsdp__shard_group *group)
{
    if (group->lane)
        group->use_mark = group->lane->issued;
}

fsdp_status fsdp__group_take_turn(fsdp__shard_group *group, fsdp__shard_tree *tree)
{
    if (group->ranks == 1 || group->layout == FSDP__LAYOUT_COPY || group->layout == FSDP__LAYOUT_NONE ||
        group->lane->issued > group->use_mark)
        return FSDP_OK;
    FSDP_TRY(fsdp_stream_synchronize(tree->stream)); /* the barrier is this thread's: nothing may be under way */
    FSDP_TRY(fsdp_barrier(group->comm));
    issued(group);
    return FSDP_OK;
}

/* ---- gathering ---- */

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
    if (group->layout == FSDP__LAYOUT_CAST)
        FSDP_TRY_GOTO(st, fsdp__group_take_turn(group, tree), out);
    FSDP_TRY_GOTO(st, fsdp__tree_follow_compute(tree, group->device), out);
    FSDP_TRY_GOTO(st,
                  fsdp_all_gather_blocks(group->comm, blocks, group->param_count, group->orig_dtype, group->param_dtype,
                                         tree->stream),
                  out);
    issued(group);
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
    FSDP_TRY(fsdp__group_whole_begin(group));
    st = gather(group, tree);
    if (st != FSDP_OK) {
        fsdp__group_whole_end(group);
        return st;
    }
    group->state = FSDP_GATHERING;
    return FSDP_OK;
}

fsdp_status fsdp__group_wait(fsdp__shard_group *group, fsdp__shard_tree *tree)
{
    if (group->state != FSDP_GATHERING)
        return FSDP_OK;
    FSDP_TRY(fsdp_stream_wait_event(fsdp_device_stream(group->device), group->gathered));
    FSDP_TRY(fsdp__stream_check(tree->stream));
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];

        /* Freezing after fully_shard counts from the next gather on. */
        FSDP_TRY(fsdp_tensor_set_requires_grad(p->unsharded, fsdp_tensor_requires_grad(p->sharded)));
        fsdp__param_publish(p, true);
    }
    group->state = FSDP_UNSHARDED;
    return FSDP_OK;
}

void fsdp__group_reshard(fsdp__shard_group *group)
{
    if (group->state == FSDP_SHARDED)
        return;
    /* A prefetch that nobody waited for must land before its memory goes. */
    if (group->state == FSDP_GATHERING)
        (void)fsdp_event_synchronize(group->gathered);
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__param_publish(&group->params[i], false);
    fsdp__group_whole_end(group);
    fsdp__group_used(group);
    group->state = FSDP_SHARDED;
}

/* ---- gradients ---- */

void fsdp__group_drop_gradients(fsdp__shard_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];

        if (p->unsharded)
            (void)fsdp_tensor_set_grad(p->unsharded, NULL);
        fsdp_tensor_unref(p->accumulated);
        p->accumulated = NULL;
    }
    fsdp__storage_unref(group->gradients);
    fsdp__storage_unref(group->accumulated);
    group->gradients = group->accumulated = NULL;
}

/* Whether unreduced gradients are kept in another dtype than they are computed in. */
static bool accumulates_apart(const fsdp__shard_group *group)
{
    return group->reduce_dtype != FSDP_DTYPE_NONE && group->reduce_dtype != group->param_dtype;
}

/* Adds the gradients of this backward to those kept in the reduce dtype. */
static fsdp_status fold(fsdp__shard_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];
        fsdp_tensor *grad = fsdp_tensor_grad(p->unsharded);
        bool first = p->accumulated == NULL;

        if (!grad)
            continue;
        if (!group->accumulated)
            FSDP_TRY(fsdp__group_gradient_storage(group, group->reduce_dtype, &group->accumulated));
        if (first)
            FSDP_TRY(fsdp__group_gradient_view(group, p, group->accumulated, group->reduce_dtype, &p->accumulated));
        FSDP_TRY(fsdp__tensor_copy(p->accumulated, grad, !first));
        FSDP_TRY(fsdp_tensor_set_grad(p->unsharded, NULL));
    }
    fsdp__storage_unref(group->gradients);
    group->gradients = NULL;
    return FSDP_OK;
}

fsdp_status fsdp__group_keep_gradients(fsdp__shard_group *group)
{
    return accumulates_apart(group) ? fold(group) : FSDP_OK; /* else they add up where they are */
}

/* The whole gradient to reduce, NULL when this parameter has none. */
static fsdp_tensor *unreduced(const fsdp__shard_param *param)
{
    return param->accumulated ? param->accumulated : fsdp_tensor_grad(param->unsharded);
}

/* Makes every parameter that is reduced have a gradient on its shard; `*accumulate` tells whether the reduction adds.
 */
static fsdp_status prepare_shard_gradients(fsdp__shard_group *group, bool *accumulate)
{
    size_t bytes = 0, size = fsdp_dtype_size(group->orig_dtype);
    int64_t offset = 0;
    fsdp__storage *storage = NULL;
    fsdp_status st = FSDP_OK;

    *accumulate = false;
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];

        if (!unreduced(p))
            continue;
        if (fsdp_tensor_grad(p->sharded))
            *accumulate = true;
        else
            bytes += fsdp__device_rounded((size_t)fsdp__param_chunk_numel(p) * size);
    }
    if (bytes == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__storage_create(group->device, bytes, FSDP_MEMORY_GRADIENT, true, &storage));
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];
        fsdp_tensor *grad;

        if (!unreduced(p) || fsdp_tensor_grad(p->sharded))
            continue;
        FSDP_TRY_GOTO(st,
                      fsdp__tensor_create_view(storage, group->orig_dtype, p->sharded->ndim, p->sharded->shape, NULL,
                                               offset, &grad),
                      out);
        offset += (int64_t)(fsdp__device_rounded((size_t)fsdp__param_chunk_numel(p) * size) / size);
        st = *accumulate ? fsdp_tensor_fill_(grad, 0.0) : FSDP_OK;
        FSDP_KEEP_FIRST(st, fsdp_tensor_set_grad(p->sharded, grad));
        fsdp_tensor_unref(grad);
        if (st != FSDP_OK)
            goto out;
    }
out:
    fsdp__storage_unref(storage);
    return st;
}

static fsdp_status reduce_scatter(fsdp__shard_group *group, fsdp__shard_tree *tree, bool accumulate)
{
    fsdp_block *blocks = fsdp__calloc((size_t)group->param_count, sizeof *blocks);
    fsdp_reduce_options options = {.whole_dtype = group->accumulated ? group->reduce_dtype : group->param_dtype,
                                   .reduce_dtype = group->reduce_dtype,
                                   .shard_dtype = group->orig_dtype,
                                   .op = group->divide_factor > 0 ? FSDP_SUM : FSDP_AVG,
                                   .divisor = group->divide_factor,
                                   .accumulate = accumulate};
    int64_t count = 0;
    fsdp_status st = FSDP_OK;

    if (!blocks)
        return FSDP_NO_MEMORY;
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];
        fsdp_tensor *whole = unreduced(p);

        if (whole)
            blocks[count++] = (fsdp_block){.whole = fsdp_tensor_data(whole),
                                           .shard = fsdp_tensor_data(fsdp_tensor_grad(p->sharded)),
                                           .numel = fsdp__param_numel(p),
                                           .chunk = fsdp__param_chunk_numel(p)};
    }
    FSDP_TRY_GOTO(st, fsdp__tree_follow_compute(tree, group->device), out);
    FSDP_TRY_GOTO(st, fsdp_reduce_scatter_blocks(group->comm, blocks, count, &options, tree->stream), out);
    issued(group);
    st = fsdp_event_record(tree->in_flight.done, tree->stream);
out:
    fsdp__free(blocks);
    return st;
}

fsdp_status fsdp__group_reduce(fsdp__shard_group *group, fsdp__shard_tree *tree, bool *reduced)
{
    bool any = false, accumulate;

    *reduced = false;
    if (group->accumulated)
        FSDP_TRY(fold(group));
    for (int64_t i = 0; i < group->param_count; i++)
        any = any || unreduced(&group->params[i]);
    if (!any)
        return FSDP_OK;
    FSDP_TRY(prepare_shard_gradients(group, &accumulate));
    FSDP_TRY(fsdp__tree_finish_reduction(tree, group->device)); /* one input in flight */
    FSDP_TRY(reduce_scatter(group, tree, accumulate));

    /* The stream may still read the input: the tree holds it until the next reduction or the end of the backward. */
    tree->in_flight.input = group->accumulated ? group->accumulated : group->gradients;
    if (group->accumulated)
        group->accumulated = NULL;
    else
        group->gradients = NULL;
    fsdp__group_drop_gradients(group);
    if (fsdp__stream_is_inline(tree->stream))
        FSDP_TRY(fsdp__tree_finish_reduction(tree, group->device));
    *reduced = true;
    return FSDP_OK;
}
