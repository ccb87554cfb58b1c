/* fsdp/wrap.h - wrap policies: rules that choose which modules of a tree become units, each of which is sharded as one.
 *
 * Without a policy each unit takes a call; with one, the whole tree takes one call:
 *
 *     const char *const blocks[] = {"LlamaDecoderLayer"};
 *     const fsdp_wrap_policy by_class = {.kind = FSDP_WRAP_CLASSES, .classes = blocks, .class_count = 1};
 *     const fsdp_wrap_policy by_size = {.kind = FSDP_WRAP_SIZE, .min_num_params = 1 << 20};
 *
 *     FSDP_TRY(fsdp_fully_shard_by_policy(model, by_name ? &by_class : &by_size, NULL));
 *
 * The root is always a unit and gets the remaining parameters. A policy is a plain value; what it points to is borrowed
 * for the call. A class is the name of a module's type ("Linear") and matches that type only: types do not inherit.
 *
 * All kinds but CUSTOM follow PyTorch's _recursive_wrap. A policy answers two questions about a module. Shall its
 * children be visited (`recurse`)? This is asked with the number of elements of all its parameters. After the children,
 * unless it is the root: shall the module be a unit? This is asked with the number of elements that no unit below has
 * taken. If the first answer is no, neither the modules below nor the module itself are considered.
 *
 *     kind      PyTorch                                              recurse                  unit
 *     SIZE      size_based_auto_wrap_policy                          large, not force_leaf    large, not exclude
 *     CLASSES   transformer_auto_wrap_policy, ModuleWrapPolicy       yes                      of one of the classes
 *     ALWAYS    always_wrap_policy                                   yes                      if it has a forward
 *     LAMBDA    lambda_auto_wrap_policy                              yes                      as the function says
 *     FUNCTION  any function of this form                            both as the function says
 *     ANY       _or_policy                                           as any of several policies says
 *     CUSTOM    CustomPolicy                                         one question for each module but the root,
 *                                                                    parents first; a unit may have its own options
 *
 * A parameter belongs to the innermost unit around it, a tied one to the first of several. Units are made in this
 * order: children before parents, earlier children first. In sums of sizes each use of a tied parameter counts, as in
 * PyTorch. A module with several parents is considered once.
 */
#ifndef FSDP_WRAP_H
#define FSDP_WRAP_H

#include "fsdp/shard.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_wrap_kind {
    FSDP_WRAP_NONE, /* no policy: the root alone */
    FSDP_WRAP_SIZE,
    FSDP_WRAP_CLASSES,
    FSDP_WRAP_ALWAYS,
    FSDP_WRAP_LAMBDA,
    FSDP_WRAP_FUNCTION,
    FSDP_WRAP_ANY,
    FSDP_WRAP_CUSTOM
} fsdp_wrap_kind;

typedef struct fsdp_wrap_policy fsdp_wrap_policy;
struct fsdp_wrap_policy {
    fsdp_wrap_kind kind;
    /* SIZE: a module is large if it has at least this many elements. 0: the default, 100,000,000 */
    int64_t min_num_params;
    /* SIZE: classes that are not visited below, and classes that do not become units. NULL: MultiheadAttention;
     * ModuleList and ModuleDict */
    const char *const *force_leaf, *const *exclude;
    int force_leaf_count, exclude_count;
    /* CLASSES */
    const char *const *classes;
    int class_count;
    /* LAMBDA. Here and below `name` is dotted, from the root. */
    bool (*wraps)(void *arg, const fsdp_module *module, const char *name);
    /* FUNCTION */
    bool (*decide)(void *arg, const fsdp_module *module, const char *name, bool recurse, int64_t nonwrapped_numel);
    /* CUSTOM: sets *wrap, which is preset to false, if the module becomes a unit. `options` is a copy of the call's
     * options (an fsdp_shard_options for fsdp_fully_shard_by_policy), which may be changed for this unit; NULL if the
     * call has none. A failure is the call's. */
    fsdp_status (*choose)(void *arg, const fsdp_module *module, const char *name, void *options, bool *wrap);
    void *arg; /* argument of the function */
    /* ANY: none of the policies may be NONE or CUSTOM, or have its own ignored modules or parameters */
    const fsdp_wrap_policy *policies;
    int policy_count;

