/* fsdp/nn.h - modules: a tree of named parts with parameters, called like functions.
 *
 * A module of one's own embeds fsdp_module as its first member and has one fsdp_module_type:
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
 * Parameters live in fields of the module's struct (`fsdp_tensor *weight`), registered by their address: whoever
 * shards the module swaps what the field points to, and the forward never notices.
 *
 * Modules are reference counted: a child belongs to its parent. Everything may be built on the meta device (shapes
 * only) and given bytes later by fsdp_module_materialize.
 */
#ifndef FSDP_NN_H
#define FSDP_NN_H

#include "fsdp/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_module fsdp_module;

/* `count` inputs, none NULL. */
typedef fsdp_tensor *(*fsdp_module_function)(fsdp_module *self, fsdp_tensor *const *inputs, int count);

/* With several outputs, and an argument that is no tensor (or NULL): fills `outputs`, NULLs when it is called, and may
 * leave some NULL (PyTorch's None). An output may be an input, and one tensor may be several of them. NULLs that come
 * of an operation that failed need not be looked for: the call fails with its message, unless that was cleared. */
typedef fsdp_status (*fsdp_module_function_many)(fsdp_module *self, void *arg, fsdp_tensor *const *inputs, int count,
                                                 fsdp_tensor **outputs, int output_count);

typedef struct fsdp_module_type {
    const char *name; /* "Linear" */
    /* Runs in a scope of its own; the result moves to the caller's scope. NULL, and no forward_many, for containers
     * that cannot be called (ModuleList, ModuleDict). */
    fsdp_module_function forward;
    /* What stands in the parentheses when the tree is printed, e.g. "in_features=3, out_features=4, bias=True".
     * May be NULL. */
    void (*describe)(const fsdp_module *self, char *text, size_t text_bytes);
    /* Frees what the module's own struct holds beyond parameters, buffers and children. May be NULL. */
    void (*destroy)(fsdp_module *self);
    bool without_inputs; /* the forward takes no input, too: else it gets at least one */
    /* What fsdp_module_call_many runs, and fsdp_module_call where there is no `forward`: without `arg`, for one output.
     * May be NULL. */
    fsdp_module_function_many forward_many;
    /* Where the module counts its random draws, of which each is another (fsdp_module_draws). May be NULL. */
    uint64_t *(*draws)(fsdp_module *self);
} fsdp_module_type;

struct fsdp_module {
    const fsdp_module_type *type;
    fsdp_context *context;
    bool training;                    /* set with fsdp_module_train */
    struct fsdp__module_parts *parts; /* names, parameters, children, hooks */
};

/* ---- building ---- */

/* How a parameter gets its first values: element i of the whole parameter is a function of (seed, full name, i). */
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

/* Allocates `bytes` (at least sizeof(fsdp_module)) zeroed, one reference, training mode. */
FSDP_API fsdp_status fsdp_module_create(fsdp_context *context, const fsdp_module_type *type, size_t bytes,
                                        void *out_module);
FSDP_API fsdp_module *fsdp_module_ref(fsdp_module *module);
FSDP_API void fsdp_module_unref(fsdp_module *module); /* NULL is allowed */

/* Makes *slot a leaf tensor on `device` that requires a gradient. On a device with bytes it is filled from `init` with
 * seed 0 and its local name; fsdp_module_initialize does it again with full names. `name` is copied, without dots. */
FSDP_API fsdp_status fsdp_module_add_parameter(fsdp_module *module, const char *name, fsdp_tensor **slot,
                                               fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                               fsdp_init init);
/* *slot becomes another name of `parameter`, a parameter registered elsewhere in the tree (tied weights). */
FSDP_API fsdp_status fsdp_module_tie_parameter(fsdp_module *module, const char *name, fsdp_tensor **slot,
                                               fsdp_tensor *parameter);
/* A tensor that is part of the module but not trained; *slot is set by the caller, whose reference the module takes
 * over, also on failure. */
FSDP_API fsdp_status fsdp_module_add_buffer(fsdp_module *module, const char *name, fsdp_tensor **slot, bool persistent);
/* Takes over the caller's reference, also on failure. A NULL child returns the last error: constructors nest. */
FSDP_API fsdp_status fsdp_module_add_child(fsdp_module *module, const char *name, fsdp_module *child);

