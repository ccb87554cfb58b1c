/* page.c - shows recorded runs as one HTML file. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "fsdp/context.h"
#include "report/advice.h"
#include "report/figures.h"
#include "report/report.h"

static const char head[] =
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
    "<meta name=\"color-scheme\" content=\"light dark\">\n<title>Training report</title>\n<style>\n"
    ":root{--page:#f6f5f2;--card:#fff;--text:#1d1f23;--soft:#6a6d75;--rule:#e3e1dc;--nan:#c01c28;"
    "--c0:#2563eb;--c1:#d97706;--c2:#15803d;--c3:#be123c;--c4:#7c3aed;--c5:#0e7490;--c6:#854d0e;--c7:#be185d}\n"
    "@media (prefers-color-scheme:dark){:root{--page:#131519;--card:#1c1f25;--text:#e6e7ea;--soft:#9a9ea8;"
    "--rule:#2d313a;--nan:#ff7b72;--c0:#6ea8ff;--c1:#ffb454;--c2:#5ad07a;--c3:#ff8591;--c4:#b79cff;--c5:#4fc3d9;"
    "--c6:#e3c14f;--c7:#ff8cc6}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;padding:20px 16px 60px;max-width:1360px;background:var(--page);color:var(--text);"
    "font:15px/1.5 system-ui,sans-serif}\n"
    "h1{font-size:24px;margin:8px 0 2px}h2{font-size:17px;margin:34px 0 10px}h3{font-size:14px;margin:0 0 6px;"
    "font-weight:600}p{margin:4px 0}.soft{color:var(--soft)}\n"
    ".card{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:14px 16px}\n"
    ".scroll{overflow-x:auto}table{border-collapse:separate;border-spacing:0;width:100%;font-size:14px}"
    "th,td{text-align:left;padding:6px 14px 6px 0;border-bottom:1px solid var(--rule);white-space:nowrap;"
    "vertical-align:top}td.wide{white-space:normal;overflow-wrap:anywhere;min-width:120px}"
    "th{color:var(--soft);font-weight:500}tr:last-child td{border-bottom:0}"
    ".scroll :is(th,td):first-child{position:sticky;left:0;background:var(--card);box-shadow:-16px 0 var(--card)}"
    ".number{text-align:right;font-variant-numeric:tabular-nums}\n"
    ".chip{display:inline-block;width:18px;height:0;border-top:3px solid;vertical-align:middle;margin-right:8px}"
    ".chip.dash{border-top-style:dashed}\n"
    "ul{margin:0;padding-left:20px}li{margin:6px 0}\n"
    ".curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:14px}\n"
    "svg{display:block;width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--soft)}"
    ".grid{stroke:var(--rule);fill:none}.line{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}"
    ".band{fill:none;stroke-width:2;opacity:.28}.dots{stroke-dasharray:2 4}.line.dash{stroke-dasharray:6 4}"
    ".nan{fill:var(--nan)}\n"
    ".c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}"
    ".c5{stroke:var(--c5)}.c6{stroke:var(--c6)}.c7{stroke:var(--c7)}\n"
    ".chip.c0{color:var(--c0)}.chip.c1{color:var(--c1)}.chip.c2{color:var(--c2)}.chip.c3{color:var(--c3)}"
    ".chip.c4{color:var(--c4)}.chip.c5{color:var(--c5)}.chip.c6{color:var(--c6)}.chip.c7{color:var(--c7)}\n"
    ".dot{fill:var(--card);stroke-width:1.5}label{font-size:13px;color:var(--soft);margin-left:14px;font-weight:400}"
    ".log{display:none}body:has(#log:checked) .log{display:block}body:has(#log:checked) .linear{display:none}\n"
    "summary{cursor:pointer;color:var(--soft)}footer{margin-top:36px;font-size:13px;color:var(--soft)}\n"
    "@media print{:root{--page:#fff;--card:#fff;--text:#000;--soft:#444;--rule:#ccc}body{padding:0;max-width:none;"
    "font-size:12px}label{display:none}td.device{white-space:normal}.card{break-inside:avoid}"
    ".curves{grid-template-columns:1fr 1fr}}\n"
    "</style>\n</head>\n<body>\n";

/* ---- pieces ---- */

static void put(const char *text, FILE *out)
{
    fsdp__print_xml_text(text, out);
}

static void put_chip(int64_t run, FILE *out)
{
    fprintf(out, "<span class=\"chip c%d%s\"></span>", (int)(run % 8), run >= 8 ? " dash" : "");
}

