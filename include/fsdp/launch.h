/* fsdp/launch.h - starting ranks as processes, and joining from inside one. */
#ifndef FSDP_LAUNCH_H
#define FSDP_LAUNCH_H

#include "fsdp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* This process's rank: alone when nothing in the environment says otherwise, or one of the ranks that fsdp_launch (or
 * `fsdp run`) started: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and FSDP_SHM_FD (the inherited shared memory).
 * OMP_NUM_THREADS sets the compute threads. Blocks until all ranks have joined. [collective] */
FSDP_API fsdp_status fsdp_context_from_env(fsdp_context **out);

typedef struct fsdp_launch_options {
    int ranks;               /* processes to start on this machine, 1 or more */
    const char *const *argv; /* program and arguments, NULL-terminated; argv[0] is searched in PATH */
    int grace_ms;            /* between SIGTERM and SIGKILL when ending ranks; 0: 2000 */
} fsdp_launch_options;

typedef struct fsdp_launch_report {
    int failed_rank;   /* first to fail; -1 when none did */
    int exit_code;     /* of that rank, or 128 + signal */
    char reason[1024]; /* "rank 1 was killed by signal 9 (Killed)"; "" when all ended well */
} fsdp_launch_report;

/* Starts the ranks, forwards SIGINT and SIGTERM, waits for all. When one fails or is killed the others learn it at once
 * (their collectives fail with its number), get SIGTERM, then SIGKILL. Returns FSDP_OK when all exited with 0; else a
 * failure whose message is the report's reason. No process and no shared memory is left behind, also when this process
 * is killed itself. [blocks] */
FSDP_API fsdp_status fsdp_launch(const fsdp_launch_options *options, fsdp_launch_report *report);

#ifdef __cplusplus
}
#endif
#endif
