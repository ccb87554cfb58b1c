/* sources.c - finds and reads what a report is made of. */
#include "report/sources.h"

#include <string.h>
#include <sys/stat.h>

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
    char *text = NULL;
    size_t bytes = 0;
    fsdp_status status;

    FSDP_TRY(fsdp__file_read(s->path, PLAN_BYTES, &text, &bytes));
    status = fsdp__json_parse(s->path, text, bytes, &s->of.plan);
    fsdp__free(text);
    if (status == FSDP_OK && (!json_is_object(json_object_get(s->of.plan, "peak")) ||
                              !json_is_integer(json_object_get(s->of.plan, "world_size"))))
        status = FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it is JSON, but no plan of fsdp plan --json", s->path);
    return status;
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
    if (!s->path)
        return FSDP_NO_MEMORY;
    status = kind == FSDP__SOURCE_TRACE    ? fsdp__traced_step_read(s->path, &s->of.step)
             : kind == FSDP__SOURCE_FLIGHT ? read_flight(s)
                                           : read_plan(s);
    if (status == FSDP_OK)
        all->count++;
    else
        release(s);
    return status;
}

/* Adds what nobody has named: if it cannot be read, the report says so, and does without. */
static fsdp_status add_found(fsdp__sources *all, fsdp__source_kind kind, const char *path, int64_t run)
{
    fsdp_status status = add(all, kind, path, run);

    if (status == FSDP_OK || status == FSDP_NO_MEMORY || all->unread)
        return status == FSDP_NO_MEMORY ? status : FSDP_OK;
    all->unread = fsdp__strdup(fsdp_last_error());
    return all->unread ? FSDP_OK : FSDP_NO_MEMORY;
}

/* ---- beside metrics ---- */

/* Adds a trace or a folder of flight records, if it is one, and says so. Takes the path over; NULL: it ran out of
 * memory. */
static fsdp_status add_beside(fsdp__sources *all, fsdp__source_kind kind, char *taken, int64_t run, bool *is)
{
    FSDP__FREED char *path = taken;

    *is = path && is_folder(path);
    if (!path)
        return FSDP_NO_MEMORY;
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

    if (!folder)
        return FSDP_NO_MEMORY;
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

    if (!metrics)
        return FSDP_NO_MEMORY;
    if (has)
        FSDP_TRY(add_metrics(all, metrics));
    FSDP_TRY(add_entries(all, path, has ? all->runs.count - 1 : -1, &flight));
    if (flight)
        return add(all, FSDP__SOURCE_FLIGHT, path, has ? all->runs.count - 1 : -1);
    if (has || all->count > before)
        return FSDP_OK;
    if (all->unread)
        return FSDP_FAIL(FSDP_FORMAT, "%s", all->unread);
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

fsdp_status fsdp__sources_finish(fsdp__sources *all)
{
    /* What was named apart from its run is that of the only run. */
    for (int i = 0; i < all->count; i++)
        if (all->items[i].run < 0 && all->runs.count == 1)
            all->items[i].run = 0;
    return fsdp__recorded_runs_label(&all->runs);
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
    fsdp__free(all->unread);
    all->count = 0;
    all->unread = NULL;
}
