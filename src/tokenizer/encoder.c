/* encoder.c - turns text into ids: added tokens, the normalizer, words, and their tokens. */
#include <string.h>

#include "base/alloc.h"
#include "fsdp/tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

/* ---- the cache of words: most of a text consists of few words ---- */

enum {
    CACHED_BYTES = 30,
    CACHED_IDS = 8
};

/* Holds one word and its tokens, of the size of a cache line. */
typedef struct cached_word {
    uint8_t bytes, count; /* bytes is 0: the entry is free */
    char word[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
} cached_word;

typedef struct word_cache {
    cached_word *words; /* for each hash, the latest word that had it */
} word_cache;

enum {
    WORDS_LOG = 15 /* 2 MiB: about the fast memory of a core */
};

static fsdp_status word_cache_init(word_cache *cache)
{
    cache->words = fsdp__calloc((size_t)1 << WORDS_LOG, sizeof *cache->words);
    return cache->words ? FSDP_OK : FSDP_NO_MEMORY;
}

static void word_cache_release(word_cache *cache)
{
    fsdp__free(fsdp__take(&cache->words));
}

static uint64_t load(const char *bytes, size_t count)
{
    uint64_t value = 0;

    memcpy(&value, bytes, count);
    return value;
}

static uint64_t hash_word(const char *word, size_t bytes)
{
    uint64_t hash = bytes;

    for (; bytes >= 8; word += 8, bytes -= 8)
        hash = (hash ^ load(word, 8)) * 0x9e3779b97f4a7c15u;
    hash = (hash ^ load(word, bytes) ^ hash >> 29) * 0xbf58476d1ce4e5b9u;
    return hash >> (64 - WORDS_LOG);
}

/* Returns the entry for a word of 1 to CACHED_BYTES bytes; cached_word_is tells whether it holds the word. */
static cached_word *cached_at(const word_cache *cache, const char *word, size_t bytes)
{
    return &cache->words[hash_word(word, bytes)];
}

static bool cached_word_is(const cached_word *cached, const char *word, size_t bytes)
{
    return cached->bytes == bytes && memcmp(cached->word, word, bytes) == 0;
}

static void set_cached_word(cached_word *cached, const char *word, size_t bytes, const int32_t *ids, int64_t count)
{
    if (count > CACHED_IDS)
        return;
    cached->bytes = (uint8_t)bytes;
    cached->count = (uint8_t)count;
    memcpy(cached->word, word, bytes);
    memcpy(cached->ids, ids, (size_t)count * sizeof *ids);
}

/* ---- encoding ---- */

struct fsdp_encoder {
    const fsdp_tokenizer *tokenizer;
    fsdp__matcher *matcher;
    word_cache cache; /* `words` is NULL for a single text: not worth it */
    fsdp__word_scratch scratch;
    fsdp__unigram_scratch unigram;
    fsdp__text normalized[2], marked;
    bool plain_specials; /* of the text being encoded; `out`: where its ids go */
    bool begun;          /* something of it has been encoded */
    fsdp_token_list *out;
};

/* ---- words ---- */

static fsdp_status word_tokens(fsdp_encoder *e, const char *word, size_t bytes)
{
    const fsdp_tokenizer *t = e->tokenizer;

    return t->unigram.on ? fsdp__unigram_tokens(&t->unigram, &t->bpe, &e->unigram, word, bytes, e->out)
                         : fsdp__word_tokens(&t->bpe, &e->scratch, word, bytes, e->out);
}

static fsdp_status add_word(void *arg, const char *word, size_t bytes)
{
    fsdp_encoder *e = arg;
    cached_word *cached;
    int64_t before = e->out->count, left_out = e->scratch.left_out;

    if (bytes >= INT32_MAX)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "a word of %zu bytes: at most %d", bytes, INT32_MAX - 1);
    if (bytes > CACHED_BYTES || !e->cache.words)
        return word_tokens(e, word, bytes);
    cached = cached_at(&e->cache, word, bytes);
    if (cached_word_is(cached, word, bytes)) {
        for (int i = 0; i < cached->count; i++)
            FSDP_TRY(fsdp__token_list_add(e->out, cached->ids[i]));
        return FSDP_OK;
    }
    FSDP_TRY(word_tokens(e, word, bytes));
    if (left_out == e->scratch.left_out) /* bytes that are left out are counted every time */
        set_cached_word(cached, word, bytes, e->out->ids + before, e->out->count - before);
    return FSDP_OK;
}

