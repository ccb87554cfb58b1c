/* fsdp/autograd.h - automatic differentiation with a tape.
 *
 * Operations on tensors that require a gradient record a node. fsdp_backward runs each node once all gradients of its
 * outputs are known, in reverse order of creation, frees what the node has saved as soon as it has run, and adds the
 * results to the gradients of the leaves. The program determines the order of all additions, so a backward gives the
 * same bits on every run.
 *
 * Tensors that a backward needs are saved by reference, not copied. If one was written to in the meantime (by any
 * function of fsdp/tensor.h, an optimizer or a load, also between fsdp_no_grad_begin and _end, and through a view), the
 * backward fails with FSDP_STATE before it runs that operation's backward. The error names the operation, which input
 * or output the tensor is, its name in a module, and both versions, which count writes. Run the backward first, or give
 * the operation a copy. Tensors that no backward reads may be written to: the inputs of a sum, or an operand of a
 * product whose other operand requires no gradient. A gradient that is used in a forward is written to whenever another
 * gradient is added to it. Sharded parameters are gathered again instead (fsdp/shard.h); replicated ones behave like
 * plain ones. If only one rank has written, only that rank gets the error; as after any failure of a single rank, it
 * must end the others by fsdp_abort.
 */
#ifndef FSDP_AUTOGRAD_H
#define FSDP_AUTOGRAD_H

#include "fsdp/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets whether the tensor, which must be a leaf (not made by a recorded operation), requires a gradient. Only floating
 * tensors can. */
FSDP_API fsdp_status fsdp_tensor_set_requires_grad(fsdp_tensor *tensor, bool requires_grad);
FSDP_API bool fsdp_tensor_requires_grad(const fsdp_tensor *tensor);
FSDP_API bool fsdp_tensor_is_leaf(const fsdp_tensor *tensor);

/* Returns the gradient, borrowed; NULL if none has arrived. */
FSDP_API fsdp_tensor *fsdp_tensor_grad(const fsdp_tensor *tensor);
/* Replaces the gradient of a leaf (same shape, dtype and device; takes a reference). NULL drops it. */
FSDP_API fsdp_status fsdp_tensor_set_grad(fsdp_tensor *tensor, fsdp_tensor *grad);

/* Computes the gradient of a one-element tensor and adds it to that of every leaf that it was computed from. The graph
 * is freed, also on failure; gradients that arrived before the failure remain. */
FSDP_API fsdp_status fsdp_backward(fsdp_tensor *loss);
/* Does the same from several roots at once, with their output gradients (a NULL entry or array means ones, for
 * one-element roots only). With `keep_graph` the graph can be used again. */
FSDP_API fsdp_status fsdp_backward_from(fsdp_tensor *const *roots, fsdp_tensor *const *gradients, int count,
                                        bool keep_graph);

/* Turn recording off between the two calls. They nest. An end without a begin does nothing. */
FSDP_API void fsdp_no_grad_begin(fsdp_context *context);
FSDP_API void fsdp_no_grad_end(fsdp_context *context);
/* Turn recording on again between the two calls, also inside no_grad. They nest with each other and with no_grad in any
 * order: each end undoes its own begin. */
FSDP_API fsdp_status fsdp_enable_grad_begin(fsdp_context *context);
FSDP_API void fsdp_enable_grad_end(fsdp_context *context);
FSDP_API bool fsdp_grad_enabled(const fsdp_context *context);

/* Returns a tensor with the same bytes but no history: a write to either is a write to both. It belongs to the
 * scope. */
FSDP_API fsdp_tensor *fsdp_detach(fsdp_tensor *tensor);

/* The hook is called in a backward when the whole gradient of `tensor` is known, before the backward of the operation
 * that made it; for a leaf, with each gradient that arrives, before it is added. It may replace `*grad` by a tensor of
 * the same shape, dtype and device (of the scope, or kept alive elsewhere). `tensor` is NULL if the tensor itself has
 * been freed. Hooks run in the order in which they were added and live as long as the tensor or its graph. A failure
 * ends the backward. */
typedef fsdp_status (*fsdp_grad_hook)(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad);
FSDP_API fsdp_status fsdp_tensor_add_grad_hook(fsdp_tensor *tensor, fsdp_grad_hook hook, void *arg);

