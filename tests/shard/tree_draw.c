/* tree_draw.c - drawing the tree, then how it is sharded, then the calls. */
#include "shard/tree_draw.h"

#include "shard/tree_calls.h"
#include "shard/tree_wrap.h"
#include "support/dice.h"
#include "support/ranks.h"

typedef struct drawing {
    uint64_t random;
    tree_plan *plan;
    bool mixed;    /* parameters of several dtypes */
    bool ignoring; /* some are ignored */
    bool placing;  /* any dimension is sharded */
    bool fickle;   /* some parameters are used on some ranks only */
    bool coding;   /* some are gathered in one byte */
    bool once;     /* every parameter is used once: the plain tree has the same bits then (tree_adds_otherwise) */
    fsdp_mp_policy policy;
} drawing;

static int pick(drawing *d, int count)
{
    return dice_below(&d->random, count);
}

static bool chance(drawing *d, int percent)
{
    return dice_chance(&d->random, percent);
}

/* ---- the tree ---- */

static void draw_shape(drawing *d, tree_param *p)
{
    int64_t width = d->plan->width, rows = 1 + pick(d, 11);

    p->ndim = 1;
    p->shape[0] = width;
    if (p->role == TREE_ELEMENT)
        p->shape[0] = 1;
    if (p->role == TREE_UNUSED)
        p->shape[0] = rows;
    if (p->role == TREE_MATRIX || p->role == TREE_GATED || p->role == TREE_TALL || p->role == TREE_TABLE) {
        p->ndim = 2;
        p->shape[0] = p->role == TREE_MATRIX || p->role == TREE_GATED ? width : rows;
        p->shape[1] = width;
    }
    if (p->role == TREE_CUBE) {
        p->ndim = 3;
        p->shape[0] = 1 + pick(d, 4);
        p->shape[1] = 1 + pick(d, 3);
        p->shape[2] = width;
    }
}

static void add_param(drawing *d, int node)
{
    tree_plan *plan = d->plan;
    tree_node *n = &plan->nodes[node];
    tree_param *p = &plan->params[plan->param_count];

    if (plan->param_count == TREE_MAX_PARAMS)
        return;
    n->params[n->param_count++] = plan->param_count++;
    *p = (tree_param){.role = (tree_role)pick(d, TREE_ROLES), .node = node, .tied = -1, .dtype = FSDP_F32};
    if (p->role == TREE_UNUSED && chance(d, 60))
        p->role = TREE_MATRIX;
    if (p->role == TREE_TALL && d->once)
        p->role = TREE_MATRIX;
    if (d->mixed && chance(d, 30))
        p->dtype = FSDP_BF16;
    draw_shape(d, p);
}

static int add_node(drawing *d, int parent, int depth)
{
    tree_plan *plan = d->plan;
    int node = plan->node_count++, params = chance(d, 8) ? 5 : pick(d, 4), children;
    tree_node *n = &plan->nodes[node];

    *n = (tree_node){.flow = (tree_flow)pick(d, TREE_FLOWS), .parent = parent, .state = -1};
    if (n->flow == TREE_CHOICE && !plan->inputs)
        n->flow = TREE_BRANCH;
    for (int i = 0; i < params; i++)
        add_param(d, node);
    children = depth == 0 ? 0 : parent < 0 ? 1 + pick(d, TREE_MAX_CHILDREN - 1) : pick(d, 4);
    for (int i = 0; i < children && plan->node_count < TREE_MAX_NODES; i++)
        n->children[n->child_count++] = add_node(d, node, depth - 1);
    return node;
}

static int total_runs(tree_plan *plan)
{
    int runs = 0;

    tree_settle(plan);
    for (int i = 0; i < plan->node_count; i++)
        runs += plan->nodes[i].runs;
    return runs;
}

/* A module gets a second parent. */
static void share_module(drawing *d)
{
    tree_plan *plan = d->plan;
    int child = pick(d, plan->node_count), parent = child > 0 ? pick(d, child) : 0;
    tree_node *n = &plan->nodes[parent];

    for (int i = 0; i < n->child_count; i++)
        if (n->children[i] == child)
            return;
    if (child == 0 || n->child_count == TREE_MAX_CHILDREN)
        return;
    n->children[n->child_count++] = child;
    if (total_runs(plan) > TREE_MAX_RUNS)
        n->child_count--;
}

