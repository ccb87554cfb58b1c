/* sources.c - finds and reads what a report is made of. */
#include "report/sources.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/text.h"
#include "format/json.h"
#include "report/figures.h"

enum {
    PLAN_BYTES = 64 << 20, /* of a plan */
    MOST_NAMES = 10000     /* of a folder that are looked at */
};

/* ---- what a file is ---- */

/* Says whether a file begins with a text; one that cannot be read does not. Fails only without memory. */
static fsdp_status begins_with(const char *path, const char *text, bool *out)
{
    char head[16] = "";
    bool held = fsdp_hold_error(true);
    size_t bytes = 0;
    FSDP__CLOSED int fd = -1;
    fsdp_status status = fsdp__file_open(path, &fd, &bytes);

    *out = status == FSDP_OK && bytes >= strlen(text) && fsdp__file_pread(fd, path, head, strlen(text), 0) == FSDP_OK &&
           memcmp(head, text, strlen(text)) == 0;
    fsdp_release_error(held);
    return status == FSDP_NO_MEMORY ? FSDP_FAIL(FSDP_NO_MEMORY, "out of memory") : FSDP_OK;
}

/* Finds out by its beginning what a file is; `*known` is false if it is no source, but metrics, or nothing known. A
 * plan is JSON that is laid out over lines, which metrics are not. */
static fsdp_status kind_of(const char *path, fsdp__source_kind *out, bool *known)
{
    *out = FSDP__SOURCE_TRACE;
    FSDP_TRY(fsdp__is_trace(path, known));
    if (*known)
        return FSDP_OK;
    *out = FSDP__SOURCE_FLIGHT;
    FSDP_TRY(begins_with(path, FSDP__FLIGHT_MAGIC, known));
    if (*known)
        return FSDP_OK;
    *out = FSDP__SOURCE_PLAN;
    return begins_with(path, "{\n", known);
}

static bool is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* ---- reading ---- */

static void release(fsdp__source *s)
{
    switch (s->kind) {
    case FSDP__SOURCE_TRACE:
        fsdp__traced_step_release(&s->of.step);
        break;
    case FSDP__SOURCE_FLIGHT:
        fsdp__flight_verdict_release(&s->of.flight.verdict);
        fsdp__flight_logs_release(&s->of.flight.logs);
        break;
    case FSDP__SOURCE_PLAN:
        json_decref(s->of.plan);
        break;
    }
    fsdp__free(s->title);
    fsdp__free(s->path);
}

static fsdp_status read_flight(fsdp__source *s)
{
    const char *path = s->path;

    FSDP_TRY(fsdp__flight_logs_read(&path, 1, &s->of.flight.logs));
    return fsdp__flight_judge(&s->of.flight.logs, &s->of.flight.verdict);
}

static fsdp_status read_plan(fsdp__source *s)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    FSDP_TRY(fsdp__file_read(s->path, PLAN_BYTES, &text, &bytes));
    FSDP_TRY(fsdp__json_parse(s->path, text, bytes, &s->of.plan));
    if (!json_is_object(json_object_get(s->of.plan, "peak")) ||
        !json_is_integer(json_object_get(s->of.plan, "world_size")))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is JSON, but no plan of fsdp plan --json", s->path);
    return FSDP_OK;
}

static bool is_there(const fsdp__sources *all, const char *path)
{
    struct stat mine, theirs;

    for (int i = 0; i < all->count; i++)
        if (stat(path, &mine) == 0 && stat(all->items[i].path, &theirs) == 0 && fsdp__same_file(&mine, &theirs))
            return true;
    return false;
}

