/* degrees.h - over how many ranks layers and sequences may be cut: what can be said before there is a rank. */
#pragma once

#include "fsdp/models.h"

/* A number of ranks, and what the user calls it: "parallelism.tensor_parallel_degree", "--tensor-parallel". */
typedef struct fsdp__degree {
    const char *key;
    int64_t ranks;
} fsdp__degree;

/* Checks that teams of such degrees divide the ranks of a run. */
fsdp_status fsdp__check_teams(int world_size, fsdp__degree tensors, fsdp__degree sequences);
/* Checks that so many ranks can share the heads of a model; `heads` and `kv_heads` are the names that the user knows
 * for their numbers. The error names the possible degrees. */
fsdp_status fsdp__check_heads(fsdp__degree tensors, const fsdp_model_config *config, const char *heads,
                              const char *kv_heads);
/* Checks that sequences of this length can be cut over so many ranks; `what` names the length. `key` may be NULL. */
fsdp_status fsdp__check_cut_length(const char *what, int64_t length, fsdp__degree sequences);
