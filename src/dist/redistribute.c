/* redistribute.c - changes any placements into any others, one mesh dimension at a time.
 *
 * [Note: order of steps]
 * Mesh dimensions that shard the same tensor dimension are nested: each splits what those before it left over
 * (fsdp__cut_order: from left to right, if there are no split factors). So a shard can be gathered only if nothing
 * after it splits the same dimension, and made only if nothing after it does. The first pass goes from the last to the
 * first: each dimension that must change leaves its placement, straight to its target if no dimension before it is
 * still in the way, else to Replicate. The second pass goes from the first to the last of the target's order: what is
 * Replicate gets its target by slicing, without communication. */
#include <string.h>

#include "base/alloc.h"
#include "device/device.h"
#include "device/kernels.h"
#include "dist/dist.h"

/* Describes the elements of a shape, row-major. */
typedef struct box {
    void *data;
    int64_t shape[FSDP_MAX_DIMS];
} box;

/* Describes the change of one mesh dimension's placement. */
typedef struct step {
    fsdp_process_group *group;
    fsdp_stream *stream;
    fsdp_dtype dtype;
    int ndim;
    int64_t ranks, rank;         /* along the mesh dimension */
    int64_t full[FSDP_MAX_DIMS]; /* what the ranks along it hold together */
    box from, to;
} step;

/* Holds the state of a redistribution. */
typedef struct walk {
    fsdp_tensor *local; /* contiguous */
    fsdp_distribution now;
    int order[FSDP_MAX_MESH_DIMS]; /* in which mesh dimensions cut; split factors count only at both ends */
    fsdp_memory_kind kind;
} walk;

static fsdp_status copy_tensor(const fsdp_tensor *tensor, fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *copy = NULL;

    FSDP_TRY(fsdp_tensor_create(tensor->storage->device, tensor->dtype, tensor->ndim, tensor->shape,
                                tensor->storage->kind, &copy));
    FSDP_TRY(fsdp__tensor_copy(copy, tensor, false));
    *out = fsdp__take(&copy);
    return FSDP_OK;
}

/* ---- parts of boxes ---- */

/* Copies `size` elements from `from_start` of `from` to `to_start` of `to`, all along dimension `dim`; in the other
 * dimensions as many as both hold. */
static fsdp_status copy_part(const step *s, const box *from, int64_t from_start, const box *to, int64_t to_start,
                             int dim, int64_t size)
{
    fsdp__copy_args args = {.src_dtype = s->dtype, .dst_dtype = s->dtype, .ndim = s->ndim};
    size_t bytes = fsdp_dtype_size(s->dtype);
    int64_t numel = 1;

    fsdp__shape_contiguous_strides(s->ndim, from->shape, args.src_strides);
    fsdp__shape_contiguous_strides(s->ndim, to->shape, args.dst_strides);
    for (int d = 0; d < s->ndim; d++) {
        args.shape[d] = d == dim ? size : from->shape[d] < to->shape[d] ? from->shape[d] : to->shape[d];
        numel *= args.shape[d];
    }
    if (numel == 0)
        return FSDP_OK;
    args.src = (const char *)from->data + (size_t)(from_start * args.src_strides[dim]) * bytes;
    args.dst = (char *)to->data + (size_t)(to_start * args.dst_strides[dim]) * bytes;
    return fsdp__launch_copy(s->stream, &args);
}

/* Returns the length of the longest part, which the first rank has. */
static int64_t chunk_of(const step *s, fsdp_placement p)
{
    int64_t start[FSDP_MAX_SEGMENTS], size[FSDP_MAX_SEGMENTS], length = 0;
    int count = fsdp__placement_parts(p, s->full[p.dim], s->ranks, 0, start, size);

    for (int i = 0; i < count; i++)
        length += size[i];
    return length;
}

static int64_t box_numel(const step *s, const box *b)
{
    return fsdp__shape_numel(s->ndim, b->shape);
}

static void *box_at(const step *s, void *boxes, const box *shape, int64_t index)
{
    return (char *)boxes + (size_t)(index * box_numel(s, shape)) * fsdp_dtype_size(s->dtype);
}

