/* limits.c - what the system lets this process have. */
#include "base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/compiler.h"

/* ---- files of numbers ---- */

enum {
    TEXT_BYTES = 16 << 10 /* enough for the largest of these files, /proc/vmstat */
};

/* Reads a small file of the system into `text`. Returns false if it does not exist, which is no error. Allocates
 * nothing. */
static bool read_quietly(const char *path, char text[TEXT_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t got = 0;

    if (fd < 0)
        return false;
    while (used + 1 < TEXT_BYTES && (got = read(fd, text + used, TEXT_BYTES - 1 - used)) > 0)
        used += (size_t)got;
    (void)close(fd);
    text[used] = '\0';
    return got >= 0;
}

/* Returns the number behind `name` ("MemTotal:"), which begins a line; returns `otherwise` if there is none. */
static uint64_t number_behind(const char *text, const char *name, uint64_t otherwise)
{
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, strlen(name)) == 0)
            return strtoull(line + strlen(name), NULL, 10);
    }
    return otherwise;
}

static uint64_t meminfo_bytes(const char *name, uint64_t otherwise)
{
    char text[TEXT_BYTES];
    uint64_t kib = read_quietly("/proc/meminfo", text) ? number_behind(text, name, FSDP__NO_LIMIT) : FSDP__NO_LIMIT;

    return kib == FSDP__NO_LIMIT ? otherwise : kib << 10;
}

/* ---- limits of a process ---- */

static uint64_t resource_limit(int resource)
{
    struct rlimit limit;

    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return FSDP__NO_LIMIT;
    return limit.rlim_cur;
}

uint64_t fsdp__address_space_left(void)
{
    uint64_t limit = resource_limit(RLIMIT_AS), used;
    long page = sysconf(_SC_PAGESIZE);
    char text[TEXT_BYTES];

    if (limit == FSDP__NO_LIMIT)
        return limit;
    used = read_quietly("/proc/self/statm", text) ? strtoull(text, NULL, 10) * (uint64_t)(page > 0 ? page : 4096) : 0;
    return used < limit ? limit - used : 0;
}

uint64_t fsdp__file_size_limit(void)
{
    return resource_limit(RLIMIT_FSIZE);
}

uint64_t fsdp__stack_limit(void)
{
    return resource_limit(RLIMIT_STACK);
}

fsdp__memory_limit fsdp__memory_limit_of_one(void)
{
    fsdp__memory_limit space = {fsdp__address_space_left(), "what 'ulimit -v' leaves a process"};
    fsdp__memory_limit data = {resource_limit(RLIMIT_DATA), "what 'ulimit -d' leaves a process"};

    return data.bytes < space.bytes ? data : space;
}

bool fsdp__memory_is_left(uint64_t bytes)
{
    void *taken = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return taken != MAP_FAILED && munmap(taken, bytes) == 0;
}

/* ---- limits of all ---- */

/* Returns the smallest number in the files called `name` of the group `path` in `mount` and of those above it. */
static uint64_t smallest_upwards(const char *mount, const char *path, const char *name)
{
    uint64_t smallest = FSDP__NO_LIMIT;
    size_t length = strlen(path);

    for (;;) {
        char file[4096], text[TEXT_BYTES];

        snprintf(file, sizeof file, "%s%.*s/%s", mount, (int)length, path, name);
        if (read_quietly(file, text) && *text >= '0' && *text <= '9') { /* and is not "max" */
            uint64_t limit = strtoull(text, NULL, 10);

            smallest = FSDP__MIN(smallest, limit);
        }
        if (length == 0)
            return smallest;
        while (length > 0 && path[--length] != '/')
            ;
    }
}

/* Takes the next group from what is left of a process's list: lines "number:controllers:path", for version 2 "0::path".
 * Returns its path; NULL: there are no more. */
static const char *next_group(char **rest, const char **controllers)
{
    char *line;

    while ((line = strsep(rest, "\n")) != NULL) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;

        if (!path)
            continue;
        *path = '\0';
        *controllers = names + 1;
        return path + 1;
    }
    return NULL;
}

uint64_t fsdp__control_group_limit(const char *membership, const char *mount)
{
    char text[TEXT_BYTES], memory[4096], *rest = text;
    uint64_t smallest = FSDP__NO_LIMIT, limit;
    const char *path, *controllers;

    if (!read_quietly(membership, text))
        return smallest;
    snprintf(memory, sizeof memory, "%s/memory", mount);
    while ((path = next_group(&rest, &controllers)) != NULL) {
        limit = FSDP__NO_LIMIT;
        if (strcmp(controllers, "") == 0)
            limit = smallest_upwards(mount, path, "memory.max");
        else if (strcmp(controllers, "memory") == 0)
            limit = smallest_upwards(memory, path, "memory.limit_in_bytes");
        smallest = FSDP__MIN(smallest, limit);
    }
    return smallest;
}

