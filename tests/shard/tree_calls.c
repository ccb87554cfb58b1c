/* tree_calls.c - each call, on ranks and on plain trees. */
#include "shard/tree_calls.h"

#include <math.h>

#include "device/device.h"
#include "fsdp/fsdp1.h"
#include "shard/tree_plain.h"
#include "tensor/tensor.h"

fsdp_module *tree_root(const tree_player *player)
{
    return player->modules[0];
}

/* A state that there is: every one has members, or it is not drawn. */
int tree_state_of(const tree_player *player, const tree_call *call)
{
    int s = call->target % player->plan->state_count;

    return player->plan->states[s].member_count > 0 ? s : 0;
}

int tree_node_of(const tree_player *player, const tree_call *call)
{
    return player->plan->states[tree_state_of(player, call)].members[0];
}

/* -1: it chose another's name, or one that is not there. */
int tree_param_of(const tree_player *player, const tree_call *call)
{
    int p = player->plan->param_count > 0 ? call->target % player->plan->param_count : 0;

    return player->params[p] ? p : -1;
}

/* States that a setting goes for. */
uint32_t tree_states_of(const tree_player *player, const tree_call *call)
{
    return call->recurse ? tree_states_below(player->plan, tree_node_of(player, call))
                         : 1u << tree_state_of(player, call);
}

/* ---- forward ---- */

fsdp_tensor *tree_input(const tree_player *player, int number, int rank, int width)
{
    float values[TREE_ROWS * 8];
    int rows = tree_rows(player->plan, number, rank);
    fsdp_tensor *x;

    for (int i = 0; i < rows; i++)
        for (int j = 0; j < width; j++)
            values[i * width + j] = (float)(((rank * TREE_ROWS + i) * 31 + j * 17 + number * 7) % 23) / 11.0f - 1.0f;
    x = CHECK_PTR(fsdp_from_data(test_device(player->context), FSDP_F32, FSDP_SHAPE(rows, width), values));
    if (player->plan->inputs)
        CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    return x;
}

fsdp_tensor *tree_run_batch(tree_player *player, int node, int number, int rank, fsdp_tensor *x)
{
    fsdp_tensor *y;

    if (player->plain && !player->plan->replicated)
        for (int64_t p = 0; p < player->named.count; p++)
            player->named.items[p].tensor->storage->renewed_by =
                player->named.items; /* a backward computes with what is there then */
    player->feed.number = number;
    player->feed.rank = rank;
    player->feed.trains = player->plan->inputs;
    y = tree_run_node(player->modules[node], number, rank, x);
    y = y ? fsdp_cast(y, FSDP_F32) : NULL;
    return y ? fsdp_mean(fsdp_mul(y, y)) : NULL;
}

static void log_loss(tree_player *player, int rank, const fsdp_tensor *loss)
{
    double value;

    CHECK_OK(fsdp_tensor_item(loss, &value));
    tree_log_value(player, rank, "loss", value);
    if (player->feed.trains)
        CHECK(!fsdp_grad_enabled(player->context) || fsdp_tensor_requires_grad(loss));
    tree_log_value(player, rank, "whether there is anything to train", player->feed.trains);
}

/* States whose modules a forward has run are sharded again, or stay as they are. */
static void pass_forward(tree_player *player, int node)
{
    uint32_t states = node == 0 ? UINT32_MAX : tree_states_below(player->plan, node);

    for (int s = 0; s < player->plan->state_count; s++)
        if (player->reshard[s] == FSDP_RESHARD_ALWAYS || (player->reshard[s] == FSDP_RESHARD_AUTO && s != 0))
            player->windows &= ~(states & 1u << s);
    player->requested = 0;
    player->ran = true;
}

static void forward(tree_player *player, int node, int number, tree_slot *slot)
{
    tree_drop_slot(slot);
    for (int i = 0; i < player->ranks; i++) {
        int rank = player->first_rank + i;
        fsdp_tensor *x = tree_input(player, number, rank, player->plan->width), *loss;

        loss = CHECK_PTR(tree_run_batch(player, node, number, rank, x));
        slot->losses[i] = fsdp_tensor_ref(loss);
        slot->inputs[i] = fsdp_tensor_ref(x);
        slot->trains = slot->trains || player->feed.trains;
        log_loss(player, rank, loss);
    }
    pass_forward(player, node);
}

/* The next loss of plans of any order that can, or cannot, be walked back. */
static tree_slot *slot_of(tree_player *player, const tree_call *call, bool can)
{
    for (int i = 0; i < TREE_SLOTS && player->plan->orders; i++) {
        tree_slot *slot = &player->slots[(call->slot + i) % TREE_SLOTS];

        if ((slot->losses[0] && !slot->walked) == can)
            return slot;
    }
    return &player->slots[call->slot];
}

