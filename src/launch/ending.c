/* ending.c - says in words how a rank ended. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/limits.h"
#include "launch/launch.h"

bool fsdp__ended_well(int status)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int fsdp__exit_status(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Returns what a signal that nobody sends tells about the machine; "": nothing. */
static const char *meaning(int signal, long long oom_kills)
{
    switch (signal) {
    case SIGKILL:
        if (fsdp__oom_kills() > oom_kills)
            return ": meanwhile the kernel has killed a process for lack of memory; give the run more (is there a "
                   "control group's limit?), or make batch, sequences or model smaller";
        return "";
    case SIGBUS:
        return ": a file of data or weights was cut short while it was read, or there is no room for shared memory";
    case SIGXFSZ:
        return ": a file would have become larger than 'ulimit -f' allows";
    case SIGXCPU:
        return ": 'ulimit -t' allows no more CPU time";
    default:
        return "";
    }
}

void fsdp__describe_ending(int rank, int status, long long oom_kills, char *text, size_t text_bytes)
{
    if (WIFSIGNALED(status))
        snprintf(text, text_bytes, "rank %d was killed by signal %d (%s)%s", rank, WTERMSIG(status),
                 strsignal(WTERMSIG(status)), meaning(WTERMSIG(status), oom_kills));
    else
        snprintf(text, text_bytes, "rank %d exited with code %d", rank, WEXITSTATUS(status));
}