static void put_number(fsdp__unit unit, double value, FILE *out)
{
    char text[FSDP__VALUE_TEXT];

    fprintf(out, "<td class=\"number\">%s</td>", isnan(value) ? "" : fsdp__value_text(unit, value, text));
}

static void put_cell(const char *class, const char *text, FILE *out)
{
    fprintf(out, "<td class=\"%s\">", class);
    put(text ? text : "", out);
    fputs("</td>", out);
}

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
    put_chip(number, out);
    put(run->label, out);
    fputs("</td><td>", out);
    put(model ? model : "", out);
    fputs("</td>", out);
    put_number(FSDP__UNIT_COUNT, fsdp__header_number(run, "parameters"), out);
    put_cell("number", run->ranks, out);
    fprintf(out, "<td class=\"number\">%.0f", isnan(f.last_step) ? 0 : f.last_step);
    if (!isnan(f.steps))
        fprintf(out, " of %.0f", f.steps);
    fputs("</td>", out);
    put_number(FSDP__UNIT_NONE, f.loss, out);
    put_number(FSDP__UNIT_NONE, f.best_loss, out);
    put_number(FSDP__UNIT_COUNT, f.tokens_per_second, out);
    put_number(FSDP__UNIT_MS, f.step_ms, out);
    put_number(FSDP__UNIT_BYTES, f.peak_bytes, out);
    put_time(f.seconds, out);
    fputs("<td>", out);
    put(started ? started : "", out);
    if (run->continued)
        fprintf(out, ", continued %lld time%s", (long long)run->continued, run->continued == 1 ? "" : "s");
    fputs("</td>", out);
    put_cell("device", run->devices, out);
    fputs("</tr>\n", out);
}

static void put_runs(const fsdp__recorded_runs *runs, FILE *out)
{
    fputs("<div class=\"card scroll\"><table><tr><th>run</th><th>model</th><th class=\"number\">parameters</th>"
          "<th class=\"number\">ranks</th><th class=\"number\">steps</th><th class=\"number\">last loss</th>"
          "<th class=\"number\">best validation</th><th class=\"number\">tokens/s</th><th class=\"number\">a step</th>"
          "<th class=\"number\">peak memory</th><th class=\"number\">all steps</th><th>started</th>"
          "<th>device</th></tr>\n",
          out);
    for (int64_t i = 0; i < runs->count; i++)
        put_run(&runs->runs[i], i, out);
    fputs("</table></div>\n", out);
}

/* ---- what stands out ---- */

static fsdp_status put_advice(const fsdp__recorded_runs *runs, FILE *out)
{
    fsdp__advices advices;
    fsdp_status status = fsdp__advices_of(runs, &advices);

    if (status == FSDP_OK) {
        fputs("<h2>What stands out</h2>\n<div class=\"card\">", out);
        if (advices.count == 0)
            fputs("<p>Nothing: no step was lost, none was slow, and the loss had no jump.</p>", out);
        else
            fputs("<ul>\n", out);
        for (int64_t i = 0; i < advices.count; i++) {
            const fsdp__advice *a = &advices.items[i];

            fputs("<li>", out);
            if (a->run && runs->count > 1) {
                put_chip(a->run - runs->runs, out);
                put(a->run->label, out);
                fputs(": ", out);
            }
            put(a->text, out);
            fputs("</li>\n", out);
        }
        fputs(advices.count ? "</ul></div>\n" : "</div>\n", out);
    }
    fsdp__advices_free(&advices);
    return status;
}

/* ---- settings ---- */

