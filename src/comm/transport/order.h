/* order.h - the order in which the ranks' contributions are added.
 *
 * [Note: order of addition]
 * If the members of a group are on several machines, equally many on each, the contributions of one machine are added
 * first, in rank order with an f32 accumulator, and the machine's sum is rounded to the dtype that travels (the reduce
 * dtype; f32 is not rounded). Then the machines' sums are added, in the order of the machines, with an f32 accumulator.
 * The order is part of the contract: the bits are the same whichever way the bytes take, and also on a single machine
 * that is told to add so (fsdp__context_add_by_machine). Other groups add all contributions in rank order. */
#pragma once

/* Returns how many of `ranks` (ascending) are added first, on machines with `machine_ranks` ranks each. Returns 0 if
 * all are added in rank order, which includes machines that have one of them each. */
int fsdp__order_block(const int *ranks, int count, int machine_ranks);
