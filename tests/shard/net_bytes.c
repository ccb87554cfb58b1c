/* net_bytes.c - the bytes of the small network's groups. */
#include "shard/net_bytes.h"

size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static void add(group_bytes *g, int64_t chunk, int64_t inner, int64_t world)
{
    g->whole += rounded((size_t)(chunk * world * inner) * 4);
    g->shard += rounded((size_t)(chunk * inner) * 4);
    g->slice += rounded((size_t)(chunk * world / 2 * inner) * 4);
    g->whole_bf16 += rounded((size_t)(chunk * world * inner) * 2);
    g->cast += rounded((size_t)(chunk * inner) * 2);
    g->partial += (size_t)(chunk * inner) * 4;
}

/* f32; the shapes of a Linear(in, out): (out, in) and (out). */
static void add_linear(group_bytes *g, int64_t in, int64_t out, int64_t world)
{
    int64_t chunk = (out + world - 1) / world;

    add(g, chunk, in, world);
    add(g, chunk, 1, world);
}

group_bytes block_bytes(int64_t world)
{
    group_bytes g = {0};

    add_linear(&g, NET_DIM, NET_FFN, world);
    add_linear(&g, NET_FFN, NET_DIM, world);
    return g;
}

group_bytes root_bytes(int64_t world)
{
    group_bytes g = {0};
    int64_t chunk = (NET_DIM + world - 1) / world;

    add_linear(&g, NET_IN, NET_DIM, world);
    add_linear(&g, NET_DIM, NET_OUT, world);
    add(&g, chunk, 1, world); /* LayerNorm: weight and bias */
    add(&g, chunk, 1, world);
    return g;
}
