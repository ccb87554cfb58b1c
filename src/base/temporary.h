/* temporary.h - files that are written under a name that they have only until they are whole. A process that a signal
 * ends removes those that it has at that moment, since nobody else would. */
#ifndef BASE_TEMPORARY_H
#define BASE_TEMPORARY_H

/* Notes that a file was made under such a name in an open directory, which stays open until the name no longer stands
 * for the file. Returns the note, for the function below. Of very many files at once some are not noted: 0. */
int fsdp__temporary_made(int folder, const char *name);
void fsdp__temporary_gone(int note);
/* Removes all that this process has. Call it when the process ends. [async-signal-safe] */
void fsdp__temporaries_remove(void);

#endif
