/* export.c - the model that a run leaves: its folder is held from the start, and written at the end. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "hub/hub.h"
#include "train/run.h"

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
        /* First what it has on disk: until that is done a signal finds the hold here, and waits. */
        fsdp_hub_abandon(hold);
        run->hold = NULL;
        tell(run);
        fsdp__hub_hold_free(hold);
    }
    fsdp_release_error(held);
}

/* `path` is borrowed until the release. */
static fsdp_status hold_path(fsdp_train_run *run, const char *path, bool overwrite, bool rescue)
{
    const fsdp__hub_target target = {.folder = path,
                                     .source = run->config->model.path,
                                     .overwrite_hint = "export.overwrite: true",
                                     .overwrite = overwrite,
                                     .rescue = rescue};
    fsdp_status status;

    run->hold = fsdp__hub_hold_create(run->context, &target);
    if (!run->hold)
        return fsdp_last_status();
    tell(run); /* before anything is made */
    status = fsdp__hub_hold_begin(run->hold);
    if (status != FSDP_OK)
        fsdp__export_release(run);
    return status;
}

fsdp_status fsdp__export_hold(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;

    if (!c->save.path || !is_first(run))
        return FSDP_OK;
    /* It is needed when everything else has failed: tried, but not kept. */
    if (c->save.fallback_path && hold_path(run, c->save.fallback_path, false, false) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "export.fallback_path");
    fsdp__export_release(run);
    return hold_path(run, c->save.path, c->save.overwrite, false) == FSDP_OK
               ? FSDP_OK
               : fsdp_fail_prefix(fsdp_last_status(), "export.path");
}

fsdp_status fsdp__export_check(fsdp_train_run *run)
{
    fsdp_state_dict *state = NULL;
    fsdp_status status;

    if (!run->hold)
        return FSDP_OK;
    FSDP_TRY(fsdp_state_dict_from_module(run->model, &state));
    status = fsdp__hub_hold_check(run->hold, state, &run->model_config, (fsdp_dtype)run->config->save.dtype);
    fsdp_state_dict_free(state);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_prefix(status, "export.path");
}

/* ---- writing ---- */

/* Into what is held; a run that exports again holds its path again. [collective] */
static fsdp_status save_to(fsdp_train_run *run, const fsdp_state_dict *state, const char *path, bool overwrite,
                           bool rescue)
{
    fsdp_status status = FSDP_OK;

    if (is_first(run) && !run->hold)
        status = hold_path(run, path, overwrite, rescue);
    status = fsdp__train_agree(run, status);
    if (status == FSDP_OK)
        status = fsdp__hub_save_held(run->hold, state, &run->model_config, (fsdp_dtype)run->config->save.dtype,
                                     fsdp_world(run->context), FSDP__FILE_LIMIT_BYTES);
    fsdp__export_release(run);
    return status;
}

/* A name beside the metrics that nothing has; fsdp__free it. */
static char *unused_name(const fsdp_train_config *c)
{
    const char *path = c->save.path, *slash = c->metrics.jsonl ? strrchr(c->metrics.jsonl, '/') : NULL;
    int folder_length = slash ? (int)(slash - c->metrics.jsonl + 1) : 0;
    size_t end = strlen(path), begin;
    struct stat info;

    while (end > 1 && path[end - 1] == '/')
        end--;
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

/* Whether another folder may work where this one did not: the ranks are all there. */
static bool may_be_rescued(fsdp_status status)
{
    return status != FSDP_COMM && status != FSDP_MISMATCH && status != FSDP_INTERRUPTED;
}

/* [collective] */
static fsdp_status save_elsewhere(fsdp_train_run *run, const fsdp_state_dict *state, const char *path)
{
    FSDP_TRY(fsdp__train_agree(run, is_first(run) && !path ? fsdp_last_status() : FSDP_OK));
    return save_to(run, state, path ? path : "", false, true);
}

/* Days of training are not lost for a full disk. `failure` is what the export failed with. [collective] */
static fsdp_status rescue(fsdp_train_run *run, const fsdp_state_dict *state, fsdp_status failure)
{
    const fsdp_train_config *c = run->config;
    char first[1024], *path = c->save.fallback_path ? fsdp__strdup(c->save.fallback_path) : NULL;
    fsdp_status status = FSDP_NOT_FOUND;

    snprintf(first, sizeof first, "%s", fsdp_last_error());
    if (c->save.fallback_path)
        status = save_elsewhere(run, state, path);
    if (status != FSDP_OK && may_be_rescued(status)) {
        fsdp__free(path);
        path = is_first(run) ? unused_name(c) : NULL;
        status = save_elsewhere(run, state, path);
    }
    if (status == FSDP_OK)
        FSDP_FAIL(failure, "export.path: %s; the model was written to '%s' instead", first, path ? path : "");
    else
        FSDP_FAIL(failure, "export.path: %s; the model could not be written elsewhere either and is lost: %s", first,
                  fsdp_last_error());
    fsdp__free(path);
    return failure;
}

fsdp_status fsdp_train_export(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    fsdp_state_dict *state = NULL;
    fsdp_status status;

    if (!c->save.path)
        return FSDP_OK;
    /* A state is of shards: what somebody has gathered would be refused. */
    FSDP_TRY(fsdp__train_agree(run, fsdp_module_reshard_all(run->model)));
    FSDP_TRY(fsdp__train_agree(run, fsdp_state_dict_from_module(run->model, &state)));
    status = save_to(run, state, c->save.path, c->save.overwrite, false);
    if (status != FSDP_OK && may_be_rescued(status))
        status = rescue(run, state, status);
    fsdp_state_dict_free(state);
    return status;
}