/* ---- words with marks for spaces ---- */

enum {
    MARK_BYTES = sizeof FSDP__SPACE_MARK - 1
};

static bool is_mark(const char *text, size_t bytes)
{
    return bytes >= MARK_BYTES && memcmp(text, FSDP__SPACE_MARK, MARK_BYTES) == 0;
}

/* Adds the words of a piece, each of which begins with a space mark: with every one, or with the first of several. */
static fsdp_status add_marked_words(fsdp_encoder *e, const char *text, size_t bytes, bool every)
{
    size_t done = 0;
    bool after_mark = true;

    for (size_t i = 0; i < bytes;) {
        bool mark = is_mark(text + i, bytes - i);

        if (mark && i > done && (every || !after_mark)) {
            FSDP_TRY(add_word(e, text + done, i - done));
            done = i;
        }
        after_mark = mark;
        i += mark ? MARK_BYTES : 1;
    }
    return bytes > done ? add_word(e, text + done, bytes - done) : FSDP_OK;
}

/* Receives what the pre-tokenizer has split. */
static fsdp_status add_split_part(void *arg, const char *text, size_t bytes)
{
    fsdp_encoder *e = arg;

    return e->tokenizer->words ? add_marked_words(e, text, bytes, false) : add_word(e, text, bytes);
}

/* Does what the pre-tokenizer Metaspace does. */
static fsdp_status add_metaspaced(fsdp_encoder *e, const char *text, size_t bytes)
{
    fsdp__metaspace scheme = e->tokenizer->metaspace;
    bool prepends = scheme == FSDP__METASPACE_ALWAYS || (scheme == FSDP__METASPACE_FIRST && !e->begun);

    e->marked.count = 0;
    if (prepends && bytes > 0 && text[0] != ' ' && !is_mark(text, bytes))
        FSDP_TRY(fsdp__text_append(&e->marked, FSDP__SPACE_MARK, MARK_BYTES));
    for (size_t i = 0; i < bytes; i++)
        FSDP_TRY(text[i] == ' ' ? fsdp__text_append(&e->marked, FSDP__SPACE_MARK, MARK_BYTES)
                                : fsdp__text_append(&e->marked, text + i, 1));
    if (e->tokenizer->metaspace_splits)
        return add_marked_words(e, e->marked.bytes, (size_t)e->marked.count, true);
    return add_split_part(e, e->marked.bytes, (size_t)e->marked.count);
}

/* ---- pieces between added tokens ---- */

typedef fsdp_status (*piece_sink)(fsdp_encoder *e, const char *text, size_t bytes);

static fsdp_status add_pieces(fsdp_encoder *e, const fsdp__added_tokens *added, const char *text, size_t bytes,
                              piece_sink sink)
{
    size_t from = 0, done = 0;

    for (;;) {
        fsdp__added_match match = fsdp__added_tokens_next(added, e->plain_specials, text, bytes, &from, done);

        if (match.begin > done)
            FSDP_TRY(sink(e, text + done, match.begin - done));
        if (!match.token)
            return FSDP_OK;
        FSDP_TRY(fsdp__token_list_add(e->out, match.token->id));
        e->begun = true;
        done = match.end;
    }
}

static fsdp_status add_words(fsdp_encoder *e, const char *text, size_t bytes)
{
    if (e->tokenizer->metaspace != FSDP__METASPACE_NONE)
        FSDP_TRY(add_metaspaced(e, text, bytes));
    else
        FSDP_TRY(fsdp__pre_tokenize(&e->tokenizer->pre_tokenizer, e->matcher, text, bytes, add_split_part, e));
    e->begun = true;
    return FSDP_OK;
}

