/* tokenizer.c - what an open tokenizer answers. */
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/hash.h"

int64_t fsdp_tokenizer_vocab_size(const fsdp_tokenizer *tokenizer)
{
    return tokenizer->bpe.vocabulary.count;
}

int32_t fsdp_tokenizer_id(const fsdp_tokenizer *tokenizer, const char *token)
{
    int32_t id;

    (void)fsdp__vocabulary_find_text(&tokenizer->bpe.vocabulary, token, &id);
    return id;
}

int32_t fsdp_tokenizer_eos(const fsdp_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

uint64_t fsdp__tokenizer_hash(const fsdp_tokenizer *tokenizer)
{
    return fsdp__hash_bytes(tokenizer->hash, &tokenizer->eos, sizeof tokenizer->eos);
}

void fsdp__tokenizer_tables(char text[FSDP__TOKENIZER_TABLES_BYTES])
{
    char version[48] = "", unicode[48] = "";

    if (pcre2_config_8(PCRE2_CONFIG_VERSION, NULL) <= (int)sizeof version)
        (void)pcre2_config_8(PCRE2_CONFIG_VERSION, version);
    if (pcre2_config_8(PCRE2_CONFIG_UNICODE_VERSION, NULL) <= (int)sizeof unicode)
        (void)pcre2_config_8(PCRE2_CONFIG_UNICODE_VERSION, unicode);
    snprintf(text, FSDP__TOKENIZER_TABLES_BYTES, "pcre2 %s unicode %s, utf8proc %s unicode %s", version, unicode,
             utf8proc_version(), utf8proc_unicode_version());
}

void fsdp_tokenizer_close(fsdp_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    fsdp__vocabulary_release(&tokenizer->bpe.vocabulary);
    fsdp__merges_release(&tokenizer->bpe.merges);
    fsdp__added_tokens_release(&tokenizer->raw);
    fsdp__added_tokens_release(&tokenizer->normalized);
    fsdp__pre_tokenizer_release(&tokenizer->pre_tokenizer);
    fsdp_token_list_release(&tokenizer->prefix);
    fsdp_token_list_release(&tokenizer->suffix);
    fsdp__free(tokenizer);
}
