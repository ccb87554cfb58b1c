/* device.h - what a device implementation provides and what layers above use of a device.
 *
 * A device is two const tables: memory/stream/event operations, and kernels (kernels.h). backend/ fills them and
 * registry.c lists them; nothing else knows which devices exist. All memory of a device goes through its ledger
 * allocator (allocator.c), which takes large segments from the backend and hands out 64-byte aligned blocks.
 *
 * [Note: order of memory]
 * Memory is handed out and given back in the order of the device's own stream (fsdp_device_stream), at the moment the
 * host says so. Work on another stream may use a block after that stream has waited for an event recorded on the
 * device's stream after the allocation; the block may be freed after the device's stream has waited for an event
 * recorded on the other stream after its last use.
 */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include "fsdp/device.h"

/* `bytes` of `kind`, 64-byte aligned, uninitialised. Zero bytes give a non-NULL pointer that counts nothing.
 * On the meta device the pointer must not be followed. A fault point (FSDP__FAULT_ALLOCATION). */
fsdp_status fsdp__device_alloc(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, void **out);
/* `bytes` and `kind` as allocated. NULL is allowed. */
void fsdp__device_free(fsdp_device *device, void *pointer, size_t bytes, fsdp_memory_kind kind);
/* Bytes that live elsewhere (memory shared with peers) are counted here, rounded as a block would be: take away in the
 * same pieces as added. `shared`: a peer counts them as well. */
void fsdp__device_account(fsdp_device *device, fsdp_memory_kind kind, int64_t delta_bytes, bool shared);

/* What ledger counts for a request: rounded up to 64 bytes. */
size_t fsdp__device_rounded(size_t bytes);

/* Grow-only scratch of a stream, counted as workspace; valid until the next call with the same stream.
 * NULL and a last error when out of memory. For kernels, from inside stream work. */
void *fsdp__stream_workspace(fsdp_stream *stream, size_t bytes);

/* Runs `work(argument copy)` in stream order. `argument` of `bytes` is copied when the work runs later. A failure on a
 * worker is kept and returned by fsdp_stream_synchronize, and later work still runs; inline it is returned at once.
 * Work runs on the meta device too (it may have something to free) and must not follow that device's pointers. */
typedef fsdp_status (*fsdp__stream_work)(fsdp_stream *stream, const void *argument);
fsdp_status fsdp__stream_enqueue(fsdp_stream *stream, fsdp__stream_work work, const void *argument, size_t bytes);
/* The first failure of the work done so far, which it clears; waits for nothing. After waiting for an event of the
 * stream it tells whether the work before the event went well. */
fsdp_status fsdp__stream_check(fsdp_stream *stream);
/* Makes the device's own stream one with a thread: a device that runs behind the host, for tests of overlap. Before
 * anything has kept the stream. */
fsdp_status fsdp__device_run_on_worker(fsdp_device *device);
fsdp_device *fsdp__stream_device(const fsdp_stream *stream);
bool fsdp__stream_is_inline(const fsdp_stream *stream);

/* Sets flush-to-zero and denormals-are-zero on the calling thread. Denormals cost 100x and more on CPUs. */
void fsdp__cpu_flush_denormals(void);

#endif
