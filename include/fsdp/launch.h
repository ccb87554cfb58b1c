/* fsdp/launch.h - starts ranks as processes, and joins the world from inside one. */
#ifndef FSDP_LAUNCH_H
#define FSDP_LAUNCH_H

#include "fsdp/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Creates the context of this process's rank, as its launcher describes it in the environment, or a world of one rank
 * if there is no launcher. If there are several, the innermost counts:
 *
 *     fsdp_launch, `fsdp run`     RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK, and FSDP_SHM_FD, an
 *                                 inherited descriptor of the shared memory. FSDP_FLIGHT_FD, if it is set, is one of
 *                                 memory for the records of fsdp/watch.h
 *     torchrun --no-python        the same without FSDP_SHM_FD, on one machine: rank 0 creates the memory and passes it
 *                                 to the others. Ranks recognise each other by parent process, MASTER_ADDR,
 *                                 MASTER_PORT, TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT, so a script around
 *                                 the program must `exec` it. They wait FSDP_JOIN_TIMEOUT seconds for each other
 *                                 (300). A waiting rank says so in the default log, and if it sees one that it cannot
 *                                 meet, since its parent or such a variable differs; another WORLD_SIZE beside it is
 *                                 FSDP_MISMATCH on both
 *     mpirun, mpiexec, srun       OMPI_COMM_WORLD_*, PMI_*, PMIX_RANK, SLURM_*: join by MPI, on any number of machines.
 *                                 FSDP_JOIN_TIMEOUT applies, too, but an MPI call cannot be cancelled, so a process
 *                                 that has not joined by then says so and exits with status 1, without flushing stdout.
 *                                 It also does so later if an MPI call takes longer than the timeout
 *                                 (fsdp_context_set_comm_timeout; MPI_Finalize: a minute at most). FSDP_MPI=none:
 *                                 a world of one rank; openmpi or mpich: join by that MPI, even if none of these is set
 *     by hand                     RANK and WORLD_SIZE, as with torchrun. Its other variables, such as LOCAL_RANK, may
 *                                 be set, too, and must then be consistent
 *
 * Ranks that fsdp_launch has not started bind themselves to their share of the machine's cores, unless they are bound
 * already, which shows in the cores that they may use. With OMP_PROC_BIND they leave binding to OpenMP.
 *
 * An invalid variable, or one that contradicts another, is FSDP_INVALID with its name. OMP_NUM_THREADS sets the compute
 * threads, 1 to 1024; of a list ("4,2") the first number counts. If ranks run different builds of this library, all get
 * FSDP_MISMATCH. Blocks until all ranks have joined. [collective] */
FSDP_API fsdp_status fsdp_context_from_env(fsdp_context **out);

typedef struct fsdp_launch_options {
    int ranks;               /* processes to start on this machine, 1 or more */
    const char *const *argv; /* program and arguments, NULL-terminated; argv[0] is looked up in PATH */
    int grace_ms;            /* between SIGTERM and SIGKILL when ranks are ended; 0: 2000 */
    int interrupt_grace_ms;  /* the same when this process was told to end, unless a rank has failed; 0: grace_ms */
    /* Ranks record their calls (fsdp/watch.h). This folder, or one that the ranks name, gets the records of all ranks
     * when one has failed, or had to be killed, and when this process gets SIGUSR2. NULL: nothing is recorded. If there
     * is no memory for the records, the default log warns, and nothing is recorded. */
    const char *flight;
} fsdp_launch_options;

typedef struct fsdp_launch_report {
    int failed_rank; /* first to fail; -1: none */
    int exit_code; /* of that rank, or 128 + the signal that ended it or this call; 126, 127: it could not be started */
    int ended_by;  /* signal that ended the first process to fail; 0: it exited */
    int interrupted_by; /* signal that told this process to end, maybe after a rank had failed; 0: there was none */
    char reason[1024];  /* "rank 1 was killed by signal 9 (Killed)"; "" if none failed */
    char flight[1024];  /* the folder with the records of the ranks' last calls, for `fsdp flight`; "": there is none */
} fsdp_launch_report;

/* Starts the ranks, forwards signals and waits for all of them. If one fails or is killed, the others learn it at once
 * (their collectives fail with its number), then get SIGTERM, then SIGKILL. Returns FSDP_OK if all exited with 0,
 * FSDP_INTERRUPTED if this process got a signal before a rank had failed, and otherwise a failure whose message is the
 * report's reason. [blocks]
 *
 * Signals: SIGINT, SIGTERM, SIGHUP and SIGQUIT go to the ranks, which get interrupt_grace_ms to end. A second one goes
 * to them, too: they get 2 s, or grace_ms if that is less, and are killed after that, or by a third one. SIGUSR1 goes
 * to the ranks. With `flight`, SIGUSR2 writes what the ranks have recorded, whatever they do, and a line in the default
 * log says where; the ranks do not get it. Ctrl-Z (SIGTSTP) stops the ranks together with this process, and SIGCONT
 * continues all. A signal that was ignored at the call (nohup, & in a script) stays ignored, here and in the ranks.
 *
 * No shared memory and no process is left behind, including processes that a rank started, if they stayed in its
 * process group. This holds even if this process is killed with SIGKILL, for which another process (the guardian)
 * waits. If the guardian is killed, a new one is started, with a warning in the default log.
 *
 * File descriptors 0 to 2, if closed, are opened on /dev/null in the ranks, so that their output cannot get into the
 * memory or the files of others.
 *
 * Each rank gets this process's environment with the variables above, with OMP_NUM_THREADS set to its share of the
 * cores unless it is set already, and with GOMP_SPINCOUNT=3000 unless that or OMP_WAIT_POLICY is set. Without
 * GOMP_SPINCOUNT, libgomp's threads spin for each other for so long that another program on one of their cores makes a
 * run many times slower. A program that runs as a single rank should be started with it, too, because libgomp reads it
 * before main (`fsdp` restarts itself for this). */
FSDP_API fsdp_status fsdp_launch(const fsdp_launch_options *options, fsdp_launch_report *report);

#ifdef __cplusplus
}
#endif
#endif
