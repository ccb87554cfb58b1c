/* html_step.c - a traced step on the page: what each rank does when, its memory, and what moves between ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/text.h"
#include "draw/svg.h"
#include "report/html.h"
#include "report/step_picture.h"

enum {
    SCALE = 70,      /* room for the sizes beside a picture of memory */
    MOST_RANKS = 16, /* that are shown */
    MOST_WAITS = 12,
    MOST_KERNELS = 12,
    MOST_TRAFFIC = 16
};

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

static void put_ms(int64_t ns, FILE *out)
{
    fsdp__html_number(FSDP__UNIT_MS, ms(ns), out);
}

/* Writes a heading, with the run that it is about. */
static void put_title(const char *text, const char *run, FILE *out)
{
    fputs("<h2>", out);
    fsdp__html_text(text, out);
    if (*run) {
        fputs(" <span class=\"soft\">of ", out);
        fsdp__html_text(run, out);
        fputs("</span>", out);
    }
    fputs("</h2>\n", out);
}

/* Returns whether a rank is shown: the slowest one, and of many some, evenly. */
static bool is_shown(const fsdp__traced_step *step, int rank)
{
    int every = (step->trace.rank_count + MOST_RANKS - 1) / MOST_RANKS;

    return rank % every == 0 || rank == step->slowest;
}

static void put_axis(int64_t ns, FILE *out)
{
    fprintf(out,
            "<div class=\"lane axis-row\"><span></span><div class=\"axis\"><span>0</span><span>%s</span><span>%s"
            "</span></div></div>\n",
            FSDP__VALUE(FSDP__UNIT_MS, ms(ns / 2)), FSDP__VALUE(FSDP__UNIT_MS, ms(ns)));
}

/* ---- what each rank does ---- */

static void put_activities(const fsdp__traced_step *step, FILE *out)
{
    bool seen[FSDP__ACTIVITIES] = {false};

    for (int r = 0; r < step->trace.rank_count; r++)
        for (int a = 0; a < FSDP__ACTIVITIES; a++)
            seen[a] |= step->ranks[r].parts[a] > 0;
    fputs("<div class=\"keys\">", out);
    for (int a = 0; a < FSDP__ACTIVITIES; a++)
        if (seen[a])
            fsdp__html_key(fsdp__activity_fill((fsdp__activity)a), fsdp__activity_name((fsdp__activity)a), out);
    fputs("</div>\n", out);
}

static void put_lane(const fsdp__traced_step *step, int rank, FILE *out)
{
    fsdp__svg_range x = {0, (double)step->ns, 0, FSDP__SVG_STRIP};

    fprintf(out, "<div class=\"lane\"><span>%srank %d%s</span>", rank == step->slowest ? "<b>" : "", rank,
            rank == step->slowest ? "</b>" : "");
    fsdp__svg_open_strip("lane-of-rank", 30, out);
    fsdp__step_picture_rank(step, rank, &x, 0, 30, out);
    fsdp__svg_close(out);
    fputs("</div>\n", out);
}

static void put_lanes(const fsdp__traced_step *step, FILE *out)
{
    fputs("<div class=\"card\">\n", out);
    put_activities(step, out);
    for (int r = 0; r < step->trace.rank_count; r++)
        if (is_shown(step, r))
            put_lane(step, r, out);
    put_axis(step->ns, out);
    fputs("<p class=\"soft small\">Above: what the rank's device computes, or what it waits for while nothing is "
          "computed. "
          "Below, thin: collectives in progress, whether something hides them or not.</p></div>\n",
          out);
}

/* ---- the table of ranks ---- */

static int64_t sum_of(const fsdp__step_rank *rank, fsdp__activity first, fsdp__activity last)
{
    int64_t sum = 0;

    for (int a = (int)first; a <= (int)last; a++)
        sum += rank->parts[a];
    return sum;
}