void tree_play_forward(tree_player *player, const tree_call *call)
{
    bool part = call->kind == TREE_FORWARD_PART && player->ran;

    forward(player, part ? tree_node_of(player, call) : 0, call->number, slot_of(player, call, false));
}

void tree_play_evaluate(tree_player *player, const tree_call *call)
{
    int node = call->kind == TREE_EVALUATE_PART && player->ran ? tree_node_of(player, call) : 0;

    fsdp_no_grad_begin(player->context);
    for (int i = 0; i < player->ranks; i++) {
        int rank = player->first_rank + i;
        fsdp_tensor *input = tree_input(player, call->number, rank, player->plan->width);

        log_loss(player, rank, CHECK_PTR(tree_run_batch(player, node, call->number, rank, input)));
    }
    fsdp_no_grad_end(player->context);
    pass_forward(player, node);
}

void tree_play_drop(tree_player *player, const tree_call *call)
{
    tree_drop_slot(slot_of(player, call, true));
}

/* ---- backward ---- */

static bool can_walk(const tree_slot *slot)
{
    return slot->losses[0] && !slot->walked && slot->trains;
}

/* Of FSDP1's units those that stay whole until a backward reduces them. */
static uint32_t keep_unsynced(const tree_player *player)
{
    uint32_t keep = 0;

    for (int s = 0; s < player->plan->state_count && player->plan->fsdp1; s++)
        if (player->plan->states[s].reshard == FSDP_RESHARD_NEVER)
            keep |= 1u << s;
    return player->no_sync > 0 ? keep : keep & ~player->sync;
}

/* A loss that depends on nothing that is trained. */
static void refuse_backward(const tree_player *player, const tree_slot *slot)
{
    for (int i = 0; i < player->ranks && slot->losses[0] && !slot->walked; i++)
        if (!fsdp_tensor_requires_grad(slot->losses[i]))
            CHECK_STATUS(fsdp_backward(slot->losses[i]), FSDP_INVALID);
}

/* Whether a plain tree computes with something else than its parameters themselves. */
static bool keeps_copies(const tree_plan *plan)
{
    return tree_is_low_precision(plan) || tree_is_coded(plan);
}

/* Gradients that were added up in 16 bits, or were partly reduced when a group of several modules had gone back. */
static void note_accumulation(tree_player *player)
{
    bool waiting = false;

    for (int r = 0; r < player->ranks; r++)
        for (int p = 0; p < TREE_MAX_PARAMS; p++)
            waiting = waiting || (player->unreduced[r][p] && player->plan->params[p].owner >= 0);
    if (player->plain && waiting && keeps_copies(player->plan))
        tree_adds_otherwise_now(player);
}

static void backward(tree_player *player, tree_slot *slot, bool keep)
{
    if (!can_walk(slot)) {
        refuse_backward(player, slot);
        return;
    }
    note_accumulation(player);
    if (player->plain)
        tree_plain_backward(player, slot, keep);
    else
        CHECK_OK(fsdp_backward_from(&slot->losses[0], NULL, 1, keep));
    slot->walked = !keep;
    player->unsettled = !player->last;
    player->windows &= ~(player->reshards_backward & ~keep_unsynced(player));
    player->requested = 0;
    for (int i = 0; i < player->ranks; i++)
        if (fsdp_tensor_grad(slot->inputs[i]))
            tree_log_tensor(player, player->first_rank + i, "gradient of the input", fsdp_tensor_grad(slot->inputs[i]));
    tree_observe(player);
}

void tree_play_backward(tree_player *player, const tree_call *call)
{
    backward(player, slot_of(player, call, true), call->kind == TREE_BACKWARD_KEEP);
}

/* All but the inputs of the one that is being walked. */
static void drop_losses(void *arg)
{
    tree_player *player = arg;

    for (int s = 0; s < TREE_SLOTS; s++) {
        tree_slot *slot = &player->slots[s];

        if (s != player->walks)
            tree_drop_slot(slot);
        for (int i = 0; s == player->walks && i < player->ranks; i++) {
            fsdp_tensor_unref(slot->losses[i]);
            slot->losses[i] = NULL;
        }
    }
}

/* On some ranks in the midst of it, by a hook, on the others afterwards. */
void tree_play_backward_drop(tree_player *player, const tree_call *call)
{
    tree_slot *slot = slot_of(player, call, true);
    bool inside = !player->plain && (player->place + call->number) % 3 != 0;

    player->walks = (int)(slot - player->slots);
    player->feed.told = inside ? drop_losses : NULL;
    player->feed.told_arg = player;
    backward(player, slot, false);
    player->feed.told = NULL;
    drop_losses(player);
    tree_drop_slot(slot);
}

