/* token_file.h - one file of tokens or text, memory-mapped. */
#pragma once

#include "base/file.h"
#include "data/token_sums.h"
#include "fsdp/data.h"

struct stat;

typedef struct fsdp__token_file {
    const char *path; /* borrowed */
    fsdp__mapping map;
    size_t offset_bytes; /* of the first token */
    int width;           /* bytes per token: 1, 2 or 4 */
    bool width_is_guess; /* the width is 2 because no header, format or name says it */
    int64_t first;       /* position of its first token in the stream */
    int64_t count;
    fsdp__token_sums sums; /* if the file is one of the cache */
} fsdp__token_file;

/* Opens a file. Text that is not text, tokens that are not tokens, and JSON lines as text are refused by their contents
 * (content.h). The caller closes the file, also on failure. */
fsdp_status fsdp__token_file_open(fsdp__token_file *file, const char *path, fsdp_token_format format);
/* Opens a file of the cache: one made under this name, by this user or root. Such a file must be opened by this
 * function every time, because another user may have put a file in its place since. */
fsdp_status fsdp__token_file_open_own(fsdp__token_file *file, const char *path);
/* Maps a file that this user or root has made. Its owner is checked on the file that is mapped, not on the name. */
fsdp_status fsdp__token_file_map_own(const char *path, fsdp__mapping *out);
/* Fails with the message that refuses another user's file. */
fsdp_status fsdp__token_file_refuse(const char *path, const struct stat *info);
void fsdp__token_file_close(fsdp__token_file *file);

/* Checks tokens [index, index + count) before they are used: FSDP_FORMAT if they do not match their checksums. A file
 * without checksums is accepted as it is. [thread-safe] */
fsdp_status fsdp__token_file_compare(const fsdp__token_file *file, int64_t index, int64_t count);

/* Counts how many of the files that the paths stand for are text and how many are tokens. With AUTO each file is judged
 * by llm.c's header, its name, or its first bytes; text is meant for a tokenizer here, so it may be packed or JSON
 * lines. With any other format nothing is listed, and the counts are 1 and 0. */
fsdp_status fsdp__token_files_count_text(const char *const *paths, int64_t count, fsdp_token_format format,
                                         int64_t *out_text, int64_t *out_tokens);

/* Writes why the first bytes of the file speak against reading it in this width: "'a.bin' is read as uint16 tokens, but
 * ..."; returns false if nothing does. */
bool fsdp__token_file_doubt(const fsdp__token_file *file, char *text, size_t text_bytes);
