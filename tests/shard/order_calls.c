/* order_calls.c - each call, on ranks and on plain models. */
#include "shard/order_calls.h"

#include "fsdp/fsdp1.h"
#include "shard/net.h"

/* ---- forward ---- */

static fsdp_tensor *run_forward(const order_player *player, const order_model *m, const order_call *call, int rank)
{
    fsdp_context *context = m->module->context;
    int rows = order_rows(player->program, call->number, rank);
    fsdp_tensor *y;

    if (player->plain && !order_replicates(player->program))
        net_renew(m->module);
    for (int i = 0; i < m->plan->blocks; i++)
        block_at(m, i)->skips = !m->plan->checkpoints && order_skips(player->program, i, call->number, rank);
    if (call->target == 0)
        return fsdp_call(m->module, order_inputs(context, call->number, rank, rows, ORDER_IN),
                         order_targets(context, call->number, rank, rows));
    y = fsdp_call(module_at(m, call->target), order_inputs(context, call->number, rank, rows, ORDER_DIM));
    return fsdp_mean(fsdp_mul(y, y));
}

static void log_loss(order_player *player, const order_call *call, int rank, const fsdp_tensor *loss)
{
    double value;

    CHECK_OK(fsdp_tensor_item(loss, &value));
    log_value(player, rank, call->model, "loss", -1, value);
    log_value(player, rank, call->model, "requires_grad of the loss", -1, fsdp_tensor_requires_grad(loss));
}

void drop_losses(order_model *m, int slot)
{
    for (int r = 0; r < ORDER_MAX_WORLD; r++) {
        fsdp_tensor_unref(m->losses[slot][r]);
        m->losses[slot][r] = NULL;
    }
}

void play_forward(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    drop_losses(m, call->slot);
    for (int i = 0; i < player->ranks; i++) {
        fsdp_tensor *loss = CHECK_PTR(run_forward(player, m, call, player->first_rank + i));

        m->losses[call->slot][i] = fsdp_tensor_ref(loss);
        log_loss(player, call, player->first_rank + i, loss);
    }
}

void play_evaluate(order_player *player, const order_call *call)
{
    fsdp_no_grad_begin(player->context);
    for (int i = 0; i < player->ranks; i++)
        log_loss(player, call, player->first_rank + i,
                 CHECK_PTR(run_forward(player, model_of(player, call), call, player->first_rank + i)));
    fsdp_no_grad_end(player->context);
}

void play_drop(order_player *player, const order_call *call)
{
    drop_losses(model_of(player, call), call->slot);
}

/* ---- backward ---- */

/* A loss that depends on nothing that is trained is refused. */
static void walk_loss(const order_model *m, const order_call *call, int i)
{
    fsdp_tensor *loss = m->losses[call->slot][i];

    if (fsdp_tensor_requires_grad(loss))
        CHECK_OK(fsdp_backward_from(&loss, NULL, 1, call->kind == ORDER_BACKWARD_KEEP));
    else
        CHECK_STATUS(fsdp_backward(loss), FSDP_INVALID);
}

void play_backward(order_player *player, const order_call *call)
{
    walk_loss(model_of(player, call), call, 0);
}

/* The model's gradients and `gradients` change places. */
static void swap_gradients(const order_model *m, fsdp_tensor **gradients)
{
    for (int p = 0; p < m->plan->param_count; p++) {
        fsdp_tensor *old = fsdp_tensor_ref(fsdp_tensor_grad(shard_at(m, p)));

        CHECK_OK(fsdp_tensor_set_grad(shard_at(m, p), gradients[p]));
        fsdp_tensor_unref(gradients[p]);
        gradients[p] = old;
    }
}

void plain_backward(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);
    fsdp_tensor *reduced[ORDER_MAX_PARAMS] = {NULL};

    swap_gradients(m, reduced);
    for (int i = 0; i < player->ranks; i++) {
        swap_gradients(m, m->unreduced[i]);
        walk_loss(m, call, i);
        swap_gradients(m, m->unreduced[i]);
    }
    swap_gradients(m, reduced);
    if (!fsdp_tensor_requires_grad(m->losses[call->slot][0]))
        return;
    plain_reduce(player, m, call);
}

/* ---- whole and sharded ---- */

