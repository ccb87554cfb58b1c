/* run.c - builds a run from the config, tears it down in reverse, and drives it from the first step to the export. */
#include "train/dpo.h"
#include "train/mfu.h"
#include "train/run_start.h"
#include "train/run_steps.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/probe.h"
#include "base/status.h"
#include "config/config.h"
#include "device/device.h"
#include "hub/hub.h"
#include "train/inputs.h"
#include "train/run_config.h"
#include "train/same_device.h"
#include "watch/flight.h"

/* ---- inputs: all that can be wrong without any other rank ---- */

/* Holds the checkpoints. When all ranks have done this nobody else writes checkpoints there, so all of them find the
 * same ones. */
static fsdp_status hold_checkpoints(fsdp_train_run *run)
{
    FSDP_TRY(fsdp_train_config_check(run->config, fsdp_context_world_size(run->context)));
    fsdp__train_count_ranks(run);
    return fsdp__saves_hold(run);
}

/* Checks the folder for the last calls, which is of use only when it is needed. */
static fsdp_status check_flight(const fsdp_train_config *c)
{
    fsdp_status status = c->metrics.flight_recorder ? fsdp__flight_folder_check(c->metrics.flight_recorder) : FSDP_OK;

    return fsdp_fail_prefix(status, "metrics.flight_recorder");
}

/* Says which keys were given, and change nothing here. */
static void tell_of_idle_keys(const fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    const char *of_text = c->data.cache                                          ? "data.cache"
                          : c->data.skip_bad_lines && !fsdp__inputs_are_bytes(c) ? "data.on_bad_line"
                                                                                 : NULL;
    char idle[600];

    fsdp__config_idle(&fsdp__train_keys, c, idle, sizeof idle);
    if (*idle)
        fsdp_log(run->context, FSDP_LOG_INFO, "keys without an effect: %s", idle);
    if (of_text && !run->tokenizer)
        fsdp_log(run->context, FSDP_LOG_INFO, "%s has no effect: no text is read with a tokenizer", of_text);
}

static fsdp_status open_inputs(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;

    FSDP_TRY(fsdp__resume_find(run));
    FSDP_TRY(fsdp__resume_check_batch(run));
    FSDP_TRY(fsdp__inputs_tokenizer(c, &run->tokenizer));
    FSDP_TRY(fsdp__train_model_config(c, &run->model_config));
    FSDP_TRY(fsdp__initial_check(run));
    FSDP_TRY(fsdp__train_read_adapter(run));
    FSDP_TRY(fsdp__resume_check_model(run));
    FSDP_TRY(fsdp__train_check_model(c, &run->model_config));
    FSDP_TRY(fsdp__train_count_batches(run));
    FSDP_TRY(fsdp__train_read_schedule(run));
    FSDP_TRY(fsdp__train_check_needs(run));
    FSDP_TRY(fsdp__train_open_data(run));
    FSDP_TRY(fsdp__digest_begin(run));
    FSDP_TRY(fsdp__resume_check_data(run));
    FSDP_TRY(fsdp__samples_open(run));
    FSDP_TRY(check_flight(c));
    if (fsdp_context_rank(run->context) != 0)
        return FSDP_OK;
    tell_of_idle_keys(run);
    FSDP_TRY(fsdp__metrics_check(c));
    FSDP_TRY(fsdp__trace_check(c));
    return fsdp__export_hold(run); /* this may be hours before it is needed */
}

/* Makes the model; from here on it is known which parameters are frozen. */
static fsdp_status make_model(fsdp_train_run *run)
{
    FSDP_TRY(fsdp__train_make_model(run));
    return run->config->model.frozen_count > 0 || run->adapter ? fsdp__train_check_needs(run) : FSDP_OK;
}

/* ---- who knows of a failure ---- */

/* Says how a part of a run ended on this rank. `everywhere`: all ranks ended there with the same error, so nobody waits
 * for this one. Otherwise the others must be told, by ending the world. */
typedef struct outcome {
    fsdp_status status;
    bool everywhere;
} outcome;

/* The outcome of work in which a rank may fail while its peers go on. */
static outcome alone(fsdp_status mine)
{
    return (outcome){mine, false};
}

/* Returns the outcome of work at whose end all ranks have agreed; they have not when one is gone, or when they
 * differ. */
