/* intrinsics.cuh - what C++ has no word for: products on tensor cores, loads of their operands from shared memory, and
 * copies into it that run beside the kernel. Inline assembler is here; on the host tests/backend/cudash does the same.
 *
 * All lanes of a warp call `multiply_add` and `load_matrices` together. Below, lane l has g = l / 4 and t = l % 4. A
 * register holds two elements of 16 bits, the one with the smaller index in its low half. */
#pragma once

#include "backend/cuda/kernels/kernel.cuh"

/* Computes d += a b, for a of 16 x 16 and b of 16 x 8 elements of T (bf16 or f16), and d of f32. A lane holds
 *   of a: rows g (a[0], a[2]) and g + 8 (a[1], a[3]); columns 2 t and 2 t + 1 (a[0], a[1]), and 8 more (a[2], a[3])
 *   of b: rows 2 t and 2 t + 1 (b[0]), and 8 more (b[1]); column g
 *   of d: rows g (d[0], d[1]) and g + 8 (d[2], d[3]); columns 2 t and 2 t + 1. */
template <class T>
DEVICE void multiply_add(float *d, const uint32_t *a, const uint32_t *b CALLER);

#ifdef FSDP_CUDASH
template <class T>
DEVICE void multiply_add(float *d, const uint32_t *a, const uint32_t *b, const char *file, int line)
{
    cudash_multiply_add(
        d, a, b, [](uint16_t bits) { return to_float(T{bits}); }, file, line);
}
#else
#define MULTIPLY_ADD(T)                                                                   \
    template <>                                                                           \
    DEVICE void multiply_add<T>(float *d, const uint32_t *a, const uint32_t *b)           \
    {                                                                                     \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T ".f32 "           \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"    \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
    }
MULTIPLY_ADD(bf16)
MULTIPLY_ADD(f16)
#undef MULTIPLY_ADD
#endif

/* Loads `count` (2 or 4) matrices of 8 x 8 elements of 16 bits from shared memory. Lanes 8 m to 8 m + 7 give the rows
 * of matrix m, each of 16 bytes and aligned to as many; what other lanes give is not used. Of matrix m, x[m] gets row
 * g, columns 2 t and 2 t + 1; or, transposed, column g, rows 2 t and 2 t + 1.
 *
 * So a of `multiply_add` is four matrices: its rows 0 to 7 and 8 to 15 of columns 0 to 7, then those of columns 8
 * to 15. And b is two: rows 0 to 7 and 8 to 15 of b, transposed; or of its transpose, columns 0 to 7 and 8 to 15, as
 * they are. */
template <int count, bool transposed = false>
DEVICE void load_matrices(uint32_t *x, const void *row CALLER)
{
    static_assert(count == 2 || count == 4, "two or four matrices");
#ifdef FSDP_CUDASH
    cudash_load_matrices(x, row, count, transposed, file, line);
#else
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);

    if constexpr (count == 4 && transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at)
                     : "memory");
    else if constexpr (count == 4)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at)
                     : "memory");
    else if constexpr (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(x[0]), "=r"(x[1])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(x[0]), "=r"(x[1])
                     : "r"(at)
                     : "memory");
#endif
}

/* Starts a copy of 16 bytes from global to shared memory, both aligned to as many: of the first `bytes` (0 to 16) of
 * them, with zeros for the rest. Nothing is read where bytes is 0. What was there must have been read before, by all
 * (so a barrier is between), and what is there is undefined until `copies_wait` and a barrier. */
DEVICE void copy_16(void *shared, const void *global, int bytes CALLER)
{
#ifdef FSDP_CUDASH
    cudash_copy_16(shared, global, bytes, file, line);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
#endif
}

/* Makes one group of the copies that this thread has started since its last group; a group may be empty. */
DEVICE void copies_commit(void)
{
#ifdef FSDP_CUDASH
    cudash_copies_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most the `left` youngest groups of this thread are not done. Other threads see what has been copied
 * after a barrier. */
template <int left>
DEVICE void copies_wait(void)
{
#ifdef FSDP_CUDASH
    cudash_copies_wait(left);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
#endif
}

/* Stores 16 bytes in global memory, where they are aligned to as many, by one access: of a struct of smaller elements
 * the compiler makes several now and then. */
DEVICE void store_16(void *global, const uint32_t (&words)[4])
{
#ifdef FSDP_CUDASH
    memcpy(global, words, sizeof words);
#else
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(global)), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
#endif
}

/* Returns 2^x, within 2 units of the last place; what is below 2^-126 becomes 0. */
DEVICE float exp2_fast(float x)
{
#ifdef FSDP_CUDASH
    return exp2f(x);
#else
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* Returns 1 / x, within 1 unit of the last place; what is below 2^-126 becomes 0. */
DEVICE float reciprocal_fast(float x)
{
#ifdef FSDP_CUDASH
    return 1.0f / x;
#else
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* Returns 1 / sqrt(x), within 2 units of the last place. */
DEVICE float inverse_root(float x)
{
#ifdef FSDP_CUDASH
    return 1.0f / sqrtf(x);
#else
    float y;

    asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}

/* Returns two elements of T in a register: `low` has the smaller index. */
template <class T>
DEVICE uint32_t pack_two(float low, float high);

#ifdef FSDP_CUDASH
template <class T>
DEVICE uint32_t pack_two(float low, float high)
{
    return from_float<T>(low).bits | (uint32_t)from_float<T>(high).bits << 16;
}
#else
template <>
DEVICE uint32_t pack_two<bf16>(float low, float high)
{
    uint32_t two;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

template <>
DEVICE uint32_t pack_two<f16>(float low, float high)
{
    uint32_t two;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}
#endif

/* Returns the same number, which the compiler does not compute again where it is used: it stays in a register. All
 * lanes of a warp call this together. */
DEVICE float kept_number(float x)
{
    return __shfl_xor_sync(ALL_LANES, x, 0);
}

/* Makes the compiler take this word for another one, so that it unpacks it again where it is used next, instead of
 * keeping each element in a register of its own. */
DEVICE void keep_packed(uint32_t &word)
{
#ifdef FSDP_CUDASH
    (void)word;
#else
    asm volatile("" : "+r"(word));
#endif
}
