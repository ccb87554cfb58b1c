/* fsdp/autograd.h - gradients by a tape.
 *
 * Operations on tensors that require a gradient record a node; fsdp_backward walks the nodes in reverse order of their
 * creation once all gradients of their outputs are known, frees what each node saved as soon as it has run, and adds
 * the result to the gradient of the leaves. The order of all additions is that of the program, so a backward gives the
 * same bits on every run.
 *
 * What a backward needs of the forward is saved where it lies, not copied. A tensor that was written to since, by any
 * of the ways of fsdp/tensor.h, by an optimizer or a load, also between fsdp_no_grad_begin and _end and by a view, is
 * an error of the backward (FSDP_STATE) before its operation is undone. It names the operation, which input or output
 * it is and its name in a module, and both versions, which count writes. Run the backward first, or give the operation
 * a copy. What no backward reads may be written to: the inputs of a sum, an operand of a product whose other one
 * requires no gradient. A gradient that is used in a forward is written to by each gradient that is added to it.
 * Parameters that are sharded are gathered anew instead (fsdp/shard.h); replicated ones are as plain ones. Where one
 * rank alone has written the error is that rank's alone: as after any failure of one rank, it ends the others by
 * fsdp_abort.
 */
#ifndef FSDP_AUTOGRAD_H
#define FSDP_AUTOGRAD_H

#include "fsdp/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Only floating tensors can require a gradient. Setting is for leaves (tensors no recorded operation made). */
FSDP_API fsdp_status fsdp_tensor_set_requires_grad(fsdp_tensor *tensor, bool requires_grad);
FSDP_API bool fsdp_tensor_requires_grad(const fsdp_tensor *tensor);
FSDP_API bool fsdp_tensor_is_leaf(const fsdp_tensor *tensor);

/* Borrowed; NULL when no gradient has arrived. */
FSDP_API fsdp_tensor *fsdp_tensor_grad(const fsdp_tensor *tensor);
/* Replaces the gradient of a leaf (same shape, dtype and device; takes a reference). NULL drops it. */
FSDP_API fsdp_status fsdp_tensor_set_grad(fsdp_tensor *tensor, fsdp_tensor *grad);

/* Adds the gradient of a one-element tensor to that of every leaf it was made from. The graph is freed, also when it
 * fails; gradients that arrived before the failure stay. */
FSDP_API fsdp_status fsdp_backward(fsdp_tensor *loss);
/* As above from several roots at once with their output gradients (NULL entry or array: ones, one-element roots only).
 * With `keep_graph` it can be walked again. */
FSDP_API fsdp_status fsdp_backward_from(fsdp_tensor *const *roots, fsdp_tensor *const *gradients, int count,
                                        bool keep_graph);

/* Between the two, nothing is recorded. Nests. */
FSDP_API void fsdp_no_grad_begin(fsdp_context *context);
FSDP_API void fsdp_no_grad_end(fsdp_context *context);
/* Between the two, it is again, inside no_grad too. Nests, with no_grad in any order: each end undoes the begin that it
 * belongs to. */
FSDP_API fsdp_status fsdp_enable_grad_begin(fsdp_context *context);
FSDP_API void fsdp_enable_grad_end(fsdp_context *context);
FSDP_API bool fsdp_grad_enabled(const fsdp_context *context);

/* Same bytes, no history: a write to either is one to both. Belongs to the scope. */
FSDP_API fsdp_tensor *fsdp_detach(fsdp_tensor *tensor);

/* Called in a backward when the whole gradient of `tensor` is known, before the operation that made it is undone; on a
 * leaf, with each gradient that arrives, before it is added. It may replace `*grad` with a tensor of the same shape and
 * dtype (of the scope, or kept alive elsewhere). `tensor` is NULL when the tensor itself is gone already. Hooks run in
 * the order added and live as long as the tensor or its graph. A failure ends the backward. */
typedef fsdp_status (*fsdp_grad_hook)(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad);
FSDP_API fsdp_status fsdp_tensor_add_grad_hook(fsdp_tensor *tensor, fsdp_grad_hook hook, void *arg);

/* From inside a backward: called once when this backward has finished walking (also when it failed, with its status),
 * in the order queued. FSDP_STATE outside a backward. */
