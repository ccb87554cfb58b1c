/* order_program.c - a sequence: its models, drawn and printed. */
#include "shard/order_program.h"

/* ---- a model and its groups ---- */

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

void order_plan_finish(order_plan *plan)
{
    int n = plan->blocks, ends = plan->grouping == ORDER_GROUP_PAIR_ENDS ? n + 1 : -1;
    char name[24];

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

uint32_t order_params_of(const order_plan *plan, uint32_t groups)
{
    uint32_t params = 0;

    for (int g = 0; g < plan->group_count; g++)
        if (groups >> g & 1)
            params |= plan->group_params[g];
    return params;
}

uint32_t order_groups_of(const order_plan *plan, uint32_t params)
{
    uint32_t groups = 0;

    for (int g = 0; g < plan->group_count; g++)
        if (plan->group_params[g] & params)
            groups |= 1u << g;
    return groups;
}

uint32_t order_params_up_to(int block)
{
    return (1u << (4 * block + 6)) - 1;
}

/* ---- calls ---- */

void order_print_call(FILE *stream, const order_program *p, int index, const char *name)
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

bool order_skips_any(const order_program *p)
{
    return p->seed % 4 == 1 && p->world > 1;
}

bool order_skips(const order_program *p, int block, int number, int rank)
{
    return order_skips_any(p) && (block + number + rank) % p->world == 0;
}

bool order_replicates(const order_program *p)
{
    return !order_is_flat(p) && p->world > 1 && p->replicas == p->world && !p->bf16 && p->seed % 3 != 1;
}

bool order_leaves_out(const order_program *p, const order_plan *plan)
{
    return plan->forward_params != plan->all_params || order_skips_any(p);
}

bool order_shards_last(const order_program *p)
{
    return p->seed % 6 == 0;
}

bool order_is_flat(const order_program *p)
{
    return p->seed % 5 == 2;
}

int order_ffn(const order_program *p)
{
    return p->seed % 11 == 7 ? 0 : ORDER_FFN;
}

int order_rows(const order_program *p, int number, int rank)
{
    return p->seed % 7 == 4 && (number + rank) % 3 == 0 ? 0 : ORDER_ROWS;
}

void order_print_program(FILE *stream, const order_program *p)
{
    static const char *const forms[] = {"head", "fused head", "block 0 twice"},
                             *const groupings[] = {"blocks and root", "root only", "blocks 0+1, the others, root",
                                                   "norm+head, blocks, root"},
                             *const reshards[] = {"auto", "always", "never"};

    fprintf(stream, "seed %llu, world %d, replicas %d, %s%s%s\n", (unsigned long long)p->seed, p->world, p->replicas,
            !p->bf16        ? "f32"
            : p->reduce_f32 ? "bf16, reduced in f32"
                            : "bf16",
            order_is_flat(p)       ? ", FSDP1"
            : order_shards_last(p) ? ", sharded in the last dimension"
                                   : "",
            order_ffn(p) == 0 ? ", nothing between the layers of blocks" : "");
    for (int m = 0; m < p->models; m++) {
        const order_plan *plan = &p->plans[m];

        fprintf(stream, "  model %c: %d blocks, %s, groups: %s, reshard after forward:", 'A' + m, plan->blocks,
                forms[plan->form], groupings[plan->grouping]);
        for (int g = 0; g < plan->group_count; g++)
            if (plan->slice_ranks[g])
                fprintf(stream, " %d", plan->slice_ranks[g]);
            else
                fprintf(stream, " %s", reshards[plan->reshard[g]]);
        for (int g = 0; g < plan->group_count && plan->staged; g++)
            fprintf(stream, "%s %d", g == 0 ? ", stages" : "", plan->zero_stage[g]);
        if (plan->checkpoints)
            fprintf(stream, ", checkpoints %x", plan->checkpoints);
        fprintf(stream, "%s\n", plan->real ? "" : ", built on the meta device");
    }
}
