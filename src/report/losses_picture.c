/* losses_picture.c - draws the losses of runs, and their differences. */
#include "report/report.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"
#include "draw/svg.h"
#include "report/chart.h"

enum {
    WINDOW = 10, /* steps of a mean */
    WIDTH = 860,
    LOSSES = 280,
    DIFFERENCES = 160,
    LEGEND = 20,
    TITLE = 24
};

/* A run's means; `differences`: from the first run's, if both are means of as many steps. */
typedef struct means {
    fsdp__series losses, differences;
    int window; /* steps of a mean: 1 if the run has too few for one mean of WINDOW */
} means;

static fsdp_status add(fsdp__series *series, double step, double value)
{
    FSDP_TRY(fsdp__grow(&series->points, series->count, &series->capacity, sizeof *series->points));
    series->points[series->count++] = (fsdp__point_of_series){step, value};
    return FSDP_OK;
}

static fsdp_status make_means(const fsdp__recorded_run *run, const means *first, means *out)
{
    const fsdp__series *losses = fsdp__series_of(run, "loss");
    int window = losses && losses->count < WINDOW ? 1 : WINDOW;

    out->window = window;
    for (int64_t i = 0; losses && i + window <= losses->count; i += window) {
        double sum = 0, step = losses->points[i + window - 1].step;

        for (int64_t k = i; k < i + window; k++)
            sum += losses->points[k].value;
        FSDP_TRY(add(&out->losses, step, sum / window));
        if (window == first->window && i / window < first->losses.count)
            FSDP_TRY(add(&out->differences, step, sum / window - first->losses.points[i / window].value));
    }
    return FSDP_OK;
}

/* Returns how many characters of a label are shown: not the ending that all such files have. */
static int shown_of(const char *label)
{
    static const char ending[] = ".jsonl";
    size_t length = strlen(label) - (fsdp__ends_with(label, ending) ? strlen(ending) : 0);

    return (int)FSDP__MIN(length, 160);
}

/* Writes what a run's colour stands for: its name, last mean or loss, and bytes sent. */
static void draw_legend(const fsdp__recorded_run *run, const means *m, int number, double y, FILE *out)
{
    const fsdp__series *sent = fsdp__series_of(run, "bytes_sent");
    char class[24], text[300];
    int64_t last = m->losses.count - 1;

    snprintf(class, sizeof class, "line c%d", number % 8);
    if (last < 0)
        snprintf(text, sizeof text, "%.*s: no losses", shown_of(run->label), run->label);
    else
        snprintf(text, sizeof text, "%.*s: %.4f at the end%s", shown_of(run->label), run->label,
                 m->losses.points[last].value, m->window == 1 ? " of its few steps" : "");
    if (sent && sent->count > 0)
        snprintf(text + strlen(text), sizeof text - strlen(text), ", %s sent in a step",
                 FSDP__VALUE(FSDP__UNIT_BYTES, sent->points[sent->count - 1].value));
    fsdp__svg_line(class, 58, y - 4, 76, y - 4, out);
    fsdp__svg_text("", 84, y, text, out);
}

static fsdp__curve curve_of(const fsdp__series *series, const means *m, const char *name, int color)
{
    return (fsdp__curve){series, name, color, .dotted = m->window == 1};
}

static void draw(const fsdp__recorded_runs *runs, const means *all, FILE *out)
{
    fsdp__curve losses[FSDP__MOST_RUNS], differences[FSDP__MOST_RUNS];
    int count = (int)runs->count;
    double below = TITLE + LEGEND * count + LOSSES;
    fsdp__chart above = {.title = "Loss", .curves = losses, .width = WIDTH, .height = LOSSES};
    fsdp__chart under = {.title = "Differences", .curves = differences, .width = WIDTH, .height = DIFFERENCES};
    bool long_ones = false;
    char text[200];

    for (int i = 0; i < count; i++) {
        if (all[i].losses.count > 0)
            losses[above.count++] = curve_of(&all[i].losses, &all[i], runs->runs[i].label, i);
        if (i > 0 && all[i].differences.count > 0)
            differences[under.count++] = curve_of(&all[i].differences, &all[i], runs->runs[i].label, i);
        long_ones = long_ones || (all[i].losses.count > 0 && all[i].window > 1);
    }
    above.top = TITLE + LEGEND * count;
    under.top = below + TITLE;
    fsdp__svg_open_file(WIDTH, under.count > 0 ? under.top + DIFFERENCES : below, out);
    snprintf(text, sizeof text, long_ones ? "loss, means of %d steps" : "loss of each step", WINDOW);
    fsdp__svg_text("strong", 58, TITLE - 8, text, out);
    for (int i = 0; i < count; i++)
        draw_legend(&runs->runs[i], &all[i], i, TITLE + LEGEND * i + 12, out);
    fsdp__chart_draw(&above, out);
    if (under.count > 0) {
        snprintf(text, sizeof text, "difference to %.*s", shown_of(runs->runs[0].label), runs->runs[0].label);
        fsdp__svg_text("strong", 58, below + TITLE - 8, text, out);
        fsdp__chart_draw(&under, out);
    }
    fsdp__svg_close(out);
}

fsdp_status fsdp__losses_picture(const fsdp__recorded_runs *runs, FILE *out)
{
    means *all = fsdp__calloc((size_t)FSDP__MAX(runs->count, 1), sizeof *all);
    fsdp_status status = all ? FSDP_OK : FSDP_NO_MEMORY;
    int64_t points = 0;

    for (int64_t i = 0; status == FSDP_OK && i < runs->count; i++) {
        status = make_means(&runs->runs[i], &all[0], &all[i]);
        points += all[i].losses.count;
    }
    if (status == FSDP_OK && points == 0)
        status = FSDP_FAIL(FSDP_INVALID, "there is nothing to draw: no run has a step with a loss");
    if (status == FSDP_OK)
        draw(runs, all, out);
    for (int64_t i = 0; all && i < runs->count; i++) {
        fsdp__free(all[i].losses.points);
        fsdp__free(all[i].differences.points);
    }
    fsdp__free(all);
    if (status == FSDP_OK && ferror(out))
        status = FSDP_FAIL(FSDP_IO, "cannot draw the losses");
    return status;
}
