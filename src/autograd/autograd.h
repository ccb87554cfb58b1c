/* autograd.h - what operations and the sharding engine use of the tape. */
#ifndef AUTOGRAD_AUTOGRAD_H
#define AUTOGRAD_AUTOGRAD_H

#include "fsdp/autograd.h"
#include "tensor/tensor.h"

typedef struct fsdp__node fsdp__node;

/* What a checkpoint keeps the results of: [Note: checkpoints] in checkpoint.c. */
typedef enum fsdp__dear {
    FSDP__CHEAP,
    FSDP__DEAR_PRODUCT,   /* a selective one, of every second */
    FSDP__DEAR_ATTENTION, /* a selective one */
    FSDP__DEAR_LOSS       /* every one: it is small, and holds its gradients already */
} fsdp__dear;

/* One kind of recorded operation, and what only those of the library have:
 *   always           backward also runs when no gradient arrived
 *   reached          a backward begins that will come to the node; or NULL
 *   dear             fsdp__dear: to compute again; such an operation asks fsdp__recall first
 *   aside            inputs from this one on are by the node's side: [Note: anchors] in boundary.c. 0: none
 *   last_leaf_first  the gradient of its last leaf is told before that of the first (torch's bias) */
typedef fsdp_operation fsdp__op;

/* Records an operation if recording is on and an input requires a gradient; else does nothing and returns FSDP_OK.
 * Marks the outputs (fresh tensors) as requiring a gradient. NULL inputs and saved entries are allowed and keep their
 * index. `saved` tensors are kept as aliases of their bytes until the node has run, and must not be written to before:
 * save only what the wanted gradients need. `state` (of `state_bytes`) is copied; what it points to is taken over only
 * when the operation was recorded, that is when fsdp__will_record and this returns FSDP_OK. */
fsdp_status fsdp__record(const fsdp__op *op, fsdp_tensor *const *inputs, int input_count, fsdp_tensor *const *outputs,
                         int output_count, fsdp_tensor *const *saved, int saved_count, const void *state,
                         size_t state_bytes);
/* Who can say what a tensor is called (nn/): the name of what lies in `storage`, as "parameter 'head.weight'", into
 * `text`; false when it has none. */
typedef bool (*fsdp__storage_namer)(const fsdp_context *context, const fsdp__storage *storage, char *text,
                                    size_t bytes);
fsdp_status fsdp__set_storage_namer(fsdp_context *context, fsdp__storage_namer namer);
/* Whether fsdp__record would record: lets a forward skip what only a backward needs. */
bool fsdp__will_record(fsdp_tensor *const *inputs, int input_count);

/* ---- in a recomputation: [Note: checkpoints] in checkpoint.c ---- */
/* Whether the operation, the next to be recorded, need not run: its results are kept, or nobody needs them. Then they
 * are in `outputs` (of the scope; NULL where nobody needs them), and all that is left to do is fsdp__record with the
 * inputs that it saves; of what else it saves NULL will do. False outside. */
bool fsdp__recall(const fsdp__op *op, fsdp_tensor *const *inputs, int input_count, fsdp_tensor **outputs,
                  int output_count);
/* A number that comes from elsewhere, as the key of a dropout: replaced by that of the first run. */
fsdp_status fsdp__checkpoint_number(fsdp_context *context, uint64_t *number);
/* Says whether a number is the one that the first run has given here: always, where it is the first. */
fsdp_status fsdp__checkpoint_compare(fsdp_context *context, uint64_t number, bool *same);
/* A tensor that an operation reads and that is no input of it, as running statistics: replaced by a copy of what the
 * first run has read. */
fsdp_status fsdp__checkpoint_value(fsdp_tensor **tensor);
/* The backward has what it needs: operations fail from here on, which is no error. */
bool fsdp__recomputation_done(const fsdp_context *context);

/* ---- inside an op's backward ---- */
fsdp_tensor *fsdp__node_saved(fsdp__node *node, int index); /* borrowed; NULL if saved as NULL */
void *fsdp__node_state(fsdp__node *node);
bool fsdp__node_needs(const fsdp__node *node, int input); /* whether this input's gradient is wanted */
/* The gradient of input `input` (takes its own reference; shape and dtype of the input). Once at most per input; does
 * nothing when the gradient is not wanted. The op must not write to `grad` afterwards. */
