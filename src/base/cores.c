/* cores.c - counts the cores of the process's affinity, or those of the system. */
#include "base/cores.h"

#include <sched.h>
#include <unistd.h>

int fsdp__allowed_cores(void)
{
    cpu_set_t set;
    long online;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    online = sysconf(_SC_NPROCESSORS_ONLN); /* there are more cores than cpu_set_t holds */
    return online > 0 ? (int)online : 1;
}
