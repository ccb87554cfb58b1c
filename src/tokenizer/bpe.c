/* bpe.c - applies the merges to a word until none is left: the lowest rank first, and the leftmost of equal ones. */
#include "tokenizer/bpe.h"

#include <string.h>

#include "base/alloc.h"
#include "tokenizer/utf8.h"

enum {
    SHORT_SYMBOLS = 48 /* up to here scanning all pairs is faster than a heap */
};

fsdp_status fsdp__merges_init(fsdp__merges *merges, int64_t count)
{
    uint64_t slots = 16;

    while (slots < 2 * ((uint64_t)count + 1))
        slots *= 2;
    FSDP__TRY_NEW(merges->slots = fsdp__malloc(slots * sizeof *merges->slots));
    for (uint64_t i = 0; i < slots; i++)
        merges->slots[i] = (fsdp__merge){.left = -1};
    merges->mask = slots - 1;
    return FSDP_OK;
}

void fsdp__merges_add(fsdp__merges *merges, const fsdp__merge *merge)
{
    uint64_t i = fsdp__merges_hash(merge->left, merge->right) & merges->mask;

    while (merges->slots[i].left >= 0 &&
           (merges->slots[i].left != merge->left || merges->slots[i].right != merge->right))
        i = (i + 1) & merges->mask;
    merges->slots[i] = *merge;
}

void fsdp__merges_release(fsdp__merges *merges)
{
    fsdp__free(merges->slots);
    *merges = (fsdp__merges){0};
}

fsdp_status fsdp__token_list_add(fsdp_token_list *list, int32_t id)
{
    if (list->count >= list->capacity && fsdp__grow(&list->ids, list->count, &list->capacity, sizeof *list->ids) != 0)
        return FSDP_NO_MEMORY;
    list->ids[list->count++] = id;
    return FSDP_OK;
}

fsdp_status fsdp__subwords_add(fsdp__subwords *subwords, int32_t token, size_t begin, size_t end)
{
    FSDP_TRY(fsdp__grow(&subwords->items, subwords->count, &subwords->capacity, sizeof *subwords->items));
    subwords->items[subwords->count++] = (fsdp__subword){token, (int32_t)begin, (int32_t)end};
    return FSDP_OK;
}

void fsdp_token_list_release(fsdp_token_list *list)
{
    if (!list)
        return;
    fsdp__free(list->ids);
    *list = (fsdp_token_list){0};
}

/* ---- the symbols that a word begins with ---- */

static void add_symbol(fsdp__word_scratch *s, int32_t token, size_t begin, size_t end)
{
    s->symbols[s->count++] = (fsdp__symbol){.token = token, .begin = (int32_t)begin, .end = (int32_t)end};
}

/* Adds what stands for something without a token: the unknown token, once for several in a row. */
static void add_unknown(const fsdp__bpe *bpe, fsdp__word_scratch *s, bool again, size_t begin, size_t end)
{
    if (again && bpe->fuse_unknown)
        s->symbols[s->count - 1].end = (int32_t)end;
    else
        add_symbol(s, bpe->unknown, begin, end);
}

/* Adds the tokens of the bytes of a character; false: one of them has none, and nothing was added. */
static bool add_bytes(const fsdp__bpe *bpe, fsdp__word_scratch *s, const char *word, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        if (bpe->byte_tokens[(unsigned char)word[i]] == FSDP__NO_TOKEN)
            return false;
    for (size_t i = begin; i < end; i++)
        add_symbol(s, bpe->byte_tokens[(unsigned char)word[i]], begin, end);
    return true;
}

/* Reads characters instead of bytes. There is always an unknown token. */
static fsdp_status read_characters(const fsdp__bpe *bpe, fsdp__word_scratch *s, const char *bytes, size_t count)
{
    bool after_unknown = false;

    s->count = 0;
    FSDP_TRY(fsdp__grow(&s->symbols, (int64_t)count, &s->capacity, sizeof *s->symbols));
    for (size_t i = 0, length; i < count; i += length) {
        uint32_t character;
        int32_t token;
        bool unknown;

        length = (size_t)fsdp__utf8_at(bytes + i, count - i, &character);
        length = length > 0 ? length : 1;
        token = fsdp__vocabulary_find_bytes(&bpe->vocabulary, bytes + i, length);
        if (token != FSDP__NO_TOKEN)
            add_symbol(s, token, i, i + length);
        unknown = token == FSDP__NO_TOKEN && !(bpe->byte_fallback && add_bytes(bpe, s, bytes, i, i + length));
        if (unknown)
            add_unknown(bpe, s, after_unknown, i, i + length);
        after_unknown = unknown;
    }
    return FSDP_OK;
}

static fsdp_status read_symbols(const fsdp__bpe *bpe, fsdp__word_scratch *s, const char *bytes, size_t count)
{
    bool after_unknown = false;

    s->count = 0;
    FSDP_TRY(fsdp__grow(&s->symbols, (int64_t)count, &s->capacity, sizeof *s->symbols));
    for (size_t i = 0; i < count; i++) {
        int32_t token = bpe->byte_tokens[(unsigned char)bytes[i]];

        if (token != FSDP__NO_TOKEN)
            add_symbol(s, token, i, i + 1);
        else if (bpe->unknown == FSDP__NO_TOKEN)
            s->left_out++;
        else
            add_unknown(bpe, s, after_unknown, i, i + 1);
        after_unknown = token == FSDP__NO_TOKEN && bpe->unknown != FSDP__NO_TOKEN;
    }
    return FSDP_OK;
}

/* ---- short words ---- */

static void find_merge(const fsdp__merges *merges, fsdp__symbol *symbols, int64_t i, int64_t count)
{
    symbols[i].merge = i + 1 < count ? fsdp__merges_find(merges, symbols[i].token, symbols[i + 1].token) : NULL;
}