static bool alike(const tree_param *a, const tree_param *b)
{
    bool rows = (a->role == TREE_TALL || a->role == TREE_TABLE) && (b->role == TREE_TALL || b->role == TREE_TABLE);
    bool vectors = (a->role == TREE_SCALE || a->role == TREE_BIAS) && (b->role == TREE_SCALE || b->role == TREE_BIAS);

    return rows || vectors || a->role == b->role;
}

/* A parameter gets a second name. */
static void tie(drawing *d)
{
    tree_plan *plan = d->plan;
    int second = pick(d, plan->param_count), first = second > 0 ? pick(d, second) : 0;
    tree_param *p = &plan->params[second];

    if (second == 0 || p->tied >= 0 || !alike(p, &plan->params[first]))
        return;
    p->tied = first;
}

/* What is tied is what its original is, whichever was tied first. */
static void settle_ties(tree_plan *plan)
{
    for (int i = 0; i < plan->param_count; i++) {
        const tree_param *original = &plan->params[tree_original(plan, i)];
        tree_param *p = &plan->params[i];

        p->dtype = original->dtype;
        p->frozen = original->frozen;
        p->ignored = original->ignored;
        p->dim = original->dim;
        p->ndim = original->ndim;
        memcpy(p->shape, original->shape, sizeof p->shape);
    }
}

static void draw_tree(drawing *d)
{
    tree_plan *plan = d->plan;

    add_node(d, -1, 1 + pick(d, 4));
    for (int i = 0; i < plan->node_count && (d->once || total_runs(plan) > TREE_MAX_RUNS); i++)
        if (plan->nodes[i].flow == TREE_TWICE)
            plan->nodes[i].flow = TREE_SEQUENCE;
    for (int i = 0; !d->once && chance(d, 30) && i < 3; i++)
        share_module(d);
    for (int i = 0; i < plan->param_count && chance(d, 85); i++)
        plan->params[i].frozen = chance(d, 12);
    for (int i = 0; i < plan->param_count && d->placing; i++)
        plan->params[i].dim = pick(d, plan->params[i].ndim);
    for (int i = 0; i < plan->param_count && d->ignoring; i++)
        plan->params[i].ignored = chance(d, 15);
    for (int i = 0; i < plan->param_count && d->fickle; i++)
        plan->params[i].fickle = chance(d, 40);
    for (int i = 0; !d->once && chance(d, 60) && i < 6 && plan->param_count > 0; i++)
        tie(d);
    settle_ties(plan);
}

/* ---- how it is sharded ---- */

static void draw_policy(drawing *d, fsdp_mp_policy *policy)
{
    static const fsdp_dtype computed[] = {FSDP_BF16, FSDP_BF16, FSDP_BF16, FSDP_F16, FSDP_DTYPE_NONE},
                            reduced[] = {FSDP_F32, FSDP_F32, FSDP_DTYPE_NONE, FSDP_BF16},
                            output[] = {FSDP_DTYPE_NONE, FSDP_DTYPE_NONE, FSDP_F32, FSDP_BF16};

    policy->param_dtype = computed[pick(d, 5)];
    policy->reduce_dtype = reduced[pick(d, 4)];
    policy->output_dtype = output[pick(d, 4)];
    policy->keep_forward_inputs = chance(d, 20);
}

static int add_state(drawing *d)
{
    tree_state *state = &d->plan->states[d->plan->state_count];
    int shards = d->plan->world / d->plan->replicas;

    *state = (tree_state){.reshard = (fsdp_reshard)pick(d, 3), .policy = d->policy};
    state->backwards = pick(d, 2);
    state->marked = d->plan->state_count > 0 && chance(d, 15);
    if (chance(d, 25))
        state->slice = 1 + pick(d, shards);
    if (state->slice > 0 && shards % state->slice != 0)
        state->slice = 0;
    if (chance(d, 12))
        draw_policy(d, &state->policy);
    if (d->coding && chance(d, 70))
        state->code = chance(d, 60) ? CODED_FLOAT8 : CODED_INT8;
    return d->plan->state_count++;
}

static int parents_of(const tree_plan *plan, int child)
{
    int count = 0;

    for (int i = 0; i < plan->node_count; i++)
        for (int k = 0; k < plan->nodes[i].child_count; k++)
            count += plan->nodes[i].children[k] == child;
    return count;
}

/* In one call with a sister or brother, or in one of its own. */
static int choose_state(drawing *d, int node)
{
    const tree_plan *plan = d->plan;
    const tree_node *parent = &plan->nodes[plan->nodes[node].parent];

    for (int k = 0; k < parent->child_count && parents_of(plan, node) == 1 && !d->once; k++) {
        int other = parent->children[k];

        if (other != node && plan->nodes[other].state >= 0 && parents_of(plan, other) == 1 && chance(d, 25))
            return plan->nodes[other].state;
    }
    return add_state(d);
}

