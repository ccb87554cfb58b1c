/* parse.h - parses the parts of a tokenizer.json. */
#pragma once

#include "format/json.h"
#include "tokenizer/tokenizer.h"

/* Fails with "cannot read 'x': the <part> '<name>' is not supported ...". */
fsdp_status fsdp__unsupported_part(const char *path, const char *part, const char *name);
/* Reads the "type" of a part, which is required. */
fsdp_status fsdp__part_type(const fsdp__json_object *part, const char *what, const char **out);

/* Adds the tokens of {"token": id}. */
fsdp_status fsdp__parse_vocabulary(const char *path, const json_t *vocabulary, fsdp__bpe *bpe);
/* Adds the merge of two tokens. Both, and the token that they become, must be in the vocabulary; `place` is its
 * rank. */
fsdp_status fsdp__add_merge(const char *path, fsdp__bpe *bpe, const char *left, const char *right, int64_t place);
/* Finds the token of each byte. Call it once the vocabulary is whole. */
void fsdp__find_byte_tokens(fsdp__bpe *bpe);
/* Finds the tokens of bytes that are written as "<0x0A>"; `count` counts them. */
fsdp_status fsdp__find_written_bytes(fsdp__bpe *bpe, int *count);
fsdp_status fsdp__parse_model(const fsdp__json_object *model, fsdp_tokenizer *out);
/* Finds out whether words end before space marks: no token but added ones may have one after another character. */
void fsdp__find_words(fsdp_tokenizer *tokenizer);

/* Each of these takes an object or null. */
fsdp_status fsdp__parse_normalizer(const char *path, const json_t *normalizer, fsdp__normalizer *out);
fsdp_status fsdp__parse_pre_tokenizer(const char *path, const json_t *pre_tokenizer, fsdp_tokenizer *out);
fsdp_status fsdp__parse_post_processor(const char *path, const json_t *post_processor, fsdp_tokenizer *out);
fsdp_status fsdp__parse_decoder(const char *path, const json_t *decoder, fsdp_tokenizer *out);
/* Returns whether a pre-tokenizer is, or has among its steps, one of this type. */
bool fsdp__has_pre_tokenizer(const json_t *pre_tokenizer, const char *type);
extern const char fsdp__digit_pattern[]; /* the pattern that the pre-tokenizer Digits splits at */
/* Add the splits of GPT-2, and of Qwen2. */
fsdp_status fsdp__add_byte_level(const char *path, bool add_prefix_space, bool splits, fsdp__pre_tokenizer *out);
fsdp_status fsdp__add_qwen2_split(const char *path, fsdp__pre_tokenizer *out);

/* Adds a special token of which nothing but the content is known. */
fsdp_status fsdp__add_special_token(const char *path, const char *content, int64_t id, fsdp_tokenizer *out);
/* Adds a token of the vocabulary that is searched for in the text after normalization. */
fsdp_status fsdp__add_searched_token(const char *path, const char *content, int64_t id, fsdp_tokenizer *out);
/* Parse {"id": token}, as in tokenizer_config.json, and {"token": id} of special tokens, as in added_tokens.json. */
fsdp_status fsdp__parse_tokens_by_id(const char *path, const json_t *tokens, fsdp_tokenizer *out);
fsdp_status fsdp__parse_ids_of_tokens(const char *path, const json_t *ids, fsdp_tokenizer *out);
fsdp_status fsdp__parse_added_tokens(const fsdp__json_object *file, fsdp_tokenizer *out);
