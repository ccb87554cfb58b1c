/* chart.c - draws curves as SVG. */
#include "report/chart.h"

#include <math.h>

#include "base/compiler.h"
#include "draw/svg.h"

enum {
    WIDTH = 420,
    HEIGHT = 230,
    LEFT = 58,
    RIGHT = 10,
    TOP = 12,
    BOTTOM = 26,
    WORD = 34,       /* the room of "step" at the end of an axis */
    MOST_TICKS = 12, /* of an axis: also where a step between them is lost in rounding */
    COLUMN = 2,      /* of the picture, in its own units */
    COLORS = 8
};

/* ---- numbers ---- */

static const char *scaled_text(double value, const char *const *units, double step, char *text)
{
    int unit = 0;

    while (fabs(value) >= step && units[unit + 1]) {
        value /= step;
        unit++;
    }
    snprintf(text, FSDP__VALUE_TEXT, "%.4g%s", value, units[unit]);
    return text;
}

const char *fsdp__value_text(fsdp__unit unit, double value, char text[FSDP__VALUE_TEXT])
{
    static const char *const counts[] = {"", "k", "M", "G", "T", NULL};
    static const char *const bytes[] = {"B", "KiB", "MiB", "GiB", "TiB", NULL};

    if (!isfinite(value)) {
        snprintf(text, FSDP__VALUE_TEXT, "not finite");
        return text;
    }
    switch (unit) {
    case FSDP__UNIT_COUNT:
        return scaled_text(value, counts, 1000, text);
    case FSDP__UNIT_BYTES:
        return scaled_text(value, bytes, 1024, text);
    case FSDP__UNIT_MS:
        snprintf(text, FSDP__VALUE_TEXT, fabs(value) < 1000 ? "%.3g ms" : "%.4g s",
                 fabs(value) < 1000 ? value : value / 1000);
        return text;
    case FSDP__UNIT_FRACTION:
        snprintf(text, FSDP__VALUE_TEXT, "%.3g %%", 100 * value);
        return text;
    case FSDP__UNIT_NONE:
        break;
    }
    snprintf(text, FSDP__VALUE_TEXT, "%.4g", value);
    return text;
}

/* ---- scales ---- */

/* Describes an axis: values from `least` to `most`, drawn from `begin` to `end`. */
typedef struct axis {
    double least, most, begin, end;
    bool log;
} axis;

static double place(const axis *a, double value)
{
    double least = a->least, most = a->most;

    if (a->log) {
        value = log10(FSDP__MAX(value, least));
        least = log10(least);
        most = log10(most);
    }
    return a->begin + (a->end - a->begin) * (value - least) / (most - least);
}

/* Values beyond what a difference of two can hold are drawn at the edge. */
static double drawable(double value)
{
    return FSDP__MAX(-1e300, FSDP__MIN(1e300, value));
}

static void include(axis *a, double value)
{
    if (!isfinite(value))
        return;
    value = drawable(value);
    a->least = FSDP__MIN(a->least, value);
    a->most = FSDP__MAX(a->most, value);
}

/* Returns the distance of about `count` ticks: 1, 2 or 5 times a power of ten; of bytes, a power of two. */
static double tick_distance(double span, int count, fsdp__unit unit)
{
    double raw = span / count, power = pow(10, floor(log10(raw)));

    if (unit == FSDP__UNIT_BYTES)
        return exp2(ceil(log2(raw)));
    raw /= power;
    return power * (raw <= 1 ? 1 : raw <= 2 ? 2 : raw <= 5 ? 5 : 10);
}

static axis steps_axis(const fsdp__chart *chart)
{
    axis x = {INFINITY, -INFINITY, LEFT, (chart->width ? chart->width : WIDTH) - RIGHT, chart->log_x};

    for (int c = 0; c < chart->count; c++) {
        const fsdp__series *s = chart->curves[c].series;

        if (s->count == 0)
            continue;
        include(&x, s->points[0].step);
        include(&x, s->points[s->count - 1].step);
    }
    if (!(x.most >= x.least)) /* no curve has a point */
        x.least = x.most = 0;
    if (x.log)
        x.least = FSDP__MAX(x.least, 1);
    if (!(x.most > x.least))
        x.most = x.least + 1;
    return x;
}

