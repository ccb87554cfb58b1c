/* vocabulary_loss.c - cross-entropy of logits that are cut in the vocabulary.
 *
 * Of each row all ranks need the largest logit, the sum of exponentials and the target's logit: three all-reduces of a
 * number for each row. Gradients of logits stay where the logits are. */
#include <math.h>
#include <string.h>

#include "fsdp/parallel.h"
#include "models/models.h"
#include "ops/loss.h"
#include "parallel/plan.h"
#include "parallel/wire.h"

/* Rows whose targets are told by masks (...,1). */
typedef struct rows {
    fsdp_tensor *logits;  /* (...,cols), f32, capped */
    fsdp_tensor *index;   /* (...,1) int32: the target's column; 0 where another rank has it */
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

    FSDP__TRY_MADE(index);
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

/* Returns the largest of the logits of each row, capped, over all ranks. */
static fsdp_tensor *largest(fsdp_tensor *logits, float softcap, bool keep_dim, fsdp_process_group *group)
{
    int64_t shape[FSDP_MAX_DIMS];
    int n = logits->ndim - 1;
    fsdp_tensor *most;

    memcpy(shape, logits->shape, sizeof shape);
    shape[n] = 1;
    most = logits->shape[n] > 0
               ? fsdp_amax(logits, 1, &n, keep_dim)
               : fsdp_full(fsdp_tensor_device(logits), FSDP_F32, keep_dim ? n + 1 : n, shape, -INFINITY);
    most = fsdp__softcapped(fsdp_cast(most, FSDP_F32), softcap);
    return most ? fsdp__wire_all_reduce(most, FSDP_MAX, true, group) : NULL;
}

/* Returns the target's logit of each row (...,1) if this rank has it, else 0. */
static fsdp_tensor *target_logits(const rows *r)
{
    fsdp_tensor *z = r->logits;

    if (z->shape[z->ndim - 1] == 0)
        return only(r->here, fsdp_cast(r->index, FSDP_F32));
    return only(r->here, fsdp_gather(z, -1, r->index));
}

/* ---- in chunks, with gradients at once ---- */

/* Holds what is known of the rows of a chunk (n), of all ranks' columns. */
typedef struct known {
    fsdp_tensor *most, *sum, *target; /* the largest logit, the sum of e^(logit - most), the target's logit */
} known;

/* Lets the kernel of the loss do its part: of `sum` and `target`, or of the gradient. */
static fsdp_status launch(const fsdp__applied *a, const fsdp__loss_chunk *c, const known *k, const fsdp_tensor *dlogits)
{
    const fsdp__cross_entropy_args args = {.logits = fsdp_tensor_data(c->logits),
                                           .targets = fsdp_tensor_data(c->targets),
                                           .dlogits = dlogits ? fsdp_tensor_data(dlogits) : NULL,
                                           .rows = c->logits->shape[0],
                                           .cols = c->logits->shape[1],
                                           .loss_scale = c->scale,
                                           .ignore_index = FSDP_IGNORE_TARGET,
                                           .dtype = c->logits->dtype,
                                           .dlogits_dtype = dlogits ? dlogits->dtype : FSDP_F32,
                                           .softcap = c->softcap,
                                           .largest = fsdp_tensor_data(k->most),
                                           .sums = fsdp_tensor_data(k->sum),
                                           .at_targets = dlogits ? NULL : fsdp_tensor_data(k->target),
                                           .first_col = a->first};

    return args.rows * args.cols > 0 ? fsdp__launch_cross_entropy(fsdp__op_stream(c->logits), &args) : FSDP_OK;
}

/* Adds the loss of the rows. */
static fsdp_status add_loss(const fsdp__loss_chunk *c, const known *k)
{
    fsdp_tensor *targets = (fsdp_tensor *)(uintptr_t)c->targets;
    fsdp_tensor *counted = fsdp_ne(targets, number(targets, FSDP_I32, FSDP_IGNORE_TARGET));
    fsdp_tensor *each = only(counted, fsdp_sub(fsdp_add(k->most, fsdp_ln(k->sum)), k->target));
    fsdp_tensor *loss = fsdp_scale(fsdp_sum(each), (double)c->scale);

    return loss ? fsdp__tensor_copy(c->loss, loss, !c->first) : fsdp_last_status();
}

static fsdp_status compute_rows(const fsdp__applied *a, const fsdp__loss_chunk *c)
{
    fsdp_device *device = c->logits->storage->device;
    fsdp_process_group *group = a->plan->group;
    known k = {.most = largest((fsdp_tensor *)(uintptr_t)c->logits, c->softcap, false, group)};

    k.sum = fsdp_zeros(device, FSDP_F32, 1, c->logits->shape);
    k.target = fsdp_zeros(device, FSDP_F32, 1, c->logits->shape);
    FSDP__TRY_MADE(k.most && k.sum && k.target);
    FSDP_TRY(launch(a, c, &k, NULL));
    k.sum = fsdp__wire_all_reduce(k.sum, FSDP_SUM, true, group);
    FSDP__TRY_MADE(k.target = k.sum ? fsdp__wire_all_reduce(k.target, FSDP_SUM, true, group) : NULL);
    FSDP_TRY(add_loss(c, &k));
    return c->dlogits ? launch(a, c, &k, c->dlogits) : FSDP_OK;
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
    most = largest(r.logits, 0, true, group);
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
                                   .most = fsdp__wire_chunk(applied->whole, applied->plan->ranks)};

    if (options->reduction != FSDP_LOSS_NONE)
        return fsdp__linear_cross_entropy_part(x, weight, targets, options, &part);
    return loss_of_each(applied, fsdp__softcapped(fsdp_linear(x, weight, FSDP_NO_BIAS), options->softcap), targets);
}