/* Queues a function from inside a backward. It is called once, in the order queued, when this backward has run all its
 * nodes (also when it failed, with its status). FSDP_STATE: outside a backward. */
typedef fsdp_status (*fsdp_backward_callback)(void *arg, fsdp_status walked);
FSDP_API fsdp_status fsdp_backward_queue_callback(fsdp_context *context, fsdp_backward_callback callback, void *arg);

/* ---- recomputation (activation checkpointing): less memory for more computation ----
 *
 * fsdp_recompute calls `function`, which must do the same whenever it is called, and keeps only `inputs` and the
 * output. What else the backward needs is recomputed when the backward reaches it (torch.utils.checkpoint with
 * use_reentrant=False). The graph is that of a plain call, so losses and gradients are the same bits, hooks run once,
 * and dropout repeats its draws. The second run ends as soon as the backward has what it needs: an operation then
 * returns NULL as if it had failed. During it fsdp_recomputing is true, for functions that count their calls or print.
 *
 * A call inside another becomes part of it; if nothing is recorded, it is a plain call. Recomputed values are kept as
 * long as the graph, also if the graph is retained for a second backward. The backward fails if an input, or another
 * tensor that an operation of the function reads, was written to since the forward (of a sharded parameter: its shard),
 * or if the second run differs from the first (in operations, shapes, or which tensors made outside it reads). A
 * backward inside `function` is refused.
 *
 * Both runs may write to tensors that outlive them (a scratch buffer, running statistics, a counter), but not to an
 * input. Such writes are allowed if each run reads from the tensor only what it has itself written, from the same
 * values, to the whole tensor at once (by fsdp_tensor_fill_, fsdp_tensor_copy_, fsdp_tensor_write, or as a tensor that
 * a kernel only writes). So several functions may share a buffer. Otherwise (a run adds to the tensor, fills it in
 * parts, reads it before writing, or writes to it again after an operation has saved it) an operation that reads the
 * tensor, or anything computed from it, is an error of the backward if its own gradient is needed. A write from outside
 * between the forward and the backward is an error, too, even if the second run overwrites it. With a retained graph,
 * recomputed values of one function may be in memory that the second run of another has since written to: this is also
 * an error. Values that the function reads to the host are not compared, only those that it writes from there; the
 * `arg` of a kernel is not compared either. */
typedef enum fsdp_recompute_mode {
    FSDP_RECOMPUTE_NONE,
    FSDP_RECOMPUTE_FULL,      /* everything is recomputed */
    FSDP_RECOMPUTE_SELECTIVE, /* everything but attention and every second matrix product, beginning with the first */
    FSDP_RECOMPUTE_CHEAP      /* everything but attention and matrix products (and convolutions) */
} fsdp_recompute_mode;
typedef fsdp_tensor *(*fsdp_recompute_function)(void *arg, fsdp_tensor *const *inputs, int count);
typedef struct fsdp_recompute_options {
    fsdp_recompute_mode mode;
    void (*free_arg)(void *arg); /* called once, after the last run, also on failure. May be NULL */
} fsdp_recompute_options;
/* Calls the function. `options` NULL: FULL. Returns NULL if an input is NULL. The output belongs to the scope. */
FSDP_API fsdp_tensor *fsdp_recompute(fsdp_context *context, fsdp_recompute_function function, void *arg,
                                     fsdp_tensor *const *inputs, int count, const fsdp_recompute_options *options);
/* Does the same for a function with several outputs. It gets room for `output_count` of them, preset to NULL, and may
 * leave some NULL. On a failure all are NULL. A backward may come from any of them. */
typedef fsdp_status (*fsdp_recompute_function_many)(void *arg, fsdp_tensor *const *inputs, int count,
                                                    fsdp_tensor **outputs, int output_count);
FSDP_API fsdp_status fsdp_recompute_many(fsdp_context *context, fsdp_recompute_function_many function, void *arg,
                                         fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs, int output_count,
                                         const fsdp_recompute_options *options);
FSDP_API bool fsdp_recomputing(const fsdp_context *context);

