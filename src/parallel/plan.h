/* plan.h - how a plan is applied: entries become jobs (match.c), jobs are checked and say which parameters they place
 * (styles.c), all ranks agree, and then everything changes at once (parallelize.c). */
#pragma once

#include "fsdp/parallelize.h"
#include "nn/layers.h"
#include "parallel/product_pieces.h"

/* Holds what the modules of one plan share while they run. */
typedef struct fsdp__tp_plan {
    int64_t refs;
    fsdp_mesh *mesh; /* a reference */
    fsdp_process_group *group;
    int rank, ranks;
    fsdp_context *context;
    bool uneven[FSDP_MAX_DIMS]; /* dimensions of which it has cut one, in this call, into unequal parts: known to all */
    fsdp__side_stream *side;    /* of asynchronous styles; NULL: none yet */
} fsdp__tp_plan;

/* Checks that there are a module, called `of` in messages, and a mesh of its context and of one dimension, for `what`.
 */
fsdp_status fsdp__check_mesh(const char *what, const char *of, const fsdp_module *module, const fsdp_mesh *mesh);
fsdp_status fsdp__tp_create(fsdp_module *module, fsdp_mesh *mesh, fsdp__tp_plan **out);
fsdp__tp_plan *fsdp__tp_ref(fsdp__tp_plan *plan);
void fsdp__tp_unref(fsdp__tp_plan *plan);

/* Says what divides the work of a module among ranks. */
typedef enum fsdp__work {
    FSDP__WORK_OF_LAYERS,
    FSDP__WORK_OF_SEQUENCES
} fsdp__work;
/* Notes that this work of a module is divided over a mesh of one dimension. */
fsdp_status fsdp__note_work(fsdp_module *module, fsdp__work work, fsdp_mesh *mesh);
/* Checks that this rank alone is in both meshes: this one, and the one over which the other work of the module, or of a
 * module above or below it, is divided. */
fsdp_status fsdp__check_work(fsdp_module *module, fsdp__work work, fsdp_mesh *mesh);

/* ---- layout.c ---- */

/* Returns `layout`, or `otherwise` if it is the default. */
fsdp_layout fsdp__layout_or(fsdp_layout layout, fsdp_layout otherwise);
bool fsdp__layout_equal(fsdp_layout a, fsdp_layout b);
/* Writes "replicated", "sharded(1)", ... Returns `text`. */
#define FSDP__LAYOUT_TEXT 32
const char *fsdp__layout_text(fsdp_layout layout, char text[FSDP__LAYOUT_TEXT]);
#define FSDP__LAYOUT(layout) fsdp__layout_text((layout), (char[FSDP__LAYOUT_TEXT]){0})
/* Checks that there is a way from one to the other. */
fsdp_status fsdp__layout_check(fsdp_layout from, fsdp_layout to);
/* Returns x, which lies as `from` says, as `to` says; NULL for NULL, or with a last error. */
fsdp_tensor *fsdp__layout_convert(fsdp__tp_plan *plan, fsdp_tensor *x, fsdp_layout from, fsdp_layout to);
/* Does so where it is known how long the dimension is of which x is a part; 0: it is not. */
fsdp_tensor *fsdp__layout_convert_known(fsdp__tp_plan *plan, fsdp_tensor *x, fsdp_layout from, fsdp_layout to,
                                        int64_t whole);
/* Notes that something was cut, or is about to be. */
void fsdp__tp_note_cut(fsdp__tp_plan *plan, int dim, int64_t whole);
/* Returns which part x is of its dimension `dim`. Ranks ask each other if the plan has cut that dimension unevenly. A
 * recomputation gets the answer of the first run. */
fsdp_status fsdp__tp_part(fsdp__tp_plan *plan, const fsdp_tensor *x, int dim, fsdp__op_part *out);

/* ---- jobs ---- */

/* Says how one parameter is to be placed. */
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

/* Describes a style. */
typedef struct fsdp__style_kind {
    const char *name; /* "column-wise" */
    /* Checks that the style fits the module, fills job->style with layouts in place of defaults, and claims parameters.
     * Changes nothing. */
    fsdp_status (*check)(fsdp__tp_planning *planning, fsdp__job *job);
    /* Adds hooks; NULL: none. */
    fsdp_status (*apply)(const fsdp__job *job, fsdp__tp_plan *plan);
} fsdp__style_kind;

