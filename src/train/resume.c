/* resume.c - a run that goes on from a checkpoint: which one, whether it fits this run, and what is taken over from
 * it. */
#include <stdlib.h>
#include <string.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/context.h"
#include "config/yaml.h"
#include "state/entry.h"
#include "tensor/tensor.h"
#include "train/checkpoint_values.h"
#include "train/run_config.h"
#include "train/run_start.h"
#include "train/run_steps.h"
#include "train/same_facts.h"

/* ---- which one ---- */

/* Finds the checkpoint; NULL: there is none, and none was asked for. */
static fsdp_status find(const fsdp_train_config *c, char **out)
{
    int64_t *steps = NULL, count = 0;

    *out = NULL;
    FSDP_TRY(fsdp_checkpoint_list(c->checkpoint.folder, &steps, &count));
    free(steps);
    if (count == 0 && c->checkpoint.load_step == FSDP_CHECKPOINT_NEWEST)
        return FSDP_OK;
    return fsdp_checkpoint_find(c->checkpoint.folder, c->checkpoint.load_step, out);
}

static fsdp_status take_values(fsdp__resume *r)
{
    fsdp_status status = fsdp_checkpoint_get_integer(r->from, FSDP__VALUE_SEQUENCES, &r->sequences);

    if (status == FSDP_NOT_FOUND)
        return FSDP_FAIL(status,
                         "%s: no run has saved it: to begin with its weights, set checkpoint.initial_load_path and "
                         "another checkpoint.folder",
                         fsdp_last_error());
    FSDP_TRY(status);
    FSDP_TRY(fsdp_checkpoint_get_integer(r->from, FSDP__VALUE_TOKENS, &r->tokens));
    FSDP_TRY(fsdp_checkpoint_get_integer(r->from, FSDP__VALUE_SKIPPED, &r->skipped));
    FSDP_TRY(fsdp_checkpoint_get_integer(r->from, FSDP__VALUE_WINDOW, &r->window));
    FSDP_TRY(fsdp_checkpoint_get_integer(r->from, FSDP__VALUE_SCHEDULE, &r->schedule_step));
    FSDP_TRY(fsdp_checkpoint_get_integer(r->from, FSDP__VALUE_DRAWS, &r->draws));
    if (r->sequences < 1 || r->tokens < 0 || r->window < 0 || r->schedule_step < 0 || r->schedule_step > r->step)
        return FSDP_FAIL(FSDP_FORMAT, "'%s': no run writes such values", r->path);
    return FSDP_OK;
}

/* Notes which run wrote the checkpoint, if it says. */
static void take_id(fsdp__resume *r)
{
    bool held = fsdp_hold_error(true);
    const char *id = "";

    if (fsdp_checkpoint_get_text(r->from, FSDP__VALUE_RUN, &id) == FSDP_OK && fsdp__train_is_id(id))
        memcpy(r->run, id, sizeof r->run);
    fsdp_release_error(held);
}

/* Returns the checkpoint's own step, unless it says that its weights are not finite. */
static int64_t finite_step(const fsdp__resume *r)
{
    bool held = fsdp_hold_error(true);
    int64_t step = r->step;

    (void)fsdp_checkpoint_get_integer(r->from, FSDP__VALUE_FINITE, &step);
    fsdp_release_error(held);
    return step;
}

static fsdp_status open_checkpoint(fsdp_train_run *run, const char *path)
{
    fsdp__resume *r = &run->resume;

    FSDP_TRY(fsdp_checkpoint_open(path, &r->from));
    FSDP__TRY_NEW(r->path = fsdp__strdup(path));
    r->step = fsdp_checkpoint_step(r->from);
    r->ranks = fsdp_checkpoint_world_size(r->from);
    FSDP_TRY(take_values(r));
    r->finite_step = finite_step(r);
    take_id(r);
    if (!fsdp__train_loads(run->config, FSDP__TRAIN_DATALOADER))
        r->window = 0;
    if (!fsdp__train_loads(run->config, FSDP__TRAIN_LR_SCHEDULER))
        r->schedule_step = r->step;
    run->step = r->step;
    run->tokens_seen = r->tokens;
    run->skipped = r->skipped;
    return FSDP_OK;
}

fsdp_status fsdp__resume_find(fsdp_train_run *run)
{
    FSDP__FREED char *path = NULL;
    fsdp_status status;

    if (!fsdp__train_saves(run->config))
        return FSDP_OK;
    status = find(run->config, &path);
    if (status == FSDP_OK && path)
        status = open_checkpoint(run, path);
    return fsdp_fail_prefix(status, "checkpoint.folder");
}

/* ---- whether it fits ---- */

