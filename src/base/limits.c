/* limits.c - what the system lets this process have. */
#include "base/limits.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"

/* ---- files of numbers ---- */

/* Small files of the system; NULL: not there, which is no error. fsdp__free it. */
static char *read_quietly(const char *path)
{
    bool held = fsdp_hold_error(true);
    char *text = NULL;
    size_t bytes;

    if (fsdp__file_read(path, 1 << 20, &text, &bytes) != FSDP_OK)
        text = NULL;
    fsdp_release_error(held);
    return text;
}

/* The number behind `name` ("MemTotal:"), which begins a line; `otherwise` without. */
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
    char *text = read_quietly("/proc/meminfo");
    uint64_t kib = text ? number_behind(text, name, FSDP__NO_LIMIT) : FSDP__NO_LIMIT;

    fsdp__free(text);
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
    char *text;

    if (limit == FSDP__NO_LIMIT)
        return limit;
    text = read_quietly("/proc/self/statm");
    used = text ? strtoull(text, NULL, 10) * (uint64_t)(page > 0 ? page : 4096) : 0;
    fsdp__free(text);
    return used < limit ? limit - used : 0;
}

uint64_t fsdp__file_size_limit(void)
{
    return resource_limit(RLIMIT_FSIZE);
}

fsdp__memory_limit fsdp__memory_limit_of_one(void)
{
    fsdp__memory_limit space = {resource_limit(RLIMIT_AS), "a process's address space ('ulimit -v')"};
    fsdp__memory_limit data = {resource_limit(RLIMIT_DATA), "a process's data ('ulimit -d')"};

    return data.bytes < space.bytes ? data : space;
}

/* ---- limits of all ---- */

/* Of the groups of `path` in `mount` and of those above it: the smallest number in their files called `name`. */
static uint64_t smallest_upwards(const char *mount, const char *path, const char *name)
{
    uint64_t smallest = FSDP__NO_LIMIT;
    size_t length = strlen(path);

    for (;;) {
        char *file = fsdp__sprintf("%s%.*s/%s", mount, (int)length, path, name), *text;

        if (!file)
            return smallest;
        text = read_quietly(file);
        fsdp__free(file);
        if (text && *text >= '0' && *text <= '9') /* not "max" */
            smallest = FSDP__MIN(smallest, strtoull(text, NULL, 10));
        fsdp__free(text);
        if (length == 0)
            return smallest;
        while (length > 0 && path[--length] != '/')
            ;
    }
}

/* The groups of this process: lines "number:controllers:path", of version 2 "0::path". */
uint64_t fsdp__control_group_limit(const char *membership, const char *mount)
{
    char *text = read_quietly(membership), *rest = text, *line;
    uint64_t smallest = FSDP__NO_LIMIT;

    while (text && (line = strsep(&rest, "\n")) != NULL) {
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL, *v1;

        if (!path)
            continue;
        *path++ = '\0';
        if (controllers[1] == '\0')
            smallest = FSDP__MIN(smallest, smallest_upwards(mount, path, "memory.max"));
        if (strcmp(controllers, ":memory") != 0 || !(v1 = fsdp__sprintf("%s/memory", mount)))
            continue;
        smallest = FSDP__MIN(smallest, smallest_upwards(v1, path, "memory.limit_in_bytes"));
        fsdp__free(v1);
    }
    fsdp__free(text);
    return smallest;
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

/* ---- words ---- */

const char *fsdp__limit_behind(int error)
{
    switch (error) {
    case EMFILE:
        return "; 'ulimit -n' says how many files a process may have open";
    case EFBIG:
        return "; 'ulimit -f' says how large a file may be";
    case EAGAIN:
        return "; 'ulimit -u', or pids.max of a control group, says how many processes and threads there may be";
    default:
        return "";
    }
}
