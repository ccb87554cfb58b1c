/* news.c - messages on their way. */
#include "comm/health/news.h"

#include <stddef.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/transport/network/tags.h"

typedef struct fsdp__letter {
    struct fsdp__letter *next;
    fsdp__network_request request;
    fsdp__news news;
} letter;

bool fsdp__news_tell(fsdp__letters *letters, int rank, const fsdp__news *what)
{
    size_t bytes = offsetof(fsdp__news, text) + (what->kind == FSDP__NEWS_BROKEN ? strlen(what->text) + 1 : 0);
    letter *one = fsdp__calloc(1, sizeof *one);

    if (!one)
        return false;
    memcpy(&one->news, what, bytes);
    if (!fsdp__link_tell(letters->link, rank, FSDP__TAG_NEWS, &one->news, bytes, &one->request) || !one->request) {
        fsdp__free(one);
        return true;
    }
    one->next = letters->first;
    letters->first = one;
    return true;
}

bool fsdp__news_settle(fsdp__letters *letters)
{
    for (letter **link = &letters->first; *link;) {
        letter *one = *link;

        if (!fsdp__link_settle(letters->link, &one->request))
            return false;
        if (one->request) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        fsdp__free(one);
    }
    return letters->first != NULL;
}

bool fsdp__news_hear(fsdp__link *link, fsdp__news *out, int *from)
{
    size_t got = 0, head = offsetof(fsdp__news, text);

    while (fsdp__link_poll(link, FSDP__TAG_NEWS, out, sizeof *out, from, &got) && *from >= 0) {
        if (got < head)
            continue;
        out->text[FSDP__MIN(got - head, sizeof out->text - 1)] = '\0';
        return true;
    }
    return false;
}

void fsdp__news_forget(fsdp__letters *letters)
{
    while (letters->first) {
        letter *one = letters->first;

        letters->first = one->next;
        fsdp__free(one);
    }
}
