/* file.h - the door to the file system. Errors name the file and, where it matters, the offset. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>

#include "fsdp/status.h"

struct stat;

/* Whole file; `*out` is NUL-terminated after `*out_bytes` bytes; fsdp__free it. Refused: what is over `limit_bytes`,
 * and directories, FIFOs, sockets and devices, by name and kind. Waits for nobody. */
fsdp_status fsdp__file_read(const char *path, size_t limit_bytes, char **out, size_t *out_bytes);
/* The same of a path that the user may point at a pipe or a terminal too: read once, to its end. [blocks] */
fsdp_status fsdp__file_read_stream(const char *path, size_t limit_bytes, char **out, size_t *out_bytes);

typedef struct fsdp__mapping {
    const unsigned char *data; /* NULL for an empty file */
    size_t bytes;
    uint64_t device, inode; /* which file it is, whatever has its name later */
} fsdp__mapping;

/* Read-only memory map of a regular file; anything else is refused as above. */
fsdp_status fsdp__file_map(const char *path, fsdp__mapping *out);
void fsdp__file_unmap(fsdp__mapping *mapping);
/* Whether a descriptor is of the file that is mapped. */
bool fsdp__file_is_mapped(const fsdp__mapping *mapping, int fd);

/* A regular file, to be read in parts; anything else is refused as above. `out_bytes` may be NULL. */
fsdp_status fsdp__file_open(const char *path, int *out_fd, size_t *out_bytes);
/* All of `bytes` at `offset`; a file that ends before is an error. `path` is for the message. */
fsdp_status fsdp__file_pread(int fd, const char *path, void *data, size_t bytes, uint64_t offset);

/* Writes `bytes` to a temporary file beside `path`, fsyncs, renames, fsyncs the directory: `path` holds either what it
 * held or all of `data`. */
fsdp_status fsdp__file_write_atomic(const char *path, const void *data, size_t bytes);

/* Opens a file for writing that is not there yet. */
fsdp_status fsdp__file_create(const char *path, int *out_fd);
/* Closes it; what the file system has failed to write may be told only now. */
fsdp_status fsdp__file_close(int fd, const char *path);
/* A new file, whole and synced: for a folder that nobody looks at yet. */
fsdp_status fsdp__file_write_new(const char *path, const void *data, size_t bytes);
/* All of `bytes` at `offset` (handles short writes; a fault point); `path` is for the message. */
fsdp_status fsdp__file_pwrite(int fd, const char *path, const void *data, size_t bytes, uint64_t offset);
fsdp_status fsdp__file_sync(int fd, const char *path);
fsdp_status fsdp__file_rename(const char *from, const char *to); /* and fsyncs the directory of `to` */
fsdp_status fsdp__file_unlink(const char *path);                 /* a missing one is fine */
fsdp_status fsdp__file_sync_directory(const char *path);
fsdp_status fsdp__file_sync_parent(const char *path);   /* the directory that it lies in */
fsdp_status fsdp__file_sync_removals(const char *path); /* of a directory: the same, for a clean-up (base/fault.h) */
/* Like mkdir -p; the names of those that are made are on the disk then. */
fsdp_status fsdp__make_directories(const char *path);
/* Whether it is gone then: it stays where it holds anything. */
bool fsdp__remove_empty_directory(const char *path);
fsdp_status fsdp__remove_tree(const char *path); /* like rm -rf: a missing path is fine, links are not followed */
fsdp_status fsdp__remove_contents(const char *path, const char *kept); /* all that is in it but `kept` (may be NULL) */
/* fsdp__free it; NULL when out of memory. An absolute name stays as it is. */
char *fsdp__path_join(const char *directory, const char *name);
/* The directory that it lies in, without a slash at its end; "." for a name alone. fsdp__free it; NULL when out of
 * memory. */
char *fsdp__path_parent(const char *path);
/* Of what stat says: whether both are one file or folder, under whatever names. */
bool fsdp__same_file(const struct stat *a, const struct stat *b);
/* Whether anything has that name, also what cannot be looked at: opening it tells why. */
int fsdp__path_exists(const char *path);
int fsdp__path_is_file(const char *path); /* a regular one, not a link to one */

#endif