static outcome agreed(fsdp_status status)
{
    return (outcome){status, status != FSDP_COMM && status != FSDP_MISMATCH};
}

/* Does the next part of a run: nothing follows a failed one. */
#define PART(part)                   \
    do {                             \
        outcome part_ = (part);      \
                                     \
        if (part_.status != FSDP_OK) \
            return part_;            \
    } while (0)

/* ---- life ---- */

/* Compares the ranks. All ranks see a difference; any other failure belongs to one rank. */
static outcome compare(fsdp_train_run *run)
{
    fsdp_status status = fsdp__same_config(run);

    return status == FSDP_INVALID ? agreed(status) : alone(status);
}

/* Refuses what no device of this kind does. */
static fsdp_status check_device(const fsdp_train_run *run)
{
    FSDP_TRY(fsdp_device_set_attention(run->device, (fsdp_attention_kernels)run->config->kernels.attention));
    if (run->config->comm.reduce == 1 && !fsdp__device_carries(run->device))
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "comm.reduce: NCCL adds on GPUs, and this run computes on '%s': set training.device=cuda, or "
                         "comm.reduce=exact",
                         fsdp_device_name(run->device));
    return FSDP_OK;
}

void fsdp__train_links(const fsdp_train_run *run, char *text, size_t bytes)
{
    const char *name = run->config->training.device;

    text[0] = '\0';
    if (fsdp_context_rank(run->context) == 0 && !(name && strchr(name, ':'))) /* all ranks are to share that one */
        fsdp__device_links(run->device, fsdp_context_local_world_size(run->context), text, bytes);
}

static void log_links(const fsdp_train_run *run)
{
    char text[512];

    fsdp__train_links(run, text, sizeof text);
    if (text[0])
        fsdp_log(run->context, FSDP_LOG_INFO, "GPUs of this machine: %s", text);
}

/* Opens the run's device, before anything large is read. A rank that is out of memory may be the only one. */
static outcome open_device(fsdp_train_run *run)
{
    fsdp_status status = fsdp__same_device(run->context, "training.device", run->config->training.device, &run->device);

    if (status != FSDP_OK)
        return status == FSDP_NO_MEMORY ? alone(status) : agreed(status);
    fsdp__device_describe(run->device, run->device_text, sizeof run->device_text);
    log_links(run);
    return agreed(fsdp__train_agree(run, check_device(run)));
}

/* Begins the metrics, last of all: a start that fails leaves no trace in the file. */
static fsdp_status begin_metrics(fsdp_train_run *run)
{
    fsdp_train_summary summary;

    FSDP_TRY(fsdp__notice_begin(run));
    if (!fsdp__metrics_any(run->config) || fsdp_context_rank(run->context) != 0)
        return FSDP_OK;
    fsdp_train_run_summary(run, &summary);
    return fsdp__metrics_begin(run->context, run->config, &summary, &run->metrics);
}

/* Finds the peak of the devices. */
static outcome find_peak(fsdp_train_run *run)
{
    if (!fsdp__mfu_is_asked(run))
        return agreed(FSDP_OK);
    PART(agreed(fsdp__train_agree(run, fsdp__mfu_look(run))));
    return alone(fsdp__mfu_add_up(run));
}

/* Has rank 0 plan when parameters and gradients travel, once all ranks are known to want the same. */
static outcome plan_schedule(fsdp_train_run *run)
{
    if (!fsdp__train_plans_schedule(run->config))
        return agreed(FSDP_OK);
    PART(agreed(fsdp__train_agree(run, fsdp__train_plan_schedule(run))));
    return alone(fsdp__train_share_schedule(run));
}

static outcome build(fsdp_train_run *run)
{
    PART(agreed(fsdp__train_check_visible(run)));
    PART(agreed(fsdp__train_agree(run, hold_checkpoints(run))));
    PART(open_device(run));
    PART(agreed(fsdp__train_agree(run, open_inputs(run))));
    PART(compare(run));
    PART(alone(fsdp__train_draw_id(run)));
    PART(find_peak(run));
    PART(plan_schedule(run));
    PART(agreed(fsdp__train_agree(run, make_model(run))));
    PART(alone(fsdp__train_shard_model(run)));
    PART(agreed(fsdp__train_agree(run, fsdp__train_fill_model(run))));
    PART(agreed(fsdp__train_agree(run, fsdp__dpo_begin(run))));
    PART(agreed(fsdp__train_agree(run, fsdp__train_make_optimizer(run))));
    PART(agreed(fsdp__train_agree(run, fsdp__best_check(run))));
    PART(agreed(fsdp__train_agree(run, fsdp__saves_begin(run))));
    return agreed(fsdp__train_agree(run, begin_metrics(run)));
}

