/* reduce.c - from whole gradients on each rank to each rank's rows of their sum. */
#include "base/alloc.h"
#include "shard/shard.h"

/* ---- gradients that stay whole ---- */

void fsdp__param_drop_whole_gradient(fsdp__shard_param *param)
{
    bool had = param->kept || (param->unsharded && fsdp_tensor_grad(param->unsharded));

    if (param->unsharded)
        fsdp__put_grad(param->unsharded, NULL);
    fsdp_tensor_unref(param->kept);
    param->kept = NULL;
    /* A graph that is kept may hold the dropped gradient (fused head): its place is not given out again. */
    if (had)
        fsdp__group_leave_rooms(param->group);
}

void fsdp__group_drop_whole_gradients(fsdp__shard_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__param_drop_whole_gradient(&group->params[i]);
}

/* Whether unreduced gradients are kept in another dtype than they are computed in. */
static bool keeps_apart(const fsdp__shard_group *group)
{
    return group->reduce_dtype != FSDP_DTYPE_NONE && group->reduce_dtype != group->param_dtype;
}

/* Adds the gradients of this backward to those kept in the reduce dtype. */
static fsdp_status fold(fsdp__shard_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];
        fsdp_tensor *grad = fsdp_tensor_grad(p->unsharded);
        bool first = p->kept == NULL;

        if (!grad)
            continue;
        if (first)
            FSDP_TRY(fsdp__group_whole_gradient(group, p, FSDP__ROOM_KEPT, &p->kept));
        FSDP_TRY(fsdp__tensor_copy(p->kept, grad, !first));
        fsdp__put_grad(p->unsharded, NULL);
    }
    return FSDP_OK;
}

fsdp_status fsdp__group_keep_gradients(fsdp__shard_group *group)
{
    return keeps_apart(group) ? fold(group) : FSDP_OK; /* else they add up where they are */
}

/* The whole gradient to reduce, NULL when this parameter has none. */
static fsdp_tensor *unreduced(const fsdp__shard_param *param)
{
    return param->kept ? param->kept : fsdp_tensor_grad(param->unsharded);
}

static bool has_unreduced(const fsdp__shard_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++)
        if (unreduced(&group->params[i]))
            return true;
    return false;
}

/* ---- one reduction ---- */

/* What the reduction of a group reads and writes is collected in the tree's `in_flight`. */
typedef struct reduction {
    fsdp__shard_group *group;
    fsdp__shard_tree *tree;
    fsdp__shard_param **params; /* those that have a gradient to reduce */
    fsdp_block *blocks;
    int64_t count;
    bool kept;       /* some come from backwards without reduction */
    bool hooked;     /* some shard has gradient hooks: results arrive when all is done */
    bool accumulate; /* the result is added to gradients that shards have */
} reduction;

static fsdp_status reduction_begin(reduction *r)
{
    fsdp__reduce_in_flight *flight = &r->tree->in_flight;
    size_t most = (size_t)r->group->param_count;

    FSDP_TRY(fsdp__tree_finish_reduction(r->tree)); /* one in flight; none that hooks wait for, see below */
    for (int64_t i = 0; i < r->group->param_count; i++)
        r->kept = r->kept || r->group->params[i].kept;
    if (r->kept)
        FSDP_TRY(fold(r->group));
    r->params = fsdp__calloc(most, sizeof *r->params);
    r->blocks = fsdp__calloc(most, sizeof *r->blocks);
    if (!r->params || !r->blocks)
        return FSDP_NO_MEMORY;
    for (int64_t i = 0; i < r->group->param_count; i++) {
        fsdp__shard_param *p = &r->group->params[i];

        if (!unreduced(p))
            continue;
        r->params[r->count++] = p;
        r->hooked = r->hooked || fsdp__has_grad_hooks(p->sharded);
        r->accumulate = r->accumulate || fsdp_tensor_grad(p->sharded);
    }
    r->accumulate = r->accumulate && !r->hooked;
    if (flight->capacity >= r->count)
        return FSDP_OK;
    fsdp__free(flight->whole);
    *flight = (fsdp__reduce_in_flight){.done = flight->done};
    flight->whole = fsdp__calloc(3 * (size_t)r->count, sizeof(fsdp_tensor *));
    if (!flight->whole)
        return FSDP_NO_MEMORY;
    flight->gradients = flight->whole + r->count;
    flight->arriving = flight->gradients + r->count;
    flight->capacity = r->count;
    return FSDP_OK;
}

/* A gradient of the shard, a distributed tensor like it, from `offset` elements of `storage` on. */
static fsdp_status make_gradient(const fsdp__shard_param *param, fsdp__storage *storage, int64_t offset,
                                 fsdp_tensor **out)
{
    const fsdp_tensor *like = param->sharded;
    fsdp_status st;

    FSDP_TRY(fsdp__tensor_create_view(storage, like->dtype, like->ndim, like->shape, NULL, offset, out));
    st = fsdp_tensor_set_distribution(*out, fsdp_tensor_distribution(like));
    if (st == FSDP_OK)
        return FSDP_OK;
    fsdp_tensor_unref(*out);
    *out = NULL;
    return st;
}

