/* plan.h - how a plan is applied: entries become jobs (match.c), jobs are checked and say which parameters they place
 * (styles.c), all ranks agree, and then everything changes at once (parallelize.c). */
#ifndef PARALLEL_PLAN_H
#define PARALLEL_PLAN_H

#include "fsdp/parallelize.h"
#include "nn/layers.h"
#include "parallel/pieces.h"

/* What the modules of one plan share while they run. */
typedef struct fsdp__tp_plan {
    int64_t refs;
    fsdp_mesh *mesh; /* a reference */
    fsdp_process_group *group;
    int rank, ranks;
    fsdp_context *context;
    int64_t whole[FSDP_MAX_DIMS]; /* how long each dimension was that was cut last; 0: none was */
    fsdp__lane lane;              /* of asynchronous styles */
} fsdp__tp_plan;

fsdp_status fsdp__tp_create(fsdp_module *module, fsdp_mesh *mesh, fsdp__tp_plan **out);
fsdp__tp_plan *fsdp__tp_ref(fsdp__tp_plan *plan);
void fsdp__tp_unref(fsdp__tp_plan *plan);

/* ---- layout.c ---- */

/* Returns `layout`, or `otherwise` if it is the default. */
fsdp_layout fsdp__layout_or(fsdp_layout layout, fsdp_layout otherwise);
bool fsdp__layout_equal(fsdp_layout a, fsdp_layout b);
/* Writes "replicated", "sharded(1)", ... Returns `text`. */
#define FSDP__LAYOUT_TEXT 32
const char *fsdp__layout_text(fsdp_layout layout, char text[FSDP__LAYOUT_TEXT]);
/* Checks that there is a way from one to the other. */
fsdp_status fsdp__layout_check(fsdp_layout from, fsdp_layout to);
/* Returns x, which lies as `from` says, as `to` says; NULL for NULL, or with a last error. */
fsdp_tensor *fsdp__layout_convert(fsdp__tp_plan *plan, fsdp_tensor *x, fsdp_layout from, fsdp_layout to);
/* Returns which part x is of its dimension `dim`. In a recomputation that is what it was in the first run. */
fsdp_status fsdp__tp_part(fsdp__tp_plan *plan, const fsdp_tensor *x, int dim, fsdp__op_part *out);

/* ---- jobs ---- */

/* How one parameter is to be placed. */
typedef struct fsdp__claim {
    fsdp_module *module; /* borrowed */
    const char *slot;    /* "weight"; borrowed from the module */
    const char *pattern; /* of the entry */
    fsdp_tensor *tensor; /* borrowed */
    fsdp_placement placement;
    bool partial;
} fsdp__claim;

typedef struct fsdp__tp_planning fsdp__tp_planning;
typedef struct fsdp__job fsdp__job;

/* What a style is. */
typedef struct fsdp__style_kind {
    const char *name; /* "column-wise" */
    /* Checks that the style fits the module, fills job->style with layouts in place of defaults, and claims parameters.
     * Changes nothing. */
    fsdp_status (*check)(fsdp__tp_planning *planning, fsdp__job *job);
    /* Adds hooks; NULL: none. */
    fsdp_status (*apply)(const fsdp__job *job, fsdp__tp_plan *plan);
} fsdp__style_kind;

/* An entry, and one of the modules that it names. */
struct fsdp__job {
    const char *pattern;
    const fsdp__style_kind *kind;
    fsdp_parallel_style style;
    fsdp_module *module; /* borrowed */
    char *name;          /* dotted */
};

struct fsdp__tp_planning {
    fsdp_module *module;
    fsdp__tp_plan *plan;
    fsdp__job *jobs;
    int64_t job_count, job_capacity;
    fsdp__claim *claims;
    int64_t claim_count, claim_capacity;
};

/* An entry with a style that need not be public. */
typedef struct fsdp__tp_entry {
    const char *pattern;
    const fsdp__style_kind *kind;
    fsdp_parallel_style style;
} fsdp__tp_entry;
/* Does what fsdp_parallelize_module does. `so_far` is an error that this rank has found before, or FSDP_OK: then all
 * ranks get it. [collective] [blocks] */
