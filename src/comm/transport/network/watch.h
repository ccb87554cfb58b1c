/* watch.h - the thread of a rank that tells ranks of other machines what this machine's board says, and writes there
 * what it hears of them.
 *
 * It runs a few dozen times a second, on a tag of its own; nothing waits for it. It tells its counterparts what this
 * rank says of itself (health/peers.h), and why the world is broken. */
#pragma once

#include <pthread.h>

#include "comm/health/peers.h"
#include "comm/transport/network/link.h"

typedef struct fsdp__watch {
    fsdp__link *link;
    fsdp__peers *peers;
    pthread_t thread;
    bool started;
    /* this rank is about to leave; its counterparts know that; the thread is to end */
    _Atomic bool leaving, told, stop;
    struct fsdp__letter *letters; /* messages that are still on their way */
} fsdp__watch;

/* Begins to tell and listen. */
fsdp_status fsdp__watch_open(fsdp__watch *watch, fsdp__link *link, fsdp__peers *peers);
/* Tells all ranks that this one takes part no more, and waits until all have left (returns true) or the world is broken
 * (returns false). On return the thread has ended, and its messages have gone out, where that takes no more than
 * seconds. For a watch that was not opened, and so belongs to no world, returns false. */
bool fsdp__watch_leave(fsdp__watch *watch);
/* Ends the thread, and frees what the watch has. `whole`: the ranks take leave in the network, which still sends what
 * is on its way and keeps it for good. */
void fsdp__watch_close(fsdp__watch *watch, bool whole);
