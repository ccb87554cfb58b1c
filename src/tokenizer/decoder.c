/* decoder.c - turns ids into text: the bytes of tokens, with U+FFFD for those that are not UTF-8. */
#include "base/alloc.h"
#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd"

struct fsdp_decoder {
    const fsdp_tokenizer *tokenizer;
    bool skip_specials;
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

/* Turns the bytes that came since the last call, after those that waited, into text. */
static fsdp_status flush(fsdp_decoder *d, const char *bytes, size_t count, bool last, const char **text,
                         size_t *text_bytes)
{
    d->in.count = d->text.count = 0;
    FSDP_TRY(fsdp__text_append(&d->in, d->waiting, d->waiting_bytes));
    FSDP_TRY(fsdp__text_append(&d->in, bytes, count));
    FSDP_TRY(take_text(d, last));
    FSDP_TRY(fsdp__text_append(&d->text, "", 1));
    *text = d->text.bytes;
    *text_bytes = (size_t)d->text.count - 1;
    return FSDP_OK;
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
    const char *token;
    size_t count;

    if (!decoder || !text || !bytes)
        return FSDP_FAIL(FSDP_INVALID, "cannot decode: decoder, text and bytes are required");
    FSDP_TRY(token_bytes(decoder->tokenizer, decoder->skip_specials, id, &token, &count));
    return flush(decoder, token, count, false, text, bytes);
}

fsdp_status fsdp_decoder_finish(fsdp_decoder *decoder, const char **text, size_t *bytes)
{
    if (!decoder || !text || !bytes)
        return FSDP_FAIL(FSDP_INVALID, "cannot decode: decoder, text and bytes are required");
    return flush(decoder, "", 0, true, text, bytes);
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
    fsdp_decoder decoder = {.tokenizer = tokenizer};
    fsdp_status status = FSDP_OK;

    if (!tokenizer || (!ids && count > 0) || count < 0 || !out || !out_bytes)
        return FSDP_FAIL(FSDP_INVALID, "cannot decode: tokenizer, ids, out and out_bytes are required");
    *out = NULL;
    for (int64_t i = 0; i < count && status == FSDP_OK; i++) {
        const char *token;
        size_t bytes;

        status = token_bytes(tokenizer, options && options->skip_specials, ids[i], &token, &bytes);
        if (status == FSDP_OK)
            status = fsdp__text_append(&decoder.in, token, bytes);
    }
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
