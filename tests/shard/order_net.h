/* shard/order_net.h - the network of the random-order test. All sizes are uneven.
 *
 *     OrderNet:   input = Linear(5,7)   blocks = ModuleList of n OrderBlock   norm = LayerNorm(7)   head = Linear(7,6)
 *     OrderBlock: x + down(gelu(up(x)))     up = Linear(7,11)   down = Linear(11,7); or 0 in place of 11
 *
 * A block can be told to fail in its forward, between its layers, or when the gradient of its output arrives; and to
 * skip its layers, which it does where x requires a gradient, so that its output does in any case. */
#ifndef TESTS_SHARD_ORDER_NET_H
#define TESTS_SHARD_ORDER_NET_H

#include "fsdp/shard.h"
#include "support/ranks.h"

enum {
    ORDER_IN = 5,
    ORDER_DIM = 7,
    ORDER_FFN = 11,
    ORDER_OUT = 6,
    ORDER_ROWS = 4, /* of one rank's batch, or none */
};

/* How the root's forward is made. */
typedef enum order_form {
    ORDER_FORM_HEAD,  /* head and loss are two operations */
    ORDER_FORM_FUSED, /* fsdp_linear_cross_entropy on the head's weight; its bias is not used */
    ORDER_FORM_TWICE, /* block 0 runs again after the last one */
    ORDER_FORMS
} order_form;

typedef struct order_net {
    fsdp_module base;
    fsdp_module *input, *blocks, *norm, *head;
    order_form form;
} order_net;

typedef struct order_block {
    fsdp_module base;
    fsdp_module *up, *down;
    bool fail_forward, fail_backward, skips;
} order_block;

fsdp_module *order_net_create(fsdp_context *context, fsdp_device *device, int blocks, int ffn, order_form form);
/* Part `rank` of batch `number`, (rows, columns). Belongs to the scope. */
fsdp_tensor *order_inputs(fsdp_context *context, int number, int rank, int rows, int columns);
fsdp_tensor *order_targets(fsdp_context *context, int number, int rank, int rows);

#endif
