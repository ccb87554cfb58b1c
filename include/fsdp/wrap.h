/* fsdp/wrap.h - wrap policies: which modules of a tree become units, each sharded together, chosen by a rule.
 *
 * By hand it is a call a module; by a policy it is one for the tree:
 *
 *     const char *const blocks[] = {"LlamaDecoderLayer"};
 *     const fsdp_wrap_policy by_class = {.kind = FSDP_WRAP_CLASSES, .classes = blocks, .class_count = 1};
 *     const fsdp_wrap_policy by_size = {.kind = FSDP_WRAP_SIZE, .min_num_params = 1 << 20};
 *
 *     FSDP_TRY(fsdp_fully_shard_by_policy(model, by_name ? &by_class : &by_size, NULL));
 *
 * The root is a unit always, and gets what is left. A policy is a value; what it points to is borrowed for the call. A
 * class is the name of a module's type ("Linear"), and no other type's: types do not inherit.
 *
 * The rule of all kinds but CUSTOM (PyTorch's _recursive_wrap). A policy is asked two questions about a module: shall
 * its children be looked at (`recurse`), with the number of elements of all its parameters; and after those, if it is
 * not the root, shall it be a unit, with the number of those that no unit below it has taken. Where the first answer is
 * no, nothing below is asked about, nor the module itself.
 *
 *     kind      PyTorch                                              recurse                  unit
 *     SIZE      size_based_auto_wrap_policy                          large, not force_leaf    large, not exclude
 *     CLASSES   transformer_auto_wrap_policy, ModuleWrapPolicy       yes                      of one of the classes
 *     ALWAYS    always_wrap_policy                                   yes                      if it has a forward
 *     LAMBDA    lambda_auto_wrap_policy                              yes                      as the function says
 *     FUNCTION  any function of this form                            both as the function says
 *     ANY       _or_policy                                           as any of several policies says
 *     CUSTOM    CustomPolicy                                         each module but the root is asked about once,
 *                                                                    parents first, and may have options of its own
 *
 * A parameter belongs to the innermost unit around it; tied ones to the first of several, children before parents,
 * earlier children first: units are made in that order. Each use of a tied parameter counts, as in PyTorch, where sizes
 * are added up. A module below several parents is asked about once.
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
    /* SIZE: large is as many elements or more. 0: the default, 100,000,000 */
    int64_t min_num_params;
    /* SIZE: classes not to look into, and such that are no units. NULL: MultiheadAttention; ModuleList and ModuleDict
     */
    const char *const *force_leaf, *const *exclude;
    int force_leaf_count, exclude_count;
    /* CLASSES */
    const char *const *classes;
    int class_count;
    /* LAMBDA. `name` is dotted, from the root, here and below. */
    bool (*wraps)(void *arg, const fsdp_module *module, const char *name);
    /* FUNCTION */
    bool (*decide)(void *arg, const fsdp_module *module, const char *name, bool recurse, int64_t nonwrapped_numel);
    /* CUSTOM: whether it is a unit, in *wrap, which is false when it comes. `options` are a copy of those of the call
     * (an fsdp_shard_options, where that is fsdp_fully_shard_by_policy), to be changed for this unit; NULL where the
     * call has none. A failure is the call's. */
    fsdp_status (*choose)(void *arg, const fsdp_module *module, const char *name, void *options, bool *wrap);
    void *arg; /* of the function */
    /* ANY: none of them NONE, CUSTOM, or with ignored modules or parameters of its own */
    const fsdp_wrap_policy *policies;
    int policy_count;

    /* ---- of any kind ---- */

    /* Left alone, with all modules below them and all their parameters, which count nowhere; and parameters alone. */
    fsdp_module *const *ignored_modules;
    int64_t ignored_module_count;
    fsdp_tensor *const *ignored_params;
    int64_t ignored_param_count;
    /* Modules of these classes are units of their own, in full precision (batch norms under mixed precision, in FSDP1);
     * all children are looked at then. Not where the kind is NONE. */
    const char *const *full_precision_classes;
    int full_precision_class_count;
};

typedef struct fsdp_wrap_unit {
    const char *name;           /* dotted, "" for the root */
    fsdp_module *module;        /* borrowed */
    fsdp_parameters parameters; /* by their names from the module, in the order of the module tree (FlatParameter's) */
    int64_t numel;              /* elements of them, without padding */
    bool full_precision;        /* for full_precision_classes */
    void *options;              /* a copy of the call's, as `choose` left it; NULL where the call has none */
} fsdp_wrap_unit;

typedef struct fsdp_wrap_units {
    int64_t count;
    fsdp_wrap_unit *items; /* from the root inwards, in the order of the module tree */
    int64_t *bottom_up;    /* the order in which they are made: indices of items. The root is last */
    fsdp_tensor **ignored; /* parameters that belong to none, held */
    int64_t ignored_count;
} fsdp_wrap_units;

/* The units of a tree by a policy, as a calculation: nothing is sharded, and there may be none but the root. `options`
 * of option_bytes, or NULL, are what units have copies of. Errors: a policy without what its kind needs, or one with
 * what ANY must not have; a module that has been sharded already, unless it is ignored (of NONE: its parameters have
 * their unit). */
FSDP_API fsdp_status fsdp_module_wrap_units(fsdp_module *module, const fsdp_wrap_policy *policy, const void *options,
                                            size_t option_bytes, fsdp_wrap_units *out);
FSDP_API void fsdp_wrap_units_release(fsdp_wrap_units *units); /* NULL and zeros are allowed */

/* fsdp_fully_shard for every unit, from the bottom up, last for the root; `options` may be NULL. What options or policy
 * ignore is ignored by all calls; units in full precision have no mp_policy. Errors before anything is sharded: those
 * of fsdp_module_wrap_units, a unit without a forward (FSDP_INVALID), a class that no module of the tree has
 * (FSDP_NOT_FOUND), a policy that makes no unit but the root, unless it is NONE (FSDP_INVALID). Where fsdp_fully_shard
 * fails for a unit, those before it are sharded. [collective] */
FSDP_API fsdp_status fsdp_fully_shard_by_policy(fsdp_module *module, const fsdp_wrap_policy *policy,
                                                const fsdp_shard_options *options);

/* ---- while a tree is built ---- PyTorch's enable_wrap and wrap, for constructors that say themselves what is a unit:
 *
 *     m->up = fsdp_wrap(fsdp_linear_create(context, device, 8, 32, NULL), NULL);
 *     FSDP_TRY(fsdp_module_add_child(&m->base, "up", m->up));
 *
 * which is a plain linear layer, unless it is built in a scope: then it is sharded as the scope says. Call fully_shard
 * on the root after the scope. */

/* What is done to a module: a front door. */
typedef fsdp_status (*fsdp_wrapper)(fsdp_module *module, const void *options);
/* `wrapper` NULL: fsdp_fully_shard. `options` of option_bytes, copied, or NULL. FSDP_UNSUPPORTED inside of a scope. */
FSDP_API fsdp_status fsdp_wrap_scope_begin(fsdp_context *context, fsdp_wrapper wrapper, const void *options,
                                           size_t option_bytes);
FSDP_API void fsdp_wrap_scope_end(fsdp_context *context);
/* The module itself, with the caller's reference: wrapped, inside of a scope. `options`: in place of the scope's; NULL:
 * those. On a failure the reference is gone, and NULL returned; a NULL module returns NULL with the last error.
 * [collective] where the wrapper is */
FSDP_API fsdp_module *fsdp_wrap(fsdp_module *module, const void *options);

#ifdef __cplusplus
}
#endif
#endif
