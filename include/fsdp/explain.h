/* fsdp/explain.h - what a strategy does to a model, before it is done: who holds what, what is gathered when, and what
 * a step costs in memory, calls and bytes. What `fsdp explain` prints, as calls:
 *
 *     fsdp_explanation *e = NULL;
 *
 *     FSDP_TRY(fsdp_train_config_set(config, "model.preset", "llama-1m"));
 *     FSDP_TRY(fsdp_explain(NULL, config, &(fsdp_explain_options){.world_size = 4}, &e));
 *     FSDP_TRY(fsdp_explanation_print(e, stdout));
 *     fsdp_explanation_free(e);
 *
 * No number is a formula's. The model is built as each rank in turn, in a world of that one rank, goes through the
 * front door that the config names, and is trained for a few steps on a device without bytes, by the code of `fsdp
 * train`: what its ledger, its counters and its events say is what a run's say, to the byte, whatever the strategy, the
 * units, the dtypes, the microbatches. Nothing is computed, no rank is started, no weights are read.
 *
 * What is read of such a device is zero: a model that asks values which way to go is seen on that of zeros.
 */
#ifndef FSDP_EXPLAIN_H
#define FSDP_EXPLAIN_H

#include <stdio.h>

#include "fsdp/shard_map.h"
#include "fsdp/train.h"
#include "fsdp/wrap.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- what is explained ---- */

/* A model of one's own. It is built once for each rank and variant, each time in another context. */
typedef struct fsdp_explain_model {
    const char *name; /* for the reader; NULL: that of its type */
    /* On `device`, which is the context's meta device. NULL with a last error on failure. */
    fsdp_module *(*build)(void *arg, fsdp_context *context, fsdp_device *device);
    /* A forward of one microbatch, inputs and targets made on `device` (fsdp_zeros, fsdp_full), to a loss of one
     * element. */
    fsdp_tensor *(*loss)(void *arg, fsdp_module *module, fsdp_device *device);
    void *arg;
    /* Which modules are units; NULL: what the config's parallelism.wrap_policy says (of a model of one's own there are
     * no blocks: root, size, class or always). */
    const fsdp_wrap_policy *policy;
} fsdp_explain_model;

typedef struct fsdp_explain_options {
    int world_size; /* 0: 1 */
    int rank;       /* whose step is told. Rank 0 has the most of everything */
    bool sweep;     /* other units besides, and DDP: `variants`, those that go with the config's other keys */
    int machines;   /* that the ranks are on, as many on each; 0: 1. What goes between them is counted then */
    bool one_level; /* ranks of a machine share nothing: FSDP_ONE_LEVEL=1 (docs/cluster.md) */
    /* Called as ranks and variants are done: `done` of `all`. NULL: not. */
    void (*progress)(void *arg, int64_t done, int64_t all);
    void *progress_arg;
} fsdp_explain_options;

/* ---- what is found out ---- */

/* One rank's part of one parameter. */
typedef struct fsdp_explained_part {
    int64_t first, count; /* of dimension `dim`, or of the parameter as one run */
    int64_t numel;
} fsdp_explained_part;

typedef struct fsdp_explained_parameter {
    const char *name; /* dotted, from the root; tied ones under their first */
    int64_t unit;     /* index of its unit; -1: nobody's */
    fsdp_dtype dtype;
    bool trained;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS], numel;
    int dim;                          /* that is cut; -1: a run of elements (FSDP1) */
    const fsdp_explained_part *parts; /* of rank 0, 1, ...: explanation.part_count of them */
} fsdp_explained_parameter;

/* From a gather to the end of what was gathered. */
typedef struct fsdp_explained_life {
    int64_t begin, end; /* events: the UNSHARD and the RESHARD; event_count: it outlives the step */
    bool ahead;         /* gathered before its module's turn */
    int64_t bytes;      /* sent for it by this rank */
    double flops;       /* computed meanwhile */
} fsdp_explained_life;

/* Modules that are sharded together. What is counted is of this rank and of one step, all microbatches. */
typedef struct fsdp_explained_unit {
    const char *name, *type; /* dotted name of its module, "" for the root; the module's class */
    int64_t parameter_count, numel;
    int64_t padded_numel; /* rows, or the flat vector, rounded up to a multiple of the ranks */
    int64_t shard_numel;  /* this rank's, without padding */
    int64_t gathers, gathered_bytes, reductions, reduced_bytes;
    double flops; /* of its own products, forward and backward, what is a nested unit's left out */
    int64_t life_count;
    const fsdp_explained_life *lives;
} fsdp_explained_unit;

