/* process.h - what the system says of a peer's process. */
#ifndef COMM_SYMMETRIC_PROCESS_H
#define COMM_SYMMETRIC_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* A process as the system tells it apart from later ones with the same number; 0 when unknown. */
uint64_t fsdp__process_start_ticks(int pid);
/* One that has ended counts as dead although its parent has not asked for its status yet. `start_ticks` 0: any. */
bool fsdp__process_is_dead(int pid, uint64_t start_ticks);
/* In which the numbers of processes hold that this one sees; UINT64_MAX: unknown, as without /proc. */
uint64_t fsdp__process_namespace(void);
/* Of its thread: 'R' runs or would, 'S' and 'D' sleep, 'T' and 't' are stopped; 0: unknown. */
char fsdp__process_state(int pid, int thread);
/* Processor time of all its threads; -1: unknown. */
int64_t fsdp__process_cpu_ns(int pid);
/* Of the calling thread. */
int64_t fsdp__thread_cpu_ns(void);
/* How many children of it live; -1: unknown. */
int fsdp__process_children(int pid);
/* The next above this one that is called by one of these names, up to a NULL; 0: none, or unknown. */
int fsdp__process_above(const char *const *names);

#endif
