/* text.c - shows recorded runs as text. */
#include <math.h>

#include "base/text.h"
#include "report/advice.h"
#include "report/figures.h"
#include "report/report.h"

static void put_figure(const char *what, fsdp__unit unit, double value, FILE *out)
{
    char text[FSDP__VALUE_TEXT];

    if (!isnan(value))
        fprintf(out, "  %-20s%s\n", what, fsdp__value_text(unit, value, text));
}

static void put_run(const fsdp__recorded_run *run, FILE *out)
{
    fsdp__run_figures f = fsdp__run_figures_of(run);
    const char *model = fsdp__header_text(run, "model"), *started = fsdp__header_text(run, "started");

    fprintf(out, "%s\n", run->label);
    if (model)
        fprintf(out, "  %-20s%s\n", "model", FSDP__SHOWN_NAME(model));
    if (run->ranks)
        fprintf(out, "  %-20s%s\n", "ranks", FSDP__SHOWN_NAME(run->ranks));
    if (run->devices)
        fprintf(out, "  %-20s%s\n", "device", FSDP__SHOWN_NAME(run->devices));
    if (started)
        fprintf(out, "  %-20s%s\n", "started", FSDP__SHOWN_NAME(started));
    fprintf(out, "  %-20s%.0f", "steps", isnan(f.last_step) ? 0 : f.last_step);
    if (!isnan(f.steps))
        fprintf(out, " of %.0f", f.steps);
    fputc('\n', out);
    put_figure("last loss", FSDP__UNIT_NONE, f.loss, out);
    put_figure("best validation", FSDP__UNIT_NONE, f.best_loss, out);
    put_figure("tokens a second", FSDP__UNIT_COUNT, f.tokens_per_second, out);
    put_figure("a step", FSDP__UNIT_MS, f.step_ms, out);
    put_figure("peak memory", FSDP__UNIT_BYTES, f.peak_bytes, out);
    put_figure("all steps", FSDP__UNIT_MS, 1000 * f.seconds, out);
    fputc('\n', out);
}

static fsdp_status put_differences(const fsdp__recorded_runs *runs, FILE *out)
{
    char usual[FSDP__USUAL_TEXT];
    fsdp__keys keys;
    fsdp_status status = fsdp__keys_of(runs, &keys);

    if (status == FSDP_OK && runs->count > 1)
        fputs(keys.count ? "Settings that differ\n" : "No recorded setting differs.\n\n", out);
    for (int64_t k = 0; status == FSDP_OK && runs->count > 1 && k < keys.count; k++) {
        fprintf(out, "  %s\n", FSDP__SHOWN_NAME(keys.names[k]));
        for (int64_t i = 0; i < runs->count; i++) {
            const fsdp__recorded_run *run = &runs->runs[i];
            const char *value = fsdp__setting(run, keys.names[k]);

            fprintf(out, "    %-24s%s\n", run->label,
                    *value ? FSDP__SHOWN_NAME(value) : fsdp__usual_setting(runs, run, keys.names[k], usual));
        }
    }
    if (status == FSDP_OK && runs->count > 1 && keys.count)
        fputc('\n', out);
    fsdp__keys_free(&keys);
    return status;
}

fsdp_status fsdp__report_text(const fsdp__recorded_runs *runs, FILE *out)
{
    fsdp__advices advices;
    fsdp_status status;

    for (int64_t i = 0; i < runs->count; i++)
        put_run(&runs->runs[i], out);
    FSDP_TRY(put_differences(runs, out));
    status = fsdp__advices_of(runs, &advices);
    if (status == FSDP_OK && advices.count == 0)
        fputs("Nothing stands out: no step was lost, none was slow, and the loss had no jump.\n", out);
    for (int64_t i = 0; status == FSDP_OK && i < advices.count; i++) {
        const fsdp__advice *a = &advices.items[i];

        fprintf(out, "- %s%s%s\n", a->run && runs->count > 1 ? a->run->label : "",
                a->run && runs->count > 1 ? ": " : "", a->text);
    }
    fsdp__advices_free(&advices);
    return status;
}
