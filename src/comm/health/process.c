/* process.c - what the system knows about a peer's process. */
#include "comm/health/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/limits.h"

/* ---- its state ---- */

static bool read_text(const char *path, char *text, size_t room)
{
    ssize_t bytes;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return false;
    bytes = read(fd, text, room - 1);
    close(fd);
    text[bytes > 0 ? bytes : 0] = '\0';
    return bytes > 0;
}

/* Reads fields of /proc/PID/stat after the name in parentheses, which may contain anything. The state is field 3. */
static bool read_stat(const char *path, char *state, uint64_t *start_ticks)
{
    char text[1024], *at;

    if (!read_text(path, text, sizeof text))
        return false;
    at = strrchr(text, ')');
    if (!at || at[1] != ' ')
        return false;
    *state = at[2];
    for (int field = 2; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    *start_ticks = at ? strtoull(at, NULL, 10) : 0;
    return true;
}

static bool read_process(int pid, char *state, uint64_t *start_ticks)
{
    char path[48];

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    return read_stat(path, state, start_ticks);
}

uint64_t fsdp__process_start_ticks(int pid)
{
    char state;
    uint64_t ticks;

    return read_process(pid, &state, &ticks) ? ticks : 0;
}

bool fsdp__process_is_dead(int pid, uint64_t start_ticks)
{
    char state;
    uint64_t ticks;

    if (pid == 0)
        return false;
    if (kill(pid, 0) != 0 && errno == ESRCH)
        return true;
    return read_process(pid, &state, &ticks) &&
           (state == 'Z' || state == 'X' || (start_ticks != 0 && ticks != start_ticks));
}

uint64_t fsdp__process_namespace(void)
{
    struct stat of;

    return stat("/proc/self/ns/pid", &of) == 0 ? of.st_ino : UINT64_MAX;
}

char fsdp__process_state(int pid, int thread)
{
    char path[80], state;
    uint64_t ticks;

    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, thread);
    return read_stat(path, &state, &ticks) ? state : '\0';
}

/* Gives how a process ended, if /proc/PID/stat says so: in its field 52, counted from 1; field 2 is in parentheses. */
static void read_ending(const char *stat, int *status)
{
    const char *at = strrchr(stat, ')');

    for (int field = 2; field < 52 && at; field++)
        at = strchr(at + 1, ' ');
    if (at)
        (void)sscanf(at, " %d", status);
}

/* Returns the process that traces this one; 0: none does. */
static int tracer_of(int pid)
{
    char path[48], text[1024], *at;
    int tracer = 0;

    snprintf(path, sizeof path, "/proc/%d/status", pid);
    at = read_text(path, text, sizeof text) ? strstr(text, "\nTracerPid:") : NULL;
    return at && sscanf(at, "\nTracerPid: %d", &tracer) == 1 ? tracer : 0;
}

/* Says which process traces another one. It may be outside this process's pid namespace, and have no number in it. */
static void say_tracer(int pid, char who[FSDP__WHO_TRACES])
{
    int tracer = tracer_of(pid);

    if (tracer > 0)
        snprintf(who, FSDP__WHO_TRACES, "process %d, which traces it,", tracer);
    else
        snprintf(who, FSDP__WHO_TRACES, "a process outside this container, which traces it,");
}

/* Returns whether all threads of the process have ended. */
static bool has_ended(int pid)
{
    FSDP__CLOSED int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd of = {.fd = fd, .events = POLLIN};

    return fd >= 0 && poll(&of, 1, 0) == 1;
}

/* Returns whether /proc numbers processes as this process does: in a new namespace it may still be that of another. */
static bool proc_is_ours(void)
{
    char self[24] = "";

    return readlink("/proc/self", self, sizeof self - 1) > 0 && atoi(self) == getpid();
}

bool fsdp__process_is_kept(int pid, int *status, char who[FSDP__WHO_TRACES])
{
    char path[48], text[1024];

    if (!has_ended(pid))
        return false;
    snprintf(who, FSDP__WHO_TRACES, "another process, which traces it,");
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (!proc_is_ours() || !read_text(path, text, sizeof text))
        return true;
    read_ending(text, status);
    say_tracer(pid, who);
    return true;
}

bool fsdp__process_is_frozen(int pid)
{
    char path[48];

    snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    return fsdp__control_group_is_frozen(path, "/sys/fs/cgroup");
}

