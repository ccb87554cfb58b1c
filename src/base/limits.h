/* limits.h - what the system lets this process have (ulimit, control groups, memory), and how to say so. */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

#include <stdint.h>

#define FSDP__NO_LIMIT UINT64_MAX

/* What of address space is still allowed (ulimit -v); FSDP__NO_LIMIT. */
uint64_t fsdp__address_space_left(void);
/* A file's largest size (ulimit -f); FSDP__NO_LIMIT. */
uint64_t fsdp__file_size_limit(void);

/* The smallest of the limits that no other program's end will raise. */
typedef struct fsdp__memory_limit {
    uint64_t bytes;   /* FSDP__NO_LIMIT: none is known */
    const char *name; /* "memory and swap of this machine" */
} fsdp__memory_limit;

/* Of all processes of this machine, or of this control group, together. */
fsdp__memory_limit fsdp__memory_limit_of_all(void);
/* The part of it that control groups have, of versions 1 and 2: `membership` is as /proc/self/cgroup, `mount` the
 * folder of their files. A test has its own. */
uint64_t fsdp__control_group_limit(const char *membership, const char *mount);
/* Of this process (ulimit -v, ulimit -d), so far as it is left. */
fsdp__memory_limit fsdp__memory_limit_of_one(void);
/* What the machine could give now without taking it from somebody; FSDP__NO_LIMIT: it does not say. */
uint64_t fsdp__memory_available(void);

/* Processes that the kernel has killed for want of memory since it runs, on the whole machine, whoever set the limit:
 * the counters of a control group may be out of sight. 0: it does not say. */
long long fsdp__oom_kills(void);

/* How many of `count` threads can be there at once, beside those that there are: tried, up to 256. */
int fsdp__threads_startable(int count);

/* The limit that an errno may come from, to end a message with: "; 'ulimit -n' says how many ..."; "" for an errno of
 * no limit, and for memory where none is set. */
const char *fsdp__limit_behind(int error);

#endif
