/* temporary.h - files that are written under a name that they have only until they are whole. A process that a signal
 * ends removes those that it has at that moment, since nobody else would. */
#pragma once

#include <signal.h>
#include <stdbool.h>

/* Describes a file that is being made. */
typedef struct fsdp__making {
    int note; /* 0: of very many files at once some are not noted */
    sigset_t before;
} fsdp__making;

/* Begins to make a file that has its name only until it is whole. Until the call below the thread takes no signals, and
 * a process that ends waits. */
fsdp__making fsdp__temporary_begin(void);
/* Notes that the file was made in an open directory, which stays open until the name no longer stands for the file;
 * `name` is NULL: none was made. Returns the note, for the function below. Leaves errno as it is. */
int fsdp__temporary_made(const fsdp__making *making, int folder, const char *name);
void fsdp__temporary_gone(int note);
/* Removes all that this process has, where the name still stands for what it has made. [async-signal-safe] */
void fsdp__temporaries_remove(void);
/* Does so at the end of the process: a thread that then begins to make another one, or is done with one that it has
 * made, waits until that comes, and reports no file that is gone. [async-signal-safe] */
void fsdp__temporaries_end(void);
