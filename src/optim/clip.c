/* clip.c - computes the norm of all gradients, and the factor by which the next step scales them.
 *
 * Gradients are put in sets that lie on one device and are spread over the same dimensions of the same mesh. A set's
 * powers are summed on this rank, and then over each of those dimensions, as in PyTorch: by one all-reduce for all sets
 * that are spread over it, whatever else they are spread over. But the bits of the sum do not depend on who adds what
 * (base/digit_sum.h), so the norm is the same number however the gradients are sharded. For the infinite norm the
 * largest is taken instead. A set that is not split counts once and is not communicated. The sets follow from the
 * parameters alone, not from who has a gradient, so all ranks make the same calls. */
#include <math.h>
#include <string.h>

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

/* Holds what this rank knows of one set, or of several, and the groups that it must still be reduced over. */
typedef struct norm_part {
    norm_result result;
    fsdp_device *device;
    fsdp_process_group *groups[FSDP_MAX_MESH_DIMS];
    int group_count;
} norm_part;

/* Everything one norm needs; the arrays have room for every parameter. */
typedef struct norm_job {
    const fsdp_optimizer *optimizer;
    double p; /* above 0; may be infinite */
    fsdp__spread *sets;
    int64_t set_count;
    norm_part *parts, *taken; /* taken: scratch */
    int64_t part_count;
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

/* Computes this rank's part of a set. */
static fsdp_status make_part(norm_job *n, const fsdp__spread *set)
{
    norm_part *part = &n->parts[n->part_count++];
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace work = {0};

    *part = (norm_part){.device = set->device};
    for (int i = 0; set->mesh && i < fsdp_mesh_ndim(set->mesh); i++)
        if (set->sharded >> i & 1 && fsdp_mesh_size(set->mesh, i) > 1)
            part->groups[part->group_count++] = fsdp_mesh_process_group(set->mesh, i);
    FSDP_TRY(fsdp__workspace_take(set->device, sizeof *n->work, &work));
    n->work = work.data;
    for (size_t d = 0; d < FSDP__COUNT_OF(dtypes); d++)
        FSDP_TRY(add_powers(n, set, dtypes[d], &part->result));
    return FSDP_OK;
}

/* ---- over ranks ---- */

/* Takes the group off those that the part must be reduced over; returns false if it is none of them. */
static bool take_group(norm_part *part, const fsdp_process_group *group)
{
    int kept = 0, before = part->group_count;

    for (int i = 0; i < before; i++)
        if (part->groups[i] != group)
            part->groups[kept++] = part->groups[i];
    part->group_count = kept;
    return kept < before;
}

static bool have_same_groups(const norm_part *a, const norm_part *b)
{
    bool same = a->group_count == b->group_count;

    for (int i = 0; i < a->group_count && same; i++)
        same = a->groups[i] == b->groups[i];
    return same;
}

/* Moves the parts that are to be reduced over the group to the end, where those that have the same groups left become
 * one. Returns their number; parts that have become another are gone. */
static int64_t take_parts(norm_job *n, const fsdp_process_group *group)
{
    int64_t kept = 0, taken = 0;

    for (int64_t i = 0; i < n->part_count; i++) {
        norm_part part = n->parts[i];
        int64_t same = 0;

        if (!take_group(&part, group)) {
            n->parts[kept++] = part;
            continue;
        }
        while (same < taken && !have_same_groups(&n->taken[same], &part))
            same++;
        if (same < taken)
            add_result(&n->taken[same].result, &part.result);
        else
            n->taken[taken++] = part;
    }
    memcpy(n->parts + kept, n->taken, (size_t)taken * sizeof *n->parts);
    n->part_count = kept + taken;
    return taken;
}

/* Reduces parts over the ranks of a group. The largest is an f32 number, so nothing is lost. */
static fsdp_status reduce_over(const norm_job *n, fsdp_process_group *group, norm_part *parts, int64_t count)
{
    bool largest = isinf(n->p);
    size_t size = largest ? sizeof(float) : sizeof(fsdp__digit_sum), bytes = (size_t)count * size;
    fsdp_stream *stream = fsdp_device_stream(parts[0].device);
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace work = {0};
    FSDP__FREED char *host = fsdp__malloc(bytes);
    fsdp_status status;

    FSDP__TRY_NEW(host);
    for (int64_t i = 0; i < count; i++)
        memcpy(host + (size_t)i * size,
               largest ? (void *)&(float){(float)parts[i].result.largest} : &parts[i].result.sum, size);
    FSDP_TRY(fsdp__workspace_take(parts[0].device, bytes, &work));
    FSDP_TRY(fsdp__copy_to_device(stream, work.data, host, bytes));
    status = largest ? fsdp_all_reduce(group, work.data, work.data, count, FSDP_F32, FSDP_MAX, stream)
                     : fsdp_all_reduce(group, work.data, work.data, count * FSDP__DIGIT_SUM_WORDS, FSDP_I64, FSDP_SUM,
                                       stream);
    if (status == FSDP_OK)
        status = fsdp__copy_to_host(stream, host, work.data, bytes);
    /* Wait even after a failure: queued work reads and writes memory of the host. */
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(stream));
    FSDP_TRY(status);
    for (int64_t i = 0; i < count; i++) {
        float found;

        memcpy(largest ? (void *)&found : &parts[i].result.sum, host + (size_t)i * size, size);
        if (largest)
            parts[i].result.largest = found;
    }
    return FSDP_OK;
}

/* Returns the last group of the first part that has the most, so that parts become alike; NULL if none has any. */
static fsdp_process_group *next_group(const norm_job *n)
{
    const norm_part *most = NULL;

    for (int64_t i = 0; i < n->part_count; i++)
        if (n->parts[i].group_count > (most ? most->group_count : 0))
            most = &n->parts[i];
    return most ? most->groups[most->group_count - 1] : NULL;
}

/* Reduces all parts over the ranks that hold the others, by one call a group. */
static fsdp_status reduce_parts(norm_job *n)
{
    fsdp_process_group *group;

    while ((group = next_group(n))) {
        int64_t count = take_parts(n, group);

        FSDP_TRY(reduce_over(n, group, n->parts + n->part_count - count, count));
    }
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
    n->parts = fsdp__malloc((size_t)count * sizeof *n->parts + 1);
    n->taken = fsdp__malloc((size_t)count * sizeof *n->taken + 1);
    FSDP__TRY_NEW(n->sets && n->spans && n->parts && n->taken);
    return find_sets(n);
}

static void release(norm_job *n)
{
    FSDP__FREE_ALL(n->spans, n->sets, n->parts, n->taken);
}

static fsdp_status grad_norm(const fsdp_optimizer *optimizer, double p, double *out)
{
    FSDP__SCOPED(release) norm_job n = {.optimizer = optimizer, .p = p};
    norm_result total = {.largest = 0};

    FSDP_TRY(prepare(&n));
    for (int64_t s = 0; s < n.set_count; s++)
        FSDP_TRY(make_part(&n, &n.sets[s]));
    FSDP_TRY(reduce_parts(&n));
    for (int64_t i = 0; i < n.part_count; i++)
        add_result(&total, &n.parts[i].result);
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
    return fsdp_clip_grad_norm_type(optimizer, max_norm, 2, false, norm);
}
