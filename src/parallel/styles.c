/* styles.c - products whose weights are cut, and what comes in and goes out of modules. */
#include "models/models.h"
#include "ops/op.h"
#include "parallel/plan.h"

static const fsdp_layout replicated = {.kind = FSDP_LAYOUT_REPLICATED}, copied = {.kind = FSDP_LAYOUT_COPIED};
static const fsdp_layout partial = {.kind = FSDP_LAYOUT_PARTIAL}, last = {.kind = FSDP_LAYOUT_SHARDED, .dim = -1};

static fsdp_status check_way(const fsdp__job *job, fsdp_layout from, fsdp_layout to)
{
    return fsdp__layout_check(from, to) == FSDP_OK ? FSDP_OK : fsdp_fail_prefix(fsdp_last_status(), "'%s'", job->name);
}

/* Returns how long dimension `dim` of a parameter is on all ranks together. */
static int64_t whole_size(const fsdp_tensor *parameter, int dim)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(parameter);

    return d ? d->global_shape[dim] : parameter->shape[dim];
}

static fsdp_status give(fsdp_tensor **slot, fsdp_tensor *x)
{
    *slot = x;
    return x ? FSDP_OK : fsdp_last_status();
}

/* ---- column-wise ---- */

static fsdp_placement cut(int dim)
{
    return (fsdp_placement){.kind = FSDP_SHARD, .dim = dim};
}

/* Returns the dimension of the weight that has the outputs. */
static int output_dim(const fsdp_module *module)
{
    fsdp__layer_form form = fsdp__layer_form_of(module);

    return form == FSDP__LAYER_CONV1D || form == FSDP__LAYER_EMBEDDING;
}

static fsdp_placement cut_segments(const fsdp_parallel_style *style, int dim)
{
    fsdp_placement p = cut(dim);

    p.segment_count = style->segment_count;
    for (int i = 0; i < style->segment_count && i < FSDP_MAX_SEGMENTS; i++)
        p.segments[i] = style->segments[i];
    return p;
}

/* Refuses another layout for the output of a layer whose weight is cut in segments: parts that are put together would
 * have the first part of each segment first. */
static fsdp_status refuse_segments(const fsdp__job *job, fsdp_layout to)
{
    if (job->style.segment_count == 0 || fsdp__layout_equal(to, last))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "'%s' has an output in segments, each of which is cut by itself, so it cannot become %s: leave it "
                     "sharded(-1), or give no segments",
                     job->name, FSDP__LAYOUT(to));
}

static fsdp_status check_column(fsdp__tp_planning *p, fsdp__job *job)
{
    fsdp__layer_form form = fsdp__layer_form_of(job->module);
    fsdp_parallel_style *style = &job->style;

    if (fsdp__head_loss(job->module)) {
        job->kind = &fsdp__model_head;
        return job->kind->check(p, job);
    }
    if (!fsdp__layer_is_product(job->module) && form != FSDP__LAYER_EMBEDDING)
        return fsdp__style_misfit(job, "Linear, Conv1D, Embedding and a model's head");
    if (style->loss_parallel)
        return FSDP_FAIL(FSDP_INVALID, "'%s' is a %s and not the head of a model, so there is no loss to be parallel",
                         job->name, job->module->type->name);
    style->from[0] = fsdp__layout_or(style->from[0], form == FSDP__LAYER_EMBEDDING ? copied : replicated);
    style->to[0] = fsdp__layout_or(style->to[0], last);
    job->takes = copied;
    job->gives = last;
    FSDP_TRY(check_way(job, style->from[0], job->takes));
    FSDP_TRY(check_way(job, job->gives, style->to[0]));
    FSDP_TRY(refuse_segments(job, style->to[0]));
    FSDP_TRY(fsdp__async_check(p, job, "input", style->from[0]));
    FSDP_TRY(fsdp__tp_claim(p, job, "weight", cut_segments(style, output_dim(job->module)), false));
    FSDP_TRY(fsdp__tp_claim(p, job, "bias", cut_segments(style, 0), false));
    return fsdp__tp_claim_outputs_beside(p, job, cut_segments(style, 0));
}

/* Leaves modules alone whose input is prepared and whose output stays cut, evenly: several of them may be one product.
 * Of parts that are uneven somebody must say how long they are together. */
static fsdp_status apply_column(const fsdp__job *job, fsdp__tp_plan *plan)
{
    int64_t whole = whole_size(((const fsdp_layer *)job->module)->weight, output_dim(job->module));
    bool enters = fsdp__job_enters(job), leaves = fsdp__job_leaves(job) || whole % plan->ranks != 0;

    if (job->style.async)
        return fsdp__apply_async_column(job, plan, whole, leaves);
    if (!enters && !leaves)
        return FSDP_OK;
    return fsdp__apply_hooks(job, plan, whole,
                             &(const fsdp__module_hooks){.pre_forward = enters ? fsdp__enter : NULL,
                                                         .post_forward = leaves ? fsdp__leave : NULL});
}

