/* dpo.c - preference tuning (training.objective: dpo): pairs of a better and a worse answer to one prompt. A window has
 * a pair, one answer behind the other, each a document of its own. With lp the sum of the log-probabilities of an
 * answer's tokens, and ref the same of the model as the run has begun with it (with an adapter: of the base alone)
 *
 *     z = beta ((lp_chosen - ref_chosen) - (lp_rejected - ref_rejected))
 *     loss = -(1 - label_smoothing) log sigmoid(z) - label_smoothing log sigmoid(-z)
 *
 * and the mean over all pairs of a step. Every microbatch has as many pairs, so it is the mean of their means.
 *
 * A validation takes the same mean over other pairs. The reference of both is in dpo_reference.c. */
#include <math.h>
#include <string.h>

#include "tensor/tensor.h"
#include "train/dpo.h"
#include "train/evaluate.h"
#include "train/run.h"
#include "train/run_config.h"

/* ---- rewards and loss of pairs, in double and in their order: the same bits on any number of ranks ---- */

/* Returns -log sigmoid(z). */
static double cost_of(double z)
{
    return fmax(-z, 0) + log1p(exp(-fabs(z)));
}

fsdp__rewards fsdp__rewards_of(const float *sums, const float *reference, int64_t pairs, double beta,
                               double label_smoothing)
{
    fsdp__rewards all = {0};
    double count = (double)pairs;

    for (int64_t i = 0; i < pairs; i++) {
        double chosen = beta * ((double)sums[2 * i] - (double)reference[2 * i]);
        double rejected = beta * ((double)sums[2 * i + 1] - (double)reference[2 * i + 1]);
        double z = chosen - rejected;

        all.loss += (1 - label_smoothing) * cost_of(z) + label_smoothing * cost_of(-z);
        all.chosen += chosen;
        all.rejected += rejected;
        all.accuracy += chosen > rejected;
    }
    return (fsdp__rewards){.loss = isnan(all.loss) ? NAN : all.loss / count,
                           .chosen = all.chosen / count,
                           .rejected = all.rejected / count,
                           .margin = (all.chosen - all.rejected) / count,
                           .accuracy = all.accuracy / count};
}

/* ---- a run ---- */

fsdp_status fsdp__dpo_check_rows(const fsdp_train_run *run, const char *key, const fsdp__rows *rows)
{
    bool pairs = rows && rows->pairs;

    if (pairs == fsdp__train_is_dpo(run->config))
        return FSDP_OK;
    if (pairs)
        return FSDP_FAIL(FSDP_INVALID,
                         "%s: '%s' has pairs of chosen and rejected answers, which training.objective: dpo compares: "
                         "set it",
                         key, fsdp__rows_text(rows));
    return FSDP_FAIL(FSDP_INVALID,
                     "%s: training.objective is dpo, which compares answers, but there are no pairs: name JSON lines "
                     "with chosen and rejected",
                     key);
}

/* ---- the loss ---- */

/* Makes a column of the batch's reference: 0 the chosen, 1 the rejected answers; of zeros in a dry run. */
static fsdp_tensor *reference_of(const fsdp_train_run *run, int side)
{
    int64_t count = run->config->training.local_batch_size, ranks = run->data_ranks;
    float *values = run->dpo.batch;
    int64_t first;

    if (!run->loader)
        return fsdp_zeros(run->device, FSDP_F32, 1, &count);
    /* The loader stands behind the batch of the last rank. */
    first = fsdp_loader_position(run->loader) - (ranks - run->data_rank) * count;
    for (int64_t b = 0; b < count; b++)
        values[b] = run->dpo.trained.values[2 * fsdp__loader_window(run->loader, first + b) + side];
    return fsdp_from_data(run->device, FSDP_F32, 1, &count, values);
}