/* Builds a run. A failure that the others do not know of ends the world. `owners` has FSDP__TRAIN_OWNERS bytes, or is
 * NULL. */
static outcome create(fsdp_context *context, const fsdp_train_config *config, const fsdp_train_listener *listener,
                      char *owners, fsdp_train_run **out)
{
    fsdp_train_run *run = fsdp__calloc(1, sizeof *run);
    outcome built = alone(FSDP_NO_MEMORY);
    bool held;

    *out = NULL;
    if (run) {
        run->context = context;
        run->config = config;
        run->listener = listener;
        fsdp__train_resolve_replicas(run);
        built = alone(fsdp_context_set_comm_timeout(context, config->comm.timeout));
        if (built.status == FSDP_OK)
            built = alone(fsdp_context_set_carrier(context, (fsdp_carrier)config->comm.carrier));
        if (built.status == FSDP_OK)
            built = alone(fsdp_context_set_nccl_sums(context, config->comm.reduce == 1));
        if (built.status == FSDP_OK)
            built = alone(fsdp_context_set_nccl_buffers(context, (fsdp_nccl_buffers)config->comm.nccl_buffers));
        if (built.status == FSDP_OK)
            built = build(run);
    }
    if (built.status == FSDP_OK) {
        *out = run;
        return built;
    }
    fsdp__export_release(run); /* do this first: a launcher that hears of the failure ends this process */
    if (owners)
        fsdp__train_note_owners(context, run, built.status, owners);
    if (run)
        fsdp__saves_release(run);
    if (!built.everywhere)
        fsdp_abort(context, fsdp_last_error());
    /* Whatever fails from now on, the failure that ended the run is the one to report. */
    held = fsdp_hold_error(true);
    fsdp_train_run_free(run);
    fsdp_release_error(held);
    return built;
}

fsdp_status fsdp__train_run_create_heard(fsdp_context *context, const fsdp_train_config *config,
                                         const fsdp_train_listener *listener, fsdp_train_run **out)
{
    return create(context, config, listener, NULL, out).status;
}

/* Refuses what is NULL. The others have begun, and must not wait for this rank. */
static fsdp_status check_arguments(fsdp_context *context, bool has_rest)
{
    fsdp_status status;

    if (context && has_rest)
        return FSDP_OK;
    status = FSDP__FAIL_NULL("cannot make a run: a context, a config and a place for the run are required");
    if (context)
        fsdp_abort(context, fsdp_last_error());
    return status;
}

fsdp_status fsdp_train_run_create(fsdp_context *context, const fsdp_train_config *config, fsdp_train_run **out)
{
    static const fsdp_train_listener nobody;

    if (out)
        *out = NULL;
    FSDP_TRY(check_arguments(context, config && out));
    return create(context, config, &nobody, NULL, out).status;
}

/* ---- looking ---- */

fsdp_module *fsdp_train_run_model(fsdp_train_run *run)
{
    return run ? run->model : NULL;
}

/* Looks at the run's memory, on its device and, where something is moved there, on the host. */
static void look_at_memory(const fsdp_train_run *run, fsdp_memory_stats *memory)
{
    fsdp_memory_stats host;

    fsdp_device_memory(run->device, memory);
    if (!run->offloaded)
        return;
    fsdp_device_memory(fsdp_cpu(run->context), &host);
    memory->live_total_bytes += host.live_total_bytes;
    memory->live_bytes[FSDP_MEMORY_OPTIMIZER_STATE] += host.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE];
}

static void tell_of_resume(const fsdp__resume *resume, fsdp_train_summary *out)
{
    out->resumed_from = resume->path;
    out->resumed_run = resume->run[0] ? resume->run : NULL;
    out->resumed_step = resume->step;
    out->resumed_ranks = resume->ranks;
    out->resumed_tokens = resume->tokens;
}

