/* temporary.c - the names of files that are not whole yet. A handler of signals can reach nothing but the process, so
 * they are kept for the process. */
#include "base/temporary.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum {
    MOST = 16 /* at once */
};

typedef enum place_state {
    FREE,
    CHANGES, /* by the thread that writes it, or removes its file */
    HELD,
    REMOVED /* who made the note has not given it back yet */
} place_state;

typedef struct place {
    _Atomic place_state state;
    pid_t process; /* a child does not remove its parent's */
    int folder;
    char name[NAME_MAX + 1];
} place;

static place places[MOST];

int fsdp__temporary_made(int folder, const char *name)
{
    for (int i = 0; i < MOST; i++) {
        place_state free_one = FREE;

        if (!atomic_compare_exchange_strong(&places[i].state, &free_one, CHANGES))
            continue;
        places[i].process = getpid();
        places[i].folder = folder;
        snprintf(places[i].name, sizeof places[i].name, "%s", name);
        places[i].state = HELD;
        return i + 1;
    }
    return 0;
}

/* No thread takes a place from the one that has noted something there; one that removes files is waited for. */
void fsdp__temporary_gone(int note)
{
    place_state state = HELD;

    if (note == 0)
        return;
    while (!atomic_compare_exchange_strong(&places[note - 1].state, &state, FREE))
        if (state == CHANGES)
            state = HELD;
}

void fsdp__temporaries_remove(void)
{
    for (int i = 0; i < MOST; i++) {
        place_state held = HELD;

        if (!atomic_compare_exchange_strong(&places[i].state, &held, CHANGES))
            continue;
        if (places[i].process == getpid())
            (void)unlinkat(places[i].folder, places[i].name, 0);
        places[i].state = REMOVED;
    }
}
