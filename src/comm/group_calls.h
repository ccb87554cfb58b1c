/* group_calls.h - calls of a process group that the layers above make beyond fsdp/comm.h. */
#pragma once

#include "fsdp/comm.h"

enum {
    FSDP__LABEL_BYTES = 64 /* including the terminating zero */
};

/* Returns the group, which now lives until fsdp_process_group_free has been called once more. */
fsdp_process_group *fsdp__process_group_ref(fsdp_process_group *group);

/* Sets the label of every coalesced collective, and of those below that are to have it, issued on the group from now
 * on, until another label is set: the call is "for 'label'" in messages, so that ranks that disagree are told what each
 * of them was doing. Ranks' labels must be equal, as their arguments must. The label is copied; one of 64 bytes or more
 * is cut and ends in "..."; NULL or "": none. */
void fsdp__process_group_set_label(fsdp_process_group *group, const char *label);

/* Returns the stream of the host for a call that peers are in already, or will be. NULL, and a last error, if it cannot
 * be had: then the world is ended, so that no peer waits for the call. */
fsdp_stream *fsdp__process_group_host_stream(fsdp_process_group *group);

/* Holds flags, 0 or 1 each, and what they ride along with. */
typedef struct fsdp__any {
    /* `count` flags in host memory, of which each becomes 1 where it is 1 on any rank. With a stream, NULL means
     * that all of this rank's flags are 1. */
    uint8_t *flags;
    int64_t count;
    /* With a stream: becomes true on all ranks where a flag is 0 on any, and is unchanged otherwise. Host memory, or
     * NULL */
    bool *lacking;
    /* The call is made in the order of the stream's work: what earlier work has written into the flags, such as
     * fsdp_reduce_options.contributed, is what counts, and they must stay until the work is done. NULL: at once. */
    fsdp_stream *stream;

    /* An fsdp_all_reduce that takes the flags along: they cost an exchange of their own only where one is 0. With no
     * dtype there is none, and the call is not counted. */
    const void *send;
    void *recv;
    int64_t numel;
    fsdp_dtype dtype;
    fsdp_reduce_op op;
    bool labelled; /* it has the group's label */
} fsdp__any;

/* Joins flags over the ranks of the group. [collective] [stream], or without a stream [blocks] */
fsdp_status fsdp__process_group_any(fsdp_process_group *group, const fsdp__any *any);

/* Does what fsdp_all_to_all does, with the group's label. [collective] [stream] */
fsdp_status fsdp__process_group_all_to_all(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                           fsdp_dtype dtype, fsdp_stream *stream);

/* The result of fsdp_gather_objects, which is freed at the end of its scope: FSDP__SCOPED(fsdp__gathered_release)
 * fsdp__gathered all = {0}; */
typedef struct fsdp__gathered {
    fsdp_process_group *group;
    void **objects; /* by rank */
    size_t *bytes;
} fsdp__gathered;
fsdp_status fsdp__gather(fsdp_process_group *group, const void *object, size_t bytes,
                         fsdp__gathered *out); /* [collective] */
void fsdp__gathered_release(const fsdp__gathered *all);

/* Does what fsdp_agree does, and asks all ranks something: gives the first rank of the world that says no (first[0]),
 * and the first that says yes; -1: none does. After a failure both are undefined. [collective] */
fsdp_status fsdp__agree_and_ask(fsdp_process_group *group, fsdp_status mine, bool says, int first[2]);

/* Tells whether the ranks of the group have the device in common: all of them have this GPU, and a carrier by which
 * they may have shared memory there. This decides by which carrier the group exchanges, if it has none yet.
 * [collective] [blocks] */
fsdp_status fsdp__process_group_find_common(fsdp_process_group *group, fsdp_device *device, bool *out);
/* Allocates shared memory on such a device, zeroed and 64-byte aligned, with equal bytes on every rank, as
 * fsdp_process_group_alloc does on the host. It is counted nowhere. Free it as any shared memory, when the device has
 * done all that used it. [collective] [blocks] */
fsdp_status fsdp__process_group_alloc_common(fsdp_process_group *group, fsdp_device *device, size_t bytes, void **out);

/* Shared memory has readers and writers, and only writers wait. A rank that reads in a region what its peers wrote
 * there calls begin_read first and end_read after its last read; all ranks make the same reads of a region, in the same
 * order. A rank that is about to write to the region, and reads nothing there itself, calls await_readers: it waits for
 * the peers that are still in the reads that this rank has ended, and for nobody else. Peers that read next must learn
 * by a collective that the writing is done. Where the awaited peer itself waits for this rank, the world is ended with
 * a message that names both: [Note: a wait that cannot end] in health/waits.h. In groups of one rank these calls do
 * nothing. */
void fsdp__process_group_begin_read(fsdp_process_group *group, void *shared);
fsdp_status fsdp__process_group_end_read(fsdp_process_group *group, void *shared, fsdp_stream *stream); /* [stream] */
fsdp_status fsdp__process_group_await_readers(fsdp_process_group *group, void *shared,
                                              fsdp_stream *stream); /* [stream] */

/* Gives back to the system the pages that a gather of this buffer into `shared` has filled from other machines, because
 * this rank does not need them before the next gather. Returns true, also where nothing came from other machines;
 * returns false, and does nothing, while a rank of this machine is still in a read that this one has ended: ask again
 * later. Call it between the end of a read and this rank's next gather. */
bool fsdp__process_group_give_back(fsdp_process_group *group, void *shared, const fsdp_sharded_buffer *buffer);

/* Returns on how many machines the group has members. Memory that the group shares is then shared by the members on one
 * machine: each machine has its own. */
int fsdp__process_group_machines(const fsdp_process_group *group);

/* Tells that the caller waits for calls of the group on a stream, which may be waiting for other ranks, and makes no
 * calls until it tells that the wait is over. The search for a wait that cannot end looks only at ranks whose programs
 * wait, and, given a `worker` (NULL: none), at what stands in that stream's work. */
void fsdp__process_group_host_waits(fsdp_process_group *group, const fsdp_stream *worker, bool waits);

/* Serves tests, on every rank before other groups are made: makes the ranks of this machine add as machines of `ranks`
 * ranks each do, with the same bits. */
void fsdp__context_add_by_machine(fsdp_context *context, int ranks);

/* Serves tests, the same on every rank: makes half an outbox (transport/arena/peer.h) of so many bytes, a multiple of
 * 64 for each rank, in groups that have no carrier yet. */
void fsdp__context_set_outbox(fsdp_context *context, int64_t bytes);
/* For tests: does what fsdp_context_set_comm_timeout does, with ticks of another length. A waiting rank looks around at
 * each tick. */
fsdp_status fsdp__context_set_comm_ticks(fsdp_context *context, int64_t timeout_ms, int64_t tick_ms);
