/* run_data.c - what a run is trained on: tokens or rows, one source or a mixture, and the loader of all that. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "train/dpo.h"
#include "train/run_config.h"
#include "train/run_start.h"
#include "train/run_steps.h"

/* ---- sources ---- */

static fsdp_status list_sources(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    int count = c->data.mixture_count > 0 ? (int)c->data.mixture_count : 1;

    FSDP__TRY_NEW(run->sources = fsdp__calloc((size_t)count, sizeof *run->sources));
    run->source_count = count;
    run->sources[0] =
        (fsdp__run_source){.key = "data.path", .paths = c->data.paths, .path_count = c->data.path_count, .weight = 1};
    for (int64_t i = 0; i < c->data.mixture_count; i++) {
        fsdp__run_source *source = &run->sources[i];

        snprintf(source->key, sizeof source->key, "data.mixture[%lld]", (long long)i);
        source->paths = &c->data.mixture[i].path;
        source->path_count = 1;
        source->weight = c->data.mixture[i].weight;
    }
    return FSDP_OK;
}

/* Refuses keys of rows where there are none. */
static fsdp_status check_keys(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    const char *key = c->data.train_on == FSDP_TRAIN_ON_ANSWERS ? "data.train_on is answers"
                      : c->data.packing >= 0                    ? "data.packing is set"
                      : c->data.long_row != FSDP_LONG_ROW_ERROR ? "data.on_long_row is set"
                      : c->data.chat_template && c->validation.path_count == 0 /* which may have conversations */
                          ? "data.chat_template is set"
                          : NULL;

    for (int i = 0; i < run->source_count; i++)
        run->has_rows = run->has_rows || run->sources[i].data.rows;
    if (!key || run->has_rows)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "%s, which is for conversations, but %s is plain text or tokens: all of it is learned, in windows "
                     "that are full: leave the key out",
                     key, run->sources[0].key);
}

/* ---- rows ---- */

/* Packs the rows that are not held out. */
static fsdp_status pack_source(const fsdp_train_run *run, fsdp__run_source *source)
{
    if (!source->data.rows)
        return FSDP_OK;
    FSDP_TRY(fsdp__train_pack(run, source->key, source->data.rows, 0, run->validation.held_rows_from, &source->packed));
    source->tokens = source->packed->tokens;
    fsdp__train_tell_rows(run, source);
    return FSDP_OK;
}

/* ---- the loader ---- */

/* Writes which training.steps the epochs replace, if it is not the default. */
static const char *replaced_steps(int64_t steps, char text[60])
{
    const fsdp__key *key = fsdp__key_find(&fsdp__train_keys, "training", "steps");

    *text = '\0';
    if (steps != strtoll(key->initial, NULL, 10))
        snprintf(text, 60, ", in place of training.steps %lld", (long long)steps);
    return text;
}

/* Sets the number of steps that training.epochs takes. */
static void resolve_epochs(fsdp_train_run *run, int64_t windows)
{
    double epochs = run->config->training.epochs;
    char replaced[60];

    if (isnan(epochs))
        return;
    if (run->config != &run->resolved)
        run->resolved = *run->config;
    run->config = &run->resolved;
    replaced_steps(run->config->training.steps, replaced);
    run->resolved.training.steps = (int64_t)fmax(ceil(epochs * (double)windows / (double)run->sequences - 1e-9), 1);
    if (fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_INFO,
                 "training.epochs %g of %lld windows, %lld of them in a step, are %lld steps%s", epochs,
                 (long long)windows, (long long)run->sequences, (long long)run->config->training.steps, replaced);
}

static fsdp_status list_windows(const fsdp_train_run *run, fsdp__loader_source *sources)
{
    int64_t length = run->config->training.seq_len;

    for (int i = 0; i < run->source_count; i++) {
        const fsdp__run_source *source = &run->sources[i];

        sources[i].weight = source->weight;
        sources[i].windows = source->packed ? fsdp__windows_of_packed(source->packed)
                                            : fsdp__windows_of_tokens(source->data.tokens, source->tokens, length);
        if (sources[i].windows.count < 1 && run->source_count > 1)
            return FSDP_FAIL(FSDP_INVALID, "%s: '%s' has %lld tokens, not one window of training.seq_len %lld",
                             source->key, source->paths[0], (long long)source->tokens, (long long)length);
    }
    return FSDP_OK;
}

