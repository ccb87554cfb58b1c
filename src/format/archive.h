/* archive.h - a zip archive: its members by name, and ranges of their bytes. */
#pragma once

#include "fsdp/status.h"

typedef struct fsdp__archive fsdp__archive;

/* Opens an archive that is a regular file. */
fsdp_status fsdp__archive_open(const char *path, fsdp__archive **out);
void fsdp__archive_close(fsdp__archive *archive); /* NULL is allowed */

int64_t fsdp__archive_count(const fsdp__archive *archive);
/* Returns a borrowed name; "" if the member has none. */
const char *fsdp__archive_name(const fsdp__archive *archive, int64_t member);
/* Returns the member, or -1 when none has that name. */
int64_t fsdp__archive_find(const fsdp__archive *archive, const char *name);
fsdp_status fsdp__archive_size(fsdp__archive *archive, int64_t member, uint64_t *out_bytes);
/* Reads bytes [offset, offset + bytes) of a member. A compressed member is read from its beginning for that, unless the
 * last read of it ended at `offset`. */
fsdp_status fsdp__archive_read(fsdp__archive *archive, int64_t member, uint64_t offset, void *out, size_t bytes);
