/* autograd.h - the functions of the tape that operations and the sharding engine use. */
#pragma once

#include "fsdp/autograd.h"
#include "tensor/tensor.h"

typedef struct fsdp__node fsdp__node;

/* Says what a recomputation keeps results of: [Note: recomputation] in recompute_forward.c. */
typedef enum fsdp__dear {
    FSDP__CHEAP,
    FSDP__DEAR_PRODUCT,   /* kept by a cheap one, and every second by a selective one */
    FSDP__DEAR_ATTENTION, /* kept by both */
    FSDP__DEAR_LOSS       /* kept by every one: it is small, and holds its gradients already */
} fsdp__dear;

typedef fsdp_operation fsdp__op;

/* Holds what some of the library's own operations need beside fsdp_operation. */
typedef struct fsdp__traits {
    /* Or NULL. Gives the tensor, which may be strided, in which the node reads the gradient of an output without moving
     * it: of the output's shape and dtype, owned by the caller. NULL in `*out`: any place will do. */
    fsdp_status (*place)(fsdp__node *node, int output, fsdp_tensor **out);
    bool always;                       /* backward also runs when no gradient has arrived */
    void (*reached)(fsdp__node *node); /* called when a backward begins that will come to the node; or NULL */
    fsdp__dear dear;                   /* expensive to compute again; such an operation calls fsdp__recall first */
    int aside;                         /* inputs from this one on are beside the node ([Note: anchors] in boundary.c) */
    /* Or NULL. Computes the first output again from what the node has saved, with the same bits: the caller owns it. On
     * a device that makes cheap results again (fsdp__device_makes_again) nodes that save that output keep this node
     * instead. */
    fsdp_status (*remake)(fsdp__node *node, fsdp_tensor **out);
    bool remakes_late;    /* the backward calls fsdp__node_remake before it reads what may have to be made again */
    bool sums;            /* its output is the sum of its inputs */
    bool last_leaf_first; /* reports the gradient of its last leaf before that of the first (torch's bias) */
} fsdp__traits;

/* Records an operation if recording is on and an input requires a gradient; otherwise does nothing and returns FSDP_OK.
 * Marks the outputs (fresh tensors) as requiring a gradient. NULL inputs and saved entries are allowed and keep their
 * index. `saved` tensors are kept as aliases of their bytes until the node has run, and must not be written to before
 * that: save only what the wanted gradients need. `state` (of `state_bytes`) is copied. What it points to is taken over
 * only if the operation was recorded, that is if fsdp__will_record is true and this returns FSDP_OK. */
fsdp_status fsdp__record(const fsdp__op *op, fsdp_tensor *const *inputs, int input_count, fsdp_tensor *const *outputs,
                         int output_count, fsdp_tensor *const *saved, int saved_count, const void *state,
                         size_t state_bytes);
/* Does the same for an operation with traits. They are the same in every call for the operation. */
fsdp_status fsdp__record_with(const fsdp__traits *traits, const fsdp__op *op, fsdp_tensor *const *inputs,
                              int input_count, fsdp_tensor *const *outputs, int output_count, fsdp_tensor *const *saved,
                              int saved_count, const void *state, size_t state_bytes);
/* Names a tensor (nn/): writes the name of what lies in `storage`, such as "parameter 'head.weight'", into `text`.
 * Returns false if it has none. */
typedef bool (*fsdp__storage_namer)(const fsdp_context *context, const fsdp__storage *storage, char *text,
                                    size_t bytes);
fsdp_status fsdp__set_storage_namer(fsdp_context *context, fsdp__storage_namer namer);
/* Says which rows of a larger batch forwards have from here on: rows [first, first + count), in the first dimension of
 * what they compute. Dropouts then draw for an element by its place in that batch, so that their masks do not depend on
 * how it is divided. count 0, as at first: nothing is said, and they draw by the element's place in its tensor. */
typedef struct fsdp__rows_of_batch {
    int64_t first, count;
} fsdp__rows_of_batch;
fsdp_status fsdp__set_rows_of_batch(fsdp_context *context, fsdp__rows_of_batch rows);
fsdp__rows_of_batch fsdp__get_rows_of_batch(const fsdp_context *context);
/* Returns whether fsdp__record would record. A forward can skip what only a backward needs. */
bool fsdp__will_record(fsdp_tensor *const *inputs, int input_count);

