/* fsdp/tokenizer.h - converts text to token ids and back, as Hugging Face's tokenizers and SentencePiece do.
 *
 *     fsdp_tokenizer_open("gpt2", &tokenizer);                  // the folder, or its tokenizer.json
 *     fsdp_tokenizer_encode(tokenizer, text, bytes, NULL, &ids); // fsdp_token_list ids = {0};
 *     fsdp_tokenizer_decode(tokenizer, ids.ids, ids.count, NULL, &out, &out_bytes);
 *
 * Two kinds are supported. Byte-level BPE, which GPT-2, Llama 3, SmolLM and Qwen use: the model is BPE (with or without
 * ignore_merges; an unk_token), the normalizer none or NFC, the pre-tokenizer ByteLevel after any of Split and Digits,
 * the post-processor ByteLevel or TemplateProcessing, the decoder ByteLevel. SentencePiece's BPE and Unigram, which
 * Llama 2, Mistral, Phi-3 and Gemma use, where U+2581 stands for a space and <0x0A> for a byte: a tokenizer.model, or a
 * tokenizer.json with the normalizers Prepend and Replace of a text, the pre-tokenizers Metaspace or Split, and the
 * decoders Replace, ByteFallback, Fuse, Strip and Metaspace. Anything else is an error that names it, because the ids
 * would differ from those that the model was trained on.
 *
 * Letters, digits and marks are those of Unicode 16 on every machine, as in tokenizers 0.21.2 and later. Patterns mean
 * what they mean in Oniguruma; an unknown construct is an error that names its place in the pattern. An added token
 * whose id in the file is not the one that tokenizers would give it is refused, too.
 *
 * A byte for which there is no token is skipped, as Hugging Face's tokenizers does, and counted. */
#ifndef FSDP_TOKENIZER_H
#define FSDP_TOKENIZER_H

#include "fsdp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsdp_tokenizer fsdp_tokenizer; /* read-only once it is open; may be shared by threads */

/* Opens a tokenizer. `path` is a tokenizer.json, a file of SentencePiece whose name ends with ".model", or a folder
 * with tokenizer.json, or else with tokenizer.model, or else with vocab.json and merges.txt (of GPT-2 or Qwen2, as
 * tokenizer_config.json says). Added tokens of tokenizer_config.json are used besides those of tokenizer.json; if both
 * have a token, the former says how it is matched. Errors name the file, and the key or line. */
FSDP_API fsdp_status fsdp_tokenizer_open(const char *path, fsdp_tokenizer **out);
FSDP_API void fsdp_tokenizer_close(fsdp_tokenizer *tokenizer); /* NULL is allowed */

/* Returns the largest id plus one, which is the minimum vocabulary size of a model. */
FSDP_API int64_t fsdp_tokenizer_vocab_size(const fsdp_tokenizer *tokenizer);
/* Returns the id of a token as tokenizer.json writes it ("<|endoftext|>", "\u0120the"); -1 if there is none, or if
 * there was no memory to look for one of hundreds of bytes, which leaves a last error. */
FSDP_API int32_t fsdp_tokenizer_id(const fsdp_tokenizer *tokenizer, const char *token);
/* Returns the token that ends a text: eos_token of tokenizer_config.json or special_tokens_map.json, else
 * <|endoftext|>, <|end_of_text|> or </s> among the special tokens; -1 if there is none. */
FSDP_API int32_t fsdp_tokenizer_eos(const fsdp_tokenizer *tokenizer);

/* ---- text to ids ---- */

typedef struct fsdp_token_list {
    int32_t *ids;
    int64_t count, capacity;
} fsdp_token_list; /* an empty list is all zeros */
FSDP_API void fsdp_token_list_release(fsdp_token_list *list);

typedef struct fsdp_encode_options {
    bool plain_specials; /* treat special tokens in the text as ordinary text: for untrusted text */
    bool add_specials;   /* add what the post-processor puts around a text, such as <|begin_of_text|> */
} fsdp_encode_options;

/* Appends the ids of `text`, which is UTF-8 and may contain NULs; invalid UTF-8 is an error that names the offset.
 * `options` NULL: all false. [thread-safe] */
FSDP_API fsdp_status fsdp_tokenizer_encode(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes,
                                           const fsdp_encode_options *options, fsdp_token_list *out);

/* Encodes many texts and caches the words that it has seen. One thread at a time; `tokenizer` is borrowed. */
typedef struct fsdp_encoder fsdp_encoder;
FSDP_API fsdp_status fsdp_encoder_create(const fsdp_tokenizer *tokenizer, fsdp_encoder **out);
FSDP_API fsdp_status fsdp_encoder_encode(fsdp_encoder *encoder, const char *text, size_t bytes,
                                         const fsdp_encode_options *options, fsdp_token_list *out);
/* Returns the number of bytes so far for which there is no token. */
FSDP_API int64_t fsdp_encoder_left_out(const fsdp_encoder *encoder);
FSDP_API void fsdp_encoder_free(fsdp_encoder *encoder); /* NULL is allowed */

/* ---- ids to text ---- */

typedef struct fsdp_decode_options {
    bool skip_specials; /* leave special tokens out of the text */
} fsdp_decode_options;

/* Decodes all ids into one text, followed by a NUL; the caller frees `*out` with free(). Bytes that are not UTF-8, such
 * as half a character at the end, become U+FFFD. An id that does not exist is an error. `options` NULL: all false. */
FSDP_API fsdp_status fsdp_tokenizer_decode(const fsdp_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                           const fsdp_decode_options *options, char **out, size_t *out_bytes);

/* Decodes token by token. Text is returned once its characters are complete, so that all pieces together are what
 * fsdp_tokenizer_decode returns. `tokenizer` is borrowed. */
typedef struct fsdp_decoder fsdp_decoder;
FSDP_API fsdp_status fsdp_decoder_create(const fsdp_tokenizer *tokenizer, const fsdp_decode_options *options,
                                         fsdp_decoder **out);
/* Adds a token. `*text` has `*bytes` bytes (which may be 0) followed by a NUL, and is valid until the next call. */
FSDP_API fsdp_status fsdp_decoder_push(fsdp_decoder *decoder, int32_t id, const char **text, size_t *bytes);
/* Returns the rest of an incomplete character as U+FFFD, and resets the decoder. */
FSDP_API fsdp_status fsdp_decoder_finish(fsdp_decoder *decoder, const char **text, size_t *bytes);
FSDP_API void fsdp_decoder_free(fsdp_decoder *decoder); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