/* Holds an entry, and one of the modules that it names. */
struct fsdp__job {
    const char *pattern;
    const fsdp__style_kind *kind;
    fsdp_parallel_style style;
    fsdp_layout takes, gives; /* what the module itself is given, and gives: style.from[0] and to[0] are outside */
    fsdp_module *module;      /* borrowed */
    char *name;               /* dotted */
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

/* Checks that ranks have parameters of the same shapes and dtypes, of which the same are frozen, and configs that
 * compute the same. [collective] [blocks] */
fsdp_status fsdp__check_models_alike(fsdp_module *model, fsdp_process_group *group);

/* Gives the dropouts below the module the seeds of the group's first rank. `so_far` is as above. [collective]
 * [blocks] */
fsdp_status fsdp__share_dropout_seeds(fsdp_module *module, fsdp_process_group *group, fsdp_status so_far);

/* ---- match.c ---- */

/* Adds a job for each module that the entry names. A pattern that names none is an error. */
fsdp_status fsdp__tp_match(fsdp__tp_planning *planning, const fsdp__tp_entry *entry);

/* ---- place.c ---- */

/* Adds the claim of a parameter that the module has under `slot`; nothing if there is none. */
fsdp_status fsdp__tp_claim(fsdp__tp_planning *planning, const fsdp__job *job, const char *slot,
                           fsdp_placement placement, bool partial);
/* Places the parameter. It has been checked. */
fsdp_status fsdp__tp_place(fsdp__tp_plan *plan, const fsdp__claim *claim);
/* Lets the first call of the module bring the ranks together, each call begin without lengths of an earlier one, and
 * the printed tree say what was done. Before hooks of jobs. */
fsdp_status fsdp__tp_manage(fsdp_module *module, fsdp__tp_plan *plan);

/* ---- beside.c ---- */

/* Claim the parameters of what is beside the job's layer, if anything is: where `outputs` says how the layer's outputs
 * are cut, and where its inputs are. */
fsdp_status fsdp__tp_claim_outputs_beside(fsdp__tp_planning *planning, const fsdp__job *job, fsdp_placement outputs);
fsdp_status fsdp__tp_claim_inputs_beside(fsdp__tp_planning *planning, const fsdp__job *job);
/* Lets it compute with this rank's part of `whole` inputs. The layer has hooks that hold the plan. */
fsdp_status fsdp__tp_apply_inputs_beside(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole);

/* ---- styles.c, sequence.c, vocabulary_head.c, async_styles.c ---- */

extern const fsdp__style_kind fsdp__column_wise, fsdp__row_wise, fsdp__prepare_input, fsdp__prepare_output;
extern const fsdp__style_kind fsdp__custom_style;
extern const fsdp__style_kind fsdp__added_to_sum; /* of a module that adds to a partial sum, alike on all ranks */
extern const fsdp__style_kind fsdp__sequence_parallel;
extern const fsdp__style_kind fsdp__known_sequence; /* the same in a model's own plan, which gives it parts */
extern const fsdp__style_kind fsdp__model_head;     /* column-wise, of a model's head */
extern const fsdp__style_kind fsdp__head_norm;  /* a norm of each head, of which each rank has some: it stays whole */
extern const fsdp__style_kind fsdp__heads_norm; /* a norm over all heads: it is cut */

fsdp_status fsdp__style_misfit(const fsdp__job *job, const char *wants);
/* Checks an asynchronous style; `outside` is the layout of its "input" or "output" (`side`). */
fsdp_status fsdp__async_check(const fsdp__tp_planning *planning, fsdp__job *job, const char *side, fsdp_layout outside);

/* Holds what a module's hooks know. */
typedef struct fsdp__applied {
    fsdp__tp_plan *plan; /* a reference */
    fsdp_parallel_style style;
    fsdp_layout takes, gives;
    int64_t first, whole; /* of rows or features that are cut: where this rank's begin, and of how many */
} fsdp__applied;
/* Adds hooks with such an argument to the job's module. Only the functions of `hooks` count. */
fsdp_status fsdp__apply_hooks(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole,
                              const fsdp__module_hooks *hooks);
/* Say whether something is to be done with the first input of the job's module, and with its first output. */
bool fsdp__job_enters(const fsdp__job *job);
bool fsdp__job_leaves(const fsdp__job *job);
/* Hooks that do it. An output that is cut is part of `whole` features if that is not 0. */
fsdp_status fsdp__enter(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count);
fsdp_status fsdp__leave(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                        int output_count);
/* Do so for asynchronous styles. */
fsdp_status fsdp__apply_async_column(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole, bool leaves);
fsdp_status fsdp__apply_async_row(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole);

/* ---- collectives.c ---- */

/* Returns whether an all-reduce or a collect of the group has made x, or something that was added up to it: x is then
 * the same on all ranks, and each has the whole gradient. Without a graph nobody knows. */
bool fsdp__is_replicated(const fsdp_tensor *x, const fsdp_process_group *group);

/* ---- ring_attention.c ---- */

/* Does what fsdp_parallel_attention does. Keys, values and sums of gradients travel on the side stream, which is of the
 * device and kept by the graph, beside what is computed; NULL: in turn with it. The bits are the same. [collective] */
fsdp_tensor *fsdp__attention_over_ranks(fsdp_tensor *q, fsdp_tensor *k, fsdp_tensor *v,
                                        const fsdp_attention_options *options, fsdp_process_group *group,
                                        fsdp__side_stream *side);

/* ---- vocabulary_loss.c ---- */

/* Computes the loss of hidden states x (...,C), each rank's copy of the same, over a vocabulary of `whole` rows of
 * which `weight` has those from `first` on. Of three all-reduces of a number for each row, and never of logits. The
 * gradient of x is this rank's contribution. */
fsdp_tensor *fsdp__vocabulary_loss(const fsdp__applied *applied, fsdp_tensor *x, fsdp_tensor *weight,
                                   fsdp_tensor *targets, const fsdp_cross_entropy_options *options);

FSDP__SCOPED_POINTER(fsdp__tp_plan, fsdp__tp_unref)
