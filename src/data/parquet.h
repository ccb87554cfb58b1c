/* parquet.h - the rows of a Parquet file as JSON lines.
 *
 * Arrow GLib reads the file: libparquet-glib, which is opened when the first such file is, and which nothing else
 * needs. It is looked for in the folders of the environment variable FSDP_ARROW_LIBRARIES, with colons between them,
 * then where the loader looks; a newer version before an older one. */
#pragma once

#include "fsdp/status.h"

typedef struct fsdp__parquet fsdp__parquet;

/* Returns whether the name says that a file is Parquet (.parquet), and whether the first bytes say so. */
bool fsdp__parquet_is_named(const char *path);
bool fsdp__parquet_begins(const void *data, size_t bytes);

/* Opens a file. Without the library, or with one that lacks a function, it is FSDP_UNSUPPORTED, and the message says
 * what to install and how to do without. A file that is cut short, damaged or encrypted is FSDP_FORMAT. `path` is
 * borrowed. */
fsdp_status fsdp__parquet_open(const char *path, fsdp__parquet **out);
/* Reads the next bytes of the JSON lines, at most `room`; `*got` is 0 at the end. Errors name the file, and the row,
 * from 1, and column where they are known. One group of rows is in memory at a time (data/arrow.h has what becomes of
 * the types). */
fsdp_status fsdp__parquet_read(fsdp__parquet *parquet, char *into, size_t room, size_t *got);
/* Returns which part of the groups of rows has been begun, from 0 to 1. */
double fsdp__parquet_progress(const fsdp__parquet *parquet);
void fsdp__parquet_close(fsdp__parquet *parquet); /* NULL is allowed */
