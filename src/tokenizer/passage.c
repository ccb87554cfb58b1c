/* passage.c - makes texts of passages, and follows their bytes. */
#include "tokenizer/passage.h"

#include <string.h>

#include "base/alloc.h"
#include "tokenizer/utf8.h"

fsdp__passage fsdp__passage_part(const fsdp__passage *passage, size_t begin, size_t end)
{
    fsdp__passage part = *passage;

    part.text += begin;
    part.bytes = end - begin;
    part.at += begin;
    part.origins = passage->origins ? passage->origins + begin : NULL;
    return part;
}

fsdp__origin fsdp__passage_origin(const fsdp__passage *passage, size_t begin, size_t end)
{
    if (!passage->origins)
        return (fsdp__origin){passage->at + begin, passage->at + end};
    return (fsdp__origin){passage->origins[begin].begin, passage->origins[end - 1].end};
}

fsdp__origin fsdp__passage_front(const fsdp__passage *passage)
{
    uint32_t character;
    int length = fsdp__utf8_at(passage->text, passage->bytes, &character);

    return fsdp__passage_origin(passage, 0, length > 0 ? (size_t)length : 1);
}

fsdp_status fsdp__text_append(fsdp__text *text, const char *bytes, size_t count)
{
    if (count == 0) /* there may be no bytes at all */
        return FSDP_OK;
    FSDP_TRY(fsdp__grow(&text->bytes, text->count + (int64_t)count, &text->capacity, 1));
    memcpy(text->bytes + text->count, bytes, count);
    text->count += (int64_t)count;
    return FSDP_OK;
}

/* Makes room for the origins of more bytes, and returns where they go. */
static fsdp_status more_origins(fsdp__text *text, size_t count, fsdp__origin **out)
{
    FSDP_TRY(fsdp__grow(&text->origins, text->count + (int64_t)count, &text->origin_capacity, sizeof *text->origins));
    *out = text->origins + text->count;
    return FSDP_OK;
}

fsdp_status fsdp__text_add(fsdp__text *text, const char *bytes, size_t count, fsdp__origin origin)
{
    fsdp__origin *to = NULL;

    if (text->traced)
        FSDP_TRY(more_origins(text, count, &to));
    for (size_t i = 0; to && i < count; i++)
        to[i] = origin;
    return fsdp__text_append(text, bytes, count);
}

fsdp_status fsdp__text_copy(fsdp__text *text, const fsdp__passage *from, size_t begin, size_t end)
{
    fsdp__origin *to = NULL;

    if (text->traced)
        FSDP_TRY(more_origins(text, end - begin, &to));
    for (size_t i = begin; to && i < end; i++)
        to[i - begin] = fsdp__passage_origin(from, i, i + 1);
    return fsdp__text_append(text, from->text + begin, end - begin);
}

void fsdp__text_begin(fsdp__text *text, const fsdp__passage *from)
{
    text->count = 0;
    text->traced = from->traced;
}

fsdp__passage fsdp__text_passage(const fsdp__text *text)
{
    return (fsdp__passage){.text = text->bytes,
                           .bytes = (size_t)text->count,
                           .traced = text->traced,
                           .origins = text->traced ? text->origins : NULL};
}

void fsdp__text_release(fsdp__text *text)
{
    FSDP__FREE_ALL(text->bytes, text->origins);
    *text = (fsdp__text){0};
}