/* A gradient that the caller set may lie in strides: the reduction adds to rows that lie together. */
static fsdp_status make_contiguous(fsdp__shard_param *param)
{
    fsdp_tensor *grad = fsdp_tensor_grad(param->sharded), *copy = NULL;
    fsdp_status st;

    if (!grad || fsdp_tensor_is_contiguous(grad))
        return FSDP_OK;
    FSDP_TRY(
        fsdp_tensor_create(grad->storage->device, grad->dtype, grad->ndim, grad->shape, FSDP_MEMORY_GRADIENT, &copy));
    FSDP_TRY_GOTO(st, fsdp__tensor_copy(copy, grad, false), out);
    FSDP_TRY_GOTO(st, fsdp_tensor_set_distribution(copy, fsdp_tensor_distribution(param->sharded)), out);
    fsdp__put_grad(param->sharded, copy);
out:
    fsdp_tensor_unref(copy);
    return st;
}

/* Where results that hooks will see go: a storage each, so that they can become gradients as they are. */
static fsdp_status make_arriving(reduction *r)
{
    fsdp__reduce_in_flight *flight = &r->tree->in_flight;

    for (int64_t i = 0; i < r->count; i++) {
        fsdp__shard_param *p = r->params[i];
        size_t bytes = (size_t)fsdp__param_shard_numel(p) * fsdp_dtype_size(r->group->orig_dtype);
        fsdp__storage *storage;
        fsdp_status st;

        FSDP_TRY(fsdp__storage_create(r->group->device, bytes, FSDP_MEMORY_GRADIENT, true, &storage));
        st = make_gradient(p, storage, 0, &flight->gradients[i]);
        fsdp__storage_unref(storage);
        FSDP_TRY(st);
        flight->arriving[i] = fsdp_tensor_ref(p->sharded);
        flight->count = i + 1;
    }
    return FSDP_OK;
}

/* Where the other results go: to the gradients that shards have, or to new ones, which lie in one storage. */
static fsdp_status make_in_place(reduction *r)
{
    fsdp__reduce_in_flight *flight = &r->tree->in_flight;
    size_t bytes = 0, size = fsdp_dtype_size(r->group->orig_dtype);
    fsdp__storage *storage = NULL;
    int64_t offset = 0;
    fsdp_status st = FSDP_OK;

    for (int64_t i = 0; i < r->count; i++) {
        FSDP_TRY(make_contiguous(r->params[i]));
        if (!fsdp_tensor_grad(r->params[i]->sharded))
            bytes += fsdp__device_rounded((size_t)fsdp__param_chunk_numel(r->params[i]) * size);
    }
    if (bytes > 0)
        FSDP_TRY(fsdp__storage_create(r->group->device, bytes, FSDP_MEMORY_GRADIENT, true, &storage));
    for (int64_t i = 0; i < r->count; i++) {
        fsdp__shard_param *p = r->params[i];
        fsdp_tensor *grad = fsdp_tensor_ref(fsdp_tensor_grad(p->sharded));

        if (!grad) {
            FSDP_TRY_GOTO(st, make_gradient(p, storage, offset, &grad), out);
            offset += (int64_t)(fsdp__device_rounded((size_t)fsdp__param_chunk_numel(p) * size) / size);
            st = r->accumulate ? fsdp_tensor_fill_(grad, 0.0) : FSDP_OK;
        }
        flight->gradients[i] = grad;
        flight->count = i + 1;
        FSDP_TRY_GOTO(st, st, out);
    }
out:
    fsdp__storage_unref(storage);
    return st;
}

static fsdp_status issue(reduction *r)
{
    const fsdp__shard_group *group = r->group;
    fsdp__reduce_in_flight *flight = &r->tree->in_flight;
    const fsdp_reduce_options options = {.whole_dtype = r->kept ? group->reduce_dtype : group->param_dtype,
                                         .reduce_dtype = group->reduce_dtype,
                                         .shard_dtype = group->orig_dtype,
                                         .op = group->divide_factor > 0 ? FSDP_SUM : FSDP_AVG,
                                         .divisor = group->divide_factor,
                                         .accumulate = r->accumulate};

    for (int64_t i = 0; i < r->count; i++) {
        flight->whole[i] = fsdp_tensor_ref(unreduced(r->params[i]));
        r->blocks[i] = (fsdp_block){.whole = fsdp_tensor_data(flight->whole[i]),
                                    .shard = fsdp_tensor_data(flight->gradients[i]),
                                    .numel = fsdp__param_numel(r->params[i]),
                                    .chunk = fsdp__param_chunk_numel(r->params[i])};
    }
    FSDP_TRY(fsdp__tree_follow_compute(r->tree, group->device));
    FSDP_TRY(fsdp_reduce_scatter_blocks(group->comm, r->blocks, r->count, &options, r->tree->stream));
    FSDP_TRY(fsdp_event_record(flight->done, r->tree->stream));
    for (int64_t i = 0; i < r->count && !fsdp__stream_is_inline(r->tree->stream); i++)
        flight->gradients[i]->storage->written = flight->done;
    return FSDP_OK;
}