static fsdp_status make_loader(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    FSDP__FREED fsdp__loader_source *sources = fsdp__calloc((size_t)run->source_count, sizeof *sources);
    fsdp_loader_options options = {
        .seq_len = c->training.seq_len,
        .local_batch = c->training.local_batch_size,
        .microbatches = run->microbatches,
        .rank = run->data_rank,
        .world_size = run->data_ranks,
        .shuffle = c->data.shuffle == 1,
        .seed = (uint64_t)c->training.seed,
        .vocab_size = run->model_config.vocab_size,
        .workers = (int)c->data.workers,
        .start_window = run->resume.window,
        .token_count = run->sources[0].tokens,
        .context = run->context,
    };

    FSDP__TRY_NEW(sources);
    FSDP_TRY(list_windows(run, sources));
    resolve_epochs(run, sources[0].windows.count);
    if (run->source_count == 1 && !run->has_rows) /* its message says how many tokens are needed */
        return fsdp_loader_create(run->sources[0].data.tokens, &options, &run->loader);
    return fsdp__loader_create_of(sources, run->source_count, &options, &run->loader);
}

fsdp_status fsdp__train_open_data(fsdp_train_run *run)
{
    FSDP_TRY(list_sources(run));
    for (int i = 0; i < run->source_count; i++) {
        fsdp__run_source *source = &run->sources[i];

        FSDP_TRY(fsdp__text_open(run, source->key, source->paths, source->path_count, &source->data));
        source->tokens = fsdp__open_data_tokens(&source->data);
        FSDP_TRY(fsdp__dpo_check_rows(run, source->key, source->data.rows));
    }
    FSDP_TRY(check_keys(run));
    FSDP_TRY(fsdp__validation_open(run));
    for (int i = 0; i < run->source_count; i++)
        FSDP_TRY(pack_source(run, &run->sources[i]));
    return make_loader(run);
}

void fsdp__train_close_data(fsdp_train_run *run)
{
    for (int i = 0; i < run->source_count; i++) {
        fsdp__packed_free(run->sources[i].packed);
        fsdp__open_data_close(&run->sources[i].data);
    }
    fsdp__free(fsdp__take(&run->sources));
    run->source_count = 0;
}

/* ---- looking ---- */

int64_t fsdp__train_tokens(const fsdp_train_run *run)
{
    int64_t count = 0;

    for (int i = 0; i < run->source_count; i++)
        count += run->sources[i].tokens;
    return count;
}

int64_t fsdp__train_held_out(const fsdp_train_run *run)
{
    int64_t count = 0;

    if (!run->validation.on || run->config->validation.path_count > 0)
        return 0;
    if (run->validation.packed)
        return run->validation.packed->tokens;
    for (int i = 0; i < run->source_count; i++)
        count += fsdp__open_data_tokens(&run->sources[i].data) - run->sources[i].tokens;
    return count;
}

bool fsdp__train_has_bytes(const fsdp_train_run *run)
{
    bool bytes = false;

    for (int i = 0; i < run->source_count; i++)
        bytes = bytes || (run->sources[i].data.tokens && fsdp_tokens_have_text(run->sources[i].data.tokens));
    return bytes;
}

void fsdp__train_facts_of_windows(const fsdp_train_run *run, FILE *out)
{
    for (int i = 0; i < run->source_count && (run->has_rows || run->source_count > 1); i++) {
        const fsdp__run_source *source = &run->sources[i];
        const fsdp__packed *p = source->packed;

        fprintf(out, "the weight of %s\t%.17g\n", source->key, source->weight);
        if (p)
            fprintf(out, "the windows of %s\t%lld: packing %d, long rows %d, all learned %d\n", source->key,
                    (long long)p->windows, (int)p->options.packing, (int)p->options.long_row, (int)p->options.all);
    }
}
