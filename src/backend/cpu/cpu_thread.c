/* cpu_thread.c - prepares threads that compute. */
#include <errno.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <pthread.h>
#if defined(__x86_64__) || defined(__i386__)
#include <xmmintrin.h>
#endif

#include "backend/cpu/cpu_device.h"
#include "base/alloc.h"
#include "base/compiler.h"
#include "base/limits.h"

/* Makes the CPU flush denormal results to zero and take denormals for zero: they cost 100x and more. */
static void flush_denormals(void)
{
#if defined(__x86_64__) || defined(__i386__)
    const unsigned mode = 0x8040; /* flush to zero | denormals are zero */

    if ((_mm_getcsr() & mode) != mode)
        _mm_setcsr(_mm_getcsr() | mode);
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

#ifdef _OPENMP
/* ---- OpenMP's pool ---- */

enum {
    LOST = -1,
    MOST_TRIED = 256 /* threads: fsdp__threads_startable */
};

/* The number of threads in the pool of this thread, itself included, which OpenMP keeps; LOST: they are its parent's.
 */
static _Thread_local int pool;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A child of fork() has none of these threads, and OpenMP would wait for them for ever. */
static void lose(void)
{
    if (pool > 1)
        pool = LOST;
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, lose);
}

/* Checks that the pool can grow to `threads`, since OpenMP ends the process where it cannot start one. */
static fsdp_status check_pool(int threads)
{
    int missing = threads - FSDP__MAX(pool, 1), started;

    if (pool == LOST && threads > 1)
        return FSDP_FAIL(FSDP_STATE,
                         "cannot compute with %d threads: this process was forked from one that had, and has none of "
                         "them: fork before the first device is opened, or start another program in the child",
                         threads);
    started = missing > 0 ? fsdp__threads_startable(missing) : 0;
    if (started >= FSDP__MIN(missing, MOST_TRIED))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_NO_MEMORY,
                     "this rank computes with %d threads, and the system starts %d beside its first%s: raise the "
                     "limit, or give the rank fewer (OMP_NUM_THREADS, training.threads)",
                     threads, started, fsdp__limit_behind(EAGAIN));
}

static fsdp_status start_pool(int threads)
{
    (void)pthread_once(&once, watch_forks);
    FSDP_TRY(check_pool(threads));
    /* A thread inherits the mode of the one that starts it; only a pool that the thread had before must be told. */
#pragma omp parallel
    flush_denormals();
    pool = pool == LOST ? LOST : FSDP__MAX(pool, threads);
    return FSDP_OK;
}
#endif

fsdp_status fsdp__cpu_prepare_creator(fsdp_device *device)
{
    fsdp__keep_heap();
    fsdp__cpu_prepare_thread(device);
#ifdef _OPENMP
    FSDP_TRY(start_pool(fsdp_context_threads(fsdp_device_context(device))));
#endif
    return FSDP_OK;
}

fsdp_status fsdp__cpu_prepare_kernel(const fsdp_device *device)
{
#ifdef _OPENMP
    int threads = fsdp_context_threads(fsdp_device_context(device));

    if (omp_get_max_threads() != threads)
        omp_set_num_threads(threads);
    flush_denormals();
    if (pool < threads && (pool != LOST || threads > 1))
        FSDP_TRY(start_pool(threads));
#else
    (void)device;
    flush_denormals();
#endif
    return FSDP_OK;
}
