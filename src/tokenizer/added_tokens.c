/* added_tokens.c - finds added tokens: the leftmost, and the longest of those that begin there. */
#include "tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

fsdp_status fsdp__added_tokens_add(fsdp__added_tokens *added, const fsdp__added_token *token)
{
    fsdp__added_token *slot;
    char *text;

    FSDP_TRY(fsdp__grow(&added->tokens, added->count, &added->capacity, sizeof *added->tokens));
    FSDP__TRY_NEW(text = fsdp__malloc(token->bytes));
    memcpy(text, token->text, token->bytes);
    slot = &added->tokens[added->count++];
    *slot = *token;
    slot->text = text;
    return FSDP_OK;
}

void fsdp__added_tokens_remove(fsdp__added_tokens *added, int32_t id)
{
    for (int64_t i = added->count; i-- > 0;)
        if (added->tokens[i].id == id) {
            fsdp__free(added->tokens[i].text);
            added->tokens[i] = added->tokens[--added->count];
        }
}

static int compare(const void *a, const void *b)
{
    const fsdp__added_token *left = a, *right = b;
    unsigned char x = (unsigned char)left->text[0], y = (unsigned char)right->text[0];

    if (x != y)
        return x < y ? -1 : 1;
    if (left->bytes != right->bytes)
        return left->bytes > right->bytes ? -1 : 1;
    return memcmp(left->text, right->text, left->bytes);
}

void fsdp__added_tokens_order(fsdp__added_tokens *added)
{
    int64_t next = 0;

    if (added->count > 0)
        qsort(added->tokens, (size_t)added->count, sizeof *added->tokens, compare);
    for (int byte = 0; byte <= 256; byte++) {
        while (next < added->count && (unsigned char)added->tokens[next].text[0] < byte)
            next++;
        added->first[byte] = next;
    }
}

void fsdp__added_tokens_release(fsdp__added_tokens *added)
{
    for (int64_t i = 0; i < added->count; i++)
        fsdp__free(added->tokens[i].text);
    fsdp__free(added->tokens);
    *added = (fsdp__added_tokens){0};
}

/* ---- where one stands ---- */

static const fsdp__added_token *longest_at(const fsdp__added_tokens *added, const char *text, size_t bytes)
{
    unsigned char first = (unsigned char)text[0];

    for (int64_t i = added->first[first]; i < added->first[first + 1]; i++)
        if (added->tokens[i].bytes <= bytes && memcmp(added->tokens[i].text, text, added->tokens[i].bytes) == 0)
            return &added->tokens[i];
    return NULL;
}

static bool is_alone(const char *text, size_t bytes, size_t begin, size_t end)
{
    uint32_t next = 0;

    if (begin > 0 && fsdp__is_word_character(fsdp__utf8_before(text, begin)))
        return false;
    return fsdp__utf8_at(text + end, bytes - end, &next) == 0 || !fsdp__is_word_character(next);
}

static void widen(const char *text, size_t bytes, size_t done, fsdp__added_match *match)
{
    uint32_t character = 0;
    int length;

    if (match->token->lstrip && match->begin < done)
        match->begin = done;
    while (match->token->lstrip && match->begin > done) {
        size_t before = match->begin - 1;

        while (before > 0 && ((unsigned char)text[before] & 0xc0) == 0x80)
            before--;
        if (!fsdp__is_white_space(fsdp__utf8_before(text, match->begin)))
            break;
        match->begin = before;
    }
    while (match->token->rstrip && (length = fsdp__utf8_at(text + match->end, bytes - match->end, &character)) > 0 &&
           fsdp__is_white_space(character))
        match->end += (size_t)length;
}

fsdp__added_match fsdp__added_tokens_next(const fsdp__added_tokens *added, bool plain_specials, const char *text,
                                          size_t bytes, size_t *from, size_t done)
{
    while (added->count > 0 && *from < bytes) {
        const fsdp__added_token *token = longest_at(added, text + *from, bytes - *from);
        fsdp__added_match match = {.begin = *from, .token = token};

        *from += token ? token->bytes : 1;
        if (!token || (token->special && plain_specials))
            continue;
        match.end = *from;
        if (token->single_word && !is_alone(text, bytes, match.begin, match.end))
            continue;
        widen(text, bytes, done, &match);
        if (match.begin < match.end) /* otherwise nothing is left of it */
            return match;
    }
    return (fsdp__added_match){.begin = bytes, .end = bytes};
}

bool fsdp__added_tokens_cross(const fsdp__added_tokens *added, const char *text, size_t bytes, size_t at)
{
    for (int64_t i = 0; i < added->count; i++) {
        const fsdp__added_token *token = &added->tokens[i];
        size_t begin = at > token->bytes ? at - token->bytes - 1 : 0;

        for (; begin <= at + 1; begin++) {
            size_t seen = begin < bytes ? bytes - begin : 0; /* what follows the text may complete a token */

            if (seen == 0 || memcmp(text + begin, token->text, seen < token->bytes ? seen : token->bytes) == 0)
                return true;
        }
    }
    return false;
}