static fsdp_status add(fsdp__sources *all, fsdp__source_kind kind, const char *path, int64_t run)
{
    fsdp__source *s = &all->items[all->count];
    fsdp_status status;

    if (is_there(all, path))
        return FSDP_OK;
    if (all->count == FSDP__MOST_SOURCES)
        return FSDP_FAIL(FSDP_INVALID, "more than %d traces, plans and flight records: name fewer files",
                         FSDP__MOST_SOURCES);
    memset(s, 0, sizeof *s);
    s->kind = kind;
    s->run = run;
    s->path = fsdp__strdup(path);
    FSDP__TRY_NEW(s->path);
    status = kind == FSDP__SOURCE_TRACE    ? fsdp__traced_step_read(s->path, &s->of.step)
             : kind == FSDP__SOURCE_FLIGHT ? read_flight(s)
                                           : read_plan(s);
    if (status == FSDP_OK)
        all->count++;
    else
        release(s);
    return status;
}

/* ---- whose it is ---- */

/* Returns when a run was started last, in seconds since 1970; -1: its header does not say. */
static int64_t last_start(const fsdp__recorded_run *run)
{
    const json_t *start = json_array_get(run->starts, json_array_size(run->starts) - 1);
    const char *text = json_string_value(json_object_get(start, "started"));
    struct tm utc = {0};

    return text && strptime(text, "%Y-%m-%dT%H:%M:%SZ", &utc) ? (int64_t)timegm(&utc) : -1;
}

/* Finds when records were begun and ended, in seconds since 1970. The clock that counts is that of the first machine,
 * where the run's header was written; without its records, others' clocks may differ. */
static void span_of(const fsdp__flight_logs *logs, int64_t *begun, int64_t *ended)
{
    const int64_t second = 1000000000, most_apart = 60;
    int64_t apart = 0;

    for (int machine = 0; machine < 2; machine++) {
        *begun = INT64_MAX;
        *ended = INT64_MIN;
        for (int i = 0; i < logs->count; i++) {
            const fsdp__flight_log *log = &logs->logs[i];

            if (machine == 0 && log->head.machine != 0)
                continue;
            *begun = FSDP__MIN(*begun, fsdp__flight_wall(log, log->head.started_ns) / second - apart);
            *ended = FSDP__MAX(*ended, fsdp__flight_wall(log, log->now) / second + apart);
        }
        if (*begun <= *ended)
            return;
        apart = most_apart;
    }
}

static const char *time_text(int64_t seconds, char text[40])
{
    time_t at = (time_t)seconds;
    struct tm utc;

    if (!gmtime_r(&at, &utc) || strftime(text, 40, "%Y-%m-%d %H:%M:%S UTC", &utc) == 0)
        snprintf(text, 40, "an unknown time");
    return text;
}

/* Returns whether one of the run's starts has this id. `*last`: it is the last one. */
static bool has_id(const fsdp__recorded_run *run, const char *id, bool *last)
{
    size_t count = json_array_size(run->starts);

    for (size_t i = 0; i < count; i++) {
        const char *its = json_string_value(json_object_get(json_array_get(run->starts, i), "run"));

        *last = i + 1 == count;
        if (its && strcmp(its, id) == 0)
            return true;
    }
    return false;
}

/* Returns the run that was started last with this id; or, with `earlier`, else one that has gone on from that start;
 * -1: there is none. */
static int64_t run_with(const fsdp__sources *all, const char *id, bool earlier)
{
    int64_t found = -1;
    bool last;

    for (int64_t i = 0; i < all->runs.count; i++)
        if (has_id(&all->runs.runs[i], id, &last) && (last || earlier)) {
            found = i;
            if (last)
                break;
        }
    return found;
}

/* Returns the id of the run that has left flight records; "": they do not say. */
static const char *id_of_flight(const fsdp__source *s)
{
    const fsdp__flight_logs *logs = &s->of.flight.logs;
    const char *id = "";

    for (int i = 0; i < logs->count && !*id; i++)
        id = logs->logs[i].end.id;
    return id;
}

/* Returns the run that has left flight records, by their times, among `near` and the runs before it in its file. Ranks
 * record from before the run writes its header, so it is the first one whose header is not older, unless they ended
 * before that, too: then it is -1. */
