/* recompute.h - a part of a forward whose saved values are given up and computed again: [Note: recomputation] in
 * recompute_forward.c. */
#pragma once

#include "autograd/node.h"

/* One operation that saved something, or whose results may be kept. */
typedef struct fsdp__recomputation_entry {
    const fsdp__op *op;
    fsdp__node *node;   /* weak; NULL when freed */
    uint64_t read;      /* the origin of its inputs: [Note: origins] in tensor/tensor.h */
    bool own;           /* it saved what it made itself, so its saved inputs alone do not make up for leaving it out */
    fsdp_tensor **kept; /* its outputs; NULL: not kept */
    int kept_count;
    uint64_t kept_version; /* number of writes to them until they were kept */
} fsdp__recomputation_entry;

struct fsdp__recomputation {
    int64_t refs; /* one per node */
    fsdp_context *context;
    fsdp_recompute_function function; /* used if there is one output; otherwise: */
    fsdp_recompute_function_many function_many;
    int output_count;
    void *arg;
    fsdp_recompute_options options;
    fsdp_tensor **inputs; /* aliases; dropped once it has run again */
    bool *wanted;         /* which inputs required a gradient */
    uint64_t *versions;   /* of the inputs' bytes */
    int input_count;
    fsdp__storage *nothing; /* storage of given-up saved tensors; it never has bytes. NULL: there are none */
    fsdp__recomputation_entry *entries;
    int64_t entry_count, entry_capacity;
    uint64_t *numbers;
    int64_t number_count, number_capacity;
    fsdp_tensor **values; /* copies of what was read without being an input */
    int64_t value_count, value_capacity;
    int64_t products; /* matrix products so far */
    bool recomputed;
    struct fsdp__recomputation *next_dead;
    /* while it runs again: */
    int64_t at, number_at, value_at; /* the next entry, number, value */
    int64_t last;                    /* the last entry that is needed */
};

/* Returns the number of writes so far to the outputs that an entry keeps. */
uint64_t fsdp__recomputation_kept_version(const fsdp__recomputation_entry *entry);
/* Returns whether a node lacks what it saved; false if it is NULL or has run. */
bool fsdp__recomputation_gave_up(const fsdp__recomputation *recomputation, const fsdp__node *node);
/* Returns the last entry whose node lacks what it saved; 0 if none does. The second run ends with it. */
int64_t fsdp__recomputation_last(const fsdp__recomputation *recomputation);
/* Drops what an entry keeps. */
void fsdp__recomputation_drop(fsdp__recomputation_entry *entry);
/* Calls its function, in the scope of the first run or of the recomputation. `outputs` holds NULLs, one for each. */
fsdp_status fsdp__recomputation_call(const fsdp__recomputation *recomputation, fsdp_tensor *const *inputs, int count,
                                     fsdp_tensor **outputs);
/* Returns whether an operation has an entry: the answer is the same in the forward and when it runs again. */
bool fsdp__recomputation_has_entry(const fsdp__traits *traits, int saved_count);
void fsdp__recomputation_unref(fsdp__recomputation *recomputation);
/* Frees dead ones, when the outermost backward is over. */
void fsdp__recomputations_free(fsdp__recomputation *dead);
/* Drops what only a recomputation needs. */
void fsdp__recomputation_settle(fsdp__recomputation *recomputation);
/* Notes that `node` is being recorded: gives up what it saved, unless the recomputation keeps that. */
fsdp_status fsdp__recomputation_note(fsdp__recomputation *recomputation, fsdp__node *node, fsdp_tensor *const *inputs,
                                     fsdp_tensor *const *outputs);
/* Refills the node when the same operation runs again: the node gets back what it saved, and the outputs are marked.
 * Returns FSDP_STATE, with fsdp__recomputation_done true, if that was the last node that anybody needs. */
fsdp_status fsdp__recomputation_refill(fsdp__recomputation *recomputation, const fsdp__traits *traits,
                                       const fsdp__op *op, fsdp_tensor *const *inputs, int input_count,
                                       fsdp_tensor *const *outputs, int output_count, fsdp_tensor *const *saved,
                                       int saved_count);
/* Runs the node's function again if the node has given up what it saved; before its backward. */
fsdp_status fsdp__recomputation_restore(const fsdp__node *node);
/* Detaches the node from its recomputation. */
void fsdp__recomputation_forget(fsdp__node *node);
