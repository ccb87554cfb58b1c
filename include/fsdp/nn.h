/* fsdp/nn.h - modules: a tree of named parts with parameters, which are called like functions.
 *
 * To write your own module, embed fsdp_module as its first member and define one fsdp_module_type:
 *
 *     typedef struct { fsdp_module base; fsdp_module *up, *down; } mlp;
 *
 *     static fsdp_tensor *mlp_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
 *     {
 *         mlp *m = (mlp *)self;
 *         return fsdp_call(m->down, fsdp_gelu(fsdp_call(m->up, inputs[0])));
 *     }
 *     static const fsdp_module_type mlp_type = { .name = "MLP", .forward = mlp_forward };
 *
 * Parameters live in fields of the module's struct (`fsdp_tensor *weight`), which are registered by address, each once:
 * sharding a module changes what the fields point to, and its forward needs no change.
 *
 * Modules are reference counted; a parent owns a reference to each child, which is of the same context. A call, or a
 * walk, holds the module until it returns. A model may be built on the meta device
 * (shapes only) and given memory later by fsdp_module_materialize.
 */
#ifndef FSDP_NN_H
#define FSDP_NN_H

#include "fsdp/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_module fsdp_module;

/* Computes a module's output from `count` inputs, none of them NULL. */
typedef fsdp_tensor *(*fsdp_module_function)(fsdp_module *self, fsdp_tensor *const *inputs, int count);

/* Does the same with several outputs and with an argument that is not a tensor (or NULL). `outputs` contains NULLs at
 * the call; the function fills it, and may leave some NULL (PyTorch's None). An output may be an input, and one tensor
 * may be several outputs. The function need not look for NULLs that come from a failed operation: the call fails with
 * the operation's message, unless that was cleared. */
typedef fsdp_status (*fsdp_module_function_many)(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count,
                                                 fsdp_tensor **outputs, int output_count);

typedef struct fsdp_module_type {
    const char *name; /* "Linear" */
    /* Runs in its own scope; the result moves to the caller's scope. NULL, with forward_many also NULL, for containers
     * that cannot be called (ModuleList, ModuleDict). */
    fsdp_module_function forward;
    /* Writes what the printed tree shows in parentheses, e.g. "in_features=3, out_features=4, bias=True". May be
     * NULL. */
    void (*describe)(const fsdp_module *self, char *text, size_t text_bytes);
    /* Frees what the module's struct holds besides parameters, buffers and children. May be NULL. */
    void (*destroy)(fsdp_module *self);
    bool without_inputs; /* the forward may be called without inputs; false: it gets at least one */
    /* Run by fsdp_module_call_many, and, if `forward` is NULL, by fsdp_module_call with a NULL `arg` and one output.
     * May be NULL. */
    fsdp_module_function_many forward_many;
    /* Returns the address of the module's count of random draws, each of which differs (fsdp_module_draws). May be
     * NULL. */
    uint64_t *(*draws)(fsdp_module *self);
} fsdp_module_type;

struct fsdp_module {
    const fsdp_module_type *type;
    fsdp_context *context;
    bool training;                    /* set by fsdp_module_train */
    struct fsdp__module_parts *parts; /* names, parameters, children, hooks */
};

/* ---- building ---- */

/* Says how a parameter gets its initial values: element i of the whole parameter is a function of (seed, full name,
 * i). */
typedef enum fsdp_init_kind {
    FSDP_INIT_ZEROS,
    FSDP_INIT_ONES,
    FSDP_INIT_NORMAL,
    FSDP_INIT_UNIFORM
} fsdp_init_kind;
typedef struct fsdp_init {
    fsdp_init_kind kind;
    float a, b; /* normal: mean, deviation; uniform: [a, b) */
} fsdp_init;

/* Allocates a module of `bytes` (at least sizeof(fsdp_module)), zeroed, with one reference and in training mode. */
FSDP_API fsdp_status fsdp_module_create(fsdp_context *context, const fsdp_module_type *type, size_t bytes,
                                        void *out_module);
FSDP_API fsdp_module *fsdp_module_ref(fsdp_module *module);
FSDP_API void fsdp_module_unref(fsdp_module *module); /* NULL is allowed */