/* Returns whether the group's file `name` has a line that begins so. */
static bool group_says(const char *mount, const char *folder, const char *path, const char *name, const char *line)
{
    char file[4096], text[TEXT_BYTES];
    const char *at;

    snprintf(file, sizeof file, "%s%s%s/%s", mount, folder, path, name);
    at = read_quietly(file, text) ? strstr(text, line) : NULL;
    return at && (at == text || at[-1] == '\n');
}

bool fsdp__control_group_is_frozen(const char *membership, const char *mount)
{
    char text[TEXT_BYTES], *rest = text;
    const char *path, *controllers;
    bool frozen = false;

    if (!read_quietly(membership, text))
        return false;
    while (!frozen && (path = next_group(&rest, &controllers)) != NULL)
        if (strcmp(controllers, "") == 0) /* where version 1 is mounted, too, version 2 has a folder of its own */
            frozen = group_says(mount, "", path, "cgroup.events", "frozen 1") ||
                     group_says(mount, "/unified", path, "cgroup.events", "frozen 1");
        else if (strcmp(controllers, "freezer") == 0)
            frozen = group_says(mount, "/freezer", path, "freezer.state", "FROZEN");
    return frozen;
}

fsdp__memory_limit fsdp__memory_limit_of_all(void)
{
    uint64_t swap = meminfo_bytes("SwapTotal:", 0), group;
    fsdp__memory_limit limit = {meminfo_bytes("MemTotal:", FSDP__NO_LIMIT), "memory and swap of this machine"};

    group = fsdp__control_group_limit("/proc/self/cgroup", "/sys/fs/cgroup");
    if (group < limit.bytes)
        limit = (fsdp__memory_limit){group, "memory of this control group (memory.max), and swap"};
    if (limit.bytes < FSDP__NO_LIMIT - swap)
        limit.bytes += swap;
    return limit;
}

uint64_t fsdp__memory_available(void)
{
    return meminfo_bytes("MemAvailable:", FSDP__NO_LIMIT);
}

/* ---- threads ---- */

static void *wait_for_all(void *mutex)
{
    pthread_mutex_lock(mutex);
    pthread_mutex_unlock(mutex);
    return NULL;
}

int fsdp__threads_startable(int count)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_t threads[256];
    int started = 0;

    count = FSDP__MIN(count, (int)FSDP__COUNT_OF(threads));
    pthread_mutex_lock(&mutex);
    while (started < count && pthread_create(&threads[started], NULL, wait_for_all, &mutex) == 0)
        started++;
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&mutex);
    return started;
}

/* ---- kills ---- */

long long fsdp__oom_kills(void)
{
    char text[TEXT_BYTES];

    return read_quietly("/proc/vmstat", text) ? (long long)number_behind(text, "oom_kill ", 0) : 0;
}

/* ---- words ---- */

static const char *memory_limit_set(void)
{
    if (resource_limit(RLIMIT_AS) != FSDP__NO_LIMIT)
        return "; 'ulimit -v' says how much address space a process may have: raise it";
    if (resource_limit(RLIMIT_DATA) != FSDP__NO_LIMIT)
        return "; 'ulimit -d' says how much memory of its own a process may have: raise it";
    return "";
}

const char *fsdp__limit_behind(int error)
{
    switch (error) {
    case EMFILE:
        return "; 'ulimit -n' says how many files a process may have open: raise it";
    case EFBIG:
        return "; 'ulimit -f' says how large a file may be: raise it";
    case EAGAIN: /* also for a thread whose stack finds no address space */
        if (resource_limit(RLIMIT_AS) != FSDP__NO_LIMIT)
            return "; 'ulimit -u', or pids.max of a control group, says how many processes and threads there may be, "
                   "and 'ulimit -v' how much address space a process and its stacks may have";
        return "; 'ulimit -u', or pids.max of a control group, says how many processes and threads there may be";
    case ENOMEM:
        return memory_limit_set();
    default:
        return "";
    }
}

int fsdp__allowed_cores(void)
{
    cpu_set_t set;
    long online;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    online = sysconf(_SC_NPROCESSORS_ONLN); /* there are more cores than cpu_set_t holds */
    return online > 0 ? (int)online : 1;
}