static axis values_axis(const fsdp__chart *chart)
{
    axis y = {INFINITY, -INFINITY, (chart->height ? chart->height : HEIGHT) - BOTTOM, TOP, false};
    double room;

    for (int c = 0; c < chart->count; c++)
        for (int64_t i = 0; i < chart->curves[c].series->count; i++)
            include(&y, chart->curves[c].series->points[i].value);
    if (!(y.most >= y.least))
        y.least = y.most = 0;
    if (chart->from_zero)
        include(&y, 0);
    room = y.most > y.least ? 0.05 * (y.most - y.least) : FSDP__MAX(fabs(y.most), 1) * 0.05;
    y.most += room;
    y.least -= chart->from_zero && y.least == 0 ? 0 : room;
    return y;
}

/* ---- axes ---- */

static void put_values(const axis *x, const axis *y, fsdp__unit unit, FILE *out)
{
    double distance = tick_distance(y->most - y->least, 4, unit);

    for (int i = 0; i < MOST_TICKS; i++) {
        double value = (ceil(y->least / distance) + i) * distance;

        if (!(value <= y->most))
            break;
        fprintf(out, "<path class=\"grid\" d=\"M%d %.1fH%.0f\"/>", LEFT, place(y, value), x->end);
        fsdp__svg_text("e", LEFT - 6, place(y, value) + 4, FSDP__VALUE(unit, value), out);
    }
    fputc('\n', out);
}

static void put_step(const axis *x, const axis *y, double step, FILE *out)
{
    fprintf(out, "<path class=\"grid\" d=\"M%.1f %.0fv4\"/>", place(x, step), y->begin);
    fsdp__svg_text("m", place(x, step), y->begin + 17, FSDP__VALUE(FSDP__UNIT_COUNT, step), out);
}

static void put_steps(const axis *x, const axis *y, FILE *out)
{
    double distance = FSDP__MAX(tick_distance(x->most - x->least, 5, FSDP__UNIT_NONE), 1);

    for (int i = 0; i < MOST_TICKS; i++) {
        double step = x->log ? pow(10, ceil(log10(x->least)) + i) : (ceil(x->least / distance) + i) * distance;

        if (step <= x->most && place(x, step) < x->end - WORD)
            put_step(x, y, step, out);
    }
    fsdp__svg_text("e", x->end, y->begin + 17, "step", out);
    fputc('\n', out);
}

/* ---- curves ---- */

static int64_t columns_of(const axis *x)
{
    return (int64_t)((x->end - x->begin) / COLUMN);
}

/* Holds what a column of the picture has to show. */
typedef struct column {
    double x, sum, least, most;
    int64_t count;
} column;

/* Gathers the points from `*at` on that lie in one column. Points that are not finite begin a new one, and are left
 * out: `*gap` is set. Returns whether there were any. */
static bool take_column(const fsdp__series *s, const axis *x, int64_t *at, column *c, bool *gap)
{
    int64_t first;

    *gap = false;
    for (; *at < s->count && !isfinite(s->points[*at].value); (*at)++)
        *gap = true;
    if (*at >= s->count)
        return false;
    first = (int64_t)((place(x, s->points[*at].step) - LEFT) / COLUMN);
    *c = (column){.least = INFINITY, .most = -INFINITY};
    for (; *at < s->count && isfinite(s->points[*at].value); (*at)++) {
        double where = place(x, s->points[*at].step), value = drawable(s->points[*at].value);

        if (c->count > 0 && (int64_t)((where - LEFT) / COLUMN) != first)
            break;
        c->x += where;
        c->sum += value;
        c->least = FSDP__MIN(c->least, value);
        c->most = FSDP__MAX(c->most, value);
        c->count++;
    }
    return true;
}

