/* token_ends.c - walks over a text and its tokens together. A token's bytes stand in the text as they are, with three
 * exceptions: white space around an added token that takes it, a space that was put before a word, and bytes for which
 * there is no token. */
#include "tokenizer/token_ends.h"

#include <string.h>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

/* Returns the added token of this id; NULL: it is none. */
static const fsdp__added_token *added_of(const fsdp_tokenizer *t, int32_t id)
{
    const fsdp__added_tokens *const lists[] = {&t->raw, &t->normalized};

    for (size_t l = 0; l < FSDP__COUNT_OF(lists); l++)
        for (int64_t i = 0; i < lists[l]->count; i++)
            if (lists[l]->tokens[i].id == id)
                return &lists[l]->tokens[i];
    return NULL;
}

static size_t skip_space(const char *text, size_t bytes, size_t at)
{
    uint32_t character;
    int length;

    while (at < bytes && (length = fsdp__utf8_at(text + at, bytes - at, &character)) > 0 &&
           fsdp__is_white_space(character))
        at += (size_t)length;
    return at;
}

static bool stands(const char *text, size_t bytes, size_t at, const char *token, size_t token_bytes)
{
    return bytes - at >= token_bytes && memcmp(text + at, token, token_bytes) == 0;
}

/* Returns the bytes of the space with which a token begins, or of what stands for it; 0: none. */
static size_t space_bytes(const char *token, size_t bytes)
{
    size_t mark = strlen(FSDP__SPACE_MARK);

    if (bytes > 0 && token[0] == ' ')
        return 1;
    return bytes >= mark && memcmp(token, FSDP__SPACE_MARK, mark) == 0 ? mark : 0;
}

/* Goes over one token at `*at`. Returns false if it does not stand there. */
static bool go_over(const fsdp_tokenizer *t, const char *text, size_t bytes, int32_t id, size_t *at)
{
    const fsdp__added_token *added = added_of(t, id);
    size_t token_bytes, begin = *at;
    const char *token = fsdp__vocabulary_bytes(&t->bpe.vocabulary, id, &token_bytes);

    if (added) {
        token = added->text;
        token_bytes = added->bytes;
        if (!stands(text, bytes, begin, token, token_bytes) && added->lstrip)
            begin = skip_space(text, bytes, begin);
    }
    if (!added && !stands(text, bytes, begin, token, token_bytes)) {
        size_t space = space_bytes(token, token_bytes); /* it was put there */

        token += space;
        token_bytes -= space;
    }
    if (!stands(text, bytes, begin, token, token_bytes))
        return false;
    *at = begin + token_bytes;
    if (added && added->rstrip)
        *at = skip_space(text, bytes, *at);
    return true;
}

fsdp_status fsdp__token_ends(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes, const int32_t *ids,
                             int64_t count, size_t *ends)
{
    size_t at = 0;

    for (int64_t i = 0; i < count; i++) {
        size_t from = at;

        while (!go_over(tokenizer, text, bytes, ids[i], &at)) {
            if (from >= bytes || from - at > 64)
                return FSDP_FAIL(FSDP_UNSUPPORTED,
                                 "token %lld (id %d) is not found in the text from byte %zu on: which tokens are "
                                 "answers cannot be said with this tokenizer",
                                 (long long)i, (int)ids[i], at);
            at = ++from; /* a byte without a token */
        }
        ends[i] = at;
    }
    return FSDP_OK;
}
