/* flight_text.c - prints what ranks did last, for people and as JSON. */
#include <time.h>

#include "base/compiler.h"
#include "base/text.h"
#include "fsdp/comm.h"
#include "watch/flight_read.h"

#define NOT_PRINTED FSDP_FAIL(FSDP_IO, "cannot write what ranks did last")

/* ---- text ---- */

static void date_text(int64_t ns, char *text, size_t bytes)
{
    time_t seconds = (time_t)(ns / 1000000000);
    struct tm parts;

    if (!gmtime_r(&seconds, &parts) || strftime(text, bytes, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0)
        snprintf(text, bytes, "?");
}

static const char *state_of(const fsdp__flight_record *r)
{
    return r->done ? "done" : r->begun ? "begun" : "issued";
}

static void print_call(const fsdp__flight_log *log, const fsdp__flight_record *r, FILE *out)
{
    char lasts[32] = "-", call[64];
    int64_t end = r->done ? r->done : log->now;

    if (r->begun)
        fsdp__flight_time_text(end > r->begun ? end - r->begun : 0, lasts, sizeof lasts);
    snprintf(call, sizeof call, "%.30s %llu", FSDP__SHOWN_NAME(log->groups[r->group].name),
             (unsigned long long)r->number);
    fprintf(out, "  %-6s %9s ago  %9s  %-22s %-26s %-18s %s%s\n", state_of(r),
            fsdp__flight_time_text(log->now > r->issued ? log->now - r->issued : 0, FSDP__ROOM(32)), lasts, call,
            FSDP__SHOWN_NAME(r->name), fsdp__flight_bytes_text(r, FSDP__ROOM(64)),
            r->module[0] ? (r->labelled ? "for " : "in ") : "",
            fsdp__shown(r->module, FSDP__ROOM(2 * FSDP__FLIGHT_NAME)));
}

/* Prints the lines of a text. */
static void print_lines(const char *text, FILE *out)
{
    char line[256];

    for (size_t length = 0; *text; text += length + (text[length] == '\n')) {
        length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        fprintf(out, "%s\n", fsdp__shown(line, FSDP__ROOM(1024)));
    }
}

static void print_rank(const fsdp__flight_log *log, int64_t calls, FILE *out)
{
    int64_t first = log->count > calls ? log->count - calls : 0;
    char place[512];

    fsdp__flight_place_text(log, place, sizeof place);
    fprintf(out, "\nrank %d (machine '%s', process %d): %s\n", log->head.rank, FSDP__SHOWN_NAME(log->head.host),
            log->head.pid, place);
    if (log->end.ending[0])
        fprintf(out, "  %s\n", FSDP__SHOWN_NAME(log->end.ending));
    print_lines(log->end.owners, out);
    if (log->damaged > 0)
        fprintf(out, "  %lld records are torn or damaged, and left out\n", (long long)log->damaged);
    if (log->unlisted > 0)
        fprintf(out, "  %llu calls of groups beyond the first %d are not recorded\n", (unsigned long long)log->unlisted,
                FSDP__FLIGHT_GROUPS);
    if (log->count == 0)
        fputs("  it has made no calls\n", out);
    else
        fprintf(out, "  %-6s %13s  %9s  %-22s %-26s %-18s %s\n", "state", "issued", "took", "group, number", "call",
                "bytes", "module");
    for (int64_t i = first; i < log->count; i++)
        print_call(log, &log->records[i], out);
}

static void print_heading(const fsdp__flight_logs *logs, FILE *out)
{
    const fsdp__flight_log *log = &logs->logs[0];
    int64_t newest = 0;
    char date[64];

    for (int i = 0; i < logs->count; i++)
        if (logs->logs[i].now + logs->logs[i].head.wall_ns > newest)
            newest = logs->logs[i].now + logs->logs[i].head.wall_ns;
    date_text(newest, date, sizeof date);
    fprintf(out, "\n%s%s%d rank%s, %s", log->end.run[0] ? FSDP__SHOWN_NAME(log->end.run) : "",
            log->end.run[0] ? ", " : "", logs->world, fsdp__plural(logs->world), date);
    if (logs->count < logs->world)
        fprintf(out, "; records of %d of them", logs->count);
    if (logs->left_out > 0)
        fprintf(out, "; %d file%s of earlier runs left out", logs->left_out, fsdp__plural(logs->left_out));
    if (logs->failed > 0)
        fprintf(out, "; %lld file%s cannot be read, the first: %s", (long long)logs->failed, fsdp__plural(logs->failed),
                logs->error);
    fputc('\n', out);
}

fsdp_status fsdp__flight_print(const fsdp__flight_logs *logs, int calls, FILE *out)
{
    FSDP__SCOPED(fsdp__flight_verdict_release) fsdp__flight_verdict verdict = {0};

    FSDP_TRY(fsdp__flight_judge(logs, &verdict));
    for (int i = 0; i < verdict.count; i++)
        fprintf(out, "%s\n", fsdp__shown(verdict.lines[i], FSDP__ROOM(2048)));
    print_heading(logs, out);
    for (int i = 0; i < logs->count; i++)
        print_rank(&logs->logs[i], calls, out);
    return ferror(out) ? NOT_PRINTED : FSDP_OK;
}

/* ---- JSON: times are nanoseconds since 1970, null where a thing has not happened ---- */

static void key(const char *name, FILE *out)
{
    fprintf(out, "\"%s\": ", name);
}

static void put_text(const char *name, const char *text, FILE *out)
{
    key(name, out);
    fsdp__print_json_string(fsdp__shown(text, FSDP__ROOM(4 * FSDP__FLIGHT_TEXT)), out);
    fputs(", ", out);
}

static void put_number(const char *name, uint64_t number, const char *behind, FILE *out)
{
    fprintf(out, "\"%s\": %llu%s", name, (unsigned long long)number, behind);
}

static void put_time(const char *name, const fsdp__flight_log *log, int64_t ns, const char *behind, FILE *out)
{
    if (ns == 0)
        fprintf(out, "\"%s\": null%s", name, behind);
    else
        fprintf(out, "\"%s\": %lld%s", name, (long long)(ns + log->head.wall_ns), behind);
}

static void put_group(const fsdp__flight_group *g, FILE *out)
{
    fputc('{', out);
    put_text("name", g->name, out);
    put_number("size", (uint64_t)g->size, ", ", out);
    put_number("issued", g->issued, ", ", out);
    put_number("begun", g->begun, ", ", out);
    put_number("done", g->done, ", ", out);
    put_number("dropped", g->dropped, ", \"members\": [", out);
    for (int i = 0; i < g->runs; i++)
        fprintf(out, "%s{\"first\": %d, \"step\": %d, \"count\": %d}", i ? ", " : "", g->run[i].first, g->run[i].step,
                g->run[i].count);
    fputs("]}", out);
}

static void put_call(const fsdp__flight_log *log, const fsdp__flight_record *r, FILE *out)
{
    fputs("\n        {", out);
    put_number("record", r->turn, ", ", out);
    put_number("group", r->group, ", ", out);
    put_number("number", r->number, ", ", out);
    put_text("call", r->name, out);
    put_text("state", state_of(r), out);
    put_number("bytes", r->bytes, ", ", out);
    put_text("dtype", r->dtype == FSDP_DTYPE_NONE ? "" : fsdp_dtype_name((fsdp_dtype)r->dtype), out);
    put_text("module", r->module, out);
    fprintf(out, "\"for_module\": %s, ", r->labelled ? "true" : "false");
    put_number("step", r->step, ", ", out);
    put_number("microbatch", r->microbatch, ", ", out);
    put_time("issued", log, r->issued, ", ", out);
    put_time("begun", log, r->begun, ", ", out);
    put_time("done", log, r->done, "}", out);
}

/* Puts the lines of the table of owners as a list. */
static void put_owners(const char *text, FILE *out)
{
    char line[256];

    key("owners", out);
    fputc('[', out);
    for (size_t length = 0, n = 0; *text; text += length + (text[length] == '\n'), n++) {
        length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)length, text);
        fputs(n ? ", " : "", out);
        fsdp__print_json_string(fsdp__shown(line, FSDP__ROOM(1024)), out);
    }
    fputs("],\n     ", out);
}

