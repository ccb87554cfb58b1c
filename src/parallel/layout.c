/* layout.c - what a tensor is to the ranks of a plan, and the way from one layout to another. */
#include "autograd/autograd.h"
#include "fsdp/parallel.h"
#include "parallel/plan.h"

fsdp_layout fsdp__layout_or(fsdp_layout layout, fsdp_layout otherwise)
{
    return layout.kind == FSDP_LAYOUT_DEFAULT ? otherwise : layout;
}

bool fsdp__layout_equal(fsdp_layout a, fsdp_layout b)
{
    return a.kind == b.kind && (a.kind != FSDP_LAYOUT_SHARDED || a.dim == b.dim);
}

const char *fsdp__layout_text(fsdp_layout layout, char text[FSDP__LAYOUT_TEXT])
{
    static const char *const names[] = {"default", "replicated", "copied", "sharded", "partial"};

    if (layout.kind == FSDP_LAYOUT_SHARDED)
        snprintf(text, FSDP__LAYOUT_TEXT, "sharded(%d)", layout.dim);
    else
        snprintf(text, FSDP__LAYOUT_TEXT, "%s", names[layout.kind]);
    return text;
}

fsdp_status fsdp__layout_check(fsdp_layout from, fsdp_layout to)
{
    char a[FSDP__LAYOUT_TEXT], b[FSDP__LAYOUT_TEXT];
    const fsdp_layout both[] = {from, to};

    for (int i = 0; i < 2; i++)
        if (both[i].kind < FSDP_LAYOUT_DEFAULT || both[i].kind > FSDP_LAYOUT_PARTIAL)
            return FSDP_FAIL(FSDP_INVALID, "%d is no layout", (int)both[i].kind);
    if (fsdp__layout_equal(from, to))
        return FSDP_OK;
    if (to.kind == FSDP_LAYOUT_PARTIAL)
        return FSDP_FAIL(FSDP_INVALID, "nothing can be made partial, but it is to be, from %s",
                         fsdp__layout_text(from, a));
    if (from.kind == FSDP_LAYOUT_COPIED && to.kind == FSDP_LAYOUT_REPLICATED)
        return FSDP_FAIL(FSDP_INVALID,
                         "what is %s cannot be made %s: its gradients would be added up although each is whole; leave "
                         "it %s where it is prepared",
                         fsdp__layout_text(from, a), fsdp__layout_text(to, b), fsdp__layout_text(to, b));
    return FSDP_OK;
}

/* ---- how long a dimension is ---- */

static bool find_dim(const fsdp_tensor *x, int dim, int *out)
{
    *out = dim < 0 ? dim + x->ndim : dim;
    if (*out >= 0 && *out < x->ndim)
        return true;
    FSDP_FAIL(FSDP_INVALID, "a tensor of %d dimensions cannot be sharded in dimension %d", x->ndim, dim);
    return false;
}

fsdp_status fsdp__tp_part(fsdp__tp_plan *plan, const fsdp_tensor *x, int dim, fsdp__op_part *out)
{
    int64_t length = x->shape[dim], start;
    uint64_t whole = (uint64_t)plan->whole[dim];

    if (fsdp_shard_range((int64_t)whole, plan->ranks, plan->rank, &start) != length || whole == 0)
        whole = (uint64_t)(length * plan->ranks);
    /* Another call may have cut something else by the time that this one is computed again. */
    FSDP_TRY(fsdp__recomputation_number(plan->context, &whole));
    *out = (fsdp__op_part){.dim = dim, .whole = (int64_t)whole};
    (void)fsdp_shard_range((int64_t)whole, plan->ranks, plan->rank, &out->first);
    return FSDP_OK;
}

/* ---- conversions ---- */

static fsdp_tensor *to_sharded(fsdp__tp_plan *plan, fsdp_tensor *x, fsdp_layout_kind from, int dim)
{
    int64_t whole = x->shape[dim], start, length = fsdp_shard_range(whole, plan->ranks, plan->rank, &start);

    plan->whole[dim] = whole;
    if (from == FSDP_LAYOUT_PARTIAL)
        return fsdp_parallel_reduce_scatter(x, dim, plan->group);
    return from == FSDP_LAYOUT_COPIED ? fsdp_slice(x, dim, start, length) : fsdp_parallel_split(x, dim, plan->group);
}

static fsdp_tensor *from_sharded(fsdp__tp_plan *plan, fsdp_tensor *x, int dim, fsdp_layout to)
{
    fsdp__op_part part;
    int other;

    if (fsdp__tp_part(plan, x, dim, &part) != FSDP_OK)
        return NULL;
    if (to.kind == FSDP_LAYOUT_COPIED)
        return fsdp_parallel_all_gather(x, dim, part.whole, plan->group);
    if (to.kind == FSDP_LAYOUT_REPLICATED)
        return fsdp_parallel_collect(x, dim, part.whole, plan->group);
    if (!find_dim(x, to.dim, &other))
        return NULL;
    if (other == dim)
        return x;
    plan->whole[other] = x->shape[other];
    return fsdp_parallel_all_to_all(x, other, dim, part.whole, plan->group);
}

fsdp_tensor *fsdp__layout_convert(fsdp__tp_plan *plan, fsdp_tensor *x, fsdp_layout from, fsdp_layout to)
{
    int dim = 0;

    if (!x || fsdp__layout_equal(from, to))
        return x;
    if ((from.kind == FSDP_LAYOUT_SHARDED && !find_dim(x, from.dim, &dim)) ||
        (from.kind != FSDP_LAYOUT_SHARDED && to.kind == FSDP_LAYOUT_SHARDED && !find_dim(x, to.dim, &dim)))
        return NULL;
    if (from.kind == FSDP_LAYOUT_SHARDED)
        return from_sharded(plan, x, dim, to);
    if (to.kind == FSDP_LAYOUT_SHARDED)
        return to_sharded(plan, x, from.kind, dim);
    if (from.kind == FSDP_LAYOUT_PARTIAL)
        x = fsdp_parallel_all_reduce(x, plan->group);
    return to.kind == FSDP_LAYOUT_COPIED ? fsdp_parallel_copy(x, plan->group) : x;
}