static void draw_states(drawing *d)
{
    static const int percents[] = {0, 100, 30, 45, 60};
    tree_plan *plan = d->plan;
    int percent = percents[pick(d, 5)];

    if (chance(d, 40))
        draw_policy(d, &d->policy);
    plan->nodes[0].state = add_state(d);
    for (int i = 1; i < plan->node_count; i++)
        if (chance(d, percent))
            plan->nodes[i].state = choose_state(d, i);
}

/* ---- what comes last ---- */

static bool has_states_below(const tree_plan *plan, int node)
{
    bool any = false;

    for (int i = 0; i < plan->nodes[node].child_count && !any; i++) {
        int child = plan->nodes[node].children[i];

        any = plan->nodes[child].state >= 0 || has_states_below(plan, child);
    }
    return any;
}

/* Last, so that a seed's tree is the one it always was. Around sharded modules only where ranks go the same way: when a
 * recomputed function runs again, and gathers, follows from what its rank uses. */
static void draw_recomputed(drawing *d)
{
    tree_plan *plan = d->plan;

    plan->recomputes = chance(d, 30);
    for (int i = 0; i < plan->node_count && plan->recomputes; i++)
        if (chance(d, 40)) {
            fsdp_recompute_mode mode = (fsdp_recompute_mode)(1 + pick(d, 3));

            if (!tree_is_uneven(plan) || !has_states_below(plan, i))
                plan->nodes[i].recompute = mode;
        }
}

/* Where they go with what is drawn about resharding; then what switched reductions off and on says which microbatch
 * comes. */
static void draw_stages(drawing *d)
{
    tree_plan *plan = d->plan;
    bool any = false;

    for (int i = 0; i < plan->state_count; i++) {
        tree_state *state = &plan->states[i];
        bool never = state->slice ? state->slice == 1 : state->reshard == FSDP_RESHARD_NEVER;
        bool always = state->slice ? state->slice > 1 : state->reshard == FSDP_RESHARD_ALWAYS;

        if (chance(d, 30))
            state->stage = never ? 1 + pick(d, 2) : always ? 3 : 1 + pick(d, 3);
        any = any || state->stage > 0;
    }
    for (int i = 0; i < plan->call_count && any; i++)
        if (plan->calls[i].kind == TREE_SYNC_OFF || plan->calls[i].kind == TREE_LAST_OFF)
            plan->calls[i].kind = TREE_MICROBATCH;
        else if (plan->calls[i].kind == TREE_SYNC_ON || plan->calls[i].kind == TREE_LAST_ON)
            plan->calls[i].kind = TREE_LAST_MICROBATCH;
}

/* Last as well. */
void tree_make_replicas(tree_plan *plan)
{
    plan->replicated = true;
    plan->wrap = FSDP_WRAP_NONE;
    plan->replicas = plan->world;
    for (int i = 1; i < plan->node_count; i++)
        plan->nodes[i].state = -1;
    for (int p = 0; p < plan->param_count; p++) {
        plan->params[p].ignored = false;
        plan->params[p].dim = 0;
    }
    plan->states[0] = (tree_state){.reshard = FSDP_RESHARD_NEVER};
    plan->state_count = 1;
    plan->nodes[0].state = 0;
    /* What is not reduced across is not reduced, and adds up in the leaf. */
    for (int c = 0; c < plan->call_count; c++) {
        tree_kind kind = plan->calls[c].kind;

        if (kind == TREE_ALL_REDUCE_OFF || kind == TREE_MICROBATCH)
            plan->calls[c].kind = TREE_SYNC_OFF;
        if (kind == TREE_ALL_REDUCE_ON || kind == TREE_LAST_MICROBATCH)
            plan->calls[c].kind = TREE_SYNC_ON;
    }
    tree_settle(plan);
}

/* What flat groups do not do is taken out: other dtypes beside, dimensions, codes and slices. Who was trained when a
 * forward was recorded is the engine's business, so nothing is frozen in between. */
static void flatten(tree_plan *plan)
{
    plan->flat = true;
    plan->wrap = FSDP_WRAP_NONE;
    for (int p = 0; p < plan->param_count; p++) {
        plan->params[p].dtype = plan->params[0].dtype;
        plan->params[p].dim = 0;
    }
    for (int s = 0; s < plan->state_count; s++) {
        plan->states[s].code = CODED_NOT;
        if (plan->states[s].slice > 0) /* as that stands with a stage */
            plan->states[s].reshard = plan->states[s].slice == 1 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_ALWAYS;
        plan->states[s].slice = 0;
    }
    for (int c = 0; c < plan->call_count; c++)
        if (plan->calls[c].kind == TREE_FREEZE)
            plan->calls[c].kind = TREE_EVALUATE;
    tree_settle(plan);
}

