/* file_list.c - names of files with what they contain, in memory and as JSON. */
#include "format/file_list.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sort.h"
#include "base/text.h"
#include "format/file_digest.h"
#include "format/json.h"

fsdp_status fsdp__file_list_add(fsdp__file_list *list, const char *name, uint64_t bytes)
{
    FSDP__FREED char *own = fsdp__strdup(name);

    if (!own || fsdp__grow(&list->files, list->count, &list->capacity, sizeof *list->files) != 0)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot list '%s'", name);
    list->files[list->count++] = (fsdp__listed_file){.name = fsdp__take(&own), .bytes = bytes};
    return FSDP_OK;
}

const fsdp__listed_file *fsdp__file_list_find(const fsdp__file_list *list, const char *name)
{
    for (int64_t i = 0; i < list->count; i++)
        if (strcmp(list->files[i].name, name) == 0)
            return &list->files[i];
    return NULL;
}

static fsdp_status add_found(fsdp__file_list *list, const fsdp__directory *folder, const char *name, uint64_t bytes)
{
    uint64_t digest = 0;

    FSDP_TRY(fsdp__file_digest(folder, name, &digest));
    FSDP_TRY(fsdp__file_list_add(list, name, bytes));
    list->files[list->count - 1].digest = digest;
    return FSDP_OK;
}

fsdp_status fsdp__file_list_scan(fsdp__file_list *list, const fsdp__directory *folder)
{
    fsdp_status status = FSDP_OK;
    struct dirent *entry;
    struct stat info;
    DIR *directory;

    FSDP_TRY(fsdp__directory_list(folder, &directory));
    while (status == FSDP_OK && (entry = fsdp__directory_next(directory, folder->path, &status))) {
        if (!fsdp__directory_look(folder, entry->d_name, &info))
            status =
                FSDP_FAIL(FSDP_IO, "cannot examine '%s/%s': %s", folder->path, entry->d_name, strerrordesc_np(errno));
        else if (S_ISREG(info.st_mode))
            status = add_found(list, folder, entry->d_name, (uint64_t)info.st_size);
    }
    closedir(directory);
    if (list->count > 1)
        qsort(list->files, (size_t)list->count, sizeof *list->files, fsdp__by_name);
    return status;
}

void fsdp__file_list_release(fsdp__file_list *list)
{
    for (int64_t i = 0; i < list->count; i++)
        fsdp__free(list->files[i].name);
    fsdp__free(list->files);
    *list = (fsdp__file_list){0};
}

/* ---- JSON ---- */

/* Writes numbers in hexadecimal, since not every JSON reader has 64-bit integers. */
static json_t *file_json(const fsdp__listed_file *file)
{
    char digest[17];

    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)file->digest);
    return json_pack("{s:s, s:I, s:s*}", "name", file->name, "bytes", (json_int_t)file->bytes, "digest",
                     file->digest ? digest : NULL);
}

json_t *fsdp__file_list_json(const fsdp__file_list *list)
{
    json_auto_t *array = json_array();

    for (int64_t i = 0; i < list->count; i++)
        if (json_array_append_new(array, file_json(&list->files[i])) != 0)
            return NULL;
    return json_incref(array);
}

fsdp_status fsdp__file_list_parse(fsdp__file_list *list, const char *path, const json_t *array)
{
    if (!json_is_array(array))
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': its files are not a list", path);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *item = json_array_get(array, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *digest = json_string_value(json_object_get(item, "digest"));
        const json_t *bytes = json_object_get(item, "bytes");

        if (!name || !fsdp__is_plain_name(name) || !json_is_integer(bytes) || json_integer_value(bytes) < 0)
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': file %zu has no name and size", path, i + 1);
        FSDP_TRY(fsdp__file_list_add(list, name, (uint64_t)json_integer_value(bytes)));
        list->files[list->count - 1].digest = digest ? strtoull(digest, NULL, 16) : 0;
    }
    return FSDP_OK;
}

fsdp_status fsdp__file_list_save(const fsdp__file_list *list, const fsdp__directory *folder)
{
    return fsdp__json_save(folder, FSDP__LIST_NAME,
                           json_pack("{s:s, s:i, s:o}", "about",
                                     "files that an export wrote, which the next one may replace", "version",
                                     FSDP__JSON_VERSION, "files", fsdp__file_list_json(list)));
}

fsdp_status fsdp__file_list_load(fsdp__file_list *list, const fsdp__directory *folder, bool *out_found)
{
    FSDP__FREED char *path = fsdp__path_join(folder->path, FSDP__LIST_NAME);
    json_auto_t *object = NULL;
    struct stat info;

    *out_found = false;
    if (!path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot list the files of '%s'", folder->path);
    if (!fsdp__directory_look(folder, FSDP__LIST_NAME, &info) || !S_ISREG(info.st_mode))
        return FSDP_OK;
    FSDP_TRY(fsdp__json_load(folder, FSDP__LIST_NAME, &object));
    FSDP_TRY(fsdp__file_list_parse(list, path, json_object_get(object, "files")));
    *out_found = true;
    return FSDP_OK;
}
