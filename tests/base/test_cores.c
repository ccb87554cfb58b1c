/* Cores: those of the affinity, not those of the machine. */
#include <sched.h>

#include "base/cores.h"
#include "support/test.h"

TEST(a_process_bound_to_one_core_has_one)
{
    cpu_set_t before, one;
    int first = 0;

    CHECK_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    CHECK_EQ(fsdp__allowed_cores(), CPU_COUNT(&before));
    while (!CPU_ISSET(first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    CHECK_EQ(fsdp__allowed_cores(), 1);
    CHECK_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}
