/* step_picture.c - draws a traced step. */
#include "report/step_picture.h"

#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "report/chart.h"

enum {
    COLUMNS = 1000, /* of a row: what is narrower is drawn with what lies beside it */
    LEFT = 150,
    WIDTH = 700,
    ROW = 18,
    MEMORY = 150,
    NAME = 22, /* characters of a name */
    KEY = 170  /* room for what a colour stands for */
};

int fsdp__activity_fill(fsdp__activity activity)
{
    static const int fills[] = {
        [FSDP__DOES_PRODUCTS] = 0,        [FSDP__DOES_ATTENTION] = 1,  [FSDP__DOES_OTHER] = 2,
        [FSDP__DOES_OPTIMIZER] = 3,       [FSDP__DOES_COPIES] = 4,     [FSDP__WAITS_FOR_GATHERS] = 5,
        [FSDP__WAITS_FOR_REDUCTIONS] = 6, [FSDP__WAITS_FOR_CALLS] = 8, [FSDP__WAITS_FOR_DATA] = 10,
        [FSDP__DOES_CHECKPOINT] = 7,      [FSDP__DOES_HOST] = 9,
    };

    return fills[activity];
}

int fsdp__unit_fill(fsdp__unit_state state)
{
    static const int fills[] = {
        [FSDP__UNIT_WHOLE] = 2, [FSDP__UNIT_FORWARD] = 0, [FSDP__UNIT_BACKWARD] = 1, [FSDP__UNIT_REDUCED] = 6};

    return fills[state];
}

const char *fsdp__unit_state_name(fsdp__unit_state state)
{
    static const char *const names[] = {[FSDP__UNIT_WHOLE] = "whole, or being gathered",
                                        [FSDP__UNIT_FORWARD] = "in its forward",
                                        [FSDP__UNIT_BACKWARD] = "in its backward",
                                        [FSDP__UNIT_REDUCED] = "its gradients are reduced"};

    return names[state];
}

/* ---- rows ---- */

static int fill_of_call(int kind)
{
    return fsdp__activity_fill(kind == FSDP_ALL_GATHER                                  ? FSDP__WAITS_FOR_GATHERS
                               : kind == FSDP_REDUCE_SCATTER || kind == FSDP_ALL_REDUCE ? FSDP__WAITS_FOR_REDUCTIONS
                                                                                        : FSDP__WAITS_FOR_CALLS);
}

/* A row is drawn column by column: each has the colour that fills most of it, and neighbours of one colour become one
 * shape. So a row of a million stretches has at most as many shapes as columns. */
typedef struct row {
    double filled[COLUMNS][16]; /* of a column by each fill, as a part */
} row;

static void add_to_row(row *r, int fill, double begin, double end)
{
    int first = (int)(begin * COLUMNS), last = (int)(end * COLUMNS);

    for (int c = FSDP__MAX(first, 0); c <= last && c < COLUMNS; c++)
        r->filled[c][fill] += FSDP__MIN(end * COLUMNS, c + 1) - FSDP__MAX(begin * COLUMNS, c);
}

/* Returns the fill of a column; -1: most of it is empty. */
static int fill_of_column(const row *r, int column)
{
    double all = 0;
    int most = 0;

    for (int f = 0; f < 16; f++) {
        all += r->filled[column][f];
        most = r->filled[column][f] > r->filled[column][most] ? f : most;
    }
    return all < 0.5 ? -1 : most;
}

static void draw_row(const row *r, const fsdp__svg_range *x, double y, double height, FILE *out)
{
    double column = x->width / COLUMNS;

    for (int first = 0, next; first < COLUMNS; first = next) {
        int fill = fill_of_column(r, first);

        for (next = first + 1; next < COLUMNS && fill_of_column(r, next) == fill;)
            next++;
        if (fill >= 0)
            fsdp__svg_rect(fill, x->left + column * first, y, column * (next - first), height, out);
    }
}

static void draw_stretches(const fsdp__traced_step *step, int rank, bool calls, const fsdp__svg_range *x, double y,
                           double height, FILE *out)
{
    const fsdp__stretches *all = calls ? &step->ranks[rank].calls : &step->ranks[rank].does;
    double after = (double)step->ranks[rank].after, whole = x->most - x->least;
    row r = {{{0}}};

    for (int64_t i = 0; i < all->count; i++) {
        const fsdp__stretch *s = &all->items[i];
        int fill = calls ? fill_of_call(s->activity) : fsdp__activity_fill((fsdp__activity)s->activity);

        add_to_row(&r, fill, (after + (double)s->begin) / whole, (after + (double)s->end) / whole);
    }
    draw_row(&r, x, y, height, out);
}

void fsdp__step_picture_rank(const fsdp__traced_step *step, int rank, const fsdp__svg_range *x, double y, double height,
                             FILE *out)
{
    draw_stretches(step, rank, false, x, y, 0.72 * height, out);
    draw_stretches(step, rank, true, x, y + 0.8 * height, 0.2 * height, out);
}

void fsdp__step_picture_unit(const fsdp__traced_step *step, int64_t n, const fsdp__svg_range *x, double y,
                             double height, FILE *out)
{
    for (int state = 0; state <= FSDP__UNIT_REDUCED; state++)
        for (int64_t i = n; i < step->unit_count; i++) {
            const fsdp__step_unit *u = &step->units[i];
            double inset = state == FSDP__UNIT_WHOLE ? 0 : 0.25 * height;

            if ((int)u->state != state || strcmp(u->name, step->units[n].name) != 0)
                continue;
            if (state == FSDP__UNIT_REDUCED) /* beside the others, which may go on meanwhile */
                fsdp__svg_bar(fsdp__unit_fill(u->state), x, (double)u->begin, (double)u->end, y + 0.75 * height,
                              0.25 * height, out);
            else
                fsdp__svg_bar(fsdp__unit_fill(u->state), x, (double)u->begin, (double)u->end, y + inset,
                              height - 2 * inset, out);
        }
}