fsdp_status fsdp__resume_check_batch(const fsdp_train_run *run)
{
    int64_t wanted = run->config->training.global_batch_size;

    if (!run->resume.from)
        return FSDP_OK;
    if (wanted == -1)
        return fsdp__train_check_batch(run->config, run->data_ranks, run->resume.sequences,
                                       "training.global_batch_size is not set, and the checkpoint's of");
    if (wanted != run->resume.sequences && fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_WARNING,
                 "training.global_batch_size is %lld from here on, and was %lld until step %lld", (long long)wanted,
                 (long long)run->resume.sequences, (long long)run->resume.step);
    return FSDP_OK;
}

/* Counts how the checkpoint's facts of this name differ from the run's; 0: they do not. */
static fsdp_status differences(const fsdp_train_run *run, const char *name, char *text, int *out_count)
{
    const char *theirs = NULL;
    FSDP__FREED char *ours = NULL;

    FSDP_TRY(fsdp_checkpoint_get_text(run->resume.from, name, &theirs));
    FSDP__TRY_MADE(ours = fsdp__values_facts(run, name));
    *out_count = fsdp__facts_differ(theirs, strlen(theirs), ours, strlen(ours), text);
    return FSDP_OK;
}

/* Refuses a run that trains an adapter, and goes on from one that did not, or the other way round. */
static fsdp_status check_kind(const fsdp_train_run *run)
{
    static const char *const kinds[] = {"the whole model", "an adapter (section adapter)"};
    const char *facts = NULL;
    bool theirs;

    FSDP_TRY(fsdp_checkpoint_get_text(run->resume.from, FSDP__VALUE_MODEL, &facts));
    theirs = strstr(facts, "\nadapter.rank\t") != NULL;
    if (theirs == (run->lora != NULL))
        return FSDP_OK;
    return FSDP_FAIL(
        FSDP_INVALID,
        "checkpoint.folder: '%s' is of a run that trains %s, and this run trains %s: give the keys of that "
        "run, or name another folder for the checkpoints",
        run->resume.path, kinds[theirs], kinds[run->lora != NULL]);
}

/* Adds a difference of the adapter's dropout, which is no fact of the model: older checkpoints do not have it. */
static fsdp_status compare_dropout(const fsdp_train_run *run, char *text, int *count)
{
    FSDP__SCOPED(fsdp_lora_options_free_at) fsdp_lora_options *theirs = NULL;
    size_t used = *count > 0 ? strlen(text) : 0;
    char then[32], now[32];

    if (!run->lora || !fsdp_checkpoint_file_find(run->resume.from, FSDP__ADAPTER_CONFIG))
        return FSDP_OK;
    FSDP_TRY(fsdp_adapter_read_options(run->resume.path, &theirs));
    snprintf(then, sizeof then, "%.9g", theirs->dropout);
    snprintf(now, sizeof now, "%.9g", run->lora->dropout);
    if (strcmp(then, now) == 0)
        return FSDP_OK;
    snprintf(text + used, FSDP__FACTS_TEXT - used, "%sadapter.dropout is %s and %s", used > 0 ? ", " : "", then, now);
    ++*count;
    return FSDP_OK;
}

fsdp_status fsdp__resume_check_model(const fsdp_train_run *run)
{
    char text[FSDP__FACTS_TEXT];
    int count = 0;

    if (!run->resume.from)
        return FSDP_OK;
    FSDP_TRY(check_kind(run));
    FSDP_TRY(differences(run, FSDP__VALUE_MODEL, text, &count));
    FSDP_TRY(compare_dropout(run, text, &count));
    if (count == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "checkpoint.folder: '%s' and this run have different models: %s: name another folder for the "
                     "checkpoints of this model",
                     run->resume.path, text);
}

/* Returns what else a user can do if the data differ, to end the message with. A run on pairs has no such way, because
 * its reference was computed from the old data. */
static const char *or_again(const fsdp_train_run *run)
{
    return fsdp__train_is_dpo(run->config)
               ? ""
               : ", or begin the data again with checkpoint.exclude_from_loading: dataloader";
}

/* Compares every token, by the digest, which one rank on each machine has; a checkpoint may have none
 * (checkpoint_values.h). */
static fsdp_status check_digest(fsdp_train_run *run)
{
    int64_t files;
    const char *theirs = fsdp__digest_of_checkpoint(run, &files), *ours = NULL;

    if (!theirs)
        return FSDP_OK;
    fsdp__digest_wait(run);
    FSDP_TRY(fsdp__digest_get(run, &ours, &files));
    if (!ours || strcmp(theirs, ours) == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "checkpoint.folder: '%s' and this run go through different data: data.path holds as many tokens, "
                     "but not the same ones (digest %.40s and %s): set it back%s",
                     run->resume.path, theirs, ours, or_again(run));
}

