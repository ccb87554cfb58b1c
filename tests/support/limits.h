/* support/limits.h - limits of this process for a while. */
#pragma once

#include <sys/resource.h>

#include "support/test.h"

/* Leaves so many bytes of address space, until the limit that it returns is set again. A few threads' stacks do not fit
 * into 64 MiB. The test is skipped under a sanitizer, which has its own. */
struct rlimit test_leave_address_space(size_t bytes);
void test_set_address_space(struct rlimit limit);
/* From here on no thread can start that does not say how large its stack is: the usual one is too large for any memory.
 */
void test_refuse_threads(bool refuses);