static fsdp_status add_raw_piece(fsdp_encoder *e, const char *text, size_t bytes)
{
    FSDP_TRY(fsdp__normalize(&e->tokenizer->normalizer, !e->begun, text, bytes, e->normalized, &text, &bytes));
    return add_pieces(e, &e->tokenizer->normalized, text, bytes, add_words);
}

static fsdp_status add_list(const fsdp_token_list *from, fsdp_token_list *to)
{
    for (int64_t i = 0; i < from->count; i++)
        FSDP_TRY(fsdp__token_list_add(to, from->ids[i]));
    return FSDP_OK;
}

/* ---- whole texts ---- */

fsdp_status fsdp_encoder_encode(fsdp_encoder *encoder, const char *text, size_t bytes,
                                const fsdp_encode_options *options, fsdp_token_list *out)
{
    const fsdp_tokenizer *tokenizer;
    size_t good;

    if (!encoder || (!text && bytes > 0) || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot encode: encoder, text and out are required");
    good = fsdp__utf8_prefix(text, bytes);
    if (good < bytes)
        return FSDP_FAIL(FSDP_FORMAT, "the text is not UTF-8 at offset %zu (byte 0x%02x)", good,
                         (unsigned)(unsigned char)text[good]);
    tokenizer = encoder->tokenizer;
    encoder->plain_specials = options && options->plain_specials;
    encoder->out = out;
    encoder->begun = false;
    if (options && options->add_specials)
        FSDP_TRY(add_list(&tokenizer->prefix, out));
    FSDP_TRY(add_pieces(encoder, &tokenizer->raw, text, bytes, add_raw_piece));
    if (options && options->add_specials)
        FSDP_TRY(add_list(&tokenizer->suffix, out));
    return FSDP_OK;
}

static fsdp_status create(const fsdp_tokenizer *tokenizer, bool caches, fsdp_encoder **out)
{
    FSDP__SCOPED(fsdp_encoder_free_at) fsdp_encoder *encoder = fsdp__calloc(1, sizeof *encoder);

    *out = NULL;
    FSDP__TRY_NEW(encoder);
    FSDP_TRY(fsdp__matcher_create(&encoder->matcher));
    if (caches)
        FSDP_TRY(word_cache_init(&encoder->cache));
    encoder->tokenizer = tokenizer;
    *out = fsdp__take(&encoder);
    return FSDP_OK;
}

fsdp_status fsdp_encoder_create(const fsdp_tokenizer *tokenizer, fsdp_encoder **out)
{
    if (!tokenizer || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot create an encoder: tokenizer and out are required");
    return create(tokenizer, true, out);
}

int64_t fsdp_encoder_left_out(const fsdp_encoder *encoder)
{
    return encoder ? encoder->scratch.left_out : 0;
}

void fsdp_encoder_free(fsdp_encoder *encoder)
{
    if (!encoder)
        return;
    fsdp__matcher_free(encoder->matcher);
    word_cache_release(&encoder->cache);
    fsdp__word_scratch_release(&encoder->scratch);
    fsdp__unigram_scratch_release(&encoder->unigram);
    for (int i = 0; i < 2; i++)
        fsdp__text_release(&encoder->normalized[i]);
    fsdp__text_release(&encoder->marked);
    fsdp__free(encoder);
}

fsdp_status fsdp_tokenizer_encode(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes,
                                  const fsdp_encode_options *options, fsdp_token_list *out)
{
    FSDP__SCOPED(fsdp_encoder_free_at) fsdp_encoder *encoder = NULL;

    if (!tokenizer)
        return FSDP_FAIL(FSDP_INVALID, "cannot encode: tokenizer is required");
    FSDP_TRY(create(tokenizer, false, &encoder));
    return fsdp_encoder_encode(encoder, text, bytes, options, out);
}
