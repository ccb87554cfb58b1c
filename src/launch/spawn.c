/* spawn.c - starts rank processes and learns of their end.
 *
 * A rank leads a process group of its own, so that a signal reaches its children too, and dies with the launcher. The
 * child makes only system calls between fork and exec: the launcher may have threads. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/limits.h"
#include "comm/health/process.h"
#include "launch/guardian.h"
#include "launch/launch.h"
#include "launch/placement.h"

/* Holds what the child needs; all of it is made before the fork. */
typedef struct plan {
    const char *const *argv;
    char **environment;
    bool bind;
    cpu_set_t cores;
    sigset_t signals; /* to be blocked */
    int shm_fd, flight_fd;
    int guardian_fd;
    int quiet_fd; /* replaces a terminal as stdin; -1: keep stdin */
    int error_fd; /* closes on success, gets errno otherwise */
    pid_t launcher;
} plan;

static void child_main(const plan *p)
{
    int error;

    fsdp__lead_own_group();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != p->launcher)
        _exit(1); /* the launcher died before this process could be tied to it */
    fsdp__guardian_watch(p->guardian_fd, getpid());
    if (p->bind)
        (void)sched_setaffinity(0, sizeof p->cores, &p->cores);
    (void)sigprocmask(SIG_SETMASK, &p->signals, NULL);
    if (p->quiet_fd >= 0)
        (void)dup2(p->quiet_fd, STDIN_FILENO);
    /* These are the only descriptors that the program is to get. */
    (void)fcntl(p->shm_fd, F_SETFD, 0);
    if (p->flight_fd >= 0)
        (void)fcntl(p->flight_fd, F_SETFD, 0);
    execvpe(p->argv[0], (char *const *)(uintptr_t)p->argv, p->environment);
    error = errno;
    if (write(p->error_fd, &error, sizeof error) < 0)
        _exit(126);
    _exit(127);
}

static fsdp_status start(const fsdp_launch_options *options, int rank, plan *p, fsdp__child *child)
{
    int threads = fsdp__allowed_cores() / options->ranks;
    cpu_set_t all;
    pid_t pid;

    p->bind =
        sched_getaffinity(0, sizeof all, &all) == 0 && fsdp__share_of_cores(&all, rank, options->ranks, &p->cores);
    FSDP__TRY_NEW(p->environment =
                      fsdp__rank_environment(rank, options->ranks, p->shm_fd, p->flight_fd, threads > 0 ? threads : 1));
    pid = fork();
    if (pid == 0)
        child_main(p);
    fsdp__free(p->environment);
    if (pid < 0)
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot start rank %d of %d: %s%s", rank, options->ranks, strerror(errno),
                         fsdp__limit_behind(errno));
    (void)setpgid(pid, pid); /* both processes call it, since either may run first */
    child->pid = pid;
    child->running = true;
    return FSDP_OK;
}

/* Blocks until every child has either become the program or reported why not. */
static fsdp_status await_programs(int error_fd, const char *program)
{
    int error;
    ssize_t bytes;

    do {
        bytes = read(error_fd, &error, sizeof error);
    } while (bytes < 0 && errno == EINTR);
    if (bytes == 0)
        return FSDP_OK;
    if (bytes != sizeof error)
        error = EIO;
    return FSDP_FAIL(error == ENOENT ? FSDP_NOT_FOUND : FSDP_IO, "cannot start '%s': %s%s", program, strerror(error),
                     fsdp__limit_behind(error));
}

static void kill_all(fsdp__child *children, int count, int guardian_fd)
{
    for (int r = 0; r < count; r++) {
        if (!children[r].running)
            continue;
        fsdp__signal_child(&children[r], SIGKILL);
        (void)fsdp__await_end(children[r].pid, "a rank that was just started", &children[r].status);
        fsdp__guardian_forget(guardian_fd, children[r].pid);
        children[r].running = false;
    }
}

fsdp_status fsdp__spawn(const fsdp_launch_options *options, const fsdp__arena *arena, int flight_fd,
                        const sigset_t *signals, int guardian_fd, fsdp__child *children)
{
    plan p = {.argv = options->argv,
              .signals = *signals,
              .shm_fd = arena->fd,
              .flight_fd = flight_fd,
              .guardian_fd = guardian_fd,
              .quiet_fd = -1,
              .launcher = getpid()};
    int ends[2] = {-1, -1};
    fsdp_status status = FSDP_OK;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return FSDP_FAIL(FSDP_IO, "cannot start '%s': %s%s", options->argv[0], strerror(errno),
                         fsdp__limit_behind(errno));
    p.error_fd = ends[1];
    if (isatty(STDIN_FILENO)) /* a background group that reads from a terminal is stopped */
        p.quiet_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int r = 0; r < options->ranks; r++)
        FSDP_TRY_GOTO(status, start(options, r, &p, &children[r]), out);
    /* Peers that wait for a rank to join can see from this whether it lives. */
    for (int r = 0; r < options->ranks; r++)
        atomic_store(&fsdp__row_at(arena->board, r)->started, children[r].pid);
    /* The children have the other copies, which close when they become the program: then the pipe ends. */
    close(ends[1]);
    ends[1] = -1;
    FSDP_TRY_GOTO(status, await_programs(ends[0], options->argv[0]), out);
out:
    if (status != FSDP_OK)
        kill_all(children, options->ranks, guardian_fd);
    close(ends[0]);
    if (ends[1] >= 0)
        close(ends[1]);
    if (p.quiet_fd >= 0)
        close(p.quiet_fd);
    return status;
}

void fsdp__signal_child(const fsdp__child *child, int signal)
{
    if (child->running)
        (void)kill(-child->pid, signal);
}

bool fsdp__reap(fsdp__child *child, int guardian_fd)
{
    siginfo_t info = {0};

    if (!child->running || waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != child->pid)
        return false;
    /* As long as its status is not collected its pid is not reused, so this cannot hit a stranger. */
    fsdp__signal_child(child, SIGKILL);
    fsdp__guardian_forget(guardian_fd, child->pid);
    while (waitpid(child->pid, &child->status, 0) < 0 && errno == EINTR)
        ;
    child->running = false;
    return true;
}

/* Ends what is left of a child's group, and takes the child for ended. Its pid is not reused before it really is. */
static void give_up(fsdp__child *child, int guardian_fd, int status)
{
    fsdp__signal_child(child, SIGKILL);
    fsdp__guardian_forget(guardian_fd, child->pid);
    child->status = status;
    child->running = false;
}

bool fsdp__reap_kept(fsdp__child *child, int guardian_fd)
{
    bool was_kept = child->was_kept;
    char who[FSDP__WHO_TRACES], why[120] = "";
    int status = SIGKILL;
    bool kept = child->running && fsdp__process_is_kept(child->pid, &status, who);
    bool held = child->running && !kept && child->was_killed && fsdp__process_is_held(child->pid, why, sizeof why);

    child->was_kept = kept || held;
    if (!was_kept || !child->was_kept)
        return false;
    if (held)
        fsdp__warn("process %d was killed, but remains, because %s: it is not waited for", (int)child->pid, why);
    else
        fsdp__warn("process %d has ended, but %s has not let it go: it is not waited for", (int)child->pid, who);
    give_up(child, guardian_fd, held ? SIGKILL : status);
    return true;
}

void fsdp__leave_child(fsdp__child *child, int guardian_fd)
{
    fsdp__warn("process %d was killed, but remains: it is not waited for any longer", (int)child->pid);
    give_up(child, guardian_fd, SIGKILL);
}
