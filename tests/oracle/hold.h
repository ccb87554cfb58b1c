/* hold.h - holds tables of kernels to the oracle: each kernel on random uneven shapes from a fixed seed, in every
 * floating dtype, with all that it may touch compared. A backend is held to it by naming its table. */
#pragma once

#include "oracle/trial.h"

/* `rounds` calls of every kernel and dtype, on a stream of the device whose memory the tables share. */
void oracle_hold(fsdp_stream *stream, const oracle_table *tables, int count, int rounds);
/* The same for one kernel. */
void oracle_hold_kernel(fsdp_stream *stream, const oracle_table *tables, int count, int rounds, fsdp__kernel kernel);

/* The CPU's table for what comes with `same_bits` behind it: that of the kernels which have the same bits on every
 * device, or NULL for another kernel. */
const oracle_table *oracle_bits(fsdp__kernel kernel);
