/* clip.c - computes the norm of all gradients, and the factor by which the next step scales them.
 *
 * Gradients are put in sets that lie on one device and are spread over the same dimensions of the same mesh. A set's
 * powers are summed on this rank, and then over each of those dimensions by one all-reduce, as in PyTorch. But the bits
 * of the sum do not depend on who adds what (base/digit_sum.h), so the norm is the same number however the gradients
 * are sharded. For the infinite norm the largest is taken instead. A set that is not split counts once and is not
 * communicated. The sets follow from the parameters alone, not from who has a gradient, so all ranks make the same
 * calls. */
#include <math.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "device/device.h"
#include "fsdp/dist.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

/* For the infinite norm `largest` counts, otherwise `sum`. */
typedef struct norm_result {
    fsdp__digit_sum sum;
    double largest;
} norm_result;

/* Everything one norm needs; the arrays have room for every parameter. */
typedef struct norm_job {
    const fsdp_optimizer *optimizer;
    double p; /* above 0; may be infinite */
    fsdp__spread *sets;
    int64_t set_count;
    fsdp__span *spans;
    norm_result *work; /* on the device of the set at hand: the result of a kernel or collective */
} norm_job;

static fsdp_status set_of(const fsdp__optimizer_param *param, fsdp__spread *out)
{
    return fsdp__spread_of(param->name, param->tensor, "take the norm of", out);
}

/* Finds the sets, in the order in which the parameters show them; it is the same on all ranks. */
static fsdp_status find_sets(norm_job *n)
{
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(n->optimizer, &w);) {
        fsdp__spread set;
        int64_t known = 0;

        FSDP_TRY(set_of(w.param, &set));
        while (known < n->set_count && !fsdp__spread_equal(&n->sets[known], &set))
            known++;
        if (known == n->set_count)
            n->sets[n->set_count++] = set;
    }
    return FSDP_OK;
}

/* Adds a result to another. A NaN stays. */
static void add_result(norm_result *to, const norm_result *from)
{
    fsdp__digit_sum_add(&to->sum, &from->sum);
    if (isnan(from->largest) || from->largest > to->largest)
        to->largest = from->largest;
}

/* Reads the result from the device; it is there on return. */
static fsdp_status read_result(const norm_job *n, fsdp_stream *stream, norm_result *out)
{
    FSDP_TRY(fsdp__copy_to_host(stream, isinf(n->p) ? (void *)&out->largest : &out->sum,
                                isinf(n->p) ? (const void *)&n->work->largest : &n->work->sum,
                                isinf(n->p) ? sizeof out->largest : sizeof out->sum));
    return fsdp_stream_synchronize(stream);
}

static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16}; /* a kernel takes gradients of one */

/* Makes spans of this rank's gradients of one set and dtype. */
static fsdp_status find_spans(const norm_job *n, const fsdp__spread *set, fsdp_dtype dtype, int64_t *count)
{
    *count = 0;
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(n->optimizer, &w);) {
        fsdp__spread its;
        fsdp_tensor *grad;

        FSDP_TRY(fsdp__optimizer_grad(w.param, &grad));
        FSDP_TRY(set_of(w.param, &its));
        if (grad && grad->dtype == dtype && fsdp_tensor_numel(grad) > 0 && fsdp__spread_equal(&its, set))
            n->spans[(*count)++] = (fsdp__span){.src = fsdp_tensor_data(grad), .numel = fsdp_tensor_numel(grad)};
    }
    return FSDP_OK;
}

/* Adds the powers of this rank's gradients of one set and dtype. */
static fsdp_status add_powers(const norm_job *n, const fsdp__spread *set, fsdp_dtype dtype, norm_result *result)
{
    fsdp__power_sum_args args = {
        .spans = n->spans, .dtype = dtype, .p = n->p, .sum = &n->work->sum, .largest = &n->work->largest};
    fsdp_stream *stream = fsdp_device_stream(set->device);
    norm_result own = {.largest = 0};

    FSDP_TRY(find_spans(n, set, dtype, &args.count));
    if (args.count == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__launch_power_sum(stream, &args));
    FSDP_TRY(read_result(n, stream, &own));
    add_result(result, &own);
    return FSDP_OK;
}

/* Reduces over the ranks of one dimension. The largest is an f32 number, so nothing is lost. */
static fsdp_status reduce_over(const norm_job *n, fsdp_process_group *group, fsdp_stream *stream, norm_result *result)
{
    float largest = (float)result->largest;
    void *host = isinf(n->p) ? (void *)&largest : &result->sum, *work = n->work;
    size_t bytes = isinf(n->p) ? sizeof largest : sizeof result->sum;
    fsdp_status status;

    FSDP_TRY(fsdp__copy_to_device(stream, work, host, bytes));
    status = isinf(n->p) ? fsdp_all_reduce(group, work, work, 1, FSDP_F32, FSDP_MAX, stream)
                         : fsdp_all_reduce(group, work, work, FSDP__DIGIT_SUM_WORDS, FSDP_I64, FSDP_SUM, stream);
    if (status == FSDP_OK)
        status = fsdp__copy_to_host(stream, host, work, bytes);
    /* Even after a failure: queued work reads and writes variables of the host. */
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(stream));
    FSDP_TRY(status);
    result->largest = largest;
    return FSDP_OK;
}

/* Reduces over the ranks that hold the other parts. */
static fsdp_status reduce_result(const norm_job *n, const fsdp__spread *set, norm_result *result)
{
    for (int i = 0; set->mesh && i < fsdp_mesh_ndim(set->mesh); i++)
        if (set->sharded >> i & 1 && fsdp_mesh_size(set->mesh, i) > 1)
            FSDP_TRY(reduce_over(n, fsdp_mesh_process_group(set->mesh, i), fsdp_device_stream(set->device), result));
    return FSDP_OK;
}

