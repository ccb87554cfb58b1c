/* build_run.c - makes the model and the optimizer of a run, counts the microbatches of its steps, and frees it all. */
#include "adapter/quantize.h"
#include "base/alloc.h"
#include "base/context.h"
#include "base/text.h"
#include "device/device.h"
#include "dist/dist.h"
#include "hub/hub.h"
#include "nn/module.h"
#include "state/entry.h"
#include "train/adapter_on_disk.h"
#include "train/dpo.h"
#include "train/run_config.h"
#include "train/run_start.h"
#include "train/run_steps.h"

fsdp_status fsdp__train_count_batches(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    int ranks = run->data_ranks;

    run->sequences = c->training.global_batch_size;
    if (run->sequences == -1)
        run->sequences = run->resume.sequences;
    if (run->sequences == 0)
        run->sequences = c->training.local_batch_size * ranks;
    run->microbatches = run->sequences / (c->training.local_batch_size * ranks);
    run->losses = fsdp__calloc((size_t)run->microbatches + FSDP__RANK_TIMES + 1, sizeof *run->losses);
    return run->losses || run->microbatches == 0 ? FSDP_OK : FSDP_NO_MEMORY;
}

/* ---- model ---- */

/* Makes the model, shapes only. */
fsdp_status fsdp__train_make_model(fsdp_train_run *run)
{
    fsdp_device *meta = fsdp_meta(run->context);

    FSDP__TRY_MADE(meta);
    run->offloaded = run->config->training.enable_cpu_offload && !fsdp__device_host_access(run->device);
    FSDP__TRY_MADE(run->model = run->own && run->own->build
                                    ? run->own->build(run->own->arg, run->context, meta)
                                    : fsdp_model_create(run->context, meta, &run->model_config));
    if (fsdp__train_is_dpo(run->config))
        FSDP_TRY(fsdp_model_set_loss(run->model, FSDP_LOSS_NONE, 0));
    FSDP_TRY(fsdp__train_add_adapter(run));
    FSDP_TRY(fsdp__train_freeze(run));
    FSDP_TRY(fsdp__train_check_groups(run));
    return fsdp__train_choose_units(run);
}

/* Loads through one leader on each machine, so that what it reads crosses no network again. */
static fsdp_status load_by_leaders(fsdp_train_run *run, fsdp_state_dict *state, const fsdp__hub_listener *listener)
{
    int machines = fsdp_context_machines(run->context), ranks = fsdp_context_world_size(run->context);
    const int64_t shape[] = {machines, ranks / machines};
    FSDP__SCOPED(fsdp_mesh_unref_at) fsdp_mesh *mesh = NULL;
    fsdp_process_group *group = fsdp_world(run->context);

    if (machines > 1 && ranks % machines == 0) {
        FSDP_TRY(fsdp_mesh_create(run->context, 2, shape, (const char *const[]){"machine", "local"}, &mesh));
        group = fsdp_mesh_process_group(mesh, 1);
    }
    return fsdp__hub_load_each(run->config->model.path, state, &run->model_config, group, listener);
}

/* Loads the state from model.path's weights. `listener` may be NULL. [collective] with model.load leader */
static fsdp_status load_pretrained(fsdp_train_run *run, fsdp_state_dict *state, const fsdp__hub_listener *listener)
{
    const fsdp_train_config *c = run->config;
    fsdp__activity before = fsdp__context_set_activity(run->context, FSDP__READING);
    fsdp_status status = c->model.load_by_leader
                             ? load_by_leaders(run, state, listener)
                             : fsdp__hub_load_each(c->model.path, state, &run->model_config, NULL, listener);

    (void)fsdp__context_set_activity(run->context, before);
    return status;
}

static fsdp_status fill_base(fsdp_train_run *run)
{
    FSDP__SCOPED(fsdp__base_values_release) fsdp__base_values base = {0};

    if (run->config->model.pretrained == 0 || !run->config->model.path)
        return fsdp_adapter_initialize_base(run->adapter, (uint64_t)run->config->training.seed);
    FSDP_TRY(fsdp__base_values_begin(run->adapter, &base));
    return load_pretrained(run, base.state, &(fsdp__hub_listener){fsdp__base_values_arrived, &base});
}

/* Every rank reads, so that none waits in a collective for one that could not. [collective] */
static fsdp_status fill_adapter(fsdp_train_run *run)
{
    if (run->resume.from)
        return fsdp__resume_fill_model(run);
    if (!run->config->adapter.path)
        return fsdp_adapter_initialize(run->adapter, (uint64_t)run->config->training.seed);
    return fsdp_fail_prefix(fsdp__adapter_on_disk_load(run->adapter, NULL, run->config->adapter.path), "adapter.path");
}

