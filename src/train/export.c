/* export.c - the model that a run leaves: its folder is held from the start, and written at the end. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "format/target_folder.h"
#include "hub/hub.h"
#include "state/entry.h"
#include "train/inputs.h"
#include "train/run_config.h"
#include "train/run_start.h"
#include "train/run_steps.h"

static bool is_first(const fsdp_train_run *run)
{
    return fsdp_context_rank(run->context) == 0;
}

/* ---- holding ---- */

static void tell(fsdp_train_run *run)
{
    if (run->listener->holds)
        run->listener->holds(run->listener->arg, run->hold);
}

void fsdp__export_release(fsdp_train_run *run)
{
    fsdp_hub_hold *hold = run ? run->hold : NULL;
    bool held = fsdp_hold_error(true);

    if (hold) {
        /* First remove what the hold has on disk: until that is done a signal finds the hold here, and waits. */
        fsdp_hub_abandon(hold);
        run->hold = NULL;
        tell(run);
        fsdp__hub_hold_free(hold);
    }
    fsdp_release_error(held);
}

/* Says where a model is to go, and how; `path` is borrowed until the release. */
typedef struct place {
    const char *path;
    bool overwrite;
    bool rescue; /* a rescue: what counts is to save the weights */
} place;

/* Returns whether no tokenizer goes along: tokens are bytes, or it is an adapter, whose base has it. One that has
 * learned to talk has tokenizer and template in its folder, as peft's trainers put them there. */
static bool leaves_tokenizer(const fsdp_train_run *run)
{
    return fsdp__inputs_are_bytes(run->config) || (fsdp__train_exports_adapter(run->config) && !run->talks);
}

static fsdp_status hold_place(fsdp_train_run *run, const place *p)
{
    /* export.overwrite applies to export.path alone: for another folder setting it would not help. */
    const fsdp__hub_target target = {.folder = p->path,
                                     .source = run->config->model.path,
                                     .tokenizer = fsdp__text_tokenizer_folder(run),
                                     .talk = run->talks ? &run->talk : NULL,
                                     .no_tokenizer = leaves_tokenizer(run),
                                     .overwrite_hint =
                                         p->path == run->config->save.path ? "export.overwrite: true" : NULL,
                                     .overwrite = p->overwrite,
                                     .adapter = fsdp__train_exports_adapter(run->config),
                                     .rescue = p->rescue};
    fsdp_status status;

    FSDP__TRY_MADE(run->hold = fsdp__hub_hold_create(run->context, &target));
    tell(run); /* before anything is made */
    status = fsdp__hub_hold_begin(run->hold);
    if (status != FSDP_OK)
        fsdp__export_release(run);
    return status;
}

static size_t length_without_slashes(const char *path)
{
    size_t length = strlen(path);

    while (length > 1 && path[length - 1] == '/')
        length--;
    return length;
}

/* Returns whether the two are the same folder, or the same name of one that does not exist yet. */
static bool same_path(const char *a, const char *b)
{
    size_t length = length_without_slashes(a);

    return fsdp__same_folder(a, b) || (length == length_without_slashes(b) && strncmp(a, b, length) == 0);
}

fsdp_status fsdp__export_hold(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    const place first = {.path = c->save.path, .overwrite = c->save.overwrite};
    const place second = {.path = c->save.fallback_path};

    if (!c->save.path || !is_first(run))
        return FSDP_OK;
    if (c->save.fallback_path && same_path(c->save.fallback_path, c->save.path))
        return FSDP_FAIL(FSDP_INVALID,
                         "export.fallback_path: '%s' is export.path: name another folder, in case that one fails",
                         c->save.fallback_path);
    /* The fallback is needed when everything else has failed, so it is tried now, but not held. */
    if (c->save.fallback_path && hold_place(run, &second) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "export.fallback_path");
    fsdp__export_release(run);
    return fsdp_fail_prefix(hold_place(run, &first), "export.path");
}

/* Returns the limit for a file of weights. */
static uint64_t limit_bytes(const fsdp_train_run *run)
{
    return fsdp__train_exports_adapter(run->config) ? FSDP__HUB_ONE_FILE : (uint64_t)run->config->save.max_shard_size;
}

