/* pre_tokenizer.c - sends a text, and the pieces it is split into, through all steps. */
#include "tokenizer/pre_tokenizer.h"

#include <string.h>

#include "base/alloc.h"

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
    const char *text;
    size_t begin, end; /* the pending part; empty: there is none */
    bool matched;      /* whether the last part was a match */
} piece;

static fsdp_status split(const walk *w, int step, const char *text, size_t bytes);

static fsdp_status give_on(piece *p)
{
    size_t begin = p->begin;

    p->begin = p->end;
    return p->end > begin ? split(p->walk, p->step + 1, p->text + begin, p->end - begin) : FSDP_OK;
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

static fsdp_status split_piece(const walk *w, int step, const char *text, size_t bytes)
{
    const fsdp__split_step *s = &w->pre_tokenizer->steps[step];
    piece p = {.walk = w, .step = step, .text = text};
    size_t done = 0, begin, end = 0, last_match = SIZE_MAX;
    fsdp__search search;

    FSDP_TRY(fsdp__search_begin(&search, s->pattern, w->matcher, step, text, bytes));
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
            while (end < bytes && ((unsigned char)text[end] & 0xc0) == 0x80);
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

static fsdp_status split_with_space(const walk *w, int step, const char *text, size_t bytes)
{
    FSDP__FREED char *spaced = fsdp__malloc(bytes + 1);

    FSDP__TRY_NEW(spaced);
    spaced[0] = ' ';
    memcpy(spaced + 1, text, bytes);
    return w->pre_tokenizer->steps[step].pattern ? split_piece(w, step, spaced, bytes + 1)
                                                 : split(w, step + 1, spaced, bytes + 1);
}

static fsdp_status split(const walk *w, int step, const char *text, size_t bytes)
{
    const fsdp__split_step *s = &w->pre_tokenizer->steps[step];

    if (step == w->pre_tokenizer->count)
        return w->sink(w->arg, text, bytes);
    if (s->add_prefix_space && text[0] != ' ')
        return split_with_space(w, step, text, bytes);
    return s->pattern ? split_piece(w, step, text, bytes) : split(w, step + 1, text, bytes);
}

fsdp_status fsdp__pre_tokenize(const fsdp__pre_tokenizer *pre_tokenizer, fsdp__matcher *matcher, const char *text,
                               size_t bytes, fsdp__word_sink sink, void *arg)
{
    walk w = {.pre_tokenizer = pre_tokenizer, .matcher = matcher, .sink = sink, .arg = arg};

    return bytes ? split(&w, 0, text, bytes) : FSDP_OK;
}

void fsdp__pre_tokenizer_release(fsdp__pre_tokenizer *pre_tokenizer)
{
    for (int i = 0; i < pre_tokenizer->count; i++)
        fsdp__pattern_free(pre_tokenizer->steps[i].pattern);
    *pre_tokenizer = (fsdp__pre_tokenizer){0};
}
