/* shard/order_program.h - what a sequence is made of: the models, how they are sharded, and the calls.
 *
 * Sets of parameters and of groups are bit masks. Parameters are numbered as fsdp_module_parameters lists them, groups
 * from the root's own, 0. */
#ifndef TESTS_SHARD_ORDER_PROGRAM_H
#define TESTS_SHARD_ORDER_PROGRAM_H

#include "shard/order_net.h"

enum {
    ORDER_MODELS = 2,
    ORDER_SLOTS = 3, /* losses that may be alive at a time */
    ORDER_MAX_WORLD = 5,
    ORDER_MAX_BLOCKS = 3,
    ORDER_MAX_GROUPS = ORDER_MAX_BLOCKS + 2,
    ORDER_MAX_TARGETS = ORDER_MAX_BLOCKS + 4,
    ORDER_MAX_PARAMS = 4 * ORDER_MAX_BLOCKS + 6,
    ORDER_MAX_CALLS = 80,
};

/* ---- drawing numbers: splitmix64, the same everywhere ---- */

static uint64_t order_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int order_below(uint64_t *state, int count)
{
    return (int)(order_random(state) % (uint64_t)count);
}

static bool order_chance(uint64_t *state, int percent)
{
    return order_below(state, 100) < percent;
}

/* ---- a model and its groups ---- */

typedef enum order_grouping {
    ORDER_GROUP_BLOCKS,      /* each block, and the rest */
    ORDER_GROUP_ROOT,        /* one group */
    ORDER_GROUP_PAIR_BLOCKS, /* blocks 0 and 1 are one group */
    ORDER_GROUP_PAIR_ENDS,   /* norm and head are one group; not with a fused head, which does not run its module */
    ORDER_GROUPINGS
} order_grouping;

/* A module that calls are made on. */
typedef struct order_target {
    char name[16];      /* from the root, "" for the root */
    uint32_t params;    /* of the subtree */
    int group;          /* that it was given to fully_shard with; -1: it was not */
    uint32_t groups_in; /* groups of the sharded modules of the subtree */
} order_target;

typedef struct order_plan {
    int blocks;
    order_form form;
    order_grouping grouping;
    bool real; /* built with values on the CPU instead of on the meta device */
    fsdp_reshard reshard[ORDER_MAX_GROUPS];
    int param_count, group_count, target_count;
    uint32_t all_params, all_groups;
    uint32_t forward_params; /* what the root's forward uses */
    uint32_t group_params[ORDER_MAX_GROUPS];
    order_target targets[ORDER_MAX_TARGETS]; /* root, blocks, input, norm, head */
} order_plan;

static int order_group_of_block(const order_plan *plan, int block)
{
    switch (plan->grouping) {
    case ORDER_GROUP_ROOT:
        return -1;
    case ORDER_GROUP_PAIR_BLOCKS:
        return block < 2 ? 1 : block;
    default:
        return block + 1;
    }
}

static void order_add_target(order_plan *plan, const char *name, uint32_t params, int group)
{
    order_target *t = &plan->targets[plan->target_count++];

    snprintf(t->name, sizeof t->name, "%s", name);
    t->params = params;
    t->group = group;
    t->groups_in = group < 0 ? 0 : 1u << group;
    plan->group_params[group < 0 ? 0 : group] |= params;
    if (group >= plan->group_count)
        plan->group_count = group + 1;
}

/* Everything that follows from blocks, form and grouping. */
static void order_plan_finish(order_plan *plan)
{
    int n = plan->blocks, ends = plan->grouping == ORDER_GROUP_PAIR_ENDS ? n + 1 : -1;
    char name[16];

    plan->param_count = 4 * n + 6;
    plan->all_params = plan->forward_params = (1u << plan->param_count) - 1;
    if (plan->form == ORDER_FORM_FUSED)
        plan->forward_params &= ~(1u << (plan->param_count - 1)); /* the head's bias */
    plan->group_count = 1;
    order_add_target(plan, "", 0, 0);
    for (int b = 0; b < n; b++) {
        snprintf(name, sizeof name, "blocks.%d", b);
        order_add_target(plan, name, 0xfu << (2 + 4 * b), order_group_of_block(plan, b));
    }
    order_add_target(plan, "input", 3u, -1);
    order_add_target(plan, "norm", 3u << (4 * n + 2), ends);
    order_add_target(plan, "head", 3u << (4 * n + 4), ends);
    plan->all_groups = (1u << plan->group_count) - 1;
    plan->targets[0].params = plan->all_params;
    plan->targets[0].groups_in = plan->all_groups;
}

/* The parameters of a set of groups. */
static uint32_t order_params_of(const order_plan *plan, uint32_t groups)
{
    uint32_t params = 0;

    for (int g = 0; g < plan->group_count; g++)
        if (groups >> g & 1)
            params |= plan->group_params[g];
    return params;
}

