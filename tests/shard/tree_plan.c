/* tree_plan.c - what follows from a plan. */
#include "shard/tree_plan.h"

#include "shard/tree_wrap.h"

/* ---- which nodes there are ---- */

static void reach(tree_plan *plan, int node, int runs)
{
    tree_node *n = &plan->nodes[node];

    n->reached = true;
    n->runs += runs;
    for (int i = 0; i < n->child_count; i++)
        reach(plan, n->children[i], n->flow == TREE_TWICE ? 2 * runs : runs);
}

static void collect_members(tree_plan *plan)
{
    for (int s = 0; s < plan->state_count; s++)
        plan->states[s].member_count = 0;
    for (int i = 0; i < plan->node_count; i++) {
        tree_state *state = plan->nodes[i].state < 0 ? NULL : &plan->states[plan->nodes[i].state];

        if (state && plan->nodes[i].reached && state->member_count < TREE_MAX_CHILDREN)
            state->members[state->member_count++] = i;
        else
            plan->nodes[i].state = -1;
    }
}

/* ---- who owns what ---- */

int tree_original(const tree_plan *plan, int param)
{
    while (plan->params[param].tied >= 0)
        param = plan->params[param].tied;
    return param;
}

bool tree_is_original(const tree_plan *plan, int param)
{
    const tree_param *p = &plan->params[param];

    return !p->gone && p->tied < 0 && plan->nodes[p->node].reached;
}

static bool may_use(const tree_plan *plan, int state, int owner)
{
    return plan->states[state].policy.param_dtype == plan->states[owner].policy.param_dtype;
}

/* The parameter that `state` uses and whose owner computes in another dtype, or -1. As fully_shard goes through a
 * module: not into those that were given to it. */
static int own(tree_plan *plan, int state, int node, bool *seen)
{
    const tree_node *n = &plan->nodes[node];
    int taken = -1;

    if (seen[node])
        return -1;
    seen[node] = true;
    for (int i = 0; i < n->param_count && taken < 0; i++) {
        tree_param *p = &plan->params[tree_original(plan, n->params[i])];

        if (plan->params[n->params[i]].gone || p->ignored)
            continue;
        if (p->owner < 0)
            p->owner = state;
        if (!may_use(plan, state, p->owner))
            taken = n->params[i];
    }
    for (int i = 0; i < n->child_count && taken < 0; i++)
        if (plan->nodes[n->children[i]].state < 0)
            taken = own(plan, state, n->children[i], seen);
    return taken;
}

/* In the order of the calls of fully_shard. */
static int own_all(tree_plan *plan)
{
    int taken = -1, order[TREE_MAX_NODES], length = tree_wrap_order(plan, order);

    for (int p = 0; p < plan->param_count; p++)
        plan->params[p].owner = -1;
    for (int at = 0; at < length && taken < 0; at++) {
        int state = plan->nodes[order[at]].state;
        bool seen[TREE_MAX_NODES] = {false};

        if (state < 0 || plan->states[state].members[0] != order[at])
            continue;
        for (int m = 0; m < plan->states[state].member_count && taken < 0; m++)
            taken = own(plan, state, plan->states[state].members[m], seen);
    }
    return taken;
}

static void part(tree_plan *plan, int param)
{
    int original = tree_original(plan, param), node = plan->params[param].node;
    bool tied = false;

    for (int p = 0; p < plan->param_count; p++)
        if (plan->params[p].tied >= 0 && tree_original(plan, p) == original) {
            plan->params[p].tied = -1;
            tied = true;
        }
    if (tied)
        return;
    plan->states[plan->state_count] = plan->states[0];
    plan->nodes[node].state = plan->state_count++;
}

/* A name is tied to a parameter that is there, and that comes before it. */
static void untie_gone(tree_plan *plan)
{
    for (int p = 0; p < plan->param_count; p++) {
        tree_param *param = &plan->params[p];

        if (param->tied >= 0 &&
            (plan->params[param->tied].gone || !plan->nodes[plan->params[param->tied].node].reached))
            param->tied = -1;
    }
}

