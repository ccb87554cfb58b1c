/* cmd_run.c - fsdp run -n N -- PROGRAM ARGS: the ranks of a program of one's own. */
#include <stdio.h>

#include "cli/cli.h"

static void usage(void)
{
    puts(
        "fsdp run -n RANKS -- PROGRAM [ARGS]\n"
        "\n"
        "  -n, -np, --ranks RANKS  processes to start here\n"
        "\n"
        "Every process gets RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; fsdp_context_from_env joins them. When\n"
        "one fails the others are ended, and the exit status is that of the first to fail, or 128 + n when a signal n\n"
        "has killed it. Threads of a rank: OMP_NUM_THREADS, else its share of the cores.");
}

int fsdp__cmd_run(int argc, char **argv)
{
    const char *ranks_text = NULL;
    bool help = false;
    const fsdp__option options[] = {
        {"ranks", 'n', &ranks_text, NULL}, {"np", 0, &ranks_text, NULL}, {"help", 'h', NULL, &help}, {0}};
    fsdp__args args = {.options = options, .positional_most = 0};
    fsdp_launch_options launch = {0};
    int64_t ranks = 0;

    if (fsdp__args_parse(&args, "run", argc, argv) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (help) {
        usage();
        return 0;
    }
    if (!ranks_text)
        return fsdp__usage_error("run: say how many ranks: fsdp run -n 2 -- PROGRAM");
    if (!args.rest || !args.rest[0])
        return fsdp__usage_error("run: no program given: fsdp run -n %s -- PROGRAM [ARGS]", ranks_text);
    if (fsdp__args_integer("-n", ranks_text, 1, 4096, &ranks) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    launch.ranks = (int)ranks;
    launch.argv = (const char *const *)args.rest;
    return fsdp__launch_ranks(&launch);
}