fsdp_status fsdp__export_check(fsdp_train_run *run)
{
    bool adapter = fsdp__train_exports_adapter(run->config);
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;
    fsdp_status status;

    if (!run->hold)
        return FSDP_OK;
    FSDP_TRY(adapter        ? fsdp__adapter_peft_state(run->adapter, NULL, &state)
             : run->adapter ? fsdp_adapter_base_state_dict(run->adapter, &state)
                            : fsdp_state_dict_from_module(run->model, &state));
    status = fsdp__hub_hold_check(run->hold, state, adapter ? NULL : &run->model_config,
                                  (fsdp_dtype)run->config->save.dtype, limit_bytes(run));
    return fsdp_fail_prefix(status, "export.path");
}

/* ---- writing ---- */

/* `config` is NULL for an adapter. [collective] */
static fsdp_status save_state(fsdp_train_run *run, const fsdp_state_dict *state, const fsdp_model_config *config)
{
    return fsdp__hub_save_held(run->hold, state, config, (fsdp_dtype)run->config->save.dtype, fsdp_world(run->context),
                               limit_bytes(run));
}

/* Writes the adapter alone, or the model with it in its weights. `trained` is the adapter's state. [collective] */
static fsdp_status save_adapted(fsdp_train_run *run, const fsdp_state_dict *trained)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL;
    FSDP__FREED char *config = NULL;

    FSDP_TRY(fsdp__train_agree(run, fsdp__train_export_state(run, trained, &state)));
    if (!fsdp__train_exports_adapter(run->config))
        return save_state(run, state, &run->model_config);
    FSDP_TRY(fsdp__train_agree(run, fsdp__train_adapter_config(run, &config)));
    fsdp__hub_hold_describe(run->hold, config);
    return save_state(run, state, NULL);
}

/* Writes into the held folder; a run that exports again takes hold of its path again. [collective] */
static fsdp_status save_to(fsdp_train_run *run, const fsdp_state_dict *state, const place *p)
{
    fsdp_status status = FSDP_OK;

    if (is_first(run) && !run->hold)
        status = hold_place(run, p);
    status = fsdp__train_agree(run, status);
    if (status == FSDP_OK)
        status = run->adapter ? save_adapted(run, state) : save_state(run, state, &run->model_config);
    fsdp__export_release(run);
    return status;
}

/* Returns an unused name beside the metrics; fsdp__free it. */
static char *unused_name(const fsdp_train_config *c)
{
    const char *path = c->save.path, *slash = c->metrics.jsonl ? strrchr(c->metrics.jsonl, '/') : NULL;
    int folder_length = slash ? (int)(slash - c->metrics.jsonl + 1) : 0;
    size_t end = length_without_slashes(path), begin;
    struct stat info;

    for (begin = end; begin > 0 && path[begin - 1] != '/';)
        begin--;
    for (int i = 1; i < 1000; i++) {
        char *name = fsdp__sprintf("%.*s%.*s-recovered", folder_length, c->metrics.jsonl ? c->metrics.jsonl : "",
                                   (int)(end - begin), path + begin);
        char *numbered = name && i > 1 ? fsdp__sprintf("%s-%d", name, i) : NULL;

        if (i > 1) {
            fsdp__free(name);
            name = numbered;
        }
        if (!name || lstat(name, &info) != 0)
            return name;
        fsdp__free(name);
    }
    FSDP_FAIL(FSDP_IO, "there are a thousand recovered models already");
    return NULL;
}

/* Returns whether another folder may work where this one failed: all ranks must still be there. A failure of this rank
 * alone has broken the world, too, perhaps after the model was in its place. [collective] */
static bool may_be_rescued(fsdp_train_run *run, fsdp_status status)
{
    bool held, there;

    if (status == FSDP_COMM || status == FSDP_MISMATCH || status == FSDP_INTERRUPTED)
        return false;
    held = fsdp_hold_error(true);
    there = fsdp__train_agree(run, FSDP_OK) == FSDP_OK;
    fsdp_release_error(held);
    return there;
}

static fsdp_status fail_rescued(fsdp_status failure, const char *first, const char *path)
{
    return FSDP_FAIL(failure, "export.path: %s; the model was written to '%s' instead", first, path);
}

/* Tells all ranks where the model was rescued, since only rank 0 knows the path. [collective] */
static fsdp_status tell_rescued(fsdp_train_run *run, fsdp_status failure, const char *first, const char *path)
{
    fsdp_status mine = is_first(run) ? fail_rescued(failure, first, path) : FSDP_OK;
    fsdp_status status = fsdp__train_agree(run, mine);

    /* rank 0 reports the rescue, whatever has become of the others */
    return is_first(run) ? fail_rescued(failure, first, path) : status;
}

