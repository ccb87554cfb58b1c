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
    fsdp__subwords subwords; /* of the latest word */
    fsdp__text normalized[2], marked;
    bool plain_specials; /* of the text being encoded; `out`: where its ids go */
    bool begun;          /* something of it has been encoded */
    fsdp_token_list *out;
    fsdp__origins *origins; /* of the tokens in `out`; NULL: nobody asks */
};

static fsdp_status add_token(fsdp_encoder *e, int32_t id, fsdp__origin origin)
{
    if (e->origins) {
        fsdp__origins *to = e->origins;

        FSDP_TRY(fsdp__grow(&to->items, to->count, &to->capacity, sizeof *to->items));
        to->items[to->count++] = origin;
    }
    return fsdp__token_list_add(e->out, id);
}

/* ---- words ---- */

/* Adds a token of a word. A ByteLevel that trims leaves out spaces at both ends of its origin. */
static fsdp_status add_subword(fsdp_encoder *e, const fsdp__passage *word, int32_t id, size_t begin, size_t end)
{
    fsdp__origin origin = {0};

    if (e->origins) {
        origin = fsdp__passage_origin(word, end - 1, end);
        while (e->tokenizer->trims && begin < end && word->text[begin] == ' ')
            begin++;
        while (e->tokenizer->trims && end > begin && word->text[end - 1] == ' ')
            end--;
        origin = begin < end ? fsdp__passage_origin(word, begin, end) : (fsdp__origin){origin.end, origin.end};
    }
    return add_token(e, id, origin);
}

/* Adds a word that the cache has: of such words each token stands for the bytes that it has in the vocabulary. */
static fsdp_status add_cached(fsdp_encoder *e, const fsdp__passage *word, const cached_word *cached)
{
    size_t at = 0, length = 0;

    for (int i = 0; i < cached->count; i++, at += length) {
        if (e->origins)
            (void)fsdp__vocabulary_bytes(&e->tokenizer->bpe.vocabulary, cached->ids[i], &length);
        FSDP_TRY(add_subword(e, word, cached->ids[i], at, at + length));
    }
    return FSDP_OK;
}

/* Puts the latest word into the cache if its tokens are all of its bytes, as the vocabulary has them. */
static void remember(const fsdp_encoder *e, const fsdp__passage *word, cached_word *cached)
{
    int32_t ids[CACHED_IDS];
    size_t at = 0, length;

    if (e->subwords.count > CACHED_IDS)
        return;
    for (int64_t i = 0; i < e->subwords.count; i++, at += length) {
        const fsdp__subword *s = &e->subwords.items[i];

        (void)fsdp__vocabulary_bytes(&e->tokenizer->bpe.vocabulary, s->token, &length);
        if ((size_t)s->begin != at || (size_t)(s->end - s->begin) != length)
            return;
        ids[i] = s->token;
    }
    if (at == word->bytes)
        set_cached_word(cached, word->text, word->bytes, ids, e->subwords.count);
}

static fsdp_status add_new_word(fsdp_encoder *e, const fsdp__passage *word)
{
    const fsdp_tokenizer *t = e->tokenizer;

    e->subwords.count = 0;
    if (t->unigram.on)
        FSDP_TRY(fsdp__unigram_tokens(&t->unigram, &t->bpe, &e->unigram, word->text, word->bytes, &e->subwords));
    else
        FSDP_TRY(fsdp__word_tokens(&t->bpe, &e->scratch, word->text, word->bytes, &e->subwords));
    for (int64_t i = 0; i < e->subwords.count; i++) {
        const fsdp__subword *s = &e->subwords.items[i];

        FSDP_TRY(add_subword(e, word, s->token, (size_t)s->begin, (size_t)s->end));
    }
    return FSDP_OK;
}

static fsdp_status add_word(fsdp_encoder *e, const fsdp__passage *word)
{
    cached_word *cached;

    if (word->bytes >= INT32_MAX)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "a word of %zu bytes: at most %d", word->bytes, INT32_MAX - 1);
    if (word->bytes > CACHED_BYTES || !e->cache.words)
        return add_new_word(e, word);
    cached = cached_at(&e->cache, word->text, word->bytes);
    if (cached_word_is(cached, word->text, word->bytes))
        return add_cached(e, word, cached);
    FSDP_TRY(add_new_word(e, word));
    remember(e, word, cached);
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
static fsdp_status add_marked_words(fsdp_encoder *e, const fsdp__passage *piece, bool every)
{
    size_t done = 0;
    bool after_mark = true;
    fsdp__passage word;

    for (size_t i = 0; i < piece->bytes;) {
        bool mark = is_mark(piece->text + i, piece->bytes - i);

        if (mark && i > done && (every || !after_mark)) {
            word = fsdp__passage_part(piece, done, i);
            FSDP_TRY(add_word(e, &word));
            done = i;
        }
        after_mark = mark;
        i += mark ? MARK_BYTES : 1;
    }
    word = fsdp__passage_part(piece, done, piece->bytes);
    return word.bytes > 0 ? add_word(e, &word) : FSDP_OK;
}

/* Receives what the pre-tokenizer has split. */
static fsdp_status add_split_part(void *arg, const fsdp__passage *part)
{
    fsdp_encoder *e = arg;

    return e->tokenizer->words ? add_marked_words(e, part, false) : add_word(e, part);
}