static void put_class(const fsdp__curve *curve, const char *kind, FILE *out)
{
    fprintf(out, "<path class=\"%s c%d%s\" d=\"", kind, curve->color % COLORS, curve->color >= COLORS ? " dash" : "");
}

/* Puts the points of a line, and ends it. */
static void put_points(const fsdp__curve *curve, const axis *x, const axis *y, FILE *out)
{
    column c;
    bool gap, begun = false;

    for (int64_t at = 0; take_column(curve->series, x, &at, &c, &gap);) {
        fprintf(out, "%s%.1f %.1f", begun && !gap ? "L" : "M", c.x / (double)c.count,
                place(y, c.sum / (double)c.count));
        if (!begun || gap) /* a point alone is visible */
            fputs("h0", out);
        begun = true;
    }
    fputs("\"/>\n", out);
}

/* Draws a stroke for each column that has several points, from the least to the largest. */
static void put_band(const fsdp__curve *curve, const axis *x, const axis *y, FILE *out)
{
    column c;
    bool gap;

    if (curve->series->count <= columns_of(x))
        return;
    put_class(curve, "band", out);
    for (int64_t at = 0; take_column(curve->series, x, &at, &c, &gap);)
        if (c.most > c.least)
            fprintf(out, "M%.1f %.1fV%.1f", c.x / (double)c.count, place(y, c.least), place(y, c.most));
    fputs("\"/>\n", out);
}

/* Marks the steps whose value is not finite, at the top. */
static void put_not_finite(const fsdp__curve *curve, const axis *x, FILE *out)
{
    const fsdp__series *s = curve->series;
    double last = -1;

    for (int64_t i = 0; i < s->count; i++) {
        double where = place(x, s->points[i].step);

        if (isfinite(s->points[i].value) || where < last + 4)
            continue;
        fprintf(out, "<path class=\"nan\" d=\"M%.1f %dl4 -7h-8z\"><title>not finite at step %.0f</title></path>", where,
                TOP + 4, s->points[i].step);
        last = where;
    }
}

static void put_dots(const fsdp__curve *curve, const axis *x, const axis *y, FILE *out)
{
    const fsdp__series *s = curve->series;

    for (int64_t i = 0; i < s->count && s->count <= columns_of(x); i++)
        if (isfinite(s->points[i].value))
            fprintf(out,
                    "<circle class=\"dot c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"><title>step %.0f: %s</title></circle>",
                    curve->color % COLORS, place(x, s->points[i].step), place(y, drawable(s->points[i].value)),
                    s->points[i].step, FSDP__VALUE(FSDP__UNIT_NONE, s->points[i].value));
    fputc('\n', out);
}

void fsdp__chart_draw(const fsdp__chart *chart, FILE *out)
{
    axis x = steps_axis(chart), y = values_axis(chart);

    fsdp__svg_open(chart->title, chart->top, x.end + RIGHT, y.begin + BOTTOM, out);
    put_values(&x, &y, chart->unit, out);
    put_steps(&x, &y, out);
    for (int c = 0; c < chart->count; c++) {
        if (chart->apart && chart->apart != &chart->curves[c]) {
            fputs("<path class=\"pale\" d=\"", out);
            put_points(&chart->curves[c], &x, &y, out);
        } else {
            put_band(&chart->curves[c], &x, &y, out);
        }
    }
    for (int c = 0; c < chart->count; c++) {
        if (chart->apart && chart->apart != &chart->curves[c])
            continue;
        put_class(&chart->curves[c], chart->curves[c].dotted ? "line dots" : "line", out);
        put_points(&chart->curves[c], &x, &y, out);
        if (chart->curves[c].dotted)
            put_dots(&chart->curves[c], &x, &y, out);
        put_not_finite(&chart->curves[c], &x, out);
    }
    fsdp__svg_close(out);
}
