/* process.c - what the system tells of a peer's process. */
#include "comm/health/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

/* ---- its family ---- */

static bool lives(int pid)
{
    char state;
    uint64_t ticks;

    return read_process(pid, &state, &ticks) && state != 'Z' && state != 'X';
}

/* Counts the children that one of the process's threads has started. */
static int children_of_thread(const char *path)
{
    FILE *file = fopen(path, "re");
    int count = 0, pid;

    while (file && fscanf(file, "%d", &pid) == 1)
        count += lives(pid);
    if (file)
        (void)fclose(file);
    return file ? count : -1;
}

int fsdp__process_children(int pid)
{
    char path[320];
    struct dirent *entry;
    DIR *threads;
    int count = -1;

    snprintf(path, sizeof path, "/proc/%d/task", pid);
    threads = opendir(path);
    while (threads && (entry = readdir(threads)) != NULL) {
        int more;

        snprintf(path, sizeof path, "/proc/%d/task/%s/children", pid, entry->d_name);
        more = entry->d_name[0] == '.' ? -1 : children_of_thread(path);
        if (more >= 0)
            count = (count < 0 ? 0 : count) + more;
    }
    if (threads)
        closedir(threads);
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
