/* bars.c - draws a comparison as bars. */
#include "compare/compare_table.h"

#include <stddef.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "draw/svg.h"

enum {
    BARS = 580, /* length of the longest */
    LEAST_LEFT = 190,
    LETTER = 7,
    RIGHT = 150, /* for the number after a bar */
    ROW = 20,
    HEAD = 46, /* title and legend of a chart */
    GAP = 22,
    PARTS = 6
};

typedef struct part {
    const char *name;
    int fill;
} part;

/* Holds what a chart shows of a variant. `value` fills the parts, returns the figure, and writes it as the text after
 * the bar. */
typedef struct chart {
    const char *title;
    int count;
    part parts[PARTS];
    double (*value)(const fsdp__figures *f, double *parts, char *text, size_t bytes);
} chart;

static double sum_of(const double *parts, int count)
{
    double sum = 0;

    for (int i = 0; i < count; i++)
        sum += parts[i];
    return sum;
}

static double time_of(const fsdp__figures *f, double *parts, char *text, size_t bytes)
{
    parts[0] = FSDP__MAX(f->step_ms - f->gather_ms - f->reduce_ms, 0);
    parts[1] = f->gather_ms;
    parts[2] = f->reduce_ms;
    snprintf(text, bytes, "%.2f ms", f->step_ms);
    return sum_of(parts, 3);
}

static double sent_of(const fsdp__figures *f, double *parts, char *text, size_t bytes)
{
    parts[0] = (double)f->comm.bytes_sent[FSDP_ALL_GATHER];
    parts[1] = (double)f->comm.bytes_sent[FSDP_REDUCE_SCATTER];
    parts[2] = (double)f->comm.bytes_sent[FSDP_ALL_REDUCE];
    (void)fsdp__size_text(sum_of(parts, 3), text, bytes);
    return sum_of(parts, 3);
}

/* Fills the kinds, each of which peaks at a time of its own; so the bar is longer than what was ever there at once. */
static double memory_of(const fsdp__figures *f, double *parts, char *text, size_t bytes)
{
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        parts[kind] = (double)f->memory.peak_bytes[kind];
    snprintf(text, bytes, "%s all at once", FSDP__SIZE(f->memory.peak_total_bytes));
    return (double)f->memory.peak_total_bytes;
}

static const chart charts[] = {
    {"a step", 3, {{"computing", 0}, {"exposed in gathers", 5}, {"exposed in reductions", 6}}, time_of},
    {"sent by a rank in a step", 3, {{"gathers", 5}, {"reduce-scatters", 6}, {"all-reduces", 8}}, sent_of},
    {"memory of a rank: the peak of each kind, and a line at that of all together",
     FSDP_MEMORY_KINDS,
     {{"parameters", 0}, {"gathered", 5}, {"gradients", 3}, {"optimizer", 2}, {"activations", 1}, {"workspace", 9}},
     memory_of},
};

static double largest(const fsdp__comparison *c, const chart *shown)
{
    double most = 0;

    for (int v = 0; v < c->variants.count; v++) {
        double parts[PARTS] = {0};

        if (!c->figures[v].has)
            continue;
        shown->value(&c->figures[v], parts, FSDP__ROOM(60));
        most = FSDP__MAX(most, sum_of(parts, shown->count));
    }
    return most;
}

/* Returns the room for the names of the variants. */
static int left_of(const fsdp__comparison *c)
{
    int left = LEAST_LEFT;

    for (int v = 0; v < c->variants.count; v++)
        left = FSDP__MAX(left, LETTER * (int)strlen(c->variants.items[v].label) + 16);
    return left;
}

static void print_title(const chart *shown, int left, int y, FILE *out)
{
    double x = left;

    fsdp__svg_text("strong", left, y + 14, shown->title, out);
    for (int i = 0; i < shown->count; i++) {
        fsdp__svg_key(shown->parts[i].fill, x, y + 24, shown->parts[i].name, out);
        x += 30 + 6.6 * (double)strlen(shown->parts[i].name);
    }
}

static void print_bar(const fsdp__comparison *c, const chart *shown, int variant, double most, int y, FILE *out)
{
    int left = left_of(c);
    double parts[PARTS] = {0}, x = left, scale = most > 0 ? BARS / most : 0, value = 0;
    char text[60] = "no figures";

    fsdp__svg_text("e", left - 8, y + 14, c->variants.items[variant].label, out);
    if (c->figures[variant].has)
        value = shown->value(&c->figures[variant], parts, text, sizeof text);
    for (int i = 0; i < shown->count; i++) {
        if (parts[i] > 0)
            fsdp__svg_rect(shown->parts[i].fill, x, y + 2, parts[i] * scale, ROW - 4, out);
        x += parts[i] * scale;
    }
    if (left + value * scale < x - 0.5)
        fsdp__svg_line("edge", left + value * scale, y, left + value * scale, y + ROW, out);
    fsdp__svg_text("", x + 6, y + 14, text, out);
}

void fsdp__comparison_print_svg(const fsdp__comparison *c, FILE *out)
{
    int left = left_of(c), width = left + BARS + RIGHT;
    int height = GAP + (int)FSDP__COUNT_OF(charts) * (HEAD + c->variants.count * ROW + GAP), y = GAP;

    fsdp__svg_open_file(width, height, out);
    for (size_t i = 0; i < FSDP__COUNT_OF(charts); i++) {
        double most = largest(c, &charts[i]);

        print_title(&charts[i], left, y, out);
        y += HEAD;
        for (int v = 0; v < c->variants.count; v++, y += ROW)
            print_bar(c, &charts[i], v, most, y, out);
        y += GAP;
    }
    fsdp__svg_close(out);
}
