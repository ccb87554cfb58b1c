/* schedule_text.c - prints a planned schedule as text of at most 100 columns, and as JSON. */
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "explain/json_value.h"
#include "plan/schedule.h"
#include "plan/show_plan.h"

enum {
    NAME = 46 /* columns of a unit's name */
};

static void put_row(const fsdp__schedule_row *row, FILE *out)
{
    fprintf(out, "  %-20s %6lld %11s %11s %11s\n", row->name, (long long)row->units, FSDP__SIZE(row->bytes),
            FSDP__SECONDS(row->step), FSDP__SECONDS(row->exposed));
}

/* ---- units ---- */

/* Returns whether two names differ in numbers alone. */
static bool same_but_numbers(const char *a, const char *b)
{
    while (*a && *b) {
        size_t of_a = strspn(a, "0123456789"), of_b = strspn(b, "0123456789");

        if ((of_a > 0) != (of_b > 0) || (of_a == 0 && *a != *b))
            return false;
        a += of_a > 0 ? of_a : 1;
        b += of_b > 0 ? of_b : 1;
    }
    return *a == *b;
}

static bool are_alike(const fsdp__comm_unit *a, const fsdp__comm_unit *b)
{
    bool alike = a->module_count == b->module_count && a->stays == b->stays;

    for (int64_t i = 0; i < a->module_count && alike; i++)
        alike = same_but_numbers(a->modules[i], b->modules[i]);
    return alike;
}

/* Writes the modules of a unit, as many as there is room for: "model.layers.0.mlp + 2 more". */
static const char *name_of(const fsdp__comm_unit *unit, char *text, size_t bytes)
{
    char name[NAME + 1];

    if (unit->module_count == 1) {
        fsdp__name_end(unit->modules[0], NAME, name);
        snprintf(text, bytes, "%s", name);
    } else {
        fsdp__name_end(unit->modules[0], NAME - 12, name);
        snprintf(text, bytes, "%s + %lld more", name, (long long)unit->module_count - 1);
    }
    return text;
}

/* Returns how many times a pattern of `length` units follows itself. */
static int64_t repeats(const fsdp__comm_schedule *s, int64_t first, int64_t length)
{
    int64_t count = length;

    while (first + count < s->unit_count && are_alike(&s->units[first + count], &s->units[first + count - length]))
        count++;
    return count / length;
}

static void put_unit(const fsdp__comm_schedule *s, int64_t unit, FILE *out)
{
    char name[80];

    name_of(&s->units[unit], name, sizeof name);
    if (s->units[unit].stays)
        fprintf(out, "  %5lld  %-*s stays whole\n", (long long)unit + 1, NAME, name);
    else
        fprintf(out, "  %5lld  %s\n", (long long)unit + 1, name);
}

static void put_units(const fsdp__comm_schedule *s, FILE *out)
{
    enum {
        LONGEST_PATTERN = 4
    };

    fprintf(out, s->unit_count > 0 ? "\nThe plan, in the order of the forward (the root has what is left):\n\n"
                                   : "\nThe plan: the root has everything.\n");
    for (int64_t i = 0, length, times; i < s->unit_count; i += length * times) {
        length = times = 1;
        for (int64_t l = 1; l <= LONGEST_PATTERN; l++)
            if (repeats(s, i, l) > 1 && repeats(s, i, l) * l > length * times) {
                length = l;
                times = repeats(s, i, l);
            }
        for (int64_t u = i; u < i + length; u++)
            put_unit(s, u, out);
        if (times > 1)
            fprintf(out, "         and so on, %lld times, up to %s\n", (long long)times,
                    name_of(&s->units[i + length * times - 1], FSDP__ROOM(80)));
    }
}

static void put_numbers(const fsdp__comm_schedule *s, FILE *out)
{
    const fsdp__comm_unit *any = &s->units[0];

    if (s->unit_count > 0 && any->forward_ahead > 0)
        fprintf(out, "\nIn the forward each gathers the next %lld ahead.", (long long)any->forward_ahead);
    if (s->unit_count > 0 && any->backward_ahead > 0)
        fprintf(out, "\nIn the backward each gathers the %lld before it ahead.", (long long)any->backward_ahead);
    if (s->reductions > 1)
        fprintf(out, "\nUp to %lld reductions are in flight.", (long long)s->reductions);
    if (s->reductions > 1 || (s->unit_count > 0 && (any->forward_ahead > 0 || any->backward_ahead > 0)))
        fputc('\n', out);
}

fsdp_status fsdp__scheduled_print(const fsdp__scheduled *scheduled, FILE *out)
{
    const fsdp__comm_schedule *s = scheduled->plan;

    fprintf(out, "%s: when parameters and gradients travel, %s, %d rank%s on %d machine%s", s->model, s->strategy,
            s->world_size, fsdp__plural(s->world_size), s->machines, fsdp__plural(s->machines));
    if (isfinite(scheduled->room))
        fprintf(out, ", in %s of a rank", FSDP__SIZE(scheduled->room));
    fprintf(out, ";\nby %d dry runs, at rates of %s\n\n", scheduled->tried, s->prices);
    fprintf(out, "  %-20s %6s %11s %11s %11s\n", "units", "", "memory", "a step", "exposed");
    for (int i = 0; i < scheduled->row_count; i++)
        put_row(&scheduled->rows[i], out);
    put_units(s, out);
    put_numbers(s, out);
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot print a schedule") : FSDP_OK;
}

fsdp_status fsdp__scheduled_json(const fsdp__scheduled *scheduled, FILE *out)
{
    json_t *object = json_object(), *rows = json_array();

    for (int i = 0; i < scheduled->row_count; i++) {
        const fsdp__schedule_row *row = &scheduled->rows[i];
        json_t *r = json_object();

        fsdp__json_put(&r, "units", fsdp__json_text(row->name));
        fsdp__json_put(&r, "count", json_integer(row->units));
        fsdp__json_put(&r, "peak_bytes", json_integer((json_int_t)row->bytes));
        fsdp__json_put(&r, "step_seconds", fsdp__json_real(row->step));
        fsdp__json_put(&r, "exposed_seconds", fsdp__json_real(row->exposed));
        fsdp__json_append(&rows, r);
    }
    fsdp__json_put(&object, "room_bytes", fsdp__json_real(scheduled->room));
    fsdp__json_put(&object, "tried", json_integer(scheduled->tried));
    fsdp__json_put(&object, "rows", rows);
    fsdp__json_put(&object, "schedule", fsdp__comm_schedule_value(scheduled->plan));
    return fsdp__json_print(object, out);
}
