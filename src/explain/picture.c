/* picture.c - draws who holds which rows, and what is whole when, in characters. */
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "explain/show.h"

enum {
    NAME_COLUMNS = 34,
    PART_COLUMNS = 36,
    EVENT_COLUMNS = 68,
    MOST_ROWS = 40, /* of parameters */
    MOST_LIVES = 24 /* of units */
};

/* ---- parts ---- */

static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";

static char digit_of(int rank)
{
    return rank < 0 ? '.' : rank < (int)sizeof digits - 1 ? digits[rank] : '*';
}

static const char *count_text(int64_t count, char *text, size_t bytes)
{
    if (count < 1000000)
        snprintf(text, bytes, "%lld", (long long)count);
    else
        snprintf(text, bytes, "%.2fM", (double)count / 1e6);
    return text;
}

/* Prints the largest part, and the first rank that has less: "8 rows; 3: 5". */
static void put_sizes(const fsdp_explanation *e, const fsdp_explained_parameter *p, FILE *out)
{
    const char *what = p->dim == 0 ? "row" : p->dim < 0 ? "element" : "column";
    int64_t most = 0;
    int less = 0;

    for (int i = 0; i < e->part_count; i++)
        most = FSDP__MAX(most, p->parts[i].numel > 0 ? p->parts[i].count : 0);
    while (less < e->part_count && p->parts[less].numel > 0 && p->parts[less].count == most)
        less++;
    if (fsdp__is_whole(e, p))
        fputs("all of it", out);
    else
        fprintf(out, "%s %s%s", count_text(most, FSDP__ROOM(24)), what, fsdp__plural(most));
    if (less < e->part_count)
        fprintf(out, "; %d: %s", e->first_part + less,
                count_text(p->parts[less].numel > 0 ? p->parts[less].count : 0, FSDP__ROOM(24)));
}

/* Prints who has each row, at one index of the other dimension that is cut. */
static void put_holders(const fsdp_explanation *e, const fsdp_explained_parameter *p, int64_t across, FILE *out)
{
    char bar[PART_COLUMNS + 1] = "";
    bool whole = fsdp__is_whole(e, p) && e->world_size > 1;

    for (int i = 0; i < PART_COLUMNS; i++)
        bar[i] = whole ? '=' : digit_of(fsdp__holder(e, p, (i + 0.5) / PART_COLUMNS, across));
    fprintf(out, "%s ", bar);
}

/* Prints a line for the other columns of a parameter of which rows and columns are cut. */
static void put_more_columns(const fsdp_explanation *e, const fsdp_explained_parameter *p, FILE *out)
{
    int64_t all = p->across < 0 ? 0 : p->shape[p->across];

    for (int64_t at = fsdp__next_across(e, p, 0), next; at < all; at = next) {
        char what[48];

        next = fsdp__next_across(e, p, at);
        snprintf(what, sizeof what, "%s from %lld on", p->across == 0 ? "rows" : "columns", (long long)at);
        fprintf(out, "  %*s ", NAME_COLUMNS, what);
        put_holders(e, p, at, out);
        fprintf(out, "%lld of them\n", (long long)(next - at));
    }
}

static void put_parameter(const fsdp_explanation *e, int64_t index, int64_t alike, FILE *out)
{
    const fsdp_explained_parameter *p = &e->parameters[index];
    char name[NAME_COLUMNS + 1];

    fsdp__name_end(p->name, NAME_COLUMNS, name);
    fprintf(out, "  %-*s ", NAME_COLUMNS, name);
    put_holders(e, p, 0, out);
    put_sizes(e, p, out);
    if (p->across >= 0)
        fprintf(out, " of %lld %s", (long long)fsdp__next_across(e, p, 0), p->across == 0 ? "rows" : "columns");
    if (alike > 1)
        fprintf(out, ", x %lld", (long long)alike);
    fputc('\n', out);
    put_more_columns(e, p, out);
}

static void put_legend(const fsdp_explanation *e, FILE *out)
{
    fprintf(out, "Who holds which rows, from first to last: a character is the rank that has them");
    if (e->replicas == e->world_size && e->replicas > 1)
        fprintf(out, "; =: all ranks");
    else if (e->world_size > (int)sizeof digits - 1)
        fprintf(out, "\n(a to z: 10 to 35; *: 36 and on)");
    else if (e->world_size > 10)
        fprintf(out, "\n(a to z: 10 to 35)");
    if (e->replicas > 1 && e->replicas < e->world_size)
        fprintf(out, "\n(the first of the %d ranks that hold the same)", e->replicas);
    if (e->layer_ranks > 1)
        fprintf(out, "\n(the first one where the %d ranks that share a layer hold the same)", e->layer_ranks);
    if (e->part_count < e->world_size)
        fprintf(out, "\n(this is rank %d; what others have is a dot)", e->rank);
    fputs("\n\n", out);
}