/* ---- in a recomputation: [Note: recomputation] in recompute_forward.c ---- */
/* Returns whether the operation, the next to be recorded, need not run, since its results are kept or nobody needs
 * them. If so, they are in `outputs` (owned by the scope; NULL where nobody needs them), and all that is left to do is
 * fsdp__record with the inputs that it saves; NULL will do for anything else it saves. Returns false outside of a
 * recomputation. */
bool fsdp__recall(const fsdp__op *op, fsdp_tensor *const *inputs, int input_count, fsdp_tensor **outputs,
                  int output_count);
/* Replaces a number that comes from elsewhere, such as the key of a dropout, by that of the first run. */
fsdp_status fsdp__recomputation_number(fsdp_context *context, uint64_t *number);
/* Replaces a tensor that an operation reads without its being an input, such as running statistics, by a copy of what
 * the first run has read. */
fsdp_status fsdp__recomputation_value(fsdp_tensor **tensor);
/* Returns whether a function that is recomputed is running, for the first time or again. */
bool fsdp__in_recomputation(const fsdp_context *context);
/* Returns whether one is running again. */
bool fsdp__is_recomputing(const fsdp_context *context);
/* Returns whether the backward has what it needs. From then on operations fail, which is not an error. */
bool fsdp__recomputation_done(const fsdp_context *context);

/* ---- inside an op's backward ---- */
fsdp_tensor *fsdp__node_saved(fsdp__node *node, int index); /* borrowed; NULL if saved as NULL */
/* Makes saved tensors again that were not kept (fsdp__traits.remake), which is done before a backward otherwise. With
 * other weights another result would be made: it is an error if they were written to, sharded or not. */
fsdp_status fsdp__node_remake(fsdp__node *node);
void *fsdp__node_state(fsdp__node *node);
bool fsdp__node_needs(const fsdp__node *node, int input); /* whether this input's gradient is wanted */
/* Gives the gradient of input `input` (takes its own reference; shape and dtype of the input). Call it at most once per
 * input; it does nothing if the gradient is not wanted. The op must not write to `grad` afterwards. */
fsdp_status fsdp__node_give(fsdp__node *node, int input, fsdp_tensor *grad);
/* Runs the backward of an op whose output has the values of its first input: it gives that input the output's
 * gradient. */
fsdp_status fsdp__node_pass_on(fsdp__node *node, fsdp_tensor *const *grads);
/* Gives a tensor of the input's shape and dtype that the op writes the gradient to, and says whether it must add to
 * what is there. For a leaf this is the leaf's gradient itself, so a matrix product accumulates in place and writes
 * straight to where the sharding engine wants the gradient. For another tensor it is what other consumers have given
 * already, if nobody else sees that, or a fresh activation. It is contiguous and borrowed. The gradient counts as given
 * when the op's backward returns OK. Only for inputs that fsdp__node_needs. */
fsdp_status fsdp__node_target(fsdp__node *node, int input, fsdp_tensor **out, bool *accumulate);
/* Does the same for an op whose kernel writes to other dtypes, too: the target of a leaf has that of its gradient. */
fsdp_status fsdp__node_target_of_any(fsdp__node *node, int input, fsdp_tensor **out, bool *accumulate);
/* Gives a tensor of the input's shape and dtype, from the scope, that the op may write the gradient to and then give:
 * the operation that made the input reads it there (a traits->place). It may be strided. NULL in `*out`: there is none,
 * and the op makes its own. Call it at most once per input. */
fsdp_status fsdp__node_place(fsdp__node *node, int input, fsdp_tensor **out);
/* Returns whether the graph is kept. Then an op must leave what it saved as it is. */
bool fsdp__node_keeps(const fsdp__node *node);
/* Drops what was saved at `index`, which the op reads no more, unless the graph is kept. */
void fsdp__node_drop_saved(fsdp__node *node, int index);
/* Returns whether only the running op sees this output gradient: then it is contiguous, and may be overwritten and
 * given on. */
