/* cmd_report.c - fsdp report RUN...: what runs did, side by side. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/on_device.h"
#include "cli/own_process.h"
#include "plan/changes.h"
#include "report/advice_list.h"
#include "report/report.h"
#include "train/metrics.h"
#include "train/run_config.h"

/* ---- what an advice would bring: a recorded run is planned with other settings ---- */

/* Says where runs are planned. */
typedef struct planned_advice {
    fsdp__on_device device; /* that the user names; without a name each run is planned on its own device */
    char opened[160];       /* whose prices the device has; "": none yet */
} planned_advice;

/* Writes where a run was, as fsdp plan's --device has it: a GPU by its data sheet, a CPU as the one that is here. */
static void device_of(const fsdp__recorded_run *run, char *text, size_t bytes)
{
    const char *name = fsdp__header_text(run, "device"), *card = name ? strchr(name, '(') : NULL;

    if (card)
        snprintf(text, bytes, "cuda:%.*s", (int)strcspn(card + 1, ",)"), card + 1);
    else
        snprintf(text, bytes, "cpu");
}

/* Gets the device's prices, unless they are those of the run before. */
static fsdp_status open_device(planned_advice *where, const fsdp__recorded_run *run, fsdp_train_config *config)
{
    char name[sizeof where->opened];

    if (where->device.name)
        snprintf(name, sizeof name, "%s", where->device.name);
    else
        device_of(run, name, sizeof name);
    if (strcmp(name, where->opened) == 0)
        return fsdp_train_config_set(config, "training.device", where->device.prices.gpu ? "cuda" : "cpu");
    where->opened[0] = '\0';
    FSDP_TRY(fsdp__on_device_open(&where->device, name, true, config));
    snprintf(where->opened, sizeof where->opened, "%s", name);
    return FSDP_OK;
}

/* Makes the config that the run had, without what only a run that starts needs. */
static fsdp_status config_of(const fsdp__recorded_run *run, fsdp_train_config **out)
{
    const json_t *settings = json_object_get(run->header, "settings"), *value;
    const char *key;

    FSDP_TRY(fsdp_train_config_create(out));
    json_object_foreach((json_t *)settings, key, value)
    {
        if (strncmp(key, "metrics.", 8) != 0 && strncmp(key, "data.", 5) != 0 && json_is_string(value))
            FSDP_TRY(fsdp__train_read_setting(*out, key, json_string_value(value)));
    }
    if (!(*out)->model.path && !(*out)->model.preset)
        return FSDP_FAIL(FSDP_INVALID, "its settings name no model");
    return FSDP_OK;
}

/* Says what is planned: one setting, or, where `key` is NULL, what shortens waits. */
typedef struct question {
    const char *key, *value;
    fsdp__change_wait wait;
} question;

static fsdp_status find(planned_advice *where, const fsdp__recorded_run *run, const question *q, fsdp__changes *out)
{
    double ranks = fsdp__header_number(run, "world_size"), machines = fsdp__header_number(run, "machines");
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *config = NULL;
    fsdp__plan_options options = {.prices = &where->device.prices};

    if (!(ranks >= 1 && ranks <= 1e6))
        return FSDP_FAIL(FSDP_INVALID, "its header has no number of ranks");
    options.world_size = (int)ranks;
    options.machines = machines >= 1 && machines <= ranks ? (int)machines : 1;
    FSDP_TRY(config_of(run, &config));
    FSDP_TRY(open_device(where, run, config));
    FSDP_TRY(fsdp__on_device_schedule(&options, 0, config));
    if (q->key)
        return fsdp__changes_of_setting(config, &options, q->key, q->value, out);
    return fsdp__changes_of_wait(config, &options, q->wait, out);
}

static fsdp_status answer(planned_advice *where, const fsdp__recorded_run *run, const question *q, char *text)
{
    fsdp__changes changes;
    fsdp_status status = find(where, run, q, &changes);
    const fsdp__prices *prices = &where->device.prices;
    size_t used;

    if (status == FSDP_NO_MEMORY)
        return status;
    if (status != FSDP_OK) {
        snprintf(text, FSDP__PLANNED_TEXT, "what would change it cannot be planned: %s.", fsdp_last_error());
        return FSDP_OK;
    }
    if (changes.count > 0)
        fsdp__change_text(&changes, text, FSDP__PLANNED_TEXT - 200);
    else
        snprintf(text, FSDP__PLANNED_TEXT, "%s",
                 q->key ? "the run cannot have that." : "no setting that was tried makes a step shorter.");
    used = strlen(text);
    snprintf(text + used, FSDP__PLANNED_TEXT - used, " Planned by %d dry run%s at rates of %s (%s).", changes.tried + 1,
             changes.tried == 0 ? "" : "s", prices->device, prices->source);
    return FSDP_OK;
}

static fsdp_status shorten(void *arg, const fsdp__recorded_run *run, bool gathers, char *text)
{
    const question q = {.wait = gathers ? FSDP__CHANGE_GATHERS : FSDP__CHANGE_REDUCTIONS};

    return answer(arg, run, &q, text);
}

static fsdp_status price(void *arg, const fsdp__recorded_run *run, const char *key, const char *value, char *text)
{
    const question q = {.key = key, .value = value};

    return answer(arg, run, &q, text);
}

/* Returns a planner for fsdp__advices_of. `where` stays with the caller. */
static fsdp__advice_planner planner_of(planned_advice *where)
{
    return (fsdp__advice_planner){.shorten = shorten, .price = price, .arg = where};
}

