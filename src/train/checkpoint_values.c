/* checkpoint_values.c - the numbers and facts of a run that its checkpoints keep. */
#include "train/checkpoint_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "train/dpo.h"
#include "train/run_config.h"
#include "train/run_start.h"
#include "train/same_facts.h"

/* ---- facts ---- */

/* Writes keys that a run may change where it goes on, and that change its results. */
static void write_keys(const fsdp_train_run *run, FILE *out)
{
    static const char *const sections[] = {"model", "training", "optimizer", "lr_scheduler", "dpo"};

    for (size_t s = 0; s < FSDP__COUNT_OF(sections); s++)
        for (int i = 0; i < fsdp__train_keys.count; i++) {
            const fsdp__key *key = &fsdp__train_keys.keys[i];

            if (strcmp(key->section, sections[s]) != 0 || key->range & FSDP__LOCAL)
                continue;
            if (strcmp(key->name, "global_batch_size") == 0) /* write the number that -1 stands for */
                fprintf(out, "training.global_batch_size\t%lld\n", (long long)run->sequences);
            else
                fsdp__facts_of_key(run->config, key, out);
        }
}

/* Writes what decides which window is the n-th. */
static void write_data(const fsdp_train_run *run, FILE *out)
{
    const fsdp_train_config *c = run->config;

    fprintf(out, "training.seq_len\t%lld\ndata.order\t%s\n", (long long)c->training.seq_len,
            c->data.shuffle == 1 ? "shuffled" : "sequential");
    fprintf(out, "the shuffle's training.seed\t%lld\n", c->data.shuffle == 1 ? (long long)c->training.seed : 0);
    fprintf(out, "the tokens that are trained on\t%lld\n", (long long)fsdp__train_tokens(run));
    for (int i = 0; i < run->source_count; i++)
        fsdp__facts_of_sampled_data(&run->sources[i].data, run->sources[i].key, out);
    fsdp__train_facts_of_windows(run, out);
}

static void write_model(const fsdp_train_run *run, FILE *out)
{
    fsdp__facts_of_model(&run->model_config, out);
    fsdp__train_facts_of_adapter(run, out);
}

char *fsdp__values_facts(const fsdp_train_run *run, const char *name)
{
    size_t bytes;
    FSDP__FREED char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);

    if (out && strcmp(name, FSDP__VALUE_MODEL) == 0)
        write_model(run, out);
    else if (out && strcmp(name, FSDP__VALUE_DATA) == 0)
        write_data(run, out);
    else if (out)
        write_keys(run, out);
    if (out && fclose(out) == 0 && text)
        return fsdp__take(&text);
    (void)FSDP_FAIL(FSDP_NO_MEMORY, "out of memory");
    return NULL;
}

/* ---- values ---- */

static void add_integer(fsdp__values *v, const char *name, int64_t value)
{
    v->items[v->count++] = (fsdp_checkpoint_value){.name = name, .type = FSDP_CHECKPOINT_INTEGER, .integer = value};
}

static void add_number(fsdp__values *v, const char *name, double value)
{
    v->items[v->count++] = (fsdp_checkpoint_value){.name = name, .type = FSDP_CHECKPOINT_NUMBER, .number = value};
}

static void add_text(fsdp__values *v, const char *name, const char *text)
{
    v->items[v->count++] = (fsdp_checkpoint_value){.name = name, .type = FSDP_CHECKPOINT_TEXT, .text = text};
}

static fsdp_status add_facts(const fsdp_train_run *run, fsdp__values *v)
{
    static const char *const names[] = {FSDP__VALUE_MODEL, FSDP__VALUE_DATA, FSDP__VALUE_KEYS};

    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++) {
        v->texts[i] = fsdp__values_facts(run, names[i]);
        if (!v->texts[i])
            return fsdp_last_status();
        add_text(v, names[i], v->texts[i]);
    }
    return FSDP_OK;
}

/* Adds the digest, if it is ready. A save does not wait for it: a run that is told to end may have little time. A run
 * whose data can no longer be read still saves what it has. */
static void add_digest(const fsdp_train_run *run, fsdp__values *v)
{
    const char *digest;
    int64_t files;

    if (fsdp__digest_get(run, &digest, &files) != FSDP_OK)
        fsdp_log(run->context, FSDP_LOG_WARNING, "%s: the checkpoint has no digest of the data", fsdp_last_error());
    if (digest)
        add_text(v, FSDP__VALUE_DIGEST, digest);
    if (files)
        add_integer(v, FSDP__VALUE_FILES, files);
}

fsdp_status fsdp__values_of(fsdp_train_run *run, fsdp__values *out)
{
    uint64_t draws = 0;

    *out = (fsdp__values){.count = 0};
    FSDP_TRY(fsdp_module_draws(run->model, &draws));
    add_text(out, FSDP__VALUE_RUN, run->id);
    add_integer(out, FSDP__VALUE_SEQUENCES, run->sequences);
    add_integer(out, FSDP__VALUE_TOKENS, run->tokens_seen);
    add_integer(out, FSDP__VALUE_SKIPPED, run->skipped);
    add_integer(out, FSDP__VALUE_WINDOW, fsdp_loader_position(run->loader));
    add_integer(out, FSDP__VALUE_SCHEDULE, run->resume.schedule_step);
    add_integer(out, FSDP__VALUE_DRAWS, (int64_t)draws);
    if (run->scaler) {
        fsdp_grad_scaler_state state = fsdp_grad_scaler_get_state(run->scaler);

        add_number(out, FSDP__VALUE_SCALE, state.scale);
        add_integer(out, FSDP__VALUE_GROWTH, state.growth_tracker);
    }
    if (isfinite(run->validation.improved)) {
        add_number(out, FSDP__VALUE_BEST, run->validation.best);
        add_integer(out, FSDP__VALUE_BEST_STEP, run->validation.best_step);
        add_number(out, FSDP__VALUE_IMPROVED, run->validation.improved);
        add_integer(out, FSDP__VALUE_WITHOUT, run->validation.without_improvement);
        add_integer(out, FSDP__VALUE_VALIDATED_ON, run->validation.data);
    }
    if (run->dpo.validated.state)
        add_integer(out, FSDP__VALUE_DPO_VALIDATED_ON, fsdp__dpo_validated_on(run));
    if (!run->saves.finite)
        add_integer(out, FSDP__VALUE_FINITE, run->saves.finite_step);
    if (fsdp_context_rank(run->context) == 0) /* this is the rank whose values are written */
        add_digest(run, out);
    return add_facts(run, out);
}

void fsdp__values_release(fsdp__values *values)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(values->texts); i++)
        free(values->texts[i]);
}