/* ---- looking ---- */

typedef struct fsdp_parameter {
    const char *name; /* dotted, from the module asked: "layers.0.mlp.up.weight" */
    fsdp_tensor *tensor;
} fsdp_parameter;

typedef struct fsdp_parameters {
    int64_t count;
    fsdp_parameter *items;
} fsdp_parameters;

/* Every parameter of the subtree once, in registration order, parents before children; tied ones under their first
 * name. Holds references; sharded parameters appear as the local shard (fsdp/dist.h tells the global shape), those of a
 * flat parameter as that, under "_flat_param" of its module. */
FSDP_API fsdp_status fsdp_module_parameters(fsdp_module *module, fsdp_parameters *out);
FSDP_API void fsdp_parameters_release(fsdp_parameters *parameters);

/* Every buffer of the subtree, persistent or not, as the parameters; release it as those. */
FSDP_API fsdp_status fsdp_module_buffers(fsdp_module *module, fsdp_parameters *out);

/* Visits the module and all below it, each once, under its dotted name ("" for the module itself), until a visit
 * fails, whose status it returns: parents first (PyTorch's named_modules), or children first (its apply). */
typedef fsdp_status (*fsdp_module_visit)(void *arg, fsdp_module *module, const char *name);
FSDP_API fsdp_status fsdp_module_walk(fsdp_module *module, fsdp_module_visit visit, void *arg);
FSDP_API fsdp_status fsdp_module_apply(fsdp_module *module, fsdp_module_visit visit, void *arg);

typedef struct fsdp_named_module {
    const char *name;    /* dotted, from the module asked */
    fsdp_module *module; /* held */
} fsdp_named_module;
typedef struct fsdp_named_modules {
    int64_t count;
    fsdp_named_module *items;
} fsdp_named_modules;
/* Those whose type has the name `type`, as "Linear", or all of them where it is NULL; parents first. */
FSDP_API fsdp_status fsdp_module_modules(fsdp_module *module, const char *type, fsdp_named_modules *out);
FSDP_API void fsdp_named_modules_release(fsdp_named_modules *modules);

/* Borrowed; NULL and a last error when there is no such name. */
FSDP_API fsdp_module *fsdp_module_child(fsdp_module *module, const char *dotted_name);
FSDP_API fsdp_tensor *fsdp_module_parameter(fsdp_module *module, const char *dotted_name);
FSDP_API int64_t fsdp_module_child_count(const fsdp_module *module);
FSDP_API fsdp_module *fsdp_module_child_at(const fsdp_module *module, int64_t index, const char **name);

/* The tree as PyTorch prints it:
 *     MLP(
 *       (up): Linear(in_features=3, out_features=4, bias=True)
 *       ...
 *     )
 * Before a sharded or replicated module stands in brackets how: see fsdp/shard_map.h. */
FSDP_API fsdp_status fsdp_module_print(fsdp_module *module, FILE *stream);

/* ---- running ---- */

/* Runs hooks and forward in a scope of its own. NULL if an input is NULL or anything failed; the message begins with
 * the innermost module that failed, by its dotted name below the outermost one that was called, and its type: "block2.0
 * (Linear): input (8, 5) does not fit weight (4, 6)"; of the outermost, or one that is no part of that, the type alone.
 * `inputs` may be NULL where `count` is 0. */
FSDP_API fsdp_tensor *fsdp_module_call(fsdp_module *module, fsdp_tensor *const *inputs, int count);
/* The same with `method` in the place of the forward, and any number of inputs, for whatever else a module does with
 * its parameters (an encoder's or a classifier's part, the next token alone). Where the module is sharded this is a
 * forward of it, for every rank: FSDP2's register_fsdp_forward_method, without the registration. */
FSDP_API fsdp_tensor *fsdp_module_call_method(fsdp_module *module, fsdp_module_function method,
                                              fsdp_tensor *const *inputs, int count);
/* The two with several outputs and an argument: see fsdp_module_function_many. `outputs` is room for them; on a failure
 * all are NULL. The outputs belong to the scope. Whatever becomes of them is right: a loss may be made of any of them
 * (an auxiliary loss that a module deep inside returns, added to the main one or with a backward of its own, before or
 * after it, with the graph kept where they share one), and others never used. What is sharded is gathered again when a
 * backward comes to the first of its outputs. A loss that a module leaves elsewhere than in its outputs is added to one
 * that is made of the model's output: a backward from it alone does not find what is sharded.
 * Where the module has a checkpoint, `arg` is used again in the backward, and unchanged until then. */
