/* wire.c - packs tensors for collectives, and unpacks what comes.
 *
 * [Note: boxes]
 * A plain collective moves the same number of elements from each rank, so every rank's part has a box of the size of a
 * chunk. A box is a contiguous tensor; the ranks' boxes lie one after the other. If the boxes together are the tensor
 * as it lies in memory (its first dimension that is not 1 is cut, and evenly), nothing is packed. Padding lies behind a
 * gathered tensor. */
#include "parallel/wire.h"

#include "device/device.h"
#include "device/kernels.h"
#include "ops/op.h"

#include <string.h>

bool fsdp__check_group(const char *op, const fsdp_tensor *x, const fsdp_process_group *group)
{
    if (fsdp_process_group_context(group) == fsdp_device_context(x->storage->device))
        return true;
    FSDP_FAIL(FSDP_INVALID, "%s: group '%s' is of another context than the tensor on %s", op,
              fsdp_process_group_name(group), fsdp_device_name(x->storage->device));
    return false;
}

enum {
    CUT_DIMS = 5
};

/* A contiguous tensor that is cut into boxes. Neighbouring dimensions that are not cut are joined, so it has five:
 * (before, left, between, right, after). Either left or right is cut; the other may be longer in a box than in the
 * tensor. */
typedef struct cut {
    int64_t shape[CUT_DIMS], box[CUT_DIMS];
    int dim; /* the one that is cut: 1 or 3 */
    int64_t ranks;
    fsdp_dtype dtype;
} cut;

int64_t fsdp__wire_chunk(int64_t size, int64_t ranks)
{
    return fsdp_shard_range(size, ranks, 0, &(int64_t){0}); /* the first part is the largest */
}

/* Describes how `dim` is cut; `other` (-1: none) has the size `room` in a box. */
static cut cut_of(const fsdp_tensor *tensor, int dim, int other, int64_t room, int64_t ranks)
{
    int left = other >= 0 && other < dim ? other : dim, right = other > dim ? other : other >= 0 ? dim : -1;
    cut c = {.shape = {1, 1, 1, 1, 1}, .dim = left == dim ? 1 : 3, .ranks = ranks, .dtype = tensor->dtype};

    for (int d = 0; d < tensor->ndim; d++)
        c.shape[d < left ? 0 : d == left ? 1 : right < 0 || d > right ? 4 : d < right ? 2 : 3] *= tensor->shape[d];
    memcpy(c.box, c.shape, sizeof c.box);
    c.box[c.dim] = fsdp__wire_chunk(c.shape[c.dim], ranks);
    if (other >= 0)
        c.box[4 - c.dim] = room;
    return c;
}

static int64_t box_numel(const cut *c)
{
    return fsdp__shape_numel(CUT_DIMS, c->box);
}

/* Returns whether the ranks' boxes begin with the tensor as it lies in memory. */
static bool boxes_begin_tensor(const cut *c)
{
    return c->dim == 1 && c->shape[0] == 1 && c->box[3] == c->shape[3];
}

static bool boxes_are_tensor(const cut *c)
{
    return boxes_begin_tensor(c) && c->box[1] * c->ranks == c->shape[1];
}

/* Returns the memory of a tensor, also on meta, where nobody follows it. */
static void *memory_of(const fsdp_tensor *tensor)
{
    return fsdp_device_is_meta(tensor->storage->device) ? tensor->storage->data : fsdp_tensor_data(tensor);
}

