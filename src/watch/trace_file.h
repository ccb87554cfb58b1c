/* trace_file.h - the file of a trace: it is written beside its place, and takes it when it is whole. */
#pragma once

#include <stdbool.h>

#include "base/directory.h"

typedef struct fsdp__trace_file {
    fsdp__directory folder;
    char *name, *temporary;
    int note;         /* of the temporary name (base/temporary.h) */
    const char *path; /* borrowed */
    int fd;           /* -1 */
    uint64_t bytes;
} fsdp__trace_file;

/* Tells a trace from other files: it stands in gzip's head, or near the beginning of the text. */
#define FSDP__TRACE_FORMAT "fsdp trace"
#define FSDP__TRACE_HEAD "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"format\":\"" FSDP__TRACE_FORMAT "\""

/* Checks that a trace can be written there: a file with that name must be one. */
fsdp_status fsdp__trace_file_check(const char *path);
/* Begins to write. Release it, also after a failure. */
fsdp_status fsdp__trace_file_open(const char *path, fsdp__trace_file *out);
fsdp_status fsdp__trace_file_add(fsdp__trace_file *file, const void *data, size_t bytes);
/* Puts the file in its place. */
fsdp_status fsdp__trace_file_finish(fsdp__trace_file *file);
/* Removes what was written, unless it is in its place. */
void fsdp__trace_file_release(fsdp__trace_file *file);
/* Serves whoever ends this process while other threads go on: nothing is put in its place any more. Returns whether any
 * file was. Call it once. */
bool fsdp__trace_files_stop(void);