typedef enum fsdp_explained_phase {
    FSDP_PHASE_FORWARD,
    FSDP_PHASE_BACKWARD,
    FSDP_PHASE_OPTIMIZER
} fsdp_explained_phase;

typedef struct fsdp_explained_event {
    fsdp_shard_event event;
    fsdp_explained_phase phase;
    int64_t unit, microbatch;
    double flops;                         /* of the step so far */
    size_t live_bytes[FSDP_MEMORY_KINDS]; /* then */
} fsdp_explained_event;

/* To and from other machines, as fsdp_comm_stats. */
typedef struct fsdp_explained_network {
    int64_t sent[FSDP_COLLECTIVES], received[FSDP_COLLECTIVES]; /* bytes of buffers */
    int64_t messages[FSDP_COLLECTIVES];                         /* sent: of buffers and headers */
} fsdp_explained_network;

/* What one step costs a rank once it has settled: the third. WORKSPACE is what operations take themselves; kernels'
 * scratch, which depends on the machine and its threads, is in none of these numbers. */
typedef struct fsdp_explained_step {
    size_t live_bytes[FSDP_MEMORY_KINDS];                          /* between two steps */
    size_t peak_bytes[FSDP_MEMORY_KINDS];                          /* within it; they need not fall together */
    size_t peak_total_bytes;                                       /* of all kinds together but WORKSPACE */
    int64_t calls[FSDP_COLLECTIVES], bytes_sent[FSDP_COLLECTIVES]; /* as fsdp_comm_stats */
    fsdp_explained_network network;
    double flops;
} fsdp_explained_step;

/* The same model in other units, or under DDP, in none. */
typedef struct fsdp_explained_variant {
    const char *policy; /* "root", "blocks", "size 100000", "always"; "ddp" */
    bool asked;         /* it is what the explanation is of */
    int64_t units;
    int64_t largest; /* elements of the largest unit */
    fsdp_explained_step step;
} fsdp_explained_variant;

typedef struct fsdp_explanation {
    const char *model, *strategy, *policy;
    int world_size, rank;
    int machines;
    bool one_level;
    fsdp_explained_network machine;       /* of a step of all ranks on the machine of `rank`; where there are several */
    int replicas;                         /* copies of the parameters */
    int64_t microbatches;                 /* of a step; 0: no step was taken (fsdp_explain_module) */
    int64_t local_batch, seq_len;         /* of a microbatch; 0: the model is not the config's */
    fsdp_dtype param_dtype, reduce_dtype; /* in which is computed and gathered, and reduced */
    const char *tree;                     /* the modules, as fsdp_module_print has them */
    int64_t numel, trained_numel;         /* elements of all parameters */
    int64_t unit_count;
    const fsdp_explained_unit *units; /* in the order of the tree */
    int64_t parameter_count;
    const fsdp_explained_parameter *parameters; /* in the order of the tree */
    int part_count, first_part; /* ranks whose parts are known, from which on: all (of up to 4096), or this one alone */
    int64_t event_count;
    const fsdp_explained_event *events;
    fsdp_explained_step step;
    int64_t variant_count;
    const fsdp_explained_variant *variants;
} fsdp_explanation;

/* `model` NULL: the config's (model.path, of which config.json is all that is read, or model.preset). The config also
 * says strategy, units, dtypes, checkpoints, batches and optimizer; what it says of data, metrics and export is
 * ignored, NULL: all at its default. `options` may be NULL. Errors are those of fsdp_train_run_create and of the model.
 */
FSDP_API fsdp_status fsdp_explain(const fsdp_explain_model *model, const fsdp_train_config *config,
                                  const fsdp_explain_options *options, fsdp_explanation **out);
/* A module that is sharded already, whichever way: its units, and this rank's parts; no step. Local. FSDP_STATE where
 * nothing in it is sharded or replicated. */
FSDP_API fsdp_status fsdp_explain_module(fsdp_module *module, fsdp_explanation **out);
FSDP_API void fsdp_explanation_free(fsdp_explanation *explanation); /* NULL is allowed */

/* ---- as people and programs read it ---- */

/* Text of at most 100 columns; what a step does is left out where none was taken. */
FSDP_API fsdp_status fsdp_explanation_print(const fsdp_explanation *explanation, FILE *stream);
/* One JSON object with all of the above. */
FSDP_API fsdp_status fsdp_explanation_json(const fsdp_explanation *explanation, FILE *stream);
/* Two pictures in one SVG: who holds which rows; when which unit is gathered in the step, over the bytes that live. */
FSDP_API fsdp_status fsdp_explanation_svg(const fsdp_explanation *explanation, FILE *stream);

#ifdef __cplusplus
}
#endif
#endif
