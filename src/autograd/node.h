/* node.h - the tape: what hangs on a tensor, what a recorded operation holds, what one backward holds.
 *
 * [Note: who holds whom]
 *   tensor --owns--> grad state --owns--> producing node --owns--> producers of its inputs
 *                                                        --owns--> its leaf inputs
 *                                                        --owns--> saved aliases
 *
 * A node never holds its own outputs (saved tensors are aliases without history; the pointer back to an output's grad
 * state is weak). So there is no cycle, and a graph is freed with the last tensor that was made by it.
 *
 * [Note: exclusive gradients]
 * A gradient that only its holder can see (one reference, and one on its storage) may be overwritten: the next gradient
 * for the same tensor is added in place, and an element-wise backward reuses its output's gradient for its input's. */
#pragma once

#include "autograd/autograd.h"
#include "device/device.h"
#include "device/kernels.h"

typedef struct fsdp__grad_state fsdp__grad_state;
typedef struct fsdp__run fsdp__run;
typedef struct fsdp__recomputation fsdp__recomputation;

typedef struct fsdp__hook {
    fsdp_grad_hook call;
    void *arg;
    void (*free_arg)(void *arg); /* NULL: `arg` stays the caller's */
    bool always;                 /* also runs where the walk passes without a gradient */
    struct fsdp__hook *next;
} fsdp__hook;

/* Holds what a tensor knows about gradients (its `autograd` attachment). */
struct fsdp__grad_state {
    fsdp_tensor *tensor; /* weak: the tensor it hangs on */
    bool requires_grad;
    bool recomputed;      /* made by a recomputation: requires a gradient, but gets none */
    bool is_one;          /* a gradient of all ones that fsdp_backward made */
    fsdp__node *producer; /* NULL: a leaf */
    int output;           /* which output of the producer */
    fsdp_tensor *grad;    /* of leaves */
    fsdp__hook *hooks;    /* of leaves; hooks of other tensors live on their node */
    fsdp__grad_source source;
    void *source_arg;
    fsdp_dtype source_dtype; /* NONE: that of the leaf */
    const fsdp__leaf_owner *owner;
    void *owner_arg;
    int64_t uses; /* uses of a leaf that running backwards have not come through; for owners that ask */
    /* A tensor handed out by fsdp__reserve_grad and its leaf know each other until one of them dies. */
    fsdp__grad_state *reserved;     /* on the leaf */
    fsdp__grad_state *reserved_for; /* on the tensor */
};

/* Describes one input of a node. `node` and `leaf` are both NULL when no gradient is wanted. */
typedef struct fsdp__edge {
    fsdp__node *node; /* owned */
    int output;
    fsdp_tensor *leaf; /* owned */
    fsdp_device *device;
    fsdp_dtype dtype;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS];
    /* while the node runs; see leaf.c */
    fsdp_tensor *target;
    bool target_installed; /* the target was made the leaf's gradient by this run */
    bool target_direct;    /* the target is where the gradient belongs: nothing to add afterwards */
    bool answered;         /* a user's operation has given it, which it may do only once */
    fsdp_tensor *given;    /* for a leaf: added once the node has dropped everything else */
} fsdp__edge;

/* Holds what a node knows of a tensor that it saved. */
typedef struct fsdp__saved_mark {
    uint64_t version; /* of the bytes that the backward needs */
    uint64_t origin;  /* of those bytes, in a recomputed function: [Note: origins] in tensor/tensor.h */
    int input;        /* the input that it is, or lies in; -1: none */
    int output;       /* or the output; -1: none */
    bool remade;      /* it is not kept: the input's node makes it again when the backward needs it */
} fsdp__saved_mark;

typedef struct fsdp__output {
    fsdp__grad_state *state; /* weak; NULL when the tensor has been freed */
    fsdp__hook *hooks;
} fsdp__output;

struct fsdp__node {
    int64_t refs;
    const fsdp__op *op;
    const fsdp__traits *traits;
    fsdp_context *context;
    const void *owner; /* the module that recorded it: fsdp__taker */
    uint64_t sequence;
    int input_count, output_count, saved_count;
    fsdp__edge *inputs;
    fsdp__output *outputs;
    fsdp_tensor **grads;     /* of the outputs, as they arrive */
    fsdp_tensor **saved;     /* owned aliases */
    fsdp__saved_mark *marks; /* one for each saved alias */
    void *state;
    bool state_owned;                   /* free_state still has to run */
    bool released;                      /* it has run: nothing is saved any more */
    fsdp__recomputation *recomputation; /* that it is a part of, and holds, and its place there; or NULL */
    int64_t place;
    bool aside; /* reached only because it is beside another node: [Note: anchors] in boundary.c */
    /* while a backward walks: */
    fsdp__run *run;
    int64_t dependencies; /* consumers that have not run */
    bool queued;
    bool counted; /* it is counted among the uses of leaves */
    fsdp__node *next_dead;
};