/* ---- whole and sharded ---- */

/* The wait for what was not asked for does nothing. */
void tree_play_unshard(tree_player *player, const tree_call *call)
{
    fsdp_module *module = player->modules[tree_node_of(player, call)];
    uint32_t state = 1u << tree_state_of(player, call);

    if (call->kind == TREE_UNSHARD || (call->kind == TREE_WAIT_UNSHARD && player->requested & state))
        player->windows |= state;
    player->requested = call->kind == TREE_UNSHARD_ASYNC ? player->requested | state : player->requested & ~state;
    if (player->plain)
        return;
    CHECK_OK(call->kind == TREE_UNSHARD         ? fsdp_module_unshard(module)
             : call->kind == TREE_UNSHARD_ASYNC ? fsdp_module_unshard_async(module)
                                                : fsdp_module_wait_unshard(module));
}

void tree_shard_again(tree_player *player, uint32_t states)
{
    player->windows &= ~states;
    player->requested &= ~states;
}

void tree_play_reshard(tree_player *player, const tree_call *call)
{
    int node = tree_node_of(player, call);
    fsdp_module *module = player->modules[node];
    bool all = call->kind == TREE_RESHARD_ALL;

    tree_shard_again(player, all ? tree_states_below(player->plan, node) : 1u << tree_state_of(player, call));
    if (!player->plain)
        CHECK_OK(all ? fsdp_module_reshard_all(module) : fsdp_module_reshard(module));
}

/* ---- gradients and the optimizer ---- */

void tree_zero_grad(tree_player *player)
{
    fsdp_module_zero_grad(tree_root(player));
    if (player->plain)
        tree_drop_unreduced(player, true);
}

void tree_play_zero_grad(tree_player *player, const tree_call *call)
{
    (void)call;
    if (!player->unsettled)
        tree_zero_grad(player);
}

/* A plain tree keeps what its forward has made of parameters for the backward, where a sharded one gathers new values.
 */
bool tree_can_write(const tree_player *player)
{
    bool alive = false;

    for (int s = 0; s < TREE_SLOTS; s++)
        alive = alive || (player->slots[s].losses[0] && !player->slots[s].walked);
    return !(alive && keeps_copies(player->plan));
}

void tree_play_freeze(tree_player *player, const tree_call *call)
{
    int p = tree_param_of(player, call);

    if (p >= 0)
        CHECK_OK(fsdp_tensor_set_requires_grad(player->params[p], !fsdp_tensor_requires_grad(player->params[p])));
}

void tree_play_write(tree_player *player, const tree_call *call)
{
    int p = tree_param_of(player, call);

    if (p < 0 || player->unsettled || !tree_can_write(player))
        return;
    CHECK_OK(fsdp_tensor_fill_(player->params[p], call->number / 10.0 - 0.3));
    tree_shard_again(player, player->plan->params[p].owner < 0 ? 0 : 1u << player->plan->params[p].owner);
}

/* ---- failures ---- */

void tree_play_reset(tree_player *player, const tree_call *call)
{
    (void)call;
    if (!player->ran)
        return;
    tree_shard_again(player, UINT32_MAX);
    if (player->plain)
        tree_drop_unreduced(player, false);
    else
        CHECK_OK(fsdp_module_reset_iteration(tree_root(player)));
}

static void fail_forward(tree_player *player, const tree_call *call, int width, const char *why)
{
    int rank = player->first_rank;
    fsdp_tensor *loss = tree_run_batch(player, 0, call->number, rank, tree_input(player, call->number, rank, width));

    pass_forward(player, 0);
    tree_log_all(player, "failure of the forward", -1, loss == NULL);
    if (loss)
        return; /* the batch went another way */
    if (why)
        CHECK_CONTAINS(fsdp_last_error(), why);
    CHECK_STATUS(fsdp_last_status(), FSDP_INVALID);
    tree_drop_unreduced(player, false);
    tree_shard_again(player, UINT32_MAX);
}

void tree_play_fail_forward(tree_player *player, const tree_call *call)
{
    if (tree_is_uneven(player->plan))
        return;
    player->feed.failing = call->target % player->plan->node_count;
    fail_forward(player, call, player->plan->width, "told to fail");
    player->feed.failing = -1;
}

void tree_play_fail_shape(tree_player *player, const tree_call *call)
{
    fail_forward(player, call, player->plan->width + 1, NULL);
}

