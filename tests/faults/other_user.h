/* other_user.h - another user, who may write where this one saves. Root is the user, since only root can be another one
 * for a while. */
#pragma once

#include <stdatomic.h>
#include <sys/types.h>

#include "support/test.h"

enum {
    OTHER = 65534
};

typedef struct other_area {
    char *directory, *area, *precious; /* everybody may write to the area; the precious folder is the user's alone */
    char *before;                      /* what that holds */
    fsdp_context *context;
} other_area;

/* For a test's setup and teardown. */
int other_setup(void **state);
int other_teardown(void **state);
/* Whether the precious folder holds what it held. */
void other_check_precious(const other_area *f);
/* A folder of the user's in the area that everybody may write to. */
char *other_open_folder(const other_area *f, const char *name);
/* A file of the user's below a folder, whose own folders are made. */
void other_put(const char *folder, const char *name, const char *text);

/* This process is the other user's from here on, and ends with the one that has made it. */
void other_become(void);
/* Does it in a process of the other user's: false fails the test. */
void other_do(bool (*body)(void *), void *arg);
/* Of the other user: makes a file. */
bool other_plant(const char *folder, const char *name, const char *text);

/* A process of the other user's that swaps what has a name for a link to the precious folder, and back, all the time.
 */
typedef struct other_swapper {
    const char *const *names; /* in the area, up to a NULL */
    const char *area, *precious;
    atomic_long *swaps; /* in memory that both have */
    pid_t pid;
} other_swapper;

void other_swapper_start(other_swapper *s);
void other_swapper_stop(other_swapper *s);
/* Whether there is to be another try: the other user must have swapped something, or nothing was tried. */
bool other_goes_on(const other_swapper *s, int tries);
