/* eval_pairs.c - pairs of a chosen and a rejected answer: a model is compared with a reference. */
#include "base/alloc.h"
#include "base/compiler.h"
#include "cli/eval.h"
#include "cli/folder_model.h"
#include "hub/hub.h"
#include "nn/module.h"
#include "train/evaluate.h"
#include "train/same_facts.h"

bool fsdp__eval_is_pairs(const fsdp__eval *e)
{
    return e->opened.rows && e->opened.rows->pairs;
}

/* ---- the reference ---- */

/* Reads what the reference is, and checks that it knows the same tokens. */
static fsdp_status read_reference(fsdp__eval *e)
{
    FSDP_TRY(fsdp__model_folder_find(e->reference ? e->reference : e->folder.path, &e->reference_folder));
    FSDP_TRY(fsdp_hub_read_config(e->reference_folder.path, &e->reference_config));
    if (e->reference_config.vocab_size != e->config.vocab_size)
        return FSDP_FAIL(FSDP_INVALID, "'%s' has a vocabulary of %lld, and '%s' one of %lld: they cannot be compared",
                         e->reference_folder.path, (long long)e->reference_config.vocab_size, e->folder.path,
                         (long long)e->config.vocab_size);
    e->packing.row_most = FSDP__MIN(e->config.max_seq_len, e->reference_config.max_seq_len);
    return FSDP_OK;
}

fsdp_status fsdp__eval_find_reference(fsdp__eval *e)
{
    const char *option = e->reference ? "reference" : e->beta_text ? "beta" : NULL;

    if (!fsdp__eval_is_pairs(e) && option)
        return FSDP_FAIL(FSDP_INVALID,
                         "--%s is for pairs of chosen and rejected answers, and --data '%s' has none: leave it out",
                         option, e->data);
    if (!fsdp__eval_is_pairs(e))
        return FSDP_OK;
    if (e->cp > 1)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "--context-parallel cannot be combined with pairs, which --data '%s' has: leave it out",
                         e->data);
    if (!e->reference && e->adapters.count == 0 && !e->folder.is_adapter)
        return FSDP_FAIL(FSDP_INVALID,
                         "--data '%s' has pairs, on which a model is compared with another: name that with --reference "
                         "FOLDER, or an adapter with --adapter, which is compared with the model without it",
                         e->data);
    return fsdp_fail_prefix(read_reference(e), "--reference");
}

void fsdp__eval_facts_of_reference(const fsdp__eval *e, FILE *out)
{
    if (!fsdp__eval_is_pairs(e))
        return;
    fprintf(out, "--beta\t%.17g\n", e->beta);
    fsdp__facts_of_weights(e->reference_folder.path, e->reference_folder.is_checkpoint, "the reference's folder", out);
}

/* ---- comparing ---- */

/* Sums the log-probabilities of all pairs. */
static fsdp_status add_up(fsdp__eval *e, fsdp_module *model, float *out, fsdp_evaluation *found)
{
    FSDP_TRY(fsdp_model_set_loss(model, FSDP_LOSS_NONE, 0));
    return fsdp__evaluate_pairs(model, e->packed, &e->options, out, found);
}

fsdp_status fsdp__eval_reference(fsdp__eval *e, fsdp_context *context, fsdp_device *device)
{
    FSDP__SCOPED(fsdp_module_unref_at) fsdp_module *model = NULL;
    size_t count = e->packed ? 2 * (size_t)e->packed->windows : 0;
    fsdp_evaluation found;

    if (!fsdp__eval_is_pairs(e))
        return FSDP_OK;
    FSDP__TRY_NEW(e->reference_sums = fsdp__calloc(count, sizeof *e->reference_sums));
    FSDP__TRY_NEW(e->sums = fsdp__calloc(count, sizeof *e->sums));
    FSDP_TRY(fsdp__folder_model_load(context, e->reference_folder.path, &e->reference_config,
                                     &(fsdp__folder_model_options){.dtype = e->dtype_text ? e->dtype : FSDP_DTYPE_NONE,
                                                                   .device = device,
                                                                   .bare = !e->reference,
                                                                   .tp = e->tp,
                                                                   .cp = e->cp},
                                     &model));
    return add_up(e, model, e->reference_sums, &found);
}

fsdp_status fsdp__eval_compare(fsdp__eval *e, fsdp_module *model, fsdp_evaluation *found, fsdp__rewards *rewards)
{
    FSDP_TRY(add_up(e, model, e->sums, found));
    *rewards = fsdp__rewards_of(e->sums, e->reference_sums, fsdp__evaluate_windows(e->packed, &e->options), e->beta, 0);
    found->loss = rewards->loss;
    return FSDP_OK;
}
