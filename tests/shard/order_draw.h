/* shard/order_draw.h - drawing calls: what may come next, and what it changes.
 *
 * One function a call: it returns false when the call makes no sense now, else fills in the call's arguments and does
 * to the sketch what the call does to the model. */
#ifndef TESTS_SHARD_ORDER_DRAW_H
#define TESTS_SHARD_ORDER_DRAW_H

#include "shard/order_sketch.h"

/* ---- forward and backward ---- */

bool draw_forward(order_draw *d, order_call *c);
bool draw_forward_part(order_draw *d, order_call *c);
bool draw_evaluate(order_draw *d, order_call *c);
bool draw_backward(order_draw *d, order_call *c);
bool draw_backward_keep(order_draw *d, order_call *c);
bool draw_drop(order_draw *d, order_call *c);

/* ---- whole and sharded ---- */

bool draw_unshard(order_draw *d, order_call *c);
bool draw_unshard_async(order_draw *d, order_call *c);
bool draw_wait_unshard(order_draw *d, order_call *c);
bool draw_reshard(order_draw *d, order_call *c);
bool draw_reshard_all(order_draw *d, order_call *c);
bool draw_in_window(order_draw *d, order_call *c);
bool draw_always(order_draw *d, order_call *c);
bool draw_settled(order_draw *d, order_call *c);
bool draw_summon(order_draw *d, order_call *c);

/* ---- gradients and the optimizer ---- */

bool draw_zero_grad(order_draw *d, order_call *c);
bool draw_optimizer_zero_grad(order_draw *d, order_call *c);
bool draw_step(order_draw *d, order_call *c);
bool draw_clip(order_draw *d, order_call *c);
bool draw_unscale(order_draw *d, order_call *c);
/* The old one goes. */
bool draw_new_optimizer(order_draw *d, order_call *c);
bool draw_freeze(order_draw *d, order_call *c);
bool draw_unfreeze(order_draw *d, order_call *c);
/* Freezes or unfreezes one parameter. */
bool draw_freeze_one(order_draw *d, order_call *c);

/* ---- settings ---- */

bool draw_sync_off(order_draw *d, order_call *c);
bool draw_sync_on(order_draw *d, order_call *c);
bool draw_all_reduce_off(order_draw *d, order_call *c);
bool draw_all_reduce_on(order_draw *d, order_call *c);
bool draw_no_sync_begin(order_draw *d, order_call *c);
bool draw_no_sync_end(order_draw *d, order_call *c);
bool draw_synchronize(order_draw *d, order_call *c);
bool draw_last_off(order_draw *d, order_call *c);
bool draw_last_on(order_draw *d, order_call *c);
bool draw_set_reshard_forward(order_draw *d, order_call *c);
bool draw_set_reshard_backward(order_draw *d, order_call *c);
bool draw_set_prefetch(order_draw *d, order_call *c);
bool draw_set_in_flight(order_draw *d, order_call *c);
bool draw_set_channel(order_draw *d, order_call *c);
bool draw_set_divide(order_draw *d, order_call *c);

/* ---- values ---- */

bool draw_write(order_draw *d, order_call *c);
bool draw_initialize(order_draw *d, order_call *c);
bool draw_save(order_draw *d, order_call *c);
bool draw_load(order_draw *d, order_call *c);

/* ---- failures ---- */

bool draw_reset(order_draw *d, order_call *c);
bool draw_rebuild(order_draw *d, order_call *c);
bool draw_fail_forward(order_draw *d, order_call *c);
/* Then the iteration is reset and all gradients are dropped. */
bool draw_fail_backward(order_draw *d, order_call *c);
bool draw_refuse_shard(order_draw *d, order_call *c);
bool draw_refuse_unshard(order_draw *d, order_call *c);
bool draw_refuse_walked(order_draw *d, order_call *c);
bool draw_refuse_optimizer(order_draw *d, order_call *c);
/* To the whole tensor. */
bool draw_refuse_write(order_draw *d, order_call *c);

#endif