fsdp_status fsdp__group_reduce(fsdp__shard_group *group, fsdp__shard_tree *tree, bool *reduced)
{
    reduction r = {.group = group, .tree = tree};
    fsdp_status st = FSDP_OK;

    *reduced = false;
    if (!has_unreduced(group))
        return FSDP_OK;
    FSDP_TRY_GOTO(st, reduction_begin(&r), out);
    if (r.count == 0)
        goto out;
    FSDP_TRY_GOTO(st, r.hooked ? make_arriving(&r) : make_in_place(&r), out);
    FSDP_TRY_GOTO(st, issue(&r), out);
    for (int64_t i = 0; i < r.count; i++) { /* the flight has them now */
        if (!r.hooked)
            fsdp__put_grad(r.params[i]->sharded, tree->in_flight.gradients[i]);
        fsdp__put_grad(r.params[i]->unsharded, NULL);
        fsdp_tensor_unref(r.params[i]->kept);
        r.params[i]->kept = NULL;
    }
    fsdp__group_leave_rooms(group);
    if (r.hooked || fsdp__stream_is_inline(tree->stream)) /* hooks run at the same moment on any stream */
        FSDP_TRY_GOTO(st, fsdp__tree_finish_reduction(tree), out);
    *reduced = true;
out:
    fsdp__free(r.params);
    fsdp__free(r.blocks);
    if (st != FSDP_OK)
        fsdp__tree_drop_reduction(tree);
    return st;
}

/* ---- the one in flight ---- */

static void let_go(fsdp_tensor **tensor)
{
    fsdp_tensor_unref(*tensor);
    *tensor = NULL;
}

/* The result becomes the shard's gradient, or is added to it, after hooks have seen it. */
static fsdp_status arrive(fsdp_context *context, fsdp_tensor *shard, fsdp_tensor *gradient)
{
    fsdp_status st;

    FSDP_TRY(fsdp_scope_begin(context));
    st = fsdp__leaf_accumulate(shard, gradient);
    fsdp_scope_end(context, NULL);
    return st;
}

/* The i-th result is there for who uses the device's stream. */
static void is_written(const fsdp__reduce_in_flight *flight, int64_t i)
{
    if (flight->gradients[i]->storage->written == flight->done)
        flight->gradients[i]->storage->written = NULL;
}

static void drop(fsdp__reduce_in_flight *flight, int64_t i)
{
    let_go(&flight->whole[i]);
    let_go(&flight->gradients[i]);
    let_go(&flight->arriving[i]);
}

/* Takes the i-th out and hands it to its shard, if that waits for it. */
static fsdp_status land(fsdp_context *context, fsdp__reduce_in_flight *flight, int64_t i, bool wanted)
{
    fsdp_tensor *gradient = fsdp_tensor_ref(flight->gradients[i]), *shard = fsdp_tensor_ref(flight->arriving[i]);
    fsdp_status st = FSDP_OK;

    drop(flight, i);
    if (shard && wanted)
        st = arrive(context, shard, gradient);
    fsdp_tensor_unref(gradient);
    fsdp_tensor_unref(shard);
    return st;
}

fsdp_status fsdp__tree_finish_reduction(fsdp__shard_tree *tree)
{
    fsdp__reduce_in_flight landing = tree->in_flight;
    fsdp_status st;

    if (landing.count == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp_stream_wait_event(fsdp_device_stream(fsdp__stream_device(tree->stream)), landing.done));
    st = fsdp__stream_check(tree->stream);
    tree->in_flight = (fsdp__reduce_in_flight){.done = landing.done}; /* a hook may start a reduction of its own */
    for (int64_t i = 0; i < landing.count; i++)
        is_written(&landing, i);
    for (int64_t i = 0; i < landing.count; i++)
        FSDP_KEEP_FIRST(st, land(tree->context, &landing, i, st == FSDP_OK));
    if (tree->in_flight.capacity > 0) {
        fsdp__free(landing.whole);
        return st;
    }
    landing.count = 0;
    tree->in_flight = landing;
    return st;
}

void fsdp__tree_drop_reduction(fsdp__shard_tree *tree)
{
    fsdp__reduce_in_flight *flight = &tree->in_flight;

    if (flight->count == 0)
        return;
    (void)fsdp_stream_synchronize(tree->stream);
    for (int64_t i = 0; i < flight->count; i++) {
        is_written(flight, i);
        drop(flight, i);
    }
    flight->count = 0;
}
