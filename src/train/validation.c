/* validation.c - how good the model is on data that it is not trained on, and whether to go on. */
#include <math.h>
#include <stdio.h>

#include "base/compiler.h"
#include "base/hash.h"
#include "base/status.h"
#include "data/digest.h"
#include "train/dpo.h"
#include "train/evaluate.h"
#include "train/run_config.h"
#include "train/run_start.h"
#include "train/run_steps.h"
#include "train/same_facts.h"

/* ---- what it is evaluated on ---- */

static int64_t local_batch(const fsdp_train_config *config)
{
    return config->validation.local_batch_size ? config->validation.local_batch_size
                                               : config->training.local_batch_size;
}

/* Holds out the last windows of the stream, as the loader cuts it. The token at which the first of them begins is the
 * target of the last token that is trained on; it is not predicted here. */
static fsdp_status hold_out_windows(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    fsdp__run_source *source = &run->sources[0];
    int64_t length = c->training.seq_len, windows = (fsdp_tokens_count(source->data.tokens) - 1) / length;
    int64_t held = FSDP__MAX((int64_t)ceil((double)windows * c->validation.share), 1);

    if (held >= windows)
        return FSDP_FAIL(FSDP_INVALID,
                         "validation.share %g of the data, %lld windows of %lld tokens, leaves none to train on: take "
                         "less, a smaller training.seq_len, more data, or validation.path",
                         c->validation.share, (long long)FSDP__MAX(windows, 0), (long long)length);
    run->validation.tokens = source->data.tokens;
    run->validation.first = (windows - held) * length;
    source->tokens = run->validation.first + 1;
    return FSDP_OK;
}

/* Holds out the last rows. */
static fsdp_status hold_out_rows(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    const fsdp__rows *rows = run->sources[0].data.rows;
    int64_t size = rows->pairs ? 2 : 1, count = fsdp__rows_count(rows); /* a pair is held out as a whole */
    int64_t held = FSDP__MAX((int64_t)ceil((double)(count / size) * c->validation.share), 1) * size;

    if (held >= count)
        return FSDP_FAIL(FSDP_INVALID,
                         "validation.share %g of the data, %lld %s, leaves none to train on: take less, more data, or "
                         "validation.path",
                         c->validation.share, (long long)(count / size), rows->pairs ? "pairs" : "rows");
    run->validation.held_rows_from = count - held;
    return fsdp__train_pack(run, "validation.share", rows, count - held, held, &run->validation.packed);
}

static fsdp_status hold_out(fsdp_train_run *run)
{
    return run->has_rows ? hold_out_rows(run) : hold_out_windows(run);
}

static fsdp_status open_path(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;

    FSDP_TRY(
        fsdp__text_open(run, "validation.path", c->validation.paths, c->validation.path_count, &run->validation.own));
    FSDP_TRY(fsdp__dpo_check_rows(run, "validation.path", run->validation.own.rows));
    if (run->validation.own.rows)
        return fsdp__train_pack(run, "validation.path", run->validation.own.rows, 0, 0, &run->validation.packed);
    run->validation.tokens = run->validation.own.tokens;
    if (fsdp_tokens_count(run->validation.tokens) >= 2)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "validation.path: '%s' has only one token, and none to predict from it",
                     c->validation.paths[0]);
}

/* Returns a name for the validated data: a hash of the tokens, and of how they are cut, since losses of other tokens,
 * or of other windows of them, cannot be compared. */
static int64_t name_of(const fsdp_train_run *run, uint64_t hash)
{
    const fsdp__validation *v = &run->validation;
    int64_t cut[] = {v->tokens ? fsdp_tokens_count(v->tokens) : v->packed->windows, v->first,
                     run->config->training.seq_len, fsdp__validation_tokens(run)};

    return (int64_t)fsdp__hash_bytes(hash, cut, sizeof cut);
}

/* Names all that a validation reads; every rank decides by it. */
static fsdp_status name_data(fsdp_train_run *run)
{
    fsdp__validation *v = &run->validation;
    uint64_t hash[2];

    if (v->packed)
        fsdp__rows_digest(v->packed->rows, hash);
    else
        FSDP_TRY(fsdp__tokens_digest(v->tokens, v->first, fsdp__validation_tokens(run) + 1, NULL, hash));
    v->data = name_of(run, hash[0]);
    return FSDP_OK;
}