void fsdp_train_run_summary(fsdp_train_run *run, fsdp_train_summary *out)
{
    const fsdp_train_config *c = run ? run->config : NULL;
    fsdp_memory_stats memory;

    if (!out)
        return;
    *out = (fsdp_train_summary){.model = NULL};
    if (!run)
        return;
    look_at_memory(run, &memory);
    *out = (fsdp_train_summary){
        .model = c->model.path ? c->model.path : c->model.preset,
        .model_config = run->model_config,
        .parameters = fsdp_model_config_parameters(&run->model_config),
        .trained_parameters = run->trained_parameters,
        .adapter_layers = fsdp_adapter_count(run->adapter),
        .local_parameters = run->local_parameters,
        .world_size = fsdp_context_world_size(run->context),
        .machines = fsdp_context_machines(run->context),
        .units = run->unit_count,
        .checkpointed = fsdp__train_recomputed(c, run->model_config.n_layers),
        .replicas = fsdp__train_replicas(c, fsdp_context_world_size(run->context)),
        .team = fsdp__train_team(c),
        .microbatches = run->microbatches,
        .tokens_per_step = run->sequences * c->training.seq_len,
        .data_tokens = fsdp__train_tokens(run),
        .tokenizer = run->tokenizes ? run->tokenizer : NULL,
        .bytes = fsdp__train_has_bytes(run),
        .held_out_tokens = fsdp__train_held_out(run),
        .validation_tokens = fsdp__validation_tokens(run),
        .memory_bytes = memory.live_total_bytes,
        .device = run->device_text,
        .device_bytes = fsdp__device_look(run->device).memory_bytes,
        .gpus_exchange = fsdp__device_carries(run->device) && fsdp_context_world_size(run->context) > 1,
        .optimizer_bytes = memory.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE],
        .offloaded = run->offloaded,
        .flops_per_token =
            fsdp__mfu_of_trained(run, fsdp_model_config_flops_per_token(&run->model_config, c->training.seq_len)),
        .mfu_flops_per_token =
            fsdp__mfu_of_trained(run, fsdp_model_config_mfu_flops_per_token(&run->model_config, c->training.seq_len)),
        .peak_flops = run->peak_flops,
        .peak_source = run->peak_source,
        .run = run->id,
        .stopped_early = run->validation.stops,
        .checkpoint_bytes = run->saves.bytes,
        .snapshot_bytes = c->checkpoint.async_mode == 1 ? run->saves.own_bytes : 0,
        .steps = c->training.steps,
    };
    tell_of_resume(&run->resume, out);
    fsdp__validation_count_pairs(run, out);
}

/* ---- the whole ---- */

/* Logs the lines of a text. */
static void log_lines(fsdp_context *context, const char *text)
{
    for (size_t length = 0; *text; text += length + (text[length] == '\n')) {
        length = strcspn(text, "\n");
        fsdp_log(context, FSDP_LOG_ERROR, "%.*s", (int)length, text);
    }
}

/* Reports what happened where it should be reported. Where all ranks know, rank 0 reports it and then ends the world:
 * the others wait for that, because a launcher may end all ranks as soon as one is gone. A rank that does not report it
 * logs who has its memory. */
static void report_failure(fsdp_context *context, const fsdp_train_listener *listener, outcome failure,
                           const char *owners)
{
    bool reports = !failure.everywhere || fsdp_context_rank(context) == 0;
    char message[2 * FSDP__TRAIN_OWNERS];
    bool held;

    snprintf(message, sizeof message, "%s%s%s", fsdp_last_error(), *owners ? "\n" : "", owners);
    if (reports && listener->failed)
        listener->failed(listener->arg, failure.status, message);
    held = fsdp_hold_error(true);
    if (!reports)
        log_lines(context, owners);
    if (*owners)
        FSDP__TELL(MEMORY_LACKED, .context = context, .name = owners);
    if (failure.everywhere)
        FSDP__TELL(RUN_ENDED, .context = context, .kind = (int)failure.status);
    if (reports)
        fsdp_abort(context, fsdp_last_error());
    else if (fsdp_world(context))
        (void)fsdp_barrier(fsdp_world(context));
    fsdp_release_error(held);
}

/* Adds to an error about memory in a step the settings that take less of it. */
static fsdp_status advise(const fsdp_train_run *run, fsdp_status status)
{
    const fsdp_train_config *c = run->config;
    bool full = c->activation_checkpoint.mode == FSDP_RECOMPUTE_FULL;

    if (status != FSDP_NO_MEMORY)
        return status;
    return FSDP_FAIL(status, "%s; a step takes less memory with a smaller %straining.seq_len%s or more ranks",
                     fsdp_last_error(), c->training.local_batch_size > 1 ? "training.local_batch_size or " : "",
                     full ? "" : ", activation_checkpoint.mode=full");
}