/* ---- who is conditional ---- */

/* States next below the node, of `above`. */
static void note_below(tree_plan *plan, int node, int above, bool chosen)
{
    const tree_node *n = &plan->nodes[node];

    chosen = chosen || n->flow == TREE_CHOICE;
    for (int i = 0; i < n->child_count; i++) {
        int below = plan->nodes[n->children[i]].state;

        if (below < 0)
            note_below(plan, n->children[i], above, chosen);
        if (below < 0 || below == above)
            continue;
        plan->states[below].above |= 1u << above;
        plan->states[below].marked = plan->states[below].marked || chosen;
    }
}

/* Gives whether one that is conditional has several above it. */
static bool spread_conditions(tree_plan *plan)
{
    uint32_t conditional = 0;
    bool torn = false;

    for (int round = 0; round < plan->state_count; round++)
        for (int s = 1; s < plan->state_count; s++)
            if (plan->states[s].marked || plan->states[s].above & conditional)
                conditional |= 1u << s;
    for (int s = 0; s < plan->state_count; s++) {
        uint32_t above = plan->states[s].above;

        plan->states[s].conditional = conditional >> s & 1;
        torn = torn || (plan->states[s].conditional && (above & (above - 1)) != 0);
    }
    return torn;
}

static void settle_conditions(tree_plan *plan)
{
    for (int s = 0; s < plan->state_count; s++)
        plan->states[s].above = 0;
    for (int s = 0; s < plan->state_count; s++)
        for (int m = 0; m < plan->states[s].member_count; m++)
            note_below(plan, plan->states[s].members[m], s, false);
    if (!spread_conditions(plan))
        return;
    for (int i = 0; i < plan->node_count; i++)
        if (plan->nodes[i].flow == TREE_CHOICE)
            plan->nodes[i].flow = TREE_BRANCH;
    for (int s = 0; s < plan->state_count; s++)
        plan->states[s].marked = plan->states[s].conditional = false;
}

void tree_settle(tree_plan *plan)
{
    int taken;

    for (int i = 0; i < plan->node_count; i++) {
        plan->nodes[i].reached = false;
        plan->nodes[i].runs = 0;
    }
    reach(plan, 0, 1);
    plan->nodes[0].state = 0;
    untie_gone(plan);
    tree_settle_wrap(plan);
    do {
        collect_members(plan);
        taken = own_all(plan);
        if (taken >= 0)
            part(plan, taken);
    } while (taken >= 0);
    settle_conditions(plan);
}

/* ---- asking ---- */

int tree_ranks(const tree_plan *plan)
{
    return plan->team > 1 ? plan->world * plan->team : plan->world;
}

fsdp_dtype tree_compute_dtype(const tree_plan *plan, int param)
{
    const tree_param *p = &plan->params[tree_original(plan, param)];
    fsdp_dtype dtype = p->owner < 0 ? FSDP_DTYPE_NONE : plan->states[p->owner].policy.param_dtype;

    return dtype ? dtype : p->dtype;
}

fsdp_dtype tree_reduce_dtype(const tree_plan *plan, int param)
{
    const tree_param *p = &plan->params[tree_original(plan, param)];
    fsdp_dtype dtype = plan->states[p->owner].policy.reduce_dtype;

    return dtype ? dtype : p->dtype;
}

fsdp_dtype tree_rest_dtype(const tree_plan *plan, int param)
{
    return plan->world == plan->replicas ? tree_reduce_dtype(plan, param) : tree_compute_dtype(plan, param);
}

coded tree_code(const tree_plan *plan, int param)
{
    const tree_param *p = &plan->params[tree_original(plan, param)];

    return p->owner < 0 || p->ndim < 2 ? CODED_NOT : plan->states[p->owner].code;
}

