/* safetensors.c - one file, or all files of an index, mapped and checked. */
#include "format/safetensors.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sort.h"
#include "base/text.h"
#include "format/journal.h"

#define INDEX_NAME "model.safetensors.index.json"
#define INDEX_LIMIT_BYTES ((size_t)100 << 20)

typedef struct mapped_file {
    char *path;
    fsdp__mapping mapping;
} mapped_file;

struct fsdp_safetensors {
    mapped_file *files;
    int64_t file_count, file_capacity;
    fsdp__tensor_list tensors; /* by name */
};

/* Adds a file. `path` is taken over, also on failure. */
static fsdp_status add_file(fsdp_safetensors *all, char *path)
{
    FSDP__FREED char *own = path;
    mapped_file *file;

    if (!path || fsdp__grow(&all->files, all->file_count, &all->file_capacity, sizeof *all->files) != FSDP_OK)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open a safetensors file");
    file = &all->files[all->file_count++];
    *file = (mapped_file){.path = fsdp__take(&own)};
    FSDP_TRY(fsdp__file_map(path, &file->mapping));
    return fsdp__safetensors_parse(path, file->mapping.data, file->mapping.bytes, &all->tensors);
}

/* ---- an index and its files ---- */

/* Adds the file of index->entries[*at] with all its entries; moves *at behind them. */
static fsdp_status add_listed_file(fsdp_safetensors *all, const char *index_path, const char *directory,
                                   const fsdp__index *index, int64_t *at)
{
    const fsdp__index_entry *listed = &index->entries[*at];
    fsdp_safetensors_entry *held;
    int64_t first = all->tensors.count, count = fsdp__index_run(index, *at);
    char *path;

    *at += count;
    FSDP_TRY(fsdp__index_file(index_path, directory, listed, count, &path));
    FSDP_TRY(add_file(all, path));
    held = all->tensors.count > first ? all->tensors.entries + first : NULL;
    return fsdp__index_compare(index_path, all->files[all->file_count - 1].path, listed, count,
                               held ? &held->name : NULL, held ? &held->unlisted : NULL, sizeof *held,
                               all->tensors.count - first);
}

/* Returns the directory part of a path; fsdp__free it. */
static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? fsdp__sprintf("%.*s", (int)(slash - path + 1), path) : fsdp__strdup("");
}

static fsdp_status open_index(fsdp_safetensors *all, const char *path)
{
    FSDP__SCOPED(fsdp__index_release) fsdp__index index = {0};
    FSDP__FREED char *text = NULL, *directory = NULL;
    size_t bytes = 0;

    FSDP_TRY(fsdp__file_read(path, INDEX_LIMIT_BYTES, &text, &bytes));
    FSDP_TRY(fsdp__index_parse(path, text, bytes, &index));
    directory = directory_of(path);
    if (!directory)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", path);
    FSDP_TRY(fsdp__journal_check(*directory ? directory : "."));
    for (int64_t at = 0; at < index.count;)
        FSDP_TRY(add_listed_file(all, path, directory, &index, &at));
    return FSDP_OK;
}

/* ---- folders ---- */

static fsdp_status no_safetensors(const char *folder)
{
    DIR *directory = opendir(folder);
    struct dirent *entry;
    bool pickled = false;

    while (directory && (entry = readdir(directory)))
        pickled |= fsdp__behind(entry->d_name, "pytorch_model") &&
                   (fsdp__ends_with(entry->d_name, ".bin") || fsdp__ends_with(entry->d_name, ".bin.index.json"));
    if (directory)
        closedir(directory);
    if (pickled)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "'%s' has only pytorch_model.bin files: convert it to safetensors", folder);
    return FSDP_FAIL(FSDP_NOT_FOUND, "'%s' has neither model.safetensors nor " INDEX_NAME "%s", folder,
                     fsdp__weights_hint(folder, FSDP__ROOM(FSDP__HINT_TEXT)));
}

static fsdp_status open_folder(fsdp_safetensors *all, const char *folder)
{
    FSDP__FREED char *single = fsdp__path_join(folder, "model.safetensors");
    FSDP__FREED char *index = single ? fsdp__path_join(folder, INDEX_NAME) : NULL;

    FSDP_TRY(fsdp__journal_check(folder));
    if (!index)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open '%s'", folder);
    if (fsdp__path_exists(single))
        return add_file(all, fsdp__take(&single));
    return fsdp__path_exists(index) ? open_index(all, index) : no_safetensors(folder);
}

/* ---- public ---- */

static fsdp_status open_any(fsdp_safetensors *all, const char *path)
{
    struct stat info;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return open_folder(all, path);
    if (fsdp__ends_with(path, ".json"))
        return open_index(all, path);
    return add_file(all, fsdp__strdup(path));
}

static fsdp_status sort(fsdp__tensor_list *list)
{
    if (list->count < 2)
        return FSDP_OK;
    qsort(list->entries, (size_t)list->count, sizeof *list->entries, fsdp__by_name);
    return fsdp__index_check_names(&list->entries->name, &list->entries->file, sizeof *list->entries, list->count);
}

fsdp_status fsdp_safetensors_open(const char *path, fsdp_safetensors **out)
{
    FSDP__SCOPED(fsdp_safetensors_close_at) fsdp_safetensors *all = NULL;

    if (!path || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot open safetensors: path and out are required");
    *out = NULL;
    all = fsdp__calloc(1, sizeof *all);
    if (!all)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot open '%s'", path);
    FSDP_TRY(open_any(all, path));
    FSDP_TRY(sort(&all->tensors));
    *out = fsdp__take(&all);
    return FSDP_OK;
}

void fsdp_safetensors_close(fsdp_safetensors *file)
{
    if (!file)
        return;
    fsdp__tensor_list_release(&file->tensors);
    for (int64_t i = 0; i < file->file_count; i++) {
        fsdp__file_unmap(&file->files[i].mapping);
        fsdp__free(file->files[i].path);
    }
    FSDP__FREE_ALL(file->files, file);
}

static const fsdp__mapping *mapping_of(const fsdp_safetensors *all, const char *file)
{
    int64_t at = 0;

    while (all->files[at].path != file)
        at++;
    return &all->files[at].mapping;
}

uint64_t fsdp__safetensors_offset(const fsdp_safetensors *all, const fsdp_safetensors_entry *entry)
{
    return (uint64_t)((const unsigned char *)entry->data - mapping_of(all, entry->file)->data);
}

bool fsdp__safetensors_is_open(const fsdp_safetensors *all, const char *file, int fd)
{
    return fsdp__file_is_mapped(mapping_of(all, file), fd);
}

int64_t fsdp_safetensors_file_count(const fsdp_safetensors *file)
{
    return file ? file->file_count : 0;
}

int64_t fsdp_safetensors_count(const fsdp_safetensors *file)
{
    return file ? file->tensors.count : 0;
}

const fsdp_safetensors_entry *fsdp_safetensors_at(const fsdp_safetensors *file, int64_t index)
{
    return index >= 0 && index < fsdp_safetensors_count(file) ? &file->tensors.entries[index] : NULL;
}

const fsdp_safetensors_entry *fsdp_safetensors_find(const fsdp_safetensors *file, const char *name)
{
    fsdp_safetensors_entry key = {.name = name};

    if (!name || fsdp_safetensors_count(file) == 0)
        return NULL;
    return bsearch(&key, file->tensors.entries, (size_t)file->tensors.count, sizeof key, fsdp__by_name);
}
