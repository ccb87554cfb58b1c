/* vocabulary_loss.c - cross-entropy of logits that are cut in the vocabulary.
 *
 * Of each row all ranks need the largest logit, the sum of exponentials and the target's logit: three all-reduces of a
 * number for each row. Gradients of logits stay where the logits are. */
#include <math.h>

#include "base/compiler.h"
#include "fsdp/parallel.h"
#include "models/models.h"
#include "ops/loss.h"
#include "parallel/plan.h"
#include "parallel/wire.h"

/* A chunk's rows, whose targets are told by masks (n,1). */
typedef struct rows {
    fsdp_tensor *logits;  /* (n,cols), f32, capped */
    fsdp_tensor *index;   /* (n,1) int32: the target's column; 0 where another rank has it */
    fsdp_tensor *here;    /* this rank has the target's column */
    fsdp_tensor *counted; /* the target is not FSDP_IGNORE_TARGET */
} rows;

static fsdp_tensor *number(fsdp_tensor *like, fsdp_dtype dtype, double value)
{
    return fsdp_full(fsdp_tensor_device(like), dtype, 0, NULL, value);
}

/* Finds the targets (...) among `cols` columns from `first` on, with a last dimension of 1. */
static fsdp_status find_targets(fsdp_tensor *targets, int64_t first, int64_t cols, int64_t whole, rows *r)
{
    fsdp_tensor *wanted = fsdp_unsqueeze(targets, -1), *index = fsdp__op_ids_from(wanted, first, whole), *zero;

    if (!index)
        return fsdp_last_status();
    zero = number(index, FSDP_I32, 0);
    r->counted = fsdp_ne(wanted, number(index, FSDP_I32, FSDP_IGNORE_TARGET));
    r->here = fsdp_logical_and(fsdp_ge(index, zero), fsdp_lt(index, number(index, FSDP_I32, (double)cols)));
    r->here = fsdp_logical_and(r->here, r->counted);
    r->index = fsdp_where(r->here, index, zero);
    return r->index ? FSDP_OK : fsdp_last_status();
}

/* Returns `x` where the mask holds, else 0. */
static fsdp_tensor *only(fsdp_tensor *mask, fsdp_tensor *x)
{
    return x ? fsdp_where(mask, x, number(x, FSDP_F32, 0)) : NULL;
}

/* Returns the largest logit of each row (n,1), over all ranks. */
static fsdp_tensor *largest(const rows *r, fsdp_process_group *group)
{
    fsdp_tensor *z = r->logits, *most;
    int64_t shape[FSDP_MAX_DIMS];
    int n = z->ndim - 1;

    for (int i = 0; i < z->ndim; i++)
        shape[i] = i == n ? 1 : z->shape[i];
    most = z->shape[n] > 0 ? fsdp_amax(z, 1, &n, true)
                           : fsdp_full(fsdp_tensor_device(z), FSDP_F32, z->ndim, shape, -INFINITY);
    return most ? fsdp__wire_all_reduce(most, FSDP_MAX, true, group) : NULL;
}

/* Returns the target's logit of each row (n,1) if this rank has it, else 0. */
static fsdp_tensor *target_logits(const rows *r)
{
    fsdp_tensor *z = r->logits;

    if (z->shape[z->ndim - 1] == 0)
        return only(r->here, fsdp_cast(r->index, FSDP_F32));
    return only(r->here, fsdp_gather(z, -1, r->index));
}

/* ---- in chunks, with gradients at once ---- */

/* Adds the loss of the rows, of which these are the largest logit and so on. */
static fsdp_status add_loss(const fsdp__loss_chunk *c, const rows *r, fsdp_tensor *most, fsdp_tensor *sum,
                            fsdp_tensor *target)
{
    fsdp_tensor *each = only(r->counted, fsdp_sub(fsdp_add(most, fsdp_ln(sum)), target));
    fsdp_tensor *loss = fsdp_scale(fsdp_sum(each), (double)c->scale);

    return loss ? fsdp__tensor_copy(c->loss, loss, !c->first) : fsdp_last_status();
}

