/* cmd_report.c - fsdp report RUN...: what runs did, side by side. */
#include <stdio.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/own_process.h"
#include "report/report.h"
#include "train/metrics.h"

static void usage(void)
{
    puts("fsdp report RUN... [-o REPORT.html]\n"
         "\n"
         "Shows what runs did: figures, what stands out and what could be done about it,\n"
         "which settings differ, and which rank is slow, and why. A RUN is the\n"
         "metrics.jsonl of fsdp train (metrics.jsonl in its config), or the folder that it\n"
         "lies in; one file may have several runs. Of runs that go on the report has what\n"
         "there is so far. The run's trace (metrics.trace.path) and the records of its\n"
         "ranks' last calls (fsdp flight) are found beside it; they can also be named\n"
         "themselves, as can the output of 'fsdp plan --json', which is shown beside the\n"
         "run.\n"
         "\n"
         "  -o, --output FILE    write a page with all pictures, too: one HTML file\n"
         "                       without scripts that needs no network");
}

static fsdp_status write_page(const void *report, FILE *out)
{
    return fsdp__report_page(report, out);
}

/* Checks that the page would not replace a file that is read. */
static fsdp_status check_output(const fsdp__sources *sources, const char *output)
{
    static const fsdp__output_kind kind = {{"<!doctype html>", NULL}, "is no page of fsdp report"};
    fsdp_train_config none = {0};
    struct stat written, read;

    if (!output)
        return FSDP_OK;
    for (int64_t i = 0; i < sources->runs.count; i++)
        if (stat(output, &written) == 0 && stat(sources->runs.runs[i].path, &read) == 0 &&
            fsdp__same_file(&written, &read))
            return FSDP_FAIL(FSDP_INVALID, "--output: '%s' is the metrics of a run: name another file", output);
    return fsdp__output_check(&none, "--output", output, &kind);
}

static fsdp_status show(fsdp__report *report, const char **paths, int count, const char *output)
{
    for (int i = 0; i < count; i++)
        FSDP_TRY(fsdp__sources_add(&report->sources, paths[i]));
    FSDP_TRY(fsdp__sources_finish(&report->sources));
    FSDP_TRY(check_output(&report->sources, output));
    FSDP_TRY(fsdp__advices_of(&report->sources, &report->advices));
    FSDP_TRY(fsdp__report_text(report, stdout));
    FSDP_TRY(fsdp__output_write("--output", output, write_page, report));
    if (output)
        printf("\n%s has the pictures\n", output);
    return FSDP_OK;
}

static int with_line(const char **paths, int argc, char **argv)
{
    const char *output = NULL;
    const fsdp__option options[] = {{"output", 'o', &output, NULL}, {0}};
    fsdp__args args = {.options = options, .list = paths};
    fsdp__report *report;
    fsdp_status status;
    char text[256];
    int exit_status;

    if (!fsdp__take_line(&args, "report", usage, argc, argv, &exit_status))
        return exit_status;
    if (args.positional_count == 0)
        return fsdp__usage_error("report: no run given: fsdp report demo/metrics.jsonl");
    report = fsdp__calloc(1, sizeof *report);
    if (!report)
        return fsdp__failure("%s", fsdp_last_error());
    report->sources.runs.usual = fsdp__train_usual_setting;
    status = show(report, paths, args.positional_count, output);
    fsdp__advices_free(&report->advices);
    fsdp__sources_release(&report->sources);
    fsdp__free(report);
    if (status != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    return fsdp__output_failed(text, sizeof text) ? fsdp__failure("%s", text) : 0;
}

int fsdp__cmd_report(int argc, char **argv)
{
    const char **paths = fsdp__calloc((size_t)argc, sizeof *paths);
    int result = paths ? with_line(paths, argc, argv) : fsdp__failure("%s", fsdp_last_error());

    fsdp__free(paths);
    return result;
}
