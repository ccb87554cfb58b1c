/* tokenizer.c - answers questions about an open tokenizer. */
#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "tokenizer/parse.h"
#include "tokenizer/unicode.h"

int64_t fsdp_tokenizer_vocab_size(const fsdp_tokenizer *tokenizer)
{
    return tokenizer ? tokenizer->bpe.vocabulary.count : 0;
}

int32_t fsdp_tokenizer_id(const fsdp_tokenizer *tokenizer, const char *token)
{
    int32_t id;

    if (!tokenizer || !token)
        return FSDP__NO_TOKEN;
    (void)fsdp__vocabulary_find_text(&tokenizer->bpe.vocabulary, token, &id);
    return id;
}

int32_t fsdp_tokenizer_eos(const fsdp_tokenizer *tokenizer)
{
    return tokenizer ? tokenizer->eos : FSDP__NO_TOKEN;
}

uint64_t fsdp__tokenizer_hash(const fsdp_tokenizer *tokenizer)
{
    uint64_t hash = fsdp__hash_bytes(tokenizer->hash, &tokenizer->eos, sizeof tokenizer->eos);

    hash = fsdp__hash_bytes(hash, fsdp__digit_pattern, strlen(fsdp__digit_pattern));
    return fsdp__unicode_hash(hash);
}

void fsdp_tokenizer_close(fsdp_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    fsdp__vocabulary_release(&tokenizer->bpe.vocabulary);
    fsdp__merges_release(&tokenizer->bpe.merges);
    fsdp__unigram_release(&tokenizer->unigram);
    fsdp__normalizer_release(&tokenizer->normalizer);
    fsdp__added_tokens_release(&tokenizer->raw);
    fsdp__added_tokens_release(&tokenizer->normalized);
    fsdp__pre_tokenizer_release(&tokenizer->pre_tokenizer);
    fsdp_token_list_release(&tokenizer->prefix);
    fsdp_token_list_release(&tokenizer->suffix);
    fsdp__free(tokenizer);
}