fsdp_status fsdp__train_fill_model(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;

    if (run->adapter && fsdp__device_has_bytes(run->device)) {
        FSDP_TRY(fsdp__train_agree(run, fill_base(run)));
        return fill_adapter(run);
    }
    if (run->resume.from)
        return fsdp__resume_fill_model(run);
    if (c->checkpoint.initial_load_path && fsdp__device_has_bytes(run->device))
        return fsdp__initial_fill_model(run);
    if (c->model.pretrained == 0 || !c->model.path || !fsdp__device_has_bytes(run->device))
        return fsdp__module_initialize_coded(run->model, (uint64_t)c->training.seed); /* codes have no bytes here */
    FSDP_TRY(fsdp_state_dict_from_module(run->model, &state));
    return load_pretrained(run, state, NULL);
}

/* ---- optimizer ---- */

/* Makes the optimizer for the parameters that are trained, and for those whose state is only kept. */
static fsdp_status optimize(fsdp_train_run *run, const fsdp_parameters *parameters)
{
    FSDP__FREED bool *thawed = fsdp__calloc((size_t)parameters->count + 1, sizeof *thawed);
    fsdp_status status;

    FSDP__TRY_NEW(thawed);
    status = fsdp__train_thaw_kept(run, parameters, thawed);
    if (status == FSDP_OK)
        status = fsdp__train_create_optimizer(run, parameters);
    FSDP_KEEP_FIRST(status, fsdp__train_freeze_kept(parameters, thawed));
    return status;
}

fsdp_status fsdp__train_make_optimizer(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    FSDP__SCOPED(fsdp_parameters_release) fsdp_parameters parameters = {0};

    FSDP_TRY(fsdp_module_parameters(run->model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        run->local_parameters += fsdp__adapter_numel(run->adapter, &parameters.items[i]);
    FSDP_TRY(optimize(run, &parameters));
    if (c->training.mixed_precision_param == FSDP_F16 || c->training.mixed_precision_reduce == FSDP_F16)
        FSDP_TRY(fsdp_grad_scaler_create(fsdp_world(run->context), NULL, &run->scaler));
    FSDP_TRY(fsdp__train_make_schedule(run));
    FSDP_TRY(fsdp__train_step_early(run));
    FSDP_TRY(fsdp__ahead_begin(run));
    FSDP_TRY(fsdp__ema_begin(run));
    FSDP_TRY(fsdp__resume_optimizer(run));
    return fsdp__export_check(run);
}

void fsdp__train_count_ranks(fsdp_train_run *run)
{
    run->data_ranks = fsdp__train_data_ranks(run->config, fsdp_context_world_size(run->context));
    run->data_rank = fsdp_context_rank(run->context) / fsdp__train_team(run->config);
}

void fsdp__train_resolve_replicas(fsdp_train_run *run)
{
    int machines = fsdp_context_machines(run->context), ranks = fsdp_context_world_size(run->context);

    if (machines == 1 || run->config->parallelism.strategy != FSDP_TRAIN_HSDP ||
        run->config->parallelism.data_parallel_replicate_degree != 1)
        return;
    run->resolved = *run->config;
    run->resolved.parallelism.data_parallel_replicate_degree = machines;
    run->config = &run->resolved;
    if (fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_INFO,
                 "parallelism.strategy hsdp: each of the %d machines has a copy of the parameters, sharded over its "
                 "%d rank%s (parallelism.data_parallel_replicate_degree says otherwise)",
                 machines, ranks / machines, fsdp__plural(ranks / machines));
}

void fsdp_train_run_free(fsdp_train_run *run)
{
    if (!run)
        return;
    fsdp_trace_abandon(run->trace);
    fsdp__ahead_release(run);
    fsdp__export_release(run);
    fsdp__saves_release(run);
    fsdp__resume_release(run);
    fsdp__model_folder_release(&run->initial);
    FSDP__FREE_ALL(run->tokenizer, run->chat_template);
    (void)fsdp__metrics_end(run->metrics);
    fsdp__histograms_free(run->histograms);
    fsdp__notice_free(run->notice);
    fsdp__samples_release(run);
    fsdp_loader_free(run->loader);
    fsdp__validation_close(run);
    fsdp__digest_release(run);
    fsdp__best_release(run);
    fsdp__ema_release(run);
    fsdp__dpo_release(run);
    fsdp__train_close_data(run);
    fsdp_grad_scaler_free(run->scaler);
    fsdp_optimizer_free(run->optimizer);
    fsdp_wrap_units_release(&run->units);
    fsdp__train_release_schedule(run);
    fsdp_adapter_free(run->adapter);
    fsdp_lora_options_free(run->lora);
    fsdp_module_unref(run->model);
    fsdp__parallel_meshes_release(&run->meshes);
    FSDP__FREE_ALL(run->dry_positions, run->losses, run->lr_scales, run);
}
