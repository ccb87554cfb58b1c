/* file_digest.h - whether a file is still the one that was written, quickly even for a large file. */
#pragma once

#include "base/directory.h"

/* Hashes the file's bytes, or for a large file pieces of it from its beginning to its end: other weights differ in all
 * of them. The hash is never 0. */
fsdp_status fsdp__file_digest(const fsdp__directory *in, const char *name, uint64_t *out);
