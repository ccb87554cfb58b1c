/* prompt.h - the text that a model is to continue, and how it gets to the ranks. */
#pragma once

#include "fsdp/fsdp.h"

typedef struct fsdp__prompt {
    char *text; /* followed by a NUL; NULL: ids are given */
    size_t bytes;
} fsdp__prompt;

/* Reads the text of a file, or standard input for "-", without a byte order mark at its beginning and the line break at
 * its end. Contents that are not text are refused. */
fsdp_status fsdp__prompt_read(const char *path, fsdp__prompt *out);
fsdp_status fsdp__prompt_copy(const char *text, fsdp__prompt *out);
void fsdp__prompt_release(fsdp__prompt *prompt);

/* Writes the prompt for ranks that this process will start. They inherit the descriptor; the caller closes it. */
fsdp_status fsdp__prompt_hand_over(const fsdp__prompt *prompt, int *fd);
/* Reads what was handed over; closes the descriptor. */
fsdp_status fsdp__prompt_take_over(int fd, fsdp__prompt *out);
