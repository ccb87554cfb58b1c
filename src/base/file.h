/* file.h - the door to the file system. Errors name the file and, where it matters, the offset. */
#pragma once

#include <stdbool.h>

#include "base/compiler.h"
#include "base/probe.h"
#include "fsdp/status.h"

struct stat;

/* Reads a whole file; `*out` is NUL-terminated after `*out_bytes` bytes; fsdp__free it. Refuses what is over
 * `limit_bytes`, and directories, FIFOs, sockets and devices, by name and kind. Waits for nobody. */
fsdp_status fsdp__file_read(const char *path, size_t limit_bytes, char **out, size_t *out_bytes);
/* Does the same with an open regular file, from its beginning; `path` is for the message. */
fsdp_status fsdp__file_read_all(int fd, const char *path, size_t limit_bytes, char **out, size_t *out_bytes);
/* Does the same for a path that the user may point at a pipe or a terminal, too, which is read once, to its end.
 * [blocks] */
fsdp_status fsdp__file_read_stream(const char *path, size_t limit_bytes, char **out, size_t *out_bytes);

typedef struct fsdp__mapping {
    const unsigned char *data; /* NULL for an empty file */
    size_t bytes;
    uint64_t device, inode; /* which file it is, whatever has its name later */
} fsdp__mapping;

/* Maps a regular file read-only; anything else is refused as above. */
fsdp_status fsdp__file_map(const char *path, fsdp__mapping *out);
/* Does the same for a regular file that is open, and stays open. */
fsdp_status fsdp__file_map_open(int fd, const char *path, fsdp__mapping *out);
void fsdp__file_unmap(fsdp__mapping *mapping);
/* Returns whether a descriptor is of the file that is mapped. */
bool fsdp__file_is_mapped(const fsdp__mapping *mapping, int fd);

/* Opens a regular file to read it in parts; anything else is refused as above. `out_bytes` may be NULL. */
fsdp_status fsdp__file_open(const char *path, int *out_fd, size_t *out_bytes);
/* Reads all of `bytes` at `offset`; a file that ends before is an error. `path` is for the message. */
fsdp_status fsdp__file_pread(int fd, const char *path, void *data, size_t bytes, uint64_t offset);

/* Declares a descriptor that is closed, unless it is negative, when its scope is left: FSDP__CLOSED int fd = -1; */
#define FSDP__CLOSED FSDP__SCOPED(fsdp__close_at)
void fsdp__close_at(const int *fd);
/* Closes it; what the file system has failed to write may be told only now. */
fsdp_status fsdp__file_close(int fd, const char *path);
/* All of `bytes` at `offset` (handles short writes; a probe); `path` is for the message. */
fsdp_status fsdp__file_pwrite(int fd, const char *path, const void *data, size_t bytes, uint64_t offset);
fsdp_status fsdp__file_sync(int fd, const char *path);
/* Writes the names in an open directory to the disk, if its file system can do that. `point`: WRITE or FOLDER. */
fsdp_status fsdp__file_sync_names(int fd, const char *path, fsdp__point point);
/* Says "cannot <verb> '<path>': " and errno. */
fsdp_status fsdp__file_error(const char *verb, const char *path);

/* These take a path, and hold its directory open while they work (base/directory.h). */

/* Opens a file for appending, and makes it if it is missing; a terminal or a FIFO that has a reader will do as well. A
 * file that another user may have put there is refused (fsdp__directory_admits). Does not wait. */
fsdp_status fsdp__file_append(const char *path, int *out_fd);
/* Makes a directory and those above it, as mkdir -p does. */
fsdp_status fsdp__make_directories(const char *path);

/* Returns a path that the caller frees with fsdp__free; NULL when out of memory. An absolute name stays as it is. */
char *fsdp__path_join(const char *directory, const char *name);
/* Returns the directory of a path, without a slash at its end; "." for a name alone. fsdp__free it; NULL when out of
 * memory. */
char *fsdp__path_parent(const char *path);
/* Returns whether both are one file or folder, under whatever names. */
bool fsdp__same_file(const struct stat *a, const struct stat *b);
/* Returns whether anything has that name, including what cannot be looked at: opening it tells why. */
int fsdp__path_exists(const char *path);
