/* progress.c - prints the progress of a training run: a banner, a line every log_freq steps, and a bar on a
 * terminal. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli.h"

/* ---- numbers ---- */

const char *fsdp__short_count(int64_t value, char *text, size_t text_bytes)
{
    double v = (double)value;

    if (v >= 1e9)
        snprintf(text, text_bytes, "%.2fB", v / 1e9);
    else if (v >= 1e5)
        snprintf(text, text_bytes, "%.2fM", v / 1e6);
    else
        fsdp__thousands(value, text, text_bytes);
    return text;
}

/* Writes a rate, such as "34.5 GFLOP/s". */
static const char *rate_text(double flops, char *text, size_t bytes)
{
    static const char units[] = "MGTPE";
    size_t unit = 0;

    for (flops *= 1e-6; flops >= 999.5 && units[unit + 1]; flops *= 1e-3)
        unit++;
    snprintf(text, bytes, "%.*f %cFLOP/s", flops >= 99.95 ? 0 : flops >= 9.995 ? 1 : 2, flops, units[unit]);
    return text;
}

/* ---- banner ---- */

/* Writes what is checkpointed. That is nothing if everything is kept, unless something was asked for. */
static const char *checkpoints_text(const fsdp_train_config *config, const fsdp_train_summary *summary, char *text,
                                    size_t bytes)
{
    int mode = config->activation_checkpoint.mode, option = config->activation_checkpoint.selective_ac_option;
    bool selective = mode == FSDP_RECOMPUTE_SELECTIVE && option == 0;

    text[0] = '\0';
    if (mode == FSDP_RECOMPUTE_NONE && option != 2) /* 2 is the default */
        snprintf(text, bytes,
                 "; no block has a checkpoint: activation_checkpoint.selective_ac_option is of mode selective");
    else if (mode != FSDP_RECOMPUTE_NONE)
        snprintf(text, bytes, "; %lld of %lld blocks keep their input%s for the backward",
                 (long long)summary->checkpointed, (long long)summary->model_config.n_layers,
                 mode == FSDP_RECOMPUTE_CHEAP ? ", attention and all products but the last"
                 : selective                  ? ", attention and every second product"
                                              : "");
    return text;
}

/* Says what the tokens of text are. */
static void print_text(const fsdp_train_summary *summary)
{
    if (summary->tokenizer)
        printf("text:   through the tokenizer of '%s'\n", FSDP__SHOWN_PATH(summary->tokenizer));
    else if (summary->bytes)
        puts("text:   its bytes are its tokens");
}

static void print_validation_data(const fsdp_train_config *config, const fsdp_train_summary *summary)
{
    bool pairs = summary->validation_pairs > 0;
    int64_t held_out = pairs ? summary->held_out_pairs : summary->held_out_tokens;

    if (summary->validation_tokens == 0)
        return;
    printf("valid:  %s %s", FSDP__THOUSANDS(pairs ? summary->validation_pairs : summary->validation_tokens),
           pairs ? "pairs" : "tokens");
    if (held_out > 0)
        printf("; the last %s of the data are held out", FSDP__THOUSANDS(held_out));
    printf("; after every %s step%s and the last one\n", FSDP__THOUSANDS(config->validation.freq),
           fsdp__plural(config->validation.freq));
}

/* Prints what each save costs on disk, and in memory. */
static void print_checkpoints(const fsdp_train_config *config, const fsdp_train_summary *summary)
{
    char memory[80] = "";

    if (summary->snapshot_bytes > 0)
        snprintf(memory, sizeof memory, ", and %s of this rank's memory", FSDP__SIZE(summary->snapshot_bytes));
    printf("saves:  every %lld step%s to %s, %s each%s\n", (long long)config->checkpoint.interval,
           fsdp__plural(config->checkpoint.interval), FSDP__SHOWN_PATH(config->checkpoint.folder),
           FSDP__SIZE(summary->checkpoint_bytes), memory);
}

static void print_resume(const fsdp_train_config *config, const fsdp_train_summary *summary)
{
    const char *exported = config->save.path ? ", and the model is exported" : "";

    printf("resume: from step %s of %s, of %d rank%s", FSDP__THOUSANDS(summary->resumed_step),
           FSDP__SHOWN_PATH(summary->resumed_from), summary->resumed_ranks, fsdp__plural(summary->resumed_ranks));
    if (summary->resumed_step >= summary->steps)
        printf(": all steps are done (%s %s)%s",
               isnan(config->training.epochs) ? "training.steps is" : "training.epochs takes",
               FSDP__THOUSANDS(summary->steps), exported);
    else if (summary->stopped_early)
        printf(": it was stopped early (training.early_stop is %lld)%s", (long long)config->training.early_stop,
               exported);
    printf("\n");
}

