/* fsdp/launch.h - starting ranks as processes, and joining from inside one. */
#ifndef FSDP_LAUNCH_H
#define FSDP_LAUNCH_H

#include "fsdp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* This process's rank, as who started it says in the environment; alone when nobody does. The innermost of these
 * counts:
 *
 *     fsdp_launch, `fsdp run`     RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, and FSDP_SHM_FD: the
 *                                 shared memory, which it inherits
 *     torchrun --no-python        the same without FSDP_SHM_FD, of one machine: rank 0 makes the memory and hands it to
 *                                 the others. They know each other by their parent process, MASTER_ADDR, MASTER_PORT,
 *                                 TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT, so a script around the program
 *                                 must `exec` it. FSDP_JOIN_TIMEOUT: seconds that they wait for each other (300);
 *                                 one that waits says so in the log's default place
 *     mpirun, mpiexec, srun       OMPI_COMM_WORLD_*, PMI_*, PMIX_RANK, SLURM_*: by MPI, on any number of machines.
 *                                 FSDP_JOIN_TIMEOUT: the same; but a call of MPI cannot be called off, so a process
 *                                 that has not joined by then says so and ends, with status 1 and without what stdout
 *                                 has buffered. So it does later where a call of MPI lasts longer than the timeout
 *                                 (fsdp_context_set_comm_timeout; MPI_Finalize: a minute at most). FSDP_MPI=none:
 *                                 alone; openmpi or mpich: a rank of that one, even where none of these is set
 *     by hand                     RANK and WORLD_SIZE: as torchrun. LOCAL_RANK and the other variables of torchrun may
 *                                 be set, too, and must fit then
 *
 * Ranks that fsdp_launch has not started bind themselves to their share of the machine's cores, unless somebody has
 * bound them already, which shows in the cores that they may use; OMP_PROC_BIND leaves it to OpenMP.
 *
 * A variable that is wrong, or contradicts another one, is FSDP_INVALID with its name. OMP_NUM_THREADS sets the compute
 * threads, 1 to 1024; of a list ("4,2") the first number counts. Ranks that run several builds of this library are
 * FSDP_MISMATCH on all of them. Blocks until all ranks have joined. [collective] */
FSDP_API fsdp_status fsdp_context_from_env(fsdp_context **out);

typedef struct fsdp_launch_options {
    int ranks;               /* processes to start on this machine, 1 or more */
    const char *const *argv; /* program and arguments, NULL-terminated; argv[0] is searched in PATH */
    int grace_ms;            /* between SIGTERM and SIGKILL when ending ranks; 0: 2000 */
    int interrupt_grace_ms;  /* the same where this process was told to end, until a rank has failed; 0: grace_ms */
} fsdp_launch_options;

typedef struct fsdp_launch_report {
    int failed_rank;   /* first to fail; -1 when none did */
    int exit_code;     /* of that rank, or 128 + the signal that ended it or this call; 126, 127: not started */
    int ended_by;      /* signal that ended the first process that did not end well; 0: it has exited */
    char reason[1024]; /* "rank 1 was killed by signal 9 (Killed)"; "" when all ended well */
} fsdp_launch_report;

/* Starts the ranks, forwards signals, waits for all. When one fails or is killed the others learn it at once (their
 * collectives fail with its number), get SIGTERM, then SIGKILL. Returns FSDP_OK when all exited with 0;
 * FSDP_INTERRUPTED when this process got a signal; else a failure whose message is the report's reason. [blocks]
 *
 * Signals: SIGINT, SIGTERM and SIGHUP go to the ranks, which get interrupt_grace_ms to end; a second one kills them.
 * SIGUSR1 goes to the ranks. Ctrl-Z (SIGTSTP) stops the ranks with this process, and SIGCONT lets all go on. One that
 * was ignored when this was called (nohup, & in a script) stays ignored, here and in the ranks.
 *
 * No shared memory and no process is left behind, those that a rank started included as long as they stayed in its
 * process group: also when this process is killed with SIGKILL, for which one more process (the guardian) waits. Where
 * that is killed there is another one, and a warning in the log's default place.
 *
 * File descriptors 0 to 2 that are closed are open on /dev/null in the ranks, so that nothing they print gets into the
 * memory or the files of others.
 *
 * Each rank's environment is this process's, with the variables above; with OMP_NUM_THREADS, its share of the cores,
 * unless it is set; and with GOMP_SPINCOUNT=3000 unless that or OMP_WAIT_POLICY is set. Without, libgomp's threads spin
 * for each other for so long that another program on one of their cores makes a run many times slower; a program that
 * is its own only rank should be started with it too (`fsdp` starts itself anew). libgomp reads it before main. */
FSDP_API fsdp_status fsdp_launch(const fsdp_launch_options *options, fsdp_launch_report *report);

#ifdef __cplusplus
}
#endif
#endif
