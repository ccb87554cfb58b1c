/* explain.h - the parts of an explanation, between the files that make it. */
#ifndef EXPLAIN_EXPLAIN_H
#define EXPLAIN_EXPLAIN_H

#include "fsdp/explain.h"
#include "train/run.h"

/* ---- collect.c: who holds what ---- */

/* The units of the module, sharded as it is. */
fsdp_status fsdp__explain_units(fsdp_explanation *e, fsdp_module *module);
/* Its parameters, with room for the parts of part_count ranks. After the units. */
fsdp_status fsdp__explain_parameters(fsdp_explanation *e, fsdp_module *module);
/* What `rank`, that of the module's context, holds of each, if that is to be known. */
fsdp_status fsdp__explain_parts(fsdp_explanation *e, fsdp_module *module, int rank);
/* The tree as it is printed. */
fsdp_status fsdp__explain_tree(fsdp_explanation *e, fsdp_module *module);

/* ---- record.c: what happens in a step ---- */

enum {
    FSDP__STEPS_TO_SETTLE = 2 /* the first makes what later ones use again; the second, under DDP, its buckets */
};

/* Takes steps of a dry run until they are all alike, and what the next one costs. */
fsdp_status fsdp__measure_step(fsdp_train_run *run, fsdp_explained_step *out);
/* The same, with its events and what each unit has of it. */
fsdp_status fsdp__record_step(fsdp_train_run *run, fsdp_explanation *e);

/* ---- source.c: the runs that are looked at ---- */

typedef struct fsdp__explain_source {
    const fsdp_explain_model *model; /* NULL: the config's */
    fsdp_train_config config;        /* what it points to is borrowed */
    const fsdp_wrap_policy *policy;  /* the model's own; NULL: what the config says */
    int world_size, machines, built; /* ranks, those of them that are built: of all, or one machine, or one */
    bool one_level;
    const fsdp_explain_options *options; /* for its progress; NULL: nobody asks */
} fsdp__explain_source;

typedef struct fsdp__explain_run {
    fsdp_context *context;
    fsdp__train_own own;
    fsdp_train_run *run;
} fsdp__explain_run;

/* The model as it is before anything is sharded. NULL and a last error. */
fsdp_module *fsdp__explain_build(const fsdp__explain_source *source, fsdp_context *context);
/* Of one rank. Where it fails, there is nothing to close. */
fsdp_status fsdp__explain_open(const fsdp__explain_source *source, int rank, fsdp__explain_run *out);
void fsdp__explain_close(fsdp__explain_run *run);
/* Says that so many ranks and variants are done; to come are all ranks, and as many variants as there may be. */
void fsdp__explain_tell(const fsdp__explain_source *source, int64_t done);
/* The words of the config: "fsdp2"; "size 100000". The caller frees them; NULL: out of memory. */
char *fsdp__explain_strategy(const fsdp_train_config *config);
char *fsdp__explain_policy(const fsdp__explain_source *source);

/* ---- sweep.c: the same model in other units ---- */

enum {
    FSDP__SWEEP_SIZES = 6,                   /* thresholds that are shown */
    FSDP__SWEEP_MOST = 4 + FSDP__SWEEP_SIZES /* DDP, root, blocks, always */
};

/* Those that the strategy takes, of which the explained one is one. */
fsdp_status fsdp__explain_sweep(fsdp_explanation *e, const fsdp__explain_source *source);

#endif
