/* pulse.c - tells whether a rank gets anything done. */
#include "comm/health/pulse.h"

#include <unistd.h>

#include "comm/health/process.h"

enum {
    /* processor time that a process that does nothing may use between two looks: a thread may poll, or may look at
     * others and not have reported that time yet */
    IDLE_NS = 1000000
};

int fsdp__pulse_process(const fsdp__board *board, int rank)
{
    int pid = atomic_load(&fsdp__row_at(board, rank)->pid);

    if (pid)
        return pid;
    if (atomic_load(&fsdp__row_at(board, rank)->state) == FSDP__RANK_AWAITED)
        return atomic_load(&fsdp__row_at(board, rank)->started);
    return getpid();
}

bool fsdp__pulse_is_stopped(const fsdp__pulse *pulse)
{
    return pulse->state == 'T' || pulse->state == 't' || pulse->state == FSDP__FROZEN;
}

const char *fsdp__pulse_holder(const fsdp__pulse *pulse)
{
    return pulse->state == 't'            ? " by a debugger"
           : pulse->state == FSDP__FROZEN ? " by the freezer of its control group"
                                          : "";
}

/* Returns whether the thread runs, or would if it had a core, or waits for a disk: a large file may take as long as it
 * likes. */
static bool is_busy(char state)
{
    return state == 'R' || state == 'D';
}

static char state_of(const fsdp__board *board, int rank, int pid)
{
    int thread = atomic_load_explicit(&fsdp__row_at(board, rank)->thread, memory_order_relaxed);

    /* Until its first call the program is taken to be the main thread, unless ranks are threads. */
    if (thread == 0)
        thread = pid == getpid() ? 0 : pid;
    return pid && thread ? fsdp__process_state(pid, thread) : '\0';
}

static int64_t cpu_of(const fsdp__board *board, int rank, int pid)
{
    int64_t cpu_ns = pid ? fsdp__process_cpu_ns(pid) : -1;

    for (int r = 0; r < board->world && cpu_ns >= 0; r++)
        if (atomic_load(&fsdp__row_at(board, r)->pid) == atomic_load(&fsdp__row_at(board, rank)->pid))
            cpu_ns -= atomic_load_explicit(&fsdp__row_at(board, r)->looked_ns, memory_order_relaxed);
    return cpu_ns;
}

void fsdp__pulse_take(const fsdp__board *board, int rank, fsdp__pulse *pulse)
{
    int pid = fsdp__pulse_process(board, rank);
    uint64_t beats = atomic_load_explicit(&fsdp__row_at(board, rank)->heart.beats, memory_order_relaxed);
    int64_t cpu_ns = cpu_of(board, rank, pid);
    bool quiet = pulse->known && beats == pulse->beats, idle = quiet && cpu_ns <= pulse->cpu_ns + IDLE_NS;

    pulse->state = state_of(board, rank, pid);
    if (idle && (pulse->state == 'S' || pulse->state == 'D') && fsdp__process_is_frozen(pid))
        pulse->state = FSDP__FROZEN;
    pulse->starves = idle && fsdp__process_starves(pid, &pulse->ready);
    pulse->ready = idle ? pulse->ready : 0;
    pulse->still = idle && !is_busy(pulse->state) ? pulse->still + !pulse->starves : 0;
    pulse->silent = quiet ? pulse->silent + !pulse->starves : 0;
    pulse->known = true;
    pulse->beats = beats;
    pulse->cpu_ns = cpu_ns;
}
