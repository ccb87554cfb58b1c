/* cmd_run.c - fsdp run -n N -- PROGRAM ARGS: starts a user's own program as ranks. It takes torchrun's options, too, as
 * far as they are about one machine. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cli/torchrun.h"
#include "launch/variables.h"

static void usage(void)
{
    puts("fsdp run -n RANKS [--] PROGRAM [ARGS]\n"
         "\n"
         "Starts PROGRAM once for each rank, and waits until all have ended.\n"
         "\n"
         "  -n, -np, --ranks RANKS  number of processes to start on this machine\n"
         "\n"
         "Options of torchrun:\n"
         "  --nproc-per-node RANKS  the same as -n; cpu or auto: one for each core;\n"
         "                          gpu: one for each GPU\n"
         "  --master-addr HOST, --master-port PORT\n"
         "                          set MASTER_ADDR and MASTER_PORT for the processes;\n"
         "                          nothing listens there\n"
         "  --standalone, --nnodes 1, --node-rank 0, --max-restarts 0, --no-python,\n"
         "  --rdzv-backend, --rdzv-endpoint, --rdzv-id, --rdzv-conf\n"
         "                          change nothing: there is one machine, and ranks find\n"
         "                          each other without a port\n"
         "\n"
         "Every process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and NODE_RANK,\n"
         "and joins the others by fsdp_context_from_env. If one fails, the others are\n"
         "ended; the exit status is that of the first to fail, or 128 + n if signal n\n"
         "killed it. A rank has OMP_NUM_THREADS threads, or else its share of the cores.\n"
         "\n"
         "To use several machines, start the program with MPI (mpirun -n RANKS PROGRAM, or\n"
         "srun). It joins in the same way, by MPI's own variables; this command is not\n"
         "needed then.");
}

typedef struct words {
    const char *ranks, *restarts;
    fsdp__torchrun torchrun;
} words;

static fsdp_status check_restarts(const words *w)
{
    if (!w->restarts || strcmp(w->restarts, "0") == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "run: --max-restarts is '%s', but this command starts a program once: 'fsdp train --max-restarts' "
                     "starts its ranks again, from their newest checkpoint",
                     w->restarts);
}

static fsdp_status set_rendezvous(const fsdp__torchrun *w)
{
    if ((w->address && setenv("MASTER_ADDR", w->address, 1) != 0) ||
        (w->port && setenv("MASTER_PORT", w->port, 1) != 0))
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot set MASTER_ADDR and MASTER_PORT: %s", strerror(errno));
    return FSDP_OK;
}

/* ---- the ranks ---- */

/* Turns this process, which is one of the ranks that somebody else has started, into the program. */
static int become(char **program)
{
    char count[16];
    int error;

    snprintf(count, sizeof count, "%d", FSDP__SPIN_COUNT);
    if (!fsdp__user_says_how_to_wait())
        (void)setenv(FSDP__SPIN_VARIABLE, count, 1);
    (void)execvp(program[0], program);
    error = errno;
    (void)fsdp__failure("cannot start '%s': %s", program[0], strerror(error));
    return error == ENOENT ? 127 : 126;
}

static int run(words *w, char **program)
{
    fsdp__ranks ranks;
    fsdp_launch_options launch = {0};
    FSDP__FREED char *flight = NULL;

    if (check_restarts(w) != FSDP_OK || fsdp__torchrun_read("run", &w->torchrun, &w->ranks) != FSDP_OK ||
        fsdp__ranks_read(w->ranks, &ranks) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (!w->ranks && !ranks.joins)
        return fsdp__usage_error("run: say how many ranks: fsdp run -n 2 -- PROGRAM");
    if (!program || !program[0])
        return fsdp__usage_error("run: no program given: fsdp run -n %s -- PROGRAM [ARGS]", w->ranks ? w->ranks : "2");
    if (ranks.joins)
        return become(program);
    if (set_rendezvous(&w->torchrun) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    if (fsdp__flight_choose(NULL, getpid(), &flight) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    launch.ranks = (int)ranks.count;
    launch.argv = (const char *const *)program;
    launch.flight = flight;
    return fsdp__launch_ranks(&launch);
}

int fsdp__cmd_run(int argc, char **argv)
{
    words w = {.ranks = NULL};
    const fsdp__option options[] = {{"ranks", 'n', &w.ranks, NULL},         {"np", 0, &w.ranks, NULL},
                                    FSDP__TORCHRUN_OPTIONS(&w.torchrun),    {"max-restarts", 0, &w.restarts, NULL},
                                    {"max_restarts", 0, &w.restarts, NULL}, {0}};
    fsdp__args args = {.options = options, .runs = true};
    int status;

    if (!fsdp__take_line(&args, "run", usage, argc, argv, &status))
        return status;
    return run(&w, args.rest);
}
