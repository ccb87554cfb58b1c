/* bars.c - draws a comparison as bars. */
#include "compare/bars.h"

#include <stddef.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"

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
    const char *name, *color;
} part;

/* What a chart shows of a variant. `value` fills the parts, returns the figure, and writes it as the text after the
 * bar. */
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
    char all[40];

    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        parts[kind] = (double)f->memory.peak_bytes[kind];
    snprintf(text, bytes, "%s all at once", fsdp__size_text((double)f->memory.peak_total_bytes, all, sizeof all));
    return (double)f->memory.peak_total_bytes;
}

static const chart charts[] = {
    {"a step",
     3,
     {{"computing", "#8a9bb4"}, {"exposed in gathers", "#e08a2b"}, {"exposed in reductions", "#4f9d58"}},
     time_of},
    {"sent by a rank in a step",
     3,
     {{"gathers", "#e08a2b"}, {"reduce-scatters", "#4f9d58"}, {"all-reduces", "#b0413e"}},
     sent_of},
    {"memory of a rank: the peak of each kind, and a line at that of all together",
     FSDP_MEMORY_KINDS,
     {{"parameters", "#8a9bb4"},
      {"gathered", "#e08a2b"},
      {"gradients", "#4f9d58"},
      {"optimizer", "#c3cad6"},
      {"activations", "#7f6bb3"},
      {"workspace", "#d9c979"}},
     memory_of},
};

static double largest(const fsdp__comparison *c, const chart *shown)
{
    double most = 0;

    for (int v = 0; v < c->variants.count; v++) {
        double parts[PARTS] = {0};
        char text[60];

        if (!c->figures[v].has)
            continue;
        shown->value(&c->figures[v], parts, text, sizeof text);
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

    fprintf(out, "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s</text>\n", left, y + 14, shown->title);
    for (int i = 0; i < shown->count; i++) {
        fprintf(out, "<rect x=\"%.0f\" y=\"%d\" width=\"10\" height=\"10\" fill=\"%s\"/>", x, y + 24,
                shown->parts[i].color);
        fprintf(out, "<text x=\"%.0f\" y=\"%d\">%s</text>\n", x + 14, y + 33, shown->parts[i].name);
        x += 30 + 6.6 * (double)strlen(shown->parts[i].name);
    }
}

static void print_bar(const fsdp__comparison *c, const chart *shown, int variant, double most, int y, FILE *out)
{
    int left = left_of(c);
    double parts[PARTS] = {0}, x = left, scale = most > 0 ? BARS / most : 0, value = 0;
    char text[60] = "no figures";

    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", left - 8, y + 14);
    fsdp__print_xml_text(c->variants.items[variant].label, out);
    fputs("</text>", out);
    if (c->figures[variant].has)
        value = shown->value(&c->figures[variant], parts, text, sizeof text);
    for (int i = 0; i < shown->count; i++) {
        if (parts[i] > 0)
            fprintf(out, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>", x, y + 2,
                    parts[i] * scale, ROW - 4, shown->parts[i].color);
        x += parts[i] * scale;
    }
    if (left + value * scale < x - 0.5)
        fprintf(out, "<rect x=\"%.1f\" y=\"%d\" width=\"2\" height=\"%d\" fill=\"#000000\"/>", left + value * scale, y,
                ROW);
    fprintf(out, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", x + 6, y + 14, text);
}

void fsdp__comparison_print_svg(const fsdp__comparison *c, FILE *out)
{
    int left = left_of(c), width = left + BARS + RIGHT;
    int height = GAP + (int)FSDP__COUNT_OF(charts) * (HEAD + c->variants.count * ROW + GAP), y = GAP;

    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
            width, height, width, height, width, height);
    for (size_t i = 0; i < FSDP__COUNT_OF(charts); i++) {
        double most = largest(c, &charts[i]);

        print_title(&charts[i], left, y, out);
        y += HEAD;
        for (int v = 0; v < c->variants.count; v++, y += ROW)
            print_bar(c, &charts[i], v, most, y, out);
        y += GAP;
    }
    fputs("</svg>\n", out);
}
