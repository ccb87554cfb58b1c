/* complaint.h - why a call of the plug-in failed, in words. */
#ifndef COMM_MPI_PLUGIN_COMPLAINT_H
#define COMM_MPI_PLUGIN_COMPLAINT_H

#include <stdbool.h>

/* Both write into `text` (FSDP__NETWORK_TEXT bytes) and return false, which their callers pass on. */
bool fsdp__mpi_refuse(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same with MPI's own text of its error code behind it. */
bool fsdp__mpi_fail(char *text, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