static void put_settings_table(const fsdp__recorded_runs *runs, const fsdp__keys *keys, FILE *out)
{
    char usual[FSDP__USUAL_TEXT];

    fputs("<div class=\"card scroll\"><table><tr><th>key</th>", out);
    for (int64_t i = 0; i < runs->count; i++) {
        fputs("<th>", out);
        put_chip(i, out);
        put(runs->runs[i].label, out);
        fputs("</th>", out);
    }
    fputs("</tr>\n", out);
    for (int64_t k = 0; k < keys->count; k++) {
        fputs("<tr><td>", out);
        put(keys->names[k], out);
        fputs("</td>", out);
        for (int64_t i = 0; i < runs->count; i++) {
            const char *value = fsdp__setting(&runs->runs[i], keys->names[k]);

            if (*value)
                put_cell("wide", value, out);
            else
                put_cell("wide soft", fsdp__usual_setting(runs, &runs->runs[i], keys->names[k], usual), out);
        }
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

static fsdp_status put_settings(const fsdp__recorded_runs *runs, FILE *out)
{
    fsdp__keys keys;
    fsdp_status status = fsdp__keys_of(runs, &keys);

    if (status == FSDP_OK && runs->count > 1) {
        fputs("<h2>Settings that differ</h2>\n", out);
        if (keys.count == 0)
            fputs("<p class=\"soft\">None, of those that the runs have recorded.</p>\n", out);
        else
            put_settings_table(runs, &keys, out);
    } else if (status == FSDP_OK && keys.count > 0) {
        fputs("<h2>Settings</h2>\n<details><summary>all that is not the default</summary>\n", out);
        put_settings_table(runs, &keys, out);
        fputs("</details>\n", out);
    }
    fsdp__keys_free(&keys);
    return status;
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

static void put_chart(const fsdp__recorded_runs *runs, const char *name, FILE *out)
{
    fsdp__chart_style q = fsdp__chart_style_of(name);
    fsdp__curve curves[2 * FSDP__MOST_RUNS];
    fsdp__chart chart = {.title = q.title, .unit = q.unit, .from_zero = q.from_zero, .curves = curves};
    bool is_loss = strcmp(name, "loss") == 0, validated = false;

    for (int64_t i = 0; i < runs->count; i++) {
        const fsdp__series *s = fsdp__series_of(&runs->runs[i], name);

        if (s && s->count > 0)
            curves[chart.count++] = (fsdp__curve){s, runs->runs[i].label, (int)i, false};
        if (is_loss && runs->runs[i].validation.count > 0) {
            curves[chart.count++] = (fsdp__curve){&runs->runs[i].validation, "validation", (int)i, true};
            validated = true;
        }
    }
    fputs("<div class=\"card\"><h3>", out);
    put(q.title, out);
    fputs(validated ? " <span class=\"soft\">and of validations, dotted</span></h3>\n" : "</h3>\n", out);
    fputs("<div class=\"linear\">", out);
    fsdp__chart_draw(&chart, out);
    chart.log_x = true;
    fputs("</div><div class=\"log\">", out);
    fsdp__chart_draw(&chart, out);
    fputs("</div></div>\n", out);
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
                strcmp(name, "tokens") != 0)
                show(runs, name, out);
        }
}

static void put_constant(const fsdp__recorded_runs *runs, const char *name, FILE *out)
{
    fsdp__chart_style q = fsdp__chart_style_of(name);

    fputs("<tr><td>", out);
    put(q.title, out);
    fputs("</td>", out);
    for (int64_t i = 0; i < runs->count; i++) {
        const fsdp__series *s = fsdp__series_of(&runs->runs[i], name);

        put_number(q.unit, s && s->count > 0 ? s->points[0].value : NAN, out);
    }
    fputs("</tr>\n", out);
}

static void put_curves(const fsdp__recorded_runs *runs, FILE *out)
{
    fputs("<h2>Curves<label><input type=\"checkbox\" id=\"log\"> steps on a logarithmic scale</label></h2>\n"
          "<div class=\"curves\">\n",
          out);
    each_key(runs, true, out, put_chart);
    fputs("</div>\n<h2>Constant within each run</h2>\n<div class=\"card scroll\"><table><tr><th></th>", out);
    for (int64_t i = 0; i < runs->count; i++) {
        fputs("<th class=\"number\">", out);
        put_chip(i, out);
        put(runs->runs[i].label, out);
        fputs("</th>", out);
    }
    fputs("</tr>\n", out);
    each_key(runs, false, out, put_constant);
    fputs("</table></div>\n", out);
}

fsdp_status fsdp__report_page(const fsdp__recorded_runs *runs, FILE *out)
{
    char made[40];
    time_t now = time(NULL);
    struct tm utc;

    strftime(made, sizeof made, "%Y-%m-%d %H:%M UTC", gmtime_r(&now, &utc));
    fputs(head, out);
    fprintf(out, "<h1>Training report</h1>\n<p class=\"soft\">%lld run%s, %s, fsdp %s</p>\n", (long long)runs->count,
            runs->count == 1 ? "" : "s", made, FSDP_VERSION);
    fputs("<h2>At a glance</h2>\n", out);
    put_runs(runs, out);
    FSDP_TRY(put_advice(runs, out));
    FSDP_TRY(put_settings(runs, out));
    put_curves(runs, out);
    fputs("<footer>Where a curve has more steps than the picture has columns, its line is the mean of a column and the "
          "band behind it spans the least and the largest value: no extreme is left out. Tokens a second and the time "
          "of a step are medians without the first step. A red mark is a value that is NaN or infinite.</footer>\n"
          "</body>\n</html>\n",
          out);
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot write the report") : FSDP_OK;
}
