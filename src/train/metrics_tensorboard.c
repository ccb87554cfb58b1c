/* metrics_tensorboard.c - the folder of event files: each run adds one. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/directory.h"
#include "base/file.h"
#include "base/text.h"
#include "format/event_file.h"
#include "train/histograms.h"
#include "train/metrics_lines.h"
#include "train/metrics_places.h"
#include "train/quantities.h"

#define KEY "metrics.tensorboard"

enum {
    TAG_BYTES = 200,
    MOST_VALUES = 64 /* of a step or of a validation */
};

typedef struct tensorboard {
    fsdp__directory folder;
    fsdp__event_file *file;
} tensorboard;

/* Checks the folder or, where there is none yet, the one in which it is to be made. */
static fsdp_status check(const char *path)
{
    FSDP__FREED char *at = fsdp__strdup(path);
    struct stat info;

    while (at && stat(at, &info) != 0 && errno == ENOENT && strcmp(at, ".") != 0) {
        char *parent = fsdp__path_parent(at);

        fsdp__free(at);
        at = parent;
    }
    FSDP__TRY_NEW(at);
    if (stat(at, &info) == 0 && !S_ISDIR(info.st_mode))
        return FSDP_FAIL(FSDP_INVALID, "%s: '%s' is not a folder: name another", KEY, at);
    return access(at, W_OK | X_OK) == 0 ? FSDP_OK : fsdp__metrics_cannot_write(KEY, path);
}

static fsdp_status end(void *place)
{
    tensorboard *own = place;
    fsdp_status status = fsdp__event_file_close(own->file);

    fsdp__directory_close(&own->folder);
    return fsdp_fail_prefix(status, KEY);
}

/* Writes a text with every line indented, which Markdown shows as it is, and '?' for bytes that are not UTF-8, which
 * TensorBoard would not show at all. */
static fsdp_status write_text(const tensorboard *own, int64_t at, const char *tag, const char *text)
{
    FSDP__FREED char *lines = NULL;
    size_t bytes;
    FILE *indented = fsdp__begin_text(&lines, &bytes);

    if (indented)
        fputs("    ", indented);
    while (indented && *text) {
        uint32_t character;
        int length = fsdp__utf8_next(text, &character);

        fprintf(indented, "%.*s%s", length > 0 ? length : 1, length > 0 ? text : "?", *text == '\n' ? "    " : "");
        text += length > 0 ? length : 1;
    }
    FSDP_TRY(fsdp__end_text(indented));
    return fsdp__event_file_add(own->file, at, &(fsdp__event_value){.tag = tag, .text = lines}, 1);
}

static fsdp_status write_config(const tensorboard *own, const fsdp__metrics_run *run)
{
    FSDP__FREED char *text = NULL;
    size_t bytes;
    FILE *file = fsdp__begin_text(&text, &bytes);
    fsdp_status status = file ? fsdp_train_config_print(run->config, file) : FSDP_OK;

    FSDP_KEEP_FIRST(status, fsdp__end_text(file));
    FSDP_TRY(status);
    return write_text(own, run->summary->resumed_step + 1, "config", text);
}

static fsdp_status begin(const fsdp__metrics_run *run, const char *path, void *place)
{
    tensorboard *own = place;
    int made = 0;
    fsdp_status status = fsdp__directory_make_path(path, &own->folder, &made);

    if (status == FSDP_OK)
        status = fsdp__event_file_create(&own->folder, run->summary->resumed_step + 1, &own->file);
    if (status == FSDP_OK)
        status = write_config(own, run);
    if (status == FSDP_OK)
        return FSDP_OK;
    if (own->folder.path)
        fsdp__directory_unmake(&own->folder, made); /* unless there is a file now */
    return fsdp_fail_prefix(status, KEY);
}

/* ---- numbers ---- */

