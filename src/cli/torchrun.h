/* torchrun.h - torchrun's options, as far as they are about one machine, for the commands that start ranks. */
#pragma once

#include "cli/cli.h"

typedef struct fsdp__torchrun {
    const char *nodes, *node_rank, *per_node, *address, *port, *ignored;
    bool standalone, no_python;
    char count[16]; /* of cores or GPUs, if per_node names them */
} fsdp__torchrun;

/* Lists the options that set the words. */
#define FSDP__TORCHRUN_OPTIONS(w)                                                             \
    {"nproc-per-node", 0, &(w)->per_node, NULL}, {"nproc_per_node", 0, &(w)->per_node, NULL}, \
        {"nnodes", 0, &(w)->nodes, NULL}, {"node-rank", 0, &(w)->node_rank, NULL},            \
        {"node_rank", 0, &(w)->node_rank, NULL}, {"master-addr", 0, &(w)->address, NULL},     \
        {"master_addr", 0, &(w)->address, NULL}, {"master-port", 0, &(w)->port, NULL},        \
        {"master_port", 0, &(w)->port, NULL}, {"standalone", 0, NULL, &(w)->standalone},      \
        {"no-python", 0, NULL, &(w)->no_python}, {"no_python", 0, NULL, &(w)->no_python},     \
        {"rdzv-backend", 0, &(w)->ignored, NULL}, {"rdzv_backend", 0, &(w)->ignored, NULL},   \
        {"rdzv-endpoint", 0, &(w)->ignored, NULL}, {"rdzv_endpoint", 0, &(w)->ignored, NULL}, \
        {"rdzv-id", 0, &(w)->ignored, NULL}, {"rdzv_id", 0, &(w)->ignored, NULL},             \
        {"rdzv-conf", 0, &(w)->ignored, NULL},                                                \
    {                                                                                         \
        "rdzv_conf", 0, &(w)->ignored, NULL                                                   \
    }

/* Checks the words, and puts what they say about the number of ranks into `*ranks`, the text of -n. If -n already has
 * another number, that is FSDP_INVALID. `command` is for messages. */
fsdp_status fsdp__torchrun_read(const char *command, fsdp__torchrun *words, const char **ranks);
