/* cmd_run.c - fsdp run -n N -- PROGRAM ARGS: the ranks of a program of one's own. Takes torchrun's words, too, as far
 * as they are about one machine. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cores.h"
#include "cli/cli.h"
#include "launch/variables.h"

static void usage(void)
{
    puts(
        "fsdp run -n RANKS [--] PROGRAM [ARGS]\n"
        "\n"
        "  -n, -np, --ranks RANKS  processes to start here\n"
        "\n"
        "As torchrun has them:\n"
        "  --nproc-per-node RANKS  the same; cpu or auto: one for each core\n"
        "  --master-addr HOST, --master-port PORT\n"
        "                          MASTER_ADDR and MASTER_PORT of the processes; nothing here listens there\n"
        "  --standalone, --nnodes 1, --node-rank 0, --max-restarts 0, --no-python, --rdzv-backend, --rdzv-endpoint,\n"
        "  --rdzv-id, --rdzv-conf  change nothing: there is one machine, and ranks find each other without a port\n"
        "\n"
        "Every process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and NODE_RANK; fsdp_context_from_env joins\n"
        "them. When one fails the others are ended, and the exit status is that of the first to fail, or 128 + n when\n"
        "a signal n has killed it. Threads of a rank: OMP_NUM_THREADS, else its share of the cores.\n"
        "\n"
        "Several machines are started by MPI: mpirun -n RANKS PROGRAM, or srun; the program joins them the same way,\n"
        "by MPI's own variables, to which this command adds none.");
}

typedef struct words {
    const char *ranks, *nodes, *node_rank, *per_node, *address, *port, *restarts, *ignored;
    bool standalone, no_python, help;
} words;

/* ---- torchrun's words ---- */

static fsdp_status check_words(const words *w)
{
    int64_t number = 0;

    if (w->nodes && strcmp(w->nodes, "1") != 0 && strcmp(w->nodes, "1:1") != 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "run: --nnodes is '%s', and this starts the ranks of one machine: several are started by MPI: "
                         "mpirun -n RANKS PROGRAM, or srun",
                         w->nodes);
    if (w->node_rank && strcmp(w->node_rank, "0") != 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "run: --node-rank is '%s', and there is one machine: expected 0; several are started by MPI: "
                         "mpirun -n RANKS PROGRAM, or srun",
                         w->node_rank);
    if (w->restarts && strcmp(w->restarts, "0") != 0)
        return FSDP_FAIL(
            FSDP_INVALID,
            "run: --max-restarts is '%s', and this starts a program once: 'fsdp train --max-restarts' starts "
            "its ranks again, from their newest checkpoint",
            w->restarts);
    return w->port ? fsdp__args_integer("--master-port", w->port, 0, 65535, &number) : FSDP_OK;
}

/* -n of the words; NULL: they do not say. */
static fsdp_status ranks_text(const words *w, char *text, size_t text_bytes, const char **out)
{
    const char *per_node = w->per_node;
    int64_t count;

    if (per_node && strcmp(per_node, "gpu") == 0)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "run: --nproc-per-node is gpu, and ranks compute on the CPU: say how many, "
                                           "or cpu");
    if (per_node && (strcmp(per_node, "cpu") == 0 || strcmp(per_node, "auto") == 0)) {
        snprintf(text, text_bytes, "%d", fsdp__allowed_cores());
        per_node = text;
    }
    if (per_node)
        FSDP_TRY(fsdp__args_integer("--nproc-per-node", per_node, 1, FSDP__MOST_RANKS, &count));
    if (w->ranks && per_node && strcmp(w->ranks, per_node) != 0)
        return FSDP_FAIL(FSDP_INVALID, "run: -n is %s and --nproc-per-node %s: leave one of the two out", w->ranks,
                         per_node);
    *out = w->ranks ? w->ranks : per_node;
    return FSDP_OK;
}

static fsdp_status set_rendezvous(const words *w)
{
    if ((w->address && setenv("MASTER_ADDR", w->address, 1) != 0) ||
        (w->port && setenv("MASTER_PORT", w->port, 1) != 0))
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot set MASTER_ADDR and MASTER_PORT: %s", strerror(errno));
    return FSDP_OK;
}

/* ---- the ranks ---- */

/* One of those that somebody else has started: it becomes the program. */
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

static int run(const words *w, char **program)
{
    char cores[16];
    const char *text = NULL;
    fsdp__ranks ranks;
    fsdp_launch_options launch = {0};

    if (check_words(w) != FSDP_OK || ranks_text(w, cores, sizeof cores, &text) != FSDP_OK ||
        fsdp__ranks_read(text, &ranks) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (!text && !ranks.joins)
        return fsdp__usage_error("run: say how many ranks: fsdp run -n 2 -- PROGRAM");
    if (!program || !program[0])
        return fsdp__usage_error("run: no program given: fsdp run -n %s -- PROGRAM [ARGS]", text ? text : "2");
    if (ranks.joins)
        return become(program);
    if (set_rendezvous(w) != FSDP_OK)
        return fsdp__failure("%s", fsdp_last_error());
    launch.ranks = (int)ranks.count;
    launch.argv = (const char *const *)program;
    return fsdp__launch_ranks(&launch);
}

int fsdp__cmd_run(int argc, char **argv)
{
    words w = {.ranks = NULL};
    const fsdp__option options[] = {{"ranks", 'n', &w.ranks, NULL},
                                    {"np", 0, &w.ranks, NULL},
                                    {"nproc-per-node", 0, &w.per_node, NULL},
                                    {"nproc_per_node", 0, &w.per_node, NULL},
                                    {"nnodes", 0, &w.nodes, NULL},
                                    {"node-rank", 0, &w.node_rank, NULL},
                                    {"node_rank", 0, &w.node_rank, NULL},
                                    {"master-addr", 0, &w.address, NULL},
                                    {"master_addr", 0, &w.address, NULL},
                                    {"master-port", 0, &w.port, NULL},
                                    {"master_port", 0, &w.port, NULL},
                                    {"max-restarts", 0, &w.restarts, NULL},
                                    {"max_restarts", 0, &w.restarts, NULL},
                                    {"standalone", 0, NULL, &w.standalone},
                                    {"no-python", 0, NULL, &w.no_python},
                                    {"no_python", 0, NULL, &w.no_python},
                                    {"rdzv-backend", 0, &w.ignored, NULL},
                                    {"rdzv_backend", 0, &w.ignored, NULL},
                                    {"rdzv-endpoint", 0, &w.ignored, NULL},
                                    {"rdzv_endpoint", 0, &w.ignored, NULL},
                                    {"rdzv-id", 0, &w.ignored, NULL},
                                    {"rdzv_id", 0, &w.ignored, NULL},
                                    {"rdzv-conf", 0, &w.ignored, NULL},
                                    {"rdzv_conf", 0, &w.ignored, NULL},
                                    {"help", 'h', NULL, &w.help},
                                    {0}};
    fsdp__args args = {.options = options, .runs = true};

    if (fsdp__args_parse(&args, "run", argc, argv) != FSDP_OK)
        return fsdp__usage_error("%s", fsdp_last_error());
    if (w.help) {
        usage();
        return 0;
    }
    return run(&w, args.rest);
}