/* ---- its threads ---- */

static DIR *open_threads(int pid)
{
    char path[48];

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    return opendir(path);
}

/* Returns the system's number of the next thread; 0: there are no more. */
static int next_thread(DIR *threads)
{
    const struct dirent *entry;

    while (threads && (entry = readdir(threads)) != NULL)
        if (entry->d_name[0] != '.')
            return atoi(entry->d_name);
    return 0;
}

static void close_threads(DIR *threads)
{
    if (threads)
        closedir(threads);
}

bool fsdp__process_is_held(int pid, char *why, size_t why_bytes)
{
    DIR *threads = proc_is_ours() ? open_threads(pid) : NULL;
    char who[FSDP__WHO_TRACES];
    bool stops = false;
    int thread;

    while (!stops && (thread = next_thread(threads)) != 0)
        stops = fsdp__process_state(pid, thread) == 't';
    close_threads(threads);
    say_tracer(pid, who);
    if (stops)
        snprintf(why, why_bytes, "%s holds it", who);
    else if (proc_is_ours() && fsdp__process_is_frozen(pid))
        snprintf(why, why_bytes, "its control group is frozen");
    else
        return false;
    return true;
}

/* Returns a bit that depends on the thread and its processor time; 0: unknown. */
static uint64_t mark_of(int pid, int thread)
{
    char path[80], text[80];

    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", pid, thread);
    if (!read_text(path, text, sizeof text))
        return 0;
    return (uint64_t)1 << fsdp__mix((uint64_t)thread, strtoull(text, NULL, 10)) % 64;
}

/* Returns the marks of the threads that run or are ready to. A thread that had a mark before, and has it again, would
 * run if it were given a core. */
static uint64_t ready_threads(int pid)
{
    DIR *threads = open_threads(pid);
    uint64_t marks = 0;
    int thread;

    while ((thread = next_thread(threads)) != 0)
        if (fsdp__process_state(pid, thread) == 'R')
            marks |= mark_of(pid, thread);
    close_threads(threads);
    return marks;
}

bool fsdp__process_starves(int pid, uint64_t *ready)
{
    uint64_t before = *ready;

    *ready = ready_threads(pid);
    return (*ready & before) != 0;
}

/* ---- its family ---- */

static bool lives(int pid)
{
    char state;
    uint64_t ticks;

    return read_process(pid, &state, &ticks) && state != 'Z' && state != 'X';
}

/* Counts the children that one of the process's threads has started. */
static int children_of_thread(int pid, int thread)
{
    char path[80];
    FILE *file;
    int count = 0, child;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, thread);
    file = fopen(path, "re");
    while (file && fscanf(file, "%d", &child) == 1)
        count += lives(child);
    if (file)
        (void)fclose(file);
    return file ? count : -1;
}

int fsdp__process_children(int pid)
{
    DIR *threads = open_threads(pid);
    int count = -1, thread;

    while ((thread = next_thread(threads)) != 0) {
        int more = children_of_thread(pid, thread);

        if (more >= 0)
            count = (count < 0 ? 0 : count) + more;
    }
    close_threads(threads);
    return count;
}

int fsdp__process_above(const char *const *names)
{
    char path[48], text[1024], state;
    int pid = getppid();

    while (pid > 1) {
        const char *end;
        size_t bytes;

        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        end = read_text(path, text, sizeof text) ? strrchr(text, ')') : NULL;
        if (!end)
            return 0;
        bytes = (size_t)(end - text);
        for (int i = 0; names[i]; i++) {
            const char *name = strchr(text, '(') + 1;

            if (strlen(names[i]) == bytes - (size_t)(name - text) && strncmp(name, names[i], strlen(names[i])) == 0)
                return pid;
        }
        if (sscanf(end, ") %c %d", &state, &pid) != 2)
            return 0;
    }
    return 0;
}

/* ---- processor time ---- */

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;

    return clock_gettime(clock, &now) == 0 ? (int64_t)now.tv_sec * 1000000000 + now.tv_nsec : -1;
}

int64_t fsdp__process_cpu_ns(int pid)
{
    clockid_t clock;

    return clock_getcpuclockid(pid, &clock) == 0 ? read_clock(clock) : -1;
}

int64_t fsdp__thread_cpu_ns(void)
{
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}