static void put_rank(const fsdp__traced_step *step, int r, FILE *out)
{
    const fsdp__step_rank *rank = &step->ranks[r];

    fprintf(out, "<tr%s><td>%d", r == step->slowest ? " class=\"hot\"" : "", r);
    if (step->trace.ranks[r].machine > 0 || step->matrix_of_machines) {
        fputs(" <span class=\"soft\">on ", out);
        fsdp__html_text(step->trace.ranks[r].host, out);
        fputs("</span>", out);
    }
    fputs("</td>", out);
    put_ms(rank->ns, out);
    put_ms(sum_of(rank, FSDP__DOES_PRODUCTS, FSDP__DOES_COPIES), out);
    put_ms(rank->parts[FSDP__WAITS_FOR_GATHERS], out);
    put_ms(rank->parts[FSDP__WAITS_FOR_REDUCTIONS], out);
    put_ms(rank->parts[FSDP__WAITS_FOR_CALLS], out);
    put_ms(rank->parts[FSDP__WAITS_FOR_DATA], out);
    put_ms(rank->parts[FSDP__DOES_HOST], out);
    put_ms(rank->for_others, out);
    if (rank->awaited >= 0)
        fprintf(out, "<td class=\"number\">%d</td>", rank->awaited);
    else
        fputs("<td></td>", out);
    put_ms(rank->caused, out);
    fputs("</tr>\n", out);
}

static void put_ranks(const fsdp__traced_step *step, FILE *out)
{
    fputs("<div class=\"card scroll\">", out);
    fsdp__html_columns("rank|#the step|#computes|#waits: gathers|#reductions|#other calls|#data|#host|#of its waits, "
                       "until the last rank came|#mostly rank|#the others waited for it, in all",
                       out);
    for (int r = 0; r < step->trace.rank_count; r++)
        if (is_shown(step, r))
            put_rank(step, r, out);
    fputs("</table></div>\n", out);
}

/* ---- the longest waits ---- */