fsdp_status fsdp__parallelize(fsdp_module *module, fsdp_mesh *mesh, const fsdp__tp_entry *entries, int count,
                              fsdp_status so_far);

/* ---- match.c ---- */

/* Adds a job for each module that the entry names. A pattern that names none is an error. */
fsdp_status fsdp__tp_match(fsdp__tp_planning *planning, const fsdp__tp_entry *entry);

/* ---- place.c ---- */

/* Adds the claim of a parameter that the module has under `slot`; nothing if there is none. */
fsdp_status fsdp__tp_claim(fsdp__tp_planning *planning, const fsdp__job *job, const char *slot,
                           fsdp_placement placement, bool partial);
/* Places the parameter. It has been checked. */
fsdp_status fsdp__tp_place(fsdp__tp_plan *plan, const fsdp__claim *claim);
/* Lets the first call of the module bring the ranks together, and the printed tree say what was done. */
fsdp_status fsdp__tp_manage(fsdp_module *module, fsdp__tp_plan *plan);

/* ---- beside.c ---- */

/* Claim the parameters of what is beside the job's layer, if anything is: where `outputs` says how the layer's outputs
 * are cut, and where its inputs are. */
fsdp_status fsdp__tp_claim_outputs_beside(fsdp__tp_planning *planning, const fsdp__job *job, fsdp_placement outputs);
fsdp_status fsdp__tp_claim_inputs_beside(fsdp__tp_planning *planning, const fsdp__job *job);
/* Lets it compute with this rank's part of `whole` inputs. The layer has hooks that hold the plan. */
fsdp_status fsdp__tp_apply_inputs_beside(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole);

/* ---- styles.c, sequence.c, head.c, async_styles.c ---- */

extern const fsdp__style_kind fsdp__column_wise, fsdp__row_wise, fsdp__prepare_input, fsdp__prepare_output;
extern const fsdp__style_kind fsdp__custom_style;
extern const fsdp__style_kind fsdp__sequence_parallel;
extern const fsdp__style_kind fsdp__model_head; /* column-wise, of a model's head */
extern const fsdp__style_kind fsdp__head_norm;  /* a norm of each head, of which each rank has some: it stays whole */
extern const fsdp__style_kind fsdp__heads_norm; /* a norm over all heads: it is cut */

fsdp_status fsdp__style_misfit(const fsdp__job *job, const char *wants);
/* Checks an asynchronous style, of whose "input" or "output" `outside` is the layout. */
fsdp_status fsdp__async_check(const fsdp__tp_planning *planning, fsdp__job *job, const char *side, fsdp_layout outside);

/* What a module's hooks know. */
typedef struct fsdp__applied {
    fsdp__tp_plan *plan; /* a reference */
    fsdp_parallel_style style;
    int64_t first, whole; /* of rows or features that are cut: where this rank's begin, and of how many */
} fsdp__applied;
/* Adds hooks with such an argument to the job's module. Only the functions of `hooks` count. */
fsdp_status fsdp__apply_hooks(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole,
                              const fsdp__module_hooks *hooks);
/* Do so for asynchronous styles; `leave` is what a column-wise one does with its output, or NULL. */
fsdp_status fsdp__apply_async_column(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole,
                                     fsdp_status (*leave)(void *arg, fsdp_module *module, fsdp_tensor *const *inputs,
                                                          int count, fsdp_tensor **outputs, int output_count));
fsdp_status fsdp__apply_async_row(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole);

/* ---- vocabulary_loss.c ---- */

/* Computes the loss of hidden states x (...,C), each rank's copy of the same, over a vocabulary of `whole` rows of
 * which `weight` has those from `first` on. Of three all-reduces of a number for each row, and never of logits. The
 * gradient of x is this rank's contribution. */
fsdp_tensor *fsdp__vocabulary_loss(const fsdp__applied *applied, fsdp_tensor *x, fsdp_tensor *weight,
                                   fsdp_tensor *targets, const fsdp_cross_entropy_options *options);

FSDP__SCOPED_POINTER(fsdp__tp_plan, fsdp__tp_unref)

#endif