fsdp_status fsdp__node_give(fsdp__node *node, int input, fsdp_tensor *grad);
/* A tensor of the input's shape and dtype for the op to write the gradient to, and whether it must add to what is
 * there. For a leaf this is the leaf's gradient itself, so a matrix product accumulates in place and writes straight
 * to where the sharding engine wants the gradient. For another tensor it is what has arrived already from other
 * consumers, when nobody else sees that, or a fresh activation. Contiguous, borrowed. The gradient counts as given when
 * the op's backward returns OK. Only for inputs that fsdp__node_needs. */
fsdp_status fsdp__node_target(fsdp__node *node, int input, fsdp_tensor **out, bool *accumulate);
/* Whether the graph is kept: then an op must leave what it saved as it is. */
bool fsdp__node_keeps(const fsdp__node *node);
/* Whether only the running op sees this output gradient: it is contiguous and may be overwritten, and given on. */
bool fsdp__grad_exclusive(const fsdp_tensor *grad);
/* Whether the gradient is known on the host to be all ones (the root of fsdp_backward). */
bool fsdp__grad_is_one(const fsdp_tensor *grad);

/* ---- leaves ---- */
/* Asked for the tensor (shape, dtype of the leaf; contents undefined) that becomes the leaf's gradient when the first
 * gradient arrives: contiguous. Without a source a fresh tensor of kind gradient is made. `*out`: the leaf takes the
 * reference. A NULL source removes it. */
typedef fsdp_status (*fsdp__grad_source)(void *arg, fsdp_tensor *leaf, fsdp_tensor **out);
fsdp_status fsdp__set_grad_source(fsdp_tensor *leaf, fsdp__grad_source source, void *arg);
/* One of the tensors that lie in a leaf one after the other (FSDP1's flat parameter). Borrowed. */
typedef struct fsdp__leaf_part {
    const char *name;    /* dotted, from where the leaf's own name begins */
    fsdp_tensor *tensor; /* of its shape and distribution */
    int64_t at;          /* its first element in the leaf */
} fsdp__leaf_part;

/* Who keeps something beside a leaf's gradient (the sharding engine) hears of what happens to the leaf: a gradient
 * arrives or is set where there was none, its gradient was set or dropped, its requires_grad was set. The engine's own
 * changes go through the functions below, which tell nobody. A NULL owner removes it. */
typedef struct fsdp__leaf_owner {
    fsdp_status (*grad_made)(void *arg, fsdp_tensor *leaf, fsdp_tensor *grad); /* it is about to become the gradient */
    void (*grad_set)(void *arg, fsdp_tensor *leaf);
    void (*requires_grad_set)(void *arg, bool requires_grad);
    /* Or NULL: the running backward has come through the last use of the leaf, whether that brought a gradient or not.
     * It may fail, and the backward with it. */
    fsdp_status (*grad_complete)(void *arg, fsdp_tensor *leaf);
    /* Or NULL: the leaf is a part of another tensor, which has the gradient, and which optimizers are given. */
    bool (*is_part)(const void *arg, const fsdp_tensor *leaf);
    /* Or NULL: the parts of it. False behind the last one. */
    bool (*part)(const void *arg, int64_t index, fsdp__leaf_part *out);
} fsdp__leaf_owner;
fsdp_status fsdp__set_leaf_owner(fsdp_tensor *leaf, const fsdp__leaf_owner *owner, void *arg);
bool fsdp__leaf_is_part(const fsdp_tensor *leaf);
bool fsdp__leaf_part_at(const fsdp_tensor *leaf, int64_t index, fsdp__leaf_part *out);
/* How many uses of the leaf the running backwards have yet to come through, known from their begin on; of a leaf whose
 * owner asks for grad_complete. */
