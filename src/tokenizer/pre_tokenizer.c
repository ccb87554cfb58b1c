/* pre_tokenizer.c - sends a text, and the pieces it is split into, through all steps. */
#include "tokenizer/pre_tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"

/* Holds what all steps share. */
typedef struct walk {
    const fsdp__pre_tokenizer *pre_tokenizer;
    fsdp__matcher *matcher;
    fsdp__word_sink sink;
    void *arg;
} walk;

/* A piece that is being split. The pending part is not passed on yet, because the next part may join it. */
typedef struct piece {
    const walk *walk;
    int step;
    const fsdp__passage *text;
    size_t begin, end; /* the pending part; empty: there is none */
    bool matched;      /* whether the last part was a match */
} piece;

static fsdp_status split(const walk *w, int step, const fsdp__passage *text);

static fsdp_status give_on(piece *p)
{
    fsdp__passage part = fsdp__passage_part(p->text, p->begin, p->end);

    p->begin = p->end;
    return part.bytes > 0 ? split(p->walk, p->step + 1, &part) : FSDP_OK;
}

static fsdp_status begin_part(piece *p, size_t begin, size_t end)
{
    FSDP_TRY(give_on(p));
    p->begin = begin;
    p->end = end;
    return FSDP_OK;
}

/* Adds the part of the piece from `begin` to `end`, which is a match or what lies between two matches. */
static fsdp_status add_part(piece *p, fsdp__split_behavior behavior, size_t begin, size_t end, bool match)
{
    bool before = p->matched, joins = false;

    p->matched = match;
    switch (behavior) {
    case FSDP__SPLIT_REMOVED:
        return match ? FSDP_OK : begin_part(p, begin, end);
    case FSDP__SPLIT_ISOLATED:
        return begin_part(p, begin, end);
    case FSDP__SPLIT_CONTIGUOUS:
        joins = match == before;
        break;
    case FSDP__SPLIT_MERGED_WITH_PREVIOUS:
        joins = match && !before;
        break;
    case FSDP__SPLIT_MERGED_WITH_NEXT:
        joins = before && !match;
        break;
    }
    if (!joins || p->begin == p->end)
        return begin_part(p, begin, end);
    p->end = end;
    return FSDP_OK;
}

static fsdp_status split_piece(const walk *w, int step, const fsdp__passage *text)
{
    const fsdp__split_step *s = &w->pre_tokenizer->steps[step];
    piece p = {.walk = w, .step = step, .text = text};
    size_t done = 0, begin, end = 0, last_match = SIZE_MAX, bytes = text->bytes;
    fsdp__search search;

    FSDP_TRY(fsdp__search_begin(&search, s->pattern, w->matcher, step, text->text, bytes));
    while (done < bytes) {
        FSDP_TRY(fsdp__search_next(&search, &begin, &end));
        if (begin == end && begin < bytes) { /* an empty match splits the text, except right after a match */
            if (begin != last_match && begin > done) {
                FSDP_TRY(add_part(&p, s->behavior, done, begin, s->invert));
                /* keeps the parts around it from joining */
                FSDP_TRY(add_part(&p, s->behavior, begin, end, !s->invert));
            }
            done = begin != last_match ? begin : done;
            do
                end++;
            while (end < bytes && ((unsigned char)text->text[end] & 0xc0) == 0x80);
            continue;
        }
        if (begin > done)
            FSDP_TRY(add_part(&p, s->behavior, done, begin, s->invert));
        if (end > begin)
            FSDP_TRY(add_part(&p, s->behavior, begin, end, !s->invert));
        done = last_match = end;
    }
    return give_on(&p);
}

static fsdp_status split_once(const walk *w, int step, const fsdp__passage *text)
{
    return w->pre_tokenizer->steps[step].pattern ? split_piece(w, step, text) : split(w, step + 1, text);
}

static fsdp_status split_with_space(const walk *w, int step, const fsdp__passage *text)
{
    FSDP__SCOPED(fsdp__text_release) fsdp__text spaced = {.traced = text->traced};
    fsdp__passage passage;

    FSDP_TRY(fsdp__text_add(&spaced, " ", 1, fsdp__passage_front(text)));
    FSDP_TRY(fsdp__text_copy(&spaced, text, 0, text->bytes));
    passage = fsdp__text_passage(&spaced);
    return split_once(w, step, &passage);
}

static fsdp_status split(const walk *w, int step, const fsdp__passage *text)
{
    if (step == w->pre_tokenizer->count)
        return w->sink(w->arg, text);
    if (w->pre_tokenizer->steps[step].add_prefix_space && text->text[0] != ' ')
        return split_with_space(w, step, text);
    return split_once(w, step, text);
}

fsdp_status fsdp__pre_tokenize(const fsdp__pre_tokenizer *pre_tokenizer, fsdp__matcher *matcher,
                               const fsdp__passage *text, fsdp__word_sink sink, void *arg)
{
    walk w = {.pre_tokenizer = pre_tokenizer, .matcher = matcher, .sink = sink, .arg = arg};

    return text->bytes ? split(&w, 0, text) : FSDP_OK;
}

void fsdp__pre_tokenizer_release(fsdp__pre_tokenizer *pre_tokenizer)
{
    for (int i = 0; i < pre_tokenizer->count; i++)
        fsdp__pattern_free(pre_tokenizer->steps[i].pattern);
    *pre_tokenizer = (fsdp__pre_tokenizer){0};
}
