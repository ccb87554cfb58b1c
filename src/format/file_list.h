/* file_list.h - names of files with what they contain: the list that an export leaves behind, and the files that a
 * journal moves. */
#pragma once

#include <jansson.h>

#include "base/directory.h"

typedef struct fsdp__listed_file {
    char *name; /* of a file directly in the folder */
    uint64_t bytes;
    uint64_t digest; /* file_digest.h; 0: not known */
} fsdp__listed_file;

typedef struct fsdp__file_list {
    fsdp__listed_file *files;
    int64_t count, capacity;
} fsdp__file_list;

fsdp_status fsdp__file_list_add(fsdp__file_list *list, const char *name, uint64_t bytes);
const fsdp__listed_file *fsdp__file_list_find(const fsdp__file_list *list, const char *name); /* NULL when absent */
/* Adds the regular files of a folder, by name, with digests. */
fsdp_status fsdp__file_list_scan(fsdp__file_list *list, const fsdp__directory *folder);
void fsdp__file_list_release(fsdp__file_list *list);

/* Convert a list to a JSON array (NULL when out of memory), and back, refusing names that are paths. `path` is for
 * messages. */
json_t *fsdp__file_list_json(const fsdp__file_list *list);
fsdp_status fsdp__file_list_parse(fsdp__file_list *list, const char *path, const json_t *array);

/* The file that an export leaves in its folder, with names, sizes and digests of the other files. */
#define FSDP__LIST_NAME ".fsdp-files.json"

fsdp_status fsdp__file_list_save(const fsdp__file_list *list, const fsdp__directory *folder);
/* Loads the folder's list; it is empty when the folder has none, and `*out_found` says whether it has one. A list that
 * may be another user's is refused. */
fsdp_status fsdp__file_list_load(fsdp__file_list *list, const fsdp__directory *folder, bool *out_found);
