/* fit.h - finds the fastest settings that fit into some memory. */
#pragma once

#include <stdio.h>

#include "plan/planned.h"

/* Settings of a run, and what they cost. */
typedef struct fsdp__fit_row {
    const char *strategy; /* a word of --strategy */
    bool never_reshards;
    fsdp_recompute_mode recompute;
    bool offload, units_always; /* units of single layers */
    int64_t batch, microbatches;
    size_t bytes;   /* of a rank's device at its peak, without workspace */
    size_t needed;  /* fsdp__needed_bytes, which must fit */
    double seconds; /* of a step; 0: there are no prices */
    double flops;   /* of a rank's step: with recomputation */
} fsdp__fit_row;

enum {
    FSDP__FIT_ROWS = 64
};

typedef struct fsdp__fit {
    const fsdp_train_config *config;           /* that was asked about; borrowed */
    int world_size;                            /* number of its ranks */
    double room;                               /* bytes of a rank */
    int count;                                 /* of rows that fit, the fastest first */
    fsdp__fit_row rows[FSDP__FIT_ROWS], least; /* least: of all that were tried, the one that needs least */
    int tried;
} fsdp__fit;

/* Tries strategies, reshard, recomputation, offload, the split of a rank's sequences into microbatches and, where
 * nothing fits otherwise, units of single layers. Sequences and tokens of a step stay those of the config. Each row is
 * a dry run; settings that only save memory are not tried where there is enough without them. */
fsdp_status fsdp__fit_find(const fsdp_train_config *config, const fsdp__plan_options *options, double room,
                           fsdp__fit *out);
/* Returns the row's activation_checkpoint.mode. */
const char *fsdp__fit_recompute_word(const fsdp__fit_row *row);
/* Sets a row's keys in a config. */
fsdp_status fsdp__fit_apply(const fsdp__fit_row *row, int world_size, fsdp_train_config *config);

/* ---- fit_text.c ---- */

/* Prints the rows as a table, and the lines that make the first one of the config: also those that set back what it has
 * for another strategy. */
fsdp_status fsdp__fit_print(const fsdp__fit *fit, FILE *out);
fsdp_status fsdp__fit_json(const fsdp__fit *fit, FILE *out);
/* Fails with what would at least be needed, where nothing fits. */
fsdp_status fsdp__fit_check(const fsdp__fit *fit);
