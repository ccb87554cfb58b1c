/* cut.c - finds places where a text may be cut without changing its ids. */
#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

bool fsdp__tokenizer_can_cut(const fsdp_tokenizer *tokenizer)
{
    const fsdp__pre_tokenizer *p = &tokenizer->pre_tokenizer;
    bool cuts = false;

    for (int i = 0; i < p->count; i++) {
        if (p->steps[i].cut == FSDP__CUTS_UNKNOWN)
            return false;
        cuts = cuts || p->steps[i].cut == FSDP__CUTS;
    }
    /* With a normalizer, those tokens are searched for in the normalized text, and not in the text that is cut. */
    return cuts && (tokenizer->normalizer.count == 0 || tokenizer->normalized.count == 0);
}

static bool is_letter(char byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

static bool between_words(const char *text, size_t bytes, size_t at)
{
    return text[at] == ' ' && at + 1 < bytes && is_letter(text[at - 1]) && is_letter(text[at + 1]);
}

/* Returns whether `at` comes after the end of a line, which has no white space before it, and before a letter, a digit
 * or a character beyond ASCII. */
static bool between_lines(const char *text, size_t bytes, size_t at)
{
    uint32_t next = 0;
    bool plain;

    if (text[at - 1] != '\n' || at < 2 || fsdp__utf8_at(text + at, bytes - at, &next) == 0)
        return false;
    plain = next < 0x80 ? is_letter(text[at]) || (next >= '0' && next <= '9')
                        : !fsdp__is_white_space(next) && fsdp__nfc_begins(next);
    return plain && !fsdp__is_white_space(fsdp__utf8_before(text, at - 1));
}

static bool crosses(const fsdp_tokenizer *t, const char *text, size_t bytes, size_t at)
{
    return fsdp__added_tokens_cross(&t->raw, text, bytes, at) ||
           fsdp__added_tokens_cross(&t->normalized, text, bytes, at);
}

static bool prefixes_space(const fsdp__pre_tokenizer *p)
{
    for (int i = 0; i < p->count; i++)
        if (p->steps[i].add_prefix_space)
            return true;
    return false;
}

size_t fsdp__tokenizer_find_cut(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes)
{
    bool spaces_only = prefixes_space(&tokenizer->pre_tokenizer);

    if (!fsdp__tokenizer_can_cut(tokenizer))
        return 0;
    for (size_t at = bytes; at-- > 1;)
        if ((between_words(text, bytes, at) || (!spaces_only && between_lines(text, bytes, at))) &&
            !crosses(tokenizer, text, bytes, at))
            return at;
    return 0;
}
