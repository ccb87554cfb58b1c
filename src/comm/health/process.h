/* process.h - what the system knows about a peer's process. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns when the process started, which tells it from later ones with the same pid; 0 when unknown. */
uint64_t fsdp__process_start_ticks(int pid);
/* Returns whether the process has ended. A process counts as dead even if its parent has not yet waited for it.
 * `start_ticks` 0: any process with this pid. */
bool fsdp__process_is_dead(int pid, uint64_t start_ticks);
/* Returns the pid namespace in which the pids that this process sees are valid; UINT64_MAX: unknown, as without
 * /proc. */
uint64_t fsdp__process_namespace(void);
/* Returns the state of its thread: 'R' runs or is ready to, 'S' and 'D' sleep, 'T' and 't' are stopped; 0: unknown. */
char fsdp__process_state(int pid, int thread);
enum {
    FSDP__WHO_TRACES = 80 /* bytes of the longest text that says it */
};
/* Returns whether a child of this process, of which waitpid has just said nothing, has ended: then another process
 * traces it (a debugger), and nobody else hears of the end until that one lets it go. `*status` becomes what waitpid
 * would give, if that is known. `who` says which process it is: "process 7, which traces it,". */
bool fsdp__process_is_kept(int pid, int *status, char who[FSDP__WHO_TRACES]);
/* Returns whether the process's control group is frozen. Its state is then 'S', or 'D' by version 1, and does not tell
 * it from one that waits. */
bool fsdp__process_is_frozen(int pid);
/* Returns whether something keeps the process from ending that no signal changes: a debugger has stopped it, or its
 * control group is frozen. `why` says it: "its control group is frozen". */
bool fsdp__process_is_held(int pid, char *why, size_t why_bytes);
/* Returns the processor time of all its threads; -1: unknown. */
int64_t fsdp__process_cpu_ns(int pid);
/* Returns whether a thread of the process has been ready to run since the last look, and got no core. `*ready` is what
 * that look saw: 0 if there was none. Two threads may look alike now and then; then it may be wrong. */
bool fsdp__process_starves(int pid, uint64_t *ready);
/* Returns the processor time of the calling thread. */
int64_t fsdp__thread_cpu_ns(void);
/* Returns how many children of the process live; -1: unknown. */
int fsdp__process_children(int pid);
/* Returns the pid of the nearest ancestor that has one of these names (the list ends with NULL); 0: none, or
 * unknown. */
int fsdp__process_above(const char *const *names);