static void merge_short(const fsdp__merges *merges, fsdp__word_scratch *s)
{
    fsdp__symbol *symbols = s->symbols;

    for (int64_t i = 0; i < s->count; i++)
        find_merge(merges, symbols, i, s->count);
    for (;;) {
        int64_t best = -1;

        for (int64_t i = 0; i + 1 < s->count; i++)
            if (symbols[i].merge && (best < 0 || symbols[i].merge->rank < symbols[best].merge->rank))
                best = i;
        if (best < 0)
            return;
        symbols[best].token = symbols[best].merge->result;
        symbols[best].end = symbols[best + 1].end;
        s->count--;
        memmove(symbols + best + 1, symbols + best + 2, (size_t)(s->count - best - 1) * sizeof *symbols);
        find_merge(merges, symbols, best, s->count);
        if (best > 0)
            find_merge(merges, symbols, best - 1, s->count);
    }
}

/* ---- long words: a list of symbols, and a heap of the pairs that could be merged ---- */

static bool goes_first(const fsdp__candidate_merge *a, const fsdp__candidate_merge *b)
{
    return a->merge->rank != b->merge->rank ? a->merge->rank < b->merge->rank : a->at < b->at;
}

static void sift_up(fsdp__candidate_merge *heap, int64_t i)
{
    fsdp__candidate_merge moved = heap[i];

    for (; i > 0 && goes_first(&moved, &heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = moved;
}

static fsdp__candidate_merge take_first(fsdp__word_scratch *s)
{
    fsdp__candidate_merge first = s->heap[0], moved = s->heap[--s->heap_count];
    int64_t i = 0, child;

    while ((child = 2 * i + 1) < s->heap_count) {
        child += child + 1 < s->heap_count && goes_first(&s->heap[child + 1], &s->heap[child]);
        if (!goes_first(&s->heap[child], &moved))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = moved;
    return first;
}

static fsdp_status offer(const fsdp__merges *merges, fsdp__word_scratch *s, int32_t at)
{
    int32_t next = at >= 0 ? s->symbols[at].next : -1;
    const fsdp__merge *merge =
        next >= 0 ? fsdp__merges_find(merges, s->symbols[at].token, s->symbols[next].token) : NULL;

    if (!merge)
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&s->heap, s->heap_count, &s->heap_capacity, sizeof *s->heap));
    s->heap[s->heap_count] = (fsdp__candidate_merge){.merge = merge, .at = at};
    sift_up(s->heap, s->heap_count++);
    return FSDP_OK;
}

/* Returns whether the pair is still as it was when it was put into the heap. */
static bool stands(const fsdp__word_scratch *s, const fsdp__candidate_merge *candidate)
{
    const fsdp__symbol *symbol = &s->symbols[candidate->at];

    return symbol->token == candidate->merge->left && symbol->next >= 0 &&
           s->symbols[symbol->next].token == candidate->merge->right;
}

static void join(fsdp__word_scratch *s, const fsdp__candidate_merge *candidate)
{
    fsdp__symbol *symbol = &s->symbols[candidate->at], *gone = &s->symbols[symbol->next];

    symbol->token = candidate->merge->result;
    symbol->end = gone->end;
    symbol->next = gone->next;
    gone->token = -1;
    if (gone->next >= 0)
        s->symbols[gone->next].previous = candidate->at;
}

static void close_gaps(fsdp__word_scratch *s)
{
    int64_t kept = 0;

    for (int64_t i = 0; i < s->count; i++)
        if (s->symbols[i].token >= 0)
            s->symbols[kept++] = s->symbols[i];
    s->count = kept;
}

static fsdp_status merge_long(const fsdp__merges *merges, fsdp__word_scratch *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        s->symbols[i].previous = (int32_t)(i - 1);
        s->symbols[i].next = i + 1 < s->count ? (int32_t)(i + 1) : -1;
    }
    s->heap_count = 0;
    for (int64_t i = 0; i < s->count; i++)
        FSDP_TRY(offer(merges, s, (int32_t)i));
    while (s->heap_count > 0) {
        fsdp__candidate_merge first = take_first(s);

        if (!stands(s, &first))
            continue;
        join(s, &first);
        FSDP_TRY(offer(merges, s, first.at));
        FSDP_TRY(offer(merges, s, s->symbols[first.at].previous));
    }
    close_gaps(s);
    return FSDP_OK;
}

fsdp_status fsdp__word_tokens(const fsdp__bpe *bpe, fsdp__word_scratch *scratch, const char *bytes, size_t count,
                              fsdp__subwords *out)
{
    if (bpe->ignore_merges) {
        int32_t whole = fsdp__vocabulary_find_bytes(&bpe->vocabulary, bytes, count);

        if (whole != FSDP__NO_TOKEN && !bpe->vocabulary.tokens[whole].added)
            return fsdp__subwords_add(out, whole, 0, count);
    }
    FSDP_TRY(bpe->characters ? read_characters(bpe, scratch, bytes, count) : read_symbols(bpe, scratch, bytes, count));
    if (scratch->count <= SHORT_SYMBOLS)
        merge_short(&bpe->merges, scratch);
    else
        FSDP_TRY(merge_long(&bpe->merges, scratch));
    for (int64_t i = 0; i < scratch->count; i++) {
        const fsdp__symbol *symbol = &scratch->symbols[i];

        FSDP_TRY(fsdp__subwords_add(out, symbol->token, (size_t)symbol->begin, (size_t)symbol->end));
    }
    return FSDP_OK;
}

void fsdp__word_scratch_release(fsdp__word_scratch *scratch)
{
    FSDP__FREE_ALL(scratch->symbols, scratch->heap);
    *scratch = (fsdp__word_scratch){0};
}
