/* fake_world.h - several machines of which only this rank exists: a world on paper ([Note: a world on paper] in
 * network/network_group.h), and the memory that its ranks would share. */
#pragma once

#include <pthread.h>

#include "comm/transport/network/network_group.h"

/* The transport of a fake world of several machines; with one machine there is no such object. */
typedef struct fsdp__fake {
    fsdp__network_view paper; /* first */
    pthread_mutex_t mutex;
    struct fsdp__fake_region *regions; /* guarded by the mutex; what ranks of this machine would share */
} fsdp__fake;

/* Holds what the latest plain calls on paper would send: calls that are alike send the same, and only the first is
 * run. */
typedef struct fsdp__fake_calls {
    struct fsdp__fake_call {
        fsdp__collective run;
        int64_t count, flag_count;
        fsdp_dtype dtype;
        int root;
        bool lacking; /* a flag is 0 */
        int64_t sent, received, messages;
    } last[64];
    int count; /* of all that were run */
} fsdp__fake_calls;

typedef struct fsdp__fake_group {
    int rank, size;
    fsdp__network_group *paper; /* NULL: the world is one machine, or the group has one rank */
    fsdp__fake_calls calls;
} fsdp__fake_group;

/* Returns NULL when out of memory. */
fsdp__fake *fsdp__fake_new(int rank, int machines, int machine_ranks, bool one_level);

/* Adds to `traffic` what the call would send to other machines: `run` is the slot of a real world, and runs on
 * paper. */
fsdp_status fsdp__fake_count(const fsdp__fake_group *group, fsdp__collective run, const fsdp__call *call,
                             fsdp__traffic *traffic);

/* These fill slots of the table. Memory is an address range, which takes up memory only where it is written. */
void fsdp__fake_close(void *fake);
fsdp_status fsdp__fake_group_open(void *fake, const fsdp__process_group_spec *spec, void **out);
void fsdp__fake_group_free(void *group);
fsdp_status fsdp__fake_alloc(void *fake, size_t bytes, void **out);
void fsdp__fake_free(void *fake, void *pointer);
fsdp_status fsdp__fake_alloc_shared(void *group, const fsdp__call *call, fsdp__traffic *traffic, void **out);
void fsdp__fake_free_shared(void *group, void *pointer);
int fsdp__fake_machines(const void *group);
bool fsdp__fake_can_share(const void *group);
