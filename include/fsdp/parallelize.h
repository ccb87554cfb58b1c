/* fsdp/parallelize.h - tensor parallelism of modules: whose weights are cut, and how, by the names of modules.
 *
 *     const fsdp_parallel_entry plan[] = {
 *         {"layers.*.mlp", {.kind = FSDP_PREPARE_INPUT, .to = {{.kind = FSDP_LAYOUT_COPIED}}}},
 *         {"layers.*.mlp.up", {.kind = FSDP_COLUMN_WISE, .from = {{.kind = FSDP_LAYOUT_COPIED}}}},
 *         {"layers.*.mlp.down", {.kind = FSDP_ROW_WISE}},
 *     };
 *
 *     fsdp_mesh_slice(mesh, 1, (const char *const[]){"tp"}, &tp);
 *     fsdp_parallelize_module(model, tp, plan, 3);
 *     fsdp_fully_shard(model, ...);                              over "dp", if at all, after that
 *
 * A model of fsdp/models.h has a plan already: fsdp_model_parallelize.
 *
 * [Note: layouts] A module computes on plain tensors, as it does without a plan. The plan says how each tensor lies on
 * the ranks of the mesh (its layout). Where the result of a module has a different layout than the next module needs,
 * the plan puts a collective between the two (fsdp/parallel.h):
 *
 * | from \ to  | replicated | copied              | sharded (other dim)  |
 * |------------|------------|---------------------|----------------------|
 * | replicated | -          | copy                | split                |
 * | copied     | refused    | -                   | slice                |
 * | sharded    | collect    | all_gather          | (all_to_all)         |
 * | partial    | all_reduce | all_reduce, copy    | reduce_scatter       |
 *
 * Parts of a dimension follow the chunk rule (fsdp/dist.h) and may be uneven. If a module is given a part of a
 * dimension, the whole length of the dimension follows from the tensors that the plan has cut in it since the plan's
 * module was called. If none of these cuts was uneven, parts are equal. Otherwise the ranks ask each other, by a gather
 * of one number for each rank; parts that do not follow the chunk rule are an error.
 */
#ifndef FSDP_PARALLELIZE_H
#define FSDP_PARALLELIZE_H

#include "fsdp/dist.h"
#include "fsdp/models.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_layout_kind {
    FSDP_LAYOUT_DEFAULT,    /* what the style says; of inputs and outputs to prepare: they are left alone */
    FSDP_LAYOUT_REPLICATED, /* all ranks hold it alike, and compute the same with it */
    FSDP_LAYOUT_COPIED,     /* all ranks hold it alike, and each computes something else with it: it is ready for a
                             * column-wise product, and its gradients are added up */
    FSDP_LAYOUT_SHARDED,    /* each rank has a part of dimension `dim`, which may count from the end */
    FSDP_LAYOUT_PARTIAL     /* it is the sum of what the ranks have */
} fsdp_layout_kind;
typedef struct fsdp_layout {
    fsdp_layout_kind kind;
    int dim;
} fsdp_layout;

typedef enum fsdp_parallel_kind {
    /* Cuts the output features of a Linear, Conv1D or Embedding, and its bias. from[0]: the input (replicated); to[0]:
     * the output (sharded in the last dimension). It may be the head of a model, whose outputs are the vocabulary; see
     * loss_parallel. */
    FSDP_COLUMN_WISE,
    /* Cuts the input features of a Linear or Conv1D, or the rows of an Embedding. The products are added up over the
     * ranks, and then the bias is added, once. from[0]: the input (sharded in the last dimension; ids are replicated);
     * to[0]: the output (replicated). If that is sharded in dimension -1, the bias is cut as well. */
    FSDP_ROW_WISE,
    /* Lets a LayerNorm, RMSNorm or Dropout work on parts of a sequence, in dimension `dim` (0 stands for 1). Weights
     * stay whole, their gradients are added up; a dropout's mask is the part of the one that a single rank would draw.
     * from[0] and to[0]: input and output (sharded in that dimension). A plain input is assumed to be such a part, as
     * in PyTorch. While gradients are recorded, a norm refuses an input that a layer or a collective before it has put
     * together. */
    FSDP_SEQUENCE_PARALLEL,
    FSDP_PREPARE_INPUT,  /* makes input i of any module to[i] from from[i] (replicated) */
    FSDP_PREPARE_OUTPUT, /* makes output i to[i] from from[i] (replicated) */
    FSDP_CUSTOM_PARALLEL /* calls `apply` */
} fsdp_parallel_kind;

