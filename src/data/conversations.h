/* conversations.h - files of conversations: what their rows are, and rows as tokens. */
#pragma once

#include "fsdp/chat.h"

/* Finds out what the rows of JSON lines are, from the first rows of the first such file (with their fields as in
 * fsdp/chat.h). Other files, rows of other fields, and rows of `text` are FSDP_CHAT_NONE. */
fsdp_status fsdp__conversations_kind(const char *const *paths, int64_t count, fsdp_chat_kind *out);
/* Calls `each` with the first whole lines of the first file of JSON lines, at most those of its first MiB, until it
 * returns false. Lines are counted from 1. */
typedef bool (*fsdp__each_line)(void *arg, const char *path, int64_t line, const char *text, size_t bytes);
fsdp_status fsdp__conversations_lines(const char *const *paths, int64_t count, fsdp__each_line each, void *arg);

/* Holds rows of a piece, one behind the other. */
typedef struct fsdp__encoded_rows {
    bool *learned; /* one for each id of the piece */
    int64_t learned_capacity;
    int64_t *ends; /* of each row, in ids of the piece */
    int64_t count, capacity;
    int64_t answers;   /* tokens that are learned: never the first of a row */
    fsdp_chat_row row; /* the one that is being made */
} fsdp__encoded_rows;
void fsdp__encoded_rows_release(fsdp__encoded_rows *rows);
/* Encodes one line, and adds its ids to `ids` and the row to `rows`: of a pair two, the chosen one first, always with
 * their answers learned. A row without ids is left out. */
fsdp_status fsdp__conversations_encode(const fsdp_chat *chat, const fsdp_chat_options *options, fsdp_encoder *encoder,
                                       const char *line, size_t bytes, fsdp_token_list *ids, fsdp__encoded_rows *rows);
