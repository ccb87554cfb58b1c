/* cmd_report.c - fsdp report RUN...: what runs did, side by side. */
#include <stdio.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/own_process.h"
#include "cli/planned_advice.h"
#include "report/report.h"
#include "train/metrics.h"

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
static fsdp_status check_output(const fsdp__sources *sources, const char *option, const char *output,
                                const fsdp__output_kind *kind)
{
    fsdp_train_config none = {0};
    struct stat written, read;

    if (!output)
        return FSDP_OK;
    for (int64_t i = 0; i < sources->runs.count; i++)
        if (stat(output, &written) == 0 && stat(sources->runs.runs[i].path, &read) == 0 &&
            fsdp__same_file(&written, &read))
            return FSDP_FAIL(FSDP_INVALID, "%s: '%s' is the metrics of a run: name another file", option, output);
    return fsdp__output_check(&none, option, output, kind);
}

static fsdp_status show(fsdp__report *report, fsdp__planned_advice *where, const char **paths, int count,
                        const char *output, const char *svg)
{
    const fsdp__advice_planner planner = fsdp__planned_advice_of(where);
    static const fsdp__output_kind page = {{"<!doctype html>", NULL}, "is no page of fsdp report"};

    for (int i = 0; i < count; i++)
        FSDP_TRY(fsdp__sources_add(&report->sources, paths[i]));
    FSDP_TRY(fsdp__sources_finish(&report->sources));
    FSDP_TRY(check_output(&report->sources, "--output", output, &page));
    FSDP_TRY(check_output(&report->sources, "--svg", svg, &fsdp__output_svg));
    FSDP_TRY(fsdp__advices_of(&report->sources, &planner, &report->advices));
    FSDP_TRY(fsdp__report_text(report, stdout));
    FSDP_TRY(fsdp__output_write("--output", output, write_page, report));
    FSDP_TRY(fsdp__output_write("--svg", svg, write_svg, report));
    if (output)
        printf("\n%s has the pictures\n", output);
    return FSDP_OK;
}

static int with_line(const char **paths, int argc, char **argv)
{
    const char *output = NULL, *svg = NULL;
    fsdp__planned_advice where = {.opened = ""};
    const fsdp__option options[] = {
        {"output", 'o', &output, NULL}, {"svg", 0, &svg, NULL}, FSDP__ON_DEVICE_OPTIONS(&where.device), {0}};
    fsdp__args args = {.options = options, .list = paths};
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
    status = show(report, &where, paths, args.positional_count, output, svg);
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
