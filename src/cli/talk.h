/* talk.h - a talk with a model: its messages, as text and as tokens, and the keys and values of what was said. */
#pragma once

#include "fsdp/chat.h"
#include "fsdp/models.h"

typedef struct fsdp__talk {
    fsdp_chat *chat;
    char *messages; /* so far, as items of a JSON list */
    fsdp_chat_row row;
    fsdp_kv_cache *cache; /* of the first of `known`; NULL: none */
    int64_t capacity;
    int32_t *known; /* the tokens that the model has seen */
    int64_t known_count;
    int64_t left_out; /* messages */
} fsdp__talk;         /* one that is not open is all zeros */

/* Opens a talk with the chat of a folder; `file` and `system` may be NULL. The tokenizer is borrowed. */
fsdp_status fsdp__talk_open(const char *folder, const fsdp_tokenizer *tokenizer, const char *file, const char *system,
                            fsdp__talk *out);
void fsdp__talk_close(fsdp__talk *talk);

/* Reads the next line that is not empty, of a terminal behind a "> ". One that is not UTF-8 is left out. Returns false
 * at the end of the input. */
bool fsdp__talk_read(fsdp__talk *talk, char **line, size_t *room);
/* Says that a message is left out, because of the last error. */
void fsdp__talk_leave_out(fsdp__talk *talk);
/* Adds a message. */
fsdp_status fsdp__talk_say(fsdp__talk *talk, const char *role, const char *text);
/* Gives the tokens of the talk and of what begins an answer, with room for `more`. The caller fsdp__free's them. */
fsdp_status fsdp__talk_tokens(fsdp__talk *talk, int64_t more, int32_t **out, int64_t *out_count);
/* Makes the cache ready for these tokens: what it holds of them stays, and it has room for `most`. */
fsdp_status fsdp__talk_cache(fsdp__talk *talk, fsdp_module *model, const int32_t *tokens, int64_t most);
/* Adds the answer, which is the tokens from `begin` on. */
fsdp_status fsdp__talk_answer(fsdp__talk *talk, const fsdp_tokenizer *tokenizer, const int32_t *tokens, int64_t begin,
                              int64_t count);
