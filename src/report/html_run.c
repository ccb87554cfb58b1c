/* html_run.c - on the page: what ranks did last, and what was planned beside what was measured. */
#include <math.h>

#include "base/compiler.h"
#include "base/text.h"
#include "report/html.h"
#include "report/planned.h"

enum {
    MOST_RANKS = 64, /* that are shown */
    CALLS = 8        /* of each, the last */
};

/* ---- what ranks did last ---- */

static void put_call(const fsdp__flight_log *log, const fsdp__flight_record *r, FILE *out)
{
    char call[320];
    int64_t end = r->done ? r->done : log->now;

    fsdp__flight_call_text(log, r, call, sizeof call);
    fprintf(out, "<tr%s>", r->done ? "" : " class=\"hot\"");
    fsdp__html_cell("", r->done ? "done" : r->begun ? "begun" : "issued", out);
    fprintf(out, "<td class=\"number\">%s ago</td><td class=\"number\">%s</td>",
            fsdp__flight_time_text(FSDP__MAX(log->now - r->issued, 0), FSDP__ROOM(32)),
            r->begun ? fsdp__flight_time_text(FSDP__MAX(end - r->begun, 0), FSDP__ROOM(32)) : "");
    fsdp__html_cell("wide", call, out);
    fputs("</tr>\n", out);
}

static void put_log(const fsdp__flight_log *log, FILE *out)
{
    int64_t first = log->count > CALLS ? log->count - CALLS : 0;
    char place[512];

    fsdp__flight_place_text(log, place, sizeof place);
    fprintf(out, "<details><summary>rank %d on ", log->head.rank);
    fsdp__html_text(log->head.host, out);
    fputs(": ", out);
    fsdp__html_text(place, out);
    if (log->end.ending[0]) {
        fputs("; ", out);
        fsdp__html_text(log->end.ending, out);
    }
    fputs("</summary>\n<div class=\"scroll\">", out);
    fsdp__html_columns("state|#issued|#took|call", out);
    for (int64_t i = first; i < log->count; i++)
        put_call(log, &log->records[i], out);
    fputs("</table></div></details>\n", out);
}

void fsdp__html_flight(const fsdp__source *source, const char *title, FILE *out)
{
    const fsdp__flight_logs *logs = &source->of.flight.logs;

    fputs("<h2>What each rank did last", out);
    if (*title) {
        fputs(" <span class=\"soft\">in ", out);
        fsdp__html_text(title, out);
        fputs("</span>", out);
    }
    fputs("</h2>\n<div class=\"card\">", out);
    for (int i = 0; i < logs->count && i < MOST_RANKS; i++)
        put_log(&logs->logs[i], out);
    if (logs->count < logs->world || logs->count > MOST_RANKS)
        fprintf(out, "<p class=\"soft small\">%d of %d ranks, of which %d have left a record.</p>",
                FSDP__MIN(logs->count, MOST_RANKS), logs->world, logs->count);
    fprintf(out, "<p class=\"soft small\">");
    fsdp__html_text(source->path, out);
    fputs("</p></div>\n", out);
}

/* ---- planned and measured ---- */

void fsdp__html_plan(const fsdp__source *source, const fsdp__recorded_run *run, const char *title, FILE *out)
{
    fsdp__planned rows[FSDP__PLANNED_ROWS];
    int count = fsdp__planned_rows(source->of.plan, run, rows);
    char text[FSDP__VALUE_TEXT];

    fputs("<h2>Planned and measured", out);
    if (*title) {
        fputs(" <span class=\"soft\">of ", out);
        fsdp__html_text(title, out);
        fputs("</span>", out);
    }
    fputs("</h2>\n<div class=\"card scroll\">", out);
    fsdp__html_columns("|#planned|#measured|#measured / planned", out);
    for (int i = 0; i < count; i++) {
        fputs("<tr>", out);
        fsdp__html_cell("", rows[i].what, out);
        fsdp__html_number(rows[i].unit, rows[i].planned, out);
        fsdp__html_number(rows[i].unit, rows[i].measured, out);
        if (rows[i].measured > 0 && rows[i].planned > 0)
            snprintf(text, sizeof text, "%.3f", rows[i].measured / rows[i].planned);
        else
            text[0] = '\0';
        fsdp__html_cell("number", text, out);
        fputs("</tr>\n", out);
    }
    fputs("</table><p class=\"soft small\">", out);
    fsdp__html_text(source->path, out);
    fputs(run ? "</p></div>\n" : ": no run is named beside it</p></div>\n", out);
}
