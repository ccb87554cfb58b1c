/* module.h - the inside of a module, and the hook slots that the sharding engine fills. */
#ifndef NN_MODULE_H
#define NN_MODULE_H

#include "fsdp/nn.h"
#include "tensor/tensor.h"

/* Called around a module's forward, in the order added (post hooks too). All may be NULL. */
typedef struct fsdp__module_hooks {
    bool first;      /* pre_forward comes before those of hooks that are not */
    const void *key; /* whose hooks they are: the address of a static of the layer that adds them, or NULL */
    void *arg;       /* what that layer keeps with the module: fsdp__module_hooks_arg gives it back */
    /* May replace inputs. */
    fsdp_status (*pre_forward)(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count);
    /* May replace outputs, some of which may be NULL. Runs only when the forward succeeded. */
    fsdp_status (*post_forward)(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                                fsdp_tensor **outputs, int output_count);
    /* Asked by fsdp_module_materialize, children before parents, before any plain parameter gets bytes: gives bytes to
     * the parameters it manages. */
    fsdp_status (*materialize)(void *arg, fsdp_module *module, fsdp_device *device);
    /* Asked by fsdp_module_initialize before it fills parameters itself: fills those that the hook manages.
     * `module_name` is the module's dotted name in the tree that is initialised, "" for its root. */
    fsdp_status (*initialize)(void *arg, fsdp_module *module, uint64_t seed, const char *module_name);
    /* Asked once by fsdp_module_to for all below `root`, whichever module has the hook: gives another dtype to all
     * parameters that hooks with this function manage. All or nothing, on all ranks, also where this one has failed
     * before (`so_far`). */
    fsdp_status (*retype)(fsdp_module *root, fsdp_dtype dtype, fsdp_status so_far);
    /* Asked before the first forward of `module`, for all below it, too: what is wrong on this rank (`mine`) is so on
     * all that share its parameters. */
    fsdp_status (*agree)(void *arg, fsdp_module *module, fsdp_status mine);
    /* Whether materialising and initialising `parameter`, and its dtype, is the hook's business. */
    bool (*manages)(void *arg, const fsdp_tensor *parameter);
    /* What optimizers are given in place of parameters below the module that are parts of it: FSDP1's FlatParameter. */
    fsdp_tensor *(*flat_parameter)(void *arg, const fsdp_module *module);
    /* What is said of the module where the tree is printed: a line without its end, at most `bytes`. */
    void (*describe)(void *arg, char *text, size_t bytes);
    /* The forward, this post_forward or one before it failed: undo what pre_forward began. Last added first. A
     * pre_forward that fails itself undoes what it began by itself: this is not called. */
    void (*failed)(void *arg, fsdp_module *module);
    /* The hooks are removed, or the module goes: all it has is still there. */
    void (*free_arg)(void *arg, fsdp_module *module);
} fsdp__module_hooks;

typedef struct fsdp__parameter_slot {
    char *name;
    fsdp_tensor **slot; /* the module owns one reference to *slot */
    fsdp_init init;
    bool tied; /* registered first elsewhere */
} fsdp__parameter_slot;

typedef struct fsdp__buffer_slot {
    char *name;
    fsdp_tensor **slot;
    bool persistent;
    /* Fills the buffer once it has bytes; NULL: its bytes are those of construction, zero after materialisation. */
    fsdp_status (*fill)(fsdp_module *module, fsdp_tensor *buffer);
    bool table; /* that a layer computes for its kernels: no numbers of the model's, whose dtype others may change */
} fsdp__buffer_slot;

typedef struct fsdp__child_slot {
    char *name;
    fsdp_module *module;
} fsdp__child_slot;