static int64_t run_at(const fsdp__recorded_run *runs, int64_t near, int64_t begun, int64_t ended)
{
    while (near > 0 && strcmp(runs[near - 1].path, runs[near].path) == 0 && last_start(&runs[near - 1]) >= begun)
        near--;
    return last_start(&runs[near]) >= begun && last_start(&runs[near]) <= ended ? near : -1;
}

static fsdp_status find_run_of_flight(const fsdp__sources *all, fsdp__source *s, int64_t near)
{
    const fsdp__recorded_run *runs = all->runs.runs;
    const char *id = id_of_flight(s);
    char from[40], to[40], start[40];
    int64_t begun, ended;

    span_of(&s->of.flight.logs, &begun, &ended);
    s->run = *id ? run_with(all, id, false) : last_start(&runs[near]) < 0 ? near : run_at(runs, near, begun, ended);
    if (s->run >= 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_STATE,
                     "the flight records '%s' are not of this run: they go from %s to %s, and it was started at %s; "
                     "fsdp flight shows them",
                     s->path, time_text(begun, from), time_text(ended, to), time_text(last_start(&runs[near]), start));
}

/* Writes where a trace comes from: "of run 9f.., of 2026-..". */
static char *origin_of(const fsdp__trace *t)
{
    return fsdp__sprintf("of run %s, of %s", t->run, t->started ? t->started : "an unknown time");
}

static fsdp_status find_run_of_trace(const fsdp__sources *all, fsdp__source *s, int64_t near)
{
    const fsdp__trace *t = &s->of.step.trace;
    FSDP__FREED char *origin = NULL;

    s->run = near;
    if (!t->run)
        return FSDP_OK;
    s->run = run_with(all, t->run, true);
    if (s->run >= 0)
        return FSDP_OK;
    origin = origin_of(t);
    return origin ? FSDP_FAIL(FSDP_STATE, "the trace '%s' is not of this run: it is %s; name it to see it", s->path,
                              origin)
                  : FSDP_NO_MEMORY;
}

/* Gives what was read to the run that has left it; `near`: the last run of the file that it lies beside, or that it
 * must be of; -1: there is none. */
static fsdp_status find_run(const fsdp__sources *all, fsdp__source *s, int64_t near)
{
    if (s->kind == FSDP__SOURCE_TRACE && all->runs.count > 0)
        return find_run_of_trace(all, s, near);
    if (s->kind == FSDP__SOURCE_FLIGHT && near >= 0)
        return find_run_of_flight(all, s, near);
    s->run = near;
    return FSDP_OK;
}

/* Adds what nobody has named: if it cannot be read, or is of another run, the report says so, and does without. */
static fsdp_status add_found(fsdp__sources *all, fsdp__source_kind kind, const char *path, int64_t run)
{
    int before = all->count;
    fsdp_status status = add(all, kind, path, run);

    if (status == FSDP_OK && all->count > before) {
        status = find_run(all, &all->items[before], run);
        if (status != FSDP_OK)
            release(&all->items[--all->count]);
    }
    if (status == FSDP_OK || status == FSDP_NO_MEMORY || all->unread_count == FSDP__MOST_UNREAD)
        return status == FSDP_NO_MEMORY ? status : FSDP_OK;
    all->unread[all->unread_count] = fsdp__strdup(fsdp_last_error());
    return all->unread[all->unread_count++] ? FSDP_OK : FSDP_NO_MEMORY;
}

/* ---- beside metrics ---- */

/* Adds a trace or a folder of flight records, if it is one, and says so. Takes the path over; NULL: it ran out of
 * memory. */
static fsdp_status add_beside(fsdp__sources *all, fsdp__source_kind kind, char *taken, int64_t run, bool *is)
{
    FSDP__FREED char *path = taken;

    *is = path && is_folder(path);
    FSDP__TRY_NEW(path);
    if (kind == FSDP__SOURCE_TRACE)
        FSDP_TRY(fsdp__is_trace(path, is));
    return *is ? add_found(all, kind, path, run) : FSDP_OK;
}

