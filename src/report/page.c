/* page.c - shows recorded runs as one HTML file. */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "base/compiler.h"
#include "base/text.h"
#include "fsdp/context.h"
#include "fsdp/device.h"
#include "report/figures.h"
#include "report/html.h"
#include "report/report.h"

enum {
    MANY_RUNS = 4 /* from so many on each is drawn apart, too */
};

static void put_time(double seconds, FILE *out)
{
    int64_t whole = (int64_t)seconds;

    if (isnan(seconds))
        fputs("<td></td>", out);
    else if (!(seconds < 1e9))
        fputs("<td class=\"number\">very long</td>", out);
    else if (seconds < 60)
        fprintf(out, "<td class=\"number\">%.1f s</td>", seconds);
    else
        fprintf(out, "<td class=\"number\">%lld:%02lld:%02lld</td>", (long long)(whole / 3600),
                (long long)(whole / 60 % 60), (long long)(whole % 60));
}

/* ---- at a glance ---- */

static void put_run(const fsdp__recorded_run *run, int64_t number, FILE *out)
{
    fsdp__run_figures f = fsdp__run_figures_of(run);
    const char *model = fsdp__header_text(run, "model"), *started = fsdp__header_text(run, "started");

    fputs("<tr><td>", out);
    fsdp__html_chip(number, out);
    fsdp__html_text(run->label, out);
    fputs("</td><td>", out);
    fsdp__html_text(model ? model : "", out);
    fputs("</td>", out);
    fsdp__html_number(FSDP__UNIT_COUNT, fsdp__header_number(run, "parameters"), out);
    fsdp__html_cell("number", run->ranks, out);
    fprintf(out, "<td class=\"number\">%.0f", isnan(f.last_step) ? 0 : f.last_step);
    if (!isnan(f.steps))
        fprintf(out, " of %.0f", f.steps);
    if (f.missing > 0)
        fprintf(out, ", %.0f without a line", f.missing);
    fputs("</td>", out);
    fsdp__html_number(FSDP__UNIT_NONE, f.loss, out);
    fsdp__html_number(FSDP__UNIT_NONE, f.best_loss, out);
    fsdp__html_number(FSDP__UNIT_COUNT, f.tokens_per_second, out);
    fsdp__html_number(FSDP__UNIT_MS, f.step_ms, out);
    fsdp__html_number(FSDP__UNIT_BYTES, f.peak_bytes, out);
    put_time(f.seconds, out);
    fputs("<td>", out);
    fsdp__html_text(started ? started : "", out);
    if (run->continued)
        fprintf(out, ", continued %lld time%s", (long long)run->continued, fsdp__plural(run->continued));
    fputs("</td>", out);
    fsdp__html_cell("device", run->devices, out);
    fputs("</tr>\n", out);
}

static void put_runs(const fsdp__recorded_runs *runs, FILE *out)
{
    fputs("<div class=\"card scroll\">", out);
    fsdp__html_columns("run|model|#parameters|#ranks|#steps|#last loss|#best validation|#tokens/s|#a usual step "
                       "(median)|#peak memory|#all steps|started|device",
                       out);
    for (int64_t i = 0; i < runs->count; i++)
        put_run(&runs->runs[i], i, out);
    fputs("</table></div>\n", out);
}

/* ---- side by side ---- */

static double figure_of(const fsdp__recorded_run *run, size_t offset)
{
    fsdp__run_figures f = fsdp__run_figures_of(run);

    return *(const double *)(const void *)((const char *)&f + offset);
}

