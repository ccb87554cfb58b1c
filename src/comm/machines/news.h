/* news.h - what the threads that watch tell each other over the network: letters that nobody waits for. */
#ifndef COMM_MACHINES_NEWS_H
#define COMM_MACHINES_NEWS_H

#include "comm/machines/board.h"
#include "comm/machines/link.h"

typedef enum fsdp__news_kind {
    FSDP__NEWS_BEAT = 1,
    FSDP__NEWS_LEFT,
    FSDP__NEWS_BROKEN
} fsdp__news_kind;

/* What travels; of the text only what there is. */
typedef struct fsdp__news {
    int32_t kind, status, blamed;
    int32_t still; /* looks in which the rank has got nothing done */
    fsdp__doing doing;
    fsdp__waiting waiting;
    char text[FSDP__ABORT_BYTES]; /* why the world is broken */
} fsdp__news;

/* What one thread has sent, and is on its way. */
typedef struct fsdp__letters {
    fsdp__link *link;
    struct fsdp__letter *first;
} fsdp__letters;

/* false: there is no memory for it. */
bool fsdp__news_tell(fsdp__letters *letters, int rank, const fsdp__news *what);
/* Takes back what has arrived; whether anything is still on its way. */
bool fsdp__news_settle(fsdp__letters *letters);
/* The next that has come, and whom from; false: none. */
bool fsdp__news_hear(fsdp__link *link, fsdp__news *out, int *from);
/* When the network is not called any more. */
void fsdp__news_forget(fsdp__letters *letters);

#endif
