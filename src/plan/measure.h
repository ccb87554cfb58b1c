/* measure.h - measures the prices of a device that is here, and finds those that a user names. */
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

enum {
    FSDP__PRICES_QUICK = 3 /* seconds of measuring before a plan */
};

/* Gets what `name` names: "cpu" or "cuda", which are measured for some seconds, or if nobody asks for the time (not
 * `timed`) only looked at; "cuda:CARD", or a file of prices. `option` is for messages. [blocks] */
fsdp_status fsdp__prices_find(const char *option, const char *name, bool timed, fsdp__prices *out);

/* Turns prices of a processor that a rank has measured, on the cores that it may use, into those of the whole machine,
 * of which it computes with `threads`. */
void fsdp__prices_of_machine(int threads, int ranks_of_machine, fsdp__prices *prices);

/* Returns how many bytes a rank has for a step, with their name: all of its GPU's by these prices, or its share of a
 * machine's; of this machine's without prices (NULL). 0: it is not known. */
double fsdp__room_of(const fsdp__prices *prices, int ranks_of_machine, const char **name);
