/* files.h - finds the files that paths stand for: the files of a folder, or those that a pattern matches. */
#pragma once

#include "fsdp/data.h"

enum {
    /* Formats besides those of fsdp_token_format: documents that fsdp_tokenize_files reads; and documents, tokens or
     * both. */
    FSDP__LIST_DOCUMENTS = FSDP_TOKENS_BINARY + 1,
    FSDP__LIST_ANY
};

typedef struct fsdp__data_files {
    char **paths;
    int64_t count, capacity;
} fsdp__data_files;

/* Lists the files in the order of `paths`, and by name within one path. Of a folder it lists those whose names fit
 * `format`, which is an fsdp_token_format or one of the two above. A path that does not exist is an error that names
 * it. So is any other file of a folder that may hold data, packed or as a table (content.h): only these other files are
 * opened, and only their first bytes are read. Hidden files are passed over, and so are other users' files that may not
 * be read, unless their names say that they hold such data. */
fsdp_status fsdp__data_files_list(const char *const *paths, int64_t count, int format, fsdp__data_files *out);
void fsdp__data_files_release(fsdp__data_files *files);

/* Returns the bytes per token by the file's name: .txt 1, .bin and .u16 2, .u32 4, otherwise 0. */
int fsdp__data_width_by_name(const char *path);
