/* module.h - internal structures of a module, and the hook slots that the sharding engine fills. */
#pragma once

#include "base/compiler.h"
#include "fsdp/nn.h"
#include "tensor/tensor.h"

/* Holds hooks that are called around a module's forward, in the order in which they were added (post hooks too). All
 * may be NULL. */
typedef struct fsdp__module_hooks {
    bool first;      /* its pre_forward comes before those of hooks without `first` */
    const void *key; /* of the layer that adds them: the address of a static of its own, or NULL */
    void *arg;       /* what that layer keeps with the module: fsdp__module_hooks_arg gives it back */
    /* May replace inputs. */
    fsdp_status (*pre_forward)(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count);
    /* Runs in place of the module's own forward (not of methods), inside the other hooks and inside recomputation, with
     * the argument of the call. Of several hooks those added last are taken. */
    fsdp_status (*forward)(void *arg, fsdp_module *module, void *call_arg, fsdp_tensor *const *inputs, int count,
                           fsdp_tensor **outputs, int output_count);
    /* Computes `count` Linears of one input at once, in place of their calls: each has these hooks, with an `arg` of
     * its own, and nothing else acts around it. Fills `outputs` with tensors of the scope, or NULLs on failure. */
    fsdp_status (*together)(fsdp_module *const *modules, int count, fsdp_tensor *x, fsdp_tensor **outputs);
    /* May replace outputs, some of which may be NULL. Runs only when the forward succeeded. */
    fsdp_status (*post_forward)(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                                fsdp_tensor **outputs, int output_count);
    /* Gives bytes to the parameters that the hook manages. fsdp_module_materialize calls it, for children before
     * parents, before any plain parameter gets bytes. */
    fsdp_status (*materialize)(void *arg, fsdp_module *module, fsdp_device *device);
    /* Fills the parameters that the hook manages. fsdp_module_initialize calls it before it fills parameters itself.
     * `module_name` is the module's dotted name in the tree that is initialised, "" for its root. */
    fsdp_status (*initialize)(void *arg, fsdp_module *module, uint64_t seed, const char *module_name);
    /* Gives another dtype to all parameters below `root` that hooks with this function manage, whichever module has the
     * hook. fsdp_module_to calls it once. All or nothing changes, on all ranks; it is also called if this rank has
     * failed before (`so_far`). */
    fsdp_status (*retype)(fsdp_module *root, fsdp_dtype dtype, fsdp_status so_far);
    /* Agrees with all ranks that share parameters of `module`, or of modules below it: an error on this rank (`mine`)
     * becomes one on all of them. Called before the first forward of `module`, for each of its hooks in turn. */
    fsdp_status (*agree)(void *arg, fsdp_module *module, fsdp_status mine);
    /* Returns whether the hook is responsible for the bytes, first values and dtype of `parameter`. */
    bool (*manages)(void *arg, const fsdp_tensor *parameter);
    /* Returns what optimizers get instead of parameters below the module that are its parts (FSDP1's FlatParameter). */
    fsdp_tensor *(*flat_parameter)(void *arg, const fsdp_module *module);
    /* Holds what the hook adds to the product of a Linear or Conv1D (nn/layers.h); NULL: nothing that a plan could
     * cut. */
    struct fsdp__layer_beside *beside;
    /* Describes the module where the tree is printed: one line without its end, at most `bytes`. */
    void (*describe)(void *arg, char *text, size_t bytes);
    /* Undoes what pre_forward began, when the forward, this post_forward or one before it has failed. Hooks added last
     * come first. It is not called if the pre_forward itself fails: that undoes what it began. */
    void (*failed)(void *arg, fsdp_module *module);
    /* Called when the hooks are removed or the module is freed; everything it has is still there. */
    void (*free_arg)(void *arg, fsdp_module *module);
} fsdp__module_hooks;

typedef struct fsdp__parameter_slot {
    char *name;
    fsdp_tensor **slot; /* the module owns one reference to *slot */
    fsdp_init init;
    bool tied;  /* registered first elsewhere */
    bool coded; /* its bytes are codes of what was registered (nn/layers.h) */
} fsdp__parameter_slot;

typedef struct fsdp__buffer_slot {
    char *name;
    fsdp_tensor **slot;
    bool persistent;
    /* Fills the buffer once it has bytes. NULL: it keeps the bytes of its construction, and is zero after
     * materialisation. */
    fsdp_status (*fill)(fsdp_module *module, fsdp_tensor *buffer);
    bool table; /* a layer computes it for its kernels: not numbers of the model, so nobody changes its dtype */
} fsdp__buffer_slot;

typedef struct fsdp__child_slot {
    char *name;
    fsdp_module *module;
} fsdp__child_slot;

struct fsdp__module_parts {
    int64_t refs;
    size_t bytes; /* size of the module's struct */
    fsdp__parameter_slot *parameters;
    int64_t parameter_count, parameter_capacity;
    fsdp__buffer_slot *buffers;
    int64_t buffer_count, buffer_capacity;
    fsdp__child_slot *children;
    int64_t child_count, child_capacity;
    fsdp__module_hooks *hooks;
    int64_t hook_count, hook_capacity;
    fsdp_recompute_mode recompute; /* of its forward */
    int64_t calls;                 /* number of running calls */
    int64_t last_handle;           /* of the caller's hooks */
    bool ready;                    /* its parameters were found to have values */
    uintptr_t number;              /* among all that the context has ever had */
    fsdp_module *next, **link;     /* in the context's list: the next module, and the pointer to this one */
};

