/* cores.h - how many processor cores this process may use. */
#pragma once

enum {
    FSDP__THREADS_MOST = 1024 /* compute threads of a rank: more must be a mistake */
};

/* Returns the number of cores that this process may run on, 1 or more. */
int fsdp__allowed_cores(void);
