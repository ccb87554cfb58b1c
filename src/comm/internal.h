/* internal.h - what the layers above use of comm/ beyond fsdp/comm.h. */
#ifndef COMM_INTERNAL_H
#define COMM_INTERNAL_H

#include "fsdp/comm.h"

enum {
    FSDP__LABEL_BYTES = 64 /* with the end */
};

/* Every coalesced collective, and fsdp__all_reduce_and_ask, issued on the group from now on is "for 'label'",
 * until another label is set: ranks that disagree are told what each of them was doing. Ranks' labels must be equal, as
 * their arguments must. Copied; one of 64 bytes or more is cut and ends in "..."; NULL or "": none. */
void fsdp__process_group_set_label(fsdp_process_group *group, const char *label);

/* flags[i] (0 or 1) becomes 1 where it is on any rank. Not counted. [collective] [blocks] */
fsdp_status fsdp__process_group_any(fsdp_process_group *group, uint8_t *flags, int64_t count);
/* The same in the order of `stream`: what work before has written, such as fsdp_reduce_options.contributed, is what
 * counts, and the flags are the host's memory until the work is done. NULL: all are 1 on this rank. [collective]
 * [stream] */
fsdp_status fsdp__process_group_any_later(fsdp_process_group *group, uint8_t *flags, int64_t count,
                                          fsdp_stream *stream);
/* fsdp_all_reduce, in place, with which such flags ride along: they cost an exchange of their own only where one is 0.
 * [collective] [stream] */
fsdp_status fsdp__all_reduce_with_flags(fsdp_process_group *group, void *data, int64_t count, fsdp_dtype dtype,
                                        fsdp_reduce_op op, uint8_t *flags, int64_t flag_count, fsdp_stream *stream);

/* fsdp_all_reduce with which one question rides along, at no cost while `*complete` is 1 on all ranks: once the
 * stream's work is done `*lacking` is true on all of them if it was 0 on any, else as it was. Both are the host's
 * memory until then; NULL on all ranks: nothing is asked. [collective] [stream] */
fsdp_status fsdp__all_reduce_and_ask(fsdp_process_group *group, const void *send, void *recv, int64_t count,
                                     fsdp_dtype dtype, fsdp_reduce_op op, uint8_t *complete, bool *lacking,
                                     fsdp_stream *stream);

/* Shared memory has readers and writers, and only writers wait. A rank that reads in a region what its peers wrote
 * there calls begin_read first and end_read after its last read; all ranks make the same reads of a region, in one
 * order. A rank that will write to the region, while it reads nothing there itself, calls await_readers: it waits for
 * the peers that are still in the reads that this rank has ended, and for nobody else. Peers that read next must learn
 * by a collective that the writing is done. Where the awaited peer itself waits for this rank, the world is ended with
 * a message that names both: [Note: a wait that cannot end] in symmetric/waits.h. Nothing happens in groups of one
 * rank. */
void fsdp__process_group_begin_read(fsdp_process_group *group, void *shared);
fsdp_status fsdp__process_group_end_read(fsdp_process_group *group, void *shared, fsdp_stream *stream); /* [stream] */
fsdp_status fsdp__process_group_await_readers(fsdp_process_group *group, void *shared,
                                              fsdp_stream *stream); /* [stream] */

/* What a gather of this buffer into `shared` has brought to this rank from other machines is not needed before the
 * next one: its pages go back to the system, and true is the answer, also where nothing came from elsewhere. False, and
 * nothing happens, while a rank of this machine is still in a read that this one has ended: ask again later. To be
 * asked between the end of a read and this rank's next gather. */
bool fsdp__process_group_give_back(fsdp_process_group *group, void *shared, const fsdp_sharded_buffer *buffer);

/* On how many machines the group has members. Memory that it shares is then shared by the members on one machine:
 * each machine has its own. */
int fsdp__process_group_machines(const fsdp_process_group *group);

/* The caller waits for calls of the group on a stream, which may be waiting for other ranks: until it says that it does
 * not it makes no calls. Only ranks whose programs wait count in the search for a wait that cannot end, and on a
 * `worker` (NULL: none) what stands in its work. */
void fsdp__process_group_host_waits(fsdp_process_group *group, const fsdp_stream *worker, bool waits);

/* For tests, on every rank before other groups are made: the ranks of this machine add as machines of so many ranks
 * each do, with their bits. */
void fsdp__context_add_by_machine(fsdp_context *context, int ranks);

/* For tests: fsdp_context_set_comm_timeout in ticks of another length, at each of which a waiting rank looks around. */
fsdp_status fsdp__context_set_comm_ticks(fsdp_context *context, int64_t timeout_ms, int64_t tick_ms);

#endif
