/* races.h - the race check: every use of device memory is compared with stream order.
 *
 * Two uses of the same bytes, one of which writes, must be ordered by something that holds in every run: the sequence
 * of one stream, an event that is waited for, the host that waits or queues, a meeting of ranks, a reader that a writer
 * awaits. What only the timing of this run has ordered is a race. It is found whichever of the two uses comes first.
 * The report names both uses, and from then on every kernel, copy and collective of the ranks that know each other
 * fails with it.
 *
 * Uses are those of kernels (kernel_buffers.c says which), of copies, of transports that report them, and the giving
 * back of memory: a write in the order of the device's stream ([Note: order of memory] in device.h). Watched is the
 * memory that devices hand out, their own and the host's, and that ranks share; other memory of the host is not
 * watched, as malloc hands it from thread to thread. Ranks that are threads are checked against each other; a rank that
 * is a process knows only its own uses. When off, the check costs a load and a branch for each kernel; when on, nothing
 * in a queue or on the ledger is different. */
#ifndef DEVICE_RACES_H
#define DEVICE_RACES_H

#include "device/device.h"
#include "device/kernels.h"

/* Checks all that the devices of `context` do; the context must not have opened any yet. `with`: a context of the same
 * process that is checked and whose memory this one may use; NULL: none. Call it before either has a thread of its
 * own. */
fsdp_status fsdp__races_check(fsdp_context *context, const fsdp_context *with);
/* Returns whether a race was found; `text` gets the report, or "". Any thread. */
bool fsdp__races_found(const fsdp_context *context, char *text, size_t bytes);

/* ---- what others report; does nothing without the check. `stream` NULL: the rank's host ---- */

/* Watches memory that is no device's own and that several threads use; if it is watched already nothing happens.
 * Unwatch it when it is gone: its addresses may come back as somebody else's. */
void fsdp__races_watch(const fsdp_context *context, const void *memory, size_t bytes);
void fsdp__races_unwatch(const fsdp_context *context, const void *memory);
/* Says what lies in a part of a block, for messages: until the block, or another part of it there, is handed out. A
 * NULL name says nothing. */
void fsdp__races_name(const fsdp_device *device, const void *memory, size_t bytes, fsdp_memory_kind kind,
                      const char *name);

/* Reports that the stream's work, from inside which it is called, uses memory without a kernel. Fails with the race, if
 * there is one. */
fsdp_status fsdp__races_use(fsdp_stream *stream, const void *memory, size_t bytes, fsdp__access access,
                            const char *what);
bool fsdp__races_are_checked(const fsdp_stream *stream);
/* Says that the running work of the stream is a part of call `number`; `what` describes the call. NULL: no longer. */
void fsdp__races_within(fsdp_stream *stream, const char *what, uint64_t number);

/* Report an order between threads that comes from something other than an event. All that this rank did before it
 * published (key, number) lies before what follows an acquire of that number. Publish before the other thread may go
 * on, acquire when it is known to have published. The numbers of a key rise. */
void fsdp__races_publish(const fsdp_context *context, fsdp_stream *stream, const void *key, uint64_t number);
void fsdp__races_acquire(const fsdp_context *context, fsdp_stream *stream, const void *key, uint64_t number);

/* ---- for device/ ---- */

struct fsdp__actor;

void fsdp__races_open_device(fsdp_device *device);
fsdp_status fsdp__races_open_stream(fsdp_stream *stream);
/* Called when the stream had a thread, which is gone. */
void fsdp__races_close_stream(fsdp_device *device, struct fsdp__actor *actor);
void fsdp__races_hand_out(const fsdp_device *device, const void *memory, size_t bytes, fsdp_memory_kind kind);
/* Says that the next item of the stream, which the host is about to queue, uses memory of the device. */
void fsdp__races_expect(fsdp_stream *stream, const void *memory, size_t bytes, fsdp__access access, const char *what);
/* Says that this item could not be queued. */
void fsdp__races_expect_no_use(fsdp_stream *stream);
void fsdp__races_give_back(fsdp_device *device, const void *memory, size_t bytes);
fsdp_status fsdp__races_kernel(fsdp_stream *stream, fsdp__kernel kernel, const void *args);
/* Queues `work` on a stream with a thread. */
fsdp_status fsdp__races_enqueue(fsdp_stream *stream, fsdp__stream_work work, const void *argument, size_t bytes);
void fsdp__races_record(fsdp_event *event, fsdp_stream *stream);
void fsdp__races_forget_event(fsdp_event *event);
/* Called after a wait was queued, or is over: of a stream, or of the host for an event or a stream. */
void fsdp__races_wait(fsdp_stream *stream, fsdp_event *event);
void fsdp__races_host_waited(fsdp_event *event);
void fsdp__races_host_waited_for(fsdp_stream *stream);

#endif
