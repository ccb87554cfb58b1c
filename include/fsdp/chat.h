/* fsdp/chat.h - conversations as tokens: a model folder's chat template, and which tokens are learned.
 *
 *     fsdp_chat_open("SmolLM2", tokenizer, NULL, &chat);       // the folder's chat_template
 *     fsdp_chat_encode(chat, encoder, row, bytes, NULL, &out); // {"messages": [{"role": "user", "content": "Hi"}]}
 *
 * Ids are those of transformers' apply_chat_template: the template is rendered, and its text encoded without what the
 * tokenizer would put around it, since a template writes its own. Special tokens in the text of a message become
 * tokens. Templates are in Jinja; docs/chat-data.md lists what is supported.
 *
 * A row is one JSON object, and its fields say what it is:
 *
 *     messages         [{"role", "content", ...}]; also tools and chat_template_kwargs, as values or as JSON text
 *     conversations    [{"from", "value"}] (ShareGPT), or messages under this name; also system, tools
 *     prompt           with completion: two texts, or two lists of messages
 *     instruction      with input, output (Alpaca); also system, history: [[question, answer]]
 *     text             a text, all of it learned
 *     chosen           with rejected: a better and a worse answer to one prompt, two texts or two lists of messages;
 *                      also prompt: what both begin with, if it is not there
 *
 * A token is learned if a `generation` block of the template encloses it. A template without such blocks is rendered
 * twice for each answer: up to the answer, with the text that begins one, and with the answer. The text that the second
 * adds is the answer. If the text that begins one has more than the template writes in front of an answer, the answer
 * begins behind the latter; a special token that ends every conversation is part of the last answer. White space after
 * a special token at the answer's end is not learned, because a model never writes it. It is an error, which says so,
 * if a later message changes the text of an earlier one. A message with
 * `weight` 0, `train` false or `training` false is rendered, and not learned. */
#ifndef FSDP_CHAT_H
#define FSDP_CHAT_H

#include "fsdp/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_chat fsdp_chat; /* read-only once it is open; may be shared by threads */

/* Reads the template of a model folder: chat_template.jinja, or chat_template of tokenizer_config.json (a text, or a
 * list with `default` and `tool_use`, which is taken when a conversation has tools), or chat_template.json. `file`: a
 * template to use in its place; NULL: none. A folder without a template opens, and conversations are refused; `folder`
 * NULL: there is none. `tokenizer` is borrowed. */
FSDP_API fsdp_status fsdp_chat_open(const char *folder, const fsdp_tokenizer *tokenizer, const char *file,
                                    fsdp_chat **out);
FSDP_API void fsdp_chat_close(fsdp_chat *chat); /* NULL is allowed */
/* Returns whether there is a template; NULL: no. */
FSDP_API bool fsdp_chat_has_template(const fsdp_chat *chat);

/* Gets the token that the template puts after an answer, at which generation has to stop; -1: none is known, because
 * there is no template, say, or `chat` is NULL. A correct call fails only if memory runs out. */
FSDP_API fsdp_status fsdp_chat_end_of_turn(const fsdp_chat *chat, int32_t *out);

typedef enum fsdp_chat_kind {
    FSDP_CHAT_NONE, /* a row of none of these kinds */
    FSDP_CHAT_MESSAGES,
    FSDP_CHAT_SHAREGPT,
    FSDP_CHAT_COMPLETION,
    FSDP_CHAT_INSTRUCTION,
    FSDP_CHAT_TEXT,
    FSDP_CHAT_PREFERENCE
} fsdp_chat_kind;

/* Returns the kind of a row by its fields; FSDP_CHAT_NONE also if the row is no JSON object. */
FSDP_API fsdp_chat_kind fsdp_chat_recognise(const char *row, size_t bytes);
/* Returns "messages", "conversations (ShareGPT)", ... */
FSDP_API const char *fsdp_chat_kind_name(fsdp_chat_kind kind);

typedef struct fsdp_chat_options {
    fsdp_chat_kind kind; /* what the row has to be; NONE: any kind */
    bool prompt;         /* end with what begins an answer, for generation: nothing is learned then */
    bool no_mask;        /* leave `learned` alone: no mask is needed (all is learned, or nothing) */
    int64_t now;         /* the time for strftime_now, in seconds since 1970; 0: now */
    bool rejected;       /* of a pair, encode the rejected answer: the chosen one otherwise */
    /* Halves of surrogate pairs and \u0000, which stand for no text, become U+FFFD; otherwise they are an error. */
    bool replace_invalid;
    /* Refuse a message whose role is none of system, user, assistant and tool, and for which the template writes
     * nothing. Otherwise it is silently left out, as in transformers. */
    bool refuse_unwritten;
} fsdp_chat_options;

/* Holds a row as tokens. Its memory is kept from one call to the next. */
typedef struct fsdp_chat_row {
    fsdp_token_list ids;
    bool *learned; /* one for each id */
    int64_t learned_capacity;
    char *text; /* what was encoded, followed by a NUL */
    size_t text_bytes;
    int64_t answers; /* the number of tokens that are learned */
} fsdp_chat_row;     /* an empty row is all zeros */

FSDP_API void fsdp_chat_row_release(fsdp_chat_row *row); /* NULL is allowed */

/* Encodes a row. A malformed row is FSDP_FORMAT; the message names no file and line, which only the caller knows.
 * `options` NULL: all zeros. */
FSDP_API fsdp_status fsdp_chat_encode(const fsdp_chat *chat, fsdp_encoder *encoder, const char *row, size_t bytes,
                                      const fsdp_chat_options *options, fsdp_chat_row *out);

#ifdef __cplusplus
}
#endif
#endif