typedef fsdp_status (*fsdp_backward_callback)(void *arg, fsdp_status walked);
FSDP_API fsdp_status fsdp_backward_queue_callback(fsdp_context *context, fsdp_backward_callback callback, void *arg);

/* ---- operations of one's own ----
 *
 * A differentiable operation is a function that makes its outputs, by other operations under fsdp_no_grad_begin or by a
 * kernel of its own (fsdp_launch_kernel), and then records itself:
 *
 *     static fsdp_status cube_backward(fsdp_node *node, fsdp_tensor *const *grads)
 *     {
 *         fsdp_tensor *x = fsdp_node_saved(node, 0);
 *
 *         return fsdp_node_give(node, 0, fsdp_scale(fsdp_mul(grads[0], fsdp_mul(x, x)), 3));
 *     }
 *     static const fsdp_operation cube_operation = {.name = "cube", .backward = cube_backward};
 *
 *     fsdp_tensor *cube(fsdp_context *context, fsdp_tensor *x)
 *     {
 *         fsdp_tensor *y;
 *
 *         fsdp_no_grad_begin(context);
 *         y = fsdp_mul(x, fsdp_mul(x, x));
 *         fsdp_no_grad_end(context);
 *         return y && fsdp_record(&cube_operation, &x, 1, &y, 1, &x, 1, NULL, 0) == FSDP_OK ? y : NULL;
 *     }
 *
 * It works wherever those of fsdp/ops.h do: in checkpoints, which run it again; in sharded modules, whose parameters
 * may be inputs and saved although they come and go; on the meta device. */
typedef struct fsdp__node fsdp_node; /* a recorded operation, inside its backward */

typedef struct fsdp_operation {
    const char *name; /* in messages */
    /* `grads[i]` is the gradient of output i, with its shape and dtype and any strides, not to be written to; NULL when
     * none has arrived (of at least one it has). Gives gradients of the inputs by fsdp_node_give or by writing to
     * fsdp_node_target; an input that it gives nothing for has none from here. Runs in a scope of its own, nothing
     * recorded. */
    fsdp_status (*backward)(fsdp_node *node, fsdp_tensor *const *grads);
    void (*free_state)(void *state); /* releases what `state` points to, not itself. Or NULL */
    /* The library's own: leave them out. */
    bool always;
    void (*reached)(fsdp_node *node);
    int dear, aside;
    bool last_leaf_first;
} fsdp_operation;

/* Records an operation, which must outlive the graph, where recording is on and an input requires a gradient; else does
 * nothing and returns FSDP_OK. `outputs` are fresh floating tensors (of integer results there is no gradient: leave
 * them out), and require a gradient afterwards. `inputs` and `saved` may hold NULL, which keeps its index. `saved`, of
 * inputs, outputs or others, are kept until the backward has run, and must not be written to until then: save what it
 * needs and no more, by fsdp_will_record only if there is one. `state_bytes` of `state` are copied. What it points to
 * is taken over when the operation was recorded, that is when fsdp_will_record and this returns FSDP_OK; while a
 * checkpoint is recomputed it is freed at once. */
FSDP_API fsdp_status fsdp_record(const fsdp_operation *operation, fsdp_tensor *const *inputs, int input_count,
                                 fsdp_tensor *const *outputs, int output_count, fsdp_tensor *const *saved,
                                 int saved_count, const void *state, size_t state_bytes);
FSDP_API bool fsdp_will_record(fsdp_tensor *const *inputs, int input_count);

/* Inside the backward. Borrowed; NULL if saved as NULL, and with an error (FSDP_STATE) once the node has run. */
FSDP_API fsdp_tensor *fsdp_node_saved(fsdp_node *node, int index);
FSDP_API void *fsdp_node_state(fsdp_node *node);
/* Whether the gradient of this input is wanted. */
FSDP_API bool fsdp_node_needs(const fsdp_node *node, int input);
/* The gradient of an input: shape, dtype and device of the input. Once at most for each. Takes its own reference; do
 * not write to `grad` afterwards. Nothing happens where it is not wanted. A NULL `grad` is the last error. */
FSDP_API fsdp_status fsdp_node_give(fsdp_node *node, int input, fsdp_tensor *grad);
/* Instead of the above: where the gradient is to be written, or, with `*accumulate`, added to what is there.
 * Contiguous, borrowed; of a parameter its own gradient, so nothing is copied. It counts as given when the backward
 * returns FSDP_OK. FSDP_STATE where it is not wanted. */