/* Moves one rank's part between what the ranks hold together (`full`) and a box of its own: packs it into the box, or
 * unpacks it. */
static fsdp_status move_part(const step *s, fsdp_placement p, int64_t rank, const box *full, const box *own, bool packs)
{
    int64_t start[FSDP_MAX_SEGMENTS], size[FSDP_MAX_SEGMENTS], passed = 0;
    int count = fsdp__placement_parts(p, s->full[p.dim], s->ranks, rank, start, size);

    for (int i = 0; i < count; i++) {
        FSDP_TRY(packs ? copy_part(s, full, start[i], own, passed, p.dim, size[i])
                       : copy_part(s, own, passed, full, start[i], p.dim, size[i]));
        passed += size[i];
    }
    return FSDP_OK;
}

/* Moves the parts that `p` makes between the tensor and `boxes`, which has room for one box of `one`'s shape for every
 * rank: packs `from` into them, or unpacks them into `to`. */
static fsdp_status move_parts(const step *s, fsdp_placement p, void *boxes, box one, bool packs)
{
    for (int64_t r = 0; r < s->ranks; r++) {
        one.data = box_at(s, boxes, &one, r);
        FSDP_TRY(move_part(s, p, r, packs ? &s->from : &s->to, &one, packs));
    }
    return FSDP_OK;
}

/* Returns whether the ranks' boxes, one after the other, begin with the full tensor as it is in memory; what follows is
 * padding. */
static bool boxes_begin_full(const step *s, fsdp_placement p)
{
    int64_t outer = 1;

    for (int d = 0; d < p.dim; d++)
        outer *= s->full[d];
    return outer == 1 && p.segment_count == 0;
}

/* Returns whether they are exactly the full tensor. */
static bool boxes_are_full(const step *s, fsdp_placement p)
{
    return boxes_begin_full(s, p) && chunk_of(s, p) * s->ranks == s->full[p.dim];
}

static fsdp_status take_workspace(const step *s, int64_t numel, fsdp__workspace *out)
{
    return fsdp__workspace_take(fsdp__stream_device(s->stream), (size_t)numel * fsdp_dtype_size(s->dtype), out);
}

/* ---- the collectives, with boxes padded to the chunk ---- */

/* Changes Shard to Replicate. Rows are gathered where they will stay: `to` has room for the padding behind
 * them. */
static fsdp_status all_gather(const step *s, fsdp_placement p)
{
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace all = {0};
    box one = s->from;
    void *recv = s->to.data, *send = s->from.data;
    bool in_place = boxes_begin_full(s, p);
    int64_t numel;

    one.shape[p.dim] = chunk_of(s, p);
    numel = box_numel(s, &one);
    if (!in_place) {
        FSDP_TRY(take_workspace(s, numel * s->ranks, &all));
        recv = all.data;
    }
    if (s->from.shape[p.dim] != one.shape[p.dim] && numel > 0) { /* pad it in the place where it goes */
        one.data = send = box_at(s, recv, &one, s->rank);
        FSDP_TRY(copy_part(s, &s->from, 0, &one, 0, p.dim, s->from.shape[p.dim]));
    }
    FSDP_TRY(fsdp_all_gather(s->group, send, recv, numel, s->dtype, s->stream));
    return in_place ? FSDP_OK : move_parts(s, p, recv, one, false);
}

/* Changes Partial(op) to Shard. */
static fsdp_status reduce_scatter(const step *s, fsdp_placement p, fsdp_reduce_op op)
{
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace send = {.data = s->from.data}, recv = {.data = s->to.data};
    bool recv_in_place = s->to.shape[p.dim] == chunk_of(s, p);
    box one = s->from;
    int64_t numel;

    one.shape[p.dim] = chunk_of(s, p);
    numel = box_numel(s, &one);
    if (!boxes_are_full(s, p)) {
        FSDP_TRY(take_workspace(s, numel * s->ranks, &send));
        FSDP_TRY(fsdp__launch_fill_run(s->stream, send.data, s->dtype, numel * s->ranks, 0));
        FSDP_TRY(move_parts(s, p, send.data, one, true));
    }
    if (!recv_in_place)
        FSDP_TRY(take_workspace(s, numel, &recv));
    FSDP_TRY(fsdp_reduce_scatter(s->group, send.data, recv.data, numel, s->dtype, op, s->stream));
    one.data = recv.data;
    return recv_in_place ? FSDP_OK : copy_part(s, &one, 0, &s->to, 0, p.dim, s->to.shape[p.dim]);
}

