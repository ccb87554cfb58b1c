/* hold.h - holds tables of kernels to the oracle: each kernel on random uneven shapes from a fixed seed, in every
 * floating dtype, with all that it may touch compared. A backend is held to it by naming its table. */
#ifndef TESTS_ORACLE_HOLD_H
#define TESTS_ORACLE_HOLD_H

#include "oracle/trial.h"

/* `rounds` calls of every kernel and dtype, on a stream of the device whose memory the tables share. */
void oracle_hold(fsdp_stream *stream, const oracle_table *tables, int count, int rounds);
/* The same for one kernel. */
void oracle_hold_kernel(fsdp_stream *stream, const oracle_table *tables, int count, int rounds, fsdp__kernel kernel);

#endif
