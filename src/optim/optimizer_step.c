/* optimizer_step.c - makes one optimizer step, in few passes over all tensors.
 *
 * First comes everything that can fail because memory runs out: the state of parameters that step for the first time,
 * or have been sharded since the last step, and the list of spans. Then other readers of the parameters are told that
 * these will be written. Then come the launches. Parameters of a group that have taken the same number of steps and
 * have the same dtypes, their own and their gradients', share one launch; mostly that is all of them. */
#include <math.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/probe.h"
#include "device/device.h"
#include "optim/partition.h"
#include "tensor/tensor.h"

fsdp_status fsdp__optimizer_grad(const fsdp__optimizer_param *param, fsdp_tensor **grad)
{
    *grad = fsdp_tensor_grad(param->tensor);
    if (!*grad)
        return FSDP_OK;
    if (!fsdp_dtype_is_floating((*grad)->dtype) || !fsdp_tensor_is_contiguous(*grad) ||
        !fsdp__shape_equal(*grad, param->tensor))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot optimize '%s' of shape %s: its gradient of shape %s and dtype %s is not contiguous, "
                         "floating and of the same shape",
                         param->name, FSDP__SHAPE_OF(param->tensor), FSDP__SHAPE_OF(*grad),
                         fsdp_dtype_name((*grad)->dtype));
    if (fsdp_tensor_numel(*grad) > 0 && (!fsdp_tensor_data(*grad) || !fsdp__tensor_has_bytes(param->tensor)))
        return FSDP_FAIL(FSDP_STATE, "cannot optimize '%s': %s has no bytes now", param->name,
                         fsdp_tensor_data(*grad) ? "it" : "its gradient");
    return FSDP_OK;
}

/* The parameters that a step is for; count -1: all. */
typedef struct chosen {
    fsdp_tensor *const *tensors;
    int64_t count;
} chosen;

static bool is_chosen(const chosen *c, const fsdp_tensor *tensor)
{
    bool found = c->count < 0;

    for (int64_t i = 0; i < c->count && !found; i++)
        found = c->tensors[i] == tensor;
    return found;
}

/* Checks the parameters that have a gradient, makes their state fit, and marks them. */
static fsdp_status prepare(fsdp_optimizer *optimizer, const chosen *c)
{
    int64_t total = fsdp__optimizer_count(optimizer);
    bool bytes = false;

    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        fsdp_tensor *grad;

        w.param->due = false;
        FSDP_TRY(fsdp__partition_check(optimizer, w.param));
        if (!is_chosen(c, w.param->tensor) || !fsdp__partition_owns(optimizer, w.param))
            continue;
        FSDP_TRY(fsdp__optimizer_check_param(w.param->name, w.param->tensor));
        FSDP_TRY(fsdp__optimizer_grad(w.param, &grad));
        if (!grad)
            continue;
        FSDP_TRY(fsdp__optimizer_fit_state(w.group, w.param));
        w.param->due = true;
        bytes = bytes || fsdp__optimizer_has_bytes(w.group, w.param->tensor);
    }
    optimizer->span_count = 0;
    if (total > 0 && fsdp__grow(&optimizer->spans, total - 1, &optimizer->span_capacity, sizeof *optimizer->spans) != 0)
        return FSDP_NO_MEMORY;
    if (bytes &&
        fsdp__grow(&optimizer->byte_spans, total - 1, &optimizer->byte_capacity, sizeof *optimizer->byte_spans) != 0)
        return FSDP_NO_MEMORY;
    return FSDP_OK;
}

/* Returns whether a step of the parameter can be one on halves: [Note: split numbers] in device/formulas.h. */
static bool steps_on_halves(const fsdp__optimizer_group *group, const fsdp__optimizer_param *param)
{
    return group->kind <= FSDP__OPTIMIZER_ADAMW && !fsdp__optimizer_has_bytes(group, param->tensor);
}

/* Begins the writes, those of empty shards too: peers may wait for each other in it. This may move bytes, so it comes
 * before any pointer is taken. */
static fsdp_status begin_writes(const fsdp_optimizer *optimizer)
{
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        if (!w.param->due)
            continue;
        FSDP_TRY(fsdp_tensor_begin_write(w.param->tensor));
        if (!steps_on_halves(w.group, w.param))
            FSDP_TRY(fsdp__storage_bring(w.param->tensor->storage));
    }
    return FSDP_OK;
}