    /* ---- for any kind ---- */

    /* Modules that are ignored, with all modules and parameters below them, which count nowhere; and single
     * parameters. */
    fsdp_module *const *ignored_modules;
    int64_t ignored_module_count;
    fsdp_tensor *const *ignored_params;
    int64_t ignored_param_count;
    /* Modules of these classes become units of their own, in full precision (batch norms under mixed precision, in
     * FSDP1). All children are visited then. Not allowed if the kind is NONE. */
    const char *const *full_precision_classes;
    int full_precision_class_count;
};

typedef struct fsdp_wrap_unit {
    const char *name;           /* dotted, "" for the root */
    fsdp_module *module;        /* borrowed */
    fsdp_parameters parameters; /* names are relative to `module`, in the order of the module tree (FlatParameter's) */
    int64_t numel;              /* number of their elements, without padding */
    bool full_precision;        /* because of full_precision_classes */
    void *options;              /* a copy of the call's options, as changed by `choose`; NULL if the call has none */
} fsdp_wrap_unit;

typedef struct fsdp_wrap_units {
    int64_t count;
    fsdp_wrap_unit *items; /* parents before children, in the order of the module tree */
    int64_t *bottom_up;    /* indices of items in the order in which units are made; the root is last */
    fsdp_tensor **ignored; /* parameters that belong to no unit; holds references */
    int64_t ignored_count;
} fsdp_wrap_units;

/* Computes the units of a tree by a policy. Nothing is sharded, and the root may be the only unit. Each unit gets a
 * copy of `options`, of option_bytes, which may be NULL. Errors: a policy without what its kind needs, or one below ANY
 * with what it must not have; a module that has been sharded already, unless it is ignored (NONE allows it: its
 * parameters have their unit). */
FSDP_API fsdp_status fsdp_module_wrap_units(fsdp_module *module, const fsdp_wrap_policy *policy, const void *options,
                                            size_t option_bytes, fsdp_wrap_units *out);
FSDP_API void fsdp_wrap_units_release(fsdp_wrap_units *units); /* NULL and zeros are allowed */

/* Calls fsdp_fully_shard for every unit, from the bottom up, last for the root. `options` may be NULL. What `options`
 * or `policy` ignores is ignored by all calls; full-precision units have no mp_policy. Errors before anything is
 * sharded: those of fsdp_module_wrap_units; FSDP_INVALID: a unit without a forward, or a policy that makes no unit but
 * the root (unless it is NONE); FSDP_NOT_FOUND: a class that no module of the tree has. If fsdp_fully_shard fails for a
 * unit, the units before it are sharded. [collective] */
FSDP_API fsdp_status fsdp_fully_shard_by_policy(fsdp_module *module, const fsdp_wrap_policy *policy,
                                                const fsdp_shard_options *options);

/* ---- while a tree is built ---- These are PyTorch's enable_wrap and wrap, for constructors that choose their units:
 *
 *     m->up = fsdp_wrap(fsdp_linear_create(context, device, 8, 32, NULL), NULL);
 *     FSDP_TRY(fsdp_module_add_child(&m->base, "up", m->up));
 *
 * This is a plain linear layer, unless it is built inside a wrap scope, which shards it with the scope's options. Call
 * fully_shard on the root after the scope. */

/* Wraps a module: fsdp_fully_shard or another function of this form. */
typedef fsdp_status (*fsdp_wrapper)(fsdp_module *module, const void *options);
/* Begins a scope in which fsdp_wrap calls `wrapper` (NULL: fsdp_fully_shard) with `options`, of option_bytes, which are
 * copied and may be NULL. FSDP_UNSUPPORTED: inside another scope. */
FSDP_API fsdp_status fsdp_wrap_scope_begin(fsdp_context *context, fsdp_wrapper wrapper, const void *options,
                                           size_t option_bytes);
FSDP_API void fsdp_wrap_scope_end(fsdp_context *context);
/* Returns the module with the caller's reference, wrapped if the call is inside a scope. `options` replaces the
 * scope's; NULL: use those. On a failure the reference is released and NULL returned; a NULL module returns NULL with
 * the last error. [collective] if the wrapper is */
FSDP_API fsdp_module *fsdp_wrap(fsdp_module *module, const void *options);

#ifdef __cplusplus
}
#endif
#endif
