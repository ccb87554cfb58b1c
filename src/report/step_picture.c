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
    NAME = 24 /* characters of a name */
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

int fsdp__memory_fill(int kind)
{
    static const int fills[] = {
        [FSDP_MEMORY_PARAMETER_SHARD] = 0, [FSDP_MEMORY_UNSHARDED_PARAMETER] = 5, [FSDP_MEMORY_GRADIENT] = 3,
        [FSDP_MEMORY_OPTIMIZER_STATE] = 2, [FSDP_MEMORY_ACTIVATION] = 1,          [FSDP_MEMORY_WORKSPACE] = 9};

    return fills[kind];
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

static void draw_row(const row *r, const fsdp__range *x, double y, double height, FILE *out)
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

static void draw_stretches(const fsdp__traced_step *step, int rank, bool calls, const fsdp__range *x, double y,
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

void fsdp__step_picture_rank(const fsdp__traced_step *step, int rank, const fsdp__range *x, double y, double height,
                             FILE *out)
{
    draw_stretches(step, rank, false, x, y, 0.72 * height, out);
    draw_stretches(step, rank, true, x, y + 0.8 * height, 0.2 * height, out);
}

void fsdp__step_picture_unit(const fsdp__traced_step *step, int64_t n, const fsdp__range *x, double y, double height,
                             FILE *out)
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

static double moment_of(const void *of, int64_t i)
{
    const fsdp__traced_step *step = of;

    return (double)(i < step->memory_count ? step->memory[i].at : step->ranks[step->memory_rank].ns);
}

static double bytes_of(const void *of, int64_t i, int layer)
{
    const fsdp__traced_step *step = of;

    return (double)step->memory[i].bytes[layer];
}

void fsdp__step_picture_memory(const fsdp__traced_step *step, const fsdp__range *x, double y, double height, FILE *out)
{
    int fills[FSDP_MEMORY_KINDS];
    fsdp__stack stack = {.layers = FSDP_MEMORY_KINDS,
                         .fills = fills,
                         .count = step->memory_count,
                         .at = moment_of,
                         .value = bytes_of,
                         .of = step,
                         .most = (double)FSDP__MAX(step->memory_peak, 1)};

    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        fills[kind] = fsdp__memory_fill(kind);
    fsdp__svg_stack(&stack, x, y, height, out);
}
