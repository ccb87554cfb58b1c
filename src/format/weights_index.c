/* weights_index.c - which file contains which tensor. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "format/json.h"
#include "format/safetensors.h"

/* Removes "./" from a name: "./model.safetensors" is a file beside the index, too. */
static const char *without_here(const char *name)
{
    while (name[0] == '.' && name[1] == '/')
        name += 1 + strspn(name + 1, "/");
    return name;
}

static fsdp_status add(const char *path, const char *tensor, const json_t *file, fsdp__index *index)
{
    const char *name = json_string_value(file);
    fsdp__index_entry *entry;

    if (!name)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the file of tensor '%s' is not a string", path,
                         FSDP__SHOWN_NAME(tensor));
    if (!fsdp__is_plain_name(without_here(name)) || strchr(name, '\\'))
        return FSDP_FAIL(FSDP_FORMAT,
                         "cannot read '%s': tensor '%s' is said to be in '%s', which is not a plain file name", path,
                         FSDP__SHOWN_NAME(tensor), FSDP__SHOWN_NAME(name));
    name = without_here(name);
    if (fsdp__grow(&index->entries, index->count, &index->capacity, sizeof *index->entries) != 0)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", path);
    entry = &index->entries[index->count++];
    *entry = (fsdp__index_entry){.file = fsdp__strdup(name)};
    if (entry->file)
        entry->tensor = fsdp__strdup(tensor);
    return entry->tensor ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", path);
}

/* Orders entries so that those of one file are together, in the order in which the file's own header is sorted. */
static int by_file_and_tensor(const void *a, const void *b)
{
    const fsdp__index_entry *x = a, *y = b;
    int order = strcmp(x->file, y->file);

    return order ? order : strcmp(x->tensor, y->tensor);
}

fsdp_status fsdp__index_parse(const char *path, const void *text, size_t bytes, fsdp__index *out)
{
    json_auto_t *object = NULL;
    json_t *map, *file;
    FSDP__SCOPED(fsdp__index_release) fsdp__index index = {0};
    const char *tensor;

    FSDP_TRY(fsdp__json_parse_foreign(path, text, bytes, &object));
    map = json_object_get(object, "weight_map");
    if (!json_is_object(map))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it has no weight_map", path);
    json_object_foreach(map, tensor, file)
    {
        FSDP_TRY(add(path, tensor, file, &index));
    }
    if (index.count > 1)
        qsort(index.entries, (size_t)index.count, sizeof *index.entries, by_file_and_tensor);
    *out = index;
    index = (fsdp__index){0};
    return FSDP_OK;
}

int64_t fsdp__index_run(const fsdp__index *index, int64_t at)
{
    int64_t end = at;

    while (end < index->count && strcmp(index->entries[end].file, index->entries[at].file) == 0)
        end++;
    return end - at;
}

fsdp_status fsdp__index_file(const char *index_path, const char *directory, const fsdp__index_entry *listed,
                             int64_t listed_count, char **out)
{
    FSDP__FREED char *path = fsdp__path_join(directory, listed->file);
    fsdp__names names = {.count = 0};

    *out = NULL;
    if (!path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", index_path);
    if (fsdp__path_exists(path)) {
        *out = fsdp__take(&path);
        return FSDP_OK;
    }
    for (int64_t i = 0; i < listed_count; i++)
        fsdp__names_add(&names, FSDP__SHOWN_NAME(listed[i].tensor));
    return FSDP_FAIL(FSDP_NOT_FOUND,
                     "there is no '%s', in which '%s' says tensor%s %s should be: get the model's missing files", path,
                     index_path, listed_count > 1 ? "s" : "", fsdp__names_text(&names));
}

#define AT(first, stride, i) ((const void *)((const char *)(first) + (size_t)(i) * (stride)))

fsdp_status fsdp__index_compare(const char *index_path, const char *path, const fsdp__index_entry *listed,
                                int64_t listed_count, const char *const *held, bool *unlisted, size_t stride,
                                int64_t held_count)
{
    for (int64_t i = 0, j = 0; i < listed_count || j < held_count;) {
        const char *name = j < held_count ? *(const char *const *)AT(held, stride, j) : NULL;
        int order = j == held_count ? -1 : i == listed_count ? 1 : strcmp(listed[i].tensor, name);

        if (order < 0)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it lacks tensor '%s', which '%s' says is in it", path,
                             FSDP__SHOWN_NAME(listed[i].tensor), index_path);
        if (order > 0)
            *(bool *)(uintptr_t)AT(unlisted, stride, j) = true;
        i += order == 0;
        j++;
    }
    return FSDP_OK;
}

fsdp_status fsdp__index_check_names(const char *const *names, const char *const *files, size_t stride, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        const char *name = *(const char *const *)AT(names, stride, i);

        if (strcmp(name, *(const char *const *)AT(names, stride, i - 1)) == 0)
            return FSDP_FAIL(
                FSDP_FORMAT,
                "cannot tell which tensor '%s' is meant: both '%s' and '%s' hold one: remove it from one of them",
                FSDP__SHOWN_NAME(name), *(const char *const *)AT(files, stride, i - 1),
                *(const char *const *)AT(files, stride, i));
    }
    return FSDP_OK;
}

void fsdp__index_release(fsdp__index *index)
{
    for (int64_t i = 0; i < index->count; i++)
        FSDP__FREE_ALL(index->entries[i].file, index->entries[i].tensor);
    fsdp__free(index->entries);
    *index = (fsdp__index){0};
}
