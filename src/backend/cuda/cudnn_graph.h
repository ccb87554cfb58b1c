/* cudnn_graph.h - graphs of cuDNN's operations, and the plans that it makes of them.
 *
 * A graph is written down call by call, in the order in which its operations follow from each other; the first call
 * that fails stays in `status`, and those after it do nothing. A plan keeps its graph. Tensors have four dimensions. */
#pragma once

#include "backend/cuda/cudnn_calls.h"

enum {
    FSDP__CUDNN_MOST_DESCRIPTORS = 192,
    FSDP__CUDNN_MOST_OPERATIONS = 48,
    FSDP__CUDNN_FIRST_VIRTUAL = 1000 /* the ids of tensors that are in no memory begin here */
};

typedef struct fsdp__cudnn_tensor {
    fsdp__cudnn_descriptor descriptor;
    int64_t shape[4];
} fsdp__cudnn_tensor;

typedef struct fsdp__cudnn_graph {
    const fsdp__cudnn *cudnn;
    fsdp_status status;
    fsdp__cudnn_descriptor descriptors[FSDP__CUDNN_MOST_DESCRIPTORS]; /* all of them, to be freed */
    fsdp__cudnn_descriptor operations[FSDP__CUDNN_MOST_OPERATIONS];
    int descriptor_count, operation_count, virtual_count;
    fsdp__cudnn_descriptor plan; /* one of the descriptors */
    int64_t workspace_bytes;     /* that the plan needs */
} fsdp__cudnn_graph;

/* Returns a tensor in memory that is aligned to 16 bytes, whose pointer is given by its id when the plan runs. */
fsdp__cudnn_tensor fsdp__cudnn_stored(fsdp__cudnn_graph *graph, int64_t id, int type, const int64_t shape[4],
                                      const int64_t strides[4]);
/* Returns one number, in memory of the host when the plan runs. */
fsdp__cudnn_tensor fsdp__cudnn_number(fsdp__cudnn_graph *graph, int64_t id, int type);
/* Returns a tensor that lies in no memory. */
fsdp__cudnn_tensor fsdp__cudnn_virtual(fsdp__cudnn_graph *graph, int type, const int64_t shape[4],
                                       const int64_t strides[4]);

/* Operands of a pointwise operation; those that it has not are NULL. `axis`: of GEN_INDEX. */
typedef struct fsdp__cudnn_operands {
    const fsdp__cudnn_tensor *x, *b, *choice;
    int64_t axis;
} fsdp__cudnn_operands;

/* Adds an operation whose result is `out`. */
void fsdp__cudnn_pointwise_to(fsdp__cudnn_graph *graph, int mode, fsdp__cudnn_operands in,
                              const fsdp__cudnn_tensor *out);
/* Returns its result, in no memory, of the shape of x. */
fsdp__cudnn_tensor fsdp__cudnn_pointwise(fsdp__cudnn_graph *graph, int mode, int type, fsdp__cudnn_operands in);
/* Multiplies the matrices of the last two dimensions. Fewer heads of `b` repeat. */
void fsdp__cudnn_matmul(fsdp__cudnn_graph *graph, const fsdp__cudnn_tensor *a, const fsdp__cudnn_tensor *b,
                        const fsdp__cudnn_tensor *out);
/* Sums, or takes the maximum, over the dimensions in which `out` is shorter. */
void fsdp__cudnn_reduce(fsdp__cudnn_graph *graph, int operator, const fsdp__cudnn_tensor * x,
                        const fsdp__cudnn_tensor *out);
/* Views a tensor by another shape. */
void fsdp__cudnn_reshape(fsdp__cudnn_graph *graph, const fsdp__cudnn_tensor *x, const fsdp__cudnn_tensor *out);

/* Says where plans are to run: on the GPU of a handle, or, if that is NULL, on one that need not be there, of which
 * cuDNN is told what its driver would say, in JSON. */
typedef struct fsdp__cudnn_target {
    void *handle;
    const char *card;
} fsdp__cudnn_target;

/* Lets cuDNN make a plan, the first that its heuristic gives and its engine can build. `repeatable`: of those engines
 * only whose results do not depend on time. Fails with FSDP_UNSUPPORTED if there is none. */
fsdp_status fsdp__cudnn_make_plan(fsdp__cudnn_graph *graph, const fsdp__cudnn_target *target, bool repeatable);
/* Runs it; pointers[i] is of the tensor ids[i]. */
fsdp_status fsdp__cudnn_run_plan(const fsdp__cudnn_graph *graph, void *handle, int count, const int64_t *ids,
                                 void *const *pointers, void *workspace);
/* Frees the graph's descriptors. */
void fsdp__cudnn_graph_clear(fsdp__cudnn_graph *graph);
