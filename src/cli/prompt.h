/* prompt.h - what a model is to continue, and how it comes to the ranks. */
#ifndef CLI_PROMPT_H
#define CLI_PROMPT_H

#include "fsdp/fsdp.h"

typedef struct fsdp__prompt {
    char *text; /* NULL: ids are given; a NUL behind it */
    size_t bytes;
} fsdp__prompt;

/* A file's text, "-": that of standard input, without the line break at its end and a byte order mark at its beginning;
 * what is no text is refused. `option` is for messages. */
fsdp_status fsdp__prompt_read(const char *option, const char *path, fsdp__prompt *out);
fsdp_status fsdp__prompt_copy(const char *text, fsdp__prompt *out);
void fsdp__prompt_release(fsdp__prompt *prompt);

/* For ranks that this process will start: they inherit the descriptor, which is the caller's to close. */
fsdp_status fsdp__prompt_hand_over(const fsdp__prompt *prompt, int *fd);
/* What was handed over; closes the descriptor. */
fsdp_status fsdp__prompt_take_over(int fd, fsdp__prompt *out);

#endif
