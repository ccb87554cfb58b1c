/* vector.cuh - runs of elements that a thread moves at once: 16 bytes of the widest type that a kernel has to do with,
 * in one access wherever the pointer allows it. */
#ifndef BACKEND_CUDA_VECTOR_CUH
#define BACKEND_CUDA_VECTOR_CUH

#include "backend/cuda/kernels/kernel.cuh"

#ifdef FSDP_CUDASH
#define UNROLL
#else
#define UNROLL _Pragma("unroll")
#endif

/* The length of a run, for elements of these two types. */
template <class A, class B>
struct run_of {
    enum {
        length = 16 / (sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B))
    };
};

/* A run as it lies in aligned memory. */
template <int N, class T>
struct alignas(N * sizeof(T)) [[gnu::may_alias]] whole_run {
    T x[N];
};

/* Whether a run is whole, n of its elements being there, and aligned. */
template <int N, class T>
DEVICE bool is_whole(const T *p, int64_t n)
{
    return n >= N && (uintptr_t)p % (N * sizeof(T)) == 0;
}

/* Reads the first n elements of a run (all of it, if n is larger); the others are 0. */
template <int N, class T>
DEVICE void read_run(const T *p, int64_t n, T (&x)[N])
{
    if (is_whole<N>(p, n)) {
        whole_run<N, T> all = *(const whole_run<N, T> *)p;

        UNROLL
        for (int i = 0; i < N; i++)
            x[i] = all.x[i];
        return;
    }
    UNROLL
    for (int i = 0; i < N; i++)
        x[i] = i < n ? p[i] : T();
}

template <int N, class T>
DEVICE void write_run(T *p, int64_t n, const T (&x)[N])
{
    if (is_whole<N>(p, n)) {
        whole_run<N, T> all;

        UNROLL
        for (int i = 0; i < N; i++)
            all.x[i] = x[i];
        *(whole_run<N, T> *)p = all;
        return;
    }
    UNROLL
    for (int i = 0; i < N; i++)
        if (i < n)
            p[i] = x[i];
}

/* The same with conversion. */
template <int N, class T>
DEVICE void load_run(const T *p, int64_t n, float (&x)[N])
{
    T raw[N];

    read_run(p, n, raw);
    UNROLL
    for (int i = 0; i < N; i++)
        x[i] = to_float(raw[i]);
}

template <int N, class T>
DEVICE void store_run(T *p, int64_t n, const float (&x)[N])
{
    T raw[N];

    UNROLL
    for (int i = 0; i < N; i++)
        raw[i] = from_float<T>(x[i]);
    write_run(p, n, raw);
}

#endif