bool fsdp__grad_exclusive(const fsdp_tensor *grad);
/* Returns whether the gradient is known on the host to be all ones (the root of fsdp_backward). */
bool fsdp__grad_is_one(const fsdp_tensor *grad);

/* ---- leaves ---- */
/* The source is called when the first gradient arrives, for the tensor that becomes the leaf's gradient (contiguous;
 * shape and dtype of the leaf; contents undefined). The leaf takes the reference in `*out`. Without a source a fresh
 * tensor of kind gradient is made. A NULL source removes it. */
typedef fsdp_status (*fsdp__grad_source)(void *arg, fsdp_tensor *leaf, fsdp_tensor **out);
fsdp_status fsdp__set_grad_source(fsdp_tensor *leaf, fsdp__grad_source source, void *arg);
/* Says that the source gives gradients of `dtype`, a floating one; NONE: of that of the leaf. */
fsdp_status fsdp__set_grad_dtype(fsdp_tensor *leaf, fsdp_dtype dtype);
/* Describes one of the tensors that lie in a leaf one after the other (FSDP1's flat parameter). Borrowed. */
typedef struct fsdp__leaf_part {
    const char *name;    /* dotted; begins where the leaf's own name does */
    fsdp_tensor *tensor; /* with its own shape and distribution */
    int64_t at;          /* its first element in the leaf */
} fsdp__leaf_part;

/* An owner keeps something beside a leaf's gradient (the sharding engine does). It is told what happens to the leaf: a
 * gradient arrives or is set where there was none, the gradient was set or dropped, or requires_grad was set. The
 * engine's own changes go through the functions below, which tell nobody. A NULL owner removes it. */
typedef struct fsdp__leaf_owner {
    fsdp_status (*grad_made)(void *arg, fsdp_tensor *leaf, fsdp_tensor *grad); /* before it becomes the gradient */
    void (*grad_set)(void *arg, fsdp_tensor *leaf);
    void (*requires_grad_set)(void *arg, bool requires_grad);
    /* Or NULL. The running backward has come through the last use of the leaf, whether that brought a gradient or not.
     * A failure fails the backward. */
    fsdp_status (*grad_complete)(void *arg, fsdp_tensor *leaf);
    /* Or NULL. Returns whether the leaf is a part of another tensor, which has the gradient and goes to optimizers. */
    bool (*is_part)(const void *arg, const fsdp_tensor *leaf);
    /* Or NULL. Gives the leaf's parts. Returns false behind the last one. */
    bool (*part)(const void *arg, int64_t index, fsdp__leaf_part *out);
} fsdp__leaf_owner;
fsdp_status fsdp__set_leaf_owner(fsdp_tensor *leaf, const fsdp__leaf_owner *owner, void *arg);
bool fsdp__leaf_is_owned(const fsdp_tensor *leaf);
bool fsdp__leaf_is_part(const fsdp_tensor *leaf);
bool fsdp__leaf_part_at(const fsdp_tensor *leaf, int64_t index, fsdp__leaf_part *out);
/* Returns how many uses of the leaf the running backwards have yet to come through. It is known from their beginning
 * on, for a leaf whose owner has grad_complete. */
int64_t fsdp__leaf_uses(const fsdp_tensor *leaf);
void *fsdp__leaf_owner_arg(const fsdp_tensor *leaf, const fsdp__leaf_owner *owner); /* NULL if it is not the owner */
/* Replaces the gradient (takes a reference; NULL drops it). Does nothing to a leaf without autograd state. */
void fsdp__put_grad(fsdp_tensor *leaf, fsdp_tensor *grad);
/* Sets requires_grad of a leaf that has autograd state. */
void fsdp__mirror_requires_grad(fsdp_tensor *leaf, bool requires_grad);
/* Brings a gradient to the leaf: hooks see it, then it is added or becomes the gradient. Give away the only reference
 * to have it adopted without a copy. Call it in a scope. */
fsdp_status fsdp__leaf_accumulate(fsdp_tensor *leaf, fsdp_tensor *grad);
bool fsdp__has_grad_hooks(const fsdp_tensor *leaf);
/* Does what fsdp_tensor_add_grad_hook does, but takes over `arg` on success: `free_arg` runs when the tensor or its
 * graph is freed. The hook also runs, with a NULL `*grad`, if a backward passes the tensor and no gradient has come. */
