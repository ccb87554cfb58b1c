/* tile.cuh - the product of matrices of any layout: a block makes a tile of 64 x 64.
 *
 * An operand, rows of A or columns of B, is a struct with a function `read` that calls read_slice, for which it has
 *     int64_t sides;                            how many rows or columns there are
 *     static constexpr int AT_ONCE;             elements that a thread reads at once: 1 where finding one is long
 *     bool deep() const;                        whether neighbours along the depth are neighbours in memory
 *     float get(int64_t i, int64_t p) const;    element p along the depth of row or column i
 * Every sum is made by one thread, in order of the depth. */
#pragma once

#include "backend/cuda/kernels/kernel.cuh"

enum {
    TILE = 64,       /* rows and columns */
    TILE_DEPTH = 16, /* read at a time */
    TILE_PITCH = 17, /* float4 from one depth to the next: not a multiple of the banks */
    TILE_PART = 4    /* rows and columns of a thread; BLOCK threads have the whole tile */
};

/* Reads a slice of an operand from depth p0 on; what lies at `end` or beyond is 0. */
template <class Operand>
DEVICE void read_slice(const Operand &x, int64_t i0, int64_t p0, int64_t end, float4 (*slice)[TILE_PITCH])
{
    bool deep = x.deep();

#ifndef FSDP_CUDASH
#pragma unroll Operand::AT_ONCE
#endif
    for (int e = (int)threadIdx.x; e < TILE * TILE_DEPTH; e += BLOCK) {
        int i = deep ? e / TILE_DEPTH : e % TILE, p = deep ? e % TILE_DEPTH : e / TILE;
        bool there = i0 + i < x.sides && p0 + p < end;

        ((float *)slice[p])[i] = there ? x.get(i0 + i, p0 + p) : 0.0f;
    }
}

/* Describes a thread's part of a tile: rows and columns from its place on. */
struct tile_part {
    float sum[TILE_PART][TILE_PART];
};

DEVICE int tile_row(void)
{
    return (int)threadIdx.x / (TILE / TILE_PART) * TILE_PART;
}

DEVICE int tile_col(void)
{
    return (int)threadIdx.x % (TILE / TILE_PART) * TILE_PART;
}

DEVICE void add_outer(tile_part *part, float4 a, float4 b)
{
    float rows[TILE_PART] = {a.x, a.y, a.z, a.w}, cols[TILE_PART] = {b.x, b.y, b.z, b.w};

    for (int i = 0; i < TILE_PART; i++)
        for (int j = 0; j < TILE_PART; j++)
            part->sum[i][j] += rows[i] * cols[j];
}

/* Sums over the depths [begin, end) for the tile at (i0,j0). All threads of the block call this. */
template <class A, class B>
DEVICE tile_part tile_product(const A &a, const B &b, int64_t i0, int64_t j0, int64_t begin, int64_t end)
{
    __shared__ float4 rows[TILE_DEPTH][TILE_PITCH], cols[TILE_DEPTH][TILE_PITCH];
    tile_part part = {};

    for (int64_t p0 = begin; p0 < end; p0 += TILE_DEPTH) {
        a.read(i0, p0, end, rows);
        b.read(j0, p0, end, cols);
        __syncthreads();
        for (int p = 0; p < TILE_DEPTH; p++)
            add_outer(&part, rows[p][tile_row() / TILE_PART], cols[p][tile_col() / TILE_PART]);
        __syncthreads();
    }
    return part;
}

HOST_DEVICE int64_t tiles_of(int64_t sides)
{
    return (sides + TILE - 1) / TILE;
}
