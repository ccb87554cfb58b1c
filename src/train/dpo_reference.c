/* dpo_reference.c - the reference of preference tuning: the model as the run has begun with it, and with an adapter the
 * base alone.
 *
 * It is two numbers for each pair that is trained or validated on. They are computed once, before the first step, and a
 * checkpoint has them: so no second model is held, no step runs it, and a run that goes on has the same ones to the
 * bit, whatever the weights are by then. That is the same with an adapter, which is off meanwhile. */
#include "base/alloc.h"
#include "base/hash.h"
#include "tensor/tensor.h"
#include "train/checkpoint_values.h"
#include "train/dpo.h"
#include "train/evaluate.h"
#include "train/run.h"
#include "train/run_config.h"

/* Counts the pairs that are trained on. */
static int64_t count_pairs(const fsdp_train_run *run)
{
    int64_t count = 0;

    for (int i = 0; i < run->source_count; i++)
        count += run->sources[i].packed->windows;
    return count;
}

static int64_t count_validated(const fsdp_train_run *run)
{
    return run->validation.on ? run->validation.packed->windows : 0;
}

int64_t fsdp__dpo_validated_on(const fsdp_train_run *run)
{
    const fsdp__packed *p = run->validation.packed;
    int64_t cut[] = {p->windows, p->options.first_row, p->options.seq_len, p->tokens};
    uint64_t hash[2];

    fsdp__rows_digest(p->rows, hash);
    return (int64_t)fsdp__hash_bytes(hash[0], cut, sizeof cut);
}

/* ---- computed ---- */

static fsdp_status compute_of(fsdp_train_run *run, const fsdp__packed *packed, float *out)
{
    const fsdp_evaluate_options options = {.seq_len = run->config->training.seq_len,
                                           .local_batch = run->config->training.local_batch_size,
                                           .vocab_size = run->model_config.vocab_size,
                                           .ranks_per_batch = fsdp_context_world_size(run->context) / run->data_ranks};
    fsdp_evaluation found;

    return fsdp__evaluate_pairs(run->model, packed, &options, out, &found);
}

static fsdp_status compute_trained(fsdp_train_run *run)
{
    float *out = run->dpo.trained.values;

    for (int i = 0; i < run->source_count; i++) {
        FSDP_TRY(compute_of(run, run->sources[i].packed, out));
        out += 2 * run->sources[i].packed->windows;
    }
    return FSDP_OK;
}

/* Computes the log-probabilities of pairs: of those that are trained on, if `trained`, and of those that are validated
 * on. [collective] */
static fsdp_status compute(fsdp_train_run *run, bool trained)
{
    fsdp_status status = FSDP_OK;

    if (run->adapter)
        FSDP_TRY(fsdp__train_agree(run, fsdp_adapter_set_enabled(run->adapter, false)));
    if (trained)
        status = compute_trained(run);
    if (status == FSDP_OK && run->validation.on)
        status = compute_of(run, run->validation.packed, run->dpo.validated.values);
    if (run->adapter)
        FSDP_KEEP_FIRST(status, fsdp_adapter_set_enabled(run->adapter, true));
    FSDP_TRY(status);
    if (fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_INFO, "dpo: the reference has the log-probabilities of %lld pairs, of %s",
                 (long long)(trained ? count_pairs(run) : 0) + (long long)count_validated(run),
                 run->adapter ? "the model without its adapter" : "the first weights");
    return FSDP_OK;
}

/* ---- loaded ---- */

static fsdp_status load_trained(fsdp_train_run *run)
{
    if (fsdp_checkpoint_has_section(run->resume.from, FSDP__SECTION_DPO))
        return fsdp_checkpoint_load(run->resume.from, FSDP__SECTION_DPO, run->dpo.trained.state, NULL);
    return FSDP_FAIL(FSDP_INVALID,
                     "checkpoint.folder: '%s' has no reference: its run had another training.objective: name another "
                     "folder, and begin with its weights by checkpoint.initial_load_path",
                     run->resume.path);
}

/* Returns whether the checkpoint has the reference of the pairs that this run validates on. */
static bool has_validated(const fsdp_train_run *run)
{
    bool held = fsdp_hold_error(true);
    int64_t theirs = 0;
    bool has = fsdp_checkpoint_has_section(run->resume.from, FSDP__SECTION_DPO_VALIDATED) &&
               fsdp_checkpoint_get_integer(run->resume.from, FSDP__VALUE_DPO_VALIDATED_ON, &theirs) == FSDP_OK &&
               theirs == fsdp__dpo_validated_on(run);

    fsdp_release_error(held);
    return has;
}

/* Takes the reference over, or computes it again from the base of an adapter, which stands still. */
static fsdp_status load_validated(fsdp_train_run *run)
{
    if (has_validated(run))
        return fsdp_checkpoint_load(run->resume.from, FSDP__SECTION_DPO_VALIDATED, run->dpo.validated.state, NULL);
    if (run->adapter)
        return compute(run, false);
    return FSDP_FAIL(FSDP_INVALID,
                     "checkpoint.folder: '%s' has no reference of the pairs to validate on, which have changed since "
                     "then, and the first weights are gone: set validation.path, validation.share and "
                     "training.seq_len back, or leave the validation out (validation.enable: false)",
                     run->resume.path);
}

/* ---- life ---- */

/* Makes room on the host, in the form in which a checkpoint has it. */
static fsdp_status make_room(fsdp_train_run *run, int64_t pairs, fsdp__reference *out)
{
    const int64_t shape[] = {pairs, 2};
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;

    FSDP_TRY(fsdp_tensor_create(fsdp_cpu(run->context), FSDP_F32, 2, shape, FSDP_MEMORY_WORKSPACE, &tensor));
    FSDP_TRY(fsdp_state_dict_create(&out->state));
    FSDP_TRY(fsdp_state_dict_add(out->state, "reference", tensor));
    out->values = fsdp_tensor_data(tensor);
    return FSDP_OK;
}

static fsdp_status make_rooms(fsdp_train_run *run)
{
    fsdp__dpo *dpo = &run->dpo;
    size_t batch = 2 * (size_t)run->config->training.local_batch_size, validated = 2 * (size_t)count_validated(run);

    FSDP_TRY(make_room(run, count_pairs(run), &dpo->trained));
    FSDP__TRY_NEW(dpo->batch = fsdp__calloc(batch, sizeof *dpo->batch));
    if (!run->validation.on)
        return FSDP_OK;
    FSDP_TRY(make_room(run, count_validated(run), &dpo->validated));
    FSDP__TRY_NEW(dpo->validated_sums = fsdp__calloc(validated, sizeof *dpo->validated_sums));
    return FSDP_OK;
}

fsdp_status fsdp__dpo_begin(fsdp_train_run *run)
{
    if (!fsdp__train_is_dpo(run->config))
        return FSDP_OK;
    FSDP_TRY(fsdp__train_agree(run, make_rooms(run)));
    if (!run->resume.from)
        return compute(run, true);
    FSDP_TRY(fsdp__train_agree(run, load_trained(run)));
    return run->validation.on ? load_validated(run) : FSDP_OK;
}

void fsdp__dpo_release(fsdp_train_run *run)
{
    fsdp_state_dict_free(run->dpo.trained.state);
    fsdp_state_dict_free(run->dpo.validated.state);
    FSDP__FREE_ALL(run->dpo.batch, run->dpo.validated_sums);
}