/* Compares the gradient of sum(weights * function(inputs)), with fixed pseudo-random weights, to central differences of
 * step `eps`, element by element: |a - n| <= atol + rtol |n|. Returns FSDP_OK if all agree, otherwise FSDP_MISMATCH
 * naming the worst input and element. Inputs are f32 leaves that require a gradient. */
typedef fsdp_tensor *(*fsdp_gradcheck_function)(void *arg, fsdp_tensor *const *inputs, int count);
FSDP_API fsdp_status fsdp_gradcheck(fsdp_gradcheck_function function, void *arg, fsdp_tensor *const *inputs, int count,
                                    double eps, double atol, double rtol);

/* ======== for experts: most programs need nothing below ========
 *
 * ---- custom operations ----
 *
 * A differentiable operation is a function that computes its outputs, by other operations under fsdp_no_grad_begin or
 * by its own kernel (fsdp_launch_kernel), and then records itself:
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
 * It works wherever the operations of fsdp/ops.h do: in recomputed functions, which run it again; in sharded modules,
 * whose parameters may be inputs and may be saved although they are freed and gathered again; on the meta device. */
typedef struct fsdp__node fsdp_node; /* a recorded operation, inside its backward */

typedef struct fsdp_operation {
    const char *name; /* used in messages */
    /* Computes gradients of the inputs. `grads[i]` is the gradient of output i, with its shape and dtype and any
     * strides; it must not be written to, and is NULL if none has arrived (at least one has). Pass the results to
     * fsdp_node_give or write them to fsdp_node_target; an input for which it does neither gets no gradient from here.
     * It runs in its own scope, and nothing is recorded. */
    fsdp_status (*backward)(fsdp_node *node, fsdp_tensor *const *grads);
    void (*free_state)(void *state); /* releases what `state` points to, not `state` itself; may be NULL */
} fsdp_operation;

/* Records an operation, which must outlive the graph, if recording is on and an input requires a gradient; otherwise
 * does nothing and returns FSDP_OK. `outputs` are new floating tensors, which require a gradient afterwards (leave out
 * integer results, which have none). `inputs` and `saved` may contain NULLs, which keep their index. The tensors in
 * `saved` (inputs, outputs or others) are kept until the backward has run and must not be written to until then: save
 * only what it needs. A tensor made only to be saved should be made only if fsdp_will_record. `state_bytes` of `state`
 * are copied. What it points to is taken over if the operation was recorded, that is, if fsdp_will_record was true and
 * this returns FSDP_OK; in the second run of a recomputed function it is freed at once. */
FSDP_API fsdp_status fsdp_record(const fsdp_operation *operation, fsdp_tensor *const *inputs, int input_count,
                                 fsdp_tensor *const *outputs, int output_count, fsdp_tensor *const *saved,
                                 int saved_count, const void *state, size_t state_bytes);
FSDP_API bool fsdp_will_record(fsdp_tensor *const *inputs, int input_count);

/* Return what the node has saved, inside its backward. Borrowed; NULL if it was saved as NULL, and, with an error
 * (FSDP_STATE), once the node has run. */
FSDP_API fsdp_tensor *fsdp_node_saved(fsdp_node *node, int index);
FSDP_API void *fsdp_node_state(fsdp_node *node);
/* Returns whether the gradient of this input is needed. */
FSDP_API bool fsdp_node_needs(const fsdp_node *node, int input);
/* Gives the gradient of an input, with the input's shape, dtype and device, at most once for each input. It takes its
 * own reference; do not write to `grad` afterwards. If the gradient is not needed, nothing happens. If `grad` is NULL,
 * the last error is returned. */
FSDP_API fsdp_status fsdp_node_give(fsdp_node *node, int input, fsdp_tensor *grad);
/* Returns, instead of the above, the tensor into which to write the gradient or, with `*accumulate`, to which to add
 * it. It is contiguous and borrowed; for a parameter it is the parameter's own gradient, so that nothing is copied. The
 * gradient counts as given if the backward returns FSDP_OK. FSDP_STATE: the gradient is not needed. */
FSDP_API fsdp_status fsdp_node_target(fsdp_node *node, int input, fsdp_tensor **out, bool *accumulate);

#ifdef __cplusplus
}
#endif
#endif