/* The groups that any of the parameters is in. */
static uint32_t order_groups_of(const order_plan *plan, uint32_t params)
{
    uint32_t groups = 0;

    for (int g = 0; g < plan->group_count; g++)
        if (plan->group_params[g] & params)
            groups |= 1u << g;
    return groups;
}

/* The parameters of a block and of all that runs before it. */
static uint32_t order_params_up_to(int block)
{
    return (1u << (4 * block + 6)) - 1;
}

/* ---- calls ---- */

typedef enum order_kind {
    ORDER_FORWARD,
    ORDER_FORWARD_PART,
    ORDER_EVALUATE,
    ORDER_BACKWARD,
    ORDER_BACKWARD_KEEP,
    ORDER_DROP,
    ORDER_UNSHARD,
    ORDER_RESHARD,
    ORDER_RESHARD_ALL,
    ORDER_READ_WHOLE,
    ORDER_READ_FULL,
    ORDER_READ_GRADIENTS,
    ORDER_ZERO_GRAD,
    ORDER_OPTIMIZER_ZERO_GRAD,
    ORDER_STEP,
    ORDER_CLIP,
    ORDER_FREEZE,
    ORDER_UNFREEZE,
    ORDER_FREEZE_ONE,
    ORDER_SYNC_OFF,
    ORDER_SYNC_ON,
    ORDER_LAST_OFF,
    ORDER_LAST_ON,
    ORDER_SET_RESHARD_FORWARD,
    ORDER_SET_RESHARD_BACKWARD,
    ORDER_SET_DIVIDE,
    ORDER_WRITE,
    ORDER_FILL,
    ORDER_COPY,
    ORDER_INITIALIZE,
    ORDER_SAVE,
    ORDER_LOAD,
    ORDER_NEW_OPTIMIZER,
    ORDER_RESET,
    ORDER_REBUILD,
    ORDER_FAIL_FORWARD,
    ORDER_FAIL_SHAPE,
    ORDER_FAIL_BACKWARD,
    ORDER_REFUSE_SHARD,
    ORDER_REFUSE_UNSHARD,
    ORDER_REFUSE_WALKED,
    ORDER_REFUSE_STATE,
    ORDER_REFUSE_OPTIMIZER,
    ORDER_REFUSE_WRITE,
    ORDER_KINDS
} order_kind;

/* What is -1 was not drawn. */
typedef struct order_call {
    order_kind kind;
    int model;
    int target; /* of the plan */
    int param;
    int slot;    /* of a loss */
    int number;  /* batch, seed, block, ... or a bool */
    int recurse; /* a bool */
    float value;
    bool windowed;                /* the parameter's field names a whole tensor when the call begins */
    uint32_t params;              /* backward: those whose groups reduce; zero_grad of the optimizer: those it has */
    uint32_t whole[ORDER_MODELS]; /* parameters whose fields name whole tensors after the call */
} order_call;

typedef struct order_program {
    uint64_t seed;
    int world, models;
    bool bf16, reduce_f32; /* the mixed precision policy */
    bool exact;            /* a plain model can give the same bits */
    order_plan plans[ORDER_MODELS];
    order_call calls[ORDER_MAX_CALLS];
    int count;
} order_program;

static void order_print_call(FILE *stream, const order_program *p, int index, const char *name)
{
    const order_call *c = &p->calls[index];
    const struct {
        const char *name;
        int value;
    } fields[] = {{"parameter", c->param}, {"loss", c->slot}, {"number", c->number}, {"recurse", c->recurse}};

    fprintf(stream, "  %2d. %s model %c", index + 1, name, 'A' + c->model);
    if (c->target >= 0)
        fprintf(stream, " %s", c->target == 0 ? "root" : p->plans[c->model].targets[c->target].name);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (fields[i].value >= 0)
            fprintf(stream, " %s=%d", fields[i].name, fields[i].value);
    if (c->value != 0)
        fprintf(stream, " value=%g", (double)c->value);
    fputc('\n', stream);
}

static void order_print_program(FILE *stream, const order_program *p)
{
    static const char *const forms[] = {"head", "fused head", "block 0 twice"},
                             *const groupings[] = {"blocks and root", "root only", "blocks 0+1, the others, root",
                                                   "norm+head, blocks, root"},
                             *const reshards[] = {"auto", "always", "never"};

    fprintf(stream, "seed %llu, world %d, %s\n", (unsigned long long)p->seed, p->world,
            !p->bf16        ? "f32"
            : p->reduce_f32 ? "bf16, reduced in f32"
                            : "bf16");
    for (int m = 0; m < p->models; m++) {
        const order_plan *plan = &p->plans[m];

        fprintf(stream, "  model %c: %d blocks, %s, groups: %s, reshard after forward:", 'A' + m, plan->blocks,
                forms[plan->form], groupings[plan->grouping]);
        for (int g = 0; g < plan->group_count; g++)
            fprintf(stream, " %s", reshards[plan->reshard[g]]);
        fprintf(stream, "%s\n", plan->real ? "" : ", built on the meta device");
    }
}

#endif