/* Writes scale * (softmax - one hot), times the derivative of the soft cap, to the chunk's gradient. */
static fsdp_status write_gradient(const fsdp__loss_chunk *c, const rows *r, fsdp_tensor *exponentials, fsdp_tensor *sum)
{
    fsdp_tensor *factor = only(r->counted, fsdp_scale(fsdp_reciprocal(sum), (double)c->scale)), *one, *slope, *g;

    if (r->logits->shape[1] == 0)
        return FSDP_OK;
    if (!factor)
        return fsdp_last_status();
    one = only(r->here, fsdp_full(fsdp_tensor_device(sum), FSDP_F32, 2, sum->shape, -(double)c->scale));
    g = fsdp_scatter_add(fsdp_mul(exponentials, factor), 1, r->index, one);
    if (c->softcap > 0 && g) {
        slope = fsdp_square(fsdp_scale(r->logits, 1 / (double)c->softcap));
        g = fsdp_mul(g, fsdp_sub(number(g, FSDP_F32, 1), slope));
    }
    return g ? fsdp__tensor_copy((fsdp_tensor *)(uintptr_t)c->dlogits, g, false) : fsdp_last_status();
}

static fsdp_status compute_rows(const fsdp__applied *a, const fsdp__loss_chunk *c)
{
    fsdp_tensor *logits = (fsdp_tensor *)(uintptr_t)c->logits, *targets = (fsdp_tensor *)(uintptr_t)c->targets;
    fsdp_process_group *group = a->plan->group;
    fsdp_tensor *most, *exponentials, *sum, *target;
    rows r = {0};

    r.logits = fsdp__softcapped(fsdp_cast(logits, FSDP_F32), c->softcap);
    if (!r.logits)
        return fsdp_last_status();
    FSDP_TRY(find_targets(targets, a->first, logits->shape[1], a->whole, &r));
    most = largest(&r, group);
    exponentials = fsdp_exp(fsdp_sub(r.logits, most));
    sum = fsdp_sum_dim(exponentials, -1, true);
    sum = sum ? fsdp__wire_all_reduce(sum, FSDP_SUM, true, group) : NULL;
    target = target_logits(&r);
    target = target ? fsdp__wire_all_reduce(target, FSDP_SUM, true, group) : NULL;
    if (!sum || !target)
        return fsdp_last_status();
    FSDP_TRY(add_loss(c, &r, most, sum, target));
    return c->dlogits ? write_gradient(c, &r, exponentials, sum) : FSDP_OK;
}

/* Computes a chunk in a scope of its own, so that its numbers are gone before the next. */
static fsdp_status compute_chunk(const void *arg, const fsdp__loss_chunk *chunk)
{
    const fsdp__applied *a = arg;
    fsdp_context *context = a->plan->context;
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(context));
    fsdp_no_grad_begin(context);
    status = compute_rows(a, chunk);
    fsdp_no_grad_end(context);
    fsdp_scope_end(context, NULL);
    return status;
}

/* ---- of each target ---- */

/* Computes the loss of each target (B,T) with operations that record themselves: logits are held. */
static fsdp_tensor *loss_of_each(const fsdp__applied *a, fsdp_tensor *logits, fsdp_tensor *targets)
{
    fsdp_process_group *group = a->plan->group;
    fsdp_tensor *most, *sum, *target, *each;
    rows r = {.logits = fsdp_cast(logits, FSDP_F32)};
    int64_t valid;

    if (!r.logits || fsdp__op_check_indices("cross_entropy", "target", targets, a->whole, FSDP_IGNORE_TARGET, &valid) ||
        find_targets(targets, a->first, fsdp__op_last(logits), a->whole, &r) != FSDP_OK)
        return NULL;
    fsdp_no_grad_begin(a->plan->context);
    most = largest(&r, group);
    fsdp_no_grad_end(a->plan->context);
    sum = fsdp_parallel_all_reduce(fsdp_sum_dim(fsdp_exp(fsdp_sub(r.logits, most)), -1, true), group);
    target = fsdp_parallel_all_reduce(target_logits(&r), group);
    each = only(r.counted, fsdp_sub(fsdp_add(most, fsdp_ln(sum)), target));
    return each ? fsdp_squeeze(each, -1) : NULL;
}

fsdp_tensor *fsdp__vocabulary_loss(const fsdp__applied *applied, fsdp_tensor *x, fsdp_tensor *weight,
                                   fsdp_tensor *targets, const fsdp_cross_entropy_options *options)
{
    const fsdp__chunk_loss part = {.compute = compute_chunk,
                                   .arg = applied,
                                   .classes = applied->whole,
                                   .most = fsdp_shard_range(applied->whole, applied->plan->ranks, 0, &(int64_t){0})};

    if (options->reduction != FSDP_LOSS_NONE)
        return fsdp__linear_cross_entropy_part(x, weight, targets, options, &part);
    return loss_of_each(applied, fsdp__softcapped(fsdp_linear(x, weight, FSDP_NO_BIAS), options->softcap), targets);
}
