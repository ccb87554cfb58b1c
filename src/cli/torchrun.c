/* torchrun.c - finds what torchrun's options mean here. */
#include "cli/torchrun.h"

#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "device/device.h"

static fsdp_status check(const char *command, const fsdp__torchrun *w)
{
    int64_t number = 0;

    if (w->nodes && strcmp(w->nodes, "1") != 0 && strcmp(w->nodes, "1:1") != 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "%s: --nnodes is '%s', but this starts the ranks of one machine: for several, use MPI: mpirun "
                         "-n RANKS PROGRAM, or srun",
                         command, w->nodes);
    if (w->node_rank && strcmp(w->node_rank, "0") != 0)
        return FSDP_FAIL(FSDP_INVALID,
                         "%s: --node-rank is '%s', but there is only one machine: expected 0; for several, use MPI: "
                         "mpirun -n RANKS PROGRAM, or srun",
                         command, w->node_rank);
    return fsdp__args_integer("--master-port", w->port, 0, 65535, &number);
}

/* Writes one rank for each GPU. */
static fsdp_status count_gpus(const char *command, fsdp__torchrun *w, const char **per_node)
{
    int count = 0;

    FSDP_TRY(fsdp_fail_prefix(fsdp__device_count("cuda", &count), "%s: --nproc-per-node is gpu", command));
    snprintf(w->count, sizeof w->count, "%d", count);
    *per_node = w->count;
    return FSDP_OK;
}

fsdp_status fsdp__torchrun_read(const char *command, fsdp__torchrun *w, const char **ranks)
{
    const char *per_node = w->per_node;
    int64_t count;

    FSDP_TRY(check(command, w));
    if (!per_node)
        return FSDP_OK;
    if (strcmp(per_node, "gpu") == 0)
        FSDP_TRY(count_gpus(command, w, &per_node));
    if (strcmp(per_node, "cpu") == 0 || strcmp(per_node, "auto") == 0) {
        snprintf(w->count, sizeof w->count, "%d", fsdp__allowed_cores());
        per_node = w->count;
    }
    FSDP_TRY(fsdp__args_integer("--nproc-per-node", per_node, 1, FSDP__MOST_RANKS, &count));
    if (*ranks && strcmp(*ranks, per_node) != 0)
        return FSDP_FAIL(FSDP_INVALID, "%s: -n is %s and --nproc-per-node is %s: leave one of the two out", command,
                         *ranks, per_node);
    *ranks = per_node;
    return FSDP_OK;
}
