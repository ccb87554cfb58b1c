/* worlds.h - estimates what a variant would take on other numbers of ranks: the engine's own figures from a dry run
 * (fsdp/explain.h), without starting a rank. */
#pragma once

#include "fsdp/explain.h"

enum {
    FSDP__WORLDS = 8 /* at most */
};

/* The figures on one number of ranks. -1: the config does not go with it. */
typedef struct fsdp__elsewhere {
    int64_t peak_bytes; /* of rank 0, all kinds together except the workspace */
    int64_t sent_bytes; /* by rank 0 in one step */
    fsdp_explained_step step;
} fsdp__elsewhere;

typedef struct fsdp__worlds {
    int ranks[FSDP__WORLDS], count;
    char labels[FSDP__WORLDS][16];            /* "4 ranks" */
    fsdp__elsewhere (*figures)[FSDP__WORLDS]; /* for each variant */
} fsdp__worlds;

/* Reads a comma-separated list; `figures` is left alone. */
fsdp_status fsdp__worlds_read(const char *list, fsdp__worlds *out);

/* Computes the figures on `world` ranks, with as many microbatches per rank as there are on `ranks` ranks now. A config
 * that does not go with `world` is not an error. */
fsdp_status fsdp__elsewhere_find(const fsdp_train_config *config, int ranks, int world, fsdp__elsewhere *out);
