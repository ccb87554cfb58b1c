/* kernel_copy.h - a copy of a kernel's call, for who may not change the caller's. */
#pragma once

#include "device/kernel_buffers.h"

/* Gets what the visiting function gets, and the copied arguments. */
typedef fsdp_status (*fsdp__copy_use)(void *arg, const void *args);

/* Copies a call's arguments and their table, visits the buffers of the copy, and hands it to `use` (NULL: to nobody).
 * Returns what that returns, or FSDP_NO_MEMORY. */
fsdp_status fsdp__kernel_copied(fsdp__kernel kernel, const void *args, fsdp__buffer_visit visit, fsdp__copy_use use,
                                void *arg);

/* Returns where the work of a stream that runs now finds all of [pointer, pointer + bytes); NULL: nowhere. */
typedef void *(*fsdp__reach)(const fsdp_stream *stream, const void *pointer, size_t bytes);

/* Runs a kernel on a copy of the call whose buffers are where `reach` says. Fails when it does not find one. */
fsdp_status fsdp__kernel_run_moved(fsdp_stream *stream, fsdp__kernel kernel, const void *args, fsdp__reach reach,
                                   fsdp__kernel_function run);
/* Fails with the message that says so. */
fsdp_status fsdp__kernel_unreached(const fsdp_stream *stream, fsdp__kernel kernel, const fsdp__buffer *buffer);