/* Draws a figure of each run as a bar from zero. */
static void put_bars(const fsdp__recorded_runs *runs, const char *title, fsdp__unit unit, size_t offset, FILE *out)
{
    double most = 0;

    for (int64_t i = 0; i < runs->count; i++)
        most = fmax(most, figure_of(&runs->runs[i], offset));
    if (!(most > 0) || !isfinite(most))
        return;
    fprintf(out, "<div class=\"card\"><h3>%s</h3><div class=\"bars\">\n", title);
    for (int64_t i = 0; i < runs->count; i++) {
        double value = figure_of(&runs->runs[i], offset);

        fputs("<span>", out);
        fsdp__html_text(runs->runs[i].label, out);
        fprintf(out,
                "</span><div><i class=\"chip c%d\" style=\"width:%.1f%%\"></i></div><span class=\"number\">%s</span>\n",
                (int)(i % 8), isfinite(value) ? 100 * fmax(value, 0) / most : 0,
                isnan(value) ? "" : FSDP__VALUE(unit, value));
    }
    fputs("</div></div>\n", out);
}

static void put_side_by_side(const fsdp__recorded_runs *runs, FILE *out)
{
    fputs("<h2>Side by side</h2>\n<div class=\"curves\">\n", out);
    put_bars(runs, "Tokens a second", FSDP__UNIT_COUNT, offsetof(fsdp__run_figures, tokens_per_second), out);
    put_bars(runs, "A usual step (median)", FSDP__UNIT_MS, offsetof(fsdp__run_figures, step_ms), out);
    put_bars(runs, "Peak memory of a rank", FSDP__UNIT_BYTES, offsetof(fsdp__run_figures, peak_bytes), out);
    put_bars(runs, "Last loss", FSDP__UNIT_NONE, offsetof(fsdp__run_figures, loss), out);
    put_bars(runs, "Best validation", FSDP__UNIT_NONE, offsetof(fsdp__run_figures, best_loss), out);
    fputs("</div>\n", out);
}

/* ---- what stands out ---- */

static void put_advice(const fsdp__report *report, FILE *out)
{
    const fsdp__advices *advices = &report->advices;
    const fsdp__recorded_runs *runs = &report->sources.runs;

    fputs("<h2>What stands out</h2>\n<div class=\"card\">", out);
    if (advices->count == 0)
        fputs("<p>Nothing: no step was lost, none was slow, and the loss had no jump.</p>", out);
    else
        fputs("<ul>\n", out);
    for (int64_t i = 0; i < advices->count; i++) {
        const fsdp__advice *a = &advices->items[i];

        fputs("<li>", out);
        if (a->run && runs->count > 1) {
            fsdp__html_chip(a->run - runs->runs, out);
            fsdp__html_text(a->run->label, out);
            fputs(": ", out);
        }
        fsdp__html_text(a->text, out);
        fputs("</li>\n", out);
    }
    fputs(advices->count ? "</ul></div>\n" : "</div>\n", out);
}

/* ---- settings ---- */

static void put_setting(const fsdp__recorded_runs *runs, const fsdp__recorded_run *run, const char *key, FILE *out)
{
    const char *value = fsdp__setting(run, key);
    char usual[FSDP__USUAL_TEXT];

    if (*value)
        fsdp__html_cell("wide", value, out);
    else
        fsdp__html_cell("wide soft", fsdp__usual_setting(runs, run, key, usual), out);
}

static void put_label(const char *tag, const fsdp__recorded_runs *runs, int64_t run, FILE *out)
{
    fprintf(out, "<%s>", tag);
    fsdp__html_chip(run, out);
    fsdp__html_text(runs->runs[run].label, out);
    fprintf(out, "</%s>", tag);
}

