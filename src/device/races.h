/* races.h - the race check: every use of device memory is compared with stream order.
 *
 * Two uses of the same bytes, one of which writes, must be ordered by something that holds in every run: the sequence
 * of one stream, an event that is waited for, the host that waits or queues, a meeting of ranks, a reader that a writer
 * awaits. What only the timing of this run has ordered is a race. It is found whichever of the two comes first, names
 * both uses, and from then on every kernel, copy and collective of the ranks that know each other fails with it.
 *
 * Uses are those of kernels (kernel_buffers.c says which), of copies, of transports that say so, and memory that is
 * given back: a write in the order of the device's stream ([Note: order of memory] in device.h). Watched is memory that
 * devices hand out, their own and the host's, and that ranks share; other memory of the host is not, as malloc hands it
 * from thread to thread. Ranks that are threads are checked against each other; a rank that is a process knows its own
 * uses alone. Off, it costs a load and a branch a kernel; on, nothing in a queue or on the ledger is different. */
#ifndef DEVICE_RACES_H
#define DEVICE_RACES_H

#include "device/device.h"
#include "device/kernels.h"

/* Checks all that the devices of `context` do, which has opened none yet. `with`: a context of the same process that is
 * checked and whose memory this one may use; NULL: none. Before either has a thread of its own. */
fsdp_status fsdp__races_check(fsdp_context *context, const fsdp_context *with);
/* Whether one was found; `text` gets it, or "". Any thread. */
bool fsdp__races_found(const fsdp_context *context, char *text, size_t bytes);

/* ---- what others tell. Nothing happens where nobody checks. `stream` NULL: the rank's host ---- */

/* Memory that is no device's own and that several threads use. Again: nothing. Until it is gone: its addresses may come
 * back as somebody else's. */
void fsdp__races_watch(const fsdp_context *context, const void *memory, size_t bytes);
void fsdp__races_unwatch(const fsdp_context *context, const void *memory);
/* What lies in a part of a block, for messages: until the block, or another part of it there, is handed out. A name of
 * NULL says nothing. */
void fsdp__races_name(const fsdp_device *device, const void *memory, size_t bytes, fsdp_memory_kind kind,
                      const char *name);

/* From inside the stream's work, which uses memory without a kernel. Fails with the race, when there is one. */
fsdp_status fsdp__races_use(fsdp_stream *stream, const void *memory, size_t bytes, fsdp__access access,
                            const char *what);
bool fsdp__races_are_checked(const fsdp_stream *stream);
/* The work of the stream that runs now is a part of call `number`: `what` it is. NULL: no more. */
void fsdp__races_within(fsdp_stream *stream, const char *what, uint64_t number);

/* An order between threads that is no event. What this rank has published under (key, number), all that it did before
 * lies before what follows an acquire of that number: call the one before the other thread is let go on, the other when
 * it is known to have been. Numbers of a key rise. */
void fsdp__races_publish(const fsdp_context *context, fsdp_stream *stream, const void *key, uint64_t number);
void fsdp__races_acquire(const fsdp_context *context, fsdp_stream *stream, const void *key, uint64_t number);

/* ---- for device/ ---- */

struct fsdp__actor;

void fsdp__races_open_device(fsdp_device *device);
fsdp_status fsdp__races_open_stream(fsdp_stream *stream);
/* The stream had a thread, which is gone. */
void fsdp__races_close_stream(fsdp_device *device, struct fsdp__actor *actor);
void fsdp__races_hand_out(const fsdp_device *device, const void *memory, size_t bytes, fsdp_memory_kind kind);
/* The next item of the stream, which the host is about to queue, uses memory of the device. */
void fsdp__races_expect(fsdp_stream *stream, const void *memory, size_t bytes, fsdp__access access, const char *what);
/* That item could not be queued. */
void fsdp__races_expect_no_use(fsdp_stream *stream);
void fsdp__races_give_back(fsdp_device *device, const void *memory, size_t bytes);
fsdp_status fsdp__races_kernel(fsdp_stream *stream, fsdp__kernel kernel, const void *args);
/* Queues `work` on a stream with a thread. */
fsdp_status fsdp__races_enqueue(fsdp_stream *stream, fsdp__stream_work work, const void *argument, size_t bytes);
void fsdp__races_record(fsdp_event *event, fsdp_stream *stream);
void fsdp__races_forget_event(fsdp_event *event);
/* After the wait was queued, or has been: of a stream, or of the host for an event or a stream. */
void fsdp__races_wait(fsdp_stream *stream, fsdp_event *event);
void fsdp__races_host_waited(fsdp_event *event);
void fsdp__races_host_waited_for(fsdp_stream *stream);

#endif