/* Prints the ranks. Optimizer state, which a resumed run already has, is shown separately from the parameters. */
static void print_ranks(const fsdp_train_summary *summary, int threads)
{
    char copies[80] = "", machines[40] = "", optimizer[60] = "", teams[80] = "";

    if (summary->replicas > 1)
        snprintf(copies, sizeof copies, " (%d copies of the model, sharded over %d each)", summary->replicas,
                 summary->world_size / summary->replicas);
    if (summary->team > 1)
        snprintf(teams, sizeof teams, " in %d team%s that compute each sequence together",
                 summary->world_size / summary->team, fsdp__plural(summary->world_size / summary->team));
    if (summary->machines > 1)
        snprintf(machines, sizeof machines, " on %d machines", summary->machines);
    if (summary->optimizer_bytes > 0)
        snprintf(optimizer, sizeof optimizer, ", and %s of optimizer state", FSDP__SIZE(summary->optimizer_bytes));
    if (strcmp(summary->device, "cpu") != 0)
        printf("device: %s%s\n", summary->device, summary->world_size > 1 ? " (rank 0's)" : "");
    printf("ranks:  %d%s%s%s, %d thread%s each; %lld unit%s; this one holds %s parameters, %s%s\n", summary->world_size,
           machines, copies, teams, threads, fsdp__plural(threads), (long long)summary->units,
           fsdp__plural(summary->units), fsdp__short_count(summary->local_parameters, FSDP__ROOM(40)),
           FSDP__SIZE(summary->memory_bytes - summary->optimizer_bytes), optimizer);
}

static void print_adapter(const fsdp_train_config *config, const fsdp_train_summary *summary)
{
    static const char *const bases[] = {
        [FSDP_QUANTIZE_NF4] = ", over a base in NF4", [FSDP_QUANTIZE_INT8] = ", over a base in int8"};
    const char *base = bases[config->adapter.quantize];
    char rank[80] = "";

    if (summary->adapter_layers == 0)
        return;
    if (config->adapter.path)
        snprintf(rank, sizeof rank, "%s", FSDP__SHOWN_PATH(config->adapter.path));
    else
        snprintf(rank, sizeof rank, "%s of rank %lld", config->adapter.dora == 1 ? "DoRA" : "LoRA",
                 (long long)config->adapter.rank);
    printf("adapter: %s%s, beside %lld layer%s: trains %s parameters, %.3g %% of the model's\n", rank, base ? base : "",
           (long long)summary->adapter_layers, fsdp__plural(summary->adapter_layers),
           FSDP__THOUSANDS(summary->trained_parameters),
           100.0 * (double)summary->trained_parameters / (double)summary->parameters);
}

void fsdp__progress_start(fsdp__progress *progress, const fsdp_train_config *config, const fsdp_train_summary *summary,
                          int threads)
{
    char trained[80] = "";
    const fsdp_model_config *m = &summary->model_config;

    progress->steps = summary->steps;
    progress->log_freq = config->metrics.log_freq;
    progress->machines = summary->machines;
    progress->gpus = summary->gpus_exchange;
    progress->flops_per_token = summary->flops_per_token;
    if (summary->peak_flops > 0)
        progress->mfu_per_token = summary->mfu_flops_per_token / summary->peak_flops;
    progress->first_step = progress->logged_step = progress->step = summary->resumed_step;
    progress->first_tokens = progress->logged_tokens = summary->resumed_tokens;
    progress->began_ns = progress->logged_ns = fsdp__clock_ns();
    if (!progress->prints)
        return;
    if (summary->trained_parameters < summary->parameters && summary->adapter_layers == 0)
        snprintf(trained, sizeof trained, ", %s of them trained",
                 fsdp__short_count(summary->trained_parameters, FSDP__ROOM(40)));
    printf("model:  %s (%s, %lld layer%s of %lld), %s parameters%s\n", FSDP__SHOWN_PATH(summary->model),
           fsdp_architecture_name(m->architecture), (long long)m->n_layers, fsdp__plural(m->n_layers),
           (long long)m->dim, fsdp__short_count(summary->parameters, FSDP__ROOM(40)), trained);
    print_adapter(config, summary);
    print_ranks(summary, threads);
    if (config->training.enable_cpu_offload)
        printf("host:   %s\n", summary->offloaded
                                   ? "has parameters, gradients and optimizer state, and takes the steps"
                                   : "is what computes: training.enable_cpu_offload has nothing to move");
    printf("data:   %s tokens; a step takes %s (%d %s%s x %lld microbatch%s x %lld sequence%s x %lld)\n",
           FSDP__THOUSANDS(summary->data_tokens), FSDP__THOUSANDS(summary->tokens_per_step),
           summary->world_size / summary->team, summary->team > 1 ? "team" : "rank",
           fsdp__plural(summary->world_size / summary->team), (long long)summary->microbatches,
           summary->microbatches == 1 ? "" : "es", (long long)config->training.local_batch_size,
           fsdp__plural(config->training.local_batch_size), (long long)config->training.seq_len);
    print_text(summary);
    print_validation_data(config, summary);
    printf("train:  %s step%s%s\n", FSDP__THOUSANDS(summary->steps), fsdp__plural(summary->steps),
           checkpoints_text(config, summary, FSDP__ROOM(160)));
    if (summary->peak_flops > 0)
        printf("peak:   %s (%s)\n", rate_text(summary->peak_flops, FSDP__ROOM(40)), summary->peak_source);
    else if (summary->peak_source[0])
        printf("peak:   not known, so there is no MFU: %s\n", summary->peak_source);
    if (summary->checkpoint_bytes > 0)
        print_checkpoints(config, summary);
    if (summary->checkpoint_bytes == 0 && !config->save.path)
        printf("keeps:  nothing: there is no export.path, and no checkpoints are written (checkpoint.folder)\n");
    if (summary->resumed_from)
        print_resume(config, summary);
}

