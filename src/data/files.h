/* files.h - the files that paths stand for: of a folder its files, of a pattern what it matches. */
#ifndef DATA_FILES_H
#define DATA_FILES_H

#include "fsdp/data.h"

enum {
    /* Beside fsdp_token_format: what fsdp_tokenize_files reads; and that or tokens, or both. */
    FSDP__LIST_DOCUMENTS = FSDP_TOKENS_BINARY + 1,
    FSDP__LIST_ANY
};

typedef struct fsdp__data_files {
    char **paths;
    int64_t count, capacity;
} fsdp__data_files;

/* In the order of `paths`, and by name within one; of a folder those whose names fit the format, an fsdp_token_format
 * or one of the above. What is not there is refused by name. So is another file of a folder that may hold data, packed
 * or as a table (content.h): only these others are opened, and of them the first bytes are read. Hidden files are
 * passed over, and so are other users' files that may not be read and have no such name. */
fsdp_status fsdp__data_files_list(const char *const *paths, int64_t count, int format, fsdp__data_files *out);
void fsdp__data_files_release(fsdp__data_files *files);

/* Bytes per token by the name: .txt 1, .bin and .u16 2, .u32 4, else 0. */
int fsdp__data_width_by_name(const char *path);

#endif
