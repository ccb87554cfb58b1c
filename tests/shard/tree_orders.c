/* tree_orders.c - drawing what calls in any order are made on: small networks, all of whose states run in every
 * forward.
 *
 *     root:  input = matrix and bias   blocks   norm = scale and bias   head = matrix and bias
 *     block: the mean of x and down(up(x))      up = tall matrix and bias   down = matrix and bias */
#include "shard/tree_calls.h"
#include "shard/tree_draw.h"
#include "support/dice.h"
#include "support/ranks.h"

/* How the network is made. */
enum {
    FORM_PLAIN,
    FORM_BORROWED, /* the norm uses the head's weight; the head's bias is not used */
    FORM_TWICE,    /* block 0 runs again after the last one */
    FORM_FUSED,    /* the head is a loss, whose gradients its forward makes */
    FORMS
};

/* Which states there are. */
enum {
    GROUP_BLOCKS,      /* each block, and the rest */
    GROUP_ROOT,        /* one */
    GROUP_PAIR_BLOCKS, /* blocks 0 and 1 are one */
    GROUP_PAIR_ENDS,   /* norm and head are one */
    GROUPINGS
};

enum {
    WIDTH = 7,
    TALL = 11,
    MAX_BLOCKS = 3
};

typedef struct network {
    uint64_t *random;
    tree_plan *plan;
    int form, blocks[MAX_BLOCKS], block_count, norm, head;
    bool once; /* each parameter is used once, so that in 16 bits, too, the plain networks have the same values */
    int tall;  /* rows of up */
} network;

static int pick(const network *n, int count)
{
    return dice_below(n->random, count);
}

/* ---- the network ---- */

static int add_node(const network *n, int parent, tree_flow flow)
{
    int node = n->plan->node_count++;

    n->plan->nodes[node] = (tree_node){.flow = flow, .parent = parent, .state = -1};
    if (parent >= 0)
        n->plan->nodes[parent].children[n->plan->nodes[parent].child_count++] = node;
    return node;
}

static int add_param(const network *n, int node, tree_role role)
{
    tree_plan *plan = n->plan;
    int param = plan->param_count++;
    bool matrix = role == TREE_MATRIX || role == TREE_TALL || role == TREE_HEAD;

    plan->nodes[node].params[plan->nodes[node].param_count++] = param;
    plan->params[param] = (tree_param){.role = role,
                                       .node = node,
                                       .ndim = matrix ? 2 : 1,
                                       .shape = {role == TREE_TALL ? n->tall : WIDTH, matrix ? WIDTH : 0},
                                       .dtype = FSDP_F32,
                                       .tied = -1};
    return param;
}

static void add_network(network *n)
{
    int root = add_node(n, -1, TREE_SEQUENCE), input = add_node(n, root, TREE_SEQUENCE);
    int list = add_node(n, root, TREE_SEQUENCE), weight;

    n->norm = add_node(n, root, TREE_SEQUENCE);
    n->head = add_node(n, root, TREE_SEQUENCE);
    add_param(n, input, TREE_MATRIX);
    add_param(n, input, TREE_BIAS);
    add_param(n, n->norm, TREE_SCALE);
    add_param(n, n->norm, TREE_BIAS);
    weight = add_param(n, n->head, n->form == FORM_FUSED ? TREE_HEAD : TREE_MATRIX);
    add_param(n, n->head, n->form == FORM_BORROWED || n->form == FORM_FUSED ? TREE_UNUSED : TREE_BIAS);
    for (int b = 0; b < n->block_count; b++) {
        int up, down;

        n->blocks[b] = add_node(n, list, TREE_RESIDUAL);
        up = add_node(n, n->blocks[b], TREE_SEQUENCE);
        down = add_node(n, n->blocks[b], TREE_SEQUENCE);
        add_param(n, up, n->once ? TREE_MATRIX : TREE_TALL);
        add_param(n, up, TREE_BIAS);
        add_param(n, down, TREE_MATRIX);
        add_param(n, down, TREE_BIAS);
    }
    if (n->form == FORM_BORROWED)
        n->plan->params[add_param(n, n->norm, TREE_MATRIX)].tied = weight;
    if (n->form == FORM_TWICE)
        n->plan->nodes[n->norm].children[n->plan->nodes[n->norm].child_count++] = n->blocks[0];
}

/* Some blocks are used on some ranks only, which have something to go back to in any case; or are recomputed. */
static void draw_blocks(network *n)
{
    tree_plan *plan = n->plan;
    int what = pick(n, 4);

    plan->inputs = what == 0 || pick(n, 4) == 0;
    for (int p = 0; p < plan->param_count && what == 0; p++)
        plan->params[p].fickle = plan->params[p].role == TREE_TALL || (plan->params[p].role == TREE_BIAS && pick(n, 2));
    plan->recomputes = what == 1;
    for (int b = 0; b < n->block_count && what == 1; b++)
        plan->nodes[n->blocks[b]].recompute = (fsdp_recompute_mode)pick(n, 4);
}

/* ---- how it is sharded ---- */

static int add_state(const network *n, const fsdp_mp_policy *policy, bool staged)
{
    tree_plan *plan = n->plan;
    int shards = plan->world / plan->replicas;
    tree_state *state = &plan->states[plan->state_count];

    *state = (tree_state){.reshard = (fsdp_reshard)pick(n, 3), .policy = *policy};
    if (pick(n, 3) == 0)
        state->slice = shards % 2 == 0 ? 2 : pick(n, 2) ? shards : 1;
    if (staged) {
        bool never = state->slice ? state->slice == 1 : state->reshard == FSDP_RESHARD_NEVER;
        bool always = state->slice ? state->slice > 1 : state->reshard == FSDP_RESHARD_ALWAYS;

        state->stage = never ? 1 + pick(n, 2) : always ? 3 : 1 + pick(n, 3);
    }
    return plan->state_count++;
}

