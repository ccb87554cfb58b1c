/* sequence.c - norms and dropouts that work on parts: of a sequence, or of the heads. */
#include "fsdp/parallel.h"
#include "parallel/plan.h"

static bool is_norm(const fsdp_module *module)
{
    fsdp__layer_form form = fsdp__layer_form_of(module);

    return form == FSDP__LAYER_LAYERNORM || form == FSDP__LAYER_RMSNORM;
}

static fsdp_status claim_whole(fsdp__tp_planning *p, const fsdp__job *job)
{
    const fsdp_placement whole = {.kind = FSDP_REPLICATE};

    FSDP_TRY(fsdp__tp_claim(p, job, "weight", whole, true));
    return fsdp__tp_claim(p, job, "bias", whole, true);
}

/* ---- parts of a sequence ---- */

static fsdp_layout sequence_of(const fsdp_parallel_style *style)
{
    return (fsdp_layout){.kind = FSDP_LAYOUT_SHARDED, .dim = style->dim};
}

static fsdp_status check_sequence(fsdp__tp_planning *p, fsdp__job *job)
{
    fsdp_parallel_style *style = &job->style;

    if (!is_norm(job->module) && fsdp__layer_form_of(job->module) != FSDP__LAYER_DROPOUT)
        return fsdp__style_misfit(job, "LayerNorm, RMSNorm and Dropout");
    style->dim = style->dim ? style->dim : 1;
    style->from[0] = fsdp__layout_or(style->from[0], sequence_of(style));
    style->to[0] = fsdp__layout_or(style->to[0], sequence_of(style));
    job->takes = job->gives = sequence_of(style);
    if (style->dim == -1 && is_norm(job->module))
        return FSDP_FAIL(FSDP_INVALID, "'%s' is a %s, which needs all features of a token: dim must not be the last",
                         job->name, job->module->type->name);
    if (fsdp__layout_check(style->from[0], job->takes) != FSDP_OK ||
        fsdp__layout_check(job->gives, style->to[0]) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "'%s'", job->name);
    return is_norm(job->module) ? claim_whole(p, job) : FSDP_OK;
}

static fsdp_status drop(void *arg, fsdp_module *module, void *call_arg, fsdp_tensor *const *inputs, int count,
                        fsdp_tensor **outputs, int output_count)
{
    const fsdp__applied *a = arg;
    int dim = a->style.dim < 0 ? a->style.dim + inputs[0]->ndim : a->style.dim;
    fsdp__op_part part;

    (void)call_arg, (void)count, (void)output_count;
    if (dim < 0 || dim >= inputs[0]->ndim)
        return FSDP_FAIL(FSDP_INVALID, "an input of %d dimensions has no sequence in dimension %d", inputs[0]->ndim,
                         a->style.dim);
    FSDP_TRY(fsdp__tp_part(a->plan, inputs[0], dim, &part));
    outputs[0] = fsdp__dropout_part(module, inputs[0], part);
    return FSDP_OK;
}

/* Checks that the input of a norm is a part of a sequence, as far as one rank can tell. A sum over the ranks is whole:
 * then each rank would have the whole gradient of the weight, and adding these up would make a multiple of it. */
static fsdp_status check_input(const fsdp__applied *a, const fsdp_tensor *x)
{
    int dim = a->style.dim < 0 ? a->style.dim + x->ndim : a->style.dim;
    char text[FSDP__SHAPE_TEXT];

    fsdp__shape_text(x->ndim, x->shape, text);
    if (dim < 0 || dim >= x->ndim - 1)
        return FSDP_FAIL(FSDP_INVALID, "an input %s %s in dimension %d: dim must name that of the sequence", text,
                         dim == x->ndim - 1 ? "has its features" : "has nothing", a->style.dim);
    if (a->plan->ranks == 1 || a->style.from[0].kind == FSDP_LAYOUT_REPLICATED ||
        !fsdp__is_replicated(x, a->plan->group))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "an input %s is whole, because the ranks have put it together, but must be %s: let the module "
                     "that makes it give that, or set from[0] to replicated",
                     text, FSDP__LAYOUT(a->style.from[0]));
}

