/* tree_wrap.c - policies for trees. */
#include "shard/tree_wrap.h"

#include "support/dice.h"

/* ---- the rule ---- */

typedef struct asking {
    const tree_plan *plan;
    bool asked[TREE_MAX_NODES], unit[TREE_MAX_NODES];
    int64_t wrapped[TREE_MAX_NODES];
} asking;

static int64_t numel(const tree_param *p)
{
    int64_t n = 1;

    for (int d = 0; d < p->ndim; d++)
        n *= p->shape[d];
    return n;
}

static void mark_below(const tree_plan *plan, int node, bool *params)
{
    for (int i = 0; i < plan->nodes[node].param_count; i++)
        if (!plan->params[plan->nodes[node].params[i]].gone)
            params[tree_original(plan, plan->nodes[node].params[i])] = true;
    for (int i = 0; i < plan->nodes[node].child_count; i++)
        mark_below(plan, plan->nodes[node].children[i], params);
}

/* Elements of the parameters in the subtree, each once. */
static int64_t count(const tree_plan *plan, int node)
{
    bool params[TREE_MAX_PARAMS] = {false};
    int64_t n = 0;

    mark_below(plan, node, params);
    for (int p = 0; p < plan->param_count; p++)
        n += params[p] && !plan->params[p].ignored ? numel(&plan->params[p]) : 0;
    return n;
}

static bool decides(const tree_plan *plan, int node, bool recurse, int64_t n)
{
    switch (plan->wrap) {
    case FSDP_WRAP_SIZE:
        return n >= plan->wrap_least;
    case FSDP_WRAP_LAMBDA:
        return recurse || plan->wrap_mask >> node & 1;
    case FSDP_WRAP_FUNCTION: /* what is left out is not looked into either */
        return plan->wrap_mask >> node & 1 && n >= plan->wrap_least;
    default:
        return true;
    }
}

static void ask(asking *a, int node)
{
    const tree_node *n = &a->plan->nodes[node];
    int64_t all = count(a->plan, node), wrapped = 0;

    a->asked[node] = true;
    if (!decides(a->plan, node, true, all))
        return;
    for (int i = 0; i < n->child_count; i++) {
        if (!a->asked[n->children[i]])
            ask(a, n->children[i]);
        wrapped += a->wrapped[n->children[i]];
    }
    a->unit[node] = node != 0 && decides(a->plan, node, false, all - wrapped);
    a->wrapped[node] = a->unit[node] ? all : wrapped;
}

/* Each unit in a state of its own. Those that were there keep theirs, and its options where the policy can give them:
 * all but CUSTOM shard all units alike. */
void tree_settle_wrap(tree_plan *plan)
{
    asking a = {.plan = plan};
    tree_state states[TREE_MAX_STATES];
    int state_count = 1;

    if (plan->wrap == FSDP_WRAP_NONE || plan->wrap == FSDP_WRAP_CUSTOM)
        return;
    ask(&a, 0);
    memcpy(states, plan->states, sizeof states);
    for (int i = 1; i < plan->node_count; i++) {
        int before = plan->nodes[i].state;
        bool marked = before > 0 && states[before].marked;

        plan->nodes[i].state = -1;
        if (!a.unit[i])
            continue;
        plan->states[state_count] = states[0];
        plan->states[state_count].marked = marked;
        plan->nodes[i].state = state_count++;
    }
    plan->state_count = state_count;
}

static void put_below(const tree_plan *plan, int node, bool *seen, int *order, int *length)
{
    seen[node] = true;
    for (int i = 0; i < plan->nodes[node].child_count; i++)
        if (!seen[plan->nodes[node].children[i]])
            put_below(plan, plan->nodes[node].children[i], seen, order, length);
    order[(*length)++] = node;
}