/* Sets *slot to a new leaf tensor on `device` that requires a gradient. Unless `device` is meta, it is filled from
 * `init` with seed 0 and its local name; fsdp_module_initialize fills it again by its full name. `name` is copied; it
 * must not contain dots. */
FSDP_API fsdp_status fsdp_module_add_parameter(fsdp_module *module, const char *name, fsdp_tensor **slot,
                                               fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                               fsdp_init init);
/* Sets *slot to `parameter`, a parameter registered elsewhere in the tree, and gives it a second name (tied
 * weights). */
FSDP_API fsdp_status fsdp_module_tie_parameter(fsdp_module *module, const char *name, fsdp_tensor **slot,
                                               fsdp_tensor *parameter);
/* Registers a tensor that is part of the module but not trained. The caller sets *slot first; the module takes over the
 * reference, also on failure. */
FSDP_API fsdp_status fsdp_module_add_buffer(fsdp_module *module, const char *name, fsdp_tensor **slot, bool persistent);
/* Adds a child, neither the module itself nor one that holds it, and takes over the caller's reference to it, also on
 * failure. A NULL child returns the last error, so that constructors can be nested. */
FSDP_API fsdp_status fsdp_module_add_child(fsdp_module *module, const char *name, fsdp_module *child);

/* ---- lookup ---- */

typedef struct fsdp_parameter {
    const char *name; /* dotted, relative to the module given: "layers.0.mlp.up.weight" */
    fsdp_tensor *tensor;
} fsdp_parameter;

typedef struct fsdp_parameters {
    int64_t count;
    fsdp_parameter *items;
} fsdp_parameters;

/* Lists every parameter of the subtree once, in registration order, parents before children, tied ones under their
 * first name. `out` holds references. A sharded parameter appears as its local shard (fsdp/dist.h tells the global
 * shape), the parameters of a flat parameter as that one, named "_flat_param" in its module. */
FSDP_API fsdp_status fsdp_module_parameters(fsdp_module *module, fsdp_parameters *out);
FSDP_API void fsdp_parameters_release(fsdp_parameters *parameters);

/* Lists every buffer of the subtree, persistent or not, in the same way. Release with fsdp_parameters_release. */
FSDP_API fsdp_status fsdp_module_buffers(fsdp_module *module, fsdp_parameters *out);

/* Visit the module and all modules below it, each once, under its dotted name ("" for the module itself), parents first
 * (walk: PyTorch's named_modules) or children first (apply: PyTorch's apply). A visit that fails ends it, and its
 * status is returned. */
typedef fsdp_status (*fsdp_module_visit)(void *arg, fsdp_module *module, const char *name);
FSDP_API fsdp_status fsdp_module_walk(fsdp_module *module, fsdp_module_visit visit, void *arg);
FSDP_API fsdp_status fsdp_module_apply(fsdp_module *module, fsdp_module_visit visit, void *arg);

typedef struct fsdp_named_module {
    const char *name;    /* dotted, relative to the module given */
    fsdp_module *module; /* holds a reference */
} fsdp_named_module;
typedef struct fsdp_named_modules {
    int64_t count;
    fsdp_named_module *items;
} fsdp_named_modules;
/* Lists the modules of the subtree whose type is named `type` ("Linear"), or all if `type` is NULL, parents first. */
FSDP_API fsdp_status fsdp_module_modules(fsdp_module *module, const char *type, fsdp_named_modules *out);
FSDP_API void fsdp_named_modules_release(fsdp_named_modules *modules);

/* Return a borrowed child or parameter; NULL, with a last error, if there is none of that name. */
FSDP_API fsdp_module *fsdp_module_child(fsdp_module *module, const char *dotted_name);
FSDP_API fsdp_tensor *fsdp_module_parameter(fsdp_module *module, const char *dotted_name);
FSDP_API int64_t fsdp_module_child_count(const fsdp_module *module);
FSDP_API fsdp_module *fsdp_module_child_at(const fsdp_module *module, int64_t index, const char **name);

/* Prints the tree as PyTorch does:
 *     MLP(
 *       (up): Linear(in_features=3, out_features=4, bias=True)
 *       ...
 *     )
 * A sharded or replicated module is preceded by a note in brackets that says how: see fsdp/shard_map.h. */
