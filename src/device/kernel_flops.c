/* kernel_flops.c - counts the work of a call: the operations of its products, and the bytes that it moves. */
#include <string.h>

#include "base/alloc.h"
#include "device/kernel_buffers.h"

static int64_t sum_to(int64_t n)
{
    return n > 0 ? n * (n + 1) / 2 : 0;
}

/* Adds up how many of the keys lie before a place, for each query: `last` places are before the last query's, one less
 * before that of the query before it, and so on. */
static int64_t keys_before(const fsdp__attention_forward_args *k, int64_t last)
{
    return sum_to(last) - sum_to(last - k->q_time) - sum_to(last - k->kv_time) + sum_to(last - k->kv_time - k->q_time);
}

/* Returns the multiplications of one product of all heads: one row of the head's dimension for each query and key that
 * meet. Those of documents in a window are counted as if each query saw as much as both allow. */
static int64_t attention_product(const fsdp__attention_forward_args *k)
{
    int64_t last = k->kv_time + k->lead, pairs = k->q_time * k->kv_time;

    if (k->causal) /* the last query would see so many, were there more keys, and each query before it one key less */
        pairs = keys_before(k, last);
    if (k->window > 0) /* the last query does not see `last` - window of them, and so on */
        pairs -= keys_before(k, last - k->window);
    pairs *= k->batch;
    if (k->pairs > 0 && k->pairs < pairs)
        pairs = k->pairs;
    return k->heads * pairs * k->head_dim;
}

/* Returns the multiplications of a convolution: all three kernels have the same number. */
static int64_t convolution(const fsdp__conv2d_sizes *k)
{
    return k->batch * k->out * k->out_height * k->out_width * (k->in / k->groups) * k->kernel_height * k->kernel_width;
}

int64_t fsdp__kernel_flops(fsdp__kernel kernel, const void *args)
{
    const fsdp__matmul_args *matmul = args;
    const fsdp__attention_backward_args *backward = args;

    switch (kernel) {
    case FSDP__KERNEL_MATMUL:
        return 2 * matmul->batch * matmul->m * matmul->n * matmul->k;
    case FSDP__KERNEL_ATTENTION_FORWARD:
        return 2 * 2 * attention_product(args);
    case FSDP__KERNEL_ATTENTION_BACKWARD: /* what it recomputes of the forward is not counted */
        return 2 * 4 * attention_product(&backward->forward);
    case FSDP__KERNEL_CONV2D_FORWARD:
        return 2 * convolution(&((const fsdp__conv2d_forward_args *)args)->sizes);
    case FSDP__KERNEL_CONV2D_INPUT:
        return 2 * convolution(&((const fsdp__conv2d_input_args *)args)->sizes);
    case FSDP__KERNEL_CONV2D_WEIGHT:
        return 2 * convolution(&((const fsdp__conv2d_weight_args *)args)->sizes);
    default:
        return 0;
    }
}

/* ---- bytes ---- */

static void *add_buffer(void *arg, const fsdp__buffer *buffer)
{
    double *bytes = arg;

    *bytes += (double)buffer->bytes * (buffer->access == FSDP__READS_AND_WRITES ? 2 : 1);
    return (void *)(uintptr_t)buffer->pointer;
}

/* Lays rows that may be parts of a wider tensor side by side: what lies between them is not moved. */
static void pack(fsdp__kernel kernel, fsdp__kernel_args *a)
{
    if (kernel == FSDP__KERNEL_ROPE) {
        a->rope.x_head = a->rope.y_head = a->rope.head_dim;
        a->rope.x_time = a->rope.y_time = a->rope.heads * a->rope.head_dim;
        a->rope.x_batch = a->rope.y_batch = a->rope.time * a->rope.x_time;
    } else if (kernel == FSDP__KERNEL_SWIGLU_FORWARD) {
        fsdp__swiglu_forward_args *f = &a->swiglu_forward;

        f->gate_row = f->up_row = f->y_row = f->cols;
    } else if (kernel == FSDP__KERNEL_SWIGLU_BACKWARD) {
        fsdp__swiglu_backward_args *b = &a->swiglu_backward;

        b->gate_row = b->up_row = b->dy_row = b->dgate_row = b->dup_row = b->y_row = b->cols;
    }
}

/* Adds up the buffers of a copy of the call: the walk writes to it, and to its table. */
double fsdp__kernel_bytes(fsdp__kernel kernel, const void *args)
{
    fsdp__kernel_args own;
    const void *theirs;
    size_t table_bytes = fsdp__kernel_table(kernel, args, &theirs);
    FSDP__FREED void *table = table_bytes > 0 ? fsdp__malloc(table_bytes) : NULL;
    double bytes = 0;

    memcpy(&own, args, fsdp__kernel_infos[kernel].args_bytes);
    pack(kernel, &own);
    if (table_bytes > 0 && !table)
        return 0;
    if (table) {
        memcpy(table, theirs, table_bytes);
        fsdp__kernel_set_table(kernel, &own, table);
    }
    fsdp__kernel_buffers(kernel, &own, add_buffer, &bytes);
    return bytes;
}