static void put_rank(const fsdp__flight_log *log, FILE *out)
{
    static const char *const states[] = {"empty", "runs", "settled", "broken"};

    fputs("\n    {", out);
    put_number("rank", (uint64_t)log->head.rank, ", ", out);
    put_text("machine", log->head.host, out);
    put_number("process", (uint64_t)(uint32_t)log->head.pid, ", ", out);
    put_text("build", log->head.build, out);
    put_text("file", log->path, out);
    put_text("state", states[log->end.state], out);
    put_text("why", log->end.why, out);
    put_text("ending", log->end.ending, out);
    put_owners(log->end.owners, out);
    put_time("started", log, log->head.started_ns, ", ", out);
    put_time("now", log, log->now, ", ", out);
    put_number("damaged", (uint64_t)log->damaged, ", ", out);
    put_number("unlisted", log->unlisted, ", ", out);
    put_number("step", log->place.turn ? log->place.step : 0, ", ", out);
    put_number("microbatch", log->place.turn ? log->place.microbatch : 0, ", ", out);
    put_text("event", log->place.turn ? log->place.word : "", out);
    put_text("module", log->place.turn ? log->place.module : "", out);
    put_time("since", log, log->place.turn ? log->place.ns : 0, ",\n     \"groups\": [", out);
    for (int i = 0; i < log->group_count; i++) {
        fputs(i ? ", " : "", out);
        put_group(&log->groups[i], out);
    }
    fputs("],\n     \"calls\": [", out);
    for (int64_t i = 0; i < log->count; i++) {
        fputs(i ? "," : "", out);
        put_call(log, &log->records[i], out);
    }
    fputs("]}", out);
}

fsdp_status fsdp__flight_print_json(const fsdp__flight_logs *logs, FILE *out)
{
    FSDP__SCOPED(fsdp__flight_verdict_release) fsdp__flight_verdict verdict = {0};

    FSDP_TRY(fsdp__flight_judge(logs, &verdict));
    fputs("{\"verdict\": [", out);
    for (int i = 0; i < verdict.count; i++) {

        fputs(i ? ", " : "", out);
        fsdp__print_json_string(fsdp__shown(verdict.lines[i], FSDP__ROOM(2048)), out);
    }
    fputs("],\n ", out);
    put_text("run", logs->logs[0].end.run, out);
    put_number("world", (uint64_t)logs->world, ", ", out);
    put_number("left_out", (uint64_t)logs->left_out, ", ", out);
    put_number("unreadable", (uint64_t)logs->failed, ",\n \"ranks\": [", out);
    for (int i = 0; i < logs->count; i++) {
        fputs(i ? "," : "", out);
        put_rank(&logs->logs[i], out);
    }
    fputs("]}\n", out);
    return ferror(out) ? NOT_PRINTED : FSDP_OK;
}
