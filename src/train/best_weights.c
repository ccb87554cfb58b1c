/* best_weights.c - the weights of the best validation, for the export. They come from their checkpoint, or, in a run
 * that keeps none, from a copy in the host's memory that is made when a validation is the best so far. The model itself
 * stays as it is. */
#include "base/alloc.h"
#include "base/context.h"
#include "checkpoint/folder.h"
#include "state/entry.h"
#include "tensor/tensor.h"
#include "train/checkpoint_values.h"
#include "train/run_config.h"
#include "train/run_start.h"
#include "train/run_steps.h"

/* ---- a copy of a state ---- */

/* Adds a tensor that is distributed as `tensor`, on the host, without values. */
static fsdp_status add_like(fsdp_context *context, const char *name, const fsdp_tensor *tensor, fsdp_state_dict *out)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *copy = NULL;

    FSDP_TRY(fsdp_tensor_create(fsdp_cpu(context), fsdp_tensor_dtype(tensor), fsdp_tensor_ndim(tensor),
                                fsdp_tensor_shape(tensor), FSDP_MEMORY_WORKSPACE, &copy));
    if (distribution)
        FSDP_TRY(fsdp_tensor_set_distribution(copy, distribution));
    return fsdp_state_dict_add(out, name, copy);
}

static fsdp_status make_like(fsdp_context *context, const fsdp_state_dict *state, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *copy = NULL;

    FSDP_TRY(fsdp_state_dict_create(&copy));
    for (int64_t i = 0; i < state->count; i++)
        FSDP_TRY(add_like(context, state->entries[i].name, state->entries[i].tensor, copy));
    *out = fsdp__take(&copy);
    return FSDP_OK;
}

/* Copies a tensor from whatever device it is on. */
static fsdp_status copy_tensor(const fsdp_tensor *from, fsdp_tensor *to)
{
    fsdp_dtype dtype = fsdp_tensor_dtype(from);
    size_t bytes = (size_t)fsdp_tensor_numel(from) * fsdp_dtype_size(dtype);
    FSDP__FREED void *values = fsdp__malloc(bytes + 1);

    FSDP_TRY(values ? fsdp_tensor_read(from, dtype, values) : FSDP_NO_MEMORY);
    return fsdp_tensor_write(to, dtype, values);
}

/* ---- while the run trains ---- */

static fsdp_status copy_model(fsdp_train_run *run)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    FSDP_TRY(fsdp__train_state(run, &state));
    if (!run->best)
        FSDP_TRY(make_like(run->context, state, &run->best));
    for (int64_t i = 0; i < state->count; i++)
        FSDP_TRY(copy_tensor(state->entries[i].tensor, run->best->entries[i].tensor));
    return FSDP_OK;
}

fsdp_status fsdp__best_note(fsdp_train_run *run)
{
    if (!fsdp__train_exports_best(run->config) || fsdp__train_saves(run->config))
        return FSDP_OK;
    FSDP_TRY(fsdp__train_agree(run, fsdp_module_reshard_all(run->model))); /* a state consists of shards */
    return fsdp__train_agree(run, copy_model(run));
}

void fsdp__best_release(fsdp_train_run *run)
{
    fsdp_state_dict_free(fsdp__take(&run->best));
}

/* ---- at its start ---- */

static fsdp_status find(const fsdp_train_run *run, char **out)
{
    fsdp_status status = fsdp_checkpoint_find(run->config->checkpoint.folder, run->validation.best_step, out);

    return status == FSDP_OK
               ? FSDP_OK
               : fsdp_fail_prefix(
                     status,
                     "export.which best (last needs no validation): the best validation so far was after step %lld",
                     (long long)run->validation.best_step);
}

fsdp_status fsdp__best_check(const fsdp_train_run *run)
{
    bool over = run->step >= run->config->training.steps || run->validation.stops;
    FSDP__FREED char *path = NULL;

    if (!fsdp__train_exports_best(run->config) || !run->resume.path)
        return FSDP_OK;
    if (run->validation.best_step == 0 && over)
        return FSDP_FAIL(FSDP_NOT_FOUND,
                         "export.which best: '%s' has no validation of this data, and no step is left to validate "
                         "after: set export.which: last, or more training.steps",
                         run->resume.path);
    if (run->validation.best_step == 0)
        return FSDP_OK;
    return find(run, &path);
}

/* ---- the export ---- */

bool fsdp__best_is_earlier(const fsdp_train_run *run)
{
    int64_t best = run->validation.best_step;

    /* If nobody has explicitly asked for it, and there was no best one, the last weights are exported. */
    return fsdp__train_exports_best(run->config) && best != run->step &&
           (best > 0 || run->config->save.which == FSDP_TRAIN_BEST);
}

static fsdp_status load(const char *path, fsdp_state_dict *state)
{
    FSDP__SCOPED(fsdp_checkpoint_close_at) fsdp_checkpoint_reader *reader = NULL;

    FSDP_TRY(fsdp_checkpoint_open(path, &reader));
    return fsdp_checkpoint_load(reader, FSDP__SECTION_MODEL, state, NULL);
}

static fsdp_status load_checkpoint(fsdp_train_run *run, const fsdp_state_dict *state)
{
    fsdp__activity before;
    fsdp_status status;
    FSDP__FREED char *path = NULL;

    FSDP_TRY(find(run, &path));
    before = fsdp__context_set_activity(run->context, FSDP__READING);
    status = make_like(run->context, state, &run->best);
    if (status == FSDP_OK)
        status = load(path, run->best);
    (void)fsdp__context_set_activity(run->context, before);
    return status;
}

fsdp_status fsdp__best_state(fsdp_train_run *run, const fsdp_state_dict *state, const fsdp_state_dict **out)
{
    const fsdp__validation *v = &run->validation;

    if (v->best_step == 0)
        return FSDP_FAIL(FSDP_NOT_FOUND, "export.which best: no validation of this run had a finite loss");
    if (fsdp__train_saves(run->config)) {
        fsdp__best_release(run);
        FSDP_TRY(load_checkpoint(run, state));
    }
    if (!run->best)
        return FSDP_FAIL(FSDP_NOT_FOUND, "export.which best: the weights of step %lld do not exist",
                         (long long)v->best_step);
    if (fsdp_context_rank(run->context) == 0)
        fsdp_log(
            run->context, FSDP_LOG_INFO,
            "export: the weights of step %lld, of the best validation (loss %.4f); export.which: last exports those "
            "of step %lld",
            (long long)v->best_step, v->best, (long long)run->step);
    *out = run->best;
    return FSDP_OK;
}
