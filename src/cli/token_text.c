/* token_text.c - turns a prompt into tokens, and tokens into what can be printed. */
#include "cli/token_text.h"

#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "hub/held_folder.h"

#define REPLACEMENT "\xEF\xBF\xBD"

fsdp_status fsdp__token_text_open(const char *folder, const char *path, int64_t vocab_size, fsdp__token_text *out)
{
    static const fsdp_decode_options options = {.skip_specials = true};

    memset(out, 0, sizeof *out);
    if (path && strcmp(path, "bytes") == 0)
        return FSDP_OK;
    if (!path && !fsdp__hub_has_tokenizer(folder)) {
        if (vocab_size == 256)
            return FSDP_OK;
        return FSDP_FAIL(FSDP_NOT_FOUND,
                         "'%s' has no tokenizer (tokenizer.json, or vocab.json and merges.txt), and its %lld tokens "
                         "may not be bytes: give --tokenizer FOLDER or --tokenizer bytes, or ids with --tokens 1,2,3",
                         folder, (long long)vocab_size);
    }
    FSDP_TRY(fsdp_tokenizer_open(path ? path : folder, &out->tokenizer));
    return fsdp_decoder_create(out->tokenizer, &options, &out->decoder);
}

void fsdp__token_text_close(fsdp__token_text *text)
{
    fsdp_decoder_free(text->decoder);
    fsdp_tokenizer_close(text->tokenizer);
}

fsdp_status fsdp__bad_line_option(const char *text, bool *out_skip)
{
    *out_skip = text && strcmp(text, "skip") == 0;
    if (!text || *out_skip || strcmp(text, "error") == 0)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "--on-bad-line is '%s': expected error or skip", text);
}

/* ---- a prompt ---- */

static fsdp_status encode_by_tokenizer(const fsdp__token_text *text, const char *prompt, size_t bytes, int64_t more,
                                       int32_t **out, int64_t *out_count)
{
    static const fsdp_encode_options options = {.add_specials = true};
    FSDP__SCOPED(fsdp_token_list_release) fsdp_token_list list = {.count = 0};

    FSDP_TRY(fsdp_tokenizer_encode(text->tokenizer, prompt, bytes, &options, &list));
    *out = fsdp__calloc((size_t)(list.count + more), sizeof **out);
    if (!*out)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read the prompt");
    if (list.count > 0)
        memcpy(*out, list.ids, (size_t)list.count * sizeof **out);
    *out_count = list.count;
    return FSDP_OK;
}

fsdp_status fsdp__token_text_encode(fsdp__token_text *text, const char *prompt, size_t bytes, int64_t more,
                                    int32_t **out, int64_t *out_count)
{
    if (text->tokenizer)
        return encode_by_tokenizer(text, prompt, bytes, more, out, out_count);
    *out = fsdp__calloc(bytes + (size_t)more, sizeof **out);
    if (!*out)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot read the prompt");
    for (size_t i = 0; i < bytes; i++)
        (*out)[i] = (unsigned char)prompt[i];
    *out_count = (int64_t)bytes;
    return FSDP_OK;
}

/* ---- bytes to characters ---- */

/* Returns the length of the character that begins with this byte; 1 if none does. */
static int bytes_of(unsigned char first)
{
    return first < 0xC2 || first > 0xF4 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

/* Writes the bytes so far, which are a character or can never become one. */
static bool write_half(fsdp__token_text *text, FILE *to)
{
    uint32_t character;
    bool whole;

    text->half[text->half_bytes] = '\0';
    whole = fsdp__utf8_next(text->half, &character) == text->half_bytes;
    if (whole)
        (void)fwrite(text->half, 1, (size_t)text->half_bytes, to);
    else
        (void)fputs(REPLACEMENT, to);
    text->half_bytes = 0;
    return ferror(to) == 0;
}

/* Prints a byte. A vocabulary may be larger than that of bytes; tokens beyond are printed as U+FFFD. */
static bool print_byte(fsdp__token_text *text, int32_t byte, FILE *to)
{
    bool good = true;

    if (text->half_bytes > 0 && (byte & ~0x3F) != 0x80) /* the one before is incomplete */
        good = write_half(text, to);
    if (byte > 255)
        return fputs(REPLACEMENT, to) >= 0 && good;
    text->half[text->half_bytes++] = (char)byte;
    if (text->half_bytes == bytes_of((unsigned char)text->half[0]))
        good = write_half(text, to) && good;
    return good;
}

/* ---- what is generated ---- */

void fsdp__token_text_echo(fsdp__token_text *text, const char *prompt, size_t bytes, FILE *to)
{
    if (text->tokenizer)
        (void)fwrite(prompt, 1, bytes, to);
    for (size_t i = 0; i < bytes && !text->tokenizer; i++) /* the prompt may end within a character */
        (void)print_byte(text, (unsigned char)prompt[i], to);
    (void)fflush(to);
}

/* Prints a token. A vocabulary may be larger than the tokenizer's; tokens that it does not know are not text. */
static bool print_token(fsdp__token_text *text, int32_t token, FILE *to)
{
    const char *piece = NULL;
    size_t bytes = 0;

    if (token < fsdp_tokenizer_vocab_size(text->tokenizer) &&
        fsdp_decoder_push(text->decoder, token, &piece, &bytes) == FSDP_OK)
        (void)fwrite(piece, 1, bytes, to);
    return ferror(to) == 0;
}

bool fsdp__token_text_print(fsdp__token_text *text, int32_t token, FILE *to)
{
    bool good = text->tokenizer ? print_token(text, token, to) : print_byte(text, token, to);

    return fflush(to) == 0 && good;
}

bool fsdp__token_text_end(fsdp__token_text *text, FILE *to)
{
    const char *piece = NULL;
    size_t bytes = 0;

    if (!text->tokenizer)
        return text->half_bytes == 0 || write_half(text, to);
    if (fsdp_decoder_finish(text->decoder, &piece, &bytes) == FSDP_OK)
        (void)fwrite(piece, 1, bytes, to);
    return ferror(to) == 0;
}