FSDP_API fsdp_status fsdp_node_target(fsdp_node *node, int input, fsdp_tensor **out, bool *accumulate);

/* ---- checkpoints: less memory for more computing ----
 *
 * Calls `function`, which must do the same whenever it is called, and keeps of it only `inputs` and the output: what
 * the backward needs of the rest is computed again when the backward comes there (torch.utils.checkpoint, use_reentrant
 * False). The graph is that of a plain call, so losses and gradients are the same to the bit, hooks run once, and
 * dropout draws what it drew. The second run ends as soon as the backward has what it needs: an operation then returns
 * NULL as if it had failed. In it fsdp_recomputing is true: for a function that counts its calls, or prints.
 *
 * A checkpoint in another is a part of that; where nothing is recorded it is a plain call. Values that were computed
 * again stay as long as the graph, of a graph that is kept for a second backward too. Errors of the backward: an input,
 * or what an operation of the function reads beside them, was written to since the forward; the function took another
 * way (operations, shapes). A backward inside `function` is refused.
 *
 * Both runs may write to tensors that outlive them (a scratch buffer, running statistics, a counter), but not to an
 * input. Such writes are not errors, as long as what each run reads there it has written itself, from the same values:
 * all of a tensor at once, by fsdp_tensor_fill_, fsdp_tensor_copy_, fsdp_tensor_write or as one that a kernel only
 * writes. So several checkpoints may share a buffer. Else an operation that reads such a tensor, or what was computed
 * from it, is an error of the backward if its own gradient is needed: of a tensor that a run adds to, fills in parts,
 * reads before it writes, or writes to once more after an operation has saved it. A write by anybody else between the
 * forward and the backward is an error, too, even where the second run replaces it. Of a kept graph, what came back of
 * one checkpoint may lie where the second run of another has written since: also an error. What the function reads to
 * the host is not compared, only what it writes from there; nor is the `arg` of a kernel. */
typedef enum fsdp_checkpoint_mode {
    FSDP_CHECKPOINT_NONE,
    FSDP_CHECKPOINT_FULL,     /* everything is computed again */
    FSDP_CHECKPOINT_SELECTIVE /* but attention and every second matrix product, the first one included */
} fsdp_checkpoint_mode;
typedef fsdp_tensor *(*fsdp_checkpoint_function)(void *arg, fsdp_tensor *const *inputs, int count);
typedef struct fsdp_checkpoint_options {
    fsdp_checkpoint_mode mode;
    void (*free_arg)(void *arg); /* when `arg` is needed no more: once, after the last run; also on failure. Or NULL */
} fsdp_checkpoint_options;
/* NULL options: FULL. NULL if an input is NULL. The output belongs to the scope. */
FSDP_API fsdp_tensor *fsdp_checkpoint(fsdp_context *context, fsdp_checkpoint_function function, void *arg,
                                      fsdp_tensor *const *inputs, int count, const fsdp_checkpoint_options *options);
/* The same of a function with several outputs, which gets room for `output_count` of them, NULL at first, and may leave
 * some NULL. On a failure all of them are NULL. A backward may come from any of them. */
typedef fsdp_status (*fsdp_checkpoint_function_many)(void *arg, fsdp_tensor *const *inputs, int count,
                                                     fsdp_tensor **outputs, int output_count);
FSDP_API fsdp_status fsdp_checkpoint_many(fsdp_context *context, fsdp_checkpoint_function_many function, void *arg,
                                          fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                                          int output_count, const fsdp_checkpoint_options *options);
FSDP_API bool fsdp_recomputing(const fsdp_context *context);

/* Compares the gradient of sum(weights * function(inputs)) (fixed pseudo-random weights) with central differences of
 * step `eps`, element by element: |a - n| <= atol + rtol |n|. FSDP_OK when all agree; FSDP_MISMATCH naming the worst
 * input and element otherwise. Inputs: f32 leaves that require a gradient. */
typedef fsdp_tensor *(*fsdp_gradcheck_function)(void *arg, fsdp_tensor *const *inputs, int count);
FSDP_API fsdp_status fsdp_gradcheck(fsdp_gradcheck_function function, void *arg, fsdp_tensor *const *inputs, int count,
                                    double eps, double atol, double rtol);

#ifdef __cplusplus
}
#endif
#endif
