/* attention_graph.h - attention as a graph of cuDNN's operations. */
#pragma once

#include "backend/cuda/cudnn_graph.h"
#include "device/kernel_args.h"

/* Strides of (batch, heads, time, head_dim), in elements; the last is 1. */
typedef struct fsdp__attention_layout {
    int64_t batch, head, time;
} fsdp__attention_layout;

/* A call of attention without its pointers and scale; comparable by memcmp. */
typedef struct fsdp__attention_call {
    int64_t batch, heads, kv_heads, time, head_dim, window;
    fsdp__attention_layout q, k, v, out, dq, dk, dv;
    int32_t dtype;
    bool causal, documents, backward;
    bool stats;      /* of a forward: the lse is wanted */
    bool repeatable; /* of a backward: the same bits every time */
    bool unused[3];
} fsdp__attention_call;

/* Lists the ids of the tensors in memory, and of the numbers. */
enum {
    FSDP__ATTENTION_Q = 1,
    FSDP__ATTENTION_K,
    FSDP__ATTENTION_V,
    FSDP__ATTENTION_OUT,
    FSDP__ATTENTION_LSE,
    FSDP__ATTENTION_POSITIONS,
    FSDP__ATTENTION_DOUT,
    FSDP__ATTENTION_DQ,
    FSDP__ATTENTION_DK,
    FSDP__ATTENTION_DV,
    FSDP__ATTENTION_DELTA,  /* (batch, heads, time) f32: sums of dout * out. Scratch */
    FSDP__ATTENTION_DQ_SUM, /* (batch, heads, time, head_dim) f32, zeros before. Scratch, if not repeatable */
    FSDP__ATTENTION_SCALE,
    FSDP__ATTENTION_ONE,
    FSDP__ATTENTION_HIDDEN, /* the score of a pair that does not meet: -inf */
    FSDP__ATTENTION_WINDOW, /* as f32 */
    FSDP__ATTENTION_IDS
};

/* Says in a few words why cuDNN does not take the call ("capped scores"), or returns NULL: it is then described in
 * `*call`. */
const char *fsdp__attention_call_of(const fsdp__attention_forward_args *args,
                                    const fsdp__attention_backward_args *backward, bool repeatable,
                                    fsdp__attention_call *call);
/* Writes down the call as a graph, which is empty before; see its status. */
void fsdp__attention_graph(const fsdp__attention_call *call, fsdp__cudnn_graph *graph);