enum {
    FSDP_PARALLEL_TENSORS = 4 /* inputs or outputs that a style can prepare */
};
typedef struct fsdp_parallel_style {
    fsdp_parallel_kind kind;
    fsdp_layout from[FSDP_PARALLEL_TENSORS], to[FSDP_PARALLEL_TENSORS];
    int dim; /* FSDP_SEQUENCE_PARALLEL */
    /* FSDP_COLUMN_WISE: the outputs consist of this many segments, one after the other, such as queries, keys and
     * values, each of which is cut by itself (fsdp/dist.h). 0: they are one. With segments the output stays cut, and
     * the module that takes it must know of them: a row-wise layer does not. */
    int segment_count;
    int64_t segments[FSDP_MAX_SEGMENTS];
    /* FSDP_COLUMN_WISE of a Linear or Conv1D whose from[0] is sharded, and FSDP_ROW_WISE whose to[0] is, in another
     * dimension than the last: the gather before the product, or the reduce-scatter after it, travels in up to four
     * pieces, each beside the product of another one, and so does what their backwards send. The number of bytes is the
     * same, each piece is a call, and sums are added in the same order. It takes a thread of its own on each rank (on a
     * GPU a stream), so it pays where cores, or a wire, would wait otherwise. Linears whose input the model gives to
     * several of them, such as queries, keys and values, share a gather unless something else acts around one of
     * them. */
    bool async;
    /* FSDP_COLUMN_WISE of a model's head: if the head is called with targets, it computes the loss from logits that
     * stay cut, and sends only a maximum, a sum and the target's logit for each row. Otherwise logits are put together
     * first. */
    bool loss_parallel;
    /* FSDP_CUSTOM_PARALLEL: this function changes the module as it likes, with hooks (fsdp/nn.h), fsdp_parallel_place
     * and the collectives. It is called after all checks, in the order of the plan. */
    fsdp_status (*apply)(void *arg, fsdp_module *module, const char *name, fsdp_mesh *mesh);
    void *arg;
} fsdp_parallel_style;

typedef struct fsdp_parallel_entry {
    /* Names modules: dotted, relative to the module of the call, each name by itself a pattern of fnmatch, as in
     * PyTorch: "layers.*.mlp.up". "" is the module of the call. */
    const char *pattern;
    fsdp_parallel_style style;
} fsdp_parallel_entry;

/* Applies a plan to the modules below `module`, over a mesh of one dimension. Weights are cut in place: parameters stay
 * the same objects, hold this rank's part, and have a distribution (fsdp/dist.h), the same as the ranks of the mesh had
 * before; on the meta device they are cut as well, and fsdp_module_initialize gives values that do not depend on the
 * cut. An adapter (fsdp/adapter.h), which must be there before, is cut with its layer. Gradients of a parameter are
 * those of this rank's part, whole; without FSDP they are plain tensors, of which fsdp_full_tensor copies the part.
 * Several plans may be applied one after the other, over the same mesh or to other parts of the model. Modules keep the
 * mesh, and graphs its group: both may be freed before the backward.
 *
 * FSDP_INVALID: the mesh has several dimensions or is another context's, it shares a second rank with the mesh that
 * cuts sequences (fsdp_model_context_parallel), a pattern matches nothing (the nearest module is named), a style does
 * not fit the type of a module, a dimension cannot be cut, a module is left out that is tied to one whose weight is
 * cut; FSDP_STATE: a parameter is distributed already (parallelize first, then shard), has a gradient, or is held in
 * fewer bits; FSDP_MISMATCH: ranks differ in their plan, in shapes, dtypes or what is frozen of their parameters, in
 * the config of a model, in the number of their dropouts, or in what an `apply` has placed. An error of one rank
 * becomes one of all. Nothing is changed then; after FSDP_NO_MEMORY, or if an `apply` has failed or placed otherwise,
 * free the module. A backward whose forward came before the cut is FSDP_STATE. [collective] of the mesh [blocks] */