typedef struct fsdp__callback {
    fsdp_backward_callback call;
    void *arg;
} fsdp__callback;

/* Holds the state of one backward. They nest: a hook may run a backward of its own over another graph. */
struct fsdp__run {
    fsdp__run *outer;
    bool keep_graph;
    fsdp__node **nodes; /* those reached; one reference each */
    int64_t node_count, node_capacity;
    fsdp__node **heap; /* those ready to run, the newest on top */
    int64_t heap_count;
    fsdp__recomputation *dead; /* of the outermost run: unreferenced, but what they hold may still be needed */
    fsdp__callback *callbacks;
    int64_t callback_count, callback_capacity;
};

/* Holds the autograd state of a context. */
typedef struct fsdp__autograd {
    int64_t no_grad;  /* depth, inside the innermost enable_grad */
    int64_t *outside; /* depths around each enable_grad, the outermost first */
    int64_t outside_count, outside_capacity;
    fsdp__rows_of_batch rows;
    uint64_t sequence;
    uint64_t backwards;        /* begun so far */
    fsdp__storage_namer namer; /* or NULL */
    fsdp__run *running;
    fsdp__recomputation *recomputation; /* the one whose function is running, for the first time or again */
    bool recomputing;                   /* it is running again */
} fsdp__autograd;

fsdp__autograd *fsdp__autograd_get(const fsdp_context *context); /* NULL if nothing was recorded yet */
fsdp__autograd *fsdp__autograd_make(fsdp_context *context);      /* NULL and a last error if out of memory */
fsdp_context *fsdp__tensor_context(const fsdp_tensor *tensor);

/* ---- grad_state.c ---- */
fsdp__grad_state *fsdp__grad_state_get(const fsdp_tensor *tensor); /* NULL if the tensor has none */
fsdp_status fsdp__grad_state_make(fsdp_tensor *tensor, fsdp__grad_state **out);
/* Returns the dtype of a gradient that the leaf is yet to get; its state may be NULL. */
fsdp_dtype fsdp__leaf_grad_dtype(const fsdp_tensor *leaf, const fsdp__grad_state *state);
/* Returns whether the tensor may become the gradient of the leaf, or a part of it, as it is: by its dtype. */
bool fsdp__leaf_takes(const fsdp_tensor *leaf, const fsdp_tensor *grad);

/* ---- hook.c ---- */
/* Appends a copy of the hook. */
fsdp_status fsdp__hooks_append(fsdp__hook **hooks, const fsdp__hook *hook);
void fsdp__hooks_free(fsdp__hook *hooks);
/* Runs the hooks on `*grad`, which stays borrowed, and checks what they replace it with. */
fsdp_status fsdp__hooks_run(const fsdp__hook *hooks, fsdp_tensor *tensor, fsdp_tensor **grad);
/* Runs those hooks that always run, without a gradient. */
fsdp_status fsdp__hooks_pass(const fsdp__hook *hooks, fsdp_tensor *tensor);

/* ---- node.c ---- */
/* Makes a node that has nothing yet but room. NULL and a last error if out of memory. */
fsdp__node *fsdp__node_create(int input_count, int output_count, int saved_count, size_t state_bytes);
fsdp__node *fsdp__node_ref(fsdp__node *node);
/* Returns FSDP_STATE if the i-th tensor that the node saved was written to since. `now` has the tensor's bytes. */
fsdp_status fsdp__node_check_version(const fsdp__node *node, int i, const fsdp_tensor *now);
/* Sets `nodes` as inputs behind the first one. They get no gradient; only their nodes are known. Takes references. */
void fsdp__node_set_aside(fsdp__node *node, fsdp__node *const *nodes, int count);
/* Drops saved tensors and state: the node cannot run again. */
void fsdp__node_forget(fsdp__node *node);
/* Drops the inputs as well. */
void fsdp__node_release(fsdp__node *node);

/* ---- node_grads.c ---- */
/* Adds to the gradient of an output. */
fsdp_status fsdp__node_add_grad(fsdp__node *node, int output, fsdp_tensor *grad);

/* ---- leaf.c ---- */
/* Pass the targets on after an op's backward has returned. Leaf gradients that were given wait for the second call. */
fsdp_status fsdp__node_commit_targets(fsdp__node *node);
fsdp_status fsdp__node_commit_leaves(fsdp__node *node);
/* Count the uses of leaves: a backward will come through the node; will not after all; has come through it. */
void fsdp__node_count_leaves(fsdp__node *node);
void fsdp__node_uncount_leaves(fsdp__node *node);
fsdp_status fsdp__node_complete_leaves(fsdp__node *node);
/* Drops half-written gradients after the node has failed. */
void fsdp__node_rollback(fsdp__node *node);