/* Copies `count` boxes from number `first` on, each with `size` of the cut dimension, from the tensor or to it. */
static fsdp_status move_run(const cut *c, void *tensor, void *boxes, bool packs, int64_t first, int64_t count,
                            int64_t size, fsdp_stream *stream)
{
    fsdp__copy_args args = {.ndim = CUT_DIMS + 1, .src_dtype = c->dtype, .dst_dtype = c->dtype, .shape = {count}};
    int64_t *in_tensor = packs ? args.src_strides : args.dst_strides;
    int64_t *in_boxes = packs ? args.dst_strides : args.src_strides;
    size_t element = fsdp_dtype_size(c->dtype);

    memcpy(args.shape + 1, c->shape, sizeof c->shape);
    args.shape[1 + c->dim] = size;
    if (fsdp__shape_numel(args.ndim, args.shape) == 0)
        return FSDP_OK;
    fsdp__shape_contiguous_strides(CUT_DIMS, c->shape, in_tensor + 1);
    fsdp__shape_contiguous_strides(CUT_DIMS, c->box, in_boxes + 1);
    in_tensor[0] = c->box[c->dim] * in_tensor[1 + c->dim];
    in_boxes[0] = box_numel(c);
    tensor = (char *)tensor + (size_t)(first * in_tensor[0]) * element;
    boxes = (char *)boxes + (size_t)(first * in_boxes[0]) * element;
    args.src = packs ? tensor : boxes;
    args.dst = packs ? boxes : tensor;
    return fsdp__launch_copy(stream, &args);
}

/* Packs the tensor into the ranks' boxes, or unpacks it: first those that are full, then the one that is not. */
static fsdp_status move_boxes(const cut *c, void *tensor, void *boxes, bool packs, fsdp_stream *stream)
{
    int64_t chunk = c->box[c->dim], full = chunk > 0 ? c->shape[c->dim] / chunk : 0;
    int64_t rest = c->shape[c->dim] - full * chunk;

    if (full > 0)
        FSDP_TRY(move_run(c, tensor, boxes, packs, 0, full, chunk, stream));
    return rest > 0 ? move_run(c, tensor, boxes, packs, full, 1, rest, stream) : FSDP_OK;
}

/* Makes `count` boxes. */
static fsdp_tensor *make_boxes(const fsdp_tensor *like, const cut *c, int64_t count)
{
    const int64_t numel = count * box_numel(c);

    return fsdp_empty(like->storage->device, like->dtype, 1, &numel);
}

/* Returns `x` as another tensor, for a group of one rank. */
static fsdp_tensor *alias_of(const fsdp_tensor *x)
{
    fsdp_tensor *alias = NULL;

    return fsdp__tensor_alias(x, &alias) == FSDP_OK ? fsdp__scope_adopt(alias) : NULL;
}

/* Returns `done` if the call that filled it was a success. */
static fsdp_tensor *given(fsdp_tensor *done, fsdp_status status)
{
    return status == FSDP_OK ? done : NULL;
}

/* ---- the collectives ---- */

fsdp_tensor *fsdp__wire_all_reduce(fsdp_tensor *x, fsdp_reduce_op op, bool over, fsdp_process_group *group)
{
    fsdp_tensor *y;

    if (fsdp_process_group_size(group) == 1)
        return alias_of(x);
    x = fsdp__op_contiguous(x);
    y = over ? x : x ? fsdp__empty_like(x, x->dtype) : NULL;
    if (!y)
        return NULL;
    return given(
        y, fsdp_all_reduce(group, memory_of(x), memory_of(y), fsdp_tensor_numel(x), x->dtype, op, fsdp__op_stream(x)));
}

/* Makes the tensor that a gather gives. With `in_place` it has room for the padding behind it. */
static fsdp_tensor *make_gathered(const fsdp_tensor *x, const int64_t *shape, bool in_place, int64_t padded)
{
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;
    fsdp_tensor *y = NULL;

    if (!in_place)
        return fsdp_empty(x->storage->device, x->dtype, x->ndim, shape);
    if (fsdp__storage_create(x->storage->device, (size_t)padded * fsdp_dtype_size(x->dtype), FSDP_MEMORY_ACTIVATION,
                             true, &storage) != FSDP_OK ||
        fsdp__tensor_create_view(storage, x->dtype, x->ndim, shape, NULL, 0, &y) != FSDP_OK)
        return NULL;
    return fsdp__scope_adopt(y);
}