/* Returns whether the parameter's count of steps has one whose verdict the host does not know. */
static bool is_behind(const fsdp__optimizer_param *param)
{
    return param->open & 2;
}

/* Returns how many steps a launch has to know of: Adam's bias correction depends on all of them, SGD's buffer on
 * whether it is new. */
static int64_t steps_that_matter(const fsdp__optimizer_group *group, const fsdp__optimizer_param *param)
{
    return group->kind == FSDP__OPTIMIZER_SGD ? FSDP__MIN(param->steps, 1 + is_behind(param)) : param->steps;
}

/* Returns whether a step takes the parameters of the group together, and may have to communicate. */
static bool steps_together(const fsdp__optimizer_group *group)
{
    return group->kind == FSDP__OPTIMIZER_MUON || group->kind == FSDP__OPTIMIZER_ADAFACTOR;
}

/* Returns where the step also writes the parameter, and in which dtype; NULL: nowhere. A kernel of whole tensors
 * cannot. */
static void *copy_of(const fsdp__optimizer_group *group, const fsdp__optimizer_param *param, fsdp_dtype *dtype)
{
    void *place = NULL;

    *dtype = FSDP_DTYPE_NONE;
    if (!steps_together(group))
        place = fsdp__tensor_copy_place(param->tensor, dtype);
    return place;
}

static fsdp_dtype copy_dtype_of(const fsdp__optimizer_group *group, const fsdp__optimizer_param *param)
{
    fsdp_dtype dtype;

    (void)copy_of(group, param, &dtype);
    return dtype;
}

/* Returns whether two parameters can share a launch. */
static bool same_launch(const fsdp__optimizer_group *group, const fsdp__optimizer_param *a,
                        const fsdp__optimizer_param *b)
{
    return copy_dtype_of(group, a) == copy_dtype_of(group, b) &&
           !fsdp__tensor_low_place(a->tensor) == !fsdp__tensor_low_place(b->tensor) &&
           steps_that_matter(group, a) == steps_that_matter(group, b) && is_behind(a) == is_behind(b) &&
           a->tensor->storage->device == b->tensor->storage->device && a->tensor->dtype == b->tensor->dtype &&
           fsdp_tensor_grad(a->tensor)->dtype == fsdp_tensor_grad(b->tensor)->dtype &&
           fsdp__optimizer_has_bytes(group, a->tensor) == fsdp__optimizer_has_bytes(group, b->tensor);
}

static void *data_of(const fsdp_tensor *moment)
{
    return moment ? fsdp_tensor_data(moment) : NULL;
}

/* Lists what all launches of a step have in common. */
#define COMMON(table, number)                                                                                   \
    .spans = (table), .count = (number), .param_dtype = first->tensor->dtype,                                   \
    .grad_dtype = fsdp_tensor_grad(first->tensor)->dtype, .lr = group->lr, .grad_scale = optimizer->grad_scale, \
    .verdict = optimizer->verdict

static fsdp_status launch_sgd(const fsdp_optimizer *optimizer, const fsdp__optimizer_group *group,
                              const fsdp__optimizer_span *spans, int64_t count, const fsdp__optimizer_param *first)
{
    const fsdp_sgd_options *sgd = &group->options.sgd;

    return fsdp__launch_sgd(fsdp_device_stream(first->tensor->storage->device),
                            &(fsdp__sgd_args){
                                COMMON(spans, count),
                                .momentum = sgd->momentum,
                                .dampening = sgd->dampening,
                                .weight_decay = sgd->weight_decay,
                                .step = first->steps + 1,
                                .nesterov = sgd->nesterov,
                                .behind = is_behind(first),
                                .copy_dtype = copy_dtype_of(group, first),
                            });
}

static fsdp_status launch_lion(const fsdp_optimizer *optimizer, const fsdp__optimizer_group *group,
                               const fsdp__optimizer_span *spans, int64_t count, const fsdp__optimizer_param *first)
{
    const fsdp_lion_options *lion = &group->options.lion;

    return fsdp__launch_lion(fsdp_device_stream(first->tensor->storage->device),
                             &(fsdp__lion_args){
                                 COMMON(spans, count),
                                 .beta1 = lion->beta1,
                                 .beta2 = lion->beta2,
                                 .weight_decay = lion->weight_decay,
                                 .copy_dtype = copy_dtype_of(group, first),
                             });
}

