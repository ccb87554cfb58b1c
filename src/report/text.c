/* text.c - shows recorded runs as text. */
#include <math.h>

#include "base/text.h"
#include "report/figures.h"
#include "report/planned.h"
#include "report/report.h"

enum {
    MOST_RANKS = 32, /* that are listed */
    MOST_KERNELS = 8
};

static void put_figure(const char *what, fsdp__unit unit, double value, FILE *out)
{
    if (!isnan(value))
        fprintf(out, "  %-20s%s\n", what, FSDP__VALUE(unit, value));
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
    if (f.missing > 0)
        fprintf(out, ", %.0f without a line", f.missing);
    fputc('\n', out);
    put_figure("last loss", FSDP__UNIT_NONE, f.loss, out);
    put_figure("best validation", FSDP__UNIT_NONE, f.best_loss, out);
    put_figure("tokens a second", FSDP__UNIT_COUNT, f.tokens_per_second, out);
    if (!isnan(f.step_ms))
        fprintf(out, "  %-20s%s (median)\n", "a usual step", FSDP__VALUE(FSDP__UNIT_MS, f.step_ms));
    put_figure("peak memory", FSDP__UNIT_BYTES, f.peak_bytes, out);
    put_figure("all steps", FSDP__UNIT_MS, 1000 * f.seconds, out);
    fputc('\n', out);
}

static fsdp_status put_differences(const fsdp__recorded_runs *runs, FILE *out)
{
    char usual[FSDP__USUAL_TEXT];
    FSDP__SCOPED(fsdp__keys_free) fsdp__keys keys = {.count = 0};

    FSDP_TRY(fsdp__keys_of(runs, &keys));
    if (runs->count < 2)
        return FSDP_OK;
    fputs(keys.count ? "Settings that differ\n" : "No recorded setting differs.\n\n", out);
    for (int64_t k = 0; k < keys.count; k++) {
        fprintf(out, "  %s\n", FSDP__SHOWN_NAME(keys.names[k]));
        for (int64_t i = 0; i < runs->count; i++) {
            const fsdp__recorded_run *run = &runs->runs[i];
            const char *value = fsdp__setting(run, keys.names[k]);

            fprintf(out, "    %-23s %s\n", run->label,
                    *value ? FSDP__SHOWN_NAME(value) : fsdp__usual_setting(runs, run, keys.names[k], usual));
        }
    }
    if (keys.count)
        fputc('\n', out);
    return FSDP_OK;
}

/* ---- traces, records and plans ---- */

/* Lists the kernels that take most time, and what lies between them. */
static void put_kernels(const fsdp__traced_step *step, FILE *out)
{
    double ranks = step->trace.rank_count, gaps = 0;

    if (step->kernel_count == 0)
        return;
    fprintf(out, "Kernels that take most time, on the average of the ranks\n  %-32s%10s%12s%14s\n", "kernel", "calls",
            "time", "of the step");
    for (int i = 0; i < step->kernel_count && i < MOST_KERNELS; i++) {
        const fsdp__step_kernel *k = &step->kernels[i];

        fprintf(out, "  %-32s%10.4g%12s%14s\n", FSDP__SHOWN_NAME(k->name), (double)k->calls / ranks,
                FSDP__VALUE(FSDP__UNIT_MS, (double)k->ns / ranks / 1e6),
                FSDP__VALUE(FSDP__UNIT_FRACTION, (double)k->ns / ranks / (double)step->ns));
    }
    for (int r = 0; r < step->trace.rank_count; r++)
        gaps += (double)step->ranks[r].gap_ns / ranks;
    fprintf(out, "  %-42s%12s%14s\n\n", "gaps between kernels, nothing is computed",
            FSDP__VALUE(FSDP__UNIT_MS, gaps / 1e6), FSDP__VALUE(FSDP__UNIT_FRACTION, gaps / (double)step->ns));
}