/* Changes Shard of one tensor dimension to Shard of another. */
static fsdp_status all_to_all(const step *s, fsdp_placement from, fsdp_placement to)
{
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace send = {0}, recv = {0};
    box one = {.data = NULL};
    int64_t numel;

    memcpy(one.shape, s->full, sizeof one.shape);
    one.shape[from.dim] = chunk_of(s, from);
    one.shape[to.dim] = chunk_of(s, to);
    numel = box_numel(s, &one);
    FSDP_TRY(take_workspace(s, numel * s->ranks, &send));
    FSDP_TRY(take_workspace(s, numel * s->ranks, &recv));
    FSDP_TRY(move_parts(s, to, send.data, one, true));
    FSDP_TRY(fsdp_all_to_all(s->group, send.data, recv.data, numel, s->dtype, s->stream));
    return move_parts(s, from, recv.data, one, false);
}

/* Changes Replicate to Partial(op). Equal contributions keep a maximum, a minimum and a mean; for a sum only one rank
 * contributes. */
static fsdp_status contribute(const step *s, fsdp_reduce_op op)
{
    fsdp__fill_args zero = {.dst = s->to.data, .dtype = s->dtype, .numel = box_numel(s, &s->to)};

    if (zero.numel == 0)
        return FSDP_OK;
    if (op == FSDP_SUM && s->rank != 0)
        return fsdp__launch_fill(s->stream, &zero);
    if (s->ndim == 0) {
        fsdp__copy_args one = {.src = s->from.data, .dst = s->to.data, .src_dtype = s->dtype, .dst_dtype = s->dtype};

        return fsdp__launch_copy(s->stream, &one);
    }
    return copy_part(s, &s->from, 0, &s->to, 0, 0, s->from.shape[0]);
}

static fsdp_status run_step(const step *s, fsdp_placement from, fsdp_placement to)
{
    if (from.kind == FSDP_SHARD && to.kind == FSDP_SHARD)
        return all_to_all(s, from, to);
    if (from.kind == FSDP_SHARD)
        return all_gather(s, from);
    if (from.kind == FSDP_PARTIAL && to.kind == FSDP_SHARD)
        return reduce_scatter(s, to, from.op);
    if (from.kind == FSDP_PARTIAL)
        return fsdp_all_reduce(s->group, s->from.data, s->to.data, box_numel(s, &s->to), s->dtype, from.op, s->stream);
    return to.kind == FSDP_SHARD ? move_part(s, to, s->rank, &s->from, &s->to, true) : contribute(s, to.op);
}

/* ---- the walk over the mesh ---- */

/* Makes the tensor that a step writes to. Rows that are gathered have their padding behind them. */
static fsdp_status make_target(const walk *w, const step *s, fsdp_placement from, fsdp_placement to, fsdp_tensor **out)
{
    fsdp_device *device = w->local->storage->device;
    box padded = s->to;
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;

    if (from.kind != FSDP_SHARD || to.kind != FSDP_REPLICATE || !boxes_begin_full(s, from))
        return fsdp_tensor_create(device, s->dtype, s->ndim, s->to.shape, w->kind, out);
    padded.shape[from.dim] = chunk_of(s, from) * s->ranks;
    FSDP_TRY(fsdp__storage_create(device, (size_t)box_numel(s, &padded) * fsdp_dtype_size(s->dtype), w->kind, true,
                                  &storage));
    return fsdp__tensor_create_view(storage, s->dtype, s->ndim, s->to.shape, NULL, 0, out);
}

/* Makes mesh dimension `i` the last to cut. */
static void cut_last(walk *w, int i)
{
    int count = 0;

    for (int k = 0; k < w->now.placement_count; k++)
        if (w->order[k] != i)
            w->order[count++] = w->order[k];
    w->order[count] = i;
}

