/* Memory of the host for segments: what the system refuses, and by which limit. */
#include <sys/resource.h>

#include "backend/cpu/cpu_device.h"
#include "support/test.h"

/* Asks for a terabyte under a limit of half as much. */
static fsdp_status ask_under(int resource)
{
    struct rlimit before, half;
    fsdp_status status;
    void *segment;

    CHECK_EQ(getrlimit((__rlimit_resource_t)resource, &before), 0);
    half = (struct rlimit){.rlim_cur = (rlim_t)1 << 39, .rlim_max = before.rlim_max};
    CHECK_EQ(setrlimit((__rlimit_resource_t)resource, &half), 0);
    status = fsdp__cpu_memory_alloc((size_t)1 << 40, &segment);
    CHECK_EQ(setrlimit((__rlimit_resource_t)resource, &before), 0);
    return status;
}

TEST(a_segment_that_a_limit_forbids_names_the_limit)
{
    if (TEST_SANITIZED)
        skip(); /* it has reserved terabytes */
    CHECK_ERROR(ask_under(RLIMIT_DATA), FSDP_NO_MEMORY, "the system has no segment of 1099511627776 bytes: ");
    CHECK_CONTAINS(fsdp_last_error(), "; 'ulimit -d' says how much memory of its own a process may have: raise it");
    CHECK_ERROR(ask_under(RLIMIT_AS), FSDP_NO_MEMORY, "; 'ulimit -v' says how much address space a process may have");
}
