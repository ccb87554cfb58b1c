/* cores.h - how many processors there are for us. */
#ifndef BASE_CORES_H
#define BASE_CORES_H

enum {
    FSDP__THREADS_MOST = 1024 /* compute threads of a rank: more is a slip */
};

/* Cores this process may run on, 1 or more. */
int fsdp__allowed_cores(void);

#endif
