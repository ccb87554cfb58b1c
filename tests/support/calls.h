/* calls.h - calls of the system that fail on demand. */
#ifndef SUPPORT_CALLS_H
#define SUPPORT_CALLS_H

#include <stdbool.h>

/* From here on, in the whole program, with EIO: fstat of what has this path now (NULL: of nothing any more). */
void test_fail_fstat(const char *path);
/* The same of readdir, of all folders. */
void test_fail_readdir(bool fails);

#endif
