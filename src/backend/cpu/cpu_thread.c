/* cpu_thread.c - prepares threads that compute. */
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

#include "backend/cpu/cpu_device.h"
#include "base/alloc.h"

/* Makes the CPU flush denormal results to zero and take denormals for zero: they cost 100x and more. */
static void flush_denormals(void)
{
#if defined(__x86_64__) || defined(__i386__)
    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero | denormals are zero */
#endif
}

void fsdp__cpu_prepare_thread(const fsdp_device *device)
{
    flush_denormals();
#ifdef _OPENMP
    omp_set_num_threads(fsdp_context_threads(fsdp_device_context(device)));
#else
    (void)device;
#endif
}

void fsdp__cpu_prepare_creator(fsdp_device *device)
{
    fsdp__keep_heap();
    fsdp__cpu_prepare_thread(device);
#ifdef _OPENMP
    /* A thread inherits the mode of the one that starts it; only a pool that the creator had before must be told. */
#pragma omp parallel
    flush_denormals();
#endif
}

void fsdp__cpu_prepare_kernel(const fsdp_device *device)
{
#ifdef _OPENMP
    int threads = fsdp_context_threads(fsdp_device_context(device));

    if (omp_get_max_threads() != threads)
        omp_set_num_threads(threads);
#else
    (void)device;
#endif
}
