/* measure.h - measures the prices of a device that is here. */
#pragma once

#include "fsdp/comm.h"
#include "plan/prices.h"

/* Measures the device that `name` names ("cpu", "cuda"): trains small models on it, on all of its cores, for about
 * `seconds`, and notes what each kernel takes. Little time leaves out some sizes and the dtypes of 16 bits; none (0) is
 * a step of one tiny model; with less than none nothing is measured, and the prices are of a device without rates. Of a
 * CPU also the link between the ranks of a machine. The network is not measured. [blocks] */
fsdp_status fsdp__prices_measure(const char *name, double seconds, fsdp__prices *out);

/* ---- measure_links.c ---- */

/* Measures reductions of 2, 4 and 8 ranks that are threads of this process, but of at most twice as many as `threads`,
 * which must be 1 or more. */
fsdp_status fsdp__measure_machine(int threads, fsdp__prices *out);
/* Measures the network between the machines of this world by gathers; on one machine does nothing. [collective] */
fsdp_status fsdp__measure_network(fsdp_context *context, fsdp__prices *prices);