const fsdp__style_kind fsdp__column_wise = {"column-wise", check_column, apply_column};

/* ---- row-wise ---- */

static fsdp_status check_row(fsdp__tp_planning *p, fsdp__job *job)
{
    bool embedding = fsdp__layer_form_of(job->module) == FSDP__LAYER_EMBEDDING;
    fsdp_parallel_style *style = &job->style;

    if (!fsdp__layer_is_product(job->module) && !embedding)
        return fsdp__style_misfit(job, "Linear, Conv1D and Embedding");
    style->from[0] = fsdp__layout_or(style->from[0], embedding ? replicated : last);
    style->to[0] = fsdp__layout_or(style->to[0], replicated);
    job->takes = embedding ? replicated : last;
    job->gives = partial;
    FSDP_TRY(check_way(job, style->from[0], job->takes));
    FSDP_TRY(check_way(job, job->gives, style->to[0]));
    FSDP_TRY(fsdp__async_check(p, job, "output", style->to[0]));
    if (style->to[0].kind == FSDP_LAYOUT_PARTIAL && ((fsdp_layer *)job->module)->bias)
        return FSDP_FAIL(FSDP_INVALID,
                         "'%s' has a bias, which would be added on each rank: its output cannot stay partial",
                         job->name);
    FSDP_TRY(fsdp__tp_claim(p, job, "weight", cut(embedding ? 0 : 1 - output_dim(job->module)), false));
    FSDP_TRY(fsdp__tp_claim_inputs_beside(p, job));
    if (fsdp__layout_equal(style->to[0], last)) /* a rank has as many of the bias's numbers as of the features */
        return fsdp__tp_claim(p, job, "bias", cut(0), false);
    if (style->to[0].kind == FSDP_LAYOUT_SHARDED || style->to[0].kind == FSDP_LAYOUT_COPIED)
        return fsdp__tp_claim(p, job, "bias", (fsdp_placement){.kind = FSDP_REPLICATE}, true);
    return FSDP_OK;
}

/* Checks that the bias fits what is given: it is cut where the features are known to be, counted from the end. */
static fsdp_status check_bias(const fsdp__applied *a, const fsdp_tensor *bias, const fsdp_tensor *y)
{
    fsdp_layout to = a->style.to[0];

    if (!bias || !y || to.kind != FSDP_LAYOUT_SHARDED || to.dim < 0 || to.dim != y->ndim - 1)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "an output of %d dimensions, sharded in dimension %d, has parts of the features, and the bias is "
                     "whole: say sharded(-1), and it is cut as well",
                     y->ndim, to.dim);
}

/* Adds the products up, with what is beside them, and then the bias, so that it is added once. */
static fsdp_status run_row(void *arg, fsdp_module *module, void *call_arg, fsdp_tensor *const *inputs, int count,
                           fsdp_tensor **outputs, int output_count)
{
    const fsdp__applied *a = arg;
    fsdp_tensor *bias = ((const fsdp_layer *)module)->bias;
    fsdp_tensor *y = fsdp__layer_product(module, inputs[0]);

    (void)call_arg, (void)count, (void)output_count;
    y = fsdp__layer_add_beside(module, inputs[0], y);
    FSDP_TRY(check_bias(a, bias, y));
    y = fsdp__layout_convert(a->plan, y, a->gives, a->style.to[0]);
    outputs[0] = bias && y ? fsdp_add(y, fsdp_cast(bias, y->dtype)) : y;
    return FSDP_OK;
}

static fsdp_status run_rows(void *arg, fsdp_module *module, void *call_arg, fsdp_tensor *const *inputs, int count,
                            fsdp_tensor **outputs, int output_count)
{
    const fsdp__applied *a = arg;
    fsdp_tensor *table = ((const fsdp_layer *)module)->weight;

    (void)call_arg, (void)count, (void)output_count;
    outputs[0] = fsdp__layout_convert(a->plan, fsdp__op_embedding_part(table, inputs[0], a->first, a->whole), a->gives,
                                      a->style.to[0]);
    return FSDP_OK;
}

static fsdp_status apply_row(const fsdp__job *job, fsdp__tp_plan *plan)
{
    const fsdp_tensor *weight = ((const fsdp_layer *)job->module)->weight;
    bool embedding = fsdp__layer_form_of(job->module) == FSDP__LAYER_EMBEDDING;
    bool enters = !embedding && fsdp__job_enters(job);
    int64_t whole = whole_size(weight, embedding ? 0 : 1 - output_dim(job->module));

    if (job->style.async)
        FSDP_TRY(fsdp__apply_async_row(job, plan, whole));
    else
        FSDP_TRY(fsdp__apply_hooks(job, plan, whole,
                                   &(const fsdp__module_hooks){.pre_forward = enters ? fsdp__enter : NULL,
                                                               .forward = embedding ? run_rows : run_row}));
    return fsdp__tp_apply_inputs_beside(job, plan, whole);
}

const fsdp__style_kind fsdp__row_wise = {"row-wise", check_row, apply_row};

/* ---- what comes in, and goes out ---- */

