/* order.h - the order in which contributions of ranks are added.
 *
 * [Note: order of addition]
 * Where the members of a group lie on several machines, equally many on each, those of one machine are added first, in
 * rank order with an f32 accumulator, and the machine's sum is rounded to what travels (the reduce dtype; nothing of
 * f32). Then the machines' sums are added, in the order of the machines, with an f32 accumulator. The order is a part
 * of the contract: whichever way bytes take, and on one machine that is told to (fsdp__context_add_by_machine), the
 * bits are the same. Other groups add all contributions in rank order. */
#ifndef COMM_ORDER_H
#define COMM_ORDER_H

/* How many of `ranks` (ascending) are added first, of machines with `machine_ranks` ranks each; 0: all in rank order,
 * which is the same where a machine has one of them. */
int fsdp__order_block(const int *ranks, int count, int machine_ranks);

#endif
