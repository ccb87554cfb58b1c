/* status.h - the last error, for who must know whether there was one. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include "fsdp/status.h"

/* How many errors this thread has reported so far. */
uint64_t fsdp__errors(void);
/* Takes so many bytes from the front of the last message. */
void fsdp__cut_error(size_t bytes);

#endif
