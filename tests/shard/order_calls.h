/* shard/order_calls.h - carrying out each call: play_* on one rank of a sharded model, or on both; plain_* on a plain
 * model.
 *
 * The plain model runs every rank's batch, one rank after the other. Each rank has unreduced gradients of its own,
 * which are put in place around its backward; a reduction adds those of the ranks in their order, divides, and adds to
 * the model's gradients. */
#ifndef TESTS_SHARD_ORDER_CALLS_H
#define TESTS_SHARD_ORDER_CALLS_H

#include "shard/order_play.h"

/* ---- forward ---- */

void drop_losses(order_model *m, int slot);
void play_forward(order_player *player, const order_call *call);
void play_evaluate(order_player *player, const order_call *call);
void play_drop(order_player *player, const order_call *call);

/* ---- backward ---- */

void play_backward(order_player *player, const order_call *call);
/* Also what is partial. */
void drop_unreduced(order_model *m, uint32_t params);
/* Of call->params what is unreduced, of call->completes what is partial. */
void plain_reduce(const order_player *player, order_model *m, const order_call *call);
/* 0: by the number of ranks. */
float divided(float sum, float factor, int world);
void plain_backward(order_player *player, const order_call *call);

/* ---- whole and sharded ---- */

void play_unshard(order_player *player, const order_call *call);
void play_unshard_async(order_player *player, const order_call *call);
void play_wait_unshard(order_player *player, const order_call *call);
void play_reshard(order_player *player, const order_call *call);
void play_reshard_all(order_player *player, const order_call *call);
/* The whole tensors that the fields name. */
void play_read_whole(order_player *player, const order_call *call);
void play_read_full(order_player *player, const order_call *call);
/* Gradients of shards are distributed tensors: read whole. */
void play_read_gradients(order_player *player, const order_call *call);
/* From the beginning to the end. */
void play_summon(order_player *player, const order_call *call);

/* ---- gradients and the optimizer ---- */

void play_zero_grad(order_player *player, const order_call *call);
void play_optimizer_zero_grad(order_player *player, const order_call *call);
void play_step(order_player *player, const order_call *call);
void play_clip(order_player *player, const order_call *call);
/* Halves the gradients. */
void play_unscale(order_player *player, const order_call *call);
void play_new_optimizer(order_player *player, const order_call *call);
void play_freeze(order_player *player, const order_call *call);
void play_freeze_one(order_player *player, const order_call *call);

/* ---- settings ---- */

void play_sync(order_player *player, const order_call *call);
void play_all_reduce(order_player *player, const order_call *call);
void play_no_sync(order_player *player, const order_call *call);
void play_synchronize(order_player *player, const order_call *call);
void plain_synchronize(order_player *player, const order_call *call);
void play_last(order_player *player, const order_call *call);
void play_set_reshard_forward(order_player *player, const order_call *call);
void play_set_reshard_backward(order_player *player, const order_call *call);
void play_set_prefetch(order_player *player, const order_call *call);
void play_set_in_flight(order_player *player, const order_call *call);
void play_set_channel(order_player *player, const order_call *call);
void play_set_divide(order_player *player, const order_call *call);

/* ---- values ---- */

void play_write(order_player *player, const order_call *call);
void play_initialize(order_player *player, const order_call *call);
void play_save(order_player *player, const order_call *call);
void play_load(order_player *player, const order_call *call);
/* Values that are there, gathered and broadcast: a write all the same. */
void play_load_full(order_player *player, const order_call *call);

/* ---- failures ---- */

void play_reset(order_player *player, const order_call *call);
/* Of a reset, and of a forward that failed. */
void plain_reset(order_player *player, const order_call *call);
void play_fail_forward(order_player *player, const order_call *call);
void play_fail_shape(order_player *player, const order_call *call);
void play_fail_backward(order_player *player, const order_call *call);
void plain_fail_backward(order_player *player, const order_call *call);
void play_refuse_shard(order_player *player, const order_call *call);
void play_refuse_unshard(order_player *player, const order_call *call);
void play_refuse_walked(order_player *player, const order_call *call);
void play_refuse_state(order_player *player, const order_call *call);
void play_refuse_optimizer(order_player *player, const order_call *call);
void play_refuse_write(order_player *player, const order_call *call);

#endif