static void shape_now(const walk *w, int64_t *out)
{
    fsdp__cut_shape(w->now.mesh, w->now.placements, w->order, w->now.ndim, w->now.global_shape, out);
}

/* Gives mesh dimension `i` the placement `next`. Either one of the two is Replicate, or both are Shard, or it changes
 * Partial to Shard. */
static fsdp_status change(walk *w, int i, fsdp_placement next)
{
    fsdp_placement previous = w->now.placements[i];
    fsdp_mesh *mesh = w->now.mesh;
    fsdp_device *device = w->local->storage->device;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *changed = NULL;
    step s = {
        .group = mesh->groups[i],
        .stream = fsdp_device_stream(device),
        .dtype = w->local->dtype,
        .ndim = w->now.ndim,
        .ranks = mesh->shape[i],
        .rank = mesh->coordinate[i],
    };

    /* What the ranks along the dimension hold together is what each would hold if the dimension did not split. */
    w->now.placements[i] = (fsdp_placement){.kind = FSDP_REPLICATE};
    shape_now(w, s.full);
    w->now.placements[i] = next;
    cut_last(w, i);
    if (s.ranks == 1)
        return FSDP_OK;
    shape_now(w, s.to.shape);
    FSDP_TRY(make_target(w, &s, previous, next, &changed));
    memcpy(s.from.shape, w->local->shape, sizeof s.from.shape);
    s.from.data = fsdp_tensor_data(w->local);
    s.to.data = fsdp_tensor_data(changed);
    if (!fsdp_device_is_meta(device))
        FSDP_TRY(run_step(&s, previous, next));
    fsdp_tensor_unref(w->local);
    w->local = fsdp__take(&changed);
    return FSDP_OK;
}

static bool splits(fsdp_placement placement, int dim)
{
    return placement.kind == FSDP_SHARD && placement.dim == dim;
}

/* The order in which mesh dimensions cut before the walk and after it; both also as the turn of each dimension. */
typedef struct orders {
    int first[FSDP_MAX_MESH_DIMS], last[FSDP_MAX_MESH_DIMS];
    int first_turn[FSDP_MAX_MESH_DIMS], last_turn[FSDP_MAX_MESH_DIMS];
} orders;

static orders find_orders(const walk *w, const fsdp_placement *target)
{
    orders o;

    fsdp__cut_order(w->now.mesh, w->now.placements, o.first);
    fsdp__cut_order(w->now.mesh, target, o.last);
    for (int k = 0; k < w->now.placement_count; k++) {
        o.first_turn[o.first[k]] = k;
        o.last_turn[o.last[k]] = k;
    }
    return o;
}

/* Returns whether a mesh dimension that must change splits tensor dimension `dim` before `i` does, now or in the
 * end. */
static bool in_the_way(const walk *w, const fsdp_placement *target, const orders *o, const bool *changes, int i,
                       int dim)
{
    for (int j = 0; j < w->now.placement_count; j++)
        if (changes[j] && ((splits(w->now.placements[j], dim) && o->first_turn[j] < o->first_turn[i]) ||
                           (splits(target[j], dim) && o->last_turn[j] < o->last_turn[i])))
            return true;
    return false;
}

/* Finds which mesh dimensions must change: a placement that may stay must still make way if a dimension that cuts the
 * same tensor dimension before it changes. */
static void find_changes(const walk *w, const fsdp_placement *target, const orders *o, bool *changes)
{
    const fsdp_placement *now = w->now.placements;
    bool more = true;

    for (int i = 0; i < w->now.placement_count; i++)
        changes[i] = !fsdp__placement_equal(now[i], target[i]);
    while (more) {
        more = false;
        for (int i = 0; i < w->now.placement_count; i++)
            if (!changes[i] && now[i].kind == FSDP_SHARD && in_the_way(w, target, o, changes, i, now[i].dim))
                changes[i] = more = true;
    }
}

