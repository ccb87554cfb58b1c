/* order.c - decides which contributions are added first. */
#include "comm/transport/order.h"

static int members_from(const int *ranks, int count, int first, int machine_ranks)
{
    int machine = ranks[first] / machine_ranks, end = first;

    while (end < count && ranks[end] / machine_ranks == machine)
        end++;
    return end - first;
}

int fsdp__order_block(const int *ranks, int count, int machine_ranks)
{
    int block;

    if (machine_ranks < 2 || count < 2)
        return 0;
    block = members_from(ranks, count, 0, machine_ranks);
    if (block == 1 || block == count)
        return 0;
    for (int i = block; i < count; i += block)
        if (members_from(ranks, count, i, machine_ranks) != block)
            return 0;
    return block;
}
