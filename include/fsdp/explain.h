/* fsdp/explain.h - what a strategy does to a model, before a run: which rank holds what, what is gathered when, and
 * what a step costs in memory, calls and bytes. `fsdp explain` makes these calls:
 *
 *     fsdp_explanation *e = NULL;
 *
 *     FSDP_TRY(fsdp_train_config_set(config, "model.preset", "llama-1m"));
 *     FSDP_TRY(fsdp_explain(NULL, config, &(fsdp_explain_options){.world_size = 4}, &e));
 *     FSDP_TRY(fsdp_explanation_print(e, stdout));
 *     fsdp_explanation_free(e);
 *
 * No number comes from a formula. For each rank in turn, in a world where only that rank is real, the model is built,
 * sharded by the config's strategy, and trained for a few steps on a device without memory, by the code of `fsdp
 * train`. Its ledger, counters and events are therefore those of a run, to the byte, for any strategy, units, dtypes
 * and microbatches. Nothing is computed, no rank is started, no weights are read. If training.device is cuda, the
 * device stands for a GPU: it has memory of its own, and shards can be offloaded from it.
 *
 * Values read from such a device are zero: a model whose control flow depends on values takes the path for zeros.
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

/* ---- input ---- */

/* Describes your own model. It is built once for each rank and variant, each time in another context. */
typedef struct fsdp_explain_model {
    const char *name; /* for display; NULL: that of its type */
    /* Builds the model on `device`, which is the context's meta device. Returns NULL with a last error on failure. */
    fsdp_module *(*build)(void *arg, fsdp_context *context, fsdp_device *device);
    /* Runs the forward of one microbatch, with inputs and targets made on `device` (fsdp_zeros, fsdp_full), and returns
     * a loss of one element. */
    fsdp_tensor *(*loss)(void *arg, fsdp_module *module, fsdp_device *device);
    void *arg;
    /* Chooses the units; NULL: as the config's parallelism.wrap_policy says (your own model has no blocks, so root,
     * size, class or always). */
    const fsdp_wrap_policy *policy;
} fsdp_explain_model;

typedef struct fsdp_explain_options {
    int world_size; /* 0: 1; at most 1,048,576 */
    int rank;       /* whose step is shown. Rank 0 has the most, except with parallelism.fsdp1_use_orig_params */
    bool sweep;     /* also explain other units and DDP as `variants`, if the config's other keys allow them */
    int machines;   /* the ranks are spread evenly over so many; 0: 1. With several, traffic between them is counted */
    bool one_level; /* ranks of a machine share no memory: FSDP_ONE_LEVEL=1 (docs/cluster.md) */
    /* Called as ranks and variants are done: `done` of `all`. NULL: not called. */
    void (*progress)(void *arg, int64_t done, int64_t all);
    void *progress_arg;
} fsdp_explain_options;

/* ---- results ---- */

/* Describes one rank's part of one parameter. */
typedef struct fsdp_explained_part {
    int64_t first, count; /* range in dimension `dim`, or in the parameter as one run; of several boxes, the first's
                           * beginning and the sum */
    int64_t numel;
    int64_t across_first, across_count; /* range in dimension `across`, if there is one; of the first box */
} fsdp_explained_part;

/* Describes a box of a part. */
typedef struct fsdp_explained_box {
    int64_t first, count, across_first, across_count;
} fsdp_explained_box;

typedef struct fsdp_explained_parameter {
    const char *name; /* dotted, from the root; tied ones under their first name */
    int64_t unit;     /* index of its unit; -1: none */
    fsdp_dtype dtype;
    bool trained;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS], numel;
    int dim;                          /* the sharded dimension; -1: a run of elements (FSDP1) */
    int across;                       /* another that tensor parallel has cut; -1: none */
    const fsdp_explained_part *parts; /* for ranks first_part, first_part + 1, ...: explanation.part_count of them */
    /* If parts consist of several boxes, as those of fused projections that tensor parallel has cut by heads, each rank
     * has box_count boxes here, one after the other; some may be empty. Otherwise NULL and 1. */
    const fsdp_explained_box *boxes;
    int box_count;
} fsdp_explained_parameter;

/* Describes the time from a gather until the gathered parameters are freed. */
typedef struct fsdp_explained_life {
    int64_t begin, end; /* indices of the UNSHARD and RESHARD events; event_count: it outlives the step */
    bool ahead;         /* gathered before its module's turn */
    int64_t bytes;      /* sent for it by this rank */
    double flops;       /* computed in this time */
} fsdp_explained_life;

/* Describes modules that are sharded together. The counts are of this rank and one step, all microbatches. */
typedef struct fsdp_explained_unit {
    const char *name, *type; /* dotted name of its module, "" for the root; the module's type */
    int64_t parameter_count, numel;
    int64_t padded_numel; /* with rows, or the flat vector, rounded up to a multiple of the ranks */
    int64_t shard_numel;  /* of this rank, without padding */
    int64_t gathers, gathered_bytes, reductions, reduced_bytes; /* without what is sent within a team */
    double flops; /* of its own products, forward and backward, without nested units */
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
    size_t live_bytes[FSDP_MEMORY_KINDS]; /* at this time */
} fsdp_explained_event;

