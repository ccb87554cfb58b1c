/* labels.h - which dimensions of an operation's inputs and result belong together.
 *
 * Dimensions that run together have one label: those of a matrix product are m, k and n in (m,k) x (k,n) -> (m,n). A
 * mesh dimension may cut one label: then every input that has it must be cut there, and so is the result. If the result
 * does not have it, the operation adds up over it, and each rank has a contribution. */
#pragma once

#include "ops/global.h"

enum {
    FSDP__MOST_LABELS = FSDP_MAX_DIMS + 2
};

/* Says in which inputs an operation is linear: these may be contributions, and the result then is one, too. */
typedef enum fsdp__linearity {
    FSDP__LINEAR_NONE,
    FSDP__LINEAR_FIRST, /* the first */
    FSDP__LINEAR_EACH,  /* one, of any of them, but not two */
    FSDP__LINEAR_ALL    /* all of them together */
} fsdp__linearity;

typedef struct fsdp__labels {
    int count;
    bool whole[FSDP__MOST_LABELS];              /* the label must not be cut */
    int in[FSDP__GLOBAL_INPUTS][FSDP_MAX_DIMS]; /* -1: none, the dimension is repeated */
    int ndim, out[FSDP_MAX_DIMS];               /* of the result; -1: none */
    int64_t sizes[FSDP_MAX_DIMS];               /* of the whole result */
    fsdp__linearity linear;
    int added; /* an input that is added to the rest, such as a bias; -1: none */
} fsdp__labels;

/* Finds the labels of a call. `cuts` are the numbers of parts of the first input's dimensions. Fails if shapes do not
 * fit. Makes dimensions of the call positive, and sets `reduced`. */
fsdp_status fsdp__find_labels(fsdp__global_call *call, const int64_t *cuts, fsdp__labels *out);