int64_t fsdp__leaf_uses(const fsdp_tensor *leaf);
void *fsdp__leaf_owner_arg(const fsdp_tensor *leaf, const fsdp__leaf_owner *owner); /* NULL when it is not the owner */
/* Replaces the gradient (takes a reference; NULL drops it). Of a leaf without autograd state: nothing. */
void fsdp__put_grad(fsdp_tensor *leaf, fsdp_tensor *grad);
/* Of a leaf that has autograd state. */
void fsdp__mirror_requires_grad(fsdp_tensor *leaf, bool requires_grad);
/* A gradient arrives: hooks see it, then it is added or becomes the gradient. Give away the only reference to have it
 * adopted without a copy. In a scope. */
fsdp_status fsdp__leaf_accumulate(fsdp_tensor *leaf, fsdp_tensor *grad);
bool fsdp__has_grad_hooks(const fsdp_tensor *leaf);
/* fsdp_tensor_add_grad_hook that owns `arg` from its success on: `free_arg` runs when the tensor or its graph goes.
 * Runs with a NULL `*grad`, too, where a backward passes the tensor and no gradient has come. */
fsdp_status fsdp__add_grad_hook(fsdp_tensor *tensor, fsdp_grad_hook hook, void *arg, void (*free_arg)(void *arg));
/* Whether it has such a hook. */
bool fsdp__has_lasting_hooks(const fsdp_tensor *tensor);
/* How much has been recorded, and whether what made the tensor was recorded since then. */
uint64_t fsdp__recorded(const fsdp_context *context);
bool fsdp__recorded_since(const fsdp_tensor *tensor, uint64_t recorded);
/* For an operation that makes a leaf's gradient before the backward runs (fused head and loss): the tensor that would
 * become the gradient if there is none yet (from the source, not yet the leaf's grad), else a temporary of the leaf's
 * shape. Pass it to fsdp__node_give later: it becomes the gradient without a copy if it was not a temporary. One
 * reservation per leaf at a time: a second gives a temporary. Keep the tensor itself (not an alias: keep it in `state`)
 * until then. The caller owns `*out`. */
fsdp_status fsdp__reserve_grad(fsdp_tensor *leaf, fsdp_tensor **out);
/* Whether such a tensor, of the source, is out. */
bool fsdp__grad_is_reserved(const fsdp_tensor *leaf);

/* ---- boundaries ---- */
typedef struct fsdp__crossing {
    fsdp_status (*callback)(void *arg); /* or NULL */
    void (*reached)(void *arg);         /* or NULL: told at the beginning of each backward that will call back */
    void *arg;
    void (*free_arg)(void *arg);
    /* Or NULL: after the callback, where a gradient has come. It is shown the gradients of those that required one, in
     * their order, some of which may be NULL, and may replace those that are not. */
    fsdp_status (*gradients)(void *arg, fsdp_tensor **gradients, int count);
} fsdp__crossing;
/* Replaces those of `tensors` that require a gradient by identities of them (from the scope), recorded as one node:
 * in the backward the callback runs when the gradients of all of them are known, before they are passed on, also when
 * there are none. Does nothing (and never calls) when none requires a gradient or nothing is recorded; `*recorded`
 * tells. What was recorded owns `arg`: `free_arg` (or NULL) runs when the graph goes. */
fsdp_status fsdp__boundary(fsdp_tensor **tensors, int count, const fsdp__crossing *crossing, bool *recorded);

/* What a backward passes, in the order of the program backwards, whenever it comes from `*tensor`, without a gradient
 * if none came: nodes whose outputs go to nobody else, perhaps. `*tensor` is replaced by an identity of it (from the
 * scope).
 */
fsdp_status fsdp__anchor(fsdp_tensor **tensor, fsdp__node *const *nodes, int count);
/* `*tensor`, which requires no gradient, is replaced by an identity of it (from the scope) that does. A backward comes
 * to it, and goes no further. Nothing where nothing is recorded, or the dtype has no gradients. */
fsdp_status fsdp__require_gradient(fsdp_tensor **tensor);
fsdp__node *fsdp__producer(const fsdp_tensor *tensor); /* a reference for the caller; NULL of a leaf */
void fsdp__node_unref(fsdp__node *node);               /* frees long chains without recursion */

bool fsdp__in_backward(const fsdp_context *context);
/* How many backwards have begun, those inside others included. */
uint64_t fsdp__backwards(const fsdp_context *context);

#endif
