/* temporary.c - the names of files that are not whole yet. A handler of signals can reach nothing but the process, so
 * they are kept for the process. */
#include "base/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MOST = 16,          /* at once */
    PATIENCE_MS = 1000, /* for files that others are making; a file system may hang */
    STATES = 8
};

/* Says what a place is used for. */
typedef enum place_state {
    FREE, /* of no process */
    MAKING,
    HELD,
    REMOVING,
    REMOVED /* who made the note has not given it back yet */
} place_state;

typedef struct place {
    _Atomic int64_t state; /* what `own` returns: a child does not remove its parent's */
    int folder;
    char name[NAME_MAX + 1];
    dev_t device; /* of the file that had the name then; another one stays */
    ino_t inode;
} place;

static place places[MOST];
static _Atomic int64_t ending; /* of this process: it ends, and nobody makes another file */

static int64_t own(place_state state)
{
    return (int64_t)getpid() * STATES + state;
}

/* Waits for good where the process ends, which happens at any moment. */
static void await_end(void)
{
    while (ending == own(MAKING))
        pause();
}

fsdp__making fsdp__temporary_begin(void)
{
    fsdp__making making = {.note = 0};
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &making.before);
    for (int i = 0; i < MOST && making.note == 0; i++) {
        int64_t free_one = FREE;

        if (atomic_compare_exchange_strong(&places[i].state, &free_one, own(MAKING)))
            making.note = i + 1;
    }
    if (ending == own(MAKING) && making.note > 0)
        places[making.note - 1].state = FREE;
    await_end(); /* until then a file would be left */
    return making;
}

int fsdp__temporary_made(const fsdp__making *making, int folder, const char *name)
{
    place *p = making->note ? &places[making->note - 1] : NULL;
    int saved_errno = errno;
    struct stat info = {.st_ino = 0};

    if (p && name) {
        p->folder = folder;
        (void)fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW);
        errno = saved_errno;
        p->device = info.st_dev;
        p->inode = info.st_ino;
        snprintf(p->name, sizeof p->name, "%s", name);
    }
    if (p)
        p->state = name ? own(HELD) : FREE;
    pthread_sigmask(SIG_SETMASK, &making->before, NULL);
    return name ? making->note : 0;
}

/* No thread takes a place from the one that has noted something there; one that removes files is waited for. */
void fsdp__temporary_gone(int note)
{
    int64_t state = own(HELD);

    if (note == 0)
        return;
    while (!atomic_compare_exchange_strong(&places[note - 1].state, &state, FREE))
        if (state == own(REMOVING))
            state = own(HELD);
    await_end(); /* its file may have been removed, of which nobody is to say that it is missing */
}

/* Returns whether the place has a file to remove. One that another thread is making is waited for. */
static bool take(place *p, int *patience)
{
    int64_t state = own(HELD);

    while (!atomic_compare_exchange_strong(&p->state, &state, own(REMOVING))) {
        if (state != own(MAKING) || *patience == 0)
            return false;
        (void)poll(NULL, 0, 1);
        --*patience;
        state = own(HELD);
    }
    return true;
}

/* Removes the file, if the name still stands for it: somebody else may have taken the name once it was free. */
static void remove_file(const place *p)
{
    struct stat info;

    if (fstatat(p->folder, p->name, &info, AT_SYMLINK_NOFOLLOW) == 0 && info.st_dev == p->device &&
        info.st_ino == p->inode)
        (void)unlinkat(p->folder, p->name, 0);
}

void fsdp__temporaries_remove(void)
{
    int patience = PATIENCE_MS;

    for (int i = 0; i < MOST; i++)
        if (take(&places[i], &patience)) {
            remove_file(&places[i]);
            places[i].state = own(REMOVED);
        }
}

void fsdp__temporaries_end(void)
{
    ending = own(MAKING);
    fsdp__temporaries_remove();
}