/* Adds the trace that a run's settings name: it lies where the run was started, or beside its metrics. */
static fsdp_status add_trace(fsdp__sources *all, int64_t run)
{
    const char *named = fsdp__setting(&all->runs.runs[run], "metrics.trace.path"), *name = strrchr(named, '/');
    FSDP__FREED char *folder = fsdp__path_parent(all->runs.runs[run].path);
    bool is;

    FSDP__TRY_NEW(folder);
    if (!*named)
        return FSDP_OK;
    FSDP_TRY(add_beside(all, FSDP__SOURCE_TRACE, fsdp__path_join(folder, name ? name + 1 : named), run, &is));
    return is ? FSDP_OK : add_beside(all, FSDP__SOURCE_TRACE, fsdp__strdup(named), run, &is);
}

static fsdp_status add_flight(fsdp__sources *all, int64_t run)
{
    const fsdp__recorded_run *of = &all->runs.runs[run];
    const char *named = fsdp__setting(of, "metrics.flight_recorder"), *kept = fsdp__setting(of, "checkpoint.folder");
    bool is = false;

    if (*named)
        return add_beside(all, FSDP__SOURCE_FLIGHT, fsdp__strdup(named), run, &is);
    if (*kept)
        FSDP_TRY(add_beside(all, FSDP__SOURCE_FLIGHT, fsdp__path_join(kept, "flight"), run, &is));
    return is ? FSDP_OK : add_beside(all, FSDP__SOURCE_FLIGHT, fsdp__sprintf("%s.flight", of->path), run, &is);
}

/* Adds metrics, and what their last run has left. */
static fsdp_status add_metrics(fsdp__sources *all, const char *path)
{
    FSDP_TRY(fsdp__recorded_runs_read(&all->runs, path));
    if (all->runs.left_out && all->unread_count < FSDP__MOST_UNREAD)
        all->unread[all->unread_count++] = fsdp__take(&all->runs.left_out);
    FSDP_TRY(add_trace(all, all->runs.count - 1));
    return add_flight(all, all->runs.count - 1);
}

/* ---- folders ---- */

/* Adds what has a name that sources have. Plans are taken by name, too: a folder may have much other JSON. */
static fsdp_status add_entry(fsdp__sources *all, const char *path, const char *name, int64_t run, bool *flight)
{
    bool folder = is_folder(path), known = false;
    fsdp__source_kind kind;

    if (folder && (fsdp__ends_with(name, ".flight") || strcmp(name, "flight") == 0))
        return add_found(all, FSDP__SOURCE_FLIGHT, path, run);
    if (!folder && fsdp__ends_with(name, ".flight"))
        *flight = true;
    if (folder || (!fsdp__ends_with(name, ".json") && !fsdp__ends_with(name, ".json.gz")))
        return FSDP_OK;
    FSDP_TRY(kind_of(path, &kind, &known));
    if (!known || kind == FSDP__SOURCE_FLIGHT || (kind == FSDP__SOURCE_PLAN && !strstr(name, "plan")))
        return FSDP_OK;
    return add_found(all, kind, path, run);
}

/* Adds what lies in a folder. `*flight`: these are flight records themselves. */
static fsdp_status add_entries(fsdp__sources *all, const char *path, int64_t run, bool *flight)
{
    FSDP__SCOPED(fsdp__directory_close) fsdp__directory folder = {.path = NULL};
    const struct dirent *entry;
    DIR *names = NULL;
    fsdp_status status;
    int looked = 0;

    FSDP_TRY(fsdp__directory_open(path, &folder));
    FSDP_TRY(fsdp__directory_list(&folder, &names));
    status = FSDP_OK;
    while (status == FSDP_OK && looked++ < MOST_NAMES && (entry = fsdp__directory_next(names, path, &status)) != NULL) {
        FSDP__FREED char *inside = fsdp__path_join(path, entry->d_name);

        status = inside ? add_entry(all, inside, entry->d_name, run, flight) : FSDP_NO_MEMORY;
    }
    closedir(names);
    return status;
}

