/* nfc.c - form C through utf8proc, for those stretches alone that may not be in it. */
#include "tokenizer/nfc.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"

enum {
    FIRST_COMBINING = 0x300, /* all characters before it begin something new */
    HANGUL_VOWELS = 0x1160,  /* from here to HANGUL_END: what a syllable goes on with */
    HANGUL_END = 0x1200
};

fsdp_status fsdp__text_append(fsdp__text *text, const char *bytes, size_t count)
{
    if (fsdp__grow(&text->bytes, text->count + (int64_t)count, &text->capacity, 1) != 0)
        return FSDP_NO_MEMORY;
    memcpy(text->bytes + text->count, bytes, count);
    text->count += (int64_t)count;
    return FSDP_OK;
}

void fsdp__text_release(fsdp__text *text)
{
    fsdp__free(text->bytes);
    *text = (fsdp__text){0};
}

/* Hugging Face's tokenizers normalizes by Unicode 9: what came later stays where it is, and what is around it does not
 * see it. The characters that a later Unicode would move, join or take apart. */
static const uint32_t later[][2] = {
    {0x5c8, 0x5c9},     {0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1af0},
    {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x105c9, 0x105c9}, {0x105e4, 0x105e4}, {0x10d24, 0x10d27},
    {0x10d69, 0x10d6d}, {0x10eab, 0x10eac}, {0x10ecb, 0x10ecf}, {0x10ef0, 0x10efb}, {0x10efd, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x11383, 0x11383},
    {0x11385, 0x11385}, {0x1138e, 0x1138e}, {0x11391, 0x11391}, {0x113c5, 0x113c5}, {0x113c7, 0x113c8},
    {0x113ce, 0x113d0}, {0x1145e, 0x1145e}, {0x11839, 0x1183a}, {0x11938, 0x11938}, {0x1193d, 0x1193e},
    {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
    {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16121, 0x16128},
    {0x1612f, 0x1612f}, {0x16d68, 0x16d6a}, {0x16ff0, 0x16ff1}, {0x1d127, 0x1d128}, {0x1d250, 0x1d252},
    {0x1d25b, 0x1d25c}, {0x1d25f, 0x1d25f}, {0x1d280, 0x1d281}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3},
    {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef}, {0x1e6f5, 0x1e6f5}};

static bool is_later(uint32_t character)
{
    size_t low = 0, high = FSDP__COUNT_OF(later);

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (character > later[middle][1])
            low = middle + 1;
        else
            high = middle;
    }
    return low < FSDP__COUNT_OF(later) && character >= later[low][0];
}

bool fsdp__nfc_begins(uint32_t character)
{
    const utf8proc_property_t *property;

    if (character < FIRST_COMBINING)
        return true;
    if (character >= HANGUL_VOWELS && character < HANGUL_END)
        return false;
    if (is_later(character))
        return true;
    property = utf8proc_get_property((utf8proc_int32_t)character);
    return property->category != UTF8PROC_CATEGORY_CN && property->combining_class == 0 &&
           (property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0) &&
           property->comb_index == UINT16_MAX;
}

/* How many bytes from `at` on are one stretch: a character that begins something, and all behind it that do not. */
static size_t stretch_bytes(const char *text, size_t bytes, size_t at)
{
    uint32_t character;
    size_t end = at + (size_t)fsdp__utf8_next(text + at, &character);

    while (end < bytes) {
        int length = fsdp__utf8_next(text + end, &character);

        if (fsdp__nfc_begins(character))
            break;
        end += (size_t)length;
    }
    return end - at;
}

/* Where the first stretch from `at` on begins that is of more than one character, or of one that may change. */
static size_t next_doubtful(const char *text, size_t bytes, size_t at)
{
    size_t last = at;

    while (at < bytes) {
        uint32_t character;
        int length;

        if ((unsigned char)text[at] < 0x80) {
            last = at++;
            continue;
        }
        length = fsdp__utf8_next(text + at, &character);
        if (!fsdp__nfc_begins(character))
            return last;
        last = is_later(character) ? at + (size_t)length : at; /* nothing joins it */
        at += (size_t)length;
    }
    return bytes;
}

static fsdp_status append_composed(fsdp__text *out, const char *text, size_t bytes)
{
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t count = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &composed,
                                          UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    fsdp_status status;

    if (count < 0)
        return FSDP_FAIL(count == UTF8PROC_ERROR_NOMEM ? FSDP_NO_MEMORY : FSDP_INVALID,
                         "cannot bring %zu bytes of text into form C: %s", bytes, utf8proc_errmsg(count));
    status = fsdp__text_append(out, (const char *)composed, (size_t)count);
    free(composed);
    return status;
}

fsdp_status fsdp__nfc(const char *text, size_t bytes, fsdp__text *scratch, const char **out, size_t *out_bytes)
{
    size_t doubtful = next_doubtful(text, bytes, 0), done = 0;

    *out = text;
    *out_bytes = bytes;
    if (doubtful == bytes)
        return FSDP_OK;
    scratch->count = 0;
    while (done < bytes) {
        size_t stretch = doubtful < bytes ? stretch_bytes(text, bytes, doubtful) : 0;

        FSDP_TRY(fsdp__text_append(scratch, text + done, doubtful - done));
        if (stretch)
            FSDP_TRY(append_composed(scratch, text + doubtful, stretch));
        done = doubtful + stretch;
        doubtful = next_doubtful(text, bytes, done);
    }
    *out = scratch->bytes;
    *out_bytes = (size_t)scratch->count;
    return FSDP_OK;
}