/* Makes all steps: see [Note: order of steps]. */
static fsdp_status walk_to(walk *w, const fsdp_placement *target)
{
    const fsdp_placement replicate = {.kind = FSDP_REPLICATE}, *now = w->now.placements;
    orders o = find_orders(w, target);
    bool changes[FSDP_MAX_MESH_DIMS];

    memcpy(w->order, o.first, sizeof w->order);
    find_changes(w, target, &o, changes);
    for (int k = w->now.placement_count - 1; k >= 0; k--) {
        int i = o.first[k];
        bool straight = target[i].kind == FSDP_SHARD && !splits(now[i], target[i].dim) &&
                        !in_the_way(w, target, &o, changes, i, target[i].dim);

        if (changes[i] && now[i].kind != FSDP_REPLICATE)
            FSDP_TRY(change(w, i, straight ? target[i] : replicate));
    }
    for (int k = 0; k < w->now.placement_count; k++)
        if (!fsdp__placement_equal(now[o.last[k]], target[o.last[k]]))
            FSDP_TRY(change(w, o.last[k], target[o.last[k]]));
    return FSDP_OK;
}

/* Gives the local tensor under other placements, without a distribution; the caller owns `*out`, which shares no bytes
 * with `tensor`. */
static fsdp_status move(const fsdp_tensor *tensor, const fsdp_placement *target, fsdp_tensor **out)
{
    walk w = {.now = *fsdp_tensor_distribution(tensor), .kind = tensor->storage->kind};
    fsdp_status status;

    if (fsdp_tensor_is_contiguous(tensor))
        FSDP_TRY(fsdp__tensor_alias(tensor, &w.local));
    else
        FSDP_TRY(copy_tensor(tensor, &w.local));
    status = walk_to(&w, target);
    if (status == FSDP_OK && w.local->storage == tensor->storage)
        status = copy_tensor(w.local, out);
    else if (status == FSDP_OK)
        *out = fsdp__take(&w.local);
    fsdp_tensor_unref(w.local);
    return status;
}

/* ---- from and to flat placements ---- */

static const fsdp_placement replicated[FSDP_MAX_MESH_DIMS] = {{.kind = FSDP_REPLICATE}};

static fsdp_status cut_flat(const fsdp_tensor *whole, const fsdp_distribution *distribution, fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *together = NULL;

    if (fsdp_tensor_is_contiguous(whole))
        return fsdp__flat_cut(whole, distribution, out);
    FSDP_TRY(copy_tensor(whole, &together));
    return fsdp__flat_cut(together, distribution, out);
}

static fsdp_status make_whole(const fsdp_tensor *tensor, fsdp_tensor **out)
{
    return fsdp_distribution_is_flat(fsdp_tensor_distribution(tensor)) ? fsdp__flat_gather(tensor, out)
                                                                       : move(tensor, replicated, out);
}

/* Redistributes by way of the whole tensor. `target` is the distribution that the result gets. */
static fsdp_status move_by_whole(const fsdp_tensor *tensor, const fsdp_distribution *target, fsdp_tensor **out)
{
    fsdp_distribution now = *target;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *whole = NULL;

    memcpy(now.placements, replicated, sizeof now.placements);
    FSDP_TRY(make_whole(tensor, &whole));
    if (fsdp_distribution_is_flat(target)) {
        FSDP_TRY(cut_flat(whole, target, out));
    } else {
        FSDP_TRY(fsdp_tensor_set_distribution(whole, &now));
        FSDP_TRY(move(whole, target->placements, out));
    }
    return FSDP_OK;
}

/* ---- the public functions ---- */

/* Copies this rank's part of a whole tensor; the caller owns `*out`. */
static fsdp_status cut_pieces(const fsdp_tensor *whole, const fsdp_distribution *distribution, fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *own = NULL;
    fsdp_piece pieces[FSDP_MAX_SEGMENTS];
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    int count = fsdp_distribution_pieces(distribution, distribution->mesh->coordinate, pieces);

    fsdp_distribution_box(distribution, distribution->mesh->coordinate, offset, size);
    FSDP_TRY(fsdp_tensor_create(whole->storage->device, whole->dtype, whole->ndim, size, whole->storage->kind, &own));
    for (int i = 0; i < count; i++) {
        FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *to = NULL, *from = NULL;

        FSDP_TRY(fsdp__piece_views(&pieces[i], own, whole, &to, &from));
        FSDP_TRY(fsdp__tensor_copy(to, from, false));
    }
    FSDP_TRY(fsdp_tensor_set_distribution(own, distribution));
    *out = fsdp__take(&own);
    return FSDP_OK;
}