void play_unshard(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_unshard(module_at(model_of(player, call), call->target)));
}

void play_unshard_async(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_unshard_async(module_at(model_of(player, call), call->target)));
}

void play_wait_unshard(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_wait_unshard(module_at(model_of(player, call), call->target)));
}

void play_reshard(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_reshard(module_at(model_of(player, call), call->target)));
}

void play_reshard_all(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_reshard_all(module_at(model_of(player, call), call->target)));
}

void play_read_whole(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    for (int p = 0; p < m->plan->param_count; p++)
        if (is_whole(call, p))
            log_whole(player, call->model, "whole parameter", p,
                      CHECK_PTR(fsdp_module_parameter(m->module, param_name(m, p))));
}

void play_read_full(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    for (int p = 0; p < m->plan->param_count; p++) {
        fsdp_tensor *full;

        CHECK_OK(fsdp_full_tensor(shard_at(m, p), &full));
        log_whole(player, call->model, "full parameter", p, full);
        fsdp_tensor_unref(full);
    }
}

void play_read_gradients(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    for (int p = 0; p < m->plan->param_count; p++) {
        fsdp_tensor *gradient = gradient_at(m, p), *full;

        log_all(player, call->model, "presence of the gradient", p, gradient != NULL);
        if (!gradient)
            continue;
        CHECK_OK(fsdp_full_tensor(gradient, &full));
        log_whole(player, call->model, "full gradient", p, full);
        fsdp_tensor_unref(full);
        fsdp_tensor_unref(gradient);
    }
}

/* ---- gradients and the optimizer ---- */

void play_zero_grad(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    fsdp_module_zero_grad(module_at(m, call->target));
    if (player->plain)
        drop_unreduced(m, m->plan->targets[call->target].params);
}

void play_optimizer_zero_grad(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    CHECK_OK(fsdp_optimizer_zero_grad(m->optimizer));
    if (player->plain)
        drop_unreduced(m, call->params);
}

void play_step(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_optimizer_step(model_of(player, call)->optimizer));
    order_observe(player, call->model, call);
}

void play_clip(order_player *player, const order_call *call)
{
    double norm;

    CHECK_OK(fsdp_clip_grad_norm(model_of(player, call)->optimizer, (double)call->value, &norm));
    log_all(player, call->model, "norm", -1, norm);
}

void play_unscale(order_player *player, const order_call *call)
{
    fsdp_grad_scaler_state state = fsdp_grad_scaler_state_default();
    fsdp_grad_scaler *scaler;

    state.scale = 2;
    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(player->context), &state, &scaler));
    CHECK_OK(fsdp_grad_scaler_unscale(scaler, model_of(player, call)->optimizer));
    fsdp_grad_scaler_free(scaler);
}

static fsdp_status make_optimizer(const order_model *m, bool adam, fsdp_optimizer **out)
{
    const fsdp_sgd_options sgd = {.lr = 0.1, .momentum = 0.9};
    fsdp_adam_options adamw = fsdp_adam_options_default();
    fsdp_parameters parameters;
    fsdp_status status;

    adamw.lr = 0.01;
    adamw.eps = 1e-3; /* a gradient that is nothing but rounding moves little */
    CHECK_OK(fsdp_module_parameters(m->module, &parameters));
    status = adam ? fsdp_adamw_create(&parameters, &adamw, out) : fsdp_sgd_create(&parameters, &sgd, out);
    fsdp_parameters_release(&parameters);
    return status;
}

void play_new_optimizer(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    fsdp_optimizer_free(m->optimizer);
    CHECK_OK(make_optimizer(m, call->number, &m->optimizer));
}

void play_freeze(order_player *player, const order_call *call)
{
    CHECK_OK(
        fsdp_module_set_requires_grad(module_at(model_of(player, call), call->target), call->kind == ORDER_UNFREEZE));
}

void play_freeze_one(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    CHECK_OK(fsdp_tensor_set_requires_grad(CHECK_PTR(fsdp_module_parameter(m->module, param_name(m, call->param))),
                                           !call->number));
}

/* ---- settings ---- */

void play_sync(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module_at(model_of(player, call), call->target),
                                                    call->kind == ORDER_SYNC_ON, call->recurse));
}

