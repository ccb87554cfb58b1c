/* complaint.h - says in words why a call of the plug-in failed. */
#pragma once

#include <stdbool.h>

/* Both write into `text` (FSDP__NETWORK_TEXT bytes) and return false, which their callers pass on. */
bool fsdp__mpi_refuse(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Does the same, and appends MPI's own text for its error code. */
bool fsdp__mpi_fail(char *text, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
