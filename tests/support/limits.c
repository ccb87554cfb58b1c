#include "support/limits.h"

#include <pthread.h>

#include "base/limits.h"

struct rlimit test_leave_address_space(size_t bytes)
{
    const rlim_t much = (rlim_t)1 << 50;
    struct rlimit before, tight;

    if (TEST_SANITIZED)
        skip();
    CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
    tight = before;
    tight.rlim_cur = much; /* what is left is told only where there is a limit */
    test_set_address_space(tight);
    tight.rlim_cur = much - fsdp__address_space_left() + bytes;
    test_set_address_space(tight);
    return before;
}

void test_set_address_space(struct rlimit limit)
{
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

void test_refuse_threads(bool refuses)
{
    static size_t usual;
    pthread_attr_t attributes;

    CHECK_EQ(pthread_getattr_default_np(&attributes), 0);
    if (refuses)
        CHECK_EQ(pthread_attr_getstacksize(&attributes, &usual), 0);
    CHECK_EQ(pthread_attr_setstacksize(&attributes, refuses ? (size_t)1 << 47 : usual), 0);
    CHECK_EQ(pthread_setattr_default_np(&attributes), 0);
    CHECK_EQ(pthread_attr_destroy(&attributes), 0);
}
