/* status.h - the last error, for code that must know whether there was one. */
#pragma once

#include "fsdp/status.h"

/* Returns how many errors this thread has reported so far. */
uint64_t fsdp__errors(void);
/* Fails because of an argument that is NULL. The call that should have made it may have failed: the last error stands
 * behind the message, and its status counts. Whether that error has to do with it, only the reader can tell. */
#define FSDP__FAIL_NULL(...) fsdp__fail_null(__FILE__, __LINE__, __VA_ARGS__)
fsdp_status fsdp__fail_null(const char *file, int line, const char *format, ...) FSDP_PRINTF(3, 4);
/* Cuts this many bytes from the front of the last message. */
void fsdp__cut_error(size_t bytes);

/* Holds the thread's last error while it is put aside: later failures can be told, and then the last error is put
 * back. */
typedef struct fsdp__error_aside {
    _Alignas(8) unsigned char bytes[2048];
} fsdp__error_aside;
void fsdp__put_error_aside(fsdp__error_aside *aside); /* there is none from here on, and none is held */
void fsdp__put_error_back(const fsdp__error_aside *aside);

/* Writes what a format gives, and the last message behind it, into a buffer that may have no room for both, as
 * fsdp__shown does: the end of the message stays. */
void fsdp__write_error(char *out, size_t out_bytes, const char *format, ...) FSDP_PRINTF(3, 4);
