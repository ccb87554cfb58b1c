/* ema.c - an average of the weights over the steps (training.ema_decay): after each step it moves towards them by
 * 1 - decay. It is float32, cut as the weights are, and beside them on their device. Validations may use it: for as
 * long as one takes, average and weights change places. */
#include "autograd/autograd.h"
#include "base/alloc.h"
#include "device/device.h"
#include "tensor/tensor.h"
#include "train/checkpoint_values.h"
#include "train/run_start.h"
#include "train/run_steps.h"

/* Returns whether the weights of an entry are trained. A part of a flat parameter has no gradient of its own. */
static bool is_trained(const fsdp_state_dict_entry *entry)
{
    return fsdp_dtype_is_floating(fsdp_tensor_dtype(entry->tensor)) &&
           (fsdp_tensor_requires_grad(entry->tensor) || fsdp__leaf_is_part(entry->tensor));
}

static fsdp_status add(const fsdp_state_dict_entry *entry, fsdp_state_dict *out)
{
    const fsdp_tensor *like = entry->tensor;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *average = NULL;

    FSDP_TRY(fsdp_tensor_create(like->storage->device, FSDP_F32, like->ndim, like->shape, FSDP_MEMORY_OPTIMIZER_STATE,
                                &average));
    if (fsdp_tensor_distribution(like))
        FSDP_TRY(fsdp_tensor_set_distribution(average, fsdp_tensor_distribution(like)));
    FSDP_TRY(fsdp__tensor_copy_across(average, like));
    return fsdp_state_dict_add(out, entry->name, average);
}

/* Makes the average, which begins as the weights are. */
static fsdp_status make(fsdp_train_run *run)
{
    FSDP_TRY(fsdp__train_state(run, &run->ema.weights));
    FSDP_TRY(fsdp_state_dict_create(&run->ema.average));
    for (int64_t i = 0; i < run->ema.weights->count; i++)
        if (is_trained(&run->ema.weights->entries[i]))
            FSDP_TRY(add(&run->ema.weights->entries[i], run->ema.average));
    run->ema.spans = fsdp__calloc((size_t)run->ema.average->count + 1, sizeof *run->ema.spans);
    return run->ema.spans ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_status fsdp__ema_begin(fsdp_train_run *run)
{
    fsdp_checkpoint_reader *from = run->resume.from;

    if (run->config->training.ema_decay <= 0)
        return FSDP_OK;
    FSDP_TRY(make(run));
    if (from && fsdp_checkpoint_has_section(from, FSDP__SECTION_EMA))
        return fsdp_checkpoint_load(from, FSDP__SECTION_EMA, run->ema.average, NULL);
    if (from && fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_WARNING,
                 "'%s' has no average of the weights: that of training.ema_decay begins with its weights",
                 run->resume.path);
    return FSDP_OK;
}

void fsdp__ema_release(fsdp_train_run *run)
{
    fsdp_state_dict_free(run->ema.weights);
    fsdp_state_dict_free(run->ema.average);
    fsdp__free(run->ema.spans);
    run->ema = (fsdp__ema){.average = NULL};
}

/* Returns the weights whose average an entry is. */
static fsdp_tensor *weights_of(const fsdp_train_run *run, const fsdp_state_dict_entry *average)
{
    return fsdp_state_dict_find(run->ema.weights, average->name)->tensor;
}

/* Moves all averages from `first` on whose weights have the same dtype and device; marks the spans that are done. */
static fsdp_status move_alike(const fsdp_train_run *run, int64_t first, bool *done, const fsdp__verdict *verdict)
{
    const fsdp_state_dict *average = run->ema.average;
    const fsdp_tensor *leader = weights_of(run, &average->entries[first]);
    fsdp__lerp_spans_args args = {.spans = run->ema.spans,
                                  .src_dtype = leader->dtype,
                                  .dst_dtype = FSDP_F32,
                                  .weight = (float)(1 - run->config->training.ema_decay),
                                  .scale = 1,
                                  .verdict = verdict};

    for (int64_t i = first; i < average->count; i++) {
        const fsdp_tensor *weights = weights_of(run, &average->entries[i]);

        if (done[i] || weights->dtype != leader->dtype || weights->storage->device != leader->storage->device)
            continue;
        done[i] = true;
        if (fsdp_tensor_numel(weights) > 0)
            run->ema.spans[args.count++] = (fsdp__span){.src = fsdp_tensor_data(weights),
                                                        .dst = fsdp_tensor_data(average->entries[i].tensor),
                                                        .numel = fsdp_tensor_numel(weights)};
    }
    return args.count > 0 ? fsdp__launch_lerp_spans(fsdp_device_stream(leader->storage->device), &args) : FSDP_OK;
}

fsdp_status fsdp__ema_step(const fsdp_train_run *run, const void *verdict)
{
    FSDP__FREED bool *done = NULL;

    if (!run->ema.average)
        return FSDP_OK;
    FSDP__TRY_NEW(done = fsdp__calloc((size_t)run->ema.average->count + 1, sizeof *done));
    for (int64_t i = 0; i < run->ema.average->count; i++)
        if (!done[i])
            FSDP_TRY(move_alike(run, i, done, verdict));
    return FSDP_OK;
}

/* ---- in the place of the weights ---- */

static fsdp_status swap_one(fsdp_tensor *weights, fsdp_tensor *average)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *kept = NULL;

    FSDP_TRY(fsdp_tensor_create(weights->storage->device, weights->dtype, weights->ndim, weights->shape,
                                FSDP_MEMORY_WORKSPACE, &kept));
    FSDP_TRY(fsdp__tensor_copy_across(kept, weights));
    FSDP_TRY(fsdp_tensor_begin_write(weights));
    FSDP_TRY(fsdp__tensor_copy_across(weights, average));
    return fsdp__tensor_copy_across(average, kept);
}

/* Swaps the first `count` of them; `*done` are, also when one fails. */
static fsdp_status swap_first(const fsdp_train_run *run, int64_t count, int64_t *done)
{
    for (*done = 0; *done < count; ++*done) {
        const fsdp_state_dict_entry *entry = &run->ema.average->entries[*done];

        FSDP_TRY(swap_one(weights_of(run, entry), entry->tensor));
    }
    return FSDP_OK;
}

fsdp_status fsdp__ema_swap(const fsdp_train_run *run)
{
    int64_t done = 0;
    fsdp_status status = swap_first(run, run->ema.average ? run->ema.average->count : 0, &done);
    bool held;

    if (status == FSDP_OK)
        return FSDP_OK;
    held = fsdp_hold_error(true);
    (void)swap_first(run, done, &done);
    fsdp_release_error(held);
    return status;
}