/* Puts a row for each key; for each run, if there are many. */
static void put_settings_table(const fsdp__recorded_runs *runs, const fsdp__keys *keys, FILE *out)
{
    bool many = runs->count >= MANY_RUNS;

    fprintf(out, "<div class=\"card scroll\"><table><tr><th>%s</th>", many ? "run" : "key");
    for (int64_t i = 0; !many && i < runs->count; i++)
        put_label("th", runs, i, out);
    for (int64_t k = 0; many && k < keys->count; k++) {
        fputs("<th>", out);
        fsdp__html_text(keys->names[k], out);
        fputs("</th>", out);
    }
    fputs("</tr>\n", out);
    for (int64_t k = 0; !many && k < keys->count; k++) {
        fputs("<tr>", out);
        fsdp__html_cell("", keys->names[k], out);
        for (int64_t i = 0; i < runs->count; i++)
            put_setting(runs, &runs->runs[i], keys->names[k], out);
        fputs("</tr>\n", out);
    }
    for (int64_t i = 0; many && i < runs->count; i++) {
        fputs("<tr>", out);
        put_label("td", runs, i, out);
        for (int64_t k = 0; k < keys->count; k++)
            put_setting(runs, &runs->runs[i], keys->names[k], out);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

static fsdp_status put_settings(const fsdp__recorded_runs *runs, FILE *out)
{
    FSDP__SCOPED(fsdp__keys_free) fsdp__keys keys = {.count = 0};

    FSDP_TRY(fsdp__keys_of(runs, &keys));
    if (runs->count > 1) {
        fputs("<h2>Settings that differ</h2>\n", out);
        if (keys.count == 0)
            fputs("<p class=\"soft\">None, of those that the runs have recorded.</p>\n", out);
        else
            put_settings_table(runs, &keys, out);
    } else if (keys.count > 0) {
        fputs("<h2>Settings</h2>\n<details><summary>all that is not the default</summary>\n", out);
        put_settings_table(runs, &keys, out);
        fputs("</details>\n", out);
    }
    return FSDP_OK;
}

/* ---- curves ---- */

/* Returns whether the series has one value throughout. */
static bool is_constant(const fsdp__series *s)
{
    for (int64_t i = 1; i < s->count; i++)
        if (s->points[i].value != s->points[0].value)
            return false;
    return true;
}

/* Returns whether there is something to see: a value that changes. */
static bool is_worth_drawing(const fsdp__recorded_runs *runs, const char *name)
{
    for (int64_t i = 0; i < runs->count; i++) {
        const fsdp__series *s = fsdp__series_of(&runs->runs[i], name);

        if (s && !is_constant(s))
            return true;
    }
    return false;
}

/* Draws a chart on either scale of steps, of which the reader sees one. */
static void draw(fsdp__chart *chart, FILE *out)
{
    fputs("<div class=\"linear\">", out);
    fsdp__chart_draw(chart, out);
    chart->log_x = true;
    fputs("</div><div class=\"log\">", out);
    fsdp__chart_draw(chart, out);
    fputs("</div></div>\n", out);
    chart->log_x = false;
}

/* Draws each run's curve before the others', which are pale: of many runs in one chart none can be followed. */
static void put_apart(const fsdp__recorded_runs *runs, fsdp__chart *chart, FILE *out)
{
    for (int c = 0; c < chart->count; c++) {
        chart->apart = &chart->curves[c];
        if (chart->apart->dotted)
            continue;
        fprintf(out, "<div class=\"card\"><h3>%s of ", chart->title);
        fsdp__html_chip(chart->apart->color, out);
        fsdp__html_text(runs->runs[chart->apart->color].label, out);
        fputs("</h3>\n", out);
        draw(chart, out);
    }
}

/* Returns what validations say of a key of steps; NULL: nothing. */
static const fsdp__series *validations_of(const fsdp__recorded_run *run, const char *name)
{
    char key[FSDP__VALIDATION_KEY];

    if (strcmp(name, "loss") == 0)
        return run->validation.count > 0 ? &run->validation : NULL;
    return fsdp__series_of(run, fsdp__validation_key(name, key));
}

static void put_chart(const fsdp__recorded_runs *runs, const char *name, FILE *out)
{
    fsdp__chart_style q = fsdp__chart_style_of(name);
    fsdp__curve curves[2 * FSDP__MOST_RUNS];
    fsdp__chart chart = {.title = q.title, .unit = q.unit, .from_zero = q.from_zero, .curves = curves};
    bool validated = false;

    for (int64_t i = 0; i < runs->count; i++) {
        const fsdp__series *s = fsdp__series_of(&runs->runs[i], name), *v = validations_of(&runs->runs[i], name);

        if (s && s->count > 0)
            curves[chart.count++] = (fsdp__curve){s, runs->runs[i].label, (int)i, false};
        if (v)
            curves[chart.count++] = (fsdp__curve){v, "validation", (int)i, true};
        validated = validated || v;
    }
    fputs("<div class=\"card\"><h3>", out);
    fsdp__html_text(q.title, out);
    fputs(validated ? " <span class=\"soft\">and of validations, dotted</span></h3>\n" : "</h3>\n", out);
    draw(&chart, out);
    if (strcmp(name, "loss") == 0 && runs->count >= MANY_RUNS)
        put_apart(runs, &chart, out);
}

/* Draws the peaks of a run's kinds of memory. */
static void put_kinds(const fsdp__recorded_run *run, FILE *out)
{
    fsdp__curve curves[FSDP_MEMORY_KINDS];
    fsdp__chart chart = {
        .title = "Peak memory of a step, by kind", .unit = FSDP__UNIT_BYTES, .from_zero = true, .curves = curves};
    char name[2 * FSDP__JSON_NAME];

    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        const fsdp__series *s = fsdp__series_of(run, fsdp__peak_key(kind, name, sizeof name));

        if (s && s->count > 0)
            curves[chart.count++] = (fsdp__curve){s, fsdp_memory_kind_name((fsdp_memory_kind)kind), kind, false};
    }
    if (chart.count == 0)
        return;
    fprintf(out, "<div class=\"card\"><h3>%s</h3><div class=\"keys\">", chart.title);
    for (int c = 0; c < chart.count; c++) {
        fputs("<span>", out);
        fsdp__html_chip(curves[c].color, out);
        fsdp__html_text(curves[c].name, out);
        fputs("</span>", out);
    }
    fputs("</div>\n", out);
    draw(&chart, out);
}

/* Returns whether one of the runs before has the key, too. */
static bool is_of_earlier_run(const fsdp__recorded_runs *runs, int64_t before, const char *name)
{
    for (int64_t i = 0; i < before; i++)
        if (fsdp__series_of(&runs->runs[i], name))
            return true;
    return false;
}

/* Calls `show` for each key of the steps that is, or is not, worth a chart. */
static void each_key(const fsdp__recorded_runs *runs, bool drawn, FILE *out,
                     void (*show)(const fsdp__recorded_runs *runs, const char *name, FILE *out))
{
    for (int64_t i = 0; i < runs->count; i++)
        for (int64_t k = 0; k < runs->runs[i].count; k++) {
            const char *name = runs->runs[i].series[k].name;

            if (!is_of_earlier_run(runs, i, name) && is_worth_drawing(runs, name) == drawn &&
                strcmp(name, "tokens") != 0 && strcmp(name, FSDP__LEFT_OUT) != 0 && !fsdp__is_peak_key(name) &&
                !fsdp__is_validation_key(name))
                show(runs, name, out);
        }
}

static void put_constant(const fsdp__recorded_runs *runs, const char *name, FILE *out)
{
    fsdp__chart_style q = fsdp__chart_style_of(name);

    fputs("<tr><td>", out);
    fsdp__html_text(q.title, out);
    fputs("</td>", out);
    for (int64_t i = 0; i < runs->count; i++) {
        const fsdp__series *s = fsdp__series_of(&runs->runs[i], name);

        fsdp__html_number(q.unit, s && s->count > 0 ? s->points[0].value : NAN, out);
    }
    fputs("</tr>\n", out);
}

static void put_curves(const fsdp__recorded_runs *runs, FILE *out)
{
    fputs("<h2>Curves<label><input type=\"checkbox\" id=\"log\"> steps on a logarithmic scale</label></h2>\n"
          "<div class=\"curves\">\n",
          out);
    each_key(runs, true, out, put_chart);
    if (runs->count == 1)
        put_kinds(&runs->runs[0], out);
    fputs("</div>\n<h2>Constant within each run</h2>\n<div class=\"card scroll\"><table><tr><th></th>", out);
    for (int64_t i = 0; i < runs->count; i++) {
        fputs("<th class=\"number\">", out);
        fsdp__html_chip(i, out);
        fsdp__html_text(runs->runs[i].label, out);
        fputs("</th>", out);
    }
    fputs("</tr>\n", out);
    each_key(runs, false, out, put_constant);
    fputs("</table></div>\n", out);
}

/* ---- traces, records and plans ---- */

static fsdp_status put_source(const fsdp__sources *sources, const fsdp__source *s, FILE *out)
{
    const fsdp__recorded_run *run = s->run < 0 ? NULL : &sources->runs.runs[s->run];
    const char *title = s->title ? s->title : "";

    if (s->kind == FSDP__SOURCE_TRACE)
        return fsdp__html_step(&s->of.step, title, out);
    if (s->kind == FSDP__SOURCE_FLIGHT)
        fsdp__html_flight(s, title, out);
    else
        fsdp__html_plan(s, run, title, out);
    return FSDP_OK;
}

static fsdp_status put_sources(const fsdp__sources *sources, FILE *out)
{
    static const fsdp__source_kind order[] = {FSDP__SOURCE_FLIGHT, FSDP__SOURCE_PLAN, FSDP__SOURCE_TRACE};

    for (size_t k = 0; k < FSDP__COUNT_OF(order); k++)
        for (int i = 0; i < sources->count; i++)
            if (sources->items[i].kind == order[k])
                FSDP_TRY(put_source(sources, &sources->items[i], out));
    return FSDP_OK;
}

/* Says what else could be shown. */
static void put_missing(const fsdp__sources *sources, FILE *out)
{
    for (int i = 0; i < sources->unread_count; i++) {
        fputs("<p class=\"soft small\">Left out: ", out);
        fsdp__html_text(sources->unread[i], out);
        fputs("</p>\n", out);
    }
    if (sources->runs.count > 0 && !fsdp__source_of(sources, FSDP__SOURCE_TRACE, -1, 0))
        fputs("<p class=\"soft small\">What each rank does in a step, and for whom it waits, is shown for runs with "
              "metrics.trace.path=trace.json.gz.</p>\n",
              out);
    if (sources->runs.count > 0 && !fsdp__source_of(sources, FSDP__SOURCE_PLAN, -1, 0))
        fputs("<p class=\"soft small\">What was planned is shown beside it if the output of fsdp plan --json is named, "
              "too.</p>\n",
              out);
}

static void put_heading(const fsdp__recorded_runs *runs, FILE *out)
{
    char made[40];
    time_t now = time(NULL);
    struct tm utc;

    strftime(made, sizeof made, "%Y-%m-%d %H:%M UTC", gmtime_r(&now, &utc));
    fputs("<h1>Training report</h1>\n<p class=\"soft\">", out);
    if (runs->count > 0)
        fprintf(out, "%lld run%s, ", (long long)runs->count, fsdp__plural(runs->count));
    fprintf(out, "%s, fsdp %s</p>\n", made, FSDP_VERSION);
}

fsdp_status fsdp__report_page(const fsdp__report *report, FILE *out)
{
    const fsdp__recorded_runs *runs = &report->sources.runs;

    fsdp__html_head(out);
    put_heading(runs, out);
    if (runs->count > 0) {
        fputs("<h2>At a glance</h2>\n", out);
        put_runs(runs, out);
    }
    put_advice(report, out);
    FSDP_TRY(put_settings(runs, out));
    if (runs->count > 1)
        put_side_by_side(runs, out);
    FSDP_TRY(put_sources(&report->sources, out));
    if (runs->count > 0)
        put_curves(runs, out);
    fputs("<footer>", out);
    put_missing(&report->sources, out);
    if (runs->count > 0)
        fputs("<p>Where a curve has more steps than the picture has columns, its line is the mean of a column and the "
              "band behind it spans the least and the largest value: no extreme is left out. Tokens a second are "
              "those of all steps over the time of all, without the first step of each start. A red mark is a value "
              "that is NaN or infinite.</p>\n",
              out);
    fputs("</footer>\n</body>\n</html>\n", out);
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot write the report") : FSDP_OK;
}
