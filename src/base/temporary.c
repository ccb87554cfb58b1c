/* temporary.c - the names of files that are not whole yet. A handler of signals can reach nothing but the process, so
 * they are kept for the process. */
#include "base/temporary.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST = 16 /* at once */
};

typedef enum place_state {
    FREE,
    CHANGES, /* by the thread that has taken the place */
    HELD
} place_state;

typedef struct place {
    _Atomic place_state state;
    pid_t process; /* a child does not remove its parent's */
    int folder;
    char name[NAME_MAX + 1];
} place;

static place places[MOST];

void fsdp__temporary_made(int folder, const char *name)
{
    for (int i = 0; i < MOST; i++) {
        place_state free_one = FREE;

        if (!atomic_compare_exchange_strong(&places[i].state, &free_one, CHANGES))
            continue;
        places[i].process = getpid();
        places[i].folder = folder;
        snprintf(places[i].name, sizeof places[i].name, "%s", name);
        places[i].state = HELD;
        return;
    }
}

/* Takes a place from other threads, if it holds this name. */
static bool take(place *p, int folder, const char *name)
{
    place_state held = HELD;

    if (!atomic_compare_exchange_strong(&p->state, &held, CHANGES))
        return false;
    if (p->folder == folder && strcmp(p->name, name) == 0)
        return true;
    p->state = HELD;
    return false;
}

void fsdp__temporary_gone(int folder, const char *name)
{
    for (int i = 0; i < MOST; i++)
        if (take(&places[i], folder, name)) {
            places[i].state = FREE;
            return;
        }
}

void fsdp__temporaries_remove(void)
{
    for (int i = 0; i < MOST; i++)
        if (places[i].state == HELD && places[i].process == getpid())
            (void)unlinkat(places[i].folder, places[i].name, 0);
}
