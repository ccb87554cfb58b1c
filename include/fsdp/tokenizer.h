/* fsdp/tokenizer.h - text to token ids and back, as Hugging Face's tokenizers do it.
 *
 *     fsdp_tokenizer_open("gpt2", &tokenizer);                  // the folder, or its tokenizer.json
 *     fsdp_tokenizer_encode(tokenizer, text, bytes, NULL, &ids); // fsdp_token_list ids = {0};
 *     fsdp_tokenizer_decode(tokenizer, ids.ids, ids.count, NULL, &out, &out_bytes);
 *
 * What is read: byte-level BPE, which is what GPT-2, Llama 3, SmolLM and Qwen have. The model is BPE (with or without
 * ignore_merges; an unk_token), the normalizer none or NFC, the pre-tokenizer ByteLevel after any of Split and Digits,
 * the post-processor ByteLevel or TemplateProcessing, the decoder ByteLevel. Anything else is refused by its name: such
 * a tokenizer would give other ids than the model was trained on.
 *
 * What is a letter, a digit or a mark is as in Unicode 16, which tokenizers 0.21.2 and later have, on every machine.
 * Patterns mean what they mean to Oniguruma; a construct that is not known is refused with its place in the pattern.
 * So is an added token whose id in the file is not the one that tokenizers would give it.
 *
 * A byte that no token stands for is left out, as Hugging Face's tokenizers leave it out, and counted. */
#ifndef FSDP_TOKENIZER_H
#define FSDP_TOKENIZER_H

#include "fsdp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_tokenizer fsdp_tokenizer; /* read-only once it is open: may be shared by threads */

/* `path` is a tokenizer.json, or a folder: its tokenizer.json, else its vocab.json and merges.txt (GPT-2's or Qwen2's,
 * as tokenizer_config.json says). Added tokens of tokenizer_config.json count beside those of tokenizer.json; where
 * both have one, the former says how it is looked for. Errors name the file, and the key or line. */
FSDP_API fsdp_status fsdp_tokenizer_open(const char *path, fsdp_tokenizer **out);
FSDP_API void fsdp_tokenizer_close(fsdp_tokenizer *tokenizer); /* NULL is allowed */

/* The largest id and one: what a model's vocabulary must have at least. */
FSDP_API int64_t fsdp_tokenizer_vocab_size(const fsdp_tokenizer *tokenizer);
/* The id of a token as tokenizer.json writes it ("<|endoftext|>", "\u0120the"); -1: there is none, or
 * there was no memory to look for one of hundreds of bytes, which leaves a last error. */
FSDP_API int32_t fsdp_tokenizer_id(const fsdp_tokenizer *tokenizer, const char *token);
/* What ends a text: eos_token of tokenizer_config.json or special_tokens_map.json, else <|endoftext|>, <|end_of_text|>
 * or </s> among the special tokens; -1: nothing does. */
FSDP_API int32_t fsdp_tokenizer_eos(const fsdp_tokenizer *tokenizer);

/* ---- text to ids ---- */

typedef struct fsdp_token_list {
    int32_t *ids;
    int64_t count, capacity;
} fsdp_token_list; /* zeros are an empty one */
FSDP_API void fsdp_token_list_release(fsdp_token_list *list);

typedef struct fsdp_encode_options {
    bool plain_specials; /* special tokens that stand in the text are text like any other: for text of strangers */
    bool add_specials;   /* what the post-processor puts around a text, such as <|begin_of_text|> */
} fsdp_encode_options;

/* Appends the ids of `text`, which is UTF-8 and may hold NULs: what is not UTF-8 is an error that names the offset.
 * `options` NULL: all false. [thread-safe] */
FSDP_API fsdp_status fsdp_tokenizer_encode(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes,
                                           const fsdp_encode_options *options, fsdp_token_list *out);

/* The same for many texts: keeps the words that it has seen. One thread at a time; `tokenizer` is borrowed. */
typedef struct fsdp_encoder fsdp_encoder;
FSDP_API fsdp_status fsdp_encoder_create(const fsdp_tokenizer *tokenizer, fsdp_encoder **out);
FSDP_API fsdp_status fsdp_encoder_encode(fsdp_encoder *encoder, const char *text, size_t bytes,
                                         const fsdp_encode_options *options, fsdp_token_list *out);
/* Bytes so far that no token stands for. */
FSDP_API int64_t fsdp_encoder_left_out(const fsdp_encoder *encoder);
FSDP_API void fsdp_encoder_free(fsdp_encoder *encoder); /* NULL is allowed */

/* ---- ids to text ---- */

typedef struct fsdp_decode_options {
    bool skip_specials; /* special tokens are no part of the text */
} fsdp_decode_options;

/* All ids as one text, with a NUL behind it; the caller frees `*out` with free(). Bytes that are no UTF-8, such as half
 * a character at the end, become U+FFFD. An id that there is not is an error. `options` NULL: all false. */
FSDP_API fsdp_status fsdp_tokenizer_decode(const fsdp_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                           const fsdp_decode_options *options, char **out, size_t *out_bytes);

/* Token by token: text comes when its characters are whole, so that all pieces together are what
 * fsdp_tokenizer_decode gives. `tokenizer` is borrowed. */
typedef struct fsdp_decoder fsdp_decoder;
FSDP_API fsdp_status fsdp_decoder_create(const fsdp_tokenizer *tokenizer, const fsdp_decode_options *options,
                                         fsdp_decoder **out);
/* `*text` has a NUL behind its `*bytes` (which may be 0) and is valid until the next call. */
FSDP_API fsdp_status fsdp_decoder_push(fsdp_decoder *decoder, int32_t id, const char **text, size_t *bytes);
/* What is left of half a character, as U+FFFD; the decoder is as new then. */
FSDP_API fsdp_status fsdp_decoder_finish(fsdp_decoder *decoder, const char **text, size_t *bytes);
FSDP_API void fsdp_decoder_free(fsdp_decoder *decoder); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
