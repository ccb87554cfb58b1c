/* shape.c - columns, machines and shares. */
#include "comm/transport/network/shape.h"

#include "base/compiler.h"
#include "comm/transport/order.h"
#include "comm/transport/sharded_buffer.h"

/* Returns whether the group has the same local ranks on every machine; `first` is how many are on the first one. */
static bool is_regular(const int *ranks, int count, int first, int machines, int machine_ranks)
{
    if (count % first != 0 || machines != count / first)
        return false;
    for (int i = 0; i < count; i++)
        if (ranks[i] % machine_ranks != ranks[i % first] % machine_ranks ||
            ranks[i] / machine_ranks != ranks[i / first * first] / machine_ranks)
            return false;
    return true;
}

static bool is_power_of_2(int n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* Returns how many times a power of 2 can be halved until it is 1. */
static int halvings(int n)
{
    return n > 1 ? 1 + halvings(n / 2) : 0;
}

static void find_rounds(fsdp__group_shape *s)
{
    if (s->block > 1 && is_power_of_2(s->block) && is_power_of_2(s->machines))
        s->rounds = halvings(s->columns);
}

fsdp__group_shape fsdp__group_shape_of(const int *ranks, int count, int rank, int machine_ranks, bool one_level)
{
    fsdp__group_shape s = {.machines = 1};
    int first = 0;

    while (first < count && ranks[first] / machine_ranks == ranks[0] / machine_ranks)
        first++;
    for (int i = 1; i < count; i++)
        s.machines += ranks[i] / machine_ranks != ranks[i - 1] / machine_ranks;
    s.flat = one_level || !is_regular(ranks, count, first, s.machines, machine_ranks);
    s.locals = s.flat ? 1 : first;
    s.columns = count / s.locals;
    s.place = rank / s.locals;
    s.local_rank = rank % s.locals;
    s.block = s.flat ? fsdp__order_block(ranks, count, machine_ranks) : 0;
    if (s.machines > 1)
        find_rounds(&s);
    return s;
}

fsdp__group_shape fsdp__group_by_machine(int rank, int size, int block)
{
    return (fsdp__group_shape){.machines = size / block,
                               .columns = size / block,
                               .place = rank / block,
                               .locals = block,
                               .local_rank = rank % block};
}

int64_t fsdp__share_of(int columns, int locals, int64_t count, size_t element, int local, int place, int64_t *length)
{
    int64_t share = fsdp__even_chunk(count, locals * columns, element);
    int64_t start = FSDP__MIN((local * (int64_t)columns + place) * share, count);

    *length = FSDP__MIN(share, count - start);
    return start;
}
