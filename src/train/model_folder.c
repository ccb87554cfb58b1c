/* model_folder.c - decides which of the two kinds a folder is, and opens its weights. */
#include "train/model_folder.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "adapter/adapter.h"
#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/manifest.h"
#include "format/safetensors.h"
#include "hub/hub.h"
#include "hub/mismatch.h"
#include "train/adapter_on_disk.h"
#include "train/checkpoint_values.h"

/* Finds out whether the folder has the file. A dangling link counts: whoever reads it reports that. */
static fsdp_status has_file(const char *folder, const char *name, bool *out)
{
    FSDP__FREED char *path = fsdp__path_join(folder, name);
    struct stat info;

    if (!path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot look into '%s'", folder);
    *out = lstat(path, &info) == 0;
    return FSDP_OK;
}

/* Checks that there is a manifest, which a checkpoint gets last: the files of its ranks alone are not a checkpoint. */
static fsdp_status check_manifest(const char *path)
{
    DIR *directory = opendir(path);
    const struct dirent *entry;
    bool ranks = false;

    while (directory && !ranks && (entry = readdir(directory)) != NULL)
        ranks = strncmp(entry->d_name, "rank-", 5) == 0 && fsdp__ends_with(entry->d_name, ".safetensors");
    if (directory)
        closedir(directory);
    if (!ranks)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_FORMAT,
                     "'%s' is not a whole checkpoint: it has files of ranks, but no " FSDP__MANIFEST_NAME
                     ", which says what is in them: its save did not end, or the file was removed",
                     path);
}

/* Finds the newest checkpoint of a folder of checkpoints, if it is one. */
static fsdp_status find_newest(const char *path, fsdp__model_folder *out)
{
    int64_t *steps = NULL, count = 0;

    FSDP_TRY(fsdp_checkpoint_list(path, &steps, &count));
    fsdp__free(steps);
    if (count == 0)
        return FSDP_OK;
    out->is_checkpoint = true;
    return fsdp_checkpoint_find(path, -1, &out->path);
}