static fsdp_status add_folder(fsdp__sources *all, const char *path)
{
    FSDP__FREED char *metrics = fsdp__path_join(path, "metrics.jsonl");
    int before = all->count;
    bool flight = false, has = metrics && fsdp__path_exists(metrics);

    FSDP__TRY_NEW(metrics);
    if (has)
        FSDP_TRY(add_metrics(all, metrics));
    FSDP_TRY(add_entries(all, path, has ? all->runs.count - 1 : -1, &flight));
    if (flight)
        return has ? add_found(all, FSDP__SOURCE_FLIGHT, path, all->runs.count - 1)
                   : add(all, FSDP__SOURCE_FLIGHT, path, -1);
    if (has || all->count > before)
        return FSDP_OK;
    if (all->unread_count > 0)
        return FSDP_FAIL(FSDP_FORMAT, "%s", all->unread[0]);
    return FSDP_FAIL(FSDP_NOT_FOUND,
                     "'%s' has no metrics.jsonl, no trace and no flight records: name the file that metrics.jsonl of "
                     "the run's config names",
                     path);
}

fsdp_status fsdp__sources_add(fsdp__sources *all, const char *path)
{
    fsdp__source_kind kind;
    bool known;

    if (is_folder(path))
        return add_folder(all, path);
    FSDP_TRY(kind_of(path, &kind, &known));
    return known ? add(all, kind, path, -1) : add_metrics(all, path);
}

/* ---- all ---- */

/* Gives what was named to its run. What is of none of the runs stays, and says so by its title. */
static fsdp_status name_run(const fsdp__sources *all, fsdp__source *s)
{
    const fsdp__recorded_runs *runs = &all->runs;
    FSDP__FREED char *origin = NULL;
    bool held = fsdp_hold_error(true);
    fsdp_status status = s->run < 0 ? find_run(all, s, runs->count == 1 ? 0 : -1) : FSDP_OK;

    fsdp_release_error(held);
    if (status == FSDP_NO_MEMORY)
        return FSDP_FAIL(FSDP_NO_MEMORY, "out of memory");
    if (s->run >= 0 && runs->count > 1)
        s->title = fsdp__strdup(runs->runs[s->run].label);
    else if (s->run < 0 && s->kind == FSDP__SOURCE_TRACE && s->of.step.trace.run && runs->count > 0)
        s->title = (origin = origin_of(&s->of.step.trace)) ? fsdp__sprintf("'%s' (%s)", s->path, origin) : NULL;
    else if (s->run < 0 && runs->count > 0 && s->kind != FSDP__SOURCE_PLAN)
        s->title = fsdp__sprintf("'%s'", s->path);
    else
        return FSDP_OK;
    return s->title ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_status fsdp__sources_finish(fsdp__sources *all)
{
    FSDP_TRY(fsdp__recorded_runs_label(&all->runs));
    for (int i = 0; i < all->count; i++) {
        fsdp__source *s = &all->items[i];

        FSDP_TRY(name_run(all, s));
        if (s->kind == FSDP__SOURCE_TRACE && s->run >= 0)
            s->of.step.device_bytes = fmax(fsdp__header_number(&all->runs.runs[s->run], "device_bytes"), 0);
    }
    return FSDP_OK;
}

const fsdp__source *fsdp__source_of(const fsdp__sources *all, fsdp__source_kind kind, int64_t run, int n)
{
    for (int i = 0; i < all->count; i++)
        if (all->items[i].kind == kind && (run < 0 || all->items[i].run == run) && n-- == 0)
            return &all->items[i];
    return NULL;
}

void fsdp__sources_release(fsdp__sources *all)
{
    for (int i = 0; i < all->count; i++)
        release(&all->items[i]);
    fsdp__recorded_runs_free(&all->runs);
    for (int i = 0; i < all->unread_count; i++)
        fsdp__free(all->unread[i]);
    all->count = all->unread_count = 0;
}