#define ADAM                                                                                          \
    .beta1 = adam->beta1, .beta2 = adam->beta2, .eps = adam->eps, .weight_decay = adam->weight_decay, \
    .step = first->steps + 1, .decoupled = group->kind == FSDP__OPTIMIZER_ADAMW, .behind = is_behind(first)
static fsdp_status launch_adam(const fsdp_optimizer *optimizer, const fsdp__optimizer_group *group,
                               const fsdp__optimizer_span *spans, int64_t count, const fsdp__optimizer_param *first)
{
    fsdp_stream *stream = fsdp_device_stream(first->tensor->storage->device);
    const fsdp_adam_options *adam = &group->options.adam;

    if (fsdp__optimizer_has_bytes(group, first->tensor))
        return fsdp__launch_byte_adam(stream, &(fsdp__byte_adam_args){
                                                  COMMON(optimizer->byte_spans + (spans - optimizer->spans), count),
                                                  ADAM,
                                                  .copy_dtype = copy_dtype_of(group, first),
                                              });
    return fsdp__launch_adam(stream, &(fsdp__adam_args){
                                         COMMON(spans, count),
                                         ADAM,
                                         .copy_dtype = copy_dtype_of(group, first),
                                         .split = fsdp__tensor_low_place(first->tensor) != NULL,
                                     });
}

#undef ADAM

static fsdp_status launch(const fsdp_optimizer *optimizer, const fsdp__optimizer_group *group,
                          const fsdp__optimizer_span *spans, int64_t count, const fsdp__optimizer_param *first)
{
    return (group->kind == FSDP__OPTIMIZER_SGD    ? launch_sgd
            : group->kind == FSDP__OPTIMIZER_LION ? launch_lion
                                                  : launch_adam)(optimizer, group, spans, count, first);
}

/* Fills the span of a parameter, and the one of bytes where its moments are bytes. */
static void fill_span(const fsdp_optimizer *optimizer, const fsdp__optimizer_group *group,
                      const fsdp__optimizer_param *param, fsdp__optimizer_span *span)
{
    int64_t numel = fsdp_tensor_numel(param->tensor), rows = param->tensor->shape[0];
    fsdp_dtype copy_dtype;
    void *copy = copy_of(group, param, &copy_dtype), *low = fsdp__tensor_low_place(param->tensor);

    *span = (fsdp__optimizer_span){.param = low ? low : fsdp_tensor_data(param->tensor),
                                   .grad = fsdp_tensor_data(fsdp_tensor_grad(param->tensor)),
                                   .numel = numel};
    if (fsdp__optimizer_has_bytes(group, param->tensor)) {
        optimizer->byte_spans[span - optimizer->spans] = (fsdp__byte_span){.param = span->param,
                                                                           .grad = span->grad,
                                                                           .codes1 = data_of(param->moment1),
                                                                           .codes2 = data_of(param->moment2),
                                                                           .scales1 = data_of(param->scale1),
                                                                           .scales2 = data_of(param->scale2),
                                                                           .rows = rows,
                                                                           .cols = numel / rows,
                                                                           .copy = copy};
        return;
    }
    span->moment1 = data_of(param->moment1);
    span->moment2 = data_of(param->moment2);
    span->copy = copy;
}

/* Counts a step of a parameter. Shards without elements count, too: a parameter has taken the same number of steps on
 * all ranks. */
static void count_step(const fsdp_optimizer *optimizer, fsdp__optimizer_param *param)
{
    param->due = false;
    param->steps++;
    param->open |= optimizer->verdict != NULL;
}

/* Launches parameter `first` and all after it in the group that can share the launch. If that fails (a queue may be out
 * of memory), none of them has stepped. */
