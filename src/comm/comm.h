/* comm.h - groups, and what a context knows of its world. For comm/ only. */
#ifndef COMM_COMM_INTERNAL_H
#define COMM_COMM_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "comm/comm_ops.h"

typedef struct fsdp__comm fsdp__comm;

typedef struct fsdp__counters {
    int64_t calls[FSDP_COLLECTIVES], bytes_sent[FSDP_COLLECTIVES]; /* counted when a call is issued */
    _Atomic int64_t bytes_moved[FSDP_COLLECTIVES];                 /* when it runs, maybe on a worker */
} fsdp__counters;

/* A freed block of visible memory that peers may still be reading; it begins with this. */
typedef struct fsdp__held_block {
    struct fsdp__held_block *next;
    uint64_t issued; /* calls issued when it was freed */
} fsdp__held_block;

struct fsdp_group {
    fsdp__comm *comm;
    const fsdp__comm_ops *ops; /* of the world, or fake for a group of one */
    void *transport_group;
    fsdp_group *next; /* in comm->groups */
    char *name;
    int *ranks; /* global, ascending */
    int rank, size;
    bool force_copy;
    char label[FSDP__LABEL_BYTES]; /* of the vectored calls issued from now on */

    /* [Note: turns]
     * Calls are numbered when they are issued and run in that order, one at a time, also when they stand on different
     * streams: a call waits until its predecessor has run. That cannot lock up, as a stream waits only for what was
     * issued before. */
    uint64_t issued;
    uint64_t known_done; /* calls up to this one have run, known from the order of the program alone */
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    uint64_t done; /* under the mutex */

    fsdp__held_block *held; /* newest first */
    fsdp__counters counters;
};

struct fsdp__comm {
    fsdp_context *context;
    const fsdp__comm_ops *ops;
    void *transport;
    fsdp_group *world;
    fsdp_group *groups;      /* all live ones */
    fsdp__counters counters; /* of all groups, also freed ones */
    _Atomic int64_t total_ns, waiting_ns;

    _Atomic bool broken;
    pthread_mutex_t mutex; /* of the two below */
    fsdp_status broken_status;
    char broken_text[768];
};

/* ---- comm.c ---- */

/* Gives the context its world. Owns `transport` from the call on, also when it fails. `world_group` is the transport's
 * group of all ranks (freed by ops->group_free); both are NULL for the fake transport. */
fsdp_status fsdp__comm_attach(fsdp_context *context, const fsdp__comm_ops *ops, void *transport, void *world_group,
                              int rank, int size);
fsdp__comm *fsdp__comm_get(fsdp_context *context); /* NULL and a last error when out of memory */

/* Makes every later call of this rank fail with `text`, and those of its peers with "rank N failed: text". The first
 * reason stays. Any thread. */
void fsdp__comm_break(fsdp__comm *comm, fsdp_status status, const char *text);

/* ---- group.c ---- */

/* Without a transport's group yet; the list and counters know it. */
fsdp_status fsdp__group_new(fsdp__comm *comm, const int *ranks, int count, int rank, const char *name,
                            fsdp_group **out);
void fsdp__group_destroy(fsdp_group *group);

/* ---- issue.c ---- */

/* How a public call enters: refuses a NULL or broken group, and is the fault point. */
fsdp_status fsdp__comm_enter(fsdp_group *group, fsdp__call_name name);
/* Counts one call of `kind` and what a ring would send for it. Groups of one count nothing. */
void fsdp__comm_count(fsdp_group *group, fsdp_collective kind, int64_t bytes_sent);
/* Numbers the call and runs `run` in the order of `stream` and of the group; a failure breaks the world. `call` and
 * its blocks are copied when the work runs later. On a device without bytes nothing happens. [stream] */
fsdp_status fsdp__comm_issue(fsdp_group *group, fsdp_collective kind, fsdp__collective run, const fsdp__call *call,
                             fsdp_stream *stream);
/* The same on the host, done on return. [blocks] */
fsdp_status fsdp__comm_issue_host(fsdp_group *group, fsdp_collective kind, fsdp__collective run,
                                  const fsdp__call *call);
/* Common memory: a host call whose failure is everybody's and breaks nothing unless the transport failed. */
fsdp_status fsdp__comm_issue_alloc(fsdp_group *group, fsdp__call *call, void **out);
bool fsdp__comm_is_broken(const fsdp_group *group);
/* Fails with what broke the group. */
fsdp_status fsdp__comm_fail_broken(fsdp_group *group);
/* Waits until the first `sequence` calls of the group have run here. [blocks] */
void fsdp__comm_wait_done(fsdp_group *group, uint64_t sequence);

/* ---- objects.c ---- */

/* fsdp_agree under another name. */
fsdp_status fsdp__comm_agree(fsdp_group *group, fsdp__call_name name, fsdp_status mine);

#endif
