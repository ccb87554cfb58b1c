/* device.h - what a device implementation provides and what layers above use of a device.
 *
 * A device is two const tables: memory/copy/stream/event operations, and kernels (kernels.h). backend/ fills them and
 * registry.c lists them; nothing else knows which devices exist. All memory of a device goes through its ledger
 * allocator (allocator.c), which takes large segments from the backend and hands out 64-byte aligned blocks.
 *
 * [Note: whose pointers]
 * A pointer to device memory is an address for the device's kernels and for the copies below. The host follows one only
 * where fsdp__device_host_access says so, and then as a faster way to what the copies do. Kernels and collectives of a
 * device are given its own memory, or host memory that was allocated or registered with it.
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

/* ---- devices ---- */

/* The context's device `ordinal` of a backend; made on first use, owned by the context. NULL and a last error. */
fsdp_device *fsdp__device_open(fsdp_context *context, const char *name, int ordinal);
/* The same if it was opened before, else NULL. */
fsdp_device *fsdp__device_find(const fsdp_context *context, const char *name, int ordinal);
/* What a run computes on whose caller names no device: the CPU, until another is set. Only front doors ask. */
fsdp_device *fsdp__front_device(fsdp_context *context);
void fsdp__set_front_device(fsdp_device *device);
/* The stream for work of hosts on host memory (what ranks tell each other). NULL and a last error. */
fsdp_stream *fsdp__host_stream(fsdp_context *context);

/* The context's device on which everything happens, and counts, and nothing is computed: modules are materialized and
 * trained there as on the CPU, without bytes. What is read of it is zero. NULL and a last error. */
fsdp_device *fsdp__dry(fsdp_context *context);
bool fsdp__device_has_bytes(const fsdp_device *device); /* neither meta nor dry */
/* Floating point operations of the products that were launched on a device without bytes: see kernel_flops.c. */
int64_t fsdp__device_flops(const fsdp_device *device);

/* Whether the host may follow the device's pointers, and its kernels the host's. */
bool fsdp__device_host_access(const fsdp_device *device);
/* Whether the device computes on memory that the ranks of a machine share. */
bool fsdp__device_shared_memory(const fsdp_device *device);

/* ---- memory ---- */

/* `bytes` of `kind`, 64-byte aligned, uninitialised. Zero bytes give a non-NULL pointer that counts nothing.
 * On the meta device the pointer must not be followed. A fault point (FSDP__FAULT_ALLOCATION). */
fsdp_status fsdp__device_alloc(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, void **out);
/* `bytes` as allocated, `kind` as counted now. NULL is allowed. */
void fsdp__device_free(fsdp_device *device, void *pointer, size_t bytes, fsdp_memory_kind kind);
/* Counts what was allocated at `pointer` under `kind` from now on. */
void fsdp__device_recount(fsdp_device *device, const void *pointer, fsdp_memory_kind kind);
/* Bytes that live elsewhere (memory shared with peers) are counted here, rounded as a block would be: take away in the
 * same pieces as added. `shared`: a peer counts them as well. */
void fsdp__device_account(fsdp_device *device, fsdp_memory_kind kind, int64_t delta_bytes, bool shared);

/* What ledger counts for a request: rounded up to 64 bytes. */
size_t fsdp__device_rounded(size_t bytes);

/* Host memory that the device's kernels, collectives and copies use where it lies. Not counted. */
fsdp_status fsdp__device_alloc_host(fsdp_device *device, size_t bytes, void **out);
void fsdp__device_free_host(fsdp_device *device, void *memory, size_t bytes); /* NULL is allowed */
/* The same of memory that the caller has: until it is taken back, or the device is gone. */
fsdp_status fsdp__device_register_host(fsdp_device *device, void *memory, size_t bytes);
void fsdp__device_unregister_host(fsdp_device *device, void *memory, size_t bytes);

/* Bytes between host and device, and on the device, in the order of the stream. Both sides must live, and the source
 * stay as it is, until the work is done. Nothing happens on the meta device. [stream] */
fsdp_status fsdp__copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes);
fsdp_status fsdp__copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes);
fsdp_status fsdp__copy_on_device(fsdp_stream *stream, void *dst, const void *src, size_t bytes);

/* From inside work of the stream, as fsdp__run_kernel is called: done on return. The device's side may be the stream's
 * scratch; the host's side may be any memory of the host. */
fsdp_status fsdp__run_copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes);
fsdp_status fsdp__run_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes);

/* ---- streams ---- */

/* Grow-only scratch of a stream, counted as workspace; valid until the next call with the same stream.
 * NULL and a last error when out of memory. For kernels, from inside stream work. */
void *fsdp__stream_workspace(fsdp_stream *stream, size_t bytes);

/* Runs `work(argument copy)` in stream order. `argument` of `bytes` is copied when the work runs later. A failure on a
 * worker is kept and returned by fsdp_stream_synchronize, and later work still runs; inline it is returned at once.
 * Work runs on the meta device too (it may have something to free) and must not follow that device's pointers. It runs
 * on a thread of the host and may block, but not for its own stream, which waits for it: inside, fsdp__run_kernel and
 * the fsdp__run_copy calls take the place of those that queue. */
typedef fsdp_status (*fsdp__stream_work)(fsdp_stream *stream, const void *argument);
fsdp_status fsdp__stream_enqueue(fsdp_stream *stream, fsdp__stream_work work, const void *argument, size_t bytes);
/* The first failure of the work done so far, which it clears; waits for nothing. Where the host has waited for an event
 * of the stream it tells whether the work before the event went well. A stream that waits for an event fails with the
 * work before the event, so the failure of a stream that others wait for reaches whoever synchronizes with them. */
fsdp_status fsdp__stream_check(fsdp_stream *stream);
/* Makes the device's own stream one with a thread: a device that runs behind the host, for tests of overlap. Before
 * anything has kept the stream. */
fsdp_status fsdp__device_run_on_worker(fsdp_device *device);
fsdp_device *fsdp__stream_device(const fsdp_stream *stream);
bool fsdp__stream_is_inline(const fsdp_stream *stream);

#endif
