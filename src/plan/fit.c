/* fit.c - tries settings, one dry run after the other. */
#include "plan/fit.h"

#include <stdlib.h>

#include "base/compiler.h"
#include "base/sort.h"
#include "plan/plan.h"
#include "train/run_config.h"
#include "train/strategy_word.h"

/* ---- one row ---- */

static fsdp_status set_integer(fsdp_train_config *config, const char *key, int64_t value)
{
    char text[24];

    snprintf(text, sizeof text, "%lld", (long long)value);
    return fsdp_train_config_set(config, key, text);
}

const char *fsdp__fit_recompute_word(const fsdp__fit_row *row)
{
    static const char *const words[] = {[FSDP_RECOMPUTE_NONE] = "none",
                                        [FSDP_RECOMPUTE_FULL] = "full",
                                        [FSDP_RECOMPUTE_SELECTIVE] = "selective",
                                        [FSDP_RECOMPUTE_CHEAP] = "cheap"};

    return words[row->recompute];
}

fsdp_status fsdp__fit_apply(const fsdp__fit_row *row, int world_size, fsdp_train_config *config)
{
    int64_t copies = config->parallelism.data_parallel_replicate_degree;

    FSDP_TRY(fsdp__train_set_strategy(config, row->strategy));
    if (config->parallelism.strategy == FSDP_TRAIN_HSDP)
        config->parallelism.data_parallel_replicate_degree = copies; /* if it has none, one on each machine */
    FSDP_TRY(fsdp_train_config_set(config, "parallelism.fsdp_reshard_after_forward",
                                   row->never_reshards ? "never" : "default"));
    FSDP_TRY(fsdp_train_config_set(config, "activation_checkpoint.mode", fsdp__fit_recompute_word(row)));
    FSDP_TRY(fsdp_train_config_set(config, "training.enable_cpu_offload", row->offload ? "true" : "false"));
    if (row->units_always)
        FSDP_TRY(fsdp__train_set_policy(config, "always"));
    FSDP_TRY(set_integer(config, "training.local_batch_size", row->batch));
    return set_integer(config, "training.global_batch_size",
                       row->batch * row->microbatches * fsdp__train_data_ranks(config, world_size));
}

typedef struct search {
    const fsdp_train_config *config;
    const fsdp__plan_options *options;
    fsdp__fit *fit;
    int64_t sequences; /* of a rank in a step */
} search;

/* Plans a row. What the engine refuses is no row: *possible tells. */
static fsdp_status plan_row(const search *s, fsdp__fit_row *row, bool *possible)
{
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *config = NULL;
    FSDP__SCOPED(fsdp__plan_free_at) fsdp__plan *plan = NULL;
    fsdp_status status;

    *possible = false;
    FSDP_TRY(fsdp__train_config_copy(s->config, &config));
    status = fsdp__fit_apply(row, s->options->world_size, config);
    FSDP_TRY(fsdp__plan_try(status, config, s->options, &plan));
    if (!plan)
        return FSDP_OK;
    row->bytes = plan->peak.total;
    row->needed = fsdp__needed_bytes(&plan->e->step);
    row->seconds = plan->time.step;
    row->flops = plan->e->step.flops;
    *possible = true;
    return FSDP_OK;
}

/* Tries a row with ever smaller microbatches until one fits. */
static fsdp_status try_batches(search *s, fsdp__fit_row row, bool *fits)
{
    fsdp__fit *fit = s->fit;
    bool possible;

    *fits = false;
    for (row.batch = s->sequences; row.batch >= 1 && !*fits; row.batch--) {
        if (s->sequences % row.batch != 0)
            continue;
        row.microbatches = s->sequences / row.batch;
        FSDP_TRY(plan_row(s, &row, &possible));
        if (!possible)
            continue;
        if (fit->tried++ == 0 || row.needed < fit->least.needed)
            fit->least = row;
        *fits = (double)row.needed <= fit->room;
        if (*fits && fit->count < FSDP__FIT_ROWS)
            fit->rows[fit->count++] = row;
    }
    return FSDP_OK;
}

/* ---- all rows ---- */