fsdp_status fsdp__add_grad_hook(fsdp_tensor *tensor, fsdp_grad_hook hook, void *arg, void (*free_arg)(void *arg));
/* Returns whether the tensor has such a hook. */
bool fsdp__has_lasting_hooks(const fsdp_tensor *tensor);
/* Removes such hooks of a leaf: whoever takes it over does from now on what they did. */
void fsdp__drop_lasting_hooks(fsdp_tensor *leaf);
/* Return how much has been recorded, and whether the tensor's producer was recorded after that. */
uint64_t fsdp__recorded(const fsdp_context *context);
bool fsdp__recorded_since(const fsdp_tensor *tensor, uint64_t recorded);
/* Returns whether the tensor, or a term of the sum that it is, was made by an operation for which `is` returns true;
 * `state` is the operation's own. An operation is not found if it was not recorded, has had its backward, or is behind
 * dozens of sums. */
bool fsdp__is_sum_with(const fsdp_tensor *tensor, bool (*is)(const void *arg, const fsdp__op *op, const void *state),
                       const void *arg);
/* Reserves a leaf's gradient, for an operation that makes it before the backward runs (fused head and loss). Gives the
 * tensor that would become the gradient if there is none yet (from the source, not yet the leaf's grad), otherwise a
 * temporary of the leaf's shape. Pass it to fsdp__node_give later: unless it was a temporary it becomes the gradient
 * without a copy. A leaf has one reservation at a time: a second one gives a temporary. Keep the tensor itself until
 * then, in `state`, not an alias of it. The caller owns `*out`. */
fsdp_status fsdp__reserve_grad(fsdp_tensor *leaf, fsdp_tensor **out);
/* Returns whether the leaf has such a reserved tensor from its source. */
bool fsdp__grad_is_reserved(const fsdp_tensor *leaf);

/* ---- boundaries ---- */
typedef struct fsdp__crossing {
    fsdp_status (*callback)(void *arg); /* or NULL */
    void (*reached)(void *arg);         /* or NULL; called at the beginning of each backward that will call back */
    void *arg;
    void (*free_arg)(void *arg);
    /* Or NULL. Called after the callback if any gradient has come. It gets the gradients of the tensors that required
     * one, in their order; some may be NULL. It may replace those that are not NULL. */
    fsdp_status (*gradients)(void *arg, fsdp_tensor **gradients, int count);
} fsdp__crossing;
/* Replaces those of `tensors` that require a gradient by identities of them (from the scope), recorded as one node. In
 * the backward the callback runs when the gradients of all of them are known, before they are passed on, even if there
 * are none. If none requires a gradient, or nothing is recorded, this does nothing (and never calls back); `*recorded`
 * tells. What was recorded owns `arg`: `free_arg` (or NULL) runs when the graph is freed. */
fsdp_status fsdp__boundary(fsdp_tensor **tensors, int count, const fsdp__crossing *crossing, bool *recorded);

/* Makes backwards that come from `*tensor` pass `nodes`, too, at their places in the backward order; without a gradient
 * if none has come. Their outputs may go to nobody else. `*tensor` is replaced by an identity of it (from the scope).
 */
fsdp_status fsdp__anchor(fsdp_tensor **tensor, fsdp__node *const *nodes, int count);
/* Replaces `*tensor`, which requires no gradient, by an identity of it (from the scope) that does. A backward comes to
 * that, and goes no further. Does nothing if nothing is recorded, or if the dtype has no gradients. */
fsdp_status fsdp__require_gradient(fsdp_tensor **tensor);
fsdp__node *fsdp__producer(const fsdp_tensor *tensor); /* a reference for the caller; NULL for a leaf */
void fsdp__node_unref(fsdp__node *node);               /* frees long chains without recursion */

bool fsdp__in_backward(const fsdp_context *context);
/* Returns how many backwards have begun, those inside others included. */
uint64_t fsdp__backwards(const fsdp_context *context);

FSDP__SCOPED_POINTER(fsdp__node, fsdp__node_unref)