static void draw_states(network *n, const fsdp_mp_policy *policy)
{
    tree_plan *plan = n->plan;
    bool staged = pick(n, 5) == 0;
    int grouping = pick(n, n->once ? GROUP_PAIR_BLOCKS : GROUPINGS), pair = grouping == GROUP_PAIR_BLOCKS ? 2 : 0;

    if (grouping == GROUP_PAIR_ENDS && n->form == FORM_BORROWED)
        grouping = GROUP_BLOCKS;
    plan->nodes[0].state = add_state(n, policy, staged);
    for (int b = 0; b < n->block_count && grouping != GROUP_ROOT; b++)
        plan->nodes[n->blocks[b]].state =
            b > 0 && b < pair ? plan->nodes[n->blocks[0]].state : add_state(n, policy, staged);
    if (grouping == GROUP_PAIR_ENDS)
        plan->nodes[n->norm].state = plan->nodes[n->head].state = add_state(n, policy, staged);
}

/* Of models that every rank has whole most are replicated. */
static void choose_door(const network *n)
{
    tree_plan *plan = n->plan;
    bool whole = plan->world > 1 && plan->replicas == plan->world && !tree_is_low_precision(plan);
    int door = pick(n, 5);

    if (door == 0) {
        tree_make_units(plan);
        plan->as_one = pick(n, 2);
        plan->low_sums = pick(n, 2);
        for (int s = 0; s < plan->state_count && plan->replicas == plan->world; s++)
            plan->states[s].reshard = FSDP_RESHARD_NEVER;
    } else if (whole && pick(n, 3) > 0) {
        tree_make_replicas(plan);
    }
}

static void draw_network(uint64_t *random, const fsdp_mp_policy *policy, bool once, tree_plan *plan)
{
    network n = {.random = random, .plan = plan, .once = once, .tall = dice_below(random, 11) ? TALL : 0};

    n.form = pick(&n, FORMS);
    if (once && n.form != FORM_FUSED)
        n.form = FORM_PLAIN;
    n.block_count = 1 + pick(&n, MAX_BLOCKS);
    plan->orders = plan->late = true;
    plan->width = WIDTH;
    plan->real = pick(&n, 2);
    plan->adamw = pick(&n, 2);
    plan->rowless = pick(&n, 7) == 0 && n.form != FORM_FUSED; /* a mean of nothing is NaN */
    add_network(&n);
    plan->parts = pick(&n, 3);
    plan->parts += plan->parts > 0; /* two or three; they are of rows */
    for (int p = 0, last = plan->parts == 0 && pick(&n, 2); p < plan->param_count; p++)
        plan->params[p].dim = last ? plan->params[p].ndim - 1 : 0;
    draw_blocks(&n);
    draw_states(&n, policy);
    tree_settle(plan);
    choose_door(&n);
}

void tree_draw_orders(uint64_t seed, tree_plan plans[TREE_MAX_MODELS])
{
    uint64_t random = seed * 0x2545f4914f6cdd1du + 1;
    int world = test_machines_world(1 + dice_below(&random, 5)), replicas = 1, models = 1 + dice_below(&random, 2);
    bool grid = dice_chance(&random, 40);
    fsdp_mp_policy policy = {0};

    if (grid)
        do {
            replicas = 1 + dice_below(&random, world);
        } while (world % replicas != 0);
    if (dice_chance(&random, 40))
        policy =
            (fsdp_mp_policy){.param_dtype = FSDP_BF16, .reduce_dtype = dice_below(&random, 2) ? FSDP_F32 : FSDP_BF16};
    for (int m = 0; m < TREE_MAX_MODELS; m++)
        plans[m] = (tree_plan){.seed = seed + (uint64_t)m, .world = world, .replicas = replicas, .grid = grid};
    plans[0].second = models > 1 ? &plans[1] : NULL;
    tree_draw_calls(&random, TREE_DRAWS_ORDERS, &plans[0]);
    for (int m = models - 1; m >= 0; m--)
        draw_network(&random, &policy, policy.param_dtype && seed % 2, &plans[m]);
    for (int c = 0; c < plans[0].call_count; c++) {
        tree_call *call = &plans[0].calls[c];

        if (plans[call->model].fsdp1 && call->on && (call->kind == TREE_SYNC_OFF || call->kind == TREE_SYNC_ON))
            call->kind = call->kind == TREE_SYNC_OFF ? TREE_NO_SYNC_BEGIN : TREE_NO_SYNC_END;
    }
    for (int m = 0; m < models; m++)
        tree_draw_splits(&random, &plans[m]);
}

void tree_draw_team_orders(uint64_t seed, tree_plan plans[TREE_MAX_MODELS])
{
    uint64_t random = seed;
    bool whole = dice_below(&random, 4) == 0;
    int team;

    do
        tree_draw_orders((uint64_t)dice_below(&random, 1 << 30), plans);
    while (!tree_takes_teams(&plans[0]) || (plans[0].second && !tree_takes_teams(&plans[1])) ||
           (whole && !tree_has_whole_mesh(&plans[0])));
    team = tree_draw_team_size(&random, &plans[0]);
    for (int m = 0; m < (plans[0].second ? 2 : 1); m++)
        tree_draw_team(&random, team, &plans[m]);
}