fsdp_status fsdp__model_folder_find(const char *path, fsdp__model_folder *out)
{
    struct stat info;

    memset(out, 0, sizeof *out);
    if (!fsdp__path_exists(path) && fsdp__is_step_best(path)) {
        out->is_checkpoint = true;
        FSDP_TRY(fsdp__checkpoint_resolve(path, &out->path));
        return has_file(out->path, FSDP__ADAPTER_CONFIG, &out->is_adapter);
    }
    if (!fsdp__path_exists(path))
        return fsdp__hub_fail_missing(path);
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
        return FSDP_FAIL(FSDP_INVALID, "'%s' is %s: a model folder or a checkpoint is expected%s", path,
                         S_ISREG(info.st_mode) ? "a file" : "not a folder",
                         fsdp__weights_hint(path, FSDP__ROOM(FSDP__HINT_TEXT)));
    FSDP_TRY(has_file(path, FSDP__MANIFEST_NAME, &out->is_checkpoint));
    if (!out->is_checkpoint)
        FSDP_TRY(check_manifest(path));
    FSDP_TRY(has_file(path, "config.json", &out->has_config));
    if (!out->is_checkpoint && !out->has_config)
        FSDP_TRY(find_newest(path, out));
    if (!out->path)
        out->path = fsdp__strdup(path);
    if (!out->path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot look into '%s'", path);
    return out->is_checkpoint ? has_file(out->path, FSDP__ADAPTER_CONFIG, &out->is_adapter) : FSDP_OK;
}

void fsdp__model_folder_release(fsdp__model_folder *folder)
{
    fsdp__free(fsdp__take(&folder->path));
}

/* ---- weights ---- */

static fsdp_status open_model(const char *path, fsdp_checkpoint_reader **out)
{
    FSDP_TRY(fsdp_checkpoint_open(path, out));
    if (fsdp_checkpoint_has_section(*out, FSDP__SECTION_MODEL))
        return FSDP_OK;
    fsdp_checkpoint_close(*out);
    return FSDP_FAIL(FSDP_FORMAT, "'%s' has no section '" FSDP__SECTION_MODEL "', so no weights of a model", path);
}

static bool is_of_model(const fsdp_checkpoint_tensor *tensor)
{
    return strcmp(tensor->section, FSDP__SECTION_MODEL) == 0;
}

bool fsdp__checkpoint_has_adapter(const fsdp_checkpoint_reader *reader)
{
    for (int64_t i = 0; i < fsdp_checkpoint_count(reader); i++) {
        const fsdp_checkpoint_tensor *t = fsdp_checkpoint_at(reader, i);

        if (is_of_model(t) && fsdp__adapter_is_low_rank(t->name))
            return true;
    }
    return false;
}

/* Compares both ways: the section must have the parameters, and nothing else. */
static void compare(const fsdp_checkpoint_reader *reader, const fsdp_state_dict *parameters, fsdp__mismatch *m)
{
    for (int64_t i = 0; i < parameters->count; i++) {
        const fsdp_state_dict_entry *entry = &parameters->entries[i];
        const fsdp_checkpoint_tensor *t = fsdp_checkpoint_tensor_find(reader, FSDP__SECTION_MODEL, entry->name);

        if (t)
            (void)fsdp__mismatch_fits(m, entry, t->name, t->ndim, t->shape);
        else
            fsdp__mismatch_missing(m, entry->name);
    }
    for (int64_t i = 0; i < fsdp_checkpoint_count(reader); i++) {
        const fsdp_checkpoint_tensor *t = fsdp_checkpoint_at(reader, i);

        if (is_of_model(t) && !fsdp_state_dict_find(parameters, t->name))
            fsdp__mismatch_unexpected(m, t->name, m->place);
    }
}

static fsdp_status check_section(const fsdp_checkpoint_reader *reader, fsdp_context *context,
                                 const fsdp_model_config *config, bool by_keys)
{
    fsdp__mismatch m = {
        .place = fsdp_checkpoint_path(reader), .config = config, .by_keys = by_keys, .checkpoint = true};
    fsdp_state_dict *parameters;

    if (fsdp__checkpoint_has_adapter(reader))
        return fsdp__adapter_on_disk_refuse(fsdp_checkpoint_path(reader));
    for (int64_t i = 0; i < fsdp_checkpoint_count(reader); i++)
        if (is_of_model(fsdp_checkpoint_at(reader, i)))
            fsdp__mismatch_see(&m, fsdp_checkpoint_at(reader, i)->name);
    FSDP_TRY(fsdp__mismatch_outline(&m, context, &parameters));
    compare(reader, parameters, &m);
    fsdp_state_dict_free(parameters);
    return fsdp__mismatch_status(&m, false);
}

fsdp_status fsdp__model_folder_check(const fsdp__model_folder *folder, fsdp_context *context,
                                     const fsdp_model_config *config, bool by_keys)
{
    FSDP__SCOPED(fsdp_checkpoint_close_at) fsdp_checkpoint_reader *reader = NULL;

    if (!folder->is_checkpoint)
        return fsdp__hub_check(context, folder->path, config, by_keys);
    FSDP_TRY(open_model(folder->path, &reader));
    return check_section(reader, context, config, by_keys);
}

fsdp_status fsdp__model_folder_load(const fsdp__model_folder *folder, fsdp_state_dict *state,
                                    const fsdp_model_config *config)
{
    FSDP__SCOPED(fsdp_checkpoint_close_at) fsdp_checkpoint_reader *reader = NULL;

    if (!folder->is_checkpoint)
        return fsdp_hub_load(folder->path, state, config);
    FSDP_TRY(open_model(folder->path, &reader));
    return fsdp_checkpoint_load(reader, FSDP__SECTION_MODEL, state, NULL);
}
