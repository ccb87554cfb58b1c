/* status.h - the last error, for code that must know whether there was one. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include "fsdp/status.h"

/* Returns how many errors this thread has reported so far. */
uint64_t fsdp__errors(void);
/* Fails because of an argument that is NULL. If the call that should have made it has failed, that error is the one to
 * tell, and stays as it is. */
#define FSDP__FAIL_NULL(...) (fsdp_last_status() != FSDP_OK ? fsdp_last_status() : FSDP_FAIL(FSDP_INVALID, __VA_ARGS__))
/* Cuts this many bytes from the front of the last message. */
void fsdp__cut_error(size_t bytes);

/* Writes what a format gives, and the last message behind it, into a buffer that may have no room for both, as
 * fsdp__shown does: the end of the message stays. */
void fsdp__write_error(char *out, size_t out_bytes, const char *format, ...) FSDP_PRINTF(3, 4);

#endif
