/* collectives.c - collectives as operations: each forward has its transpose as its backward. */
#include "fsdp/parallel.h"

#include "ops/op.h"
#include "parallel/plan.h"
#include "parallel/side_stream.h"
#include "parallel/wire.h"

/* Holds what a backward needs to know of its forward. */
typedef struct state {
    fsdp__route route;
    int dim, concat_dim; /* concat_dim: of an all-to-all only */
    int64_t whole;       /* how long the dimension is, of all ranks, that the backward puts together */
} state;

/* Checks what all of them have. Returns false for a NULL tensor, too. */
static bool begin(const fsdp__op *op, fsdp_tensor *x, fsdp_process_group *group)
{
    if (!x)
        return false;
    if (!group) {
        FSDP_FAIL(FSDP_INVALID, "%s: the process group is NULL", op->name);
        return false;
    }
    return fsdp__op_inputs(op->name, &x, 1) && fsdp__check_group(op->name, x, group);
}

/* Checks that x is this rank's part of dimension `dim`, `whole` long. */
static bool is_part(const fsdp__op *op, const fsdp_tensor *x, int *dim, int64_t whole, const fsdp_process_group *group)
{
    int64_t start, length;
    int rank, size;

    if (!fsdp__op_dim(op->name, x, x->ndim, dim))
        return false;
    rank = fsdp_process_group_rank(group);
    size = fsdp_process_group_size(group);
    length = whole < 0 ? -1 : fsdp_shard_range(whole, size, rank, &start);
    if (length == x->shape[*dim])
        return true;
    FSDP_FAIL(FSDP_INVALID,
              "%s: %s is not what rank %d of %d in group '%s' holds of a dimension %d of %lld: it would be %lld",
              op->name, FSDP__SHAPE_OF(x), rank, size, fsdp_process_group_name(group), *dim, (long long)whole,
              (long long)length);
    return false;
}

/* Records y, if there is one. */
static fsdp_tensor *finish(const fsdp__op *op, fsdp_tensor *x, fsdp_tensor *y, const state *s)
{
    static const fsdp__traits none = {0};

    return y && fsdp__route_record(&none, op, &x, 1, &y, 1, NULL, 0, s, sizeof *s) == FSDP_OK ? y : NULL;
}

static fsdp_status give(fsdp__node *node, fsdp_tensor *dx)
{
    return dx ? fsdp__node_give(node, 0, dx) : fsdp_last_status();
}

/* ---- backwards ---- */

static fsdp_status add_up(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);

    return give(node, fsdp__wire_all_reduce(grads[0], FSDP_SUM, fsdp__grad_exclusive(grads[0]), s->route.group));
}

static fsdp_status scatter_sum(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);

    return give(node, fsdp__wire_reduce_scatter(grads[0], s->dim, s->route.group));
}

static fsdp_status gather(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);

    return give(node, fsdp__wire_all_gather(grads[0], s->dim, s->whole, s->route.group));
}

static fsdp_status take_part(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);

    return give(node, fsdp__wire_slice(grads[0], s->dim, s->route.group));
}

static fsdp_status send_back(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);

    return give(node, fsdp__wire_all_to_all(grads[0], s->concat_dim, s->dim, s->whole, s->route.group));
}

/* ---- operations ---- */

static const fsdp__op copy_op = {.name = "parallel_copy", .backward = add_up, .free_state = fsdp__route_free};
static const fsdp__op all_reduce_op = {
    .name = "parallel_all_reduce", .backward = fsdp__node_pass_on, .free_state = fsdp__route_free};
static const fsdp__op all_gather_op = {
    .name = "parallel_all_gather", .backward = scatter_sum, .free_state = fsdp__route_free};
static const fsdp__op collect_op = {.name = "parallel_collect", .backward = take_part, .free_state = fsdp__route_free};
static const fsdp__op reduce_scatter_op = {
    .name = "parallel_reduce_scatter", .backward = gather, .free_state = fsdp__route_free};
