/* metrics_csv.c - the table with a row per step and validation, in columns that are always the same. */
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "train/metrics_lines.h"
#include "train/metrics_places.h"
#include "train/quantities.h"

#define KEY "metrics.csv"

enum {
    HEADER_BYTES = 64 << 10 /* most of a first line that is looked at; ours is far shorter */
};

typedef struct csv {
    fsdp__metrics_lines lines;
    const char *id; /* of the run */
    char *path;     /* that it writes to */
} csv;

/* ---- columns ---- */

static void write_names(FILE *file, const char *prefix, const fsdp__quantities *quantities)
{
    for (size_t i = 0; i < quantities->count; i++) {
        const fsdp__quantity *q = &quantities->items[i];

        fprintf(file, ",%s%s", prefix, q->name);
        if (q->part)
            fprintf(file, "_%s", fsdp__json_name(q->part, FSDP__ROOM(FSDP__JSON_NAME)));
    }
}

/* Returns the first line; fsdp__free it. NULL and a last error when out of memory. */
static char *make_header(void)
{
    FSDP__FREED char *text = NULL;
    size_t bytes;
    FILE *file = fsdp__begin_text(&text, &bytes);

    if (file) {
        fputs("run,step", file);
        write_names(file, "", &fsdp__step_quantities);
        write_names(file, "validation_", &fsdp__validation_quantities);
        fputc('\n', file);
    }
    return fsdp__end_text(file) == FSDP_OK ? fsdp__take(&text) : NULL;
}

/* ---- the file ---- */

/* Tells whether the file has a table of this program's with other columns, as another version leaves it. A FIFO or a
 * terminal is only looked at, and not waited for. */
static fsdp_status find_other_columns(const char *path, const char *header, bool *out)
{
    static const char begin[] = "run,step,";
    FSDP__CLOSED int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    FSDP__FREED char *text = NULL;
    struct stat info;

    *out = false;
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode))
        return FSDP_OK;
    FSDP__TRY_NEW(text = fsdp__calloc(1, HEADER_BYTES + 1));
    *out = read(fd, text, HEADER_BYTES) > 0 && strncmp(text, begin, sizeof begin - 1) == 0 &&
           strncmp(text, header, strlen(header)) != 0 && strchr(text, '\n');
    return FSDP_OK;
}

/* Gives the file that rows go to: the one that is named, or the first of its name with -2, -3, ... that has no table
 * with other columns. So nothing of such a table is lost, and a run need not end for it. */
static fsdp_status choose(const char *path, const char *header, char **out)
{
    const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *dot = strrchr(name, '.');
    int stem = (int)((dot && dot > name ? dot : name + strlen(name)) - path);
    bool other;

    FSDP__TRY_NEW(*out = fsdp__strdup(path));
    FSDP_TRY(find_other_columns(path, header, &other));
    for (int i = 2; other; i++) {
        fsdp__free(*out);
        FSDP__TRY_NEW(*out = fsdp__sprintf("%.*s-%d%s", stem, path, i, path + stem));
        FSDP_TRY(find_other_columns(*out, header, &other));
    }
    return FSDP_OK;
}

static fsdp_status check_with(fsdp_status (*look)(const char *key, const char *path, const char *const *firsts,
                                                  const char *otherwise),
                              const char *path, const char *header)
{
    return look(KEY, path, (const char *const[]){header, NULL}, "does not begin with the columns of this version");
}

static fsdp_status check(const char *path)
{
    FSDP__FREED char *header = make_header(), *chosen = NULL;

    FSDP__TRY_NEW(header);
    FSDP_TRY(choose(path, header, &chosen));
    return check_with(fsdp__metrics_lines_check, chosen, header);
}

/* ---- rows ---- */

static fsdp_status end(void *place)
{
    csv *own = place;
    fsdp_status status = fsdp__metrics_lines_close(&own->lines);

    fsdp__free(own->path);
    own->path = NULL;
    return status;
}

/* Opens the file that rows go to. Another run may begin it with other columns in the meantime: then it is the next. */
static fsdp_status open_table(fsdp_context *context, csv *own, const char *path, const char *header)
{
    for (bool other = true; other;) {
        FSDP_TRY(end(own));
        FSDP_TRY(choose(path, header, &own->path));
        FSDP_TRY(fsdp__metrics_lines_open(context, KEY, own->path, header, &own->lines));
        FSDP_TRY(find_other_columns(own->path, header, &other));
    }
    return FSDP_OK;
}

/* Writes the names of the columns into a file that has none, or not all of them. */
static fsdp_status write_header(const fsdp__metrics_lines *lines, const char *header)
{
    bool others = lines->begun && !lines->unfinished;

    if (others) /* another key may have begun the file a moment ago */
        FSDP_TRY(check_with(fsdp__metrics_check_contents, lines->path, header));
    fputs(others ? lines->cut_off ? "\n" : "" : header + lines->unfinished, lines->file);
    return fsdp__metrics_lines_begun(lines);
}

static fsdp_status begin(const fsdp__metrics_run *run, const char *path, void *place)
{
    FSDP__FREED char *header = make_header();
    csv *own = place;

    FSDP__TRY_NEW(header);
    own->id = run->summary->run;
    FSDP_TRY(open_table(run->context, own, path, header));
    if (strcmp(own->path, path) != 0)
        fsdp_log(run->context, FSDP_LOG_WARNING,
                 KEY ": '%s' has the columns of another version, so this run writes to '%s'", path, own->path);
    return write_header(&own->lines, header);
}

/* Writes a place for each quantity, which is empty where there is no report or no number. */
static void write_values(FILE *file, const fsdp__quantities *quantities, const void *report)
{
    for (size_t i = 0; i < quantities->count; i++) {
        const fsdp__quantity *q = &quantities->items[i];

        fputc(',', file);
        if (report && fsdp__quantity_is_there(q, report) && isfinite(fsdp__quantity_value(q, report)))
            fsdp__quantity_print(q, report, file);
    }
}

static fsdp_status write_row(const csv *own, int64_t at, const fsdp_train_report *report,
                             const fsdp_train_validation *validation)
{
    FILE *file = own->lines.file;

    fprintf(file, "%s,%lld", own->id, (long long)at);
    write_values(file, &fsdp__step_quantities, report);
    write_values(file, &fsdp__validation_quantities, validation);
    fputc('\n', file);
    return fsdp__metrics_lines_written(&own->lines);
}

static fsdp_status step(void *place, const fsdp_train_report *report)
{
    return write_row(place, report->step, report, NULL);
}

static fsdp_status validation(void *place, const fsdp_train_validation *validation)
{
    return write_row(place, validation->step, NULL, validation);
}

const fsdp__metrics_place fsdp__metrics_csv = {
    .key = KEY,
    .what = KEY,
    .path = offsetof(fsdp_train_config, metrics.csv),
    .every_step = true,
    .bytes = sizeof(csv),
    .check = check,
    .begin = begin,
    .step = step,
    .validation = validation,
    .end = end,
};