/* Adds what the pairs of a microbatch have been rewarded with. */
static fsdp_status note(fsdp_train_run *run, const fsdp_tensor *chosen, const fsdp_tensor *rejected)
{
    int64_t count = run->config->training.local_batch_size;
    float *c = run->dpo.batch, *r = c + count;
    double *sums = run->dpo.sums;

    FSDP_TRY(fsdp_tensor_read(chosen, FSDP_F32, c));
    FSDP_TRY(fsdp_tensor_read(rejected, FSDP_F32, r));
    for (int64_t b = 0; b < count; b++) {
        sums[0] += c[b];
        sums[1] += r[b];
        sums[2] += c[b] > r[b];
    }
    return FSDP_OK;
}

fsdp_tensor *fsdp__dpo_loss(fsdp_train_run *run, const fsdp_batch *batch, fsdp_tensor *losses)
{
    const fsdp_train_config *c = run->config;
    double beta = fsdp__train_beta(c), smoothing = fsdp__train_label_smoothing(c);
    int64_t count = c->training.local_batch_size;
    fsdp_tensor *sums[2], *z;

    if (!losses || fsdp__pair_sums(losses, batch->positions, sums) != FSDP_OK)
        return NULL;
    for (int side = 0; side < 2; side++)
        sums[side] = fsdp_scale(fsdp_sub(sums[side], reference_of(run, side)), beta);
    z = fsdp_sub(sums[0], sums[1]);
    if (!z || (run->loader && note(run, sums[0], sums[1]) != FSDP_OK))
        return NULL;
    return fsdp_binary_cross_entropy_with_logits(z, fsdp_full(run->device, FSDP_F32, 1, &count, 1 - smoothing),
                                                 FSDP_LOSS_MEAN);
}

/* ---- validations ---- */

fsdp_status fsdp__dpo_validate(fsdp_train_run *run, const fsdp_evaluate_options *options, fsdp_evaluation *found,
                               fsdp_train_validation *out)
{
    const fsdp_train_config *c = run->config;
    const fsdp__packed *packed = run->validation.packed;
    fsdp__rewards r;

    FSDP_TRY(fsdp__evaluate_pairs(run->model, packed, options, run->dpo.validated_sums, found));
    out->pairs = fsdp__evaluate_windows(packed, options);
    r = fsdp__rewards_of(run->dpo.validated_sums, run->dpo.validated.values, out->pairs, fsdp__train_beta(c),
                         fsdp__train_label_smoothing(c));
    found->loss = r.loss;
    found->perplexity = 0;
    out->reward_chosen = r.chosen;
    out->reward_rejected = r.rejected;
    out->reward_margin = r.margin;
    out->reward_accuracy = r.accuracy;
    return FSDP_OK;
}

/* ---- the report ---- */

fsdp_status fsdp__dpo_report(fsdp_train_run *run, bool wanted, fsdp_train_report *report)
{
    int ranks = fsdp_context_world_size(run->context);
    double mine[3], all[3] = {0}, pairs = (double)run->sequences;
    void **each = NULL;
    size_t *bytes = NULL;

    if (!fsdp__train_is_dpo(run->config))
        return FSDP_OK;
    report->pairs = run->sequences;
    report->reward_chosen = report->reward_rejected = report->reward_margin = report->reward_accuracy = NAN;
    memcpy(mine, run->dpo.sums, sizeof mine);
    memset(run->dpo.sums, 0, sizeof run->dpo.sums);
    if (!wanted)
        return FSDP_OK;
    if (ranks > 1)
        FSDP_TRY(fsdp_gather_objects(fsdp_world(run->context), mine, sizeof mine, &each, &bytes));
    for (int rank = 0; rank < ranks; rank += ranks / run->data_ranks)
        for (int i = 0; i < 3; i++)
            all[i] += (each ? (const double *)each[rank] : mine)[i];
    if (each)
        fsdp_objects_free(fsdp_world(run->context), each, bytes);
    report->reward_chosen = all[0] / pairs;
    report->reward_rejected = all[1] / pairs;
    report->reward_margin = report->reward_chosen - report->reward_rejected;
    report->reward_accuracy = all[2] / pairs;
    return FSDP_OK;
}