struct fsdp__module_parts {
    int64_t refs;
    size_t bytes; /* of the module's struct */
    fsdp__parameter_slot *parameters;
    int64_t parameter_count, parameter_capacity;
    fsdp__buffer_slot *buffers;
    int64_t buffer_count, buffer_capacity;
    fsdp__child_slot *children;
    int64_t child_count, child_capacity;
    fsdp__module_hooks *hooks;
    int64_t hook_count, hook_capacity;
    fsdp_checkpoint_mode checkpoint; /* of its forward */
    int64_t calls;                   /* that are running */
    int64_t last_handle;             /* of hooks of the caller's */
    bool ready;                      /* its parameters were found to have values */
    fsdp_module *next, **link;       /* in the context's list: the one behind, and who names this one */
};

/* Hangs on the context, once it has a module (FSDP__SLOT_MODULES): what messages name modules from (path.c). */
typedef struct fsdp__modules {
    fsdp_module *first;           /* of the list of all, that parts->next goes on */
    const fsdp_module *outermost; /* that is being called, or NULL */
    const char *path;             /* that it has itself, "" for none. Borrowed */
    uint64_t said;                /* which error of this thread names a module already */
} fsdp__modules;

/* Whether the module can be called, or only holds others. */
bool fsdp__module_has_forward(const fsdp_module *module);

/* What is run of a module. */
typedef struct fsdp__forward {
    fsdp_module_function one; /* with one output; or else */
    fsdp_module_function_many many;
    void *arg;
    bool needs_first; /* that `many` leaves the first output out is a failure */
} fsdp__forward;
/* Before the first call: all parameters have values, those of sharded modules when these are called themselves. A call
 * with a tensor without bytes asks for shapes alone. */
fsdp_status fsdp__module_need_ready(fsdp_module *module, fsdp_tensor *const *inputs, int count);
/* It, without hooks. `outputs` are NULLs. */
fsdp_status fsdp__forward_run(const fsdp__forward *forward, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                              fsdp_tensor **outputs, int output_count);

/* Takes hooks->arg over (freed with the module), also on failure. */
fsdp_status fsdp__module_add_hooks(fsdp_module *module, const fsdp__module_hooks *hooks);
/* Removes the hooks added with `arg` and frees it. */
void fsdp__module_remove_hooks(fsdp_module *module, const void *arg);
/* The number-th hooks in the order in which their pre_forward is called. */
const fsdp__module_hooks *fsdp__module_hooks_before(const fsdp_module *module, int64_t number);
/* The `arg` of the hooks added under `key`; NULL when there are none. */
void *fsdp__module_hooks_arg(const fsdp_module *module, const void *key);
/* What hooks of the module say optimizers are given; NULL: none does. */
fsdp_tensor *fsdp__module_flat_parameter(const fsdp_module *module);

/* As fsdp_module_add_buffer, with a function that fills it: now if it has bytes, else when it gets some. */
fsdp_status fsdp__module_add_filled_buffer(fsdp_module *module, const char *name, fsdp_tensor **slot,
                                           fsdp_status (*fill)(fsdp_module *module, fsdp_tensor *buffer));

/* The same of a buffer that is a part of the model: persistent, and `fill` gives it its first values. */
fsdp_status fsdp__module_add_initial_buffer(fsdp_module *module, const char *name, fsdp_tensor **slot,
                                            fsdp_status (*fill)(fsdp_module *module, fsdp_tensor *buffer));

/* Pre-order walk over the subtree, each module once (a module reachable twice is visited under its first name).
 * `name` is dotted, "" for the root. A failing visit ends the walk. */
typedef fsdp_status (*fsdp__module_visit)(void *arg, fsdp_module *module, const char *name);
fsdp_status fsdp__module_walk(fsdp_module *root, fsdp__module_visit visit, void *arg);
/* The same, children before parents. */
fsdp_status fsdp__module_walk_up(fsdp_module *root, fsdp__module_visit visit, void *arg);

/* Fills elements [first, first + numel) of the parameter's global row-major order: what fsdp_module_initialize does
 * for a shard. `data` is f32, bf16 or f16 on `device`. */
fsdp_status fsdp__init_fill(fsdp_device *device, void *data, fsdp_dtype dtype, int64_t numel, fsdp_init init,
                            uint64_t seed, const char *full_name, int64_t first);

#endif