/* Returns the outcome of a step. All ranks stop in the same step if it is not finite, because they have the same
 * numbers. */
static outcome stopped(fsdp_status status)
{
    return status == FSDP_NOT_FINITE ? agreed(status) : alone(status);
}

static outcome validate(fsdp_train_run *run, const fsdp_train_listener *listener)
{
    fsdp_train_validation validation;
    fsdp_status status;

    if (!fsdp__validation_due(run))
        return agreed(FSDP_OK);
    FSDP__STAGE(run, BEGUN, "validation", run->step);
    status = fsdp_train_validate(run, &validation);
    FSDP__STAGE(run, DONE, "validation", run->step);
    PART(alone(status));
    if (listener->validated)
        listener->validated(listener->arg, &validation);
    return agreed(fsdp__validation_check(run, &validation));
}

/* Saves where it is time; ends the run if that was asked for, which all ranks have heard. */
static outcome save(fsdp_train_run *run)
{
    fsdp_status status;
    bool stop;

    FSDP__STAGE(run, BEGUN, "save", run->step);
    status = fsdp__saves_after_step(run, &stop);
    FSDP__STAGE(run, DONE, "save", run->step);
    PART(stopped(status)); /* it settles the step first */
    if (!stop)
        return agreed(FSDP_OK);
    PART(alone(fsdp__trace_after_steps(run)));
    PART(agreed(fsdp__saves_failure(run)));
    return agreed(FSDP_FAIL(FSDP_INTERRUPTED,
                            "interrupted after step %lld, which has a checkpoint: the same command continues from it",
                            (long long)run->step));
}

static outcome train_steps(fsdp_train_run *run, const fsdp_train_listener *listener)
{
    while (run->step < run->config->training.steps && !run->validation.stops) {
        fsdp_status status = advise(run, fsdp_train_step(run, NULL));

        PART(stopped(status));
        PART(validate(run, listener));
        PART(save(run));
    }
    if (listener->trained)
        listener->trained(listener->arg, run->step);
    return alone(fsdp__trace_after_steps(run));
}

static fsdp_status end_metrics(fsdp_train_run *run)
{
    fsdp__metrics *metrics = run->metrics;

    run->metrics = NULL;
    return fsdp__metrics_end(metrics);
}

/* Drives a run from the first step to the export; the caller frees *run, also after a failure. */
static outcome drive(fsdp_context *context, const fsdp_train_config *config, const fsdp_train_listener *listener,
                     char *owners, fsdp_train_run **run)
{
    fsdp_train_summary summary;

    PART(create(context, config, listener, owners, run));
    if (listener->started) {
        fsdp_train_run_summary(*run, &summary);
        listener->started(listener->arg, &summary);
    }
    PART(train_steps(*run, listener));
    PART(agreed(fsdp__train_agree(*run, fsdp__check_finite(*run))));
    (void)fsdp__context_set_activity(context, FSDP__WRITING);
    PART(agreed(fsdp_train_export(*run)));
    (void)fsdp__context_set_activity(context, FSDP__COMPUTING);
    if (config->save.path && listener->exported)
        listener->exported(listener->arg, config->save.path);
    /* These come last, since their failure takes nothing away from the model. */
    PART(agreed(fsdp__train_agree(*run, end_metrics(*run))));
    PART(agreed(fsdp__train_agree(*run, fsdp__trace_failure(*run))));
    return agreed(fsdp__saves_failure(*run));
}

fsdp_status fsdp_train(fsdp_context *context, const fsdp_train_config *config, const fsdp_train_listener *listener)
{
    static const fsdp_train_listener nobody;
    fsdp_train_run *run = NULL;
    char owners[FSDP__TRAIN_OWNERS] = "";
    outcome end;

    FSDP_TRY(check_arguments(context, config));
    if (!listener)
        listener = &nobody;
    end = drive(context, config, listener, owners, &run);
    fsdp__export_release(run);
    if (!owners[0])
        fsdp__train_note_owners(context, run, end.status, owners);
    if (end.status != FSDP_OK)
        report_failure(context, listener, end, owners);
    fsdp_train_run_free(run);
    return end.status;
}
