/* order_play.c - players and what they log. */
#include "shard/order_play.h"

#include "shard/reduce/gradients.h"

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

fsdp_tensor *gradient_at(const order_model *m, int param)
{
    fsdp_tensor *shard = shard_at(m, param), *view;
    const fsdp__param *p = m->plan->as_one ? fsdp__param_of(shard) : NULL;
    const fsdp_tensor *all = p ? fsdp_tensor_grad(p->group->vector.sharded) : NULL;

    if (!p) /* also of a plain model */
        return fsdp_tensor_ref(fsdp_tensor_grad(shard));
    if (!all)
        return NULL;
    CHECK_OK(fsdp__tensor_create_view(all->storage, all->dtype, shard->ndim, shard->shape, NULL,
                                      all->offset + p->piece.in_shard, &view));
    CHECK_OK(fsdp_tensor_set_distribution(view, fsdp_tensor_distribution(shard)));
    return view;
}

bool is_whole(const order_call *call, int param)
{
    return call->whole[call->model] >> param & 1;
}

int replicas_of(const order_player *player)
{
    return player->program->replicas > 0 ? player->program->replicas : 1;
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

int64_t element_of(int ndim, const int64_t *shape, const int64_t *offset, const int64_t *size, int64_t i)
{
    int64_t index = 0, stride = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        index += (offset[d] + i % size[d]) * stride;
        i /= size[d];
        stride *= shape[d];
    }
    return index;
}

/* Of the values of a whole tensor those that a rank would have. Returns how many. */
static int64_t keep_part(const order_program *program, int rank, const fsdp_tensor *tensor, float *values)
{
    int ndim = fsdp_tensor_ndim(tensor), dim = order_shards_last(program) ? ndim - 1 : 0;
    int shards = program->replicas > 0 ? program->world / program->replicas : program->world;
    const int64_t *shape = fsdp_tensor_shape(tensor);
    int64_t offset[FSDP_MAX_DIMS] = {0}, size[FSDP_MAX_DIMS], numel = 1;

    memcpy(size, shape, (size_t)ndim * sizeof *size);
    size[dim] = fsdp_shard_range(shape[dim], shards, rank % shards, &offset[dim]);
    for (int d = 0; d < ndim; d++)
        numel *= size[d];
    for (int64_t i = 0; i < numel; i++)
        values[i] = values[element_of(ndim, shape, offset, size, i)];
    return numel;
}

void log_rows(order_player *player, int model, const char *what, int param, const fsdp_tensor *tensor)
{
    if (player->models[model].plan->flat) {
        fsdp_tensor *whole;

        CHECK_OK(fsdp_full_tensor(tensor, &whole));
        log_whole(player, model, what, param, whole);
        fsdp_tensor_unref(whole);
        return;
    }
    for (int i = 0; i < player->ranks; i++) {
        float *values = read_values(tensor);
        int64_t count = fsdp_tensor_numel(tensor);

        if (player->plain)
            count = keep_part(player->program, i, tensor, values);
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
                   memcmp(fsdp_tensor_shape(field), distribution->global_shape,
                          (size_t)distribution->ndim * sizeof(int64_t)) == 0
               ? 1
               : 2;
}

static void log_gradients(order_player *player, int model)
{
    order_model *m = &player->models[model];

    for (int p = 0; p < m->plan->param_count; p++) {
        fsdp_tensor *gradient = gradient_at(m, p);

        log_all(player, model, "presence of the gradient", p, gradient != NULL);
        if (gradient)
            log_rows(player, model, "gradient", p, gradient);
        fsdp_tensor_unref(gradient);
    }
}

void order_observe(order_player *player, int model, const order_call *call)
{
    order_model *m = &player->models[model];

    for (int p = 0; p < m->plan->param_count; p++) {
        bool whole = call->whole[model] >> p & 1;

        log_all(player, model, "what the field names", p,
                player->plain ? whole
                              : field_names(m, p, CHECK_PTR(fsdp_module_parameter(m->module, param_name(m, p)))));
        log_rows(player, model, "parameter", p, shard_at(m, p));
        log_all(player, model, "requires_grad", p, fsdp_tensor_requires_grad(shard_at(m, p)));
    }
    log_gradients(player, model);
}