/* Adds the result of a set over all ranks. */
static fsdp_status add_set(norm_job *n, const fsdp__spread *set, norm_result *total)
{
    norm_result result = {.largest = 0};
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace work = {0};

    FSDP_TRY(fsdp__workspace_take(set->device, sizeof *n->work, &work));
    n->work = work.data;
    for (size_t d = 0; d < FSDP__COUNT_OF(dtypes); d++)
        FSDP_TRY(add_powers(n, set, dtypes[d], &result));
    FSDP_TRY(reduce_result(n, set, &result));
    add_result(total, &result);
    return FSDP_OK;
}

static double norm_of(const norm_result *total, double p)
{
    double sum = fsdp__digit_sum_value(&total->sum);

    return p == 2 ? sqrt(sum) : isinf(p) ? total->largest : pow(sum, 1 / p);
}

/* Makes the sets, and room for spans; release() gives both back. */
static fsdp_status prepare(norm_job *n)
{
    int64_t count = fsdp__optimizer_count(n->optimizer);

    n->sets = fsdp__malloc((size_t)count * sizeof *n->sets + 1);
    n->spans = fsdp__malloc((size_t)count * sizeof *n->spans + 1);
    FSDP__TRY_NEW(n->sets && n->spans);
    return find_sets(n);
}

static void release(norm_job *n)
{
    fsdp__free(n->spans);
    fsdp__free(n->sets);
}

static fsdp_status grad_norm(const fsdp_optimizer *optimizer, double p, double *out)
{
    FSDP__SCOPED(release) norm_job n = {.optimizer = optimizer, .p = p};
    norm_result total = {.largest = 0};

    FSDP_TRY(prepare(&n));
    for (int64_t s = 0; s < n.set_count; s++)
        FSDP_TRY(add_set(&n, &n.sets[s], &total));
    *out = norm_of(&total, p);
    return FSDP_OK;
}

bool fsdp__optimizer_is_on(const fsdp_optimizer *optimizer, const fsdp_device *device)
{
    bool is_on = true;

    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);)
        is_on = is_on && fsdp_tensor_device(w.param->tensor) == device;
    return is_on;
}

/* Adds the squares of all gradients to `sum`, on the device; without any it becomes empty. */
static fsdp_status add_squares(norm_job *n, fsdp_stream *stream, fsdp__digit_sum *sum)
{
    fsdp__power_sum_args args = {.spans = n->spans, .dtype = FSDP_F32, .p = n->p, .sum = sum};

    FSDP_TRY(prepare(n));
    for (int64_t s = 0; s < n->set_count; s++)
        for (size_t d = 0; d < FSDP__COUNT_OF(dtypes); d++) {
            args.spans = n->spans;
            args.dtype = dtypes[d];
            FSDP_TRY(find_spans(n, &n->sets[s], args.dtype, &args.count));
            if (args.count == 0)
                continue;
            FSDP_TRY(fsdp__launch_power_sum(stream, &args));
            args.accumulate = true;
        }
    return args.accumulate ? FSDP_OK : fsdp__launch_power_sum(stream, &args);
}

fsdp_status fsdp__optimizer_judge(const fsdp_optimizer *optimizer, fsdp_device *device, fsdp__judge_step_args how)
{
    FSDP__SCOPED(release) norm_job n = {.optimizer = optimizer, .p = 2};
    fsdp_stream *stream = fsdp_device_stream(device);
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace sum = {0};

    FSDP_TRY(fsdp__workspace_take(device, sizeof(fsdp__digit_sum), &sum));
    FSDP_TRY(add_squares(&n, stream, sum.data));
    how.sum = sum.data;
    return fsdp__launch_judge_step(stream, &how);
}

/* Returns the factor as torch.nn.utils.clip_grad_norm_ does in f32: NaN stays NaN, an infinite norm gives 0. */
static float clip_factor(double max_norm, double norm)
{
    float factor = 1.0f / ((float)norm + 1e-6f) * (float)max_norm;

    return factor > 1 ? 1 : factor;
}

fsdp_status fsdp_clip_grad_norm_type(fsdp_optimizer *optimizer, double max_norm, double norm_type,
                                     bool error_if_nonfinite, double *norm_out)
{
    double norm = 0;

    FSDP_TRY(fsdp__optimizer_check(optimizer, "clip gradients"));
    if (!(max_norm >= 0))
        return FSDP_FAIL(FSDP_INVALID, "cannot clip gradients to a norm of %g: it must not be negative", max_norm);
    if (!(norm_type > 0))
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot take the %g-norm of gradients: norm_type must be above 0 (INFINITY for "
                         "the largest)",
                         norm_type);
    FSDP_TRY(grad_norm(optimizer, norm_type, &norm));
    if (error_if_nonfinite && !isfinite(norm))
        return FSDP_FAIL(FSDP_NOT_FINITE,
                         "the total %g-norm of the gradients is %g, so they cannot be clipped; without "
                         "error_if_nonfinite they are scaled by it all the same",
                         norm_type, norm);
    optimizer->grad_scale = max_norm > 0 && !isinf(max_norm) ? clip_factor(max_norm, norm) : 1;
    if (norm_out)
        *norm_out = norm;
    return FSDP_OK;
}

fsdp_status fsdp_clip_grad_norm(fsdp_optimizer *optimizer, double max_norm, double *norm)
{
    FSDP_TRY(fsdp_clip_grad_norm_type(optimizer, max_norm, 2, false, norm));
    return FSDP_OK;
}