/* Replaces the text by the key that makes the windows other ones, if the config in the checkpoint tells which: facts
 * only count what is trained on. */
static void name_key(const fsdp_train_run *run, char text[FSDP__FACTS_TEXT])
{
    static const char *const keys[] = {"validation.share", "validation.enable", "data.train_on",
                                       "data.packing",     "data.on_long_row",  NULL};
    const fsdp_checkpoint_file *file = fsdp_checkpoint_file_find(run->resume.from, "config.yaml");
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *theirs = NULL;
    bool held = fsdp_hold_error(true); /* another version's config may have other keys */
    char key[FSDP__FACTS_TEXT] = "";

    if (file && fsdp_train_config_create(&theirs) == FSDP_OK &&
        fsdp__yaml_apply(&fsdp__train_keys, theirs, file->name, file->data, file->bytes) == FSDP_OK &&
        fsdp__train_config_difference(theirs, run->config, keys, key, sizeof key) == FSDP_OK && *key)
        memcpy(text, key, sizeof key);
    fsdp_release_error(held);
}

fsdp_status fsdp__resume_check_data(fsdp_train_run *run)
{
    char text[FSDP__FACTS_TEXT];
    int count = 0;

    if (!run->resume.from)
        return FSDP_OK;
    if (fsdp__train_loads(run->config, FSDP__TRAIN_DATALOADER))
        FSDP_TRY(differences(run, FSDP__VALUE_DATA, text, &count));
    if (count > 0)
        name_key(run, text);
    if (count > 0)
        return FSDP_FAIL(
            FSDP_INVALID, "checkpoint.folder: '%s' and this run go through different data: %s: set it back%s%s",
            run->resume.path, text,
            run->tokenizer && !run->config->data.tokenizer
                ? " (text goes through the model's tokenizer; with data.tokenizer: bytes, its bytes are the tokens)"
                : "",
            or_again(run));
    if (fsdp__train_loads(run->config, FSDP__TRAIN_DATALOADER))
        FSDP_TRY(check_digest(run));
    FSDP_TRY(differences(run, FSDP__VALUE_KEYS, text, &count));
    if (count > 0 && fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_INFO, "keys that have changed since step %lld (then and now): %s",
                 (long long)run->resume.step, text);
    return FSDP_OK;
}

/* ---- what is taken over ---- */

fsdp_status fsdp__resume_fill_model(fsdp_train_run *run)
{
    fsdp_state_dict *state = NULL;
    fsdp__activity before;
    fsdp_status status;

    FSDP_TRY(fsdp__train_state(run, &state));
    before = fsdp__context_set_activity(run->context, FSDP__READING);
    status = fsdp_checkpoint_load(run->resume.from, FSDP__SECTION_MODEL, state, NULL);
    (void)fsdp__context_set_activity(run->context, before);
    fsdp_state_dict_free(state);
    FSDP_TRY(status);
    return fsdp_module_set_draws(run->model, (uint64_t)run->resume.draws);
}

/* Adds a number that the optimizer itself takes over: how many steps a parameter has had. */
static fsdp_status add_number(const fsdp_train_run *run, const fsdp_checkpoint_tensor *t, fsdp_state_dict *out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *place = NULL;

    FSDP_TRY(fsdp_tensor_create(fsdp_cpu(run->context), t->dtype, t->ndim, t->shape, FSDP_MEMORY_WORKSPACE, &place));
    return fsdp_state_dict_add(out, t->name, place);
}

/* Makes places for what the checkpoint has, since parameters may have had no step yet. What has no place is left for
 * the load to refuse. */
static fsdp_status make_places(const fsdp_train_run *run, const fsdp_state_dict *all, fsdp_state_dict *out)
{
    for (int64_t i = 0; i < fsdp_checkpoint_count(run->resume.from); i++) {
        const fsdp_checkpoint_tensor *t = fsdp_checkpoint_at(run->resume.from, i);
        const fsdp_state_dict_entry *entry;

        if (strcmp(t->section, FSDP__SECTION_OPTIMIZER) != 0)
            continue;
        entry = fsdp_state_dict_find(all, t->name);
        if (entry)
            FSDP_TRY(fsdp_state_dict_add(out, t->name, entry->tensor));
        else if (t->dtype == FSDP_I64 && t->ndim == 0)
            FSDP_TRY(add_number(run, t, out));
    }
    return FSDP_OK;
}