/* ---- steps ---- */

void fsdp__progress_clear(fsdp__progress *progress)
{
    fsdp__bar_clear(&progress->bar);
}

/* Prints what the step alone has sent between this rank and other machines, and what it waited for. */
static void network_line(const fsdp__progress *progress, const fsdp_train_report *report)
{
    double exposed = report->gather_ms + report->reduce_ms;

    if (progress->machines > 1)
        printf("net:    sent: %s  received: %s  exposed: %.1f ms\n", FSDP__SIZE(report->network_sent),
               FSDP__SIZE(report->network_received), exposed);
    else if (progress->gpus)
        printf("net:    exposed: %.1f ms\n", exposed);
}

/* Returns the speed of all ranks since the last line. */
static double tokens_a_second(const fsdp__progress *progress, int64_t now)
{
    return (double)(progress->first_tokens + progress->tokens - progress->logged_tokens) /
           ((double)(now - progress->logged_ns) * 1e-9);
}

/* Prints figures that are read later, but not on a terminal, where a line should fit 80 columns. */
static void print_times(const fsdp__progress *progress, const fsdp_train_report *report, int64_t now)
{
    double each = (double)(now - progress->began_ns) * 1e-9 / (double)(progress->step - progress->first_step);
    double left = each * (double)(progress->steps - progress->step);
    time_t clock = time(NULL);
    struct tm local;
    char text[40] = "?";

    if (localtime_r(&clock, &local))
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
    printf("  lr: %.4g  left: %s  time: %s", report->lr, fsdp__left_text(left, FSDP__ROOM(40)), text);
}

static void log_line(fsdp__progress *progress, const fsdp_train_report *report, int64_t now)
{
    progress->tps = tokens_a_second(progress, now);
    fsdp__progress_clear(progress);
    printf("step: %2lld  loss: %.4f  norm: %.2f", (long long)report->step, report->loss, report->grad_norm);
    if (report->loss_scale > 0)
        printf("  scale: %g", report->loss_scale);
    if (report->pairs > 0)
        printf("  margin: %.4f  accuracy: %.2f", report->reward_margin, report->reward_accuracy);
    printf("  %s  %s tok/s", FSDP__SIZE(report->memory_peak_bytes), FSDP__THOUSANDS(progress->tps + 0.5));
    if (!progress->on_terminal || (report->loss_scale == 0 && progress->mfu_per_token == 0))
        printf("  %s", rate_text(progress->tps * progress->flops_per_token, FSDP__ROOM(40)));
    if (progress->mfu_per_token > 0)
        printf("  mfu: %.1f%%", 100 * progress->tps * progress->mfu_per_token);
    if (!progress->on_terminal)
        print_times(progress, report, now);
    printf("\n");
    network_line(progress, report);
    progress->logged_ns = now;
    progress->logged_step = report->step;
    progress->logged_tokens = report->tokens;
}

/* Says that the data begins again in a step, before which the run took `before` tokens. */
static void log_epoch(fsdp__progress *progress, const fsdp_train_report *report, int64_t before)
{
    fsdp__progress_clear(progress);
    printf("epoch: %2lld begins in step %lld", (long long)report->epoch + 1, (long long)report->step);
    if (before > 0)
        printf(", after %s tokens", FSDP__THOUSANDS(before));
    printf("\n");
    progress->epoch = report->epoch;
}

