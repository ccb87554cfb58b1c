/* index.c - model.safetensors.index.json. */
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

void fsdp__index_release(fsdp__index *index)
{
    for (int64_t i = 0; i < index->count; i++) {
        fsdp__free(index->entries[i].file);
        fsdp__free(index->entries[i].tensor);
    }
    fsdp__free(index->entries);
    *index = (fsdp__index){0};
}