/* Through the door itself: a unit is of one module, and has a strategy in place of a stage; gradients are reduced in
 * what they are computed in unless something else is said, and outputs are not cast. */
void tree_make_units(tree_plan *plan)
{
    if (!plan->flat)
        flatten(plan);
    plan->fsdp1 = true;
    tree_part_groups(plan);
    for (int s = 0; s < plan->state_count; s++) {
        fsdp_mp_policy *policy = &plan->states[s].policy;

        plan->states[s].stage = 0;
        plan->states[s].backwards = false;
        policy->output_dtype = FSDP_DTYPE_NONE;
        if (!policy->reduce_dtype)
            policy->reduce_dtype = policy->param_dtype;
    }
    for (int c = 0; c < plan->call_count; c++)
        if (plan->calls[c].kind == TREE_MICROBATCH)
            plan->calls[c].kind = TREE_SYNC_OFF;
        else if (plan->calls[c].kind == TREE_LAST_MICROBATCH)
            plan->calls[c].kind = TREE_SYNC_ON;
    tree_settle(plan);
}

/* Last of all. Where a rank has nothing to go back to there would be no backward; and what recomputed functions around
 * sharded modules run again is to be the same on all ranks. */
static void draw_seconds(drawing *d)
{
    tree_plan *plan = d->plan;
    bool any = chance(d, 35);

    for (int i = 0; i < plan->node_count && any; i++) {
        tree_node *n = &plan->nodes[i];

        if (!chance(d, 50))
            continue;
        n->second = (tree_second)(TREE_HALF + pick(d, 3));
        n->take = (tree_take)pick(d, plan->inputs ? plan->recomputes ? TREE_BY_RANK : TREE_TAKES : TREE_SECOND);
    }
}

/* ---- nothing ---- */

static void empty_param(drawing *d, tree_param *p)
{
    int dim = p->role == TREE_CUBE ? pick(d, 2) : 0;

    if (p->role == TREE_TALL || p->role == TREE_TABLE || p->role == TREE_CUBE || p->role == TREE_UNUSED)
        p->shape[dim] = 0;
}

/* Every dimension that is the width. */
static void empty_width(tree_plan *plan)
{
    plan->width = 0;
    for (int i = 0; i < plan->param_count; i++)
        if (plan->params[i].role != TREE_ELEMENT && plan->params[i].role != TREE_UNUSED)
            memset(plan->params[i].shape, 0, sizeof plan->params[i].shape);
}

static bool has_other_names(const tree_plan *plan, int param)
{
    bool has = plan->params[param].tied >= 0;

    for (int i = 0; i < plan->param_count; i++)
        has = has || plan->params[i].tied == param;
    return has;
}

/* A parameter that has a row for each element of the width, and one of any number of rows. */
static void make_tall(drawing *d, int param)
{
    tree_param *p = &d->plan->params[param];

    if (d->once || p->role == TREE_UNUSED || has_other_names(d->plan, param))
        return;
    p->role = TREE_TALL;
    p->ndim = 2;
    p->shape[1] = d->plan->width;
    p->dim = d->placing ? pick(d, 2) : 0;
}

/* The last: parameters without elements, whole nodes of them, and batches without rows. */
static void draw_empty(drawing *d)
{
    tree_plan *plan = d->plan;

    if (!chance(d, 25))
        return;
    plan->rowless = chance(d, 40);
    for (int i = 0; i < plan->node_count; i++) {
        bool all = chance(d, 40);

        for (int k = 0; k < plan->nodes[i].param_count; k++) {
            if (!all && !chance(d, 25))
                continue;
            if (all)
                make_tall(d, plan->nodes[i].params[k]);
            empty_param(d, &plan->params[plan->nodes[i].params[k]]);
        }
    }
    if (chance(d, 12))
        empty_width(plan);
    for (int i = 0; i < plan->param_count; i++) {
        const tree_param *original = &plan->params[tree_original(plan, i)];

        plan->params[i].ndim = original->ndim;
        memcpy(plan->params[i].shape, original->shape, sizeof original->shape);
    }
    tree_settle(plan);
}

/* Of what is computed in bf16. Last of all. */
void tree_draw_splits(uint64_t *random, tree_plan *plan)
{
    for (int s = 0; s < plan->state_count; s++)
        plan->states[s].policy.split_shards = dice_chance(random, 60);
}