static void put_step(const fsdp__traced_step *step, FILE *out)
{
    if (step->number > 0)
        fprintf(out, "Step %lld", (long long)step->number);
    else
        fputs("What was traced", out);
    fprintf(out, ", by rank\n  %-6s%12s%12s%24s%22s\n", "rank", "computes", "waits", "until the last came",
            "others wait for it");
    for (int r = 0; r < step->trace.rank_count && r < MOST_RANKS; r++) {
        const fsdp__step_rank *rank = &step->ranks[r];
        int64_t computes = 0, waits = 0;

        for (int a = 0; a < FSDP__ACTIVITIES; a++) {
            computes += a <= FSDP__DOES_COPIES ? rank->parts[a] : 0;
            waits += fsdp__activity_is_wait((fsdp__activity)a) ? rank->parts[a] : 0;
        }
        fprintf(out, "  %-6d%12s%12s%24s%22s\n", r, FSDP__VALUE(FSDP__UNIT_MS, (double)computes / 1e6),
                FSDP__VALUE(FSDP__UNIT_MS, (double)waits / 1e6),
                FSDP__VALUE(FSDP__UNIT_MS, (double)rank->for_others / 1e6),
                FSDP__VALUE(FSDP__UNIT_MS, (double)rank->caused / 1e6));
    }
    if (step->trace.rank_count > MOST_RANKS)
        fprintf(out, "  and %d more\n", step->trace.rank_count - MOST_RANKS);
    fputs("  (\"until the last came\" is a part of \"waits\"; \"others wait for it\" is the sum over the other "
          "ranks)\n\n",
          out);
    put_kernels(step, out);
}

static void put_flight(const fsdp__source *source, FILE *out)
{
    const fsdp__flight_logs *logs = &source->of.flight.logs;
    char place[512];

    fprintf(out, "What each rank did last (its calls: fsdp flight %s)\n", FSDP__SHELL_WORD(source->path));
    for (int i = 0; i < logs->count && i < MOST_RANKS; i++) {
        fsdp__flight_place_text(&logs->logs[i], place, sizeof place);
        fprintf(out, "  rank %-4d %s\n", logs->logs[i].head.rank, fsdp__shown(place, FSDP__ROOM(512)));
    }
    if (logs->count > MOST_RANKS)
        fprintf(out, "  and %d more\n", logs->count - MOST_RANKS);
    fputc('\n', out);
}

static void put_plan(const fsdp__source *source, const fsdp__recorded_run *run, FILE *out)
{
    fsdp__planned rows[FSDP__PLANNED_ROWS];
    int count = fsdp__planned_rows(source->of.plan, run, rows);

    fprintf(out, "%-42s%14s%14s\n", "Planned and measured", "planned", "measured");
    for (int i = 0; i < count; i++)
        fprintf(out, "  %-40s%14s%14s\n", rows[i].what, FSDP__VALUE(rows[i].unit, rows[i].planned),
                isnan(rows[i].measured) ? "-" : FSDP__VALUE(rows[i].unit, rows[i].measured));
    fputc('\n', out);
}

static void put_source(const fsdp__sources *sources, const fsdp__source *s, FILE *out)
{
    const fsdp__recorded_run *run = s->run < 0 ? NULL : &sources->runs.runs[s->run];

    if (s->title)
        fprintf(out, "%s: ", FSDP__SHOWN_NAME(s->title));
    if (s->kind == FSDP__SOURCE_TRACE)
        put_step(&s->of.step, out);
    else if (s->kind == FSDP__SOURCE_FLIGHT)
        put_flight(s, out);
    else
        put_plan(s, run, out);
}

static void put_advice(const fsdp__report *report, FILE *out)
{
    const fsdp__advices *advices = &report->advices;

    if (advices->count == 0)
        fputs("Nothing stands out: no step was lost, none was slow, and the loss had no jump.\n", out);
    for (int64_t i = 0; i < advices->count; i++) {
        const fsdp__advice *a = &advices->items[i];
        bool named = a->run && report->sources.runs.count > 1;

        fprintf(out, "- %s%s%s\n", named ? a->run->label : "", named ? ": " : "",
                fsdp__shown(a->text, FSDP__ROOM(FSDP__ADVICE_TEXT)));
    }
}

static void put_missing(const fsdp__sources *sources, FILE *out)
{
    for (int i = 0; i < sources->unread_count; i++)
        fprintf(out, "\nLeft out: %s\n", fsdp__shown(sources->unread[i], FSDP__ROOM(FSDP__ADVICE_TEXT)));
    if (sources->runs.count > 0 && !fsdp__source_of(sources, FSDP__SOURCE_TRACE, -1, 0))
        fputs("\nWhat each rank does in a step, and for whom it waits, is shown for runs with\n"
              "metrics.trace.path=trace.json.gz.\n",
              out);
}

fsdp_status fsdp__report_text(const fsdp__report *report, FILE *out)
{
    const fsdp__sources *sources = &report->sources;

    for (int64_t i = 0; i < sources->runs.count; i++)
        put_run(&sources->runs.runs[i], out);
    FSDP_TRY(put_differences(&sources->runs, out));
    for (int i = 0; i < sources->count; i++)
        put_source(sources, &sources->items[i], out);
    put_advice(report, out);
    put_missing(sources, out);
    return FSDP_OK;
}
