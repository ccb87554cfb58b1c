/* frost.h - a control group that freezes processes, of either version. It is gone when its test is, however that ends.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

typedef struct frost {
    const char *mount, *file, *freeze, *thaw;
    char path[128]; /* of the group */
} frost;

#define FROST_1                                                           \
    {                                                                     \
        "/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED", "" \
    }
#define FROST_2                                         \
    {                                                   \
        "/sys/fs/cgroup", "cgroup.freeze", "1", "0", "" \
    }
#define FROST_2_BESIDE_1                                        \
    {                                                           \
        "/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0", "" \
    }

/* Makes the group. Returns false where this test may not do so. */
bool frost_begin(frost *f);
/* Freezes the process. */
bool frost_take(const frost *f, pid_t pid);
bool frost_thaw(const frost *f);
/* Removes the group, once what was in it has ended. */
void frost_end(const frost *f);
