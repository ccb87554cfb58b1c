/* explain.h - the parts of an explanation that the files making it share. */
#pragma once

#include "base/compiler.h"
#include "fsdp/explain.h"
#include "train/run.h"

/* ---- collect.c: who holds what ---- */

/* Returns whether the module is sharded, and stands for its unit: it is the first of those that were sharded with it.
 */
bool fsdp__explain_is_unit(const fsdp_module *module);
/* Lists the units of the module, as it is sharded. */
fsdp_status fsdp__explain_units(fsdp_explanation *e, fsdp_module *module);
/* Lists the module's parameters, with room for the parts of part_count ranks. Call it after fsdp__explain_units. */
fsdp_status fsdp__explain_parameters(fsdp_explanation *e, fsdp_module *module);
/* Notes what `rank`, the rank of the module's context, holds of each parameter, if the explanation lists that rank's
 * parts. */
fsdp_status fsdp__explain_parts(fsdp_explanation *e, fsdp_module *module, int rank);
/* Keeps the module tree in its printed form. */
fsdp_status fsdp__explain_tree(fsdp_explanation *e, fsdp_module *module);

/* ---- count_step.c: what happens in a step ---- */

enum {
    FSDP__STEPS_TO_SETTLE = 2 /* the first makes what later ones reuse; the second, under DDP, its buckets */
};

/* Runs steps of a dry run until they are all alike. */
fsdp_status fsdp__settle_steps(fsdp_train_run *run);
/* Does that, and gives the costs of the next step. */
fsdp_status fsdp__measure_step(fsdp_train_run *run, fsdp_explained_step *out);
/* Gives the costs of the next step, its events, as they happen, and each unit's share of it. The steps are all alike by
 * now. */
fsdp_status fsdp__record_step(fsdp_train_run *run, fsdp_explanation *e);

/* Where in a step the microbatch runs that stands for those that are passed over. */
typedef enum fsdp__alike {
    FSDP__ALIKE_ELSEWHERE,
    FSDP__ALIKE_BEGINS,
    FSDP__ALIKE_ENDS
} fsdp__alike;

/* Says whether an event (FSDP__POINT_STAGE_BEGUN) begins or ends it; `forwards` counts the step's forwards from 0 on.
 * What comes in between counts run->passed_over times more. */
fsdp__alike fsdp__alike_at(const fsdp_train_run *run, const fsdp__probe_event *e, int64_t *forwards);

/* ---- dry_rank.c: the runs that are looked at ---- */

enum {
    FSDP__MICROBATCHES_MOST = 1 << 16 /* of a step on paper */
};

typedef struct fsdp__explain_source {
    const fsdp_explain_model *model;     /* NULL: the model of the config */
    fsdp_train_config config;            /* its pointers are borrowed */
    const fsdp_wrap_policy *policy;      /* the model's own; NULL: the config's */
    const fsdp__comm_schedule *schedule; /* NULL: the config's */
    /* numbers of ranks, of machines, and of ranks that are built: all, those of one machine, or one */
    int world_size, machines, built;
    bool one_level;
    bool passes_over;                    /* microbatches that are alike are counted, and one of them is run */
    const fsdp_explain_options *options; /* for its progress callback; NULL: none */
} fsdp__explain_source;

typedef struct fsdp__explain_run {
    fsdp_context *context;
    fsdp__train_own own;
    fsdp_train_run *run;
} fsdp__explain_run;

/* Builds the model as it is before anything is sharded. Returns NULL, with a last error, on failure. */
fsdp_module *fsdp__explain_build(const fsdp__explain_source *source, fsdp_context *context);
/* Opens the run of one rank. If it fails, there is nothing to close. */
fsdp_status fsdp__explain_open(const fsdp__explain_source *source, int rank, fsdp__explain_run *out);
void fsdp__explain_close(fsdp__explain_run *run);
/* Reports that `done` ranks and variants are done. The total is all ranks, and as many variants as there may be. */
void fsdp__explain_tell(const fsdp__explain_source *source, int64_t done);
/* Return the config's words: "fsdp2"; "size 100000". The caller frees them; NULL: out of memory. */
char *fsdp__explain_strategy(const fsdp_train_config *config);
char *fsdp__explain_policy(const fsdp__explain_source *source);

/* ---- explain.c ---- */

/* Describes the explained model, except who holds what, and its tree: names, sizes, units and parameters. */
fsdp_status fsdp__explain_describe(fsdp_explanation *e, const fsdp__explain_source *source, const fsdp_train_run *run);

/* ---- other_units.c: the same model in other units ---- */

enum {
    FSDP__UNIT_SIZES = 6,                      /* thresholds that are shown */
    FSDP__MOST_VARIANTS = 4 + FSDP__UNIT_SIZES /* DDP, root, blocks, always */
};

/* Explains the variants that the strategy allows, one of which is the explained one. */
fsdp_status fsdp__explain_other_units(fsdp_explanation *e, const fsdp__explain_source *source);

FSDP__SCOPED_POINTER(fsdp_explanation, fsdp_explanation_free)
