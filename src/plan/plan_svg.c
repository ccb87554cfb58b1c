/* plan_svg.c - draws what a step has in memory when. */
#include "base/compiler.h"
#include "base/text.h"
#include "explain/show.h"
#include "plan/show_plan.h"

enum {
    LEFT = 72,
    RIGHT = 16,
    WIDTH = 820,
    HEAD = 44, /* above the first panel: what it shows, and what the colours mean */
    KEY = 146,
    PANEL = 190,
    LABELS = 34 /* above each panel */
};

static double moment_at(const void *of, int64_t i)
{
    const fsdp__plan *p = of;

    if (i < p->moment_count)
        return p->moments[i].at;
    return p->time.step > 0 ? FSDP__MAX(p->time.step, p->moments[i - 1].at) : (double)p->moment_count;
}

static double moment_bytes(const void *of, int64_t i, int layer)
{
    const fsdp__plan *p = of;

    return (double)p->moments[i].bytes[layer];
}

/* Returns the moment from which on the most is live. */
static int64_t peak_of(const fsdp__stack *s, double *most)
{
    int64_t at = 0;

    *most = 1;
    for (int64_t i = 0; i < s->count; i++) {
        double all = 0;

        for (int layer = 0; layer < s->layers; layer++)
            all += s->value(s->of, i, layer);
        if (all > *most) {
            *most = all;
            at = i;
        }
    }
    return at;
}

static fsdp__svg_range range_of(const fsdp__stack *s)
{
    double least = s->at(s->of, 0), most = s->at(s->of, s->count);

    return (fsdp__svg_range){.least = least, .most = most > least ? most : least + 1, .left = LEFT, .width = WIDTH};
}

static void put_panel(const fsdp__stack *s, const char *what, double limit, double y, FILE *out)
{
    fsdp__svg_range x = range_of(s);
    double most, at;
    int64_t peak = peak_of(s, &most);
    char text[120], room[40] = "";

    at = fsdp__svg_range_place(&x, s->at(s->of, peak));
    if (limit > 0)
        fsdp__size_text(limit, room, sizeof room);
    snprintf(text, sizeof text, "%s: at most %s%s%s", what, FSDP__SIZE(most), *room ? " of " : "", room);
    fsdp__svg_text("strong", LEFT, y + 12, text, out);
    fsdp__svg_stack(s, &x, y + LABELS, PANEL, out);
    fsdp__svg_scale(&x, s->most, y + LABELS, PANEL, out);
    fsdp__svg_limit(&x, limit, s->most, y + LABELS, PANEL, room, out);
    fsdp__svg_line("mark", at, y + LABELS - 6, at, y + LABELS + PANEL, out);
}

/* Marks where forwards, backwards and the optimizer begin. */
static void put_phases(const fsdp__plan *plan, const fsdp__stack *s, double y, FILE *out)
{
    const fsdp_explanation *e = plan->e;
    fsdp__svg_range x = range_of(s);

    for (int64_t i = 0, event = 0; event < e->event_count; event++) {
        while (i + 1 < plan->moment_count && plan->moments[i].events <= event)
            i++;
        if (!fsdp__begins_phase(e, event))
            continue;
        fsdp__svg_line("mark", fsdp__svg_range_place(&x, plan->moments[i].at), y + LABELS - 14,
                       fsdp__svg_range_place(&x, plan->moments[i].at), y + LABELS + PANEL, out);
        fsdp__svg_text("", fsdp__svg_range_place(&x, plan->moments[i].at) + 3, y + LABELS - 5,
                       fsdp__phase_name(e->events[event].phase), out);
    }
}

static void put_keys(const int fills[FSDP_MEMORY_KINDS], bool workspace, double y, FILE *out)
{
    double x = LEFT;

    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++)
        if (kind != FSDP_MEMORY_WORKSPACE || workspace) {
            fsdp__svg_key(fills[kind], x, y, fsdp_memory_kind_name((fsdp_memory_kind)kind), out);
            x += KEY;
        }
}

fsdp_status fsdp__plan_memory_svg(const fsdp__plan *plan, const int fills[FSDP_MEMORY_KINDS],
                                  const fsdp__stack *measured, double limit, FILE *out)
{
    fsdp__stack planned = {.layers = FSDP_MEMORY_KINDS,
                           .fills = fills,
                           .count = plan->moment_count,
                           .at = moment_at,
                           .value = moment_bytes,
                           .of = plan};
    fsdp__stack real = measured ? *measured : planned;
    double most, most_measured;
    char text[200];

    (void)peak_of(&planned, &most);
    (void)peak_of(&real, &most_measured);
    planned.most = real.most = fsdp__svg_top(FSDP__MAX(most, most_measured), limit);
    snprintf(text, sizeof text, "memory of a rank in a step of %s on %d rank%s", plan->e->model, plan->e->world_size,
             fsdp__plural(plan->e->world_size));
    fsdp__svg_open_file(LEFT + WIDTH + RIGHT, HEAD + (measured ? 2 : 1) * (LABELS + PANEL) + RIGHT, out);
    fsdp__svg_text("strong", LEFT, 16, text, out);
    put_keys(fills, measured != NULL, 26, out);
    put_panel(&planned, plan->time.step > 0 ? "planned, over time" : "planned, change by change", limit, HEAD, out);
    put_phases(plan, &planned, HEAD, out);
    if (measured)
        put_panel(&real, "measured, over time", limit, HEAD + LABELS + PANEL, out);
    fsdp__svg_close(out);
    return ferror(out) ? FSDP_FAIL(FSDP_IO, "cannot draw the plan") : FSDP_OK;
}