/* Checks that the output in segments of a column-wise layer is not put together by another entry. */
static fsdp_status check_segments_behind(const fsdp__tp_planning *p, const fsdp__job *job)
{
    for (int64_t i = 0; i < p->job_count; i++)
        if (job->kind == &fsdp__prepare_output && p->jobs[i].module == job->module &&
            job->style.to[0].kind != FSDP_LAYOUT_DEFAULT)
            FSDP_TRY(refuse_segments(&p->jobs[i], job->style.to[0]));
    return FSDP_OK;
}

static fsdp_status check_prepared(fsdp__tp_planning *p, fsdp__job *job)
{
    fsdp_parallel_style *style = &job->style;
    bool any = false;

    if (!fsdp__module_has_forward(job->module))
        return fsdp__style_misfit(job, "modules that are called");
    for (int i = 0; i < FSDP_PARALLEL_TENSORS; i++) {
        any = any || style->to[i].kind != FSDP_LAYOUT_DEFAULT;
        if (style->to[i].kind == FSDP_LAYOUT_DEFAULT)
            continue;
        style->from[i] = fsdp__layout_or(style->from[i], replicated);
        FSDP_TRY(check_way(job, style->from[i], style->to[i]));
    }
    FSDP_TRY(check_segments_behind(p, job));
    return any ? FSDP_OK
               : FSDP_FAIL(FSDP_INVALID, "'%s': the style does not say what to prepare: give to[0]", job->name);
}

static fsdp_status prepare(const fsdp__applied *a, fsdp_tensor **tensors, int count)
{
    for (int i = 0; i < count && i < FSDP_PARALLEL_TENSORS; i++)
        if (tensors[i] && a->style.to[i].kind != FSDP_LAYOUT_DEFAULT)
            FSDP_TRY(give(&tensors[i], fsdp__layout_convert(a->plan, tensors[i], a->style.from[i], a->style.to[i])));
    return FSDP_OK;
}

static fsdp_status prepare_inputs(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    (void)module;
    return prepare(arg, inputs, count);
}

static fsdp_status prepare_outputs(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                                   fsdp_tensor **outputs, int output_count)
{
    (void)module, (void)inputs, (void)count;
    return prepare(arg, outputs, output_count);
}

static fsdp_status apply_inputs(const fsdp__job *job, fsdp__tp_plan *plan)
{
    return fsdp__apply_hooks(job, plan, 0, &(const fsdp__module_hooks){.pre_forward = prepare_inputs});
}

static fsdp_status apply_outputs(const fsdp__job *job, fsdp__tp_plan *plan)
{
    return fsdp__apply_hooks(job, plan, 0, &(const fsdp__module_hooks){.post_forward = prepare_outputs});
}

const fsdp__style_kind fsdp__prepare_input = {"prepare input", check_prepared, apply_inputs};
const fsdp__style_kind fsdp__prepare_output = {"prepare output", check_prepared, apply_outputs};

/* ---- what is added to a sum ---- */

static fsdp_status check_added(fsdp__tp_planning *p, fsdp__job *job)
{
    (void)p;
    if (!fsdp__module_has_forward(job->module))
        return fsdp__style_misfit(job, "modules that are called");
    return check_way(job, partial, job->style.to[0]);
}

static const fsdp__op share_op = {.name = "share_of_sum", .backward = fsdp__node_pass_on};

/* Adds up the ranks' sums. What the module adds to its sum is added on the first rank alone; the other ranks' sums go
 * in as they are. Each rank gets the gradient of the whole sum, and so does what was added, on each rank. */
static fsdp_status leave_added(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                               fsdp_tensor **outputs, int output_count)
{
    const fsdp__applied *a = arg;
    fsdp_tensor *share = outputs[0];

    (void)module, (void)count, (void)output_count;
    if (a->plan->rank > 0) {
        if (!(share = fsdp_detach(inputs[0])))
            return fsdp_last_status();
        FSDP_TRY(fsdp__record(&share_op, outputs, 1, &share, 1, NULL, 0, NULL, 0));
    }
    return give(&outputs[0], fsdp__layout_convert(a->plan, share, partial, a->style.to[0]));
}

static fsdp_status apply_added(const fsdp__job *job, fsdp__tp_plan *plan)
{
    return fsdp__apply_hooks(job, plan, 0, &(const fsdp__module_hooks){.post_forward = leave_added});
}

const fsdp__style_kind fsdp__added_to_sum = {"added to a sum", check_added, apply_added};

/* ---- the caller's own ---- */

static fsdp_status check_custom(fsdp__tp_planning *p, fsdp__job *job)
{
    (void)p;
    return job->style.apply ? FSDP_OK : FSDP_FAIL(FSDP_INVALID, "'%s': a custom style needs `apply`", job->name);
}

static fsdp_status apply_custom(const fsdp__job *job, fsdp__tp_plan *plan)
{
    return job->style.apply(job->style.arg, job->module, job->name, plan->mesh);
}

const fsdp__style_kind fsdp__custom_style = {"custom", check_custom, apply_custom};
