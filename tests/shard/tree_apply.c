/* tree_apply.c - one parameter of a tree, and its plan over a team: by outputs, by inputs, by rows of the batch. */
#include "shard/tree_apply.h"

#include "fsdp/parallel.h"
#include "fsdp/parallelize.h"
#include "ops/op.h"

static fsdp_tensor *add_loss(fsdp_tensor *x, fsdp_tensor *loss)
{
    return x ? fsdp_add(x, fsdp_cast(fsdp_scale(loss, 0.25), fsdp_tensor_dtype(x))) : NULL;
}

static fsdp_tensor *sum_of_cube(fsdp_tensor *w)
{
    return fsdp_sum_dim(fsdp_sum_dim(w, 0, false), 0, false);
}

static int64_t numel_of(const tree_param *p)
{
    int64_t numel = 1;

    for (int d = 0; d < p->ndim; d++)
        numel *= p->shape[d];
    return numel;
}

/* A sum of nothing would end all. */
static fsdp_tensor *times_cube(const tree_param *p, fsdp_tensor *x, fsdp_tensor *sum)
{
    return numel_of(p) > 0 ? fsdp_mul(x, sum) : fsdp_add(x, sum);
}

static fsdp_tensor *gated(fsdp_tensor *x, fsdp_tensor *w)
{
    const fsdp__gated_linear m = {.gate = x, .up = fsdp_scale(x, 0.5), .weight = w, .bias = FSDP_NO_BIAS};

    if (fsdp__gated_linear_joins(&m))
        return fsdp_add(x, fsdp__gated_linear_apply(&m));
    return fsdp_add(x, fsdp_linear(fsdp_swiglu(m.gate, m.up), w, FSDP_NO_BIAS));
}

static fsdp_tensor *alone(const tree_plan *plan, const tree_param *p, fsdp_tensor *x, fsdp_tensor *w, fsdp_tensor *ids)
{
    fsdp_tensor *y;

    switch (p->role) {
    case TREE_MATRIX:
        return fsdp_add(x, fsdp_gelu(fsdp_linear(x, w, FSDP_NO_BIAS)));
    case TREE_TALL:
        return fsdp_add(x, fsdp_matmul(fsdp_gelu(fsdp_linear(x, w, FSDP_NO_BIAS)), w));
    case TREE_TABLE:
        return fsdp_add(x, fsdp_embedding(w, ids));
    case TREE_SCALE:
        return fsdp_rmsnorm(x, w, 1.0f);
    case TREE_BIAS:
        return fsdp_add(x, w);
    case TREE_ELEMENT:
        y = fsdp_mul(fsdp_reshape(x, FSDP_SHAPE(fsdp_tensor_numel(x), 1)), w);
        return fsdp_reshape(y, FSDP_SHAPE(fsdp_tensor_size(x, 0), plan->width));
    case TREE_CUBE:
        return times_cube(p, x, sum_of_cube(w));
    case TREE_GATED:
        return gated(x, w);
    case TREE_HEAD:
        return add_loss(x, fsdp_linear_cross_entropy(x, w, ids));
    default:
        return x;
    }
}

/* ---- by a team ---- */

/* Each rank has some of the batch's rows, and the whole parameter. */
static fsdp_tensor *by_rows(const tree_plan *plan, const tree_param *p, fsdp_tensor *x, fsdp_tensor *w,
                            fsdp_tensor *ids, fsdp_process_group *team)
{
    int64_t rows = fsdp_tensor_size(x, 0), first;
    int64_t count = fsdp_shard_range(rows, fsdp_process_group_size(team), fsdp_process_group_rank(team), &first);

    x = fsdp_parallel_split(x, 0, team);
    ids = ids ? fsdp_contiguous(fsdp_slice(ids, 0, first, count)) : NULL;
    return fsdp_parallel_collect(x ? alone(plan, p, x, w, ids) : NULL, 0, rows, team);
}

