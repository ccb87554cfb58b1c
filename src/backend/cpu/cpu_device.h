/* cpu_device.h - shared by the files of the CPU, and by backends that compute on the CPU too (check/sim). */
#pragma once

#include "device/impl.h"

/* Sets the floating point mode and the number of compute threads of the calling thread. */
void fsdp__cpu_prepare_thread(const fsdp_device *device);
/* Does the same for the thread that creates the device, and for those of its pool, which it starts. FSDP_NO_MEMORY:
 * the system starts fewer; FSDP_STATE: the process was forked, and its pool is its parent's. */
fsdp_status fsdp__cpu_prepare_creator(fsdp_device *device);
/* Prepares a thread before each kernel: starts its pool where it has computed with fewer threads so far, as one that
 * the context was handed to, and sets the number again where it has created a device of another context since. */
fsdp_status fsdp__cpu_prepare_kernel(const fsdp_device *device);

/* Allocate and free segments of ordinary memory, aligned to huge pages. */
fsdp_status fsdp__cpu_memory_alloc(size_t bytes, void **out);
void fsdp__cpu_memory_free(void *memory, size_t bytes);

/* Fill the stream slots of the backend's table (device/backend.h). */
fsdp_status fsdp__cpu_stream_create(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out);
void fsdp__cpu_stream_free(fsdp_stream *stream);
fsdp_status fsdp__cpu_stream_enqueue(fsdp_stream *stream, fsdp_status (*work)(fsdp_stream *, const void *),
                                     const void *argument, size_t bytes);
fsdp_status fsdp__cpu_stream_synchronize(fsdp_stream *stream);
fsdp_status fsdp__cpu_stream_check(fsdp_stream *stream);
fsdp_status fsdp__cpu_stream_mark(fsdp_stream *stream, fsdp__mark *out);
fsdp_status fsdp__cpu_stream_await(fsdp_stream *stream, fsdp__mark mark);

/* Lists all of them but stream_create. */
#define FSDP__CPU_STREAM_SLOTS                                                                  \
    .stream_free = fsdp__cpu_stream_free, .stream_enqueue = fsdp__cpu_stream_enqueue,           \
    .stream_synchronize = fsdp__cpu_stream_synchronize, .stream_check = fsdp__cpu_stream_check, \
    .stream_mark = fsdp__cpu_stream_mark, .stream_await = fsdp__cpu_stream_await
