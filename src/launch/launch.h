/* launch.h - the parts of launching: environment, starting, watching. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "comm/transport/arena/shm.h"
#include "fsdp/launch.h"

enum {
    FSDP__KEPT_MS = 250, /* between two looks whether something keeps a process: who does gets this time to let it go */
    FSDP__LAST_WAIT_S = 30 /* for a killed process that nothing is known to keep */
};

typedef struct fsdp__child {
    pid_t pid; /* leads a process group of its own; 0: not started */
    bool running;
    bool was_signalled; /* this process sent it a signal to end it */
    int status;         /* as waitpid gives it, once the process has ended */
    bool was_killed;    /* by this process */
    bool was_kept;      /* at the last look, by a process that traces it or a frozen control group */
} fsdp__child;

/* ---- environment.c ---- */

/* Makes the environment of rank `rank` of `ranks`: this process's own with the rank's variables set (flight_fd -1:
 * there is none), and GOMP_SPINCOUNT unless the user says how threads wait. It is one allocation; fsdp__free it. NULL
 * and a last error when out of memory. */
char **fsdp__rank_environment(int rank, int ranks, int shm_fd, int flight_fd, int threads);

/* Does what fsdp_context_from_env does, with `threads` compute threads, whatever OMP_NUM_THREADS says; 0: this rank's
 * share of the cores. */
fsdp_status fsdp__context_from_env(int threads, fsdp_context **out);
/* Tells ranks that would wait for this process, which is about to end, why it does not join, as far as they can be
 * reached. `alone`: the others do not find out by themselves. [blocks] */
void fsdp__refuse_to_join(const char *why, bool alone);

/* ---- spawn.c ---- */

/* Starts one process per rank, each bound to its share of the cores when there is at least one for each. Starts all or
 * none: fails with "cannot start 'program': ...". The ranks get the descriptor `flight_fd` (-1: none). `signals` are
 * blocked in the ranks. The guardian behind `guardian_fd` is told of their groups. `children` has room for
 * options->ranks. */
fsdp_status fsdp__spawn(const fsdp_launch_options *options, const fsdp__arena *arena, int flight_fd,
                        const sigset_t *signals, int guardian_fd, fsdp__child *children);
/* Sends a signal to a rank and to all its descendants that stayed in its group. */
void fsdp__signal_child(const fsdp__child *child, int signal);
/* Returns whether the child has just ended. Then nothing of its group is left, and child->status is known. */
bool fsdp__reap(fsdp__child *child, int guardian_fd);

/* Does what fsdp__reap does for a child that has ended, but whom a debugger keeps: nobody is told of its end; and for
 * one that was killed and is held (fsdp__process_is_held). Call it after fsdp__reap, now and then: who keeps a child
 * gets the time between two calls. */
bool fsdp__reap_kept(fsdp__child *child, int guardian_fd);
/* Gives up a child that was killed and has not ended: it counts as killed. */
void fsdp__leave_child(fsdp__child *child, int guardian_fd);

/* ---- signals.c ---- */

/* Chooses the signals that a process reads which waits for others: SIGCHLD, and of those that end or stop a process, or
 * ask it for something, the ones that were not ignored when it started (by nohup, or & in a script). SIGUSR2 is among
 * them with `flight`. */
void fsdp__choose_signals(sigset_t *out, bool flight);
/* Makes SIGCHLD arrive: a process that ignores it, or inherited that, would not learn how a child ended. `*before` is
 * what was; set it again when there are no children any more. */
void fsdp__expect_children(struct sigaction *before);
/* Stops this process, which has blocked SIGTSTP and read one, until it is continued. Where the system stops no process
 * for that signal it returns at once. */
void fsdp__stop_with_job(void);
/* Makes this process, which is about to become a program, the leader of a group of its own, of which the terminal knows
 * nothing. So that it is not stopped when it prints (`stty tostop`), which nobody would see, it ignores SIGTTOU. */
void fsdp__lead_own_group(void);

/* ---- last_wait.c ---- */

/* Waits for the end of a child that has been told to end. Some children cannot: a debugger or a frozen control group
 * holds them, or the kernel does. Then it warns that `name` remains, and returns false; `*status` is that of a process
 * that has ended, or has been killed. [blocks] */
bool fsdp__await_end(pid_t pid, const char *name, int *status);

/* ---- ending.c ---- */

bool fsdp__ended_well(int status);
/* Returns the exit status as a shell has it: the code, or 128 + signal. */
int fsdp__exit_status(int status);
/* Writes "rank 1 was killed by signal 9 (Killed)", and what that may mean where it was not the user's doing.
 * `oom_kills` is what fsdp__oom_kills returned before. */
void fsdp__describe_ending(int rank, int status, long long oom_kills, char *text, size_t text_bytes);