/* What cannot be split is not: a reduced plan may have more of it. A policy gives all units the root's options. */
bool tree_splits(const tree_plan *plan, int state)
{
    bool alike = plan->wrap != FSDP_WRAP_NONE && plan->wrap != FSDP_WRAP_CUSTOM;
    const fsdp_mp_policy *policy = &plan->states[alike ? 0 : state].policy;
    bool splits = policy->split_shards && policy->param_dtype == FSDP_BF16 && !plan->flat && !plan->replicated;

    for (int p = 0; p < plan->param_count; p++)
        if (tree_is_original(plan, p) && (alike ? plan->params[p].owner >= 0 : plan->params[p].owner == state))
            splits = splits && plan->params[p].dtype == FSDP_F32 && plan->params[p].dim == 0 && !tree_code(plan, p);
    return splits;
}

bool tree_splits_any(const tree_plan *plan)
{
    bool any = false;

    for (int s = 0; s < plan->state_count; s++)
        any = any || (plan->states[s].member_count > 0 && tree_splits(plan, s));
    return any;
}

bool tree_is_coded(const tree_plan *plan)
{
    bool any = false;

    for (int p = 0; p < plan->param_count; p++)
        any = any || (tree_is_original(plan, p) && tree_code(plan, p));
    return any;
}

static bool is_read_in_backward(const tree_plan *plan, int param)
{
    tree_role role = plan->params[param].role;

    return !plan->params[param].gone && role != TREE_TABLE && role != TREE_BIAS && role != TREE_CUBE &&
           role != TREE_UNUSED && role != TREE_HEAD;
}

bool tree_is_made_again(const tree_plan *plan, int param)
{
    return !plan->params[param].gone && plan->params[param].role == TREE_SCALE;
}

/* A sum reads nothing of what it adds. */
bool tree_makes_again(const tree_plan *plan)
{
    bool makes = false;

    for (int i = 0; i < plan->node_count && !makes; i++) {
        const tree_node *n = &plan->nodes[i];

        for (int k = 0; k < n->param_count; k++) {
            const tree_param *next = k + 1 < n->param_count ? &plan->params[n->params[k + 1]] : NULL;
            bool flows = k + 1 == n->param_count / 2 && n->child_count > 0;

            makes = makes || (tree_is_made_again(plan, n->params[k]) &&
                              !(next && !flows && next->role == TREE_BIAS && !next->fickle && !next->gone));
        }
    }
    return makes;
}

/* Of the node, and of those below that were not given to fully_shard. */
static bool reads_in_backward(const tree_plan *plan, int node)
{
    const tree_node *n = &plan->nodes[node];
    bool reads = false;

    for (int i = 0; i < n->param_count; i++)
        reads = reads || is_read_in_backward(plan, n->params[i]);
    for (int i = 0; i < n->child_count && !reads; i++)
        reads = plan->nodes[n->children[i]].state < 0 && reads_in_backward(plan, n->children[i]);
    return reads;
}

bool tree_is_unread_in_backward(const tree_plan *plan, int state)
{
    bool reads = false;

    for (int m = 0; m < plan->states[state].member_count; m++)
        reads = reads || reads_in_backward(plan, plan->states[state].members[m]);
    for (int p = 0; p < plan->param_count; p++) /* its own, that other states use */
        reads = reads || (plan->params[tree_original(plan, p)].owner == state && is_read_in_backward(plan, p));
    return !reads;
}

uint32_t tree_states_below(const tree_plan *plan, int node)
{
    const tree_node *n = &plan->nodes[node];
    uint32_t states = n->state < 0 ? 0 : 1u << n->state;

    for (int i = 0; i < n->child_count; i++)
        states |= tree_states_below(plan, n->children[i]);
    return states;
}

int tree_rows(const tree_plan *plan, int number, int rank)
{
    return plan->rowless && (number * 3 + rank) % 4 == 0 ? 0 : TREE_ROWS;
}