/* The modules of a context, once it has one (FSDP__SLOT_MODULES): messages name modules from here (module_path.c). */
typedef struct fsdp__modules {
    fsdp_module *first;           /* of the list of all modules, linked by parts->next */
    const fsdp_module *outermost; /* the one being called, or NULL */
    const char *path;             /* of `outermost` itself, "" if it has none; borrowed */
    uintptr_t made;               /* number of those made so far */
    uint64_t said;                /* number of this thread's error that names a module already */
} fsdp__modules;

/* Returns whether the module can be called; otherwise it only holds others. */
bool fsdp__module_has_forward(const fsdp_module *module);

/* The function of a module that is run. */
typedef struct fsdp__forward {
    fsdp_module_function one; /* used if there is one output; otherwise: */
    fsdp_module_function_many many;
    void *arg;
    bool needs_first; /* `many` must not leave the first output out */
    bool own;         /* it is the module's forward, which a hook may replace, and no method */
} fsdp__forward;
/* Checks, before the first call, that all parameters have values; sharded modules check theirs when they are called
 * themselves. A call with a tensor without bytes asks for shapes alone. */
fsdp_status fsdp__module_need_ready(fsdp_module *module, fsdp_tensor *const *inputs, int count);
/* Runs it, without hooks. `outputs` holds NULLs. */
fsdp_status fsdp__forward_run(const fsdp__forward *forward, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                              fsdp_tensor **outputs, int output_count);

/* Adds hooks. Takes over hooks->arg (freed with the module), even on failure. */
fsdp_status fsdp__module_add_hooks(fsdp_module *module, const fsdp__module_hooks *hooks);
/* Removes the hooks added with `arg` and frees it. */
void fsdp__module_remove_hooks(fsdp_module *module, const void *arg);
/* Returns the number-th hooks in the order in which their pre_forward is called. */
const fsdp__module_hooks *fsdp__module_hooks_before(const fsdp_module *module, int64_t number);
/* Returns the `arg` of the hooks added under `key`; NULL if there are none. */
void *fsdp__module_hooks_arg(const fsdp_module *module, const void *key);
/* Returns the flat parameter that hooks of the module give to optimizers; NULL if none does. */
fsdp_tensor *fsdp__module_flat_parameter(const fsdp_module *module);

/* Does what fsdp_module_add_buffer does, with a function that fills the buffer: now if it has bytes, otherwise when it
 * gets some. */
fsdp_status fsdp__module_add_filled_buffer(fsdp_module *module, const char *name, fsdp_tensor **slot,
                                           fsdp_status (*fill)(fsdp_module *module, fsdp_tensor *buffer));

/* Does the same for a buffer that is a part of the model: it is persistent, and `fill` gives it its first values. */
fsdp_status fsdp__module_add_initial_buffer(fsdp_module *module, const char *name, fsdp_tensor **slot,
                                            fsdp_status (*fill)(fsdp_module *module, fsdp_tensor *buffer));

/* Visits the subtree in pre-order, each module once (a module reachable twice is visited under its first name). `name`
 * is dotted, "" for the root. A failing visit ends the walk. */
typedef fsdp_status (*fsdp__module_visit)(void *arg, fsdp_module *module, const char *name);
fsdp_status fsdp__module_walk(fsdp_module *root, fsdp__module_visit visit, void *arg);
/* Does the same, children before parents. */
fsdp_status fsdp__module_walk_up(fsdp_module *root, fsdp__module_visit visit, void *arg);
/* Returns the dotted name of what `module`, whose own dotted name is given, holds under `name`. The caller frees it.
 * NULL when out of memory. */
char *fsdp__dotted(const char *module, const char *name);

/* Finds the device of the module's first parameter; NULL if it has none. */
fsdp_status fsdp__module_device(fsdp_module *module, fsdp_device **out);

/* Does what fsdp_module_initialize does, but where weights are in fewer bits their bytes become zeros. */
fsdp_status fsdp__module_initialize_coded(fsdp_module *module, uint64_t seed);

/* Fills elements [first, first + numel) of the parameter's global row-major order, which is what fsdp_module_initialize
 * does for a shard. `data` is f32, bf16 or f16 on `device`. */
fsdp_status fsdp__init_fill(fsdp_device *device, void *data, fsdp_dtype dtype, int64_t numel, fsdp_init init,
                            uint64_t seed, const char *full_name, int64_t first);
/* Fills a contiguous tensor so: of one that is a part of a larger one, each element gets the value that it has in the
 * whole, whoever holds it. */
fsdp_status fsdp__init_tensor(const fsdp_tensor *tensor, fsdp_init init, uint64_t seed, const char *full_name);

FSDP__SCOPED_POINTER(fsdp_module, fsdp_module_unref)