/* Writes into export.fallback_path, and if that is not set or fails, too, into a folder with an unused name; *out_path
 * is set on rank 0, fsdp__free it. [collective] */
static fsdp_status save_elsewhere(fsdp_train_run *run, const fsdp_state_dict *state, char **out_path)
{
    const fsdp_train_config *c = run->config;
    place p = {.path = c->save.fallback_path, .rescue = true};
    fsdp_status status = FSDP_NOT_FOUND;

    if (p.path)
        status = save_to(run, state, &p);
    if (p.path && (status == FSDP_OK || !may_be_rescued(run, status))) {
        *out_path = fsdp__strdup(p.path);
        return status;
    }
    *out_path = is_first(run) ? unused_name(c) : NULL;
    FSDP_TRY(fsdp__train_agree(run, is_first(run) && !*out_path ? fsdp_last_status() : FSDP_OK));
    p.path = *out_path ? *out_path : "";
    return save_to(run, state, &p);
}

/* Rescues the model: days of training must not be lost because of a full disk. `failure` is the failure of the export.
 * [collective] */
static fsdp_status rescue(fsdp_train_run *run, const fsdp_state_dict *state, fsdp_status failure)
{
    char first[1024];
    FSDP__FREED char *path = NULL;

    snprintf(first, sizeof first, "%s", fsdp_last_error());
    if (save_elsewhere(run, state, &path) == FSDP_OK)
        return tell_rescued(run, failure, first, path ? path : "");
    return FSDP_FAIL(failure, "export.path: %s; the model could not be written elsewhere either and is lost: %s", first,
                     fsdp_last_error());
}

static fsdp_status write(fsdp_train_run *run, const fsdp_state_dict *state)
{
    const fsdp_train_config *c = run->config;
    fsdp_status status = save_to(run, state, &(place){.path = c->save.path, .overwrite = c->save.overwrite});

    return status != FSDP_OK && may_be_rescued(run, status) ? rescue(run, state, status) : status;
}

/* Exports the last weights when the best ones could not be had: they are better than none, if they are finite, or
 * training.on_nan is continue. [collective] */
static fsdp_status write_last(fsdp_train_run *run, const fsdp_state_dict *state, fsdp_status failure)
{
    char first[1024], name[FSDP__FINITE_NAME];
    fsdp_status status;

    if (!may_be_rescued(run, failure))
        return failure;
    snprintf(first, sizeof first, "%s", fsdp_last_error());
    if (run->config->training.on_nan != FSDP_TRAIN_CONTINUE) {
        status = fsdp__find_not_finite(run, name);
        if (status != FSDP_OK)
            return FSDP_FAIL(failure, "%s; nothing is exported, because the last weights could not be checked: %s",
                             first, fsdp_last_error());
        if (*name)
            return FSDP_FAIL(failure, "%s; nothing is exported, because the last weights are not finite", first);
    }
    FSDP_TRY(
        fsdp_fail_prefix(write(run, state), "%s; the weights of the last step were to be exported instead", first));
    return FSDP_FAIL(failure, "%s; the weights of step %lld, the last, were exported instead", first,
                     (long long)run->step);
}

fsdp_status fsdp_train_export(fsdp_train_run *run)
{
    const fsdp_state_dict *best = NULL;
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *state = NULL, *average = NULL;
    fsdp_status found = FSDP_OK;

    if (!run)
        return FSDP__FAIL_NULL("cannot export: there is no run");
    FSDP_TRY(fsdp__ahead_settle(run, 0, NULL));
    if (!run->config->save.path)
        return FSDP_OK;
    /* A state consists of shards: gathered parameters would be refused. */
    FSDP_TRY(fsdp__train_agree(run, fsdp_module_reshard_all(run->model)));
    FSDP_TRY(fsdp__train_agree(run, fsdp__train_state(run, &state)));
    if (run->config->save.which == FSDP_TRAIN_EMA) {
        FSDP_TRY(fsdp__train_agree(run, fsdp__state_dict_with(state, run->ema.average, &average)));
        return write(run, average);
    }
    if (fsdp__best_is_earlier(run))
        found = fsdp__train_agree(run, fsdp__best_state(run, state, &best));
    return found == FSDP_OK ? write(run, best ? best : state) : write_last(run, state, found);
}