static fsdp_status load_optimizer(fsdp_train_run *run)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *all = NULL, *state = NULL;

    FSDP_TRY(fsdp_optimizer_init_state(run->optimizer));
    FSDP_TRY(fsdp_optimizer_state_dict(run->optimizer, &all));
    FSDP_TRY(fsdp_state_dict_create(&state));
    FSDP_TRY(make_places(run, all, state));
    FSDP_TRY(fsdp_checkpoint_load(run->resume.from, FSDP__SECTION_OPTIMIZER, state, NULL));
    return fsdp_optimizer_load_state_dict(run->optimizer, state);
}

static fsdp_status load_scaler(fsdp_train_run *run)
{
    fsdp_grad_scaler_state state;
    bool held, found;

    if (!run->scaler)
        return FSDP_OK;
    state = fsdp_grad_scaler_get_state(run->scaler);
    held = fsdp_hold_error(true);
    found = fsdp_checkpoint_get_number(run->resume.from, FSDP__VALUE_SCALE, &state.scale) == FSDP_OK;
    fsdp_release_error(held);
    if (!found) /* a run in another dtype had no scale, so this run starts its own */
        return FSDP_OK;
    FSDP_TRY(fsdp_checkpoint_get_integer(run->resume.from, FSDP__VALUE_GROWTH, &state.growth_tracker));
    return fsdp_grad_scaler_set_state(run->scaler, &state);
}

/* Returns whether the checkpoint's losses are of the tokens that this run validates on, as far as it says; an older
 * checkpoint has sampled only some of them. */
static bool same_validation(const fsdp_train_run *run)
{
    const fsdp_checkpoint_reader *from = run->resume.from;
    int64_t theirs = 0, sampled = 0;

    if (!run->validation.on)
        return true;
    if (fsdp_checkpoint_get_integer(from, FSDP__VALUE_VALIDATED_ON, &theirs) == FSDP_OK)
        return theirs == run->validation.data;
    if (fsdp_checkpoint_get_integer(from, FSDP__VALUE_SAMPLED_ON, &theirs) != FSDP_OK || !theirs)
        return true;
    return fsdp__validation_sample(run, &sampled) != FSDP_OK || theirs == sampled;
}

/* Takes over the state of validation. Early stopping goes on counting, and without validations the checkpoint of the
 * best one still stays. On other data there is no best loss so far. */
static void take_validation(fsdp_train_run *run)
{
    fsdp__validation v = run->validation;
    const fsdp_checkpoint_reader *from = run->resume.from;
    bool held = fsdp_hold_error(true), same = true;

    if (fsdp_checkpoint_get_number(from, FSDP__VALUE_BEST, &v.best) == FSDP_OK &&
        fsdp_checkpoint_get_integer(from, FSDP__VALUE_BEST_STEP, &v.best_step) == FSDP_OK &&
        fsdp_checkpoint_get_number(from, FSDP__VALUE_IMPROVED, &v.improved) == FSDP_OK &&
        fsdp_checkpoint_get_integer(from, FSDP__VALUE_WITHOUT, &v.without_improvement) == FSDP_OK) {
        same = same_validation(run);
        v.stops =
            v.on && run->config->training.early_stop > 0 && v.without_improvement >= run->config->training.early_stop;
        if (same)
            run->validation = v;
    }
    fsdp_release_error(held);
    if (!same && fsdp_context_rank(run->context) == 0)
        fsdp_log(
            run->context, FSDP_LOG_INFO,
            "validations use other tokens than until step %lld: the best loss, %.6g of step %lld, no longer counts",
            (long long)run->resume.step, v.best, (long long)v.best_step);
}

fsdp_status fsdp__resume_optimizer(fsdp_train_run *run)
{
    fsdp__activity before;
    fsdp_status status = FSDP_OK;

    if (!run->resume.from)
        return FSDP_OK;
    before = fsdp__context_set_activity(run->context, FSDP__READING);
    if (fsdp__train_loads(run->config, FSDP__TRAIN_OPTIMIZER) &&
        fsdp_checkpoint_has_section(run->resume.from, FSDP__SECTION_OPTIMIZER))
        status = load_optimizer(run);
    (void)fsdp__context_set_activity(run->context, before);
    if (status == FSDP_INVALID || status == FSDP_NOT_FOUND || status == FSDP_FORMAT)
        return fsdp_fail_prefix(status,
                                "the optimizer's state (checkpoint.exclude_from_loading: optimizer makes a new one)");
    FSDP_TRY(status);
    FSDP_TRY(load_scaler(run));
    take_validation(run);
    fsdp_checkpoint_close(run->resume.from);
    run->resume.from = NULL;
    return FSDP_OK;
}

void fsdp__resume_release(fsdp_train_run *run)
{
    fsdp_checkpoint_close(run->resume.from);
    fsdp__free(run->resume.path);
}
