/* flight.h - the flight recorder: hears of the calls of a context by its probes, and keeps the last ones. */
#pragma once

#include <sys/types.h>

#include "fsdp/watch.h"
#include "watch/flight_file.h"

/* ---- memory for the records of all ranks that a process starts: flight_memory.c ---- */

typedef struct fsdp__flight_memory {
    int fd; /* close-on-exec: the ranks inherit it; -1: there is none */
    int ranks;
    fsdp__flight_file *files; /* by rank */
} fsdp__flight_memory;

/* Makes it. `folder`: where records are to be written unless a rank says otherwise. */
fsdp_status fsdp__flight_memory_create(int ranks, const char *folder, fsdp__flight_memory *out);
void fsdp__flight_memory_free(fsdp__flight_memory *memory); /* does nothing where there is none */
/* Notes how a rank's process ended: "rank 1 was killed by signal 9 (Killed)". */
void fsdp__flight_memory_ending(fsdp__flight_memory *memory, int rank, const char *ending);
/* Keeps all records as they are now: what ranks do when they are ended is of no interest. */
void fsdp__flight_memory_freeze(fsdp__flight_memory *memory);
/* Returns whether a rank has recorded and not left in good order. */
bool fsdp__flight_memory_tells(const fsdp__flight_memory *memory);
/* Writes the records of all ranks that have one; those that cannot be written are left out. `folder` (with room for
 * FSDP__FLIGHT_TEXT bytes) is where the first one lies now. FSDP_STATE: no rank has recorded. */
fsdp_status fsdp__flight_memory_write(const fsdp__flight_memory *memory, char *folder);

/* Maps this rank's part of the memory behind `fd`, which the launcher has made. */
fsdp_status fsdp__flight_map(int fd, int rank, fsdp__flight_file **out);
/* A file that may be another one by now, under its old name. */
typedef struct fsdp__flight_file_id {
    dev_t device;
    ino_t number;
} fsdp__flight_file_id;
/* Makes a file for a record in a folder, with all its blocks, and maps it. */
fsdp_status fsdp__flight_map_file(const char *folder, int rank, fsdp__flight_file **out, fsdp__flight_file_id *id);
/* Removes that file, unless another has its name by now, and the folder if it is empty. */
void fsdp__flight_remove_file(const char *folder, int rank, const fsdp__flight_file_id *id);
/* Copies a record as it is now; fsdp__free it. */
fsdp_status fsdp__flight_copy(const fsdp__flight_file *file, fsdp__flight_file **out);
/* Writes a copy into the folder that it names. */
fsdp_status fsdp__flight_save(const fsdp__flight_file *file);
/* Copies a path to `folder`, which has FSDP__FLIGHT_TEXT bytes, and makes it absolute. */
fsdp_status fsdp__flight_folder(const char *path, char *folder);
/* Checks that records can be written to a folder, which need not be there yet. Makes nothing. */
fsdp_status fsdp__flight_folder_check(const char *path);

/* ---- one rank: flight.c ---- */

/* Starts to record in the memory behind `fd`. Where that cannot be had the log says so, and nothing is recorded. */
void fsdp__flight_join(fsdp_context *context, int fd);
/* Notes in this rank's record, if it has one, the id of the run. */
void fsdp__flight_is_of(fsdp_context *context, const char *id);
/* Copies the folder of this rank's record, which has one, to `folder` (FSDP__FLIGHT_TEXT bytes); returns it. */
const char *fsdp__flight_where(fsdp_context *context, char *folder);