void play_all_reduce(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_set_requires_all_reduce(module_at(model_of(player, call), call->target),
                                                 call->kind == ORDER_ALL_REDUCE_ON, call->recurse));
}

void play_no_sync(order_player *player, const order_call *call)
{
    fsdp_module *module = model_of(player, call)->module;

    CHECK_OK(call->kind == ORDER_NO_SYNC_BEGIN ? fsdp_fsdp1_no_sync_begin(module) : fsdp_fsdp1_no_sync_end(module));
}

void play_synchronize(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_synchronize_gradients(module_at(model_of(player, call), call->target)));
}

void plain_synchronize(order_player *player, const order_call *call)
{
    plain_reduce(player, model_of(player, call), call);
}

void play_last(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    CHECK_OK((m->plan->staged ? fsdp_module_set_is_last_microbatch
                              : fsdp_module_set_is_last_backward)(m->module, call->kind == ORDER_LAST_ON));
}

void play_set_reshard_forward(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_set_reshard_after_forward(module_at(model_of(player, call), call->target), call->number,
                                                   call->recurse));
}

void play_set_reshard_backward(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_set_reshard_after_backward(module_at(model_of(player, call), call->target), call->number,
                                                    call->recurse));
}

void play_set_prefetch(order_player *player, const order_call *call)
{
    const order_model *m = model_of(player, call);
    fsdp_module *modules[ORDER_MAX_TARGETS];
    int count = 0;

    for (int t = 0; t < m->plan->target_count; t++)
        if (call->number >> t & 1 && m->plan->targets[t].group >= 0)
            modules[count++] = module_at(m, t);
    CHECK_OK(call->kind == ORDER_SET_FORWARD_PREFETCH
                 ? fsdp_module_set_modules_to_forward_prefetch(module_at(m, call->target), modules, count)
                 : fsdp_module_set_modules_to_backward_prefetch(module_at(m, call->target), modules, count));
}

void play_set_in_flight(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(module_at(model_of(player, call), call->target), call->number,
                                                       call->recurse));
}

void play_set_channel(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_set_separate_reduce_scatter_group(module_at(model_of(player, call), call->target),
                                                           call->number, call->recurse));
}

void play_set_divide(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    if (player->plain)
        m->divide[m->plan->targets[call->target].group] = call->value;
    else
        CHECK_OK(fsdp_module_set_gradient_divide_factor(module_at(m, call->target), call->value));
}

/* ---- values ---- */

/* The tensor through which a user writes: what the field names, or the shard that was there before the window. */
static fsdp_tensor *writable(const order_model *m, const order_call *call)
{
    return call->windowed ? shard_at(m, call->param)
                          : CHECK_PTR(fsdp_module_parameter(m->module, param_name(m, call->param)));
}

/* This rank's rows of values that depend on the place in the whole parameter. */
static float *values_for(const fsdp_tensor *tensor, int number)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);
    const int64_t *shape = distribution ? distribution->global_shape : fsdp_tensor_shape(tensor);
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS], numel = fsdp_tensor_numel(tensor);
    float *values = malloc((size_t)(numel + 1) * sizeof *values);

    fsdp_tensor_box(tensor, offset, size);
    for (int64_t i = 0; i < numel; i++)
        values[i] =
            (float)(element_of(fsdp_tensor_ndim(tensor), shape, offset, size, i) * 13 % 29 + number) / 100.0f - 0.5f;
    return values;
}

void play_write(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);
    fsdp_tensor *tensor = writable(m, call);
    float *values = values_for(tensor, call->number);

    if (call->kind == ORDER_FILL)
        CHECK_OK(fsdp_tensor_fill_(tensor, call->number / 100.0));
    else if (call->kind == ORDER_WRITE)
        CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
    else
        CHECK_OK(fsdp_tensor_copy_(
            tensor, CHECK_PTR(fsdp_from_data(fsdp_tensor_device(tensor), FSDP_F32, fsdp_tensor_ndim(tensor),
                                             fsdp_tensor_shape(tensor), values))));
    free(values);
}

void play_initialize(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_initialize(module_at(model_of(player, call), call->target), (uint64_t)call->number));
}

