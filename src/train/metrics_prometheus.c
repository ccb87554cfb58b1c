/* metrics_prometheus.c - the file in Prometheus' text format that node_exporter's textfile collector reads. It has the
 * values of the last step that was logged, and of the last validation. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/directory.h"
#include "train/metrics_lines.h"
#include "train/metrics_places.h"
#include "train/quantities.h"

#define KEY "metrics.prometheus"
#define FIRST "# HELP fsdp_train_step "

typedef struct prometheus {
    fsdp__directory folder;
    char *name;     /* of the file in it */
    const char *id; /* of the run */
    int64_t log_freq, steps;
    fsdp_train_report report; /* the last one that was written; step 0: none */
    fsdp_train_validation validation;
    bool validated;
} prometheus;

/* The file is replaced again and again. So it must be a plain file, which an earlier run has written. */
static fsdp_status check(const char *path)
{
    struct stat info;

    FSDP_TRY(fsdp__metrics_make_folder(KEY, path));
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? FSDP_OK : fsdp__metrics_cannot_write(KEY, path);
    if (!S_ISREG(info.st_mode))
        return FSDP_FAIL(FSDP_INVALID, "%s: '%s' is not a regular file, and each write replaces it: name another file",
                         KEY, path);
    return fsdp__metrics_check_contents(KEY, path, (const char *const[]){FIRST, NULL}, "does not hold these metrics");
}

static fsdp_status end(void *place)
{
    prometheus *own = place;

    fsdp__directory_close(&own->folder);
    fsdp__free(own->name);
    return FSDP_OK;
}

/* ---- the text ---- */

static void write_value(FILE *file, const fsdp__quantity *q, const void *report)
{
    double value = fsdp__quantity_value(q, report);

    if (isnan(value))
        fputs("NaN", file);
    else if (isinf(value))
        fputs(value > 0 ? "+Inf" : "-Inf", file);
    else
        fsdp__quantity_print(q, report, file);
    fputc('\n', file);
}

static void write_help(FILE *file, const char *prefix, const char *name, const char *help, const char *unit)
{
    fprintf(file, "# HELP fsdp_train_%s%s %s%s%s%s\n# TYPE fsdp_train_%s%s gauge\n", prefix, name, help,
            *unit ? " (" : "", unit, *unit ? ")" : "", prefix, name);
}

static void write_values(const prometheus *own, const char *prefix, const fsdp__quantities *quantities,
                         const void *report, FILE *file)
{
    const char *last = "";

    for (size_t i = 0; i < quantities->count; i++) {
        const fsdp__quantity *q = &quantities->items[i];

        if (!fsdp__quantity_is_there(q, report))
            continue;
        if (strcmp(last, q->name) != 0)
            write_help(file, prefix, q->name, q->help, q->unit);
        last = q->name;
        fprintf(file, "fsdp_train_%s%s{run=\"%s\",rank=\"0\"", prefix, q->name, own->id);
        if (q->part)
            fprintf(file, ",kind=\"%s\"", q->part);
        fputs("} ", file);
        write_value(file, q, report);
    }
}

static void write_step(const prometheus *own, const char *prefix, const char *help, int64_t at, FILE *file)
{
    write_help(file, prefix, "step", help, "");
    fprintf(file, "fsdp_train_%sstep{run=\"%s\",rank=\"0\"} %lld\n", prefix, own->id, (long long)at);
}

static void write_all(const prometheus *own, FILE *file)
{
    write_step(own, "", "the last step that was logged", own->report.step, file);
    if (own->report.step > 0)
        write_values(own, "", &fsdp__step_quantities, &own->report, file);
    if (!own->validated)
        return;
    write_step(own, "validation_", "the step of the last validation", own->validation.step, file);
    write_values(own, "validation_", &fsdp__validation_quantities, &own->validation, file);
}

static fsdp_status write_file(const prometheus *own)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;
    FILE *file = fsdp__begin_text(&text, &bytes);
    fsdp_status status;

    if (file)
        write_all(own, file);
    status = fsdp__end_text(file);
    if (status == FSDP_OK)
        status = fsdp__directory_replace(&own->folder, own->name, text, bytes);
    return fsdp_fail_prefix(status, KEY);
}

/* ---- a run ---- */

/* Looks once more, in the folder that stays open: another key may have made the file, or another user. */
static fsdp_status check_again(const prometheus *own, const char *path)
{
    struct stat info;

    if (!fsdp__directory_look(&own->folder, own->name, &info))
        return FSDP_OK;
    if (!fsdp__directory_admits(&own->folder, &info))
        return FSDP_FAIL(FSDP_INVALID,
                         "%s: user %u owns '%s', or it has a second name, in a folder that others may write to: remove "
                         "it, or name another",
                         KEY, (unsigned)info.st_uid, path);
    return check(path);
}

static fsdp_status begin(const fsdp__metrics_run *run, const char *path, void *place)
{
    prometheus *own = place;

    own->id = run->summary->run;
    own->log_freq = run->config->metrics.log_freq;
    own->steps = run->config->training.steps;
    FSDP_TRY(fsdp_fail_prefix(fsdp__directory_of(path, &own->folder, &own->name), KEY));
    FSDP_TRY(check_again(own, path));
    return write_file(own); /* what cannot be written is known before the first step */
}

static fsdp_status step(void *place, const fsdp_train_report *report)
{
    prometheus *own = place;
    bool first = own->report.step == 0;

    if (!first && report->step % own->log_freq != 0 && report->step != own->steps)
        return FSDP_OK;
    own->report = *report;
    return write_file(own);
}

static fsdp_status validation(void *place, const fsdp_train_validation *validation)
{
    prometheus *own = place;

    own->validation = *validation;
    own->validated = true;
    return write_file(own);
}

const fsdp__metrics_place fsdp__metrics_prometheus = {
    .key = KEY,
    .what = KEY,
    .path = offsetof(fsdp_train_config, metrics.prometheus),
    .bytes = sizeof(prometheus),
    .check = check,
    .begin = begin,
    .step = step,
    .validation = validation,
    .end = end,
};