/* Does what the pre-tokenizer Metaspace does. */
static fsdp_status add_metaspaced(fsdp_encoder *e, const fsdp__passage *piece)
{
    fsdp__metaspace scheme = e->tokenizer->metaspace;
    bool prepends = scheme == FSDP__METASPACE_ALWAYS || (scheme == FSDP__METASPACE_FIRST && !e->begun);
    fsdp__passage marked;

    fsdp__text_begin(&e->marked, piece);
    if (prepends && piece->bytes > 0 && piece->text[0] != ' ' && !is_mark(piece->text, piece->bytes))
        FSDP_TRY(fsdp__text_add(&e->marked, FSDP__SPACE_MARK, MARK_BYTES, fsdp__passage_front(piece)));
    for (size_t i = 0; i < piece->bytes; i++)
        FSDP_TRY(piece->text[i] == ' '
                     ? fsdp__text_add(&e->marked, FSDP__SPACE_MARK, MARK_BYTES, fsdp__passage_origin(piece, i, i + 1))
                     : fsdp__text_copy(&e->marked, piece, i, i + 1));
    marked = fsdp__text_passage(&e->marked);
    return e->tokenizer->metaspace_splits ? add_marked_words(e, &marked, true) : add_split_part(e, &marked);
}

/* ---- pieces between added tokens ---- */

typedef fsdp_status (*piece_sink)(fsdp_encoder *e, const fsdp__passage *piece);

static fsdp_status add_pieces(fsdp_encoder *e, const fsdp__added_tokens *added, const fsdp__passage *in,
                              piece_sink sink)
{
    size_t from = 0, done = 0;

    for (;;) {
        fsdp__added_match match = fsdp__added_tokens_next(added, e->plain_specials, in->text, in->bytes, &from, done);
        fsdp__passage piece = fsdp__passage_part(in, done, FSDP__MAX(match.begin, done));

        if (piece.bytes > 0)
            FSDP_TRY(sink(e, &piece));
        if (!match.token)
            return FSDP_OK;
        FSDP_TRY(add_token(e, match.token->id, fsdp__passage_origin(in, match.begin, match.end)));
        e->begun = true;
        done = match.end;
    }
}

static fsdp_status add_words(fsdp_encoder *e, const fsdp__passage *piece)
{
    if (e->tokenizer->metaspace != FSDP__METASPACE_NONE)
        FSDP_TRY(add_metaspaced(e, piece));
    else
        FSDP_TRY(fsdp__pre_tokenize(&e->tokenizer->pre_tokenizer, e->matcher, piece, add_split_part, e));
    e->begun = true;
    return FSDP_OK;
}

static fsdp_status add_raw_piece(fsdp_encoder *e, const fsdp__passage *piece)
{
    fsdp__passage normal;

    FSDP_TRY(fsdp__normalize(&e->tokenizer->normalizer, !e->begun, piece, e->normalized, &normal));
    return add_pieces(e, &e->tokenizer->normalized, &normal, add_words);
}

/* Adds what stands around a text, which was made of nothing. */
static fsdp_status add_list(fsdp_encoder *e, const fsdp_token_list *from)
{
    for (int64_t i = 0; i < from->count; i++)
        FSDP_TRY(add_token(e, from->ids[i], (fsdp__origin){0}));
    return FSDP_OK;
}

/* ---- whole texts ---- */

fsdp_status fsdp__encoder_trace(fsdp_encoder *encoder, const char *text, size_t bytes,
                                const fsdp_encode_options *options, fsdp_token_list *out, fsdp__origins *origins)
{
    const fsdp__passage whole = {.text = text, .bytes = bytes, .traced = origins != NULL};
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
    encoder->origins = origins;
    encoder->begun = false;
    if (options && options->add_specials)
        FSDP_TRY(add_list(encoder, &tokenizer->prefix));
    FSDP_TRY(add_pieces(encoder, &tokenizer->raw, &whole, add_raw_piece));
    if (options && options->add_specials)
        FSDP_TRY(add_list(encoder, &tokenizer->suffix));
    return FSDP_OK;
}

fsdp_status fsdp_encoder_encode(fsdp_encoder *encoder, const char *text, size_t bytes,
                                const fsdp_encode_options *options, fsdp_token_list *out)
{
    return fsdp__encoder_trace(encoder, text, bytes, options, out, NULL);
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
    FSDP__FREE_ALL(encoder->subwords.items, encoder);
}

fsdp_status fsdp__tokenizer_trace(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes,
                                  const fsdp_encode_options *options, fsdp_token_list *out, fsdp__origins *origins)
{
    FSDP__SCOPED(fsdp_encoder_free_at) fsdp_encoder *encoder = NULL;

    if (!tokenizer)
        return FSDP_FAIL(FSDP_INVALID, "cannot encode: tokenizer is required");
    FSDP_TRY(create(tokenizer, false, &encoder));
    return fsdp__encoder_trace(encoder, text, bytes, options, out, origins);
}

fsdp_status fsdp_tokenizer_encode(const fsdp_tokenizer *tokenizer, const char *text, size_t bytes,
                                  const fsdp_encode_options *options, fsdp_token_list *out)
{
    return fsdp__tokenizer_trace(tokenizer, text, bytes, options, out, NULL);
}