fsdp_status fsdp__validation_sample(const fsdp_train_run *run, int64_t *out)
{
    uint64_t hash = 0;

    if (run->validation.packed)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "rows have no sample of tokens");
    FSDP_TRY(fsdp__facts_hash_data(run->validation.tokens, &hash));
    *out = name_of(run, hash);
    return FSDP_OK;
}

fsdp_status fsdp__validation_open(fsdp_train_run *run)
{
    run->validation.best = run->validation.improved = INFINITY;
    if (!fsdp__train_validates(run->config))
        return FSDP_OK;
    FSDP_TRY(run->config->validation.path_count > 0 ? open_path(run) : hold_out(run));
    run->validation.on = true;
    return fsdp__train_saves(run->config) ? name_data(run) : FSDP_OK;
}

void fsdp__validation_close(fsdp_train_run *run)
{
    fsdp__packed_free(run->validation.packed);
    run->validation.packed = NULL;
    fsdp__open_data_close(&run->validation.own);
}

int64_t fsdp__validation_tokens(const fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    int64_t batch = local_batch(c) * c->training.seq_len, count;

    if (!run->validation.on)
        return 0;
    if (run->validation.packed)
        return fsdp__evaluate_answers(run->validation.packed, FSDP__MAX(c->validation.steps, 0) * local_batch(c));
    count = fsdp_tokens_count(run->validation.tokens) - run->validation.first - 1;
    return c->validation.steps > 0 && c->validation.steps < count / batch ? c->validation.steps * batch : count;
}

void fsdp__validation_count_pairs(const fsdp_train_run *run, fsdp_train_summary *out)
{
    const fsdp__packed *packed = run->validation.on ? run->validation.packed : NULL;
    int64_t most = FSDP__MAX(run->config->validation.steps, 0) * local_batch(run->config);

    if (!packed || !packed->rows->pairs)
        return;
    out->validation_pairs = most > 0 ? FSDP__MIN(most, packed->windows) : packed->windows;
    out->held_out_pairs = run->config->validation.path_count == 0 ? packed->windows : 0;
}

/* ---- a validation ---- */

/* Judges a validation. A NaN loss is lower than no other, so it is never the best. */
static void judge(fsdp_train_run *run, fsdp_train_validation *v)
{
    const fsdp_train_config *c = run->config;
    fsdp__validation *own = &run->validation;

    v->best = v->loss < own->best;
    if (v->best) {
        own->best = v->loss;
        own->best_step = run->step;
    }
    if (v->loss < own->improved - c->training.early_stop_min_delta) {
        own->improved = v->loss;
        own->without_improvement = 0;
    } else {
        own->without_improvement++;
    }
    own->stops = c->training.early_stop > 0 && own->without_improvement >= c->training.early_stop;
    v->best_loss = own->best;
    v->best_step = own->best_step;
    v->without_improvement = own->without_improvement;
    v->stops = own->stops;
}

fsdp_status fsdp__validation_check(fsdp_train_run *run, const fsdp_train_validation *v)
{
    char name[FSDP__FINITE_NAME] = "", why[FSDP__FINITE_NAME + 80] = "all weights are finite";

    if (isfinite(v->loss) || run->config->training.on_nan != FSDP_TRAIN_STOP)
        return FSDP_OK;
    FSDP_TRY(fsdp__find_not_finite(run, name));
    if (*name)
        snprintf(why, sizeof why, "'%s' holds NaN or infinite values", name);
    return FSDP_FAIL(FSDP_NOT_FINITE,
                     "the loss of the validation after step %lld is %s (%s): the run stops here; nothing is exported. "
                     "Try a lower optimizer.lr (%g); training.on_nan: continue goes on",
                     (long long)v->step, isnan(v->loss) ? "nan" : "inf", why, run->config->optimizer.lr);
}