/* Counts traffic with other machines, as fsdp_comm_stats does. */
typedef struct fsdp_explained_network {
    int64_t sent[FSDP_COLLECTIVES], received[FSDP_COLLECTIVES]; /* bytes of buffers */
    int64_t messages[FSDP_COLLECTIVES];                         /* sent, for buffers and headers */
} fsdp_explained_network;

/* Says what one step costs a rank, measured in the third step. WORKSPACE is what operations themselves allocate;
 * kernels' scratch memory, which depends on the machine and its threads, is not included in any number. */
typedef struct fsdp_explained_step {
    size_t live_bytes[FSDP_MEMORY_KINDS]; /* between two steps */
    size_t peak_bytes[FSDP_MEMORY_KINDS]; /* within the step; they need not occur at the same time */
    size_t peak_total_bytes;              /* of all kinds together except WORKSPACE */
    size_t peak_with_workspace_bytes;     /* of all kinds together, at one time */
    size_t reserved_bytes;                /* of a GPU's memory, when the step has ended; 0 on a processor */
    int64_t calls[FSDP_COLLECTIVES], bytes_sent[FSDP_COLLECTIVES];           /* as in fsdp_comm_stats */
    int64_t team_calls[FSDP_COLLECTIVES], team_bytes_sent[FSDP_COLLECTIVES]; /* of these, within a team */
    fsdp_explained_network network;
    double flops;
} fsdp_explained_step;

/* Describes the same model with other units, or under DDP, without units. */
typedef struct fsdp_explained_variant {
    const char *policy; /* "root", "blocks", "size 100000", "always"; "ddp" */
    bool asked;         /* it is the one that the explanation is of */
    int64_t units;
    int64_t largest; /* elements of the largest unit */
    fsdp_explained_step step;
} fsdp_explained_variant;

typedef struct fsdp_explanation {
    const char *model, *strategy, *policy;
    int world_size, rank;
    int machines;
    bool one_level;
    fsdp_explained_network machine; /* one step of all ranks on `rank`'s machine; only with several machines */
    int replicas;                   /* copies of the parameters */
    int team;                       /* consecutive ranks that have the same sequences (tensor and context parallel) */
    int layer_ranks;                /* consecutive ranks of them that share each layer (tensor parallel) */
    int64_t microbatches;           /* of a step; 0: no step was run (fsdp_explain_module) */
    int64_t local_batch, seq_len;   /* of a microbatch; 0: the model is not the config's */
    fsdp_dtype param_dtype, reduce_dtype; /* for computation and gathers; for reductions */
    const char *tree;                     /* the modules, as fsdp_module_print prints them */
    int64_t numel, trained_numel;         /* elements of all parameters, as they are held */
    int64_t model_numel;                  /* the same, with quantized weights (bytes) as what they stand for */
    int64_t unit_count;
    const fsdp_explained_unit *units; /* in the order of the tree */
    int64_t parameter_count;
    const fsdp_explained_parameter *parameters; /* in the order of the tree */
    int part_count, first_part; /* ranks whose parts are known, and the first: all ranks (up to 4096), or this one */
    int64_t event_count;
    const fsdp_explained_event *events;
    fsdp_explained_step step;
    int64_t variant_count;
    const fsdp_explained_variant *variants;
} fsdp_explanation;

/* Explains a model. `model` NULL: the config's model (model.path, of which only config.json is read, or model.preset).
 * The config also gives strategy, units, dtypes, checkpoints, batches and optimizer; its data, metrics and export are
 * ignored. `config` NULL: every key has its default. `options` may be NULL. FSDP_UNSUPPORTED: parallelism.schedule is
 * plan, whose schedule depends on the times of a device; give the file that 'fsdp plan --schedule FILE' writes. Other
 * errors are those of fsdp_train_run_create and of the model. */
FSDP_API fsdp_status fsdp_explain(const fsdp_explain_model *model, const fsdp_train_config *config,
                                  const fsdp_explain_options *options, fsdp_explanation **out);
/* Explains a module that is sharded already, in whichever way: its units and this rank's parts, but no step. A local
 * call. FSDP_STATE: nothing in it is sharded or replicated. */
FSDP_API fsdp_status fsdp_explain_module(fsdp_module *module, fsdp_explanation **out);
FSDP_API void fsdp_explanation_free(fsdp_explanation *explanation); /* NULL is allowed */

/* ---- output ---- */

/* Prints text of at most 100 columns; without the step's part if no step was run. */
FSDP_API fsdp_status fsdp_explanation_print(const fsdp_explanation *explanation, FILE *stream);
/* Prints one JSON object with all of the above. */
FSDP_API fsdp_status fsdp_explanation_json(const fsdp_explanation *explanation, FILE *stream);
/* Prints two pictures in one SVG: which rank holds which rows; and when each unit is gathered in the step, above the
 * live bytes. */
FSDP_API fsdp_status fsdp_explanation_svg(const fsdp_explanation *explanation, FILE *stream);

#ifdef __cplusplus
}
#endif
#endif
