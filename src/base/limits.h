/* limits.h - what the system lets this process have (ulimit, control groups, memory, cores), and words for messages. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FSDP__NO_LIMIT UINT64_MAX

/* Returns how much address space is still allowed (ulimit -v), or FSDP__NO_LIMIT. */
uint64_t fsdp__address_space_left(void);
/* Returns the largest size of a file (ulimit -f), or FSDP__NO_LIMIT. */
uint64_t fsdp__file_size_limit(void);
/* Returns the largest size of a stack (ulimit -s), or FSDP__NO_LIMIT. */
uint64_t fsdp__stack_limit(void);

/* The smallest of the limits that no other program's end will raise. */
typedef struct fsdp__memory_limit {
    uint64_t bytes;   /* FSDP__NO_LIMIT: none is known */
    const char *name; /* "memory and swap of this machine" */
} fsdp__memory_limit;

/* Returns the limit for all processes of this machine, or of this control group, together. */
fsdp__memory_limit fsdp__memory_limit_of_all(void);
/* Returns the part of it that control groups set, of versions 1 and 2: `membership` is a file like /proc/self/cgroup,
 * `mount` the folder of the groups' files. Tests pass their own. */
uint64_t fsdp__control_group_limit(const char *membership, const char *mount);
/* Returns whether one of these groups is frozen (cgroup.freeze, 'docker pause'), with all processes in it; false
 * if that cannot be read. */
bool fsdp__control_group_is_frozen(const char *membership, const char *mount);
/* Returns what is left of this process's own limit (ulimit -v, ulimit -d). */
fsdp__memory_limit fsdp__memory_limit_of_one(void);
/* Returns whether this process could take so many bytes now: found by trying. */
bool fsdp__memory_is_left(uint64_t bytes);
/* Returns what the machine could give now without taking it from somebody; FSDP__NO_LIMIT: not known. */
uint64_t fsdp__memory_available(void);

/* Returns how many processes the kernel has killed since it booted because memory ran out, on the whole machine,
 * whoever set the limit: the counters of a control group may not be visible. 0: not known. */
long long fsdp__oom_kills(void);

/* Returns how many of `count` threads can exist at once, in addition to those there are: found by trying, up to 256. */
int fsdp__threads_startable(int count);

/* Returns the limit that an errno may come from, to end a message with: "; 'ulimit -n' says how many ..."; "" for an
 * errno of no limit, and for memory where none is set. */
const char *fsdp__limit_behind(int error);

enum {
    FSDP__THREADS_MOST = 1024 /* compute threads of a rank: more must be a mistake */
};

/* Returns the number of cores that this process may run on, 1 or more. */
int fsdp__allowed_cores(void);