/* ---- memory ---- */

typedef struct shown_memory {
    const fsdp__step_device *device;
    int64_t ns; /* of its rank's step */
} shown_memory;

static double moment_of(const void *of, int64_t i)
{
    const shown_memory *shown = of;

    return (double)(i < shown->device->count ? shown->device->moments[i].at : shown->ns);
}

static double bytes_of(const void *of, int64_t i, int layer)
{
    const shown_memory *shown = of;

    return (double)shown->device->moments[i].bytes[layer];
}

void fsdp__step_picture_memory(const fsdp__traced_step *step, const fsdp__step_device *device, const fsdp__svg_range *x,
                               double y, double height, const char *limit, FILE *out)
{
    shown_memory shown = {device, step->ranks[device->rank].ns};
    int fills[FSDP_MEMORY_KINDS];
    fsdp__stack stack = {.layers = FSDP_MEMORY_KINDS,
                         .fills = fills,
                         .count = device->count,
                         .at = moment_of,
                         .value = bytes_of,
                         .of = &shown,
                         .most = fsdp__svg_top((double)FSDP__MAX(device->peak, 1), step->device_bytes)};

    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        fills[kind] = fsdp__memory_fill(kind);
    fsdp__svg_stack(&stack, x, y, height, out);
    fsdp__svg_scale(x, stack.most, y, height, out);
    fsdp__svg_limit(x, step->device_bytes, stack.most, y, height, limit, out);
}

/* ---- a file ---- */

/* Returns whether the unit's name comes here for the first time. */
static bool is_first(const fsdp__traced_step *step, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (strcmp(step->units[i].name, step->units[n].name) == 0)
            return false;
    return true;
}

static double draw_keys(const fsdp__traced_step *const *steps, int count, double y, FILE *out)
{
    double x = LEFT;

    fsdp__svg_text("e", LEFT - 8, y + 9, "unit", out);
    for (int state = 0; state <= FSDP__UNIT_REDUCED; state++, x += KEY)
        fsdp__svg_key(fsdp__unit_fill((fsdp__unit_state)state), x, y, fsdp__unit_state_name((fsdp__unit_state)state),
                      out);
    x = LEFT;
    y += ROW;
    fsdp__svg_text("e", LEFT - 8, y + 9, "memory", out);
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        bool held = false;

        for (int s = 0; s < count; s++)
            for (int64_t i = 0; i < steps[s]->first.count; i++)
                held |= steps[s]->first.moments[i].bytes[kind] > 0;
        if (!held)
            continue;
        fsdp__svg_key(fsdp__memory_fill(kind), x, y, fsdp_memory_kind_name((fsdp_memory_kind)kind), out);
        x += KEY;
        if (x + KEY > LEFT + WIDTH + KEY / 2) {
            x = LEFT;
            y += ROW;
        }
    }
    return y + 2 * ROW;
}

/* Draws the step of rank 0. */
static double draw_step(const fsdp__traced_step *step, const char *title, double y, FILE *out)
{
    fsdp__svg_range x = {0, (double)step->ranks[0].ns, LEFT, WIDTH};
    char name[NAME + 1], most[80] = "";

    if (*title)
        fsdp__svg_text("strong", LEFT, y - 6, title, out);
    for (int64_t n = 0; n < step->unit_count; n++) {
        if (!is_first(step, n))
            continue;
        fsdp__name_end(step->units[n].name, NAME, name);
        fsdp__svg_text("e", LEFT - 8, y + ROW - 5, name, out);
        fsdp__step_picture_unit(step, n, &x, y + 2, ROW - 3, out);
        y += ROW;
    }
    if (step->first.count > 0) {
        y += 10;
        snprintf(most, sizeof most, "at most %s", FSDP__VALUE(FSDP__UNIT_BYTES, (double)step->first.peak));
        fsdp__step_picture_memory(step, &step->first, &x, y, MEMORY, FSDP__VALUE(FSDP__UNIT_BYTES, step->device_bytes),
                                  out);
        y += MEMORY;
    }
    fsdp__svg_text("", LEFT, y + 18, "0", out);
    fsdp__svg_text("e", LEFT - 8, y + 18, "rank 0", out);
    fsdp__svg_text("m", LEFT + WIDTH / 2.0, y + 18, most, out);
    fsdp__svg_text("e", LEFT + WIDTH, y + 18, FSDP__VALUE(FSDP__UNIT_MS, x.most / 1e6), out);
    return y + 2 * ROW;
}

static double draw_all(const fsdp__traced_step *const *steps, const char *const *titles, int count, FILE *out)
{
    double y = 26;

    for (int s = 0; s < count; s++)
        y = draw_step(steps[s], count > 1 ? titles[s] : "", y + (s ? 18 : 0), out);
    return draw_keys(steps, count, y, out);
}

/* All is drawn twice: the first time to find its height. */
fsdp_status fsdp__step_pictures(const fsdp__traced_step *const *steps, const char *const *titles, int count, FILE *out)
{
    FILE *nowhere = fopen("/dev/null", "w");
    double height;

    if (!nowhere)
        return FSDP_FAIL(FSDP_IO, "cannot measure the picture: /dev/null cannot be opened");
    height = draw_all(steps, titles, count, nowhere);
    fclose(nowhere);
    fsdp__svg_open_file(LEFT + WIDTH + 16, height, out);
    (void)draw_all(steps, titles, count, out);
    fsdp__svg_close(out);
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot draw the step") : FSDP_OK;
}
