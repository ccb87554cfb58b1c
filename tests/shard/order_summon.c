/* order_summon.c - whole parameters between two calls: drawn, read and written. */
#include "shard/order_calls.h"
#include "shard/order_draw.h"

/* Bits of a call's number. */
enum {
    SUMMON_WRITE = 1,
    SUMMON_HOST = 2,
    SUMMON_GRADIENTS = 4
};

bool draw_summon(order_draw *d, order_call *c)
{
    uint32_t groups;

    if (!sharded_target(d, c))
        return false;
    c->number = pick(d, order_sketch_of(d, c)->unsettled ? SUMMON_GRADIENTS : 2 * SUMMON_GRADIENTS);
    if (order_plan_of(d, c)->as_one) /* refused */
        c->number &= ~SUMMON_GRADIENTS;
    c->recurse = pick(d, 2);
    groups = c->recurse ? target_of(d, c)->groups_in : 1u << target_of(d, c)->group;
    c->params = order_params_of(order_plan_of(d, c), groups);
    write_params(d, c, c->params);
    return true;
}

static void read_and_write(order_player *player, const order_call *call, int param)
{
    order_model *m = model_of(player, call);
    fsdp_tensor *tensor = CHECK_PTR(fsdp_module_parameter(m->module, param_name(m, param)));
    fsdp_tensor *gradient = fsdp_tensor_grad(tensor);
    float *values;

    CHECK_NULL(fsdp_tensor_distribution(tensor));
    log_whole(player, call->model, "summoned parameter", param, tensor);
    if (call->number & SUMMON_GRADIENTS)
        log_all(player, call->model, "presence of a summoned gradient", param, gradient != NULL);
    if (gradient && (call->number & SUMMON_GRADIENTS))
        log_whole(player, call->model, "summoned gradient", param, gradient);
    if (!(call->number & SUMMON_WRITE))
        return;
    values = read_values(tensor);
    for (int64_t i = 0; i < fsdp_tensor_numel(tensor); i++)
        values[i] = values[i] / 2 + (float)(i % 7) / 16;
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
    free(values);
}

void play_summon(order_player *player, const order_call *call)
{
    const fsdp_summon_options options = {.no_recurse = !call->recurse,
                                         .no_writeback = !(call->number & SUMMON_WRITE),
                                         .offload_to_cpu = call->number & SUMMON_HOST,
                                         .with_grads = call->number & SUMMON_GRADIENTS};
    const order_model *m = model_of(player, call);
    fsdp_module *module = module_at(m, call->target);

    if (!player->plain)
        CHECK_OK(fsdp_module_summon_full_params(module, &options));
    for (int p = 0; p < m->plan->param_count; p++)
        if (call->params >> p & 1)
            read_and_write(player, call, p);
    if (!player->plain)
        CHECK_OK(fsdp_module_end_summon(module));
}
