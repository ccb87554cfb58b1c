/* svg.c - draws an explanation as a picture: who holds which rows; below, which unit is whole when, above the live
 * bytes. */
#include "draw/svg.h"
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

/* Returns the fill of a rank, or of a kind of memory. */
static int fill_of(int i)
{
    static const int fills[] = {0, 5, 3, 6, 1, 10, 8, 4, 2, 7};

    return fills[(size_t)i % FSDP__COUNT_OF(fills)];
}

enum {
    GREY = 9 /* the fill of what is nobody's, or everybody's */
};

/* ---- text ---- */

static void put_name(const char *name, int y, FILE *out)
{
    char shown[37];

    fsdp__name_end(name, sizeof shown - 1, shown);
    fsdp__svg_text("e", LEFT - 8, y + ROW - 5, shown, out);
}

/* ---- who holds which rows ---- */

/* Draws a box: from left to right its range of the sharded dimension, from top to bottom that of another. */
static void put_box(const fsdp_explained_parameter *p, fsdp_explained_box box, int fill, int y, FILE *out)
{
    int64_t all = p->dim < 0 ? p->numel : p->ndim ? p->shape[p->dim] : 1;
    double unit = (double)WIDTH / (double)FSDP__MAX(all, 1), height = ROW - 4;
    double line = p->across < 0 ? 0 : height / (double)FSDP__MAX(p->shape[p->across], 1);

    fsdp__svg_rect(fill, LEFT + unit * (double)box.first, y + line * (double)box.across_first, unit * (double)box.count,
                   p->across < 0 ? height : line * (double)box.across_count, out);
}

static void put_bar(const fsdp_explanation *e, const fsdp_explained_parameter *p, int y, FILE *out)
{
    put_name(p->name, y, out);
    if (fsdp__is_whole(e, p) && e->world_size > 1) {
        fsdp__svg_rect(GREY, LEFT, y + 2, WIDTH, ROW - 4, out);
        return;
    }
    fsdp__svg_line("grid", LEFT, y + ROW / 2, LEFT + WIDTH, y + ROW / 2, out);
    for (int i = e->part_count - 1; i >= 0; i--) /* if several hold the same, the first is visible */
        for (int k = 0; k < p->box_count && p->parts[i].numel > 0; k++)
            put_box(p, fsdp__part_box(p, i, k), fill_of(e->first_part + i), y + 2, out);
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

    fsdp__svg_text("", 8, y,
                   e->layer_ranks > 1 ? "who holds which rows: a colour is a rank, the first that has them"
                                      : "who holds which rows: a colour is a rank, grey is all of them",
                   out);
    for (int rank = 0; rank < FSDP__MIN(e->world_size, 10); rank++) {
        char text[16];

        snprintf(text, sizeof text, "%d", rank);
        fsdp__svg_key(fill_of(rank), LEFT + WIDTH - 26 * (10 - rank), y - 9, text, out);
    }
    y += 8;
    for (int64_t i = 0; i < e->parameter_count && rows < MOST_ROWS; i++)
        if (is_first_alike(e, e->parameters[i].unit) && fsdp__alike_parameters(e, i) > 0)
            put_bar(e, &e->parameters[i], y + ROW * rows++, out);
    return y + ROW * rows + 2 * ROW;
}

/* ---- the step ---- */

static fsdp__svg_range range_of(const fsdp_explanation *e)
{
    return (fsdp__svg_range){0, (double)FSDP__MAX(e->event_count, 1), LEFT, WIDTH};
}

static double x_of(const fsdp_explanation *e, int64_t event)
{
    fsdp__svg_range x = range_of(e);

    return fsdp__svg_range_place(&x, (double)event);
}

static int put_lives(const fsdp_explanation *e, int y, FILE *out)
{
    fsdp__svg_range x = range_of(e);
    int rows = 0;

    fsdp__svg_text("", 8, y, "which unit is whole when", out);
    for (int64_t i = 0; i < e->event_count; i++)
        if (fsdp__begins_phase(e, i)) {
            fsdp__svg_line("mark", x_of(e, i), y - 10, x_of(e, i), y + 8, out);
            fsdp__svg_text("", x_of(e, i) + 3, y, fsdp__phase_name(e->events[i].phase), out);
        }
    y += 8;
    for (int64_t u = 0; u < e->unit_count && rows < MOST_ROWS; u++) {
        const fsdp_explained_unit *unit = &e->units[u];

        if (unit->life_count == 0)
            continue;
        put_name(*unit->name ? unit->name : "(root)", y + ROW * rows, out);
        fsdp__svg_line("grid", LEFT, y + ROW * rows + ROW / 2, LEFT + WIDTH, y + ROW * rows + ROW / 2, out);
        for (int64_t k = 0; k < unit->life_count; k++)
            fsdp__svg_bar(fill_of(0), &x, (double)unit->lives[k].begin, (double)unit->lives[k].end, y + ROW * rows + 2,
                          ROW - 4, out);
        rows++;
    }
    return y + ROW * rows + 2 * ROW;
}

static double event_at(const void *of, int64_t i)
{
    (void)of;
    return (double)i;
}

static double live_at(const void *of, int64_t i, int kind)
{
    const fsdp_explanation *e = of;

    return kind == FSDP_MEMORY_WORKSPACE ? 0 : (double)e->events[i].live_bytes[kind];
}

static int put_memory(const fsdp_explanation *e, int y, FILE *out)
{
    fsdp__svg_range x = range_of(e);
    int fills[FSDP_MEMORY_KINDS];
    fsdp__stack stack = {FSDP_MEMORY_KINDS, fills, e->event_count, event_at, live_at, e, 1};
    char text[128];
    int used;

    for (int64_t i = 0; i < e->event_count; i++) {
        double sum = 0;

        for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
            sum += live_at(e, i, kind);
        stack.most = FSDP__MAX(stack.most, sum);
    }
    used = snprintf(text, sizeof text, "bytes that live then, up to %s", FSDP__SIZE(stack.most));
    if ((double)e->step.peak_total_bytes > stack.most) /* inside a module, where no unit comes or goes */
        snprintf(text + used, sizeof text - (size_t)used, "; in between up to %s",
                 FSDP__SIZE(e->step.peak_total_bytes));
    fsdp__svg_text("", 8, y, text, out);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        fills[kind] = fsdp__memory_fill(kind);
        if (kind != FSDP_MEMORY_WORKSPACE)
            fsdp__svg_key(fills[kind], 8, y + 12 + 18 * kind, fsdp_memory_kind_name((fsdp_memory_kind)kind), out);
    }
    fsdp__svg_stack(&stack, &x, y, MEMORY, out);
    fsdp__svg_scale(&x, stack.most, y, MEMORY, out);
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
             e->world_size, fsdp__plural(e->world_size));
    fsdp__svg_text("strong", 8, y - 8, text, out);
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
    fsdp__svg_open_file(LEFT + WIDTH + 16, height, out);
    (void)draw(e, out);
    fsdp__svg_close(out);
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot draw the explanation") : FSDP_OK;
}