FSDP_API fsdp_status fsdp_module_print(fsdp_module *module, FILE *stream);

/* ---- running ---- */

/* Runs the hooks and the forward in a new scope. Returns NULL if an input is NULL or anything failed. The message then
 * begins with the dotted name of the innermost module that failed, relative to the outermost module called, and its
 * type: "block2.0 (Linear): input (8, 5) does not fit weight (4, 6)". For the outermost module, or one that is not
 * below it, the message begins with the type alone. `inputs` may be NULL if `count` is 0. */
FSDP_API fsdp_tensor *fsdp_module_call(fsdp_module *module, fsdp_tensor *const *inputs, int count);
/* Runs `method` in place of the forward, with any number of inputs, for other computations with the module's parameters
 * (an encoder or a classifier by itself, the next token only). If the module is sharded, this counts as a forward on
 * every rank: it is FSDP2's register_fsdp_forward_method without the registration. */
FSDP_API fsdp_tensor *fsdp_module_call_method(fsdp_module *module, fsdp_module_function method,
                                              fsdp_tensor *const *inputs, int count);
/* Do the same with several outputs and an argument: see fsdp_module_function_many. `outputs` has room for output_count
 * tensors, which belong to the scope; on a failure all are NULL. Outputs may be used in any way: a loss may be computed
 * from any of them (such as an auxiliary loss that a nested module returns, added to the main loss or with its own
 * backward before or after it; retain the graph if they share one), and others may stay unused. Sharded parameters are
 * gathered again when a backward reaches the first of the module's outputs. A loss that a module stores elsewhere than
 * in its outputs must be added to a loss computed from the model's output: a backward from it alone does not gather
 * what is sharded. If the module is recomputed, `arg` is used again in the backward and must not change until then. */
FSDP_API fsdp_status fsdp_module_call_many(fsdp_module *module, void *arg, fsdp_tensor *const *inputs, int count,
                                           fsdp_tensor **outputs, int output_count);
FSDP_API fsdp_status fsdp_module_call_method_many(fsdp_module *module, fsdp_module_function_many method, void *arg,
                                                  fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                                                  int output_count);
#ifdef __cplusplus
extern "C++" {
template <typename... Inputs>
fsdp_tensor *fsdp_call(fsdp_module *module, fsdp_tensor *first, Inputs... rest)
{
    fsdp_tensor *const inputs[] = {first, rest...};

    return fsdp_module_call(module, inputs, int(1 + sizeof...(rest)));
}
}
#else
#define fsdp_call(module, ...)                                      \
    fsdp_module_call((module), (fsdp_tensor *const[]){__VA_ARGS__}, \
                     (int)(sizeof((fsdp_tensor *const[]){__VA_ARGS__}) / sizeof(fsdp_tensor *)))
#endif

/* Turns activation checkpointing on or off for the module (PyTorch's checkpoint_wrapper): the forward is computed again
 * in the backward, and its intermediate results are not kept. This is fsdp_recompute (fsdp/autograd.h, whose rules
 * hold) around the forward, inside its hooks. A sharded module is therefore gathered once for the second forward and
 * the backward, and a nested module with its own sharding is gathered already for the second forward. Graphs hold the
 * module. The mode may be set at any time and applies from the next call on. The backward also fails if a parameter
 * below was written to, frozen or thawed since the forward, or if a module below was switched between training and
 * evaluation. Buffers are not checked: your own forward reads what they hold at that time, so write to them after the
 * backward. BatchNorm's buffers may be written to at any time: the values that an evaluation has read are kept. */
FSDP_API fsdp_status fsdp_module_set_recompute(fsdp_module *module, fsdp_recompute_mode mode);
FSDP_API fsdp_recompute_mode fsdp_module_recompute(const fsdp_module *module);

/* ---- training, memory and values ---- */

/* Set the mode of the whole subtree, and drop every gradient of it. NULL is allowed. */
FSDP_API void fsdp_module_train(fsdp_module *module, bool training);
FSDP_API void fsdp_module_zero_grad(fsdp_module *module);
FSDP_API fsdp_status fsdp_module_set_requires_grad(fsdp_module *module, bool requires_grad); /* freezes a subtree */