/* Then the iteration is reset and all gradients are dropped. */
void tree_play_fail_backward(tree_player *player, const tree_call *call)
{
    tree_slot *slot = slot_of(player, call, true);

    if (!can_walk(slot) || tree_is_uneven(player->plan))
        return;
    if (!player->plain) {
        player->feed.failing = call->target % player->plan->node_count;
        player->feed.fail_backward = true;
        if (fsdp_backward(slot->losses[0]) != FSDP_OK)
            CHECK_CONTAINS(fsdp_last_error(), "told to fail");
        player->feed.failing = -1;
        player->feed.fail_backward = false;
        CHECK_OK(fsdp_module_reset_iteration(tree_root(player)));
    }
    tree_drop_slot(slot);
    tree_zero_grad(player);
    tree_shard_again(player, UINT32_MAX);
}

/* ---- all of them ---- */

static bool freezes(tree_kind kind)
{
    return kind == TREE_FREEZE || kind == TREE_FREEZE_FIELD || kind == TREE_FREEZE_PART || kind == TREE_UNFREEZE_PART;
}

static bool writes(tree_kind kind)
{
    return kind == TREE_STEP || kind == TREE_WRITE || kind == TREE_SUMMON || kind == TREE_WRITE_FIELD ||
           kind == TREE_FILL_FIELD || kind == TREE_COPY_FIELD || kind == TREE_INITIALIZE || kind == TREE_LOAD ||
           kind == TREE_LOAD_FULL || kind == TREE_SKIP_STEP || kind == TREE_CHECKPOINT_LOAD;
}

/* Between forward and backward: of a recomputed function, and a write of replicas or of what a backward makes again. */
static bool would_be_an_error(const tree_player *player, tree_kind kind)
{
    const tree_plan *plan = player->plan;
    bool again = fsdp__device_makes_again(test_device(player->context)) && tree_makes_again(plan);

    return plan->recomputes ? freezes(kind) || writes(kind) : (plan->replicated || again) && writes(kind);
}

static bool has_ties(const tree_player *player, int param)
{
    float *values = tree_read(player->params[param]);
    bool ties = false;

    for (int64_t i = 0; i < fsdp_tensor_numel(player->params[param]) && !ties; i++) {
        uint32_t bits;

        memcpy(&bits, &values[i], sizeof bits);
        ties = (bits & 0xffff) == 0x8000;
    }
    free(values);
    return ties;
}

/* Looks at each value that a gather may cast. Reading halves would make them whole. */
static void note_ties(tree_player *player)
{
    bool halves = !player->plain && residence_splits(player->run->residence, player->plan->seed);
    bool *tied = &player->run->tied[player->place];

    for (int p = 0; p < player->plan->param_count && !halves && !*tied; p++)
        if (player->params[p] && player->plan->params[p].owner >= 0 &&
            tree_splits(player->plan, player->plan->params[p].owner))
            *tied = has_ties(player, p);
}

void tree_make_call(tree_player *player)
{
    const tree_call *call = &player->run->plan->calls[player->at];

    for (int s = 0; s < TREE_SLOTS && would_be_an_error(player, call->kind); s++)
        tree_drop_slot(&player->slots[s]);
    CHECK_OK(fsdp_scope_begin(player->context));
    tree_kinds[call->kind].play(player, call);
    note_ties(player);
    fsdp_scope_end(player->context, NULL);
}

/* All that is still to be reduced or walked goes, and groups reduce again. */
static void clear(tree_player *player)
{
    for (int s = 0; s < TREE_SLOTS; s++)
        tree_drop_slot(&player->slots[s]);
    for (; player->no_sync > 0; player->no_sync--)
        if (!player->plain)
            CHECK_OK(fsdp_fsdp1_no_sync_end(tree_root(player)));
    tree_play_sync(player, &(tree_call){.kind = TREE_SYNC_ON, .recurse = true});
    tree_play_last(player, &(tree_call){.kind = TREE_LAST_ON});
    tree_play_reshard(player, &(tree_call){.kind = TREE_RESHARD_ALL});
}

void tree_last_steps(tree_player *player)
{
    bool open = player->unsettled; /* reductions of a backward that was not the last */
    int steps = player->plan->orders ? 1 : TREE_LAST_STEPS;

    clear(player);
    for (int step = 0; step < steps; step++) {
        CHECK_OK(fsdp_scope_begin(player->context));
        forward(player, 0, 1, &player->slots[0]);
        backward(player, &player->slots[0], false);
        open = open && !player->slots[0].walked;
        player->unsettled = false; /* also where nothing is trained */
        tree_play_step(player, NULL);
        tree_zero_grad(player);
        note_ties(player);
        tree_drop_slot(&player->slots[0]);
        fsdp_scope_end(player->context, NULL);
        player->run->live[player->plain ? 0 : player->place][step] = open ? 0 : test_live_bytes(player->context);
    }
}
