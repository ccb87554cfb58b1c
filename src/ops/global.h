/* global.h - operations on distributed tensors that they take for the whole tensor.
 *
 * [Note: distributed tensors]
 * A distributed tensor whose `global` is set (parallel/: fsdp_from_local) holds this rank's part and stands for the
 * whole; a parameter's is not set. An operation that has a rule for such inputs computes on the parts and gives the
 * result its own placements. This layer knows neither meshes nor placements: whoever sets `global` leaves functions in
 * the context. An operation with a rule says what it is (fsdp__global_call), gets the parts that it has to compute
 * with, calls itself with those, and gives the result away:
 *
 *     if (fsdp__is_global(&x, 1)) {
 *         fsdp__global_call call = {.name = "exp", .rule = FSDP__RULE_POINTWISE, .inputs = &x, .count = 1};
 *
 *         return fsdp__global_begin(&call) ? fsdp__global_end(&call, fsdp_exp(call.parts[0])) : NULL;
 *     }
 *
 * Between the two the inputs are not global. Any other operation refuses such inputs in fsdp__op_inputs. */
#pragma once

#include "tensor/tensor.h"

typedef enum fsdp__rule {
    FSDP__RULE_POINTWISE, /* of any number of inputs, broadcast */
    FSDP__RULE_LINEAR,    /* pointwise, and linear in the first input alone */
    FSDP__RULE_PRODUCT,   /* pointwise, and linear in each of two inputs */
    FSDP__RULE_SUM,       /* pointwise, and linear in all inputs together */
    FSDP__RULE_WEIGHT,    /* x (...,C), weight (O,C), bias (O) or NULL */
    FSDP__RULE_CONV1D,    /* x (...,C), weight (C,O), bias (O) or NULL */
    FSDP__RULE_MATMUL,
    FSDP__RULE_ROWS,      /* a function of each row: first inputs (...,C), those of one dimension (C) */
    FSDP__RULE_REDUCE,    /* the sum over `dims`; none: all. `reduced` becomes the elements of one sum */
    FSDP__RULE_TRANSPOSE, /* dims[0] and dims[1] */
    FSDP__RULE_RESHAPE,   /* to `sizes`, which become those of the part */
    FSDP__RULE_EXPAND,    /* the same */
    FSDP__RULE_SLICE,     /* dims[0], from sizes[0] on, sizes[1] of it; these become those of the part */
    FSDP__RULE_CONCAT,    /* along dims[0] */
    FSDP__RULE_DROPOUT,   /* `key` becomes that of the part, dims[0], sizes[0] and sizes[1] where it lies:
                             dimension, first, whole (-1: it is none) */
    FSDP__RULE_EMBEDDING, /* table (V,C), ids (...); `reduced` becomes V */
    FSDP__RULE_LOSS       /* input (...,V), targets (...): the sum over all of them */
} fsdp__rule;

enum {
    FSDP__GLOBAL_INPUTS = 16 /* at most */
};

typedef struct fsdp__global_call {
    const char *name;
    fsdp__rule rule;
    fsdp_tensor *const *inputs; /* may have NULLs */
    int count;
    int dims[FSDP_MAX_DIMS], dim_count;
    bool keep_dim;
    int ndim; /* of `sizes` */
    int64_t sizes[FSDP_MAX_DIMS];
    uint64_t key;
    /* What begin finds. */
    fsdp_tensor *parts[FSDP__GLOBAL_INPUTS]; /* to compute with */
    int64_t reduced;
    int64_t first;     /* of an embedding whose rows are cut: the first that this rank has; -1: it has all */
    void *result;      /* the distribution that the result gets */
    unsigned unmarked; /* bit i: input i was global */
    bool counted;      /* of a loss: ranks have different rows */
} fsdp__global_call;

typedef struct fsdp__global_rules {
    bool (*begin)(fsdp__global_call *call);
    void (*end)(fsdp__global_call *call, fsdp_tensor *const *results, int count);
    const int64_t *(*shape)(const fsdp_tensor *tensor);
    void (*refuse)(const char *op, const fsdp_tensor *input);
    /* Functions that need communication, or the mesh. */
    fsdp_tensor *(*total)(const fsdp__global_call *call, fsdp_tensor *part); /* sum over those ranks that differ */
} fsdp__global_rules;

fsdp_status fsdp__set_global_rules(fsdp_context *context, const fsdp__global_rules *rules);

/* Returns whether one of the inputs, which may be NULL or FSDP_NO_BIAS, is global. */
bool fsdp__is_global(fsdp_tensor *const *inputs, int count);
/* Finds the parts. Returns false, with a last error, if there is no rule for these placements. */
bool fsdp__global_begin(fsdp__global_call *call);
/* Gives the result its placements, and returns it; NULL: it has failed. */
fsdp_tensor *fsdp__global_end(fsdp__global_call *call, fsdp_tensor *result);
/* Does the same with a second result of the same shape. */
fsdp_tensor *fsdp__global_end_two(fsdp__global_call *call, fsdp_tensor *result, fsdp_tensor *second);
/* Adds up what the ranks have whose parts of the inputs differ. */
fsdp_tensor *fsdp__global_total(const fsdp__global_call *call, fsdp_tensor *part);
/* Returns the shape of the whole tensor, or that of a plain one. */
const int64_t *fsdp__global_shape(const fsdp_tensor *tensor);
/* Sets the last error: the operation has no rule for global inputs. */
void fsdp__global_refuse(const char *op, const fsdp_tensor *input);
