/* shard/tree_calls.h - carrying out the calls of a plan, on ranks and on plain trees. */
#pragma once

#include "shard/tree_player.h"

/* ---- the calls ---- */

typedef void tree_play(tree_player *player, const tree_call *call);

/* Who draws calls: for trees, or in any order. */
enum {
    TREE_DRAWS_TREES,
    TREE_DRAWS_ORDERS,
    TREE_DRAWS
};

/* By kind. */
extern const struct tree_kind_row {
    const char *name;
    int weights[TREE_DRAWS]; /* how often it is drawn */
    tree_play *play;
} tree_kinds[TREE_KINDS];

/* tree_calls.c */
tree_play tree_play_forward, tree_play_evaluate, tree_play_backward, tree_play_backward_drop, tree_play_drop,
    tree_play_unshard, tree_play_reshard, tree_play_zero_grad, tree_play_freeze, tree_play_write, tree_play_reset,
    tree_play_fail_forward, tree_play_fail_shape, tree_play_fail_backward;
/* tree_optimizers.c */
tree_play tree_play_step, tree_play_clip, tree_play_optimizer_zero_grad, tree_play_new_optimizer, tree_play_unscale,
    tree_play_save_optimizer, tree_play_load_optimizer, tree_play_skip_step;
/* tree_saves.c */
tree_play tree_play_save, tree_play_load, tree_play_load_full, tree_play_checkpoint, tree_play_checkpoint_wait,
    tree_play_checkpoint_load;
/* tree_settings.c */
tree_play tree_play_sync, tree_play_all_reduce, tree_play_no_sync, tree_play_synchronize, tree_play_force_sum,
    tree_play_last, tree_play_microbatch, tree_play_set_reshard, tree_play_set_unshard_backward, tree_play_set_divide,
    tree_play_prefetch, tree_play_set_max_inputs, tree_play_post_optim, tree_play_separate_channel, tree_play_custom,
    tree_play_exposed;
/* tree_values.c */
tree_play tree_play_read_whole, tree_play_read_full, tree_play_read_gradients, tree_play_summon,
    tree_play_zero_grad_part, tree_play_freeze_field, tree_play_freeze_part, tree_play_write_field,
    tree_play_initialize, tree_play_convert, tree_play_rebuild, tree_play_refuse_shard, tree_play_refuse_unshard,
    tree_play_refuse_walked, tree_play_refuse_state, tree_play_refuse_optimizer, tree_play_refuse_write;

/* The player's running one. Passed over where it makes no sense. */
void tree_make_call(tree_player *player);
/* A few equal steps behind the last call: their bytes go to the run. */
void tree_last_steps(tree_player *player);

/* ---- what a call is made on ---- */

fsdp_module *tree_root(const tree_player *player);
/* A state that there is: every one has members, or it is not drawn. */
int tree_state_of(const tree_player *player, const tree_call *call);
/* Its first module. */
int tree_node_of(const tree_player *player, const tree_call *call);
/* -1: it chose another's name, or one that is not there. */
int tree_param_of(const tree_player *player, const tree_call *call);
/* States that a setting goes for. */
uint32_t tree_states_of(const tree_player *player, const tree_call *call);

/* ---- helpers of calls ---- */

/* Part `rank` of batch `number`. */
fsdp_tensor *tree_input(const tree_player *player, int number, int rank, int width);
/* The loss; NULL when it was told to fail. */
fsdp_tensor *tree_run_batch(tree_player *player, int node, int number, int rank, fsdp_tensor *x);
/* The parameter of an entry of a state dict: "1.p4" is parameter 4. */
int tree_param_of_entry(const char *name);
/* All gradients, reduced or not. */
void tree_zero_grad(tree_player *player);
/* What waits to be reduced of a parameter goes. */
void tree_drop_waiting(tree_player *player, int param);
/* Fields of the states name their shards now. */
void tree_shard_again(tree_player *player, uint32_t states);
/* A plain tree keeps what its forward has made of parameters for the backward, where a sharded one gathers new values.
 */
bool tree_can_write(const tree_player *player);