static const fsdp__op split_op = {.name = "parallel_split", .backward = gather, .free_state = fsdp__route_free};
static const fsdp__op all_to_all_op = {
    .name = "parallel_all_to_all", .backward = send_back, .free_state = fsdp__route_free};

static bool makes_replicated(const void *group, const fsdp__op *op, const void *node_state)
{
    return (op == &all_reduce_op || op == &collect_op) && ((const state *)node_state)->route.group == group;
}

bool fsdp__is_replicated(const fsdp_tensor *x, const fsdp_process_group *group)
{
    return fsdp__is_sum_with(x, makes_replicated, group);
}

fsdp_tensor *fsdp_parallel_copy(fsdp_tensor *x, fsdp_process_group *group)
{
    const state s = {.route = {.group = group}};

    return begin(&copy_op, x, group) ? finish(&copy_op, x, fsdp_detach(x), &s) : NULL;
}

fsdp_tensor *fsdp_parallel_all_reduce(fsdp_tensor *x, fsdp_process_group *group)
{
    const state s = {.route = {.group = group}};

    if (!begin(&all_reduce_op, x, group))
        return NULL;
    return finish(&all_reduce_op, x, fsdp__wire_all_reduce(x, FSDP_SUM, false, group), &s);
}

static fsdp_tensor *gathered(const fsdp__op *op, fsdp_tensor *x, int dim, int64_t whole, fsdp_process_group *group)
{
    state s = {.route = {.group = group}};

    if (!begin(op, x, group) || !is_part(op, x, &dim, whole, group))
        return NULL;
    s.dim = dim;
    return finish(op, x, fsdp__wire_all_gather(x, dim, whole, group), &s);
}

fsdp_tensor *fsdp_parallel_all_gather(fsdp_tensor *x, int dim, int64_t whole, fsdp_process_group *group)
{
    return gathered(&all_gather_op, x, dim, whole, group);
}

fsdp_tensor *fsdp_parallel_collect(fsdp_tensor *x, int dim, int64_t whole, fsdp_process_group *group)
{
    return gathered(&collect_op, x, dim, whole, group);
}

fsdp_tensor *fsdp_parallel_reduce_scatter(fsdp_tensor *x, int dim, fsdp_process_group *group)
{
    state s = {.route = {.group = group}};

    if (!begin(&reduce_scatter_op, x, group) || !fsdp__op_dim(reduce_scatter_op.name, x, x->ndim, &dim))
        return NULL;
    s.dim = dim;
    s.whole = x->shape[dim];
    return finish(&reduce_scatter_op, x, fsdp__wire_reduce_scatter(x, dim, group), &s);
}

fsdp_tensor *fsdp_parallel_split(fsdp_tensor *x, int dim, fsdp_process_group *group)
{
    state s = {.route = {.group = group}};

    if (!begin(&split_op, x, group) || !fsdp__op_dim(split_op.name, x, x->ndim, &dim))
        return NULL;
    s.dim = dim;
    s.whole = x->shape[dim];
    return finish(&split_op, x, fsdp__wire_slice(x, dim, group), &s);
}

fsdp_tensor *fsdp_parallel_all_to_all(fsdp_tensor *x, int split_dim, int concat_dim, int64_t whole,
                                      fsdp_process_group *group)
{
    state s = {.route = {.group = group}};

    if (!begin(&all_to_all_op, x, group) || !fsdp__op_dim(all_to_all_op.name, x, x->ndim, &split_dim) ||
        !is_part(&all_to_all_op, x, &concat_dim, whole, group))
        return NULL;
    if (split_dim == concat_dim) {
        FSDP_FAIL(FSDP_INVALID, "%s: dimension %d cannot be cut and put together at once", all_to_all_op.name,
                  split_dim);
        return NULL;
    }
    s.dim = split_dim;
    s.concat_dim = concat_dim;
    s.whole = x->shape[split_dim];
    return finish(&all_to_all_op, x, fsdp__wire_all_to_all(x, split_dim, concat_dim, whole, group), &s);
}