/* Sets `boxes` to the parts of all ranks. A part that is shorter than its box is padded in the place where it goes. */
static fsdp_status gather_boxes(const fsdp_tensor *x, const cut *own, void *boxes, int64_t numel,
                                fsdp_process_group *group)
{
    const void *send = memory_of(x);
    fsdp_stream *stream = fsdp__op_stream(x);

    if (own->shape[own->dim] != own->box[own->dim] && numel > 0) {
        char *place = (char *)boxes + (size_t)(fsdp_process_group_rank(group) * numel) * fsdp_dtype_size(x->dtype);

        FSDP_TRY(move_run(own, memory_of(x), place, true, 0, 1, own->shape[own->dim], stream));
        send = place;
    }
    return fsdp_all_gather(group, send, boxes, numel, x->dtype, stream);
}

fsdp_tensor *fsdp__wire_all_gather(fsdp_tensor *x, int dim, int64_t whole, fsdp_process_group *group)
{
    int64_t ranks = fsdp_process_group_size(group), shape[FSDP_MAX_DIMS], numel;
    fsdp_tensor *y, *boxes;
    cut own, all;
    bool in_place;

    if (ranks == 1)
        return alias_of(x);
    x = fsdp__op_contiguous(x);
    if (!x)
        return NULL;
    memcpy(shape, x->shape, sizeof shape);
    shape[dim] = whole;
    own = all = cut_of(x, dim, -1, 0, ranks);
    all.shape[all.dim] = whole;
    own.box[own.dim] = all.box[all.dim] = fsdp__wire_chunk(whole, ranks);
    numel = box_numel(&all);
    in_place = boxes_begin_tensor(&all);
    y = make_gathered(x, shape, in_place, numel * ranks);
    boxes = in_place || !y ? y : make_boxes(x, &all, ranks);
    if (!boxes || gather_boxes(x, &own, memory_of(boxes), numel, group) != FSDP_OK)
        return NULL;
    return in_place ? y : given(y, move_boxes(&all, memory_of(y), memory_of(boxes), false, fsdp__op_stream(x)));
}

/* Fills boxes with zeros if they have padding: it is added up, too, although nobody reads those sums. */
static fsdp_status clear_padding(const cut *c, const fsdp_tensor *boxes)
{
    int64_t numel = fsdp_tensor_numel(boxes);

    if (c->box[c->dim] * c->ranks == c->shape[c->dim] || numel == 0)
        return FSDP_OK;
    return fsdp__launch_fill_run(fsdp__op_stream(boxes), memory_of(boxes), c->dtype, numel, 0);
}

/* Copies this rank's part out of its box. */
static fsdp_tensor *unbox(fsdp_tensor *box, const cut *c, const int64_t *shape, int ndim, int64_t length)
{
    fsdp_tensor *y = fsdp_empty(box->storage->device, box->dtype, ndim, shape);
    cut own = *c;

    own.shape[own.dim] = length;
    return y ? given(y, move_run(&own, memory_of(y), memory_of(box), false, 0, 1, length, fsdp__op_stream(box))) : NULL;
}

fsdp_tensor *fsdp__wire_reduce_scatter(fsdp_tensor *x, int dim, fsdp_process_group *group)
{
    int64_t ranks = fsdp_process_group_size(group), shape[FSDP_MAX_DIMS], start, numel;
    fsdp_tensor *boxes, *y;
    bool even;
    cut all;

    if (ranks == 1)
        return alias_of(x);
    x = boxes = fsdp__op_contiguous(x);
    if (!x)
        return NULL;
    memcpy(shape, x->shape, sizeof shape);
    shape[dim] = fsdp_shard_range(x->shape[dim], ranks, fsdp_process_group_rank(group), &start);
    all = cut_of(x, dim, -1, 0, ranks);
    numel = box_numel(&all);
    even = shape[dim] == all.box[all.dim];
    if (!boxes_are_tensor(&all)) {
        boxes = make_boxes(x, &all, ranks);
        if (!boxes || clear_padding(&all, boxes) != FSDP_OK ||
            move_boxes(&all, memory_of(x), memory_of(boxes), true, fsdp__op_stream(x)) != FSDP_OK)
            return NULL;
    }
    y = even ? fsdp_empty(x->storage->device, x->dtype, x->ndim, shape) : make_boxes(x, &all, 1);
    if (!y || fsdp_reduce_scatter(group, memory_of(boxes), memory_of(y), numel, x->dtype, FSDP_SUM,
                                  fsdp__op_stream(x)) != FSDP_OK)
        return NULL;
    return even ? y : unbox(y, &all, shape, x->ndim, shape[dim]);
}