/* ---- the command ---- */

static void usage(void)
{
    puts("fsdp report RUN... [-o REPORT.html] [--device DEVICE]\n"
         "\n"
         "Shows what runs did: figures, what stands out and what could be done about it,\n"
         "which settings differ, and which rank is slow, and why. A RUN is the\n"
         "metrics.jsonl of fsdp train (metrics.jsonl in its config), or the folder that it\n"
         "lies in; one file may have several runs. Of runs that go on the report has what\n"
         "there is so far. The run's trace (metrics.trace.path) and the records of its\n"
         "ranks' last calls (fsdp flight) are found beside it, if they are of that run\n"
         "and not of an earlier start; they can also be named themselves, as can the\n"
         "output of 'fsdp plan --json', which is shown beside the run.\n"
         "\n"
         "  -o, --output FILE    write a page with all pictures, too: one HTML file\n"
         "                       without scripts that needs no network\n"
         "  --device DEVICE      plan what is advised, and tell its price, by rates of:\n"
         "                       cpu or cuda (those here, measured for some seconds\n"
         "                       first), cuda:CARD, or a file of 'fsdp plan --measure'\n"
         "                       (default: the run's GPU by its data sheet, or cpu)\n"
         "  --network GBITS      for these plans: Gbit/s out of a machine, and into it\n"
         "  --svg FILE           draw one picture: units and memory of rank 0 in each\n"
         "                       trace's step; without a trace the losses of the runs, and\n"
         "                       how they differ from the first one's");
}

static fsdp_status write_page(const void *report, FILE *out)
{
    return fsdp__report_page(report, out);
}

static fsdp_status write_svg(const void *report, FILE *out)
{
    return fsdp__report_svg(report, out);
}

/* Checks that an option's file would not replace one that is read. */
static fsdp_status check_output(const fsdp__sources *sources, const char *option, fsdp__output *output,
                                const fsdp__output_kind *kind)
{
    fsdp_train_config none = {0};
    struct stat written, read;

    if (!output->path)
        return FSDP_OK;
    for (int64_t i = 0; i < sources->runs.count; i++)
        if (stat(output->path, &written) == 0 && stat(sources->runs.runs[i].path, &read) == 0 &&
            fsdp__same_file(&written, &read))
            return FSDP_FAIL(FSDP_INVALID, "%s: '%s' is the metrics of a run: name another file", option, output->path);
    return fsdp__output_check(output, &none, option, kind);
}

static fsdp_status show(fsdp__report *report, planned_advice *where, const char **paths, int count,
                        fsdp__output *output, fsdp__output *svg)
{
    const fsdp__advice_planner planner = planner_of(where);
    static const fsdp__output_kind page = {{"<!doctype html>", NULL}, "is no page of fsdp report"};
    const fsdp__output_job files[] = {{output, "--output", write_page}, {svg, "--svg", write_svg}};
    fsdp_status status;

    for (int i = 0; i < count; i++)
        FSDP_TRY(fsdp__sources_add(&report->sources, paths[i]));
    FSDP_TRY(fsdp__sources_finish(&report->sources));
    FSDP_TRY(check_output(&report->sources, "--output", output, &page));
    FSDP_TRY(check_output(&report->sources, "--svg", svg, &fsdp__output_svg));
    FSDP_TRY(fsdp__output_is_other(svg, "--svg", output, "--output"));
    FSDP_TRY(fsdp__advices_of(&report->sources, &planner, &report->advices));
    status = fsdp__outputs_write(files, FSDP__COUNT_OF(files), report); /* first: the text's reader may stop early */
    FSDP_KEEP_FIRST(status, fsdp__report_text(report, stdout));
    fsdp__output_tell(output, "pictures");
    fsdp__output_tell(svg, "picture");
    return status;
}

static int with_line(const char **paths, int argc, char **argv)
{
    fsdp__output output = {0}, svg = {0};
    planned_advice where = {.opened = ""};
    const fsdp__option options[] = {
        {"output", 'o', &output.path, NULL}, {"svg", 0, &svg.path, NULL}, FSDP__ON_DEVICE_OPTIONS(&where.device), {0}};
    static const fsdp__option_rule rules[] = {{"network", "device", NULL}, {0}};
    fsdp__args args = {.options = options, .rules = rules, .list = paths};
    FSDP__FREED fsdp__report *report = NULL;
    fsdp_status status;
    char text[256];
    int exit_status;

    if (!fsdp__take_line(&args, "report", usage, argc, argv, &exit_status))
        return exit_status;
    if (args.positional_count == 0)
        return fsdp__usage_error("report: no run given: fsdp report demo/metrics.jsonl");
    if (fsdp__on_device_numbers(&where.device) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    report = fsdp__calloc(1, sizeof *report);
    if (!report)
        return fsdp__failure("%s", fsdp_last_error());
    report->sources.runs.usual = fsdp__train_usual_setting;
    status = show(report, &where, paths, args.positional_count, &output, &svg);
    fsdp__advices_free(&report->advices);
    fsdp__sources_release(&report->sources);
    if (status != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    return fsdp__output_failed(text, sizeof text) ? fsdp__failure("%s", text) : 0;
}

int fsdp__cmd_report(int argc, char **argv)
{
    FSDP__FREED const char **paths = fsdp__calloc((size_t)argc, sizeof *paths);

    return paths ? with_line(paths, argc, argv) : fsdp__failure("%s", fsdp_last_error());
}