void play_save(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    fsdp_state_dict_free(m->state);
    m->state = NULL;
    CHECK_OK(fsdp_state_dict_from_module(m->module, &m->state));
    CHECK_EQ(m->state->count, m->plan->param_count);
    for (int p = 0; p < m->plan->param_count; p++) {
        CHECK_STRING(m->state->entries[p].name, param_name(m, p));
        free(m->saved[p]);
        m->saved[p] = read_values(m->state->entries[p].tensor);
        log_rows(player, call->model, "saved parameter", p, m->state->entries[p].tensor);
    }
}

void play_load(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    (void)player;
    for (int p = 0; p < m->plan->param_count; p++)
        CHECK_OK(fsdp_tensor_write(m->state->entries[p].tensor, FSDP_F32, m->saved[p]));
}

void play_load_full(order_player *player, const order_call *call)
{
    const fsdp_full_state_options options = {.cpu_offload = true, .broadcast_from_rank0 = true};
    order_model *m = model_of(player, call);
    fsdp_state_dict *full;

    CHECK_OK(fsdp_state_dict_gather(m->state, &options, &full));
    CHECK_OK(fsdp_state_dict_load_full(m->state, full, &options));
    fsdp_state_dict_free(full);
}

/* ---- failures ---- */

void play_reset(order_player *player, const order_call *call)
{
    CHECK_OK(fsdp_module_reset_iteration(model_of(player, call)->module));
}

void plain_reset(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    drop_unreduced(m, m->plan->all_params);
}

void play_fail_forward(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);
    const order_call root = {.number = call->number};

    block_at(m, call->number)->fail_forward = true;
    CHECK_NULL(run_forward(player, m, &root, player->first_rank));
    CHECK_CONTAINS(fsdp_last_error(), "told to fail");
    block_at(m, call->number)->fail_forward = false;
}

void play_fail_shape(order_player *player, const order_call *call)
{
    fsdp_context *context = player->context;

    CHECK_NULL(fsdp_call(model_of(player, call)->module,
                         order_inputs(context, call->number, player->first_rank, ORDER_ROWS, ORDER_IN + 1),
                         order_targets(context, call->number, player->first_rank, ORDER_ROWS)));
    CHECK_STATUS(fsdp_last_status(), FSDP_INVALID);
}

void play_fail_backward(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    (void)player;
    block_at(m, call->number)->fail_backward = true;
    CHECK_ERROR(fsdp_backward(m->losses[call->slot][0]), FSDP_INVALID, "told to fail");
    block_at(m, call->number)->fail_backward = false;
    drop_losses(m, call->slot);
    CHECK_OK(fsdp_module_reset_iteration(m->module));
    fsdp_module_zero_grad(m->module);
}

void plain_fail_backward(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    drop_losses(m, call->slot);
    plain_reset(player, call);
    fsdp_module_zero_grad(m->module);
}

void play_refuse_shard(order_player *player, const order_call *call)
{
    CHECK_ERROR(fsdp_fully_shard(module_at(model_of(player, call), call->target), NULL), FSDP_STATE, "only once");
}

void play_refuse_unshard(order_player *player, const order_call *call)
{
    CHECK_ERROR(fsdp_module_unshard(module_at(model_of(player, call), call->target)), FSDP_STATE,
                "not given to fully_shard");
}

void play_refuse_walked(order_player *player, const order_call *call)
{
    for (int i = 0; i < player->ranks; i++)
        CHECK_STATUS(fsdp_backward(model_of(player, call)->losses[call->slot][i]), FSDP_STATE);
}

void play_refuse_state(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);
    fsdp_state_dict *state;
    int p = 0;

    while (!is_whole(call, p))
        p++;
    CHECK_ERROR(fsdp_state_dict_from_module(m->module, &state), FSDP_STATE, param_name(m, p));
}

void play_refuse_optimizer(order_player *player, const order_call *call)
{
    fsdp_optimizer *optimizer;

    CHECK_STATUS(make_optimizer(model_of(player, call), call->number > 0, &optimizer), FSDP_STATE);
}

void play_refuse_write(order_player *player, const order_call *call)
{
    order_model *m = model_of(player, call);

    CHECK_STATUS(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(m->module, param_name(m, call->param))), 7.0),
                 FSDP_STATE);
}
