/* progress.c - what a training run prints: a banner, a line every log_freq steps, and a bar on a terminal. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

/* ---- banner ---- */

static const char *plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

/* Nothing where all is kept, unless something was asked for. */
static const char *checkpoints_text(const fsdp_train_config *config, const fsdp_train_summary *summary, char *text,
                                    size_t bytes)
{
    int mode = config->activation_checkpoint.mode, option = config->activation_checkpoint.selective_ac_option;
    bool selective = mode == FSDP_CHECKPOINT_SELECTIVE && option == 0;

    text[0] = '\0';
    if (mode == FSDP_CHECKPOINT_NONE && option != 2) /* that is the default */
        snprintf(text, bytes,
                 "; no block has a checkpoint: activation_checkpoint.selective_ac_option is of mode selective");
    else if (mode != FSDP_CHECKPOINT_NONE)
        snprintf(text, bytes, "; %lld of %lld blocks keep their input%s for the backward",
                 (long long)summary->checkpointed, (long long)summary->model_config.n_layers,
                 selective ? ", attention and every second product" : "");
    return text;
}

void fsdp__progress_start(fsdp__progress *progress, const fsdp_train_config *config, const fsdp_train_summary *summary,
                          int threads)
{
    char a[40], b[40], c[40], trained[80] = "", copies[80] = "", checkpoints[160];
    const fsdp_model_config *m = &summary->model_config;

    progress->steps = config->training.steps;
    progress->log_freq = config->metrics.log_freq;
    progress->tokens_per_step = summary->tokens_per_step;
    progress->ranks = summary->world_size;
    progress->flops_per_token = summary->flops_per_token;
    progress->began_ns = progress->logged_ns = fsdp__clock_ns();
    if (!progress->prints)
        return;
    if (summary->trained_parameters < summary->parameters)
        snprintf(trained, sizeof trained, ", %s of them trained",
                 fsdp__short_count(summary->trained_parameters, a, sizeof a));
    printf("model:  %s (%s, %lld layer%s of %lld), %s parameters%s\n", summary->model,
           m->architecture == FSDP_GPT2 ? "GPT-2" : "Llama", (long long)m->n_layers, plural(m->n_layers),
           (long long)m->dim, fsdp__short_count(summary->parameters, a, sizeof a), trained);
    if (summary->replicas > 1)
        snprintf(copies, sizeof copies, " (%d copies of the model, sharded over %d each)", summary->replicas,
                 summary->world_size / summary->replicas);
    printf("ranks:  %d%s, %d thread%s each; %lld unit%s; this one holds %s parameters, %s\n", summary->world_size,
           copies, threads, plural(threads), (long long)summary->units, plural(summary->units),
           fsdp__short_count(summary->local_parameters, a, sizeof a),
           fsdp__size_text((double)summary->memory_bytes, b, sizeof b));
    if (config->training.enable_cpu_offload)
        printf("host:   %s\n", summary->offloaded
                                   ? "has parameters, gradients and optimizer state, and takes the steps"
                                   : "is what computes: training.enable_cpu_offload has nothing to move");
    printf("data:   %s tokens; a step takes %s (%d rank%s x %lld microbatch%s x %lld sequence%s x %lld)\n",
           fsdp__thousands(summary->data_tokens, a, sizeof a), fsdp__thousands(summary->tokens_per_step, b, sizeof b),
           summary->world_size, plural(summary->world_size), (long long)summary->microbatches,
           summary->microbatches == 1 ? "" : "es", (long long)config->training.local_batch_size,
           plural(config->training.local_batch_size), (long long)config->training.seq_len);
    printf("train:  %s step%s%s\n", fsdp__thousands(config->training.steps, c, sizeof c),
           plural(config->training.steps), checkpoints_text(config, summary, checkpoints, sizeof checkpoints));
}

/* ---- steps ---- */

void fsdp__progress_clear(fsdp__progress *progress)
{
    fsdp__bar_clear(&progress->bar);
}

static void log_line(fsdp__progress *progress, const fsdp_train_report *report, int64_t now)
{
    double seconds = (double)(now - progress->logged_ns) * 1e-9;
    double tps = (double)((report->step - progress->logged_step) * progress->tokens_per_step) / seconds;
    double tflops = tps * progress->flops_per_token * 1e-12;
    char memory[40], speed[40], each[40], per_rank[60] = "", scale[40] = "";

    fsdp__progress_clear(progress);
    if (progress->ranks > 1)
        snprintf(per_rank, sizeof per_rank, " (%s/rank)",
                 fsdp__thousands((int64_t)(tps / progress->ranks + 0.5), each, sizeof each));
    if (report->loss_scale > 0)
        snprintf(scale, sizeof scale, "  loss_scale: %g", report->loss_scale);
    printf("step: %2lld  loss: %.4f  grad_norm: %.2f%s  memory: %s  tps: %s%s  tflops: %.*f\n", (long long)report->step,
           report->loss, report->grad_norm, scale,
           fsdp__size_text((double)report->memory_peak_bytes, memory, sizeof memory),
           fsdp__thousands((int64_t)(tps + 0.5), speed, sizeof speed), per_rank, tflops >= 0.1 ? 2 : 4, tflops);
    progress->logged_ns = now;
    progress->logged_step = report->step;
}

/* The data begins again. */
static void log_epoch(fsdp__progress *progress, const fsdp_train_report *report)
{
    char tokens[40];

    fsdp__progress_clear(progress);
    printf("epoch: %2lld begins in step %lld, after %s tokens\n", (long long)report->epoch + 1, (long long)report->step,
           fsdp__thousands(report->tokens, tokens, sizeof tokens));
    progress->epoch = report->epoch;
}

void fsdp__progress_step(fsdp__progress *progress, const fsdp_train_report *report)
{
    int64_t now = fsdp__clock_ns();
    bool last = report->step == progress->steps;

    if (!progress->prints)
        return;
    if (!isnan(report->loss) || report->not_finite) {
        if (!progress->has_loss)
            progress->first_loss = report->loss;
        progress->has_loss = true;
        progress->last_loss = report->loss;
    }
    progress->skipped = report->skipped;
    if (report->epoch != progress->epoch)
        log_epoch(progress, report);
    if (report->step == 1 || report->step % progress->log_freq == 0 || last)
        log_line(progress, report, now);
    if (progress->terminal && !last)
        fsdp__bar_draw(&progress->bar, report->step, progress->steps, progress->began_ns);
}

void fsdp__progress_end(fsdp__progress *progress)
{
    double seconds = (double)(fsdp__clock_ns() - progress->began_ns) * 1e-9;
    char tokens[40], skipped[60] = "";

    fsdp__progress_clear(progress);
    if (progress->skipped)
        snprintf(skipped, sizeof skipped, " (%lld left out)", (long long)progress->skipped);
    if (progress->prints)
        printf("done:   %lld step%s%s, %s tokens in %.1f s; loss %.4f -> %.4f\n", (long long)progress->steps,
               plural(progress->steps), skipped,
               fsdp__thousands(progress->steps * progress->tokens_per_step, tokens, sizeof tokens), seconds,
               progress->first_loss, progress->last_loss);
}
