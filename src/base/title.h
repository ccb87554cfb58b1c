/* title.h - what `ps` shows of a process in place of its command line. */
#pragma once

#include <stddef.h>

/* Describes the memory that the kernel shows as the command line: the arguments that `main` got. */
typedef struct fsdp__title {
    char *start; /* NULL: not known */
    size_t bytes;
} fsdp__title;

fsdp__title fsdp__title_find(void);
/* Writes `text` over the arguments, and cuts it if it is longer than they are: nobody may read the arguments after
 * this. Async-signal-safe. */
void fsdp__title_write(fsdp__title title, const char *text);