/* Allocates memory on `device` for every meta parameter and buffer of the subtree: for sharded parameters, this rank's
 * rows only. Parameters have no values until fsdp_module_initialize or a load; until then a forward, an optimizer or a
 * save fails and names them. Tensors that already have memory keep it and their values, so the call may be made for
 * parts of a model, and repeatedly. Buffers are computed again by their modules. This call and the next take whole
 * sharded modules: FSDP_STATE for a part of one. Given a NULL module or device, they return the last error, if there is
 * one, so the call that failed to make it needs no check of its own. */
FSDP_API fsdp_status fsdp_module_materialize(fsdp_module *module, fsdp_device *device);
/* Sets the initial values of every parameter, the same for every world size. FSDP_STATE: a weight is held in fewer bits
 * (fsdp_adapter_quantize), of which fsdp_adapter_initialize_base makes the codes; nothing is changed then. */
FSDP_API fsdp_status fsdp_module_initialize(fsdp_module *module, uint64_t seed);
/* Converts every parameter of the subtree, its gradient if it has one, and every floating-point buffer to `dtype` (f32,
 * bf16 or f16), as PyTorch's module.to(dtype) does; each number is rounded once. Tables that a layer computes itself
 * (rope's) stay as they are. The call may be made before or after fully_shard, before or after the first forward, and
 * on meta. Tensors stay the same objects, so ties, optimizers and their states (always f32) remain valid. During the
 * call both copies of a parameter take memory. An earlier graph of a plain module keeps the values it saved; its
 * gradients arrive in the new dtype. For sharded modules the call is [collective] and takes whole ones: FSDP_STATE for
 * a part of one. Dtypes that their mp_policy leaves open become the new one. FSDP_STATE: in a forward or backward,
 * while a graph (or the caller) holds gathered parameters, or while gradients wait to be reduced. FSDP_INVALID: tied
 * parameters would be gathered in two dtypes. A failure on any rank leaves all ranks unchanged. */
FSDP_API fsdp_status fsdp_module_to(fsdp_module *module, fsdp_dtype dtype);

/* ---- layers ---- Each function returns a module that the caller owns, or NULL. Parameters are f32. */
typedef struct fsdp_linear_options {
    bool no_bias;
    const fsdp_init *weight_init; /* NULL: PyTorch's uniform(-1/sqrt(in), 1/sqrt(in)) */
    const fsdp_init *bias_init;   /* NULL: the same */
} fsdp_linear_options;

FSDP_API fsdp_module *fsdp_linear_create(fsdp_context *context, fsdp_device *device, int64_t in_features,
                                         int64_t out_features, const fsdp_linear_options *options);
/* Has a weight (in,out) and a zero-initialised bias: GPT-2's Conv1D. weight_init NULL: normal(0, 0.02). */
FSDP_API fsdp_module *fsdp_conv1d_create(fsdp_context *context, fsdp_device *device, int64_t in_features,
                                         int64_t out_features, const fsdp_init *weight_init);
FSDP_API fsdp_module *fsdp_embedding_create(fsdp_context *context, fsdp_device *device, int64_t count, int64_t dim,
                                            const fsdp_init *init); /* NULL: normal(0, 1) */
FSDP_API fsdp_module *fsdp_layernorm_create(fsdp_context *context, fsdp_device *device, int64_t dim, float eps);
FSDP_API fsdp_module *fsdp_rmsnorm_create(fsdp_context *context, fsdp_device *device, int64_t dim, float eps);
FSDP_API fsdp_module *fsdp_gelu_create(fsdp_context *context, bool tanh_form);
FSDP_API fsdp_module *fsdp_silu_create(fsdp_context *context);
FSDP_API fsdp_module *fsdp_relu_create(fsdp_context *context);
FSDP_API fsdp_module *fsdp_dropout_create(fsdp_context *context, float p, uint64_t seed); /* identity in eval */

/* Create containers. Sequential calls its children in order. It takes over the references in `modules`, also on
 * failure; a NULL among them makes it fail with the last error. ModuleList and ModuleDict only hold and name their
 * children. */