/* ---- teams ---- */

bool tree_takes_teams(const tree_plan *plan)
{
    bool takes = !plan->replicated && !plan->flat && !plan->fsdp1 && plan->wrap == FSDP_WRAP_NONE;

    for (int s = 0; s < plan->state_count; s++)
        takes = takes && !plan->states[s].code;
    return takes && 2 * plan->world <= 8 && test_machines_of(2 * plan->world) == 1 && !getenv("FSDP_TEST_JOINED");
}

/* Any dimension of a matrix; of several roles that which all of them can be cut in. */
static int draw_way(uint64_t *random, const tree_plan *plan, int param)
{
    bool norm = false, head = false;
    int way = dice_below(random, plan->params[param].ndim + 2);

    for (int p = 0; p < plan->param_count; p++)
        if (tree_original(plan, p) == param) {
            norm = norm || plan->params[p].role == TREE_SCALE || plan->params[p].role == TREE_ELEMENT ||
                   plan->params[p].role == TREE_GATED;
            head = head || plan->params[p].role == TREE_HEAD;
        }
    if (head)
        return TREE_ALIKE;
    return way == plan->params[param].ndim + 1 ? TREE_OWN_ROWS : norm && way > 0 ? TREE_OWN_ROWS : way;
}

int tree_draw_team_size(uint64_t *random, const tree_plan *plan)
{
    return 2 + (plan->world < 3 ? dice_below(random, 3) : 0);
}

void tree_draw_team(uint64_t *random, int team, tree_plan *plan)
{
    plan->team = team;
    plan->grid = plan->replicas > 1;
    plan->parts = 0;
    for (int s = 0; s < plan->state_count; s++) {
        tree_state *state = &plan->states[s];

        if (state->slice > 0) /* as that stands with a stage */
            state->reshard = state->slice == 1 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_ALWAYS;
        state->slice = 0;
    }
    for (int p = 0; p < plan->param_count; p++)
        if (plan->params[p].tied < 0)
            plan->params[p].way = draw_way(random, plan, p);
    tree_settle(plan);
}

void tree_draw(uint64_t seed, tree_plan *plan)
{
    static const int worlds[] = {1, 2, 2, 3, 3, 4, 5, 8};
    drawing d = {.random = seed * 0x2545f4914f6cdd1du + 1, .plan = plan};

    *plan = (tree_plan){.seed = seed};
    plan->world = test_machines_world(worlds[pick(&d, 8)]);
    plan->replicas = chance(&d, 35) ? 1 + pick(&d, plan->world) : 1;
    if (plan->world % plan->replicas != 0)
        plan->replicas = plan->world;
    plan->width = 1 + pick(&d, 7);
    plan->real = chance(&d, 40);
    plan->inputs = chance(&d, 40);
    plan->adamw = pick(&d, 2);
    plan->late = chance(&d, 25);
    d.coding = chance(&d, 25);
    d.once = d.coding && chance(&d, 60);
    d.mixed = !d.once && chance(&d, 15);
    d.ignoring = chance(&d, 20);
    d.placing = chance(&d, 35);
    d.fickle = plan->inputs && chance(&d, 50); /* a rank that uses none of them has something to go back to */
    draw_tree(&d);
    draw_states(&d);
    tree_draw_wrap(plan);
    tree_settle(plan);
    tree_draw_calls(&d.random, TREE_DRAWS_TREES, plan);
    draw_recomputed(&d);
    if (chance(&d, 50))
        draw_stages(&d);
    tree_settle(plan); /* most policies give all states the same stage */
    if (chance(&d, 12))
        tree_make_replicas(plan);
    else if (chance(&d, 20))
        flatten(plan);
    if (plan->flat && chance(&d, 60))
        tree_make_units(plan);
    draw_seconds(&d);
    draw_empty(&d);
    tree_draw_splits(&d.random, plan);
}

bool tree_has_whole_mesh(const tree_plan *plan)
{
    return plan->replicas > 1 && plan->world / plan->replicas > 1;
}

void tree_draw_teams(uint64_t seed, tree_plan *plan)
{
    uint64_t random = seed;
    bool whole = dice_below(&random, 4) == 0;

    do
        tree_draw((uint64_t)dice_below(&random, 1 << 30), plan);
    while (!tree_takes_teams(plan) || (whole && !tree_has_whole_mesh(plan)));
    tree_draw_team(&random, tree_draw_team_size(&random, plan), plan);
}
