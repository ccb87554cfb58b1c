/* inputs.c - the files that a run reads. */
#include "train/inputs.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/text.h"
#include "data/files.h"
#include "hub/held_folder.h"
#include "train/model_folder.h"

/* ---- text ---- */

bool fsdp__inputs_are_bytes(const fsdp_train_config *config)
{
    return config->data.tokenizer && strcmp(config->data.tokenizer, "bytes") == 0;
}

const char *fsdp__inputs_named_tokenizer(const fsdp_train_config *config)
{
    const char *named = config->data.tokenizer;

    if (fsdp__inputs_are_bytes(config))
        return NULL;
    return named && strcmp(named, "model") == 0 ? config->model.path : named;
}

/* Finds the tokenizer of the checkpoint or folder that the first weights come from, if it has one. That the folder does
 * not exist is reported where the weights are looked for. */
static fsdp_status find_initial_tokenizer(const char *path, char **out)
{
    fsdp__model_folder folder = {0};
    bool held = fsdp_hold_error(true);
    fsdp_status status = fsdp__model_folder_find(path, &folder);

    if (status == FSDP_OK && fsdp__hub_has_tokenizer(folder.path)) {
        *out = fsdp__strdup(folder.path);
        status = *out ? FSDP_OK : FSDP_NO_MEMORY;
    }
    fsdp__model_folder_release(&folder);
    fsdp_release_error(held);
    return status == FSDP_NO_MEMORY ? FSDP_FAIL(status, "cannot look for a tokenizer in '%s'", path) : FSDP_OK;
}

fsdp_status fsdp__inputs_tokenizer(const fsdp_train_config *config, char **out)
{
    const char *found = fsdp__inputs_named_tokenizer(config), *initial = config->checkpoint.initial_load_path;

    *out = NULL;
    if (!found && !config->data.tokenizer && config->model.path && fsdp__hub_has_tokenizer(config->model.path))
        found = config->model.path;
    if (!found)
        return config->data.tokenizer || !initial ? FSDP_OK : find_initial_tokenizer(initial, out);
    *out = fsdp__strdup(found);
    return *out ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_token_format fsdp__inputs_token_format(const fsdp_train_config *config)
{
    if (config->data.format == FSDP_TRAIN_TEXT || fsdp__inputs_are_bytes(config))
        return FSDP_TOKENS_TEXT;
    if (config->data.token_bytes > 0) /* whatever the names say; a header that contradicts it is an error */
        return config->data.token_bytes == 4 ? FSDP_TOKENS_UINT32 : FSDP_TOKENS_UINT16;
    return config->data.format == FSDP_TRAIN_TOKENS ? FSDP_TOKENS_BINARY : FSDP_TOKENS_AUTO;
}

/* ---- which file is which: device and inode tell, so links are seen through ---- */

static bool is_file(const struct stat *info, const char *path)
{
    struct stat other;

    return path && stat(path, &other) == 0 && fsdp__same_file(info, &other);
}

/* Returns whether a file belongs to a model: config, index, tokenizer and weights. Other files that people keep there
 * are their own. */
static bool is_model_name(const char *name)
{
    static const char *const endings[] = {".json", ".safetensors", ".model", ".txt"};

    for (size_t i = 0; i < FSDP__COUNT_OF(endings); i++)
        if (fsdp__ends_with(name, endings[i]))
            return true;
    return false;
}

static bool is_of_model(const struct stat *info, const char *folder)
{
    DIR *directory = folder ? opendir(folder) : NULL;
    struct dirent *entry;
    struct stat other;
    bool found = false;

    while (directory && !found && (entry = readdir(directory)))
        found = is_model_name(entry->d_name) && fstatat(dirfd(directory), entry->d_name, &other, 0) == 0 &&
                fsdp__same_file(info, &other);
    if (directory)
        closedir(directory);
    return found;
}

/* Finds out whether a file is among those of data.path or validation.path. */
static fsdp_status find_in_data(const struct stat *info, const fsdp_train_config *config, char *const *paths,
                                int64_t count, bool *found)
{
    bool held = fsdp_hold_error(true);
    FSDP__SCOPED(fsdp__data_files_release) fsdp__data_files files = {0};
    int format =
        fsdp__inputs_named_tokenizer(config) ? (int)FSDP__LIST_DOCUMENTS : (int)fsdp__inputs_token_format(config);
    fsdp_status status;

    if (format == FSDP_TOKENS_AUTO) /* a tokenizer may be found for text */
        format = FSDP__LIST_ANY;
    status = fsdp__data_files_list((const char *const *)paths, count, format, &files);

    fsdp_release_error(held);
    if (status == FSDP_NO_MEMORY)
        return FSDP_FAIL(status, "cannot list the data");
    /* What cannot be listed for other reasons is refused where the data is opened; the list is empty then. */
    for (int64_t i = 0; i < files.count && !*found; i++)
        *found = is_file(info, files.paths[i]);
    return FSDP_OK;
}

/* Returns what a folder is of those that the run reads or writes as a whole; NULL: nothing. */
static const char *folder_of(const struct stat *info, const fsdp_train_config *config)
{
    const char *what = is_file(info, config->model.path)          ? "the model"
                       : is_file(info, config->checkpoint.folder) ? "the checkpoints"
                       : is_file(info, config->save.path)         ? "the export"
                                                                  : NULL;

    for (int64_t i = 0; i < config->data.path_count && !what; i++)
        what = is_file(info, config->data.paths[i]) ? "the data" : NULL;
    for (int64_t i = 0; i < config->data.mixture_count && !what; i++)
        what = is_file(info, config->data.mixture[i].path) ? "the data" : NULL;
    for (int64_t i = 0; i < config->validation.path_count && !what; i++)
        what = is_file(info, config->validation.paths[i]) ? "the data" : NULL;
    return what;
}

fsdp_status fsdp__inputs_spare(const fsdp_train_config *config, const char *key, const char *path)
{
    const char *what = NULL;
    bool in_data = false;
    struct stat info;

    if (!path || stat(path, &info) != 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)))
        return FSDP_OK;
    if (S_ISDIR(info.st_mode)) {
        what = folder_of(&info, config);
        if (!what)
            return FSDP_OK;
        return FSDP_FAIL(FSDP_INVALID, "%s: '%s' is the folder of %s: name another", key, path, what);
    }
    if (is_file(&info, config->loaded_from))
        what = "config";
    else if (is_of_model(&info, config->model.path))
        what = "model";
    else
        FSDP_TRY(find_in_data(&info, config, config->data.paths, config->data.path_count, &in_data));
    for (int64_t i = 0; i < config->data.mixture_count && !what && !in_data; i++)
        FSDP_TRY(find_in_data(&info, config, &config->data.mixture[i].path, 1, &in_data));
    if (!what && !in_data && config->validation.path_count > 0)
        FSDP_TRY(find_in_data(&info, config, config->validation.paths, config->validation.path_count, &in_data));
    if (in_data)
        what = "data";
    if (!what)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "%s: '%s' is a file of the %s, which the run reads: name another file", key, path,
                     what);
}