/* W, or what it is of, has a part of its rows: outputs of a first product, or rows of a table. */
static fsdp_tensor *by_outputs(const tree_plan *plan, const tree_param *p, fsdp_tensor *x, fsdp_tensor *w,
                               fsdp_tensor *ids, fsdp_process_group *team)
{
    fsdp_tensor *y = NULL;
    int64_t first;

    (void)fsdp_shard_range(p->shape[0], fsdp_process_group_size(team), fsdp_process_group_rank(team), &first);
    switch (p->role) {
    case TREE_MATRIX:
        y = fsdp_gelu(fsdp_linear(fsdp_parallel_copy(x, team), w, FSDP_NO_BIAS));
        return fsdp_add(x, fsdp_parallel_collect(y, -1, plan->width, team));
    case TREE_TALL:
        y = fsdp_gelu(fsdp_linear(fsdp_parallel_copy(x, team), w, FSDP_NO_BIAS));
        return fsdp_add(x, fsdp_parallel_all_reduce(fsdp_matmul(y, w), team));
    case TREE_TABLE:
        y = fsdp__op_embedding_part(w, ids, first, p->shape[0]);
        return fsdp_add(x, fsdp_parallel_all_reduce(y, team));
    default: /* a bias */
        return fsdp_parallel_collect(fsdp_add(fsdp_parallel_split(x, -1, team), w), -1, plan->width, team);
    }
}

/* W has a part of its columns: inputs of a first product. */
static fsdp_tensor *by_inputs(const tree_plan *plan, const tree_param *p, fsdp_tensor *x, fsdp_tensor *w,
                              fsdp_tensor *ids, fsdp_process_group *team)
{
    fsdp_tensor *y;

    if (p->role == TREE_TABLE)
        return fsdp_add(x, fsdp_parallel_collect(fsdp_embedding(w, ids), -1, plan->width, team));
    y = fsdp_linear(fsdp_parallel_split(x, -1, team), w, FSDP_NO_BIAS);
    y = fsdp_gelu(fsdp_parallel_all_reduce(y, team));
    if (p->role == TREE_TALL)
        y = fsdp_parallel_collect(fsdp_matmul(fsdp_parallel_copy(y, team), w), -1, plan->width, team);
    return fsdp_add(x, y);
}

static fsdp_tensor *by_cube(const tree_plan *plan, const tree_param *p, fsdp_tensor *x, fsdp_tensor *w,
                            fsdp_process_group *team)
{
    fsdp_tensor *sum = sum_of_cube(w);

    if (p->way == 1 + 2)
        return fsdp_parallel_collect(times_cube(p, fsdp_parallel_split(x, -1, team), sum), -1, plan->width, team);
    return times_cube(p, x, fsdp_parallel_all_reduce(sum, team));
}

fsdp_tensor *tree_apply(const tree_plan *plan, int param, fsdp_tensor *x, fsdp_tensor *w, fsdp_tensor *ids,
                        fsdp_process_group *team)
{
    tree_param p = plan->params[tree_original(plan, param)];

    p.role = plan->params[param].role;
    if (!x || !w)
        return NULL;
    if (!team || p.way == TREE_ALIKE || p.role == TREE_UNUSED)
        return alone(plan, &p, x, w, ids);
    if (fsdp_tensor_size(x, 1) != plan->width) { /* which may fit some ranks' parts */
        FSDP_FAIL(FSDP_INVALID, "x has %lld columns", (long long)fsdp_tensor_size(x, 1));
        return NULL;
    }
    if (p.way == TREE_OWN_ROWS)
        return by_rows(plan, &p, x, w, ids, team);
    if (p.role == TREE_CUBE)
        return by_cube(plan, &p, x, w, team);
    return (p.way == 1 ? by_outputs : by_inputs)(plan, &p, x, w, ids, team);
}

/* ---- cutting ---- */

void tree_cut(const tree_plan *plan, fsdp_module *const *modules, fsdp_mesh *team)
{
    for (int i = 0; i < plan->param_count; i++) {
        const tree_param *p = &plan->params[i];
        bool rows = p->way == TREE_OWN_ROWS;
        fsdp_placement placement = {.kind = rows ? FSDP_REPLICATE : FSDP_SHARD, .dim = rows ? 0 : p->way - 1};
        char name[16];

        snprintf(name, sizeof name, "p%d", i);
        if (tree_is_original(plan, i) && p->way != TREE_ALIKE)
            CHECK_OK(fsdp_parallel_place(modules[p->node], name, team, placement, rows));
    }
}
