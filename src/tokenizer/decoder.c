/* decoder.c - turns ids into text: the bytes of tokens, with U+FFFD for those that are not UTF-8. */
#include <string.h>

#include "base/alloc.h"
#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd"

struct fsdp_decoder {
    const fsdp_tokenizer *tokenizer;
    bool skip_specials;
    bool begun;      /* something has been decoded */
    char waiting[4]; /* the bytes of a character that is not complete yet */
    size_t waiting_bytes;
    fsdp__text in, text; /* bytes that have come, and the text made of them */
};

/* Moves what is text from `in` to `text`. `last`: nothing more will come. */
static fsdp_status take_text(fsdp_decoder *d, bool last)
{
    const char *at = d->in.bytes;
    size_t left = (size_t)d->in.count;

    d->waiting_bytes = 0;
    while (left > 0) {
        size_t good = fsdp__utf8_prefix(at, left), bad;
        bool cut;

        FSDP_TRY(fsdp__text_append(&d->text, at, good));
        at += good;
        left -= good;
        if (left == 0)
            break;
        bad = fsdp__utf8_broken(at, left, &cut);
        if (cut && !last) {
            for (; d->waiting_bytes < left; d->waiting_bytes++)
                d->waiting[d->waiting_bytes] = at[d->waiting_bytes];
            break;
        }
        FSDP_TRY(fsdp__text_append(&d->text, REPLACEMENT, sizeof REPLACEMENT - 1));
        at += bad;
        left -= bad;
    }
    return FSDP_OK;
}

/* Begins a call: the bytes that waited come first. */
static fsdp_status begin(fsdp_decoder *d)
{
    d->in.count = d->text.count = 0;
    return fsdp__text_append(&d->in, d->waiting, d->waiting_bytes);
}

/* Turns the bytes that have come into text. */
static fsdp_status flush(fsdp_decoder *d, bool last, const char **text, size_t *text_bytes)
{
    FSDP_TRY(take_text(d, last));
    FSDP_TRY(fsdp__text_append(&d->text, "", 1));
    *text = d->text.bytes;
    *text_bytes = (size_t)d->text.count - 1;
    return FSDP_OK;
}

/* Adds bytes to `in`, without spaces in front of everything if the decoder strips them. */
static fsdp_status append(fsdp_decoder *d, const char *bytes, size_t count)
{
    while (!d->begun && count > 0 && d->tokenizer->strips && bytes[0] == ' ') {
        bytes++;
        count--;
        d->begun = !d->tokenizer->strips_all;
    }
    d->begun = d->begun || count > 0;
    return fsdp__text_append(&d->in, bytes, count);
}

/* Adds the text of a token in which U+2581 stands for a space. */
static fsdp_status append_marked(fsdp_decoder *d, const char *bytes, size_t count)
{
    size_t mark = sizeof FSDP__SPACE_MARK - 1, done = 0;

    for (size_t i = 0; i + mark <= count;) {
        if (memcmp(bytes + i, FSDP__SPACE_MARK, mark) != 0) {
            i++;
            continue;
        }
        FSDP_TRY(append(d, bytes + done, i - done));
        FSDP_TRY(append(d, " ", 1));
        done = i += mark;
    }
    return append(d, bytes + done, count - done);
}

static fsdp_status token_bytes(const fsdp_tokenizer *tokenizer, bool skip_specials, int32_t id, const char **bytes,
                               size_t *count)
{
    const fsdp__vocabulary *vocabulary = &tokenizer->bpe.vocabulary;

    if (!fsdp__vocabulary_has(vocabulary, id))
        return FSDP_FAIL(FSDP_INVALID, "cannot decode id %d: the tokenizer has no such token (it has ids up to %lld)",
                         (int)id, (long long)vocabulary->count - 1);
    *bytes = fsdp__vocabulary_bytes(vocabulary, id, count);
    if (skip_specials && vocabulary->tokens[id].special)
        *count = 0;
    return FSDP_OK;
}

/* Adds a token to `in`. */
static fsdp_status append_token(fsdp_decoder *d, int32_t id)
{
    const fsdp__bpe *bpe = &d->tokenizer->bpe;
    const char *bytes = NULL;
    size_t count = 0;

    FSDP_TRY(token_bytes(d->tokenizer, d->skip_specials, id, &bytes, &count));
    if (!fsdp__tokenizer_has_marks(d->tokenizer))
        return append(d, bytes, count);
    for (int byte = 0; byte < 256 && count == 6 && bytes[0] == '<'; byte++) /* as "<0x0A>" has */
        if (bpe->byte_tokens[byte] == id)
            return append(d, &(char){(char)byte}, 1);
    return append_marked(d, bytes, count);
}

fsdp_status fsdp_decoder_create(const fsdp_tokenizer *tokenizer, const fsdp_decode_options *options, fsdp_decoder **out)
{
    if (!tokenizer || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a decoder: tokenizer and out are required");
    FSDP__TRY_NEW(*out = fsdp__calloc(1, sizeof **out));
    (*out)->tokenizer = tokenizer;
    (*out)->skip_specials = options && options->skip_specials;
    return FSDP_OK;
}

fsdp_status fsdp_decoder_push(fsdp_decoder *decoder, int32_t id, const char **text, size_t *bytes)
{
    if (!decoder || !text || !bytes)
        return FSDP_FAIL(FSDP_INVALID, "cannot decode: decoder, text and bytes are required");
    FSDP_TRY(begin(decoder));
    FSDP_TRY(append_token(decoder, id));
    return flush(decoder, false, text, bytes);
}

fsdp_status fsdp_decoder_finish(fsdp_decoder *decoder, const char **text, size_t *bytes)
{
    if (!decoder || !text || !bytes)
        return FSDP_FAIL(FSDP_INVALID, "cannot decode: decoder, text and bytes are required");
    FSDP_TRY(begin(decoder));
    decoder->begun = false;
    return flush(decoder, true, text, bytes);
}

void fsdp_decoder_free(fsdp_decoder *decoder)
{
    if (!decoder)
        return;
    fsdp__text_release(&decoder->in);
    fsdp__text_release(&decoder->text);
    fsdp__free(decoder);
}

fsdp_status fsdp_tokenizer_decode(const fsdp_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                  const fsdp_decode_options *options, char **out, size_t *out_bytes)
{
    fsdp_decoder decoder = {.tokenizer = tokenizer, .skip_specials = options && options->skip_specials};
    fsdp_status status = FSDP_OK;

    if (!tokenizer || (!ids && count > 0) || count < 0 || !out || !out_bytes)
        return FSDP_FAIL(FSDP_INVALID, "cannot decode: tokenizer, ids, out and out_bytes are required");
    *out = NULL;
    for (int64_t i = 0; i < count && status == FSDP_OK; i++)
        status = append_token(&decoder, ids[i]);
    if (status == FSDP_OK)
        status = take_text(&decoder, true);
    if (status == FSDP_OK)
        status = fsdp__text_append(&decoder.text, "", 1);
    fsdp__text_release(&decoder.in);
    if (status != FSDP_OK) {
        fsdp__text_release(&decoder.text);
        return status;
    }
    *out = decoder.text.bytes;
    *out_bytes = (size_t)decoder.text.count - 1;
    return FSDP_OK;
}
