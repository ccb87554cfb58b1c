/* metrics_jsonl.c - the file with one JSON object per step: the header line of a run, a line per step. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/text.h"
#include "train/metrics.h"
#include "train/metrics_lines.h"
#include "train/metrics_places.h"
#include "train/quantities.h"
#include "train/run_config.h"

typedef struct jsonl {
    fsdp__metrics_lines lines;
    const char *id; /* of the run */
    int machines;
    bool gpus;
} jsonl;

#define FIRST "{\"run\": \"" /* what a file begins with */

static fsdp_status check(const char *path)
{
    static const char *const firsts[] = {FIRST, "{\"step\": ", NULL};

    return fsdp__metrics_lines_check("metrics.jsonl", path, firsts, "does not hold metrics");
}

static void write_text(FILE *file, const char *name, const char *text)
{
    fprintf(file, ", \"%s\": ", name);
    fsdp__print_json_string(text, file);
}

static fsdp_status write_header(const fsdp__metrics_lines *lines, const fsdp__metrics_run *run)
{
    const fsdp_train_summary *summary = run->summary;
    char hash_text[2 * 8 + 1], started[40];
    time_t now = time(NULL);
    uint64_t hash;
    struct tm utc;

    FSDP_TRY(fsdp__train_config_hash(run->config, &hash));
    snprintf(hash_text, sizeof hash_text, "%016llx", (unsigned long long)hash);
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    fprintf(lines->file, "%s%s%s\", \"id\": \"%s\"", lines->cut_off ? "\n" : "", &FIRST[lines->unfinished],
            summary->run, summary->run);
    write_text(lines->file, "started", started);
    write_text(lines->file, "version", FSDP_VERSION);
    write_text(lines->file, "config", hash_text);
    write_text(lines->file, "model", summary->model);
    if (summary->device)
        write_text(lines->file, "device", summary->device);
    if (summary->device_bytes > 0)
        fprintf(lines->file, ", \"device_bytes\": %zu", summary->device_bytes);
    if (summary->resumed_from)
        fprintf(lines->file, ", \"resumed_from\": %lld", (long long)summary->resumed_step);
    if (summary->resumed_from && summary->resumed_run)
        write_text(lines->file, "continues", summary->resumed_run);
    if (summary->machines > 1)
        fprintf(lines->file, ", \"machines\": %d", summary->machines);
    fprintf(lines->file,
            ", \"parameters\": %lld, \"world_size\": %d, \"steps\": %lld, \"tokens_per_step\": %lld, "
            "\"settings\": ",
            (long long)summary->parameters, summary->world_size, (long long)run->config->training.steps,
            (long long)summary->tokens_per_step);
    FSDP_TRY(fsdp__train_write_settings(run->config, lines->file));
    fputs("}\n", lines->file);
    return fsdp__metrics_lines_begun(lines);
}

static fsdp_status end(void *place)
{
    return fsdp__metrics_lines_close(&((jsonl *)place)->lines);
}

static fsdp_status begin(const fsdp__metrics_run *run, const char *path, void *place)
{
    jsonl *own = place;

    own->id = run->summary->run;
    own->machines = run->summary->machines;
    own->gpus = run->summary->gpus_exchange;
    FSDP_TRY(fsdp__metrics_lines_open(run->context, "metrics.jsonl", path, FIRST, &own->lines));
    return write_header(&own->lines, run);
}

/* Writes a value; JSON has no word for infinity and NaN. */
static void write_value(FILE *file, const fsdp__quantity *q, const void *report)
{
    double value = fsdp__quantity_value(q, report);

    fprintf(file, ", \"%s%s%s\": ", q->name, q->part ? "_" : "",
            q->part ? fsdp__json_name(q->part, FSDP__ROOM(FSDP__JSON_NAME)) : "");
    if (q->type == FSDP__QUANTITY_BOOL)
        fputs(value != 0 ? "true" : "false", file);
    else if (isfinite(value))
        fsdp__quantity_print(q, report, file);
    else
        fputs("null", file);
}

/* Ends a line with whose it is: another run may write to the file at the same time. Programs know how lines begin. */
static fsdp_status end_line(const jsonl *own)
{
    fprintf(own->lines.file, ", \"id\": \"%s\"}\n", own->id);
    return fsdp__metrics_lines_written(&own->lines);
}

static void write_values(const jsonl *own, const fsdp__quantities *quantities, const void *report)
{
    for (size_t i = 0; i < quantities->count; i++) {
        const fsdp__quantity *q = &quantities->items[i];

        if (q->when != FSDP__QUANTITY_MORE && (q->when != FSDP__QUANTITY_NETWORK || own->machines > 1) &&
            (q->when != FSDP__QUANTITY_WAITS || own->machines > 1 || own->gpus) && fsdp__quantity_is_there(q, report))
            write_value(own->lines.file, q, report);
    }
}

static fsdp_status step(void *place, const fsdp_train_report *report)
{
    const jsonl *own = place;

    fprintf(own->lines.file, "{\"step\": %lld", (long long)report->step);
    write_values(own, &fsdp__step_quantities, report);
    return end_line(own);
}

static fsdp_status validation(void *place, const fsdp_train_validation *validation)
{
    const jsonl *own = place;

    fprintf(own->lines.file, "{\"validation\": %lld", (long long)validation->step);
    write_values(own, &fsdp__validation_quantities, validation);
    return end_line(own);
}

/* Writes what stands out in a run; other texts are for those who look at them. */
static fsdp_status warning(void *place, int64_t at, const char *tag, const char *text)
{
    const jsonl *own = place;

    if (strncmp(tag, FSDP__WARNING_TAG, strlen(FSDP__WARNING_TAG)) != 0)
        return FSDP_OK;
    fprintf(own->lines.file, "{\"warning\": %lld", (long long)at);
    write_text(own->lines.file, "of", tag + strlen(FSDP__WARNING_TAG));
    write_text(own->lines.file, "text", text);
    return end_line(own);
}

const fsdp__metrics_place fsdp__metrics_jsonl = {
    .key = "metrics.jsonl",
    .what = "metrics",
    .path = offsetof(fsdp_train_config, metrics.jsonl),
    .every_step = true,
    .bytes = sizeof(jsonl),
    .check = check,
    .begin = begin,
    .step = step,
    .validation = validation,
    .text = warning,
    .end = end,
};
