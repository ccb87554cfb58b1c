/* cmd_flight.c - fsdp flight FOLDER: what ranks did last, and who is to blame. */
#include <stdio.h>

#include "base/alloc.h"
#include "cli/cli.h"
#include "watch/flight_read.h"

enum {
    CALLS = 6
};

static void usage(void)
{
    puts("fsdp flight FOLDER|FILE... [--calls N] [--json]\n"
         "\n"
         "Says what the ranks of a run did last: which one the others wait for, in which\n"
         "call, module and step, or where ranks make different calls. FOLDER has their\n"
         "records, one file rank-N.flight for each, or a folder of them, as that of a run\n"
         "has in metrics.jsonl.flight. A run writes them when a rank fails, hangs or dies,\n"
         "and when 'fsdp train' or 'fsdp run' gets SIGUSR2; it says where.\n"
         "Records of ranks on several machines can be named together.\n"
         "\n"
         "  --calls N  how many of the last calls of each rank to print (default: 6)\n"
         "  --json     print everything, as JSON");
}

static fsdp_status report(const char *const *paths, int count, int64_t calls, bool json)
{
    FSDP__SCOPED(fsdp__flight_logs_release) fsdp__flight_logs logs = {0};

    FSDP_TRY(fsdp__flight_logs_read(paths, count, &logs));
    return json ? fsdp__flight_print_json(&logs, stdout) : fsdp__flight_print(&logs, (int)calls, stdout);
}

static int with_paths(const char **paths, int argc, char **argv)
{
    const char *calls_text = NULL;
    bool json = false;
    int64_t calls = CALLS;
    const fsdp__option options[] = {{"calls", 0, &calls_text, NULL}, {"json", 0, NULL, &json}, {0}};
    static const fsdp__option_rule rules[] = {{"calls", NULL, "json"}, {0}};
    fsdp__args args = {.options = options, .rules = rules, .list = paths, .positional_most = argc};
    int status;

    if (!fsdp__take_line(&args, "flight", usage, argc, argv, &status))
        return status;
    if (fsdp__args_integer("--calls", calls_text, 0, FSDP__FLIGHT_RECORDS, &calls) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (args.positional_count == 0)
        return fsdp__usage_error("flight: no folder with the records of ranks given; see 'fsdp flight --help'");
    /* If output is lost, main says why. */
    if (report(paths, args.positional_count, calls, json) == FSDP_OK || ferror(stdout))
        return 0;
    return fsdp__failure("%s", fsdp_last_error());
}

int fsdp__cmd_flight(int argc, char **argv)
{
    FSDP__FREED const char **paths = fsdp__malloc((size_t)argc * sizeof *paths);

    return paths ? with_paths(paths, argc, argv) : fsdp__failure("%s", fsdp_last_error());
}