/* Tries a strategy as it is, then with what saves memory and costs time, as long as that is needed to keep the whole
 * batch. */
static fsdp_status try_strategy(search *s, fsdp__fit_row row)
{
    static const fsdp_recompute_mode modes[] = {FSDP_RECOMPUTE_NONE, FSDP_RECOMPUTE_CHEAP, FSDP_RECOMPUTE_SELECTIVE,
                                                FSDP_RECOMPUTE_FULL};
    int most = fsdp__train_on_gpu(s->config);
    bool fits, whole = false;

    for (int offload = 0; offload <= most && !whole; offload++)
        for (size_t i = 0; i < FSDP__COUNT_OF(modes) && !whole; i++) {
            row.offload = offload;
            row.recompute = modes[i];
            FSDP_TRY(try_batches(s, row, &fits));
            whole = fits && s->fit->rows[s->fit->count - 1].microbatches == 1;
        }
    return FSDP_OK;
}

static fsdp_status try_all(search *s)
{
    static const fsdp__fit_row rows[] = {
        {.strategy = "ddp"},   {.strategy = "fsdp2", .never_reshards = true},
        {.strategy = "fsdp2"}, {.strategy = "zero2"},
        {.strategy = "zero3"}, {.strategy = "hsdp"},
    };
    int count = s->options->machines > 1 ? (int)FSDP__COUNT_OF(rows) : (int)FSDP__COUNT_OF(rows) - 1;

    for (int i = 0; i < count; i++)
        FSDP_TRY(try_strategy(s, rows[i]));
    if (s->fit->count == 0)
        FSDP_TRY(try_strategy(s, (fsdp__fit_row){.strategy = "fsdp2", .units_always = true}));
    return FSDP_OK;
}

/* Sorts the fastest first; without prices what computes least, and then what needs least. */
static int by_speed(const void *a, const void *b)
{
    const fsdp__fit_row *x = a, *y = b;
    double left = x->seconds > 0 ? x->seconds : x->flops, right = y->seconds > 0 ? y->seconds : y->flops;

    FSDP__ORDER_BY(left, right);
    return FSDP__COMPARE(x->needed, y->needed);
}

/* Gives the sequences of a rank, or of a team of them, in a step of the config. */
static fsdp_status share_sequences(const fsdp_train_config *config, int world_size, int64_t *out)
{
    int64_t global = config->training.global_batch_size;
    int ranks = fsdp__train_data_ranks(config, world_size);
    const char *what = fsdp__train_team(config) > 1 ? "teams of ranks" : "ranks";
    int64_t below = global / ranks * ranks;

    *out = global > 0 ? global / ranks : config->training.local_batch_size;
    if (global <= 0 || global == below)
        return FSDP_OK;
    if (below == 0)
        return FSDP_FAIL(FSDP_INVALID, "a step of %lld sequences leaves none for some of %d %s", (long long)global,
                         ranks, what);
    return FSDP_FAIL(FSDP_INVALID,
                     "--fit keeps the sequences of a step, and training.global_batch_size %lld is not a multiple of "
                     "the %d %s: the nearest that are: %lld and %lld",
                     (long long)global, ranks, what, (long long)below, (long long)(below + ranks));
}

fsdp_status fsdp__fit_find(const fsdp_train_config *config, const fsdp__plan_options *options, double room,
                           fsdp__fit *out)
{
    fsdp__plan_options alone = *options;
    search s = {.config = config, .options = &alone, .fit = out};

    if (config->parallelism.schedule)
        return FSDP_FAIL(FSDP_INVALID,
                         "--fit chooses the units, and so does parallelism.schedule: leave one of them out");
    alone.rank_alone = true;
    *out = (fsdp__fit){.config = config, .world_size = options->world_size, .room = room};
    FSDP_TRY(share_sequences(config, options->world_size, &s.sequences));
    FSDP_TRY(try_all(&s));
    if (out->tried == 0)
        return FSDP_FAIL(FSDP_INVALID, "no strategy is possible with this config: 'fsdp plan' without --fit says why");
    qsort(out->rows, (size_t)out->count, sizeof *out->rows, by_speed);
    return FSDP_OK;
}
