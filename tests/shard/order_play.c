/* order_play.c - players and what they log. */
#include "shard/order_play.h"

/* ---- the player ---- */

order_model *model_of(order_player *player, const order_call *call)
{
    return &player->models[call->model];
}

fsdp_module *module_at(const order_model *m, int target)
{
    const char *name = m->plan->targets[target].name;

    return *name ? CHECK_PTR(fsdp_module_child(m->module, name)) : m->module;
}

order_block *block_at(const order_model *m, int block)
{
    return (order_block *)module_at(m, 1 + block);
}

const char *param_name(const order_model *m, int param)
{
    return m->parameters.items[param].name;
}

fsdp_tensor *shard_at(const order_model *m, int param)
{
    return m->parameters.items[param].tensor;
}

bool is_whole(const order_call *call, int param)
{
    return call->whole[call->model] >> param & 1;
}

/* ---- logging ---- */

/* Takes over `values`. */
static void log_values(order_player *player, int rank, int model, const char *what, int param, float *values,
                       int64_t count)
{
    const log_entry entry = {
        .call = player->at, .model = model, .param = param, .what = what, .count = count, .values = values};

    run_log_add(&player->logs[rank], &entry);
}

void log_value(order_player *player, int rank, int model, const char *what, int param, double value)
{
    float *copy = malloc(sizeof *copy);

    *copy = (float)value;
    log_values(player, rank, model, what, param, copy, 1);
}

void log_all(order_player *player, int model, const char *what, int param, double value)
{
    for (int i = 0; i < player->ranks; i++)
        log_value(player, player->first_rank + i, model, what, param, value);
}

float *read_values(const fsdp_tensor *tensor)
{
    float *values = malloc((size_t)(fsdp_tensor_numel(tensor) + 1) * sizeof *values);

    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    return values;
}

void log_whole(order_player *player, int model, const char *what, int param, const fsdp_tensor *tensor)
{
    for (int i = 0; i < player->ranks; i++)
        log_values(player, player->first_rank + i, model, what, param, read_values(tensor), fsdp_tensor_numel(tensor));
}

void log_rows(order_player *player, int model, const char *what, int param, const fsdp_tensor *tensor)
{
    int64_t rows = fsdp_tensor_size(tensor, 0), numel = fsdp_tensor_numel(tensor);

    for (int i = 0; i < player->ranks; i++) {
        float *values = read_values(tensor);
        int64_t first = 0, count = numel;

        if (player->plain) {
            count = fsdp_shard_range(rows, player->program->world, i, &first) * (numel / rows);
            memmove(values, values + first * (numel / rows), (size_t)count * sizeof *values);
        }
        log_values(player, player->first_rank + i, model, what, param, values, count);
    }
}

/* What the field names: 0 the shard, 1 a whole plain tensor, 2 something else. */
static int field_names(const order_model *m, int param, const fsdp_tensor *field)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(shard_at(m, param));

    if (field == shard_at(m, param))
        return 0;
    return distribution && !fsdp_tensor_distribution(field) &&
                   fsdp_tensor_size(field, 0) == distribution->global_shape[0]
               ? 1
               : 2;
}

static void log_gradients(order_player *player, int model)
{
    order_model *m = &player->models[model];

    for (int p = 0; p < m->plan->param_count; p++) {
        fsdp_tensor *gradient = fsdp_tensor_grad(shard_at(m, p));

        log_all(player, model, "presence of the gradient", p, gradient != NULL);
        if (gradient)
            log_rows(player, model, "gradient", p, gradient);
    }
}

void order_observe(order_player *player, int model, const order_call *call)
{
    order_model *m = &player->models[model];
    fsdp_parameters now;

    CHECK_OK(fsdp_module_parameters(m->module, &now));
    CHECK_EQ(now.count, m->plan->param_count);
    for (int p = 0; p < m->plan->param_count; p++) {
        bool whole = call->whole[model] >> p & 1;

        log_all(player, model, "what the field names", p,
                player->plain ? whole : field_names(m, p, now.items[p].tensor));
        log_rows(player, model, "parameter", p, shard_at(m, p));
        log_all(player, model, "requires_grad", p, fsdp_tensor_requires_grad(shard_at(m, p)));
    }
    fsdp_parameters_release(&now);
    log_gradients(player, model);
}