/* Of a table without rows there is nothing to look up. */
bool tree_uses(const tree_plan *plan, int param, int number, int rank)
{
    const tree_param *p = &plan->params[param];

    if (p->role == TREE_UNUSED || (p->role == TREE_TABLE && p->shape[0] == 0))
        return false;
    if (!plan->params[param].fickle)
        return true;
    if (number % 4 == 3 && param % 2 == 0)
        return false; /* nobody does */
    return (param * 7 + number * 5 + rank * (number + 3)) % 3 != 0;
}

int tree_chooses(const tree_plan *plan, int node, int number, int rank)
{
    const tree_node *n = &plan->nodes[node];
    int of_rank = n->flow == TREE_CHOICE ? rank * (number + 5) + node : 0;

    return (number + of_rank) % (n->child_count + 1);
}

tree_take tree_takes(const tree_plan *plan, int node, int number, int rank)
{
    tree_take take = plan->nodes[node].take;

    return take == TREE_BY_RANK ? (tree_take)((rank * (number + 2) + number + node) % TREE_BY_RANK) : take;
}

bool tree_is_uneven(const tree_plan *plan)
{
    bool uneven = false;

    for (int i = 0; i < plan->node_count; i++)
        uneven = uneven || (plan->nodes[i].reached &&
                            (plan->nodes[i].flow == TREE_CHOICE || plan->nodes[i].take == TREE_BY_RANK));
    for (int p = 0; p < plan->param_count; p++)
        uneven = uneven || (plan->params[p].fickle && !plan->params[p].gone);
    return uneven;
}

bool tree_is_low_precision(const tree_plan *plan)
{
    bool low = false;

    for (int s = 0; s < plan->state_count; s++)
        low = low || plan->states[s].policy.param_dtype || plan->states[s].policy.reduce_dtype ||
              plan->states[s].policy.output_dtype;
    for (int p = 0; p < plan->param_count; p++)
        low = low || plan->params[p].dtype != FSDP_F32;
    return low;
}

/* How often its gradient is added to in a backward. */
static int uses(const tree_plan *plan, int param)
{
    int count = 0;

    for (int p = 0; p < plan->param_count; p++)
        if (!plan->params[p].gone && plan->params[p].role != TREE_UNUSED && tree_original(plan, p) == param)
            count += plan->nodes[plan->params[p].node].runs * (plan->params[p].role == TREE_TALL ? 2 : 1);
    return count;
}

/* As fsdp__param_grad_dtype has it. */
bool tree_is_wide(const tree_plan *plan, int param)
{
    const tree_param *p = &plan->params[tree_original(plan, param)];

    return plan->world == plan->replicas && !plan->flat && !plan->replicated && p->owner >= 0 && p->dtype == FSDP_F32 &&
           tree_reduce_dtype(plan, param) == FSDP_F32 && fsdp_dtype_size(tree_compute_dtype(plan, param)) == 2;
}

/* A state that runs several times reduces after each; one of several modules may do so as well. In 16 bits every
 * addition rounds. */
bool tree_adds_otherwise(const tree_plan *plan)
{
    bool low = tree_is_low_precision(plan), otherwise = false;

    for (int s = 0; s < plan->state_count; s++)
        for (int m = 0; m < plan->states[s].member_count; m++)
            otherwise = otherwise || m > 0 || plan->nodes[plan->states[s].members[m]].runs > 1;
    for (int p = 0; p < plan->param_count && low; p++)
        otherwise = otherwise || plan->params[p].dtype != FSDP_F32 || (tree_is_original(plan, p) && uses(plan, p) > 1);
    for (int p = 0; p < plan->param_count; p++) /* the plain tree adds what each use has made of it */
        otherwise = otherwise || (tree_is_original(plan, p) && tree_code(plan, p) && uses(plan, p) > 1);
    return otherwise;
}
