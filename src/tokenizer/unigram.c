/* unigram.c - finds the best way to cut a word into pieces, from left to right. */
#include "tokenizer/unigram.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "tokenizer/utf8.h"

/* ---- pieces in order ---- */

static bool goes_before(const fsdp__vocabulary *v, int32_t a, int32_t b)
{
    const fsdp__token *x = &v->tokens[a], *y = &v->tokens[b];
    int order = memcmp(v->bytes + x->at, v->bytes + y->at, FSDP__MIN(x->bytes, y->bytes));

    return order != 0 ? order < 0 : x->bytes < y->bytes;
}

static void sift_down(const fsdp__vocabulary *v, int32_t *ids, int64_t at, int64_t count)
{
    int32_t moved = ids[at];
    int64_t child;

    while ((child = 2 * at + 1) < count) {
        child += child + 1 < count && goes_before(v, ids[child], ids[child + 1]);
        if (!goes_before(v, moved, ids[child]))
            break;
        ids[at] = ids[child];
        at = child;
    }
    ids[at] = moved;
}

/* Sorts in place, and needs the vocabulary to compare: a heap. */
void fsdp__unigram_sort(fsdp__unigram *unigram, const fsdp__vocabulary *vocabulary)
{
    int32_t *ids = unigram->order;

    for (int64_t i = unigram->count / 2; i-- > 0;)
        sift_down(vocabulary, ids, i, unigram->count);
    for (int64_t end = unigram->count; end-- > 1;) {
        int32_t largest = ids[0];

        ids[0] = ids[end];
        ids[end] = largest;
        sift_down(vocabulary, ids, 0, end);
    }
}

/* Holds the pieces, in order, that begin with the bytes seen so far. */
typedef struct range {
    int64_t begin, end;
    size_t seen;
} range;

/* Returns the byte after those that the piece shares with its neighbours; -1: it ends there. */
static int byte_of(const fsdp__unigram *u, const fsdp__vocabulary *v, int64_t at, size_t seen)
{
    const fsdp__token *token = &v->tokens[u->order[at]];

    return seen < token->bytes ? (unsigned char)v->bytes[token->at + seen] : -1;
}

/* Returns the first piece of the range whose next byte is at least `byte`. */
static int64_t lower_bound(const fsdp__unigram *u, const fsdp__vocabulary *v, const range *r, int byte)
{
    int64_t low = r->begin, high = r->end;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;

        if (byte_of(u, v, middle, r->seen) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Leaves the pieces whose next byte is this one. Returns whether there are any. */
static bool narrow(const fsdp__unigram *u, const fsdp__vocabulary *v, range *r, unsigned char byte)
{
    int64_t begin = lower_bound(u, v, r, byte), end = lower_bound(u, v, r, byte + 1);

    *r = (range){.begin = begin, .end = end, .seen = r->seen + 1};
    return begin < end;
}

/* ---- the best way ---- */

/* Gets to place `to` by a piece that begins at `from`, if that is better. */
static void offer(const fsdp__unigram *u, fsdp__unigram_place *places, int64_t from, int64_t to, double score,
                  int32_t token)
{
    double sum = u->in_single ? (double)((float)score + (float)places[from].score) : score + places[from].score;

    if (places[to].from < 0 || sum > places[to].score)
        places[to] = (fsdp__unigram_place){.score = sum, .from = from, .token = token};
}

static void try_pieces(const fsdp__unigram *u, const fsdp__bpe *bpe, fsdp__unigram_place *places, const char *bytes,
                       int64_t at, int64_t count)
{
    range r = {.end = u->count};
    uint32_t character;
    int length = fsdp__utf8_at(bytes + at, (size_t)(count - at), &character);
    bool single = false;

    length = length > 0 ? length : 1;
    for (int64_t to = at; to < count && narrow(u, &bpe->vocabulary, &r, (unsigned char)bytes[to]); to++)
        if (bpe->vocabulary.tokens[u->order[r.begin]].bytes == r.seen) { /* the shortest comes first */
            offer(u, places, at, to + 1, u->scores[u->order[r.begin]], u->order[r.begin]);
            single = single || to + 1 == at + length;
        }
    if (!single)
        offer(u, places, at, at + length, u->unknown_score, FSDP__NO_TOKEN);
}

static fsdp_status find_places(const fsdp__unigram *u, const fsdp__bpe *bpe, fsdp__unigram_scratch *s,
                               const char *bytes, int64_t count)
{
    FSDP_TRY(fsdp__grow(&s->places, count, &s->capacity, sizeof *s->places));
    for (int64_t i = 0; i <= count; i++)
        s->places[i].from = -1;
    s->places[0] = (fsdp__unigram_place){.score = 0, .from = 0, .token = FSDP__NO_TOKEN};
    for (int64_t i = 0; i < count; i++)
        if (s->places[i].from >= 0 && ((unsigned char)bytes[i] & 0xc0) != 0x80)
            try_pieces(u, bpe, s->places, bytes, i, count);
    return FSDP_OK;
}

/* Adds what stands for a character that no piece has: its bytes, or the unknown token, once for several in a row. */
static fsdp_status add_unknown(const fsdp__bpe *bpe, const char *bytes, size_t from, size_t to, bool again,
                               fsdp__subwords *out)
{
    bool all = bpe->byte_fallback;

    for (size_t i = from; all && i < to; i++)
        all = bpe->byte_tokens[(unsigned char)bytes[i]] != FSDP__NO_TOKEN;
    for (size_t i = from; all && i < to; i++)
        FSDP_TRY(fsdp__subwords_add(out, bpe->byte_tokens[(unsigned char)bytes[i]], from, to));
    if (!all && again)
        out->items[out->count - 1].end = (int32_t)to;
    return all || again ? FSDP_OK : fsdp__subwords_add(out, bpe->unknown, from, to);
}

fsdp_status fsdp__unigram_tokens(const fsdp__unigram *unigram, const fsdp__bpe *bpe, fsdp__unigram_scratch *scratch,
                                 const char *bytes, size_t count, fsdp__subwords *out)
{
    int64_t length = 0, to = (int64_t)count;
    bool again = false;

    FSDP_TRY(find_places(unigram, bpe, scratch, bytes, to));
    for (; to > 0; to = scratch->places[to].from) {
        FSDP_TRY(fsdp__grow(&scratch->path, length, &scratch->path_capacity, sizeof *scratch->path));
        scratch->path[length++] = (fsdp__unigram_place){.from = to, .token = scratch->places[to].token};
    }
    for (int64_t from = 0; length-- > 0; from = to) {
        int32_t token = scratch->path[length].token;

        to = scratch->path[length].from;
        if (token != FSDP__NO_TOKEN)
            FSDP_TRY(fsdp__subwords_add(out, token, (size_t)from, (size_t)to));
        else
            FSDP_TRY(add_unknown(bpe, bytes, (size_t)from, (size_t)to, again, out));
        again = token == FSDP__NO_TOKEN;
    }
    return FSDP_OK;
}

void fsdp__unigram_release(fsdp__unigram *unigram)
{
    FSDP__FREE_ALL(unigram->scores, unigram->order);
    *unigram = (fsdp__unigram){0};
}

void fsdp__unigram_scratch_release(fsdp__unigram_scratch *scratch)
{
    FSDP__FREE_ALL(scratch->places, scratch->path);
    *scratch = (fsdp__unigram_scratch){0};
}