static fsdp_status write_values(const tensorboard *own, int64_t at, const fsdp__quantities *quantities,
                                const void *report)
{
    fsdp__event_value values[MOST_VALUES] = {{.tag = NULL}};
    char tags[MOST_VALUES][TAG_BYTES];
    size_t count = 0;

    for (size_t i = 0; i < FSDP__MIN(quantities->count, (size_t)MOST_VALUES); i++) {
        const fsdp__quantity *q = &quantities->items[i];

        if (!fsdp__quantity_is_there(q, report))
            continue;
        snprintf(tags[count], TAG_BYTES, "%s/%s%s%s", q->group, q->name, q->part ? "/" : "", q->part ? q->part : "");
        values[count].tag = tags[count];
        values[count++].number = fsdp__quantity_value(q, report);
    }
    return fsdp_fail_prefix(fsdp__event_file_add(own->file, at, values, count), KEY);
}

static fsdp_status step(void *place, const fsdp_train_report *report)
{
    return write_values(place, report->step, &fsdp__step_quantities, report);
}

static fsdp_status validation(void *place, const fsdp_train_validation *validation)
{
    return write_values(place, validation->step, &fsdp__validation_quantities, validation);
}

/* ---- histograms ---- */

/* Writes a unit's norm, histogram and, if there are any, how many of its elements are not finite. */
static fsdp_status write_histogram(const tensorboard *own, int64_t at, const char *what, const char *unit,
                                   const fsdp__histogram *d)
{
    char tags[3][TAG_BYTES];
    double limits[2 * FSDP__BINS], counts[2 * FSDP__BINS];
    const fsdp__event_histogram event = {.min = d->min,
                                         .max = d->max,
                                         .count = (double)fsdp__histogram_count(d),
                                         .sum = d->sum,
                                         .sum_squares = d->sum_squares,
                                         .limits = limits,
                                         .buckets = counts,
                                         .bucket_count = fsdp__histogram_bins(d, limits, counts)};
    const fsdp__event_value values[] = {{.tag = tags[0], .number = (double)d->not_finite},
                                        {.tag = tags[1], .number = sqrt(d->sum_squares)},
                                        {.tag = tags[2], .histogram = &event}};
    size_t first = d->not_finite == 0, count = event.count > 0 ? 3 : 1;

    unit = *unit ? unit : "root";
    snprintf(tags[0], TAG_BYTES, "%s not finite/%s", what, unit);
    snprintf(tags[1], TAG_BYTES, "%s norm/%s", what, unit);
    snprintf(tags[2], TAG_BYTES, "%s/%s", what, unit);
    return first < count ? fsdp__event_file_add(own->file, at, values + first, count - first) : FSDP_OK;
}

/* Writes by how much of their norm the step has changed a unit's weights. */
static fsdp_status write_update(const tensorboard *own, int64_t at, const char *unit, const fsdp__histogram *weights)
{
    char tag[TAG_BYTES];
    const fsdp__event_value value = {.tag = tag, .number = sqrt(weights->update_squares / weights->sum_squares)};

    snprintf(tag, sizeof tag, "update ratio/%s", *unit ? unit : "root");
    return weights->sum_squares > 0 ? fsdp__event_file_add(own->file, at, &value, 1) : FSDP_OK;
}

static fsdp_status histograms(void *place, int64_t at, const fsdp__histograms *d)
{
    fsdp_status status = FSDP_OK;

    for (int64_t i = 0; status == FSDP_OK && i < d->count; i++) {
        status = write_histogram(place, at, "gradient", d->names[i], &d->gradients[i]);
        if (status == FSDP_OK)
            status = write_histogram(place, at, "weight", d->names[i], &d->weights[i]);
        if (status == FSDP_OK)
            status = write_update(place, at, d->names[i], &d->weights[i]);
    }
    return fsdp_fail_prefix(status, KEY);
}

static fsdp_status text_of(void *place, int64_t at, const char *tag, const char *text)
{
    return fsdp_fail_prefix(write_text(place, at, tag, text), KEY);
}

const fsdp__metrics_place fsdp__metrics_tensorboard = {
    .key = KEY,
    .what = KEY,
    .path = offsetof(fsdp_train_config, metrics.tensorboard),
    .every_step = true,
    .bytes = sizeof(tensorboard),
    .check = check,
    .begin = begin,
    .step = step,
    .validation = validation,
    .histograms = histograms,
    .text = text_of,
    .end = end,
};