fsdp_status fsdp_distribute_tensor(const fsdp_tensor *tensor, fsdp_mesh *mesh, const fsdp_placement *placements,
                                   fsdp_tensor **out)
{
    fsdp_distribution distribution = {.mesh = mesh};

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor: there is no place for its part");
    *out = NULL;
    if (!tensor || !mesh || !placements)
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor: tensor, mesh and placements are required");
    if (fsdp_tensor_distribution(tensor))
        return FSDP_FAIL(FSDP_INVALID, "cannot distribute a tensor that is distributed: redistribute it");
    FSDP_TRY(fsdp__placements_check(mesh, placements, tensor->ndim, tensor->shape));
    for (int i = 0; i < mesh->ndim; i++)
        if (placements[i].kind == FSDP_PARTIAL)
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot distribute a tensor as partial over mesh dimension '%s': its value "
                             "would not be the tensor's",
                             mesh->names[i]);
    distribution.placement_count = mesh->ndim;
    memcpy(distribution.placements, placements, (size_t)mesh->ndim * sizeof *placements);
    distribution.ndim = tensor->ndim;
    memcpy(distribution.global_shape, tensor->shape, (size_t)tensor->ndim * sizeof *tensor->shape);
    return fsdp_distribution_is_flat(&distribution) ? cut_flat(tensor, &distribution, out)
                                                    : cut_pieces(tensor, &distribution, out);
}

/* Passes the origin on, since the result has the values of the tensor: [Note: origins] in tensor/tensor.h. */
static void pass_origin(const fsdp_tensor *tensor, const fsdp_tensor *result)
{
    fsdp__origin_made(result, fsdp__origin_of((fsdp_tensor *[]){(fsdp_tensor *)(uintptr_t)tensor}, 1));
}

fsdp_status fsdp_full_tensor(const fsdp_tensor *tensor, fsdp_tensor **out)
{
    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot gather a tensor: there is no place for it");
    *out = NULL;
    if (!tensor)
        return FSDP_FAIL(FSDP_INVALID, "cannot gather a tensor: it is NULL");
    if (fsdp_tensor_distribution(tensor))
        FSDP_TRY(make_whole(tensor, out));
    else
        FSDP_TRY(copy_tensor(tensor, out));
    pass_origin(tensor, *out);
    return FSDP_OK;
}

fsdp_status fsdp_redistribute(const fsdp_tensor *tensor, const fsdp_placement *placements, fsdp_tensor **out)
{
    fsdp_distribution distribution;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *moved = NULL;
    bool flat;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot redistribute: there is no place for the part");
    *out = NULL;
    if (!tensor || !placements)
        return FSDP_FAIL(FSDP_INVALID, "cannot redistribute: tensor and placements are required");
    if (!fsdp_tensor_distribution(tensor))
        return FSDP_FAIL(FSDP_INVALID, "cannot redistribute a plain tensor: distribute it");
    distribution = *fsdp_tensor_distribution(tensor);
    flat = fsdp_distribution_is_flat(&distribution);
    FSDP_TRY(fsdp__placements_check(distribution.mesh, placements, distribution.ndim, distribution.global_shape));
    memcpy(distribution.placements, placements, (size_t)distribution.placement_count * sizeof *placements);
    for (int i = 0; i < distribution.placement_count; i++)
        if (placements[i].kind != FSDP_REPLICATE)
            distribution.partial_gradients &= ~(1u << i);
    flat = flat || fsdp_distribution_is_flat(&distribution);
    FSDP_TRY(flat ? move_by_whole(tensor, &distribution, &moved) : move(tensor, placements, &moved));
    FSDP_TRY(fsdp_tensor_set_distribution(moved, &distribution));
    pass_origin(tensor, moved);
    *out = fsdp__take(&moved);
    return FSDP_OK;
}