FSDP_API fsdp_status fsdp_parallelize_module(fsdp_module *module, fsdp_mesh *mesh, const fsdp_parallel_entry *plan,
                                             int count);

typedef struct fsdp_model_parallel_options {
    /* Between attention and MLP each rank has a part of the sequence: norms, dropouts and sums take less memory and
     * time, and all-reduces become a reduce-scatter and an all-gather. */
    bool sequence_parallel;
    bool loss_parallel; /* the loss is made without gathering logits */
    /* With sequence_parallel, the gathers before attention and MLP and the reduce-scatters after them travel in pieces
     * beside the products (`async` of styles). Those after the embedding and before the head do not. */
    bool async;
    /* Each projection prepares its own input, as in PyTorch's plans: as many all-reduces in the backward as there are
     * projections. Otherwise attention and MLP prepare it once. */
    bool per_projection;
} fsdp_model_parallel_options;
/* Checks whether the heads of such a model can be cut over so many ranks; the error names the degrees that are
 * possible. */
FSDP_API fsdp_status fsdp_model_parallel_check(const fsdp_model_config *config, int64_t ranks);
/* Applies the plan of a model made by fsdp_model_create, of any architecture: embedding and head are cut in the
 * vocabulary, attention by heads, MLPs in ffn_dim, which may be cut unevenly. The model is called as before and returns
 * the same: logits are whole, and so is the loss. NULL options: zeros. FSDP_INVALID: the size of the mesh does not
 * divide n_heads and n_kv_heads (fsdp_model_parallel_check). [collective] of the mesh [blocks] */
FSDP_API fsdp_status fsdp_model_parallelize(fsdp_module *model, fsdp_mesh *mesh,
                                            const fsdp_model_parallel_options *options);

/* Cuts the sequences that a model made by fsdp_model_create is called with over the W ranks of a mesh of one dimension
 * ("cp"), as fsdp_parallel_attention has them. All ranks of the mesh call the model with the same whole tokens (B,T),
 * and targets; each computes with its part, and the result is whole on each: the loss, or logits in order. T must be a
 * multiple of 2 W. A rank's gradients are W times its own contribution, so that their average over the mesh is whole:
 * FSDP over the same ranks takes it. Positions of rows that hold several documents are cut like tokens. It works with
 * fsdp_model_parallelize, before or after it, over another dimension of one mesh (FSDP_INVALID: the two share a second
 * rank). Dropouts, also those of adapters that were added before, draw for whole sequences, by the seeds of the mesh's
 * first rank. Losses of each token come whole and in order. Each rank computes a call for last logits only, without
 * gradients, by itself, for any T, so that text can be generated; other calls with a cache are refused. [collective] of
 * the mesh, and in each call of the model except such a one [blocks] */
FSDP_API fsdp_status fsdp_model_context_parallel(fsdp_module *model, fsdp_mesh *mesh);

/* ======== for experts: most programs need nothing below ======== */

/* Does for a custom style what the other styles do with a parameter of a module ("weight"): cuts it as `placement`
 * says, or, if that replicates, leaves it whole. With `partial_gradients`, its gradient on each rank is only that
 * rank's contribution, and is added up; it must replicate then. A tied parameter may be placed again in the same way,
 * its gradients included. Nothing is communicated. FSDP_STATE and FSDP_INVALID as above; nothing is changed then. */
FSDP_API fsdp_status fsdp_parallel_place(fsdp_module *module, const char *parameter, fsdp_mesh *mesh,
                                         fsdp_placement placement, bool partial_gradients);

#ifdef __cplusplus
}
#endif
#endif
