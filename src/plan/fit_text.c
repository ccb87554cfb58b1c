/* fit_text.c - prints the rows of a search as text and as JSON. */
#include "plan/fit.h"

#include "base/text.h"
#include "explain/json_value.h"
#include "plan/show_plan.h"
#include "train/run_config.h"

static const char *strategy_text(const fsdp__fit_row *row, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s%s%s", row->strategy, row->never_reshards ? ", kept whole" : "",
             row->units_always ? ", small units" : "");
    return text;
}

static void put_row(const fsdp__fit_row *row, FILE *out)
{
    fprintf(out, "  %-22s %-10s %-8s %5lld x %-4lld", strategy_text(row, FSDP__ROOM(48)), fsdp__fit_recompute_word(row),
            row->offload ? "yes" : "no", (long long)row->microbatches, (long long)row->batch);
    fprintf(out, " %10s", FSDP__SIZE(row->needed));
    if (row->seconds > 0)
        fprintf(out, " %12s", FSDP__SECONDS(row->seconds));
    fputc('\n', out);
}

static fsdp_status put_lines(const fsdp__fit *fit, FILE *out)
{
    static const char *const always[] = {"parallelism.strategy", "activation_checkpoint.mode",
                                         "training.local_batch_size", "training.global_batch_size", NULL};
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *config = NULL;

    FSDP_TRY(fsdp__train_config_copy(fit->config, &config));
    FSDP_TRY(fsdp__fit_apply(&fit->rows[0], fit->world_size, config));
    fputs("\nThe first as lines of the config:\n\n", out);
    return fsdp__train_print_lines(fit->config, config, always, out);
}

fsdp_status fsdp__fit_check(const fsdp__fit *fit)
{
    const fsdp__fit_row *row = &fit->least;

    if (fit->count > 0)
        return FSDP_OK;
    return FSDP_FAIL(
        FSDP_NO_MEMORY,
        "nothing fits into %s for a rank: the least of %d settings needs %s (%s, recomputation %s, offload "
        "%s, %lld microbatches of %lld): take more ranks, a smaller model or shorter sequences",
        fsdp__size_text_beside(fit->room, (double)row->needed, FSDP__ROOM(24)), fit->tried,
        fsdp__size_text_beside((double)row->needed, fit->room, FSDP__ROOM(24)), strategy_text(row, FSDP__ROOM(48)),
        fsdp__fit_recompute_word(row), row->offload ? "yes" : "no", (long long)row->microbatches,
        (long long)row->batch);
}

fsdp_status fsdp__fit_print(const fsdp__fit *fit, FILE *out)
{
    const char *a_step = fit->rows[0].seconds > 0 ? "a step" : NULL;

    FSDP_TRY(fsdp__fit_check(fit));
    fprintf(out,
            "What fits into %s for each of %d rank%s, the fastest first; %d settings were tried, each a dry run\n\n",
            FSDP__SIZE(fit->room), fit->world_size, fsdp__plural(fit->world_size), fit->tried);
    fprintf(out, "  %-22s %-10s %-8s %12s %10s", "strategy", "recompute", "offload", "microbatches", "memory");
    fprintf(out, a_step ? " %12s\n" : "%s\n", a_step ? a_step : "");
    for (int i = 0; i < fit->count; i++)
        put_row(&fit->rows[i], out);
    FSDP_TRY(put_lines(fit, out));
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot print what fits") : FSDP_OK;
}

static json_t *row_of(const fsdp__fit_row *row)
{
    json_t *object = json_object();

    fsdp__json_put(&object, "strategy", fsdp__json_text(row->strategy));
    fsdp__json_put(&object, "kept_whole", json_boolean(row->never_reshards));
    fsdp__json_put(&object, "single_layers", json_boolean(row->units_always));
    fsdp__json_put(&object, "recompute", fsdp__json_text(fsdp__fit_recompute_word(row)));
    fsdp__json_put(&object, "offload", json_boolean(row->offload));
    fsdp__json_put(&object, "local_batch", json_integer(row->batch));
    fsdp__json_put(&object, "microbatches", json_integer(row->microbatches));
    fsdp__json_put(&object, "peak_bytes", json_integer((json_int_t)row->bytes));
    fsdp__json_put(&object, "needed_bytes", json_integer((json_int_t)row->needed));
    if (row->seconds > 0)
        fsdp__json_put(&object, "step_seconds", fsdp__json_real(row->seconds));
    return object;
}

fsdp_status fsdp__fit_json(const fsdp__fit *fit, FILE *out)
{
    json_t *object = json_object(), *rows = json_array();

    for (int i = 0; i < fit->count; i++)
        fsdp__json_append(&rows, row_of(&fit->rows[i]));
    fsdp__json_put(&object, "room_bytes", fsdp__json_real(fit->room));
    fsdp__json_put(&object, "tried", json_integer(fit->tried));
    fsdp__json_put(&object, "least", row_of(&fit->least));
    fsdp__json_put(&object, "rows", rows);
    return fsdp__json_print(object, out);
}
