/* machines.h - several machines, of which nobody but this rank is there: what is needed of them to count what a network
 * would carry. */
#ifndef COMM_FAKE_MACHINES_H
#define COMM_FAKE_MACHINES_H

#include "comm/comm.h"

/* The transport of a fake world of several machines; where there is one, there is none. */
typedef struct fsdp__fake {
    int machine_ranks;
    bool one_level;
    pthread_mutex_t mutex;
    struct fsdp__fake_region *regions; /* under it; what ranks of this machine would share */
} fsdp__fake;

/* NULL: out of memory. */
fsdp__fake *fsdp__fake_new(int machine_ranks, bool one_level);
void fsdp__fake_close(void *fake);
/* Of a group that the fake transport runs; NULL: of one machine, or of one rank. */
fsdp__fake *fsdp__fake_of(const fsdp_process_group *group);
/* Whether all of it would lie in memory that the machine's ranks share. */
bool fsdp__fake_shares(fsdp__fake *fake, const void *pointer, size_t bytes);

/* Of the table. Memory is an address range, which gets bytes where it is written. */
fsdp_status fsdp__fake_alloc(void *fake, size_t bytes, void **out);
void fsdp__fake_free(void *fake, void *pointer);
fsdp_status fsdp__fake_alloc_shared(void *group, const fsdp__call *call, fsdp__traffic *traffic, void **out);
void fsdp__fake_free_shared(void *group, void *pointer);
int fsdp__fake_machines(const void *group);
bool fsdp__fake_can_share(const void *group);

#endif