/* Draws the bar as if the run had done all steps itself, at the same speed. */
static void draw(fsdp__progress *progress, int64_t now)
{
    double done = (double)(progress->step - progress->first_step), all = (double)progress->step;

    progress->bar.began_ns = now - (int64_t)((double)(now - progress->began_ns) * (all / done));
    if (progress->step > progress->logged_step)
        progress->tps = tokens_a_second(progress, now);
    snprintf(progress->bar.note, sizeof progress->bar.note, "loss %.4f  %s tok/s%s", progress->last_loss,
             FSDP__THOUSANDS(progress->tps + 0.5), progress->news);
    fsdp__bar_draw(&progress->bar, progress->step, progress->steps);
}

void fsdp__progress_step(fsdp__progress *progress, const fsdp_train_report *report)
{
    int64_t now = fsdp__clock_ns();
    int64_t before = progress->first_tokens + progress->tokens;
    bool last = report->step == progress->steps;

    progress->step = report->step;
    if (!progress->prints)
        return;
    if (!isnan(report->loss) || report->not_finite) {
        if (!progress->has_loss)
            progress->first_loss = report->loss;
        progress->has_loss = true;
        progress->last_loss = report->loss;
    }
    progress->skipped = report->skipped;
    progress->tokens = report->tokens - progress->first_tokens;
    if (report->step == progress->first_step + 1 && progress->first_step > 0)
        progress->epoch = report->epoch;
    if (report->epoch != progress->epoch)
        log_epoch(progress, report, before);
    if (report->left_out)
        progress->logged_tokens += report->tokens - before; /* they took no time, so they say nothing of the speed */
    else if (report->step == progress->first_step + 1 || report->step % progress->log_freq == 0 || last)
        log_line(progress, report, now);
    if (progress->bar.possible && !last)
        draw(progress, now);
}

void fsdp__progress_saved(fsdp__progress *progress, const fsdp_train_saved *saved)
{
    char waited[60] = "";

    if (!progress->prints)
        return;
    fsdp__progress_clear(progress);
    if (saved->waited_seconds < 0.9 * saved->seconds)
        snprintf(waited, sizeof waited, ", of which training waited %.1f s", saved->waited_seconds);
    printf("saved:  step %lld in %s, %s in %.1f s%s\n", (long long)saved->step, FSDP__SHOWN_PATH(saved->path),
           FSDP__SIZE(saved->bytes), saved->seconds, waited);
    fflush(stdout);
}

/* ---- validations ---- */

void fsdp__progress_validating(fsdp__progress *progress, int64_t done, int64_t all)
{
    if (!progress->bar.possible || progress->step == progress->first_step)
        return;
    snprintf(progress->news, sizeof progress->news, "  validating %lld/%lld", (long long)done, (long long)all);
    draw(progress, fsdp__clock_ns());
}

void fsdp__progress_validation(fsdp__progress *progress, const fsdp_train_config *config,
                               const fsdp_train_validation *validation)
{
    progress->logged_ns += (int64_t)(validation->ms * 1e6); /* not counted as time of the steps between two lines */
    snprintf(progress->news, sizeof progress->news, "  valid %.4f", validation->loss);
    if (!progress->prints)
        return;
    fsdp__progress_clear(progress);
    printf("valid: %2lld  loss: %.4f", (long long)validation->step, validation->loss);
    if (validation->pairs > 0)
        printf("  margin: %.4f  accuracy: %.2f  pairs: %s", validation->reward_margin, validation->reward_accuracy,
               FSDP__THOUSANDS(validation->pairs));
    else
        printf("  perplexity: %.4g  tokens: %s", validation->perplexity, FSDP__THOUSANDS(validation->tokens));
    puts(validation->best ? "  best" : "");
    if (!validation->stops)
        return;
    printf("stop:   %lld validation%s in a row without an improvement (training.early_stop: %lld); ",
           (long long)validation->without_improvement, fsdp__plural(validation->without_improvement),
           (long long)config->training.early_stop);
    if (isfinite(validation->best_loss))
        printf("the best loss was %.4f, after step %lld\n", validation->best_loss, (long long)validation->best_step);
    else
        printf("no loss was a number, so there is no best step\n");
}

/* ---- the end ---- */

void fsdp__progress_end(fsdp__progress *progress)
{
    double seconds = (double)(fsdp__clock_ns() - progress->began_ns) * 1e-9;
    char skipped[60] = "";

    fsdp__progress_clear(progress);
    if (progress->skipped)
        snprintf(skipped, sizeof skipped, " (%lld left out)", (long long)progress->skipped);
    if (progress->prints && progress->step > progress->first_step)
        printf("done:   %lld step%s%s, %s tokens in %.1f s; loss %.4f -> %.4f\n",
               (long long)(progress->step - progress->first_step), fsdp__plural(progress->step - progress->first_step),
               skipped, FSDP__THOUSANDS(progress->tokens), seconds, progress->first_loss, progress->last_loss);
}
