/* fsdp/watch.h - what a run shows of itself while it goes on, and when it has gone wrong.
 *
 * The flight recorder keeps the last 4,096 collectives of a rank in memory: which group, which call, for which module,
 * how many bytes, in which step, when it was issued, begun and done; and the module that the rank is in now. When ranks
 * wait for one that does not come, or make different calls, `fsdp flight FOLDER` names it.
 *
 * Ranks that fsdp_launch has started with `flight` in its options (so do `fsdp run` and `fsdp train`) record from
 * fsdp_context_from_env on, in memory of the launcher's: a rank that is killed leaves its record behind, and the
 * launcher writes the records of all ranks when one fails, and when it gets SIGUSR2. Their programs need no call of
 * this header. A program that MPI or torchrun has started, or whose ranks are threads, calls fsdp_flight_start. */
#ifndef FSDP_WATCH_H
#define FSDP_WATCH_H

#include "fsdp/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts to record this rank's calls, until the context is freed; existing groups continue with the number of their
 * next call. A local call, but the records help most if all ranks have one.
 *
 * folder: where the record is written, as "rank-N.flight". It is made if it is missing, and must be one to which nobody
 *     else may write (FSDP_INVALID). A file of that name is replaced. NULL: this rank's record is written nowhere,
 * unless the launcher has said where. in_file: the record lies in that file from now on, so that it is there even if
 * this process is killed, whoever has started it; a disk without room for it is an error now (FSDP_IO). The folder
 * should be on a disk of this machine, or in /dev/shm: on network storage a call may have to wait for the server. The
 * file is removed when the context is freed, unless the world was broken. Without in_file the record is memory, which
 * is written once the world breaks: when a rank fails, dies, is stuck for comm's timeout, or makes another call than
 * its peers. run: a name for people, cut to 63 bytes; NULL: none.
 *
 * A rank that records already gets this folder and name. FSDP_STATE: its record lies in a file, and this is another
 * folder; or with in_file, unless the record lies in memory of the launcher's, which is as safe. FSDP_INVALID: the
 * context is NULL, or in_file without a folder. */
FSDP_API fsdp_status fsdp_flight_start(fsdp_context *context, const char *folder, bool in_file, const char *run);

/* Writes the record as it is now, on any thread, also while the rank's own thread hangs. FSDP_STATE: the rank does not
 * record, or no folder was named. */
FSDP_API fsdp_status fsdp_flight_write(fsdp_context *context);

#ifdef __cplusplus
}
#endif
#endif
