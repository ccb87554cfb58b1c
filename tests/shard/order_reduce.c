/* order_reduce.c - how a plain model reduces: what each rank computed, replica by replica, and then over the replicas.
 */
#include "shard/order_calls.h"
#include "shard/rank_sum.h"
#include "support/ranks.h"

static void forget_unreduced(order_model *m, uint32_t params)
{
    for (int r = 0; r < ORDER_MAX_WORLD; r++)
        for (int p = 0; p < m->plan->param_count; p++)
            if (params >> p & 1) {
                fsdp_tensor_unref(m->unreduced[r][p]);
                m->unreduced[r][p] = NULL;
            }
}

void drop_unreduced(order_model *m, uint32_t params)
{
    forget_unreduced(m, params);
    for (int r = 0; r < ORDER_MAX_WORLD; r++)
        for (int p = 0; p < m->plan->param_count; p++)
            if (params >> p & 1) {
                free(m->partial[r][p]);
                m->partial[r][p] = NULL;
            }
}

float divided(float sum, float factor, int world)
{
    return sum / (factor > 0 ? factor : (float)world);
}

static float factor_of(const order_model *m, int param)
{
    for (int g = 0; g < m->plan->group_count; g++)
        if (m->plan->group_params[g] >> param & 1)
            return m->divide[g];
    return 0;
}

/* Adds the ranks' unreduced gradients, replica by replica: of those that have any. */
static void reduce_inside(const order_player *player, order_model *m, int param)
{
    int world = player->program->world, shards = world / replicas_of(player);
    int64_t numel = fsdp_tensor_numel(shard_at(m, param));

    for (int replica = 0; replica < replicas_of(player); replica++) {
        float *brought[ORDER_MAX_WORLD] = {NULL}, **partial = &m->partial[replica][param];

        for (int i = 0; i < shards; i++)
            if (m->unreduced[replica * shards + i][param])
                brought[i] = read_values(m->unreduced[replica * shards + i][param]);
        *partial = rank_sum_joined(
            *partial, rank_sum(brought, shards, test_rank_block(world, replica * shards, 1, shards), FSDP_F32, numel),
            numel);
    }
}

/* Adds the sum of the replicas, divided, to the parameter's gradient. */
static void reduce_across(const order_player *player, order_model *m, int param)
{
    fsdp_tensor *p = shard_at(m, param), *gradient = fsdp_tensor_grad(p), *sum;
    int world = player->program->world, replicas = replicas_of(player);
    int64_t numel = fsdp_tensor_numel(p);
    float *total, *partials[ORDER_MAX_WORLD], *before = gradient ? read_values(gradient) : NULL;

    for (int replica = 0; replica < replicas; replica++) {
        partials[replica] = m->partial[replica][param];
        m->partial[replica][param] = NULL;
    }
    total = rank_sum(partials, replicas, test_rank_block(world, 0, world / replicas, replicas), FSDP_F32, numel);
    for (int64_t i = 0; i < numel; i++) {
        volatile float share = divided(total[i], factor_of(m, param), world); /* rounded first */

        total[i] = before ? before[i] + share : share;
    }
    CHECK_OK(fsdp_tensor_create(fsdp_tensor_device(p), FSDP_F32, fsdp_tensor_ndim(p), fsdp_tensor_shape(p),
                                FSDP_MEMORY_GRADIENT, &sum));
    CHECK_OK(fsdp_tensor_write(sum, FSDP_F32, total));
    CHECK_OK(fsdp_tensor_set_grad(p, sum));
    fsdp_tensor_unref(sum);
    free(total);
    free(before);
}

static bool any_partial(const order_model *m, int param)
{
    bool any = false;

    for (int replica = 0; replica < ORDER_MAX_WORLD; replica++)
        any = any || m->partial[replica][param];
    return any;
}

/* Of the ranks of a replica any has one of the group's. */
static bool brings(const order_player *player, const order_model *m, int group, int replica)
{
    int shards = player->program->world / replicas_of(player);
    bool any = false;

    for (int r = replica * shards; r < (replica + 1) * shards; r++)
        for (int p = 0; p < m->plan->param_count; p++)
            any = any || (m->plan->group_params[group] >> p & 1 && m->unreduced[r][p]);
    return any;
}

/* What a replica has of a flat unit is reduced as one: zeros where it has no gradient beside one that it has. */
static void reduce_units(const order_player *player, order_model *m, uint32_t params)
{
    bool zeros[ORDER_MAX_GROUPS][ORDER_MAX_WORLD] = {{false}};

    for (int g = 0; g < m->plan->group_count; g++)
        for (int replica = 0; replica < replicas_of(player); replica++)
            zeros[g][replica] = m->plan->flat && brings(player, m, g, replica);
    for (int p = 0; p < m->plan->param_count; p++)
        if (params >> p & 1)
            reduce_inside(player, m, p);
    for (int g = 0; g < m->plan->group_count; g++)
        for (int p = 0; p < m->plan->param_count; p++)
            for (int replica = 0; replica < replicas_of(player); replica++)
                if (zeros[g][replica] && m->plan->group_params[g] & params & 1u << p && !m->partial[replica][p])
                    m->partial[replica][p] = calloc((size_t)fsdp_tensor_numel(shard_at(m, p)) + 1, sizeof(float));
}

void plain_reduce(const order_player *player, order_model *m, const order_call *call)
{
    reduce_units(player, m, call->params);
    forget_unreduced(m, call->params);
    for (int p = 0; p < m->plan->param_count; p++)
        if (call->completes >> p & 1 && any_partial(m, p)) {
            reduce_across(player, m, p);
            drop_unreduced(m, 1u << p);
        }
}