/* Prints the parameters of one unit, or those of none (-1). */
static void put_parameters(const fsdp_explanation *e, int64_t unit, int *rows, FILE *out)
{
    for (int64_t i = 0; i < e->parameter_count; i++) {
        int64_t alike = e->parameters[i].unit == unit ? fsdp__alike_parameters(e, i) : 0;

        if (alike > 0 && (*rows)++ < MOST_ROWS)
            put_parameter(e, i, alike, out);
    }
}

void fsdp__picture_parts(const fsdp_explanation *e, FILE *out)
{
    int rows = 0;

    put_legend(e, out);
    for (int64_t first = 0, count; first < e->unit_count; first += count) {

        count = fsdp__alike_units(e, first);
        if (count > 1 && rows < MOST_ROWS)
            fprintf(out, "  %s, of which the first:\n", fsdp__units_name(e, first, count, FSDP__ROOM(80)));
        put_parameters(e, first, &rows, out);
    }
    put_parameters(e, -1, &rows, out);
    if (rows > MOST_ROWS)
        fprintf(out, "  and %d more\n", rows - MOST_ROWS);
}

/* ---- lives ---- */

static int column_of(const fsdp_explanation *e, int64_t event)
{
    return (int)(event * EVENT_COLUMNS / FSDP__MAX(e->event_count, 1));
}

static void put_phases(const fsdp_explanation *e, FILE *out)
{
    char line[EVENT_COLUMNS + 1], text[24];

    memset(line, ' ', EVENT_COLUMNS);
    line[EVENT_COLUMNS] = '\0';
    for (int64_t i = 0; i < e->event_count; i++) {
        int at = column_of(e, i), length;

        if (!fsdp__begins_phase(e, i))
            continue;
        length = snprintf(text, sizeof text, "|%s", fsdp__phase_name(e->events[i].phase));
        memset(line + at, ' ', (size_t)(EVENT_COLUMNS - at));
        memcpy(line + at, text, (size_t)FSDP__MIN(length, EVENT_COLUMNS - at));
    }
    fprintf(out, "  %-26s %s\n", "", line);
}

static void put_unit(const fsdp_explanation *e, int64_t unit, FILE *out)
{
    const fsdp_explained_unit *u = &e->units[unit];
    char line[EVENT_COLUMNS + 1], name[27];

    memset(line, '.', EVENT_COLUMNS);
    line[EVENT_COLUMNS] = '\0';
    for (int64_t i = 0; i < u->life_count; i++) {
        int from = column_of(e, u->lives[i].begin), to = column_of(e, u->lives[i].end - 1);

        for (int at = from; at <= to && at < EVENT_COLUMNS; at++)
            line[at] = u->lives[i].ahead && at == from ? '+' : '#';
    }
    fsdp__name_end(*u->name ? u->name : "(root)", 26, name);
    fprintf(out, "  %-26s %s\n", name, line);
}

/* If there are many units, only the first and the last are printed. */
void fsdp__picture_lives(const fsdp_explanation *e, FILE *out)
{
    int64_t rows = 0, row = 0;

    for (int64_t i = 0; i < e->unit_count; i++)
        rows += e->units[i].life_count > 0;
    fprintf(out,
            "What is whole when: the %lld events of the step from left to right\n"
            "(#: the unit's parameters are gathered; + in front: before their turn)\n\n",
            (long long)e->event_count);
    put_phases(e, out);
    for (int64_t i = 0; i < e->unit_count; i++) {
        if (e->units[i].life_count == 0)
            continue;
        if (rows <= MOST_LIVES || row < MOST_LIVES / 2 || row >= rows - MOST_LIVES / 2)
            put_unit(e, i, out);
        else if (row == MOST_LIVES / 2)
            fprintf(out, "  ... %lld more\n", (long long)(rows - MOST_LIVES));
        row++;
    }
    if (rows == 0)
        fputs("  nothing is gathered: every rank has all parameters all the time\n", out);
}
