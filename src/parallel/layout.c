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
        else if (both[i].kind == FSDP_LAYOUT_SHARDED && (both[i].dim < -FSDP_MAX_DIMS || both[i].dim >= FSDP_MAX_DIMS))
            return FSDP_FAIL(FSDP_INVALID,
                             "%s is no dimension of any tensor: expected one of 0 to %d, or from the end -1 to %d",
                             fsdp__layout_text(both[i], a), FSDP_MAX_DIMS - 1, -FSDP_MAX_DIMS);
    if (fsdp__layout_equal(from, to))
        return FSDP_OK;
    if (to.kind == FSDP_LAYOUT_PARTIAL)
        return FSDP_FAIL(FSDP_INVALID, "a tensor that is %s cannot become partial: leave it as it is",
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

void fsdp__tp_note_cut(fsdp__tp_plan *plan, int dim, int64_t whole)
{
    plan->uneven[dim] = plan->uneven[dim] || whole % plan->ranks != 0;
}

/* Asks all ranks for the lengths of their parts, checks that the dimension is cut by the chunk rule, and adds the
 * lengths up. */
static fsdp_status find_whole_of_all(const fsdp__tp_plan *plan, int dim, int64_t length, uint64_t *whole)
{
    void **lengths = NULL;
    size_t *bytes = NULL;
    fsdp_status status;
    int64_t start;

    FSDP_TRY(fsdp_gather_objects(plan->group, &length, sizeof length, &lengths, &bytes));
    *whole = 0;
    for (int r = 0; r < plan->ranks; r++)
        *whole += (uint64_t) * (int64_t *)lengths[r];
    status = FSDP_OK;
    for (int r = 0; r < plan->ranks && status == FSDP_OK; r++) {
        int64_t wanted = fsdp_shard_range((int64_t)*whole, plan->ranks, r, &start), its = *(int64_t *)lengths[r];

        if (its != wanted)
            status = FSDP_FAIL(FSDP_INVALID,
                               "rank %d of the mesh has %lld of the %lld in dimension %d, which is cut over %d ranks: "
                               "expected %lld, by the chunk rule",
                               r, (long long)its, (long long)*whole, dim, plan->ranks, (long long)wanted);
    }
    fsdp_objects_free(plan->group, lengths, bytes);
    return status;
}

/* Finds the whole length of dimension `dim`, of which x has this rank's part. The plan notes which dimensions are cut
 * unevenly; only for these do ranks ask each other, so all of them ask or none does. The length of a part alone does
 * not tell the whole, since a module may have cut it again in a way of its own. */
static fsdp_status find_whole(const fsdp__tp_plan *plan, const fsdp_tensor *x, int dim, uint64_t *whole)
{
    if (plan->uneven[dim])
        return find_whole_of_all(plan, dim, x->shape[dim], whole);
    *whole = (uint64_t)(x->shape[dim] * plan->ranks);
    return FSDP_OK;
}

fsdp_status fsdp__tp_part(fsdp__tp_plan *plan, const fsdp_tensor *x, int dim, fsdp__op_part *out)
{
    uint64_t whole = 0;

    /* Another call may have cut something else by the time that this one is computed again. */
    if (!fsdp__is_recomputing(plan->context))
        FSDP_TRY(find_whole(plan, x, dim, &whole));
    FSDP_TRY(fsdp__recomputation_number(plan->context, &whole));
    *out = (fsdp__op_part){.dim = dim, .whole = (int64_t)whole};
    (void)fsdp_shard_range((int64_t)whole, plan->ranks, plan->rank, &out->first);
    return FSDP_OK;
}

/* ---- conversions ---- */

static fsdp_tensor *to_sharded(fsdp__tp_plan *plan, fsdp_tensor *x, fsdp_layout_kind from, int dim)
{
    int64_t whole = x->shape[dim], start, length = fsdp_shard_range(whole, plan->ranks, plan->rank, &start);

    fsdp__tp_note_cut(plan, dim, whole);
    if (from == FSDP_LAYOUT_PARTIAL)
        return fsdp_parallel_reduce_scatter(x, dim, plan->group);
    return from == FSDP_LAYOUT_COPIED ? fsdp_slice(x, dim, start, length) : fsdp_parallel_split(x, dim, plan->group);
}

static fsdp_tensor *from_sharded(fsdp__tp_plan *plan, fsdp_tensor *x, int dim, fsdp_layout to, int64_t whole)
{
    fsdp__op_part part = {.whole = whole};
    int other;

    if (whole == 0 && fsdp__tp_part(plan, x, dim, &part) != FSDP_OK)
        return NULL;
    if (to.kind == FSDP_LAYOUT_COPIED)
        return fsdp_parallel_all_gather(x, dim, part.whole, plan->group);
    if (to.kind == FSDP_LAYOUT_REPLICATED)
        return fsdp_parallel_collect(x, dim, part.whole, plan->group);
    if (!find_dim(x, to.dim, &other))
        return NULL;
    if (other == dim)
        return x;
    fsdp__tp_note_cut(plan, other, x->shape[other]);
    return fsdp_parallel_all_to_all(x, other, dim, part.whole, plan->group);
}

fsdp_tensor *fsdp__layout_convert_known(fsdp__tp_plan *plan, fsdp_tensor *x, fsdp_layout from, fsdp_layout to,
                                        int64_t whole)
{
    int dim = 0;

    if (!x || fsdp__layout_equal(from, to))
        return x;
    if ((from.kind == FSDP_LAYOUT_SHARDED && !find_dim(x, from.dim, &dim)) ||
        (from.kind != FSDP_LAYOUT_SHARDED && to.kind == FSDP_LAYOUT_SHARDED && !find_dim(x, to.dim, &dim)))
        return NULL;
    if (from.kind == FSDP_LAYOUT_SHARDED)
        return from_sharded(plan, x, dim, to, whole);
    if (to.kind == FSDP_LAYOUT_SHARDED)
        return to_sharded(plan, x, from.kind, dim);
    if (from.kind == FSDP_LAYOUT_PARTIAL)
        x = fsdp_parallel_all_reduce(x, plan->group);
    return to.kind == FSDP_LAYOUT_COPIED ? fsdp_parallel_copy(x, plan->group) : x;
}

fsdp_tensor *fsdp__layout_convert(fsdp__tp_plan *plan, fsdp_tensor *x, fsdp_layout from, fsdp_layout to)
{
    return fsdp__layout_convert_known(plan, x, from, to, 0);
}