static fsdp_status enter_norm(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    const fsdp__applied *a = arg;

    if (!inputs[0]->global) /* rules of operations see that it is cut */
        FSDP_TRY(check_input(a, inputs[0]));
    return fsdp__layout_equal(a->style.from[0], a->takes) ? FSDP_OK : fsdp__enter(arg, module, inputs, count);
}

static fsdp_status apply_with(const fsdp__job *job, fsdp__tp_plan *plan,
                              fsdp_status (*enter)(void *, fsdp_module *, fsdp_tensor **, int))
{
    bool leaves = fsdp__job_leaves(job), drops = !is_norm(job->module);

    if (!enter && !leaves && !drops)
        return FSDP_OK;
    return fsdp__apply_hooks(job, plan, 0,
                             &(const fsdp__module_hooks){.pre_forward = enter,
                                                         .forward = drops ? drop : NULL,
                                                         .post_forward = leaves ? fsdp__leave : NULL});
}

static fsdp_status apply_sequence(const fsdp__job *job, fsdp__tp_plan *plan)
{
    return apply_with(job, plan, is_norm(job->module) ? enter_norm : fsdp__job_enters(job) ? fsdp__enter : NULL);
}

/* Leaves norms alone that are given parts: they may be computed in one operation with a sum. */
static fsdp_status apply_known(const fsdp__job *job, fsdp__tp_plan *plan)
{
    return apply_with(job, plan, fsdp__job_enters(job) ? fsdp__enter : NULL);
}

const fsdp__style_kind fsdp__sequence_parallel = {"sequence parallel", check_sequence, apply_sequence};
const fsdp__style_kind fsdp__known_sequence = {"sequence parallel", check_sequence, apply_known};

/* ---- parts of the heads ---- */

static fsdp_status check_head_norm(fsdp__tp_planning *p, fsdp__job *job)
{
    return is_norm(job->module) ? claim_whole(p, job) : fsdp__style_misfit(job, "norms");
}

const fsdp__style_kind fsdp__head_norm = {"a norm of each head", check_head_norm, NULL};

static fsdp_status check_heads_norm(fsdp__tp_planning *p, fsdp__job *job)
{
    return fsdp__layer_form_of(job->module) == FSDP__LAYER_RMSNORM
               ? fsdp__tp_claim(p, job, "weight", (fsdp_placement){.kind = FSDP_SHARD}, false)
               : fsdp__style_misfit(job, "RMSNorm");
}

/* Normalises x (B,T,C), of which each rank has some features, by the mean square of all of them. */
static fsdp_status norm_heads(void *arg, fsdp_module *module, void *call_arg, fsdp_tensor *const *inputs, int count,
                              fsdp_tensor **outputs, int output_count)
{
    const fsdp__applied *a = arg;
    const fsdp_layer *norm = (const fsdp_layer *)module;
    fsdp_tensor *x = fsdp_cast(inputs[0], FSDP_F32), *squares = fsdp_sum_dim(fsdp_square(x), -1, true), *mean, *y;

    (void)call_arg, (void)count, (void)output_count;
    /* All ranks have the sum, and each computes its own features by it. */
    squares = fsdp_parallel_copy(fsdp_parallel_all_reduce(squares, a->plan->group), a->plan->group);
    mean = fsdp_scale(squares, 1.0 / (double)a->whole);
    y = fsdp_mul(fsdp_mul(x, fsdp_rsqrt(fsdp_add_scalar(mean, (double)norm->eps))), fsdp_cast(norm->weight, FSDP_F32));
    outputs[0] = fsdp_cast(y, fsdp_tensor_dtype(inputs[0]));
    return FSDP_OK;
}

static fsdp_status apply_heads_norm(const fsdp__job *job, fsdp__tp_plan *plan)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(((const fsdp_layer *)job->module)->weight);

    return fsdp__apply_hooks(job, plan, d->global_shape[0], &(const fsdp__module_hooks){.forward = norm_heads});
}

const fsdp__style_kind fsdp__heads_norm = {"a norm of all heads", check_heads_norm, apply_heads_norm};
