/* fake_machines.h - several machines of which only this rank exists: what is needed of them to count what a network
 * would carry. */
#ifndef COMM_FAKE_FAKE_MACHINES_H
#define COMM_FAKE_FAKE_MACHINES_H

#include "comm/comm.h"

/* The transport of a fake world of several machines; with one machine there is no such object. */
typedef struct fsdp__fake {
    int machine_ranks;
    bool one_level;
    pthread_mutex_t mutex;
    struct fsdp__fake_region *regions; /* guarded by the mutex; what ranks of this machine would share */
} fsdp__fake;

/* Returns NULL when out of memory. */
fsdp__fake *fsdp__fake_new(int machine_ranks, bool one_level);
void fsdp__fake_close(void *fake);
/* Returns the machines of a group that the fake transport runs; NULL: the world is one machine, or the group has one
 * rank. */
fsdp__fake *fsdp__fake_of(const fsdp_process_group *group);
/* Returns whether all of the memory would lie in what the machine's ranks share. */
bool fsdp__fake_shares(fsdp__fake *fake, const void *pointer, size_t bytes);

/* Slots of the table. Memory is an address range, which takes up memory only where it is written. */
fsdp_status fsdp__fake_alloc(void *fake, size_t bytes, void **out);
void fsdp__fake_free(void *fake, void *pointer);
fsdp_status fsdp__fake_alloc_shared(void *group, const fsdp__call *call, fsdp__traffic *traffic, void **out);
void fsdp__fake_free_shared(void *group, void *pointer);
int fsdp__fake_machines(const void *group);
bool fsdp__fake_can_share(const void *group);

#endif
