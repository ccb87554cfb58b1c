/* run_file.c - reads what runs have left in metrics.jsonl. */
#include "report/run_file.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "format/json.h"

enum {
    LINE = 1 << 20, /* the longest line; ours have some 600 bytes */
    MOST_KEYS = 256 /* of a step */
};

/* ---- series ---- */

const fsdp__series *fsdp__series_of(const fsdp__recorded_run *run, const char *name)
{
    for (int64_t i = 0; i < run->count; i++)
        if (strcmp(run->series[i].name, name) == 0)
            return &run->series[i];
    return NULL;
}

double fsdp__header_number(const fsdp__recorded_run *run, const char *key)
{
    const json_t *value = json_object_get(run->header, key);

    return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *fsdp__header_text(const fsdp__recorded_run *run, const char *key)
{
    return json_string_value(json_object_get(run->header, key));
}

/* Removes the points after `step`: that work was lost, or is done again. */
static void cut_after(fsdp__series *series, double step)
{
    while (series->count > 0 && series->points[series->count - 1].step > step)
        series->count--;
}

static fsdp_status add_point(fsdp__series *series, double step, double value)
{
    while (series->count > 0 && series->points[series->count - 1].step >= step)
        series->count--;
    FSDP_TRY(fsdp__grow(&series->points, series->count + 1, &series->capacity, sizeof *series->points));
    series->points[series->count++] = (fsdp__point_of_series){step, value};
    return FSDP_OK;
}

/* Finds the series of a key, or makes it. The keys of a step come in the order of those before, so the right one is
 * most often at `guess`. */
static fsdp__series *series_for(fsdp__recorded_run *run, const char *name, int64_t guess)
{
    const fsdp__series *found;
    fsdp__series *made;

    if (guess < run->count && strcmp(run->series[guess].name, name) == 0)
        return &run->series[guess];
    found = fsdp__series_of(run, name);
    if (found)
        return &run->series[found - run->series];
    if (run->count == MOST_KEYS) {
        (void)FSDP_FAIL(FSDP_FORMAT, "its steps have over %d keys: no run has written it", MOST_KEYS);
        return NULL;
    }
    if (fsdp__grow(&run->series, run->count + 1, &run->capacity, sizeof *run->series) != 0)
        return NULL;
    made = &run->series[run->count];
    *made = (fsdp__series){.name = fsdp__strdup(name)};
    run->count += made->name != NULL;
    return made->name ? made : NULL;
}

/* ---- lines ---- */

/* Gives the loss of a step or validation; NaN: there is none, or it was not finite, for which runs write null. */
static fsdp_status read_loss(const json_t *line, double *out)
{
    const json_t *loss = json_object_get(line, "loss");

    *out = json_is_number(loss) ? json_number_value(loss) : NAN;
    return !loss || json_is_number(loss) || json_is_null(loss)
               ? FSDP_OK
               : FSDP_FAIL(FSDP_FORMAT, "'loss' is neither a number nor null: no run has written it");
}

static fsdp_status add_step(fsdp__recorded_run *run, const json_t *line, double step)
{
    const char *name;
    json_t *value;
    int64_t guess = 0;
    double loss;

    FSDP_TRY(read_loss(line, &loss));
    json_object_foreach((json_t *)line, name, value)
    {
        fsdp__series *series;

        if (strcmp(name, "step") == 0 || !(json_is_number(value) || json_is_null(value)))
            continue;
        series = series_for(run, name, guess++);
        if (!series)
            return fsdp_last_status();
        FSDP_TRY(add_point(series, step, json_is_number(value) ? json_number_value(value) : NAN));
    }
    return FSDP_OK;
}

#define VALIDATION_KEY "validation_"

const char *fsdp__validation_key(const char *name, char text[FSDP__VALIDATION_KEY])
{
    snprintf(text, FSDP__VALIDATION_KEY, VALIDATION_KEY "%s", name);
    return text;
}

bool fsdp__is_validation_key(const char *name)
{
    return fsdp__behind(name, VALIDATION_KEY);
}

/* Adds a validation: its loss, and the rewards of pairs. */
static fsdp_status add_validation(fsdp__recorded_run *run, const json_t *line, double step)
{
    char key[FSDP__VALIDATION_KEY];
    const char *name;
    json_t *value;
    double loss;

    FSDP_TRY(read_loss(line, &loss));
    json_object_foreach((json_t *)line, name, value)
    {
        fsdp__series *series;

        if (!fsdp__behind(name, "reward_") || !json_is_number(value))
            continue;
        series = series_for(run, fsdp__validation_key(name, key), run->count);
        if (!series)
            return fsdp_last_status();
        FSDP_TRY(add_point(series, step, json_number_value(value)));
    }
    return add_point(&run->validation, step, loss);
}

static fsdp__recorded_run *last_run(fsdp__recorded_runs *all, int64_t first)
{
    return all->count > first ? &all->runs[all->count - 1] : NULL;
}

#define THEN ", then "

/* Adds what a start says to what those before it have said, if it differs from the last of them. What follows a text's
 * last comma does not count: of a GPU it is the memory that was free. */
static fsdp_status add_start(char **all, const char *now)
{
    const char *last = *all, *comma = strrchr(now, ',');
    char *longer;

    for (const char *at = last; at && (at = strstr(at, THEN));)
        last = at += strlen(THEN);
    if (last && (comma ? strncmp(last, now, (size_t)(comma - now) + 1) : strcmp(last, now)) == 0)
        return FSDP_OK;
    longer = last ? fsdp__sprintf("%s" THEN "%s", *all, now) : fsdp__strdup(now);
    FSDP__TRY_NEW(longer);
    fsdp__free(*all);
    *all = longer;
    return FSDP_OK;
}

static fsdp_status add_starts(fsdp__recorded_run *run, const json_t *header)
{
    const json_t *ranks = json_object_get(header, "world_size");
    const char *device = json_string_value(json_object_get(header, "device"));
    char number[24];

    if (!run->starts)
        run->starts = json_array();
    if (!run->starts || json_array_append(run->starts, (json_t *)header) != 0)
        return FSDP_NO_MEMORY;
    snprintf(number, sizeof number, "%lld", (long long)json_integer_value(ranks));
    if (json_is_integer(ranks))
        FSDP_TRY(add_start(&run->ranks, number));
    return device ? add_start(&run->devices, device) : FSDP_OK;
}

static fsdp_status begin_run(fsdp__recorded_runs *all, const char *path, const json_t *header)
{
    fsdp__recorded_run *run;

    if (all->count == FSDP__MOST_RUNS)
        return FSDP_FAIL(FSDP_INVALID, "more than %d runs: name fewer files, or files with fewer runs",
                         FSDP__MOST_RUNS);
    FSDP_TRY(fsdp__grow(&all->runs, all->count + 1, &all->capacity, sizeof *all->runs));
    run = &all->runs[all->count++];
    *run = (fsdp__recorded_run){.path = fsdp__strdup(path)};
    run->header = header ? json_deep_copy(header) : json_object();
    if (!run->path || !run->header)
        return FSDP_NO_MEMORY;
    return header ? add_starts(run, header) : FSDP_OK;
}

/* Keeps a line of what stood out, and drops those of work that was lost. */
static fsdp_status add_warning(fsdp__recorded_run *run, const json_t *line)
{
    if (!run->warnings)
        run->warnings = json_array();
    return run->warnings && json_array_append(run->warnings, (json_t *)line) == 0 ? FSDP_OK : FSDP_NO_MEMORY;
}

static void cut_warnings(json_t *warnings, double step)
{
    for (size_t i = json_array_size(warnings); i-- > 0;)
        if (json_number_value(json_object_get(json_array_get(warnings, i), "warning")) > step)
            json_array_remove(warnings, i);
}

/* Continues the file's last run from a checkpoint, whose later steps are lost. */
static fsdp_status continue_run(fsdp__recorded_run *run, const json_t *header, double step)
{
    fsdp_status status = FSDP_OK;
    json_t *started;

    for (int64_t i = 0; i < run->count; i++)
        cut_after(&run->series[i], step);
    cut_after(&run->validation, step);
    cut_warnings(run->warnings, step);
    run->continued++;
    FSDP_TRY(add_point(&run->resumes, step, 0));
    started = json_incref(json_object_get(run->header, "started"));
    if (json_object_update(run->header, (json_t *)header) != 0 ||
        (started && json_object_set(run->header, "started", started) != 0))
        status = FSDP_NO_MEMORY;
    json_decref(started);
    return status == FSDP_OK ? add_starts(run, header) : status;
}

/* Adds what a line says. `first` is the number of the first run of this file. */
static fsdp_status add_line(fsdp__recorded_runs *all, int64_t first, const char *path, const json_t *line)
{
    const json_t *step = json_object_get(line, "step"), *validation = json_object_get(line, "validation");
    const json_t *resumed = json_object_get(line, "resumed_from");
    bool warns = json_is_number(json_object_get(line, "warning"));

    if (json_object_get(line, "run")) {
        if (json_is_number(resumed) && last_run(all, first))
            return continue_run(last_run(all, first), line, json_number_value(resumed));
        return begin_run(all, path, line);
    }
    if (!json_is_number(step) && !json_is_number(validation) && !warns)
        return FSDP_FAIL(FSDP_FORMAT, "neither the header of a run, nor a step, nor a validation");
    if (!last_run(all, first))
        FSDP_TRY(begin_run(all, path, NULL));
    if (warns)
        return add_warning(last_run(all, first), line);
    if (json_is_number(step))
        return add_step(last_run(all, first), line, json_number_value(step));
    return add_validation(last_run(all, first), line, json_number_value(validation));
}

/* ---- files ---- */

typedef struct reading {
    fsdp__recorded_runs *all;
    const char *path;
    int64_t first, line, unread; /* unread: the number of a line that is no JSON; 0: none */
    char *text;
} reading;

/* Reads a line. One that is no JSON may have been left unfinished: then it is the last one, or a header follows. */
static fsdp_status read_line(reading *r)
{
    fsdp_status status;
    json_t *line = NULL;

    r->line++;
    if (r->text[strspn(r->text, " \t\r\n")] == '\0')
        return FSDP_OK;
    status = fsdp__json_parse(r->path, r->text, strlen(r->text), &line);
    if (status == FSDP_NO_MEMORY)
        return status;
    if (r->unread && (!line || !json_object_get(line, "run")))
        status = FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': line %lld is no JSON object", r->path, (long long)r->unread);
    else if (!line)
        status = FSDP_OK;
    else if ((status = add_line(r->all, r->first, r->path, line)) != FSDP_OK)
        fsdp_fail_prefix(status, "cannot read '%s': line %lld", r->path, (long long)r->line);
    r->unread = line ? 0 : r->line;
    json_decref(line);
    return status;
}

/* Reads the next line, without the NULs that a power cut may leave before it. Returns its bytes; 0: the file ends. */
static size_t next_line(reading *r, FILE *file)
{
    size_t bytes = 0;

    for (int c = getc_unlocked(file); c != EOF; c = getc_unlocked(file)) { /* no other thread reads it */
        if (c == '\0' && bytes == 0)
            continue;
        r->text[bytes++] = c == '\0' ? '?' : (char)c; /* no JSON has one */
        if (c == '\n' || bytes == LINE - 1)
            break;
    }
    r->text[bytes] = '\0';
    return bytes;
}

static fsdp_status read_lines(reading *r, FILE *file)
{
    for (size_t bytes = next_line(r, file); bytes > 0; bytes = next_line(r, file)) {
        if (bytes == LINE - 1 && r->text[bytes - 1] != '\n')
            return FSDP_FAIL(FSDP_FORMAT,
                             "cannot read '%s': line %lld has over a million characters: it holds no metrics", r->path,
                             (long long)r->line + 1);
        FSDP_TRY(read_line(r));
    }
    return ferror(file) ? fsdp__file_error("read", r->path) : FSDP_OK;
}

static fsdp_status read_file(fsdp__recorded_runs *all, const char *path)
{
    reading r = {.all = all, .path = path, .first = all->count};
    fsdp_status status;
    FILE *file = NULL;
    int fd = -1;

    FSDP_TRY(fsdp__file_open(path, &fd, NULL));
    r.text = fsdp__malloc(LINE);
    file = r.text ? fdopen(fd, "r") : NULL;
    if (!file) {
        status = r.text ? fsdp__file_error("read", path) : FSDP_NO_MEMORY;
        close(fd);
    } else {
        status = read_lines(&r, file);
        fclose(file);
    }
    fsdp__free(r.text);
    if (status == FSDP_OK && all->count == r.first)
        status =
            FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it holds no run: name the metrics.jsonl of fsdp train", path);
    return status;
}

fsdp_status fsdp__recorded_runs_read(fsdp__recorded_runs *all, const char *path)
{
    FSDP__FREED char *inside = NULL;
    struct stat info;

    if (stat(path, &info) != 0)
        return fsdp__file_error("read", path);
    if (!S_ISDIR(info.st_mode))
        return read_file(all, path);
    FSDP__TRY_NEW(inside = fsdp__path_join(path, "metrics.jsonl"));
    if (fsdp__path_exists(inside))
        return read_file(all, inside);
    return FSDP_FAIL(FSDP_NOT_FOUND,
                     "'%s' has no metrics.jsonl: name the file that metrics.jsonl of the run's config names", path);
}

/* ---- labels ---- */

/* Writes the name of a run's folder; of a file that is not called metrics.jsonl, its own. */
static char *short_label(const char *path)
{
    const char *name = strrchr(path, '/');
    char *parent, *label, whole[PATH_MAX];

    name = name ? name + 1 : path;
    if (strcmp(name, "metrics.jsonl") != 0 || name == path)
        return fsdp__strdup(name);
    parent = fsdp__path_parent(path);
    if (!parent)
        return NULL;
    name = strrchr(parent, '/');
    name = name && name[1] ? name + 1 : parent;
    if ((strcmp(name, ".") == 0 || strcmp(name, "..") == 0) && realpath(parent, whole) && strrchr(whole, '/')[1])
        name = strrchr(whole, '/') + 1;
    label = fsdp__strdup(name);
    fsdp__free(parent);
    return label;
}

/* Returns whether another file's run has the same short label. */
static bool is_ambiguous(const fsdp__recorded_runs *all, const fsdp__recorded_run *run)
{
    for (int64_t i = 0; i < all->count; i++)
        if (strcmp(all->runs[i].path, run->path) != 0 && strcmp(all->runs[i].label, run->label) == 0)
            return true;
    return false;
}

fsdp_status fsdp__recorded_runs_label(fsdp__recorded_runs *all)
{
    bool ambiguous[FSDP__MOST_RUNS];

    for (int64_t i = 0; i < all->count; i++) {
        all->runs[i].label = short_label(all->runs[i].path);
        FSDP__TRY_NEW(all->runs[i].label);
    }
    for (int64_t i = 0; i < all->count; i++)
        ambiguous[i] = is_ambiguous(all, &all->runs[i]);
    for (int64_t i = 0; i < all->count; i++) {
        fsdp__recorded_run *run = &all->runs[i];
        const char *name = ambiguous[i] ? run->path : run->label;
        int64_t nth = 1;
        char *label;

        for (int64_t before = 0; before < i; before++)
            nth += strcmp(all->runs[before].path, run->path) == 0;
        name = FSDP__SHOWN_NAME(name);
        label = nth > 1 ? fsdp__sprintf("%s, run %lld", name, (long long)nth) : fsdp__strdup(name);
        FSDP__TRY_NEW(label);
        fsdp__free(run->label);
        run->label = label;
    }
    return FSDP_OK;
}

void fsdp__recorded_runs_free(fsdp__recorded_runs *all)
{
    for (int64_t i = 0; i < all->count; i++) {
        fsdp__recorded_run *run = &all->runs[i];

        for (int64_t k = 0; k < run->count; k++) {
            fsdp__free(run->series[k].name);
            fsdp__free(run->series[k].points);
        }
        fsdp__free(run->series);
        json_decref(run->warnings);
        fsdp__free(run->validation.points);
        fsdp__free(run->resumes.points);
        fsdp__free(run->path);
        fsdp__free(run->label);
        fsdp__free(run->ranks);
        fsdp__free(run->devices);
        json_decref(run->header);
        json_decref(run->starts);
    }
    fsdp__free(all->runs);
    *all = (fsdp__recorded_runs){0};
}
