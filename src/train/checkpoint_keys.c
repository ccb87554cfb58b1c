/* checkpoint_keys.c - what the keys of section checkpoint ask for, and what they exclude. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/folder.h"
#include "format/target_folder.h"
#include "train/run_config.h"

bool fsdp__train_saves(const fsdp_train_config *config)
{
    return config->checkpoint.folder && config->checkpoint.enable != 0;
}

bool fsdp__train_loads(const fsdp_train_config *config, const char *part)
{
    for (int64_t i = 0; i < config->checkpoint.exclude_count; i++)
        if (strcmp(config->checkpoint.exclude_from_loading[i], part) == 0)
            return false;
    return true;
}

static fsdp_status check_parts(const fsdp_train_config *config)
{
    static const char *const parts[] = {FSDP__TRAIN_OPTIMIZER, FSDP__TRAIN_LR_SCHEDULER, FSDP__TRAIN_DATALOADER};

    for (int64_t i = 0; i < config->checkpoint.exclude_count; i++) {
        bool known = false;

        for (size_t p = 0; p < FSDP__COUNT_OF(parts); p++)
            known = known || strcmp(config->checkpoint.exclude_from_loading[i], parts[p]) == 0;
        if (!known)
            return FSDP_FAIL(
                FSDP_INVALID,
                "checkpoint.exclude_from_loading has '%s': expected optimizer, lr_scheduler or dataloader (to start at "
                "step 0 with other weights, set checkpoint.initial_load_path and another folder)",
                config->checkpoint.exclude_from_loading[i]);
    }
    return FSDP_OK;
}

static const char *bare(const char *path, size_t *length)
{
    while (strncmp(path, "./", 2) == 0)
        path += 2;
    *length = strlen(path);
    while (*length > 1 && path[*length - 1] == '/')
        (*length)--;
    return path;
}

/* Returns whether two names of what may not exist yet are the same. */
static bool same_name(const char *a, const char *b)
{
    size_t a_length, b_length;

    a = bare(a, &a_length);
    b = bare(b, &b_length);
    return a_length == b_length && strncmp(a, b, a_length) == 0;
}

/* Replaces `*path` by the folder that it lies in, and frees the old path. */
static fsdp_status climb(char **path)
{
    char *parent = fsdp__path_parent(*path);

    fsdp__free(*path);
    *path = parent;
    return parent ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status lies_in(const char *path, const char *folder, bool *out)
{
    FSDP__FREED char *at = fsdp__strdup(path);
    char real[PATH_MAX];

    *out = same_name(path, folder);
    FSDP__TRY_NEW(at);
    while (!*out && !fsdp__path_exists(at) && strcmp(at, ".") != 0) {
        FSDP_TRY(climb(&at));
        *out = same_name(at, folder);
    }
    if (!*out && realpath(at, real)) { /* links above what exists cannot mislead */
        fsdp__free(at);
        FSDP__TRY_NEW(at = fsdp__strdup(real));
        for (;;) {
            *out = fsdp__same_folder(at, folder);
            if (*out || strcmp(at, "/") == 0)
                break;
            FSDP_TRY(climb(&at));
        }
    }
    return FSDP_OK;
}

static fsdp_status check_place(const fsdp_train_config *config, const char *key, const char *folder)
{
    bool inside;

    if (!folder)
        return FSDP_OK;
    FSDP_TRY(lies_in(config->checkpoint.folder, folder, &inside));
    if (!inside)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID,
                     "checkpoint.folder: '%s' is %s, or lies in it: give checkpoints a folder of their own",
                     config->checkpoint.folder, key);
}

/* Returns whether a path has the name of a checkpoint, or the name it has while it is being made or removed. */
static bool is_step(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strchr(name, '.');
    int64_t step;

    return fsdp__step_name(name, dot ? dot : "", &step) || strcmp(name, FSDP__STEP_BEST) == 0;
}

/* Finds out whether a path is, or lies in, what may be a checkpoint of the folder. */
static fsdp_status lies_in_step(const char *path, const char *folder, bool *out)
{
    size_t length;
    char *at;

    path = bare(path, &length);
    at = fsdp__sprintf("%.*s", (int)length, path);
    for (*out = false; at && !*out;) {
        bool step = is_step(at);
        size_t before = strlen(at);

        FSDP_TRY(climb(&at));
        *out = step && (same_name(at, folder) || fsdp__same_folder(at, folder));
        if (strlen(at) >= before || strcmp(at, ".") == 0)
            break;
    }
    fsdp__free(at);
    return at ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status check_export(const fsdp_train_config *config, const char *key, const char *path)
{
    bool inside;

    FSDP_TRY(check_place(config, key, path));
    if (!path)
        return FSDP_OK;
    FSDP_TRY(lies_in_step(path, config->checkpoint.folder, &inside));
    if (!inside)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "%s: '%s' is named like a checkpoint, in checkpoint.folder: name another folder",
                     key, path);
}

fsdp_status fsdp__train_check_checkpoint(const fsdp_train_config *config)
{
    FSDP_TRY(check_parts(config));
    if (config->checkpoint.initial_load_path && config->model.pretrained == 1)
        return FSDP_FAIL(FSDP_INVALID, "checkpoint.initial_load_path and model.init pretrained exclude each other: the "
                                       "first weights come from one of them");
    if (!fsdp__train_saves(config))
        return FSDP_OK;
    FSDP_TRY(check_place(config, "model.path", config->model.path));
    FSDP_TRY(check_export(config, "export.path", config->save.path));
    return check_export(config, "export.fallback_path", config->save.fallback_path);
}
