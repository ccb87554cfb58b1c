/* digest.h - whether a file is still the one that was written, told in a moment also of a large one. */
#ifndef FORMAT_DIGEST_H
#define FORMAT_DIGEST_H

#include "base/directory.h"

/* A hash of the file's bytes, and of a large one of pieces from its beginning to its end: other weights differ in all
 * of them. Never 0. */
fsdp_status fsdp__file_digest(const fsdp__directory *in, const char *name, uint64_t *out);

#endif
