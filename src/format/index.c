/* index.c - which file holds which tensor. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "format/json.h"
#include "format/safetensors.h"

/* Files lie beside the index: a name with a slash could point anywhere. */
static bool plain_file_name(const char *name)
{
    return name[0] != '\0' && !strchr(name, '/') && !strchr(name, '\\') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

static fsdp_status add(const char *path, const char *tensor, const json_t *file, fsdp__index *index)
{
    const char *name = json_string_value(file);
    fsdp__index_entry *entry;

    if (!name)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': the file of tensor '%s' is not a string", path,
                         FSDP__SHOWN_NAME(tensor));
    if (!plain_file_name(name))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': tensor '%s' is said to be in '%s': not a plain file name",
                         path, FSDP__SHOWN_NAME(tensor), FSDP__SHOWN_NAME(name));
    if (fsdp__grow(&index->entries, index->count, &index->capacity, sizeof *index->entries) != 0)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", path);
    entry = &index->entries[index->count++];
    *entry = (fsdp__index_entry){.file = fsdp__strdup(name)};
    if (entry->file)
        entry->tensor = fsdp__strdup(tensor);
    return entry->tensor ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read '%s'", path);
}

/* What one file holds stands together, in the order in which its own header is sorted. */
static int by_file_and_tensor(const void *a, const void *b)
{
    const fsdp__index_entry *x = a, *y = b;
    int order = strcmp(x->file, y->file);

    return order ? order : strcmp(x->tensor, y->tensor);
}

fsdp_status fsdp__index_parse(const char *path, const void *text, size_t bytes, fsdp__index *out)
{
    fsdp_status status = FSDP_OK;
    json_t *object = NULL, *map, *file;
    fsdp__index index = {0};
    const char *tensor;

    FSDP_TRY(fsdp__json_parse(path, text, bytes, &object));
    map = json_object_get(object, "weight_map");
    if (!json_is_object(map)) {
        status = FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it has no weight_map", path);
        goto out;
    }
    json_object_foreach(map, tensor, file)
    {
        FSDP_TRY_GOTO(status, add(path, tensor, file, &index), out);
    }
    if (index.count > 1)
        qsort(index.entries, (size_t)index.count, sizeof *index.entries, by_file_and_tensor);
    *out = index;
    index = (fsdp__index){0};
out:
    fsdp__index_release(&index);
    json_decref(object);
    return status;
}

int64_t fsdp__index_run(const fsdp__index *index, int64_t at)
{
    int64_t end = at;

    while (end < index->count && strcmp(index->entries[end].file, index->entries[at].file) == 0)
        end++;
    return end - at;
}

fsdp_status fsdp__index_compare(const char *index_path, const char *path, const fsdp__index_entry *listed,
                                int64_t listed_count, const char *const *held, size_t stride, int64_t held_count)
{
    for (int64_t i = 0; i < listed_count || i < held_count; i++) {
        const char *name = i < held_count ? *(const char *const *)((const char *)held + (size_t)i * stride) : NULL;
        int order = i == held_count ? -1 : i == listed_count ? 1 : strcmp(listed[i].tensor, name);

        if (order < 0)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it lacks tensor '%s', which '%s' says is in it", path,
                             FSDP__SHOWN_NAME(listed[i].tensor), index_path);
        if (order > 0)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': it holds tensor '%s', which '%s' does not say is in it",
                             path, FSDP__SHOWN_NAME(name), index_path);
    }
    return FSDP_OK;
}

void fsdp__index_release(fsdp__index *index)
{
    for (int64_t i = 0; i < index->count; i++) {
        fsdp__free(index->entries[i].file);
        fsdp__free(index->entries[i].tensor);
    }
    fsdp__free(index->entries);
    *index = (fsdp__index){0};
}