int tree_wrap_order(const tree_plan *plan, int *order)
{
    bool seen[TREE_MAX_NODES] = {false};
    int length = 0;

    if (plan->wrap != FSDP_WRAP_NONE) {
        put_below(plan, 0, seen, order, &length);
        return length;
    }
    /* By hand: children have higher numbers than their parents, and members of a state have one parent and no other. */
    for (int i = plan->node_count - 1; i >= 0; i--)
        order[length++] = i;
    return length;
}

/* ---- drawing ---- */

void tree_part_groups(tree_plan *plan)
{
    bool taken[TREE_MAX_STATES] = {false};

    for (int i = 0; i < plan->node_count; i++) {
        int state = plan->nodes[i].state;

        if (state >= 0 && taken[state]) {
            plan->states[plan->state_count] = plan->states[state];
            plan->nodes[i].state = plan->state_count++;
        } else if (state >= 0) {
            taken[state] = true;
        }
    }
}

void tree_draw_wrap(tree_plan *plan)
{
    static const fsdp_wrap_kind kinds[] = {FSDP_WRAP_SIZE,   FSDP_WRAP_SIZE,   FSDP_WRAP_LAMBDA,
                                           FSDP_WRAP_CUSTOM, FSDP_WRAP_ALWAYS, FSDP_WRAP_FUNCTION};
    uint64_t random = plan->seed * 0x9e3779b97f4a7c15u + 3;

    if (!dice_chance(&random, 25))
        return;
    plan->wrap = kinds[dice_below(&random, 6)];
    plan->wrap_least = 1 + dice_below(&random, 60);
    plan->wrap_mask = (uint32_t)dice_below(&random, 1 << TREE_MAX_NODES) | 1u;
    if (plan->wrap == FSDP_WRAP_CUSTOM) /* keeps the states that were drawn, but for those */
        tree_part_groups(plan);
}

/* ---- sharding ---- */

typedef struct sharding {
    tree_player *player;
    fsdp_shard_options (*options)(tree_player *player, int state);
} sharding;

static int node_of(const fsdp_module *module)
{
    return ((const tree_module *)module)->node;
}

static bool wraps(void *arg, const fsdp_module *module, const char *name)
{
    const sharding *s = arg;

    (void)name;
    return decides(s->player->plan, node_of(module), false, 0);
}

static bool decide(void *arg, const fsdp_module *module, const char *name, bool recurse, int64_t n)
{
    const sharding *s = arg;

    (void)name;
    return decides(s->player->plan, node_of(module), recurse, n);
}

static fsdp_status choose(void *arg, const fsdp_module *module, const char *name, void *options, bool *wrap)
{
    const sharding *s = arg;
    int state = s->player->plan->nodes[node_of(module)].state;

    (void)name;
    *wrap = state >= 0;
    if (*wrap)
        *(fsdp_shard_options *)options = s->options(s->player, state);
    return FSDP_OK;
}

void tree_shard_by_policy(tree_player *player, fsdp_shard_options (*options)(tree_player *player, int state))
{
    const tree_plan *plan = player->plan;
    sharding s = {player, options};
    fsdp_shard_options of_root = options(player, 0);
    fsdp_wrap_policy policy = {.kind = plan->wrap,
                               .min_num_params = plan->wrap_least,
                               .wraps = wraps,
                               .decide = decide,
                               .choose = choose,
                               .arg = &s};
    bool any = false;

    for (int i = 1; i < plan->node_count; i++)
        any = any || plan->nodes[i].state >= 0;
    if (!any)
        policy.kind = FSDP_WRAP_NONE;
    CHECK_OK(fsdp_fully_shard_by_policy(player->modules[0], &policy, &of_root));
    for (int i = 0; i < plan->node_count; i++) {
        int state = plan->nodes[i].state;

        if (!player->modules[i])
            continue;
        CHECK_EQ(fsdp_module_is_sharded(player->modules[i]), state >= 0);
        if (state >= 0)
            CHECK_OK(fsdp_module_set_conditional(player->modules[i], plan->states[state].marked));
    }
}
