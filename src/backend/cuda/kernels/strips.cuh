/* strips.cuh - packs of a row that a thread has in registers, and how it fetches them. Kernels that use this have a
 * plan `k` with `args.cols` and `threads`. */
#pragma once

#include "backend/cuda/kernels/rows.cuh"

/* Packs of a row that a thread has at a time, which lie as far apart as the row's threads reach. They stay words until
 * they are used, since each element of a pack takes a register. */
template <class T, int LENGTH, int PACKS>
struct strip {
    struct alignas(LENGTH * sizeof(T) < ACCESS ? LENGTH * sizeof(T) : (size_t)ACCESS) [[gnu::may_alias]] words {
        uint32_t at[LENGTH * sizeof(T) / sizeof(uint32_t)];
    } packs[PACKS];

    /* Gives the elements of a pack, as f32. */
    DEVICE void at(int p, float (&x)[LENGTH])
    {
        const int of_word = sizeof(uint32_t) / sizeof(T);

        UNROLL
        for (int w = 0; w < LENGTH / of_word; w++) {
            uint32_t word = packs[p].at[w];

            keep_packed(word);
            unpack_word<T>(word, x + w * of_word);
        }
    }

    DEVICE void set(int p, const pack<T, LENGTH> &x)
    {
        memcpy(&packs[p], &x, sizeof x);
    }
};

/* A column of a row; of one that is kept a number of 32 bits. */
template <bool KEPT>
struct column_of {
    typedef int64_t type;
};
template <>
struct column_of<true> {
    typedef int type;
};

/* Visits the columns of a thread's strips of a row: one that is kept, or until the row ends. */
#define EACH_STRIP(col, n)                                                                                     \
    for (typename column_of<KEPT>::type col = (int)(threadIdx.x % (unsigned)k.threads.group) * (n), once_ = 1; \
         KEPT ? once_ : col < k.args.cols; col += k.threads.group * (n), once_ = 0)

/* Fetches a strip that begins at p, where `left` elements of the row are left. What is past the row's end is 0; of a
 * WHOLE pack it stays as it was. */
template <bool WHOLE, class T, int LENGTH, int PACKS, class Column>
DEVICE void get_strip(const T *p, Column left, Column step, strip<T, LENGTH, PACKS> &x)
{
    UNROLL
    for (int i = 0; i < PACKS; i++, p += step, left -= step) {
        if (WHOLE && left > 0)
            x.packs[i] = *(const typename strip<T, LENGTH, PACKS>::words *)p;
        else if (!WHOLE)
            x.set(i, get<LENGTH>(p, 0, left, false));
    }
}

/* Fetches what a thread needs of weights or of a bias from a column on, and adds `offset`; each is `none` where there
 * are none. All lanes of a warp call this together if WHOLE. */
template <bool WHOLE, class W, int LENGTH, int PACKS, class Column>
DEVICE void get_numbers(const void *from, float none, float offset, int64_t col, Column left, Column step,
                        float (&w)[PACKS][LENGTH])
{
    strip<W, LENGTH, PACKS> packed = {};

    if (from)
        get_strip<WHOLE>((const W *)from + col, left, step, packed);
    UNROLL
    for (int p = 0; p < PACKS; p++) {
        packed.at(p, w[p]);
        UNROLL
        for (int e = 0; e < LENGTH; e++) {
            w[p][e] = from ? w[p][e] + offset : none;
            if (WHOLE)
                w[p][e] = kept_number(w[p][e]);
        }
    }
}