static fsdp_status launch_alike(fsdp_optimizer *optimizer, fsdp__optimizer_group *group, int64_t first)
{
    fsdp__optimizer_span *spans = optimizer->spans + optimizer->span_count;
    /* A copy, since it is compared with while steps are counted up below, its own among them. */
    fsdp__optimizer_param leader = group->params[first];
    fsdp_dtype copy_dtype;
    int64_t count = 0;

    for (int64_t i = first; i < group->count; i++) {
        fsdp__optimizer_param *param = &group->params[i];

        if (param->due && same_launch(group, &leader, param) && fsdp_tensor_numel(param->tensor) > 0)
            fill_span(optimizer, group, param, &spans[count++]);
    }
    optimizer->span_count += count;
    if (count > 0)
        FSDP_TRY(launch(optimizer, group, spans, count, &leader));
    for (int64_t i = first; i < group->count; i++)
        if (group->params[i].due && same_launch(group, &leader, &group->params[i])) {
            if (copy_of(group, &group->params[i], &copy_dtype))
                fsdp__tensor_copied(group->params[i].tensor);
            count_step(optimizer, &group->params[i]);
        }
    return FSDP_OK;
}

static fsdp_status step_together(fsdp_optimizer *optimizer, fsdp__optimizer_group *group)
{
    FSDP_TRY((group->kind == FSDP__OPTIMIZER_MUON ? fsdp__muon_step : fsdp__adafactor_step)(optimizer, group));
    for (int64_t i = 0; i < group->count; i++)
        if (group->params[i].due)
            count_step(optimizer, &group->params[i]);
    return FSDP_OK;
}

static fsdp_status step_chosen(fsdp_optimizer *optimizer, const chosen *c)
{
    FSDP_TRY(prepare(optimizer, c));
    FSDP_TRY(begin_writes(optimizer));
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        if (w.param->due && steps_together(w.group))
            FSDP_TRY(step_together(optimizer, w.group));
        else if (w.param->due)
            FSDP_TRY(launch_alike(optimizer, w.group, w.param - w.group->params));
    }
    optimizer->grad_scale = 1;
    return FSDP_OK;
}

static fsdp_status step(fsdp_optimizer *optimizer, const chosen *c)
{
    fsdp_status status;

    FSDP__TELL(STEP_BEGUN, .context = optimizer->context, .object = optimizer, .ns = fsdp__clock_ns());
    status = step_chosen(optimizer, c);
    FSDP__TELL(STEP_DONE, .context = optimizer->context, .object = optimizer, .ns = fsdp__clock_ns());
    return status;
}

fsdp_status fsdp_optimizer_step(fsdp_optimizer *optimizer)
{
    FSDP_TRY(fsdp__optimizer_check(optimizer, "step"));
    fsdp__partition_forget(optimizer);
    FSDP_TRY(fsdp__partition_abort(optimizer, step(optimizer, &(chosen){.count = -1})));
    return fsdp__partition_publish(optimizer);
}

fsdp_status fsdp_optimizer_step_parameters(fsdp_optimizer *optimizer, fsdp_tensor *const *parameters, int64_t count)
{
    FSDP_TRY(fsdp__optimizer_check(optimizer, "step"));
    if (count < 0 || (count > 0 && !parameters))
        return FSDP_FAIL(FSDP_INVALID, "cannot step %lld parameters: a list of them is required", (long long)count);
    if (optimizer->partition)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot step some parameters: the state is partitioned, and ranks exchange "
                                           "parameters only after a step of all of them");
    if (optimizer->grad_scale < 1 || optimizer->grad_scale > 1 || isnan(optimizer->grad_scale))
        return FSDP_FAIL(FSDP_STATE,
                         "cannot step some parameters after gradients were clipped: the factor applies to all of them");
    return step(optimizer, &(chosen){parameters, count});
}

fsdp_status fsdp__optimizer_step_judged(fsdp_optimizer *optimizer, const fsdp__verdict *verdict)
{
    fsdp_status status;

    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);)
        w.param->open = w.param->open << 1 & 2;
    optimizer->open++;
    optimizer->verdict = verdict;
    status = fsdp_optimizer_step(optimizer);
    optimizer->verdict = NULL;
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}

void fsdp__optimizer_settle(fsdp_optimizer *optimizer, bool left_out)
{
    unsigned oldest = 1u << --optimizer->open;

    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        w.param->steps -= left_out && w.param->open & oldest;
        w.param->open &= ~oldest;
    }
}
