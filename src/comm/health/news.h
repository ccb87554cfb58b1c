/* news.h - what the threads that watch tell each other over the network, in messages that nobody waits for. */
#ifndef COMM_HEALTH_NEWS_H
#define COMM_HEALTH_NEWS_H

#include "comm/health/board.h"
#include "comm/transport/network/link.h"

typedef enum fsdp__news_kind {
    FSDP__NEWS_BEAT = 1,
    FSDP__NEWS_LEFT,
    FSDP__NEWS_BROKEN
} fsdp__news_kind;

/* What travels; of the text only as much as there is. */
typedef struct fsdp__news {
    int32_t kind, status, blamed;
    int32_t still;  /* number of looks in which the rank has got nothing done */
    int32_t awaits; /* 1 + a rank that it waits for; 0: none */
    fsdp__doing doing;
    char text[FSDP__ABORT_BYTES]; /* why the world is broken */
} fsdp__news;

/* The messages that one thread has sent and that are still on their way. */
typedef struct fsdp__letters {
    fsdp__link *link;
    struct fsdp__letter *first;
} fsdp__letters;

/* Sends the news to `rank`. Returns false when out of memory. */
bool fsdp__news_tell(fsdp__letters *letters, int rank, const fsdp__news *what);
/* Takes back the messages that have arrived. Returns whether any are still on their way. */
bool fsdp__news_settle(fsdp__letters *letters);
/* Gets the next message that has come, and its sender; returns false if there is none. */
bool fsdp__news_hear(fsdp__link *link, fsdp__news *out, int *from);
/* Frees the messages; call it when the network is not called any more. */
void fsdp__news_forget(fsdp__letters *letters);

#endif