fsdp_tensor *fsdp__wire_all_to_all(fsdp_tensor *x, int split_dim, int concat_dim, int64_t whole,
                                   fsdp_process_group *group)
{
    int64_t ranks = fsdp_process_group_size(group), shape[FSDP_MAX_DIMS], start;
    fsdp_tensor *send, *recv, *y;
    fsdp_stream *stream;
    cut from, to;

    if (ranks == 1)
        return alias_of(x);
    x = fsdp__op_contiguous(x);
    if (!x)
        return NULL;
    stream = fsdp__op_stream(x);
    memcpy(shape, x->shape, sizeof shape);
    shape[split_dim] = fsdp_shard_range(x->shape[split_dim], ranks, fsdp_process_group_rank(group), &start);
    shape[concat_dim] = whole;
    from = cut_of(x, split_dim, concat_dim, fsdp__wire_chunk(whole, ranks), ranks);
    y = fsdp_empty(x->storage->device, x->dtype, x->ndim, shape);
    send = y ? make_boxes(x, &from, ranks) : NULL;
    recv = send ? make_boxes(x, &from, ranks) : NULL;
    if (!recv)
        return NULL;
    to = cut_of(y, concat_dim, split_dim, fsdp__wire_chunk(x->shape[split_dim], ranks), ranks);
    if (move_boxes(&from, memory_of(x), memory_of(send), true, stream) != FSDP_OK ||
        fsdp_all_to_all(group, memory_of(send), memory_of(recv), box_numel(&from), x->dtype, stream) != FSDP_OK)
        return NULL;
    return given(y, move_boxes(&to, memory_of(y), memory_of(recv), false, stream));
}

/* ---- in place ---- */

fsdp_status fsdp__wire_broadcast(fsdp_tensor *x, int root, fsdp_process_group *group, fsdp_stream *stream)
{
    return fsdp_broadcast(group, memory_of(x), fsdp_tensor_numel(x), x->dtype, root, stream);
}

fsdp_status fsdp__wire_reduce_part(const fsdp_tensor *x, fsdp_tensor *sums, int place, fsdp_process_group *group,
                                   fsdp_stream *stream)
{
    int64_t part = fsdp_tensor_numel(x) / fsdp_process_group_size(group);
    char *to = memory_of(sums);

    return fsdp_reduce_scatter(group, memory_of(x), to + (size_t)(place * part) * fsdp_dtype_size(x->dtype), part,
                               x->dtype, FSDP_SUM, stream);
}

fsdp_status fsdp__wire_exchange(const fsdp_tensor *from, fsdp_tensor *to, fsdp_process_group *group)
{
    return fsdp_all_to_all(group, memory_of(from), memory_of(to),
                           fsdp_tensor_numel(from) / fsdp_process_group_size(group), from->dtype,
                           fsdp__op_stream(from));
}

fsdp_tensor *fsdp__wire_slice(fsdp_tensor *x, int dim, fsdp_process_group *group)
{
    int64_t start, length = fsdp_shard_range(x->shape[dim], fsdp_process_group_size(group),
                                             fsdp_process_group_rank(group), &start);
    fsdp_tensor *part = NULL;

    return fsdp__view_narrow(x, dim, start, length, &part) == FSDP_OK ? fsdp__scope_adopt(part) : NULL;
}