static void put_waits(const fsdp__traced_step *step, FILE *out)
{
    int ranks = step->trace.rank_count;

    if (step->wait_count == 0)
        return;
    fputs("<div class=\"card scroll\"><h3>What is waited for longest, on the average of the ranks</h3>", out);
    fsdp__html_columns("call|group|#waited|#of it until the last rank came|#of it while it moved bytes", out);
    for (int i = 0; i < step->wait_count && i < MOST_WAITS; i++) {
        const fsdp__step_wait *w = &step->waits[i];

        fputs("<tr>", out);
        fsdp__html_cell("", w->name, out);
        fsdp__html_cell("", w->group ? w->group : "", out);
        put_ms(w->ns / ranks, out);
        put_ms(w->for_others / ranks, out);
        put_ms((w->ns - w->for_others) / ranks, out);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

/* ---- kernels ---- */

static void put_kernels(const fsdp__traced_step *step, FILE *out)
{
    double ranks = step->trace.rank_count;

    if (step->kernel_count == 0)
        return;
    fputs("<div class=\"card scroll\"><h3>Kernels that take most time, on the average of the ranks</h3>", out);
    fsdp__html_columns("kernel|#calls|#time|#of the step|#GFLOP/s", out);
    for (int i = 0; i < step->kernel_count && i < MOST_KERNELS; i++) {
        const fsdp__step_kernel *k = &step->kernels[i];

        fputs("<tr>", out);
        fsdp__html_cell("", k->name, out);
        fsdp__html_number(FSDP__UNIT_COUNT, (double)k->calls / ranks, out);
        fsdp__html_number(FSDP__UNIT_MS, ms(k->ns) / ranks, out);
        fsdp__html_number(FSDP__UNIT_FRACTION, (double)k->ns / ranks / (double)step->ns, out);
        fsdp__html_number(FSDP__UNIT_COUNT, k->flops > 0 ? k->flops / (double)k->ns : NAN, out);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

static void put_gap(const fsdp__step_rank *rank, int number, FILE *out)
{
    fprintf(out, "<tr><td>%d</td>", number);
    fsdp__html_number(FSDP__UNIT_COUNT, (double)rank->gaps, out);
    put_ms(rank->gap_ns, out);
    fsdp__html_number(FSDP__UNIT_FRACTION, (double)rank->gap_ns / (double)FSDP__MAX(rank->ns, 1), out);
    put_ms(rank->longest_gap, out);
    fsdp__html_cell("", rank->gap_after, out);
    fsdp__html_cell("", rank->gap_before, out);
    fputs("</tr>\n", out);
}

static void put_gaps(const fsdp__traced_step *step, FILE *out)
{
    if (step->kernel_count == 0)
        return;
    fputs("<div class=\"card scroll\"><h3>Gaps between kernels, in which nothing is computed</h3>", out);
    fsdp__html_columns("rank|#gaps|#in all|#of the step|#the longest|after|before", out);
    for (int r = 0; r < step->trace.rank_count; r++)
        if (is_shown(step, r))
            put_gap(&step->ranks[r], r, out);
    fputs("</table></div>\n", out);
}

/* ---- units and memory ---- */

/* Draws a unit, if it is the first time that its name comes. */
static void put_unit(const fsdp__traced_step *step, int64_t first, FILE *out)
{
    fsdp__svg_range x = {0, (double)step->ranks[0].ns, 0, FSDP__SVG_STRIP};

    for (int64_t i = 0; i < first; i++)
        if (strcmp(step->units[i].name, step->units[first].name) == 0)
            return;
    fputs("<div class=\"lane\"><span>", out);
    fsdp__html_text(step->units[first].name, out);
    fputs("</span>", out);
    fsdp__svg_open_strip("lane-of-unit", 16, out);
    fsdp__step_picture_unit(step, first, &x, 0, 16, out);
    fsdp__svg_close(out);
    fputs("</div>\n", out);
}

static void put_units(const fsdp__traced_step *step, FILE *out)
{
    if (step->unit_count == 0)
        return;
    fputs("<details><summary>Units of rank 0: what is whole when</summary>\n<div class=\"card\"><div class=\"keys\">",
          out);
    for (int state = 0; state <= FSDP__UNIT_REDUCED; state++)
        fsdp__html_key(fsdp__unit_fill((fsdp__unit_state)state), fsdp__unit_state_name((fsdp__unit_state)state), out);
    fputs("</div>\n", out);
    for (int64_t i = 0; i < step->unit_count; i++)
        put_unit(step, i, out);
    put_axis(step->ranks[0].ns, out);
    fputs("</div></details>\n", out);
}

static void put_memory(const fsdp__traced_step *step, const char *title, FILE *out)
{
    const fsdp__step_memory *peak = step->highest.moments;
    fsdp__svg_range x = {0, step->highest.rank < 0 ? 1 : (double)step->ranks[step->highest.rank].ns, SCALE,
                         FSDP__SVG_STRIP};
    char key[120];

    if (step->highest.rank < 0 || step->highest.count == 0)
        return;
    for (int64_t i = 0; i < step->highest.count; i++)
        peak = step->highest.moments[i].all > peak->all ? &step->highest.moments[i] : peak;
    put_title("Memory within the step", title, out);
    fprintf(out,
            "<div class=\"card\"><h3>Rank %d, which holds most: %s%s%s at its peak, after %s</h3>\n"
            "<div class=\"keys\">",
            step->highest.rank, FSDP__VALUE(FSDP__UNIT_BYTES, (double)peak->all),
            step->device_bytes > 0 ? " of its device's " : "",
            step->device_bytes > 0 ? FSDP__VALUE(FSDP__UNIT_BYTES, step->device_bytes) : "",
            fsdp__value_text(FSDP__UNIT_MS, ms(peak->at), key));
    for (int kind = FSDP_MEMORY_KINDS - 1; kind >= 0; kind--)
        if (peak->bytes[kind] > 0) {
            snprintf(key, sizeof key, "%s %s", fsdp_memory_kind_name((fsdp_memory_kind)kind),
                     FSDP__VALUE(FSDP__UNIT_BYTES, (double)peak->bytes[kind]));
            fsdp__html_key(fsdp__memory_fill(kind), key, out);
        }
    fputs("</div>\n", out);
    fsdp__svg_open("memory", 0, SCALE + FSDP__SVG_STRIP, 200 + 28, out);
    fsdp__step_picture_memory(step, &step->highest, &x, 6, 200, NULL, out);
    fsdp__svg_text("", SCALE, 200 + 24, "0", out);
    fsdp__svg_text("e", SCALE + FSDP__SVG_STRIP, 200 + 24,
                   FSDP__VALUE(FSDP__UNIT_MS, ms(step->ranks[step->highest.rank].ns)), out);
    fsdp__svg_close(out);
    fputs("</div>\n", out);
}

/* ---- what moves ---- */

static void put_traffic(const fsdp__traced_step *step, FILE *out)
{
    fputs("<div class=\"card scroll\">", out);
    fsdp__html_columns("group|#ranks|call|#calls of a rank|#bytes of a rank|#sent to others", out);
    for (int64_t i = 0; i < step->traffic_count && i < MOST_TRAFFIC; i++) {
        const fsdp__step_traffic *t = &step->traffic[i];

        fputs("<tr>", out);
        fsdp__html_cell("", t->group, out);
        fsdp__html_number(FSDP__UNIT_COUNT, t->ranks, out);
        fsdp__html_cell("", t->kind < FSDP_COLLECTIVES ? fsdp_collective_name((fsdp_collective)t->kind) : "others",
                        out);
        fsdp__html_number(FSDP__UNIT_COUNT, (double)t->calls, out);
        fsdp__html_number(FSDP__UNIT_BYTES, (double)t->bytes, out);
        fsdp__html_number(FSDP__UNIT_BYTES, t->sent < 0 ? NAN : (double)t->sent, out);
        fputs("</tr>\n", out);
    }
    fputs("</table></div>\n", out);
}

static void put_side(const fsdp__traced_step *step, int side, FILE *out)
{
    int first = side * step->matrix_fold, last = first + step->matrix_fold - 1;

    if (step->matrix_fold == 1)
        fprintf(out, "%d", first);
    else
        fprintf(out, "%d to %d", first, last);
}

static double largest(const fsdp__traced_step *step)
{
    double most = 0;

    for (int i = 0; i < step->matrix_sides; i++)
        for (int k = 0; k < step->matrix_sides; k++)
            most = fmax(most, step->matrix[i][k]);
    return most;
}

static void put_matrix(const fsdp__traced_step *step, FILE *out)
{
    const char *what = step->matrix_of_machines ? "machine" : "rank";
    double most = largest(step);

    if (most <= 0)
        return;
    fprintf(out,
            "<div class=\"card scroll\"><h3>From %s (left) to %s (above)</h3><table class=\"matrix\"><tr><th></th>",
            what, what);
    for (int k = 0; k < step->matrix_sides; k++) {
        fputs("<th>", out);
        put_side(step, k, out);
        fputs("</th>", out);
    }
    fputs("</tr>\n", out);
    for (int i = 0; i < step->matrix_sides; i++) {
        fputs("<tr><th>", out);
        put_side(step, i, out);
        fputs("</th>", out);
        for (int k = 0; k < step->matrix_sides; k++)
            fprintf(out, "<td style=\"--heat:%.0f\">%s</td>", 60 * step->matrix[i][k] / most,
                    step->matrix[i][k] > 0 ? FSDP__VALUE(FSDP__UNIT_BYTES, step->matrix[i][k]) : "");
        fputs("</tr>\n", out);
    }
    fputs(
        "</table><p class=\"soft small\">Of a gather each member's part goes to every other member; of a reduction its "
        "summands of a part go to the rank that owns the part; an all-reduce is both. These are the bytes that a ring "
        "sends in all, whatever way the transport takes; on one machine they may only change hands.</p>",
        out);
    if (step->matrix_left_out > 0)
        fprintf(out,
                "<p class=\"soft small\">Not in it: %lld calls whose sender or members the trace does not name.</p>",
                (long long)step->matrix_left_out);
    fputs("</div>\n", out);
}

/* ---- all ---- */

static void put_notes(const fsdp__traced_step *step, FILE *out)
{
    int64_t uncertain = 0, dropped = 0;

    for (int r = 0; r < step->trace.rank_count; r++) {
        uncertain = FSDP__MAX(uncertain, step->trace.ranks[r].uncertain);
        dropped += FSDP__MAX(step->trace.ranks[r].dropped, 0);
    }
    fputs("<p class=\"soft small\">", out);
    fsdp__html_text(step->trace.path, out);
    if (step->number > 0)
        fprintf(out, "; it took the median time of %lld traced step%s", (long long)step->traced,
                fsdp__plural(step->traced));
    else
        fputs(": all of it, since it names no steps", out);
    if (step->trace.rank_count > MOST_RANKS)
        fprintf(out, "; some of %d ranks are shown", step->trace.rank_count);
    if (uncertain > 0)
        fprintf(out, "; clocks of machines within %.0f us", ceil((double)uncertain / 1000));
    if (dropped > 0)
        fprintf(out, "; %lld events had no room in it", (long long)dropped);
    if (step->trace.incomplete) {
        fputs("; incomplete: ", out);
        fsdp__html_text(step->trace.incomplete, out);
    }
    fputs("</p>\n", out);
}

fsdp_status fsdp__html_step(const fsdp__traced_step *step, const char *title, FILE *out)
{
    char heading[64] = "What each rank does";

    if (step->number > 0)
        snprintf(heading, sizeof heading, "Step %lld, rank by rank", (long long)step->number);
    put_title(heading, title, out);
    put_notes(step, out);
    put_lanes(step, out);
    put_ranks(step, out);
    put_waits(step, out);
    put_kernels(step, out);
    put_gaps(step, out);
    put_units(step, out);
    put_memory(step, title, out);
    put_title("Communication within the step", title, out);
    put_traffic(step, out);
    put_matrix(step, out);
    return FSDP_OK;
}