FSDP_API fsdp_status fsdp_module_call_many(fsdp_module *module, void *arg, fsdp_tensor *const *inputs, int count,
                                           fsdp_tensor **outputs, int output_count);
FSDP_API fsdp_status fsdp_module_call_method_many(fsdp_module *module, fsdp_module_function_many method, void *arg,
                                                  fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                                                  int output_count);
#ifdef __cplusplus
extern "C++" {
template <typename... Inputs> fsdp_tensor *fsdp_call(fsdp_module *module, fsdp_tensor *first, Inputs... rest)
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

/* Computes the forward again in the backward instead of keeping what that needs: fsdp_checkpoint (fsdp/autograd.h; what
 * it says holds) of the forward, between its hooks (PyTorch's checkpoint_wrapper), so a sharded module is gathered once
 * for both, and a module below it that is sharded apart is gathered for the second forward already. Graphs hold the
 * module. It may be set at any time, and holds from the next call on. Errors of the backward, besides: a parameter
 * below was written to, frozen or thawed since the forward, a module below was switched between training and
 * evaluation. Buffers are not looked at: a forward of one's own reads what they hold then, so write to them after the
 * backward. BatchNorm's may be written to at any time: what an evaluation has read of them is kept. */
FSDP_API fsdp_status fsdp_module_set_checkpoint(fsdp_module *module, fsdp_checkpoint_mode mode);
FSDP_API fsdp_checkpoint_mode fsdp_module_checkpoint(const fsdp_module *module);

/* ---- hooks ----
 *
 * Functions around the calls of one module, and in their backwards. All may be NULL; a failure is the call's, or the
 * backward's. Before a sharded module's own work or after it, as in PyTorch:
 *   pre_forward    sees gathered parameters, and inputs in the dtype that the module computes in
 *   post_forward   sees gathered parameters if it was added before the module was sharded; if after, what is left when
 *                  it has been resharded (none that can be read, perhaps), and outputs in output_dtype
 *   pre_backward   before the module is gathered
 *   post_backward  before it is resharded and its gradients are reduced: parameters are gathered
 * Replicated modules have theirs whole at any time. Where a module is computed again for a checkpoint around it, the
 * two of the forward run again (fsdp_recomputing). */
typedef struct fsdp_module_hooks {
    void *arg;
    /* May replace inputs by others of the scope; none by NULL. */
    fsdp_status (*pre_forward)(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count);
    /* Where the forward succeeded. May replace outputs. */
    fsdp_status (*post_forward)(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                                fsdp_tensor **outputs, int output_count);
    /* When the gradients of all outputs are known that this backward brings: NULL of those that got none. May replace
     * them by others of their shapes and dtypes (register_full_backward_pre_hook). A backward comes through all outputs
     * of such a call at once: a second one through others needs the graph kept. */
    fsdp_status (*pre_backward)(void *arg, fsdp_module *module, fsdp_tensor **output_grads, int count);
    /* When those of all inputs are, which may be replaced; where no input requires one, after pre_backward, and all are
     * NULL (register_full_backward_hook). */
    fsdp_status (*post_backward)(void *arg, fsdp_module *module, fsdp_tensor **input_grads, int count,
                                 fsdp_tensor *const *output_grads, int output_count);
    /* When `arg` is needed no more: they were removed, or the module has gone, and no graph of a call will need them.
     */
    void (*free_arg)(void *arg);
} fsdp_module_hooks;
/* Run in the order added, those in a backward too, which are those that were there when its forward began.
 * `out_handle`, which may be NULL, is for fsdp_module_remove_hooks. On a failure `arg` stays the caller's. A hook may
 * add and remove hooks, itself too. */
FSDP_API fsdp_status fsdp_module_add_hooks(fsdp_module *module, const fsdp_module_hooks *hooks, int64_t *out_handle);
/* None of them runs any more, in backwards of earlier calls either. FSDP_NOT_FOUND: there are none with the handle. */
FSDP_API fsdp_status fsdp_module_remove_hooks(fsdp_module *module, int64_t handle);

FSDP_API void fsdp_module_train(fsdp_module *module, bool training); /* the whole subtree */
FSDP_API void fsdp_module_zero_grad(fsdp_module *module);            /* drops every gradient of the subtree */
FSDP_API fsdp_status fsdp_module_set_requires_grad(fsdp_module *module, bool requires_grad); /* freezes a subtree */

/* Gives every meta parameter and buffer of the subtree bytes on `device`: sharded ones only this rank's rows.
 * Parameters have no values until fsdp_module_initialize or a load: a forward before, an optimizer or a save is an
 * error that names them. What has bytes keeps them and its values, so it may be called for parts, and again. Buffers
 * are made again by their module. Both calls are for whole sharded modules: FSDP_STATE for a part of one. */
FSDP_API fsdp_status fsdp_module_materialize(fsdp_module *module, fsdp_device *device);
/* First values of every parameter, the same for every world size. */
FSDP_API fsdp_status fsdp_module_initialize(fsdp_module *module, uint64_t seed);
/* Every parameter of the subtree, its gradient if it has one, and every buffer of floating numbers becomes `dtype`
 * (f32, bf16 or f16), each number rounded once; tables that a layer computes for itself (rope's) stay. Before or after
 * fully_shard, before or after the first forward, on meta too (PyTorch's module.to(dtype)). Tensors stay the same
 * objects, so ties, optimizers and their states (f32 in any case) go on. For the time of the call both copies of a
 * parameter have memory. A graph of a plain module from before keeps the values it saved; its gradients arrive in the
 * new dtype.
 * Sharded modules [collective], whole ones: FSDP_STATE for a part of one. What their mp_policy leaves open is of the
 * new dtype. FSDP_STATE in a forward or backward, while a graph (or the caller) holds gathered parameters, and while
 * gradients wait to be reduced; FSDP_INVALID when tied parameters would be gathered in two dtypes. A failure, on any
 * rank, changes nothing on all. */
FSDP_API fsdp_status fsdp_module_to(fsdp_module *module, fsdp_dtype dtype);

/* ---- random draws ---- */

/* A dropout draws by its seed and by how often it has been called in training, evaluations and second runs of a
 * checkpoint left out. This is that count, the largest of the subtree: what a run that goes on elsewhere begins with.
 * Where all dropouts are called equally often, the draws are those that would have come; none comes twice anyway. */
FSDP_API fsdp_status fsdp_module_draws(fsdp_module *module, uint64_t *out);
FSDP_API fsdp_status fsdp_module_set_draws(fsdp_module *module, uint64_t draws); /* of every module of the subtree */

/* ---- layers ---- Each returns a module the caller owns, or NULL. `dtype` of parameters is f32. */
typedef struct fsdp_linear_options {
    bool no_bias;
    const fsdp_init *weight_init; /* NULL: PyTorch's uniform(-1/sqrt(in), 1/sqrt(in)) */
    const fsdp_init *bias_init;   /* NULL: the same */
} fsdp_linear_options;

FSDP_API fsdp_module *fsdp_linear_create(fsdp_context *context, fsdp_device *device, int64_t in_features,
                                         int64_t out_features, const fsdp_linear_options *options);
/* Weight (in,out), zero bias: GPT-2's Conv1D. weight_init NULL: normal(0, 0.02). */
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

/* Containers. Sequential calls its children in order and takes the references in `modules` over, also on failure; a
 * NULL among them makes it fail with the last error. ModuleList and ModuleDict only hold and name their children. */
FSDP_API fsdp_module *fsdp_sequential_create(fsdp_context *context, fsdp_module *const *modules, int count);
FSDP_API fsdp_module *fsdp_module_list_create(fsdp_context *context);
FSDP_API fsdp_module *fsdp_module_dict_create(fsdp_context *context);
FSDP_API fsdp_status fsdp_module_list_append(fsdp_module *list, fsdp_module *child); /* named "0", "1", ... */

/* Parts of the layers above, for code that fuses: the struct behind a Linear, Conv1D, Embedding, LayerNorm, RMSNorm. */
typedef struct fsdp_layer {
    fsdp_module base;
    fsdp_tensor *weight, *bias; /* bias NULL where there is none */
    float eps;
} fsdp_layer;

#ifdef __cplusplus
}
#endif
#endif
