/* fit_text.c - prints the rows of a search as text and as JSON. */
#include "plan/fit.h"

#include "base/text.h"
#include "explain/json_value.h"
#include "plan/show_plan.h"

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
    fprintf(out, " %10s", FSDP__SIZE(row->bytes));
    if (row->seconds > 0)
        fprintf(out, " %12s", FSDP__SECONDS(row->seconds));
    fputc('\n', out);
}

static void put_lines(const fsdp__fit_row *row, int world_size, FILE *out)
{
    fprintf(out, "\nThe first as lines of a config:\n\n  parallelism:\n    strategy: %s\n", row->strategy);
    if (row->never_reshards)
        fputs("    fsdp_reshard_after_forward: never\n", out);
    if (row->units_always)
        fputs("    wrap_policy: always\n", out);
    fprintf(out, "  activation_checkpoint:\n    mode: %s\n", fsdp__fit_recompute_word(row));
    fprintf(out, "  training:\n    local_batch_size: %lld\n    global_batch_size: %lld\n", (long long)row->batch,
            (long long)(row->batch * row->microbatches * world_size));
    if (row->offload)
        fputs("    enable_cpu_offload: true\n", out);
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
        fsdp__size_text_beside(fit->room, (double)row->bytes, FSDP__ROOM(24)), fit->tried,
        fsdp__size_text_beside((double)row->bytes, fit->room, FSDP__ROOM(24)), strategy_text(row, FSDP__ROOM(48)),
        fsdp__fit_recompute_word(row), row->offload ? "yes" : "no", (long long)row->microbatches,
        (long long)row->batch);
}

fsdp_status fsdp__fit_print(const fsdp__fit *fit, const fsdp__plan_options *options, FILE *out)
{
    FSDP_TRY(fsdp__fit_check(fit));
    fprintf(out,
            "What fits into %s for each of %d rank%s, the fastest first; %d settings were tried, each a dry run\n\n",
            FSDP__SIZE(fit->room), options->world_size, fsdp__plural(options->world_size), fit->tried);
    fprintf(out, "  %-22s %-10s %-8s %12s %10s", "strategy", "recompute", "offload", "microbatches", "memory");
    fprintf(out, options->prices ? " %12s\n" : "%s\n", options->prices ? "a step" : "");
    for (int i = 0; i < fit->count; i++)
        put_row(&fit->rows[i], out);
    put_lines(&fit->rows[0], options->world_size, out);
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