static void progress(void *arg, int64_t done, int64_t all)
{
    const fsdp_train_run *run = arg;

    if (run->listener->validating)
        run->listener->validating(run->listener->arg, done, all);
}

static fsdp_status evaluate_weights(fsdp_train_run *run, const fsdp_evaluate_options *options,
                                    fsdp_train_validation *out)
{
    fsdp_evaluation found;

    if (fsdp__train_is_dpo(run->config))
        FSDP_TRY(fsdp__dpo_validate(run, options, &found, out));
    else if (run->validation.packed)
        FSDP_TRY(fsdp__evaluate_packed(run->model, run->validation.packed, options, &found));
    else
        FSDP_TRY(fsdp_evaluate(run->model, run->validation.tokens, options, &found));
    out->loss = found.loss;
    out->perplexity = found.perplexity;
    out->tokens = found.tokens;
    out->ms = found.seconds * 1e3;
    out->tokens_per_second = (double)found.tokens / found.seconds;
    return FSDP_OK;
}

/* Puts the weights back in their place after a failure, whose error stays: nobody shall take the average for them. If
 * the world has ended, peers may still read what lies in memory of all; then it stays as it is, and so does the run. */
static void put_back(fsdp_train_run *run)
{
    bool held = fsdp_hold_error(true);

    if (fsdp_module_reshard_all(run->model) == FSDP_OK)
        (void)fsdp__ema_swap(run);
    fsdp_release_error(held);
}

/* Has the weights come back. If only peers fail, they are back here. */
static fsdp_status end_average(fsdp_train_run *run)
{
    fsdp_status status = fsdp__train_agree(run, fsdp_module_reshard_all(run->model)), own = status;

    if (status == FSDP_OK)
        own = fsdp__ema_swap(run);
    if (own != FSDP_OK)
        put_back(run);
    return status == FSDP_OK ? fsdp__train_agree(run, own) : status;
}

static fsdp_status evaluate_average(fsdp_train_run *run, const fsdp_evaluate_options *options,
                                    fsdp_train_validation *out)
{
    fsdp_status own, status;

    FSDP_TRY(fsdp__train_agree(run, fsdp_module_reshard_all(run->model)));
    own = fsdp__ema_swap(run);
    status = fsdp__train_agree(run, own);
    if (status == FSDP_OK)
        status = evaluate_weights(run, options, out);
    if (status == FSDP_OK)
        return end_average(run);
    if (own == FSDP_OK)
        put_back(run);
    return status;
}

/* Evaluates the weights, or their average in their place. */
static fsdp_status evaluate(fsdp_train_run *run, const fsdp_evaluate_options *options, fsdp_train_validation *out)
{
    return (run->config->validation.which == FSDP_TRAIN_EMA ? evaluate_average : evaluate_weights)(run, options, out);
}

static fsdp_evaluate_options options_of(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;

    return (fsdp_evaluate_options){.seq_len = c->training.seq_len,
                                   .local_batch = local_batch(c),
                                   .steps = FSDP__MAX(c->validation.steps, 0),
                                   .first = run->validation.first,
                                   .vocab_size = run->model_config.vocab_size,
                                   .progress = progress,
                                   .arg = run,
                                   .ranks_per_batch = fsdp_context_world_size(run->context) / run->data_ranks};
}

fsdp_status fsdp_train_validate(fsdp_train_run *run, fsdp_train_validation *out)
{
    fsdp_evaluate_options options;
    fsdp_train_validation own;

    if (!run)
        return FSDP__FAIL_NULL("cannot validate: there is no run");
    if (!run->validation.on)
        return FSDP_FAIL(FSDP_INVALID, "cannot validate: set validation.path or validation.share before the run");
    options = options_of(run);
    own = (fsdp_train_validation){.step = run->step};
    FSDP_TRY(fsdp__ahead_settle(run, 0, NULL));
    FSDP_TRY(fsdp_fail_prefix(evaluate(run, &options, &own), "validation after step %lld", (long long)run->step));
    judge(run, &own);
    (void)fsdp__metrics_write_validation(run->metrics, &own);
    if (own.best)
        FSDP_TRY(fsdp__best_note(run));
    if (out)
        *out = own;
    return FSDP_OK;
}