FSDP_API fsdp_module *fsdp_sequential_create(fsdp_context *context, fsdp_module *const *modules, int count);
FSDP_API fsdp_module *fsdp_module_list_create(fsdp_context *context);
FSDP_API fsdp_module *fsdp_module_dict_create(fsdp_context *context);
FSDP_API fsdp_status fsdp_module_list_append(fsdp_module *list, fsdp_module *child); /* named "0", "1", ... */

/* ======== for experts: most programs need nothing below ========
 *
 * ---- hooks ----
 *
 * Hooks run around the calls of one module and in their backwards. Each may be NULL; if one fails, the call or the
 * backward fails. As in PyTorch, they run before or after what a sharded module does itself:
 *   pre_forward    sees gathered parameters, and inputs in the dtype that the module computes in
 *   post_forward   sees gathered parameters if it was added before the module was sharded; if after, the parameters
 *                  once resharded (they may not be readable), and outputs in output_dtype
 *   pre_backward   runs before the module is gathered
 *   post_backward  runs while parameters are gathered, before they are resharded and gradients are reduced
 * The parameters of a replicated module are whole at any time. When a recomputed function around the module computes
 * it again, its two forward hooks run again (fsdp_recomputing). */
typedef struct fsdp_module_hooks {
    void *arg;
    /* May replace inputs by other tensors of the scope, but not by NULL. */
    fsdp_status (*pre_forward)(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count);
    /* Runs if the forward succeeded. May replace outputs. */
    fsdp_status (*post_forward)(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                                fsdp_tensor **outputs, int output_count);
    /* Runs once the gradients of all outputs are known that this backward reaches; the gradient of an output that got
     * none is NULL. May replace gradients by others of the same shape, dtype and device
     * (register_full_backward_pre_hook). A backward passes through all outputs of such a call at once; a second
     * backward through other outputs needs a retained graph. */
    fsdp_status (*pre_backward)(void *arg, fsdp_module *module, fsdp_tensor **output_grads, int count);
    /* Runs once the gradients of all inputs are known, and may replace them likewise. If no input requires a gradient,
     * it runs after pre_backward and all are NULL (register_full_backward_hook). */
    fsdp_status (*post_backward)(void *arg, fsdp_module *module, fsdp_tensor **input_grads, int count,
                                 fsdp_tensor *const *output_grads, int output_count);
    /* Called when `arg` is no longer needed: the hooks were removed or the module freed, and no graph needs them. */
    void (*free_arg)(void *arg);
} fsdp_module_hooks;
/* Adds hooks, which run in the order in which they were added. A backward runs those that were there when its forward
 * began. `out_handle`, for fsdp_module_remove_hooks, may be NULL. On a failure `arg` stays the caller's. A hook may add
 * and remove hooks, including itself. */
FSDP_API fsdp_status fsdp_module_add_hooks(fsdp_module *module, const fsdp_module_hooks *hooks, int64_t *out_handle);
/* Removes hooks: they run no more, nor in the backwards of earlier calls. FSDP_NOT_FOUND: no hooks have this handle. */
FSDP_API fsdp_status fsdp_module_remove_hooks(fsdp_module *module, int64_t handle);

/* ---- random draws ---- */

/* Returns the largest count of random draws in the subtree, from which a run that continues elsewhere starts. A dropout
 * draws by its seed and by the number of its calls in training, which excludes evaluation and recomputation. If all
 * dropouts are called equally often, the draws are those of the uninterrupted run; in any case no draw occurs twice. */
FSDP_API fsdp_status fsdp_module_draws(fsdp_module *module, uint64_t *out);
FSDP_API fsdp_status fsdp_module_set_draws(fsdp_module *module, uint64_t draws); /* of every module of the subtree */

/* ---- layers that code fuses ---- */

/* Exposes the struct behind Linear, Conv1D, Embedding, LayerNorm and RMSNorm, for code that fuses layers. */
typedef struct fsdp_layer {
    fsdp_module base;
    fsdp_tensor *weight, *bias; /* bias is NULL if there is none */
    float eps;
} fsdp_layer;

#ifdef __cplusplus
}
#endif
#endif
