/* run_file.c - the runs of a report: what they have, and their names. */
#include "report/run_file.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"

/* ---- what a run has ---- */

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

/* ---- the end ---- */

void fsdp__recorded_run_release(fsdp__recorded_run *run)
{
    for (int64_t k = 0; k < run->count; k++)
        FSDP__FREE_ALL(run->series[k].name, run->series[k].points);
    FSDP__FREE_ALL(run->series, run->validation.points, run->resumes.points, run->path, run->label, run->ranks,
                   run->devices);
    json_decref(run->warnings);
    json_decref(run->header);
    json_decref(run->starts);
}

void fsdp__recorded_runs_free(fsdp__recorded_runs *all)
{
    for (int64_t i = 0; i < all->count; i++)
        fsdp__recorded_run_release(&all->runs[i]);
    FSDP__FREE_ALL(all->runs, all->left_out);
    *all = (fsdp__recorded_runs){0};
}
