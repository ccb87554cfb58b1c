/* svg.c - draws an explanation as a picture: who holds which rows; below, which unit is whole when, above the live
 * bytes. */
#include "base/compiler.h"
#include "base/text.h"
#include "explain/show.h"

enum {
    LEFT = 250, /* where the bars begin */
    WIDTH = 640,
    ROW = 16,
    MOST_ROWS = 48, /* in a picture */
    MEMORY = 160    /* height of the chart of live bytes */
};

static const char *const colors[] = {"#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2",
                                     "#edc948", "#b07aa1", "#ff9da7", "#9c755f", "#bab0ac"};
#define COLOR(i) colors[(size_t)(i) % FSDP__COUNT_OF(colors)]

/* ---- text ---- */

static void put_text(int x, int y, const char *anchor, const char *text, FILE *out)
{
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">", x, y, anchor);
    fsdp__print_xml_text(text, out);
    fputs("</text>\n", out);
}

static void put_name(const char *name, int y, FILE *out)
{
    char shown[37];

    fsdp__name_end(name, sizeof shown - 1, shown);
    put_text(LEFT - 8, y + ROW - 5, "end", shown, out);
}

static void put_rect(double x, int y, double width, int height, const char *color, FILE *out)
{
    fprintf(out, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", x, y, width, height, color);
}

/* ---- who holds which rows ---- */

static void put_bar(const fsdp_explanation *e, const fsdp_explained_parameter *p, int y, FILE *out)
{
    int64_t all = p->dim < 0 ? p->numel : p->ndim ? p->shape[p->dim] : 1;
    double unit = (double)WIDTH / (double)FSDP__MAX(all, 1);

    put_name(p->name, y, out);
    if (fsdp__is_whole(e, p) && e->world_size > 1) {
        put_rect(LEFT, y + 2, WIDTH, ROW - 4, "#888888", out);
        return;
    }
    put_rect(LEFT, y + 2, WIDTH, ROW - 4, "#eeeeee", out);
    for (int i = e->part_count - 1; i >= 0; i--) /* if several hold the same, the first is visible */
        if (p->parts[i].numel > 0)
            put_rect(LEFT + unit * (double)p->parts[i].first, y + 2, unit * (double)p->parts[i].count, ROW - 4,
                     COLOR(e->first_part + i), out);
}

/* Returns whether the unit is the first of those that are alike. */
static bool is_first_alike(const fsdp_explanation *e, int64_t unit)
{
    for (int64_t first = 0; first < e->unit_count; first += fsdp__alike_units(e, first))
        if (first == unit)
            return true;
    return unit < 0;
}

static int put_parts(const fsdp_explanation *e, int y, FILE *out)
{
    int rows = 0;

    put_text(8, y, "start", "who holds which rows: a colour is a rank, grey is all of them", out);
    for (int rank = 0; rank < FSDP__MIN(e->world_size, 10); rank++) {
        char text[16];

        snprintf(text, sizeof text, "%d", rank);
        put_rect(LEFT + WIDTH - 26 * (10 - rank), y - 10, 12, 12, COLOR(rank), out);
        put_text(LEFT + WIDTH - 26 * (10 - rank) + 15, y, "start", text, out);
    }
    y += 8;
    for (int64_t i = 0; i < e->parameter_count && rows < MOST_ROWS; i++)
        if (is_first_alike(e, e->parameters[i].unit) && fsdp__alike_parameters(e, i) > 0)
            put_bar(e, &e->parameters[i], y + ROW * rows++, out);
    return y + ROW * rows + 2 * ROW;
}

/* ---- the step ---- */

static double x_of(const fsdp_explanation *e, int64_t event)
{
    return LEFT + (double)WIDTH * (double)event / (double)FSDP__MAX(e->event_count, 1);
}

static int put_lives(const fsdp_explanation *e, int y, FILE *out)
{
    int rows = 0;

    put_text(8, y, "start", "which unit is whole when", out);
    for (int64_t i = 0; i < e->event_count; i++)
        if (fsdp__begins_phase(e, i)) {
            fprintf(out, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#bbbbbb\"/>\n", x_of(e, i), y - 10,
                    x_of(e, i), y + 8);
            put_text((int)x_of(e, i) + 3, y, "start", fsdp__phase_name(e->events[i].phase), out);
        }
    y += 8;
    for (int64_t u = 0; u < e->unit_count && rows < MOST_ROWS; u++) {
        const fsdp_explained_unit *unit = &e->units[u];

        if (unit->life_count == 0)
            continue;
        put_name(*unit->name ? unit->name : "(root)", y + ROW * rows, out);
        put_rect(LEFT, y + ROW * rows + 2, WIDTH, ROW - 4, "#eeeeee", out);
        for (int64_t k = 0; k < unit->life_count; k++)
            put_rect(x_of(e, unit->lives[k].begin), y + ROW * rows + 2,
                     x_of(e, unit->lives[k].end) - x_of(e, unit->lives[k].begin), ROW - 4, COLOR(0), out);
        rows++;
    }
    return y + ROW * rows + 2 * ROW;
}

/* Returns the live bytes of the kinds up to `kind`, which are stacked, at an event. */
static size_t live_up_to(const fsdp_explained_event *event, int kind)
{
    size_t sum = 0;

    for (int k = 0; k <= kind; k++)
        sum += k == FSDP_MEMORY_WORKSPACE ? 0 : event->live_bytes[k];
    return sum;
}

static int put_memory(const fsdp_explanation *e, int y, FILE *out)
{
    size_t most = 1;
    char text[64], size[24];

    for (int64_t i = 0; i < e->event_count; i++)
        most = FSDP__MAX(most, live_up_to(&e->events[i], FSDP_MEMORY_KINDS - 1));
    snprintf(text, sizeof text, "bytes that live then, up to %s", fsdp__size_text((double)most, size, sizeof size));
    put_text(8, y, "start", text, out);
    for (int kind = FSDP_MEMORY_KINDS - 1; kind >= 0; kind--) {
        if (kind == FSDP_MEMORY_WORKSPACE)
            continue;
        fprintf(out, "<polygon fill=\"%s\" points=\"%d,%d", COLOR(kind), LEFT, y + MEMORY);
        for (int64_t i = 0; i < e->event_count; i++) {
            double top = y + MEMORY * (1 - (double)live_up_to(&e->events[i], kind) / (double)most);

            fprintf(out, " %.1f,%.1f %.1f,%.1f", x_of(e, i), top, x_of(e, i + 1), top);
        }
        fprintf(out, " %d,%d\"/>\n", LEFT + WIDTH, y + MEMORY);
        put_rect(8, y + 12 + 18 * kind, 12, 12, COLOR(kind), out);
        put_text(26, y + 22 + 18 * kind, "start", fsdp_memory_kind_name((fsdp_memory_kind)kind), out);
    }
    return y + MEMORY + ROW;
}

/* ---- all ---- */

/* Draws the picture. It is called twice: the first time to find its height. */
static int draw(const fsdp_explanation *e, FILE *out)
{
    char text[240];
    int y = 2 * ROW;

    snprintf(text, sizeof text, "%s%s%s%s%s on %d rank%s", e->model, e->strategy ? ", " : "",
             e->strategy ? e->strategy : "", e->strategy ? ", units by " : "", e->policy ? e->policy : "",
             e->world_size, e->world_size == 1 ? "" : "s");
    put_text(8, y - 8, "start", text, out);
    y = put_parts(e, y + ROW, out);
    if (e->event_count == 0)
        return y;
    y = put_lives(e, y, out);
    return put_memory(e, y, out);
}

fsdp_status fsdp_explanation_svg(const fsdp_explanation *e, FILE *out)
{
    FILE *nowhere;
    int height;

    if (!e || !out)
        return FSDP_FAIL(FSDP_INVALID, "there is no explanation, or no stream, to draw");
    nowhere = fopen("/dev/null", "w");
    if (!nowhere)
        return FSDP_FAIL(FSDP_IO, "cannot measure the picture: /dev/null cannot be opened");
    height = draw(e, nowhere);
    fclose(nowhere);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
            LEFT + WIDTH + 16, height);
    (void)draw(e, out);
    fputs("</svg>\n", out);
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot draw the explanation") : FSDP_OK;
}
