/* kernel_buffers.h - what memory a kernel reads and writes. */
#pragma once

#include "device/kernels.h"

/* Returns the address that takes the place of the buffer's. */
typedef void *(*fsdp__buffer_visit)(void *arg, const fsdp__buffer *buffer);

/* Visits each buffer of a call that is not NULL and has bytes. Writes to `args` and to its table. */
void fsdp__kernel_buffers(fsdp__kernel kernel, void *args, fsdp__buffer_visit visit, void *arg);
