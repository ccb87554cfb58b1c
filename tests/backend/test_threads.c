/* Kernels run on threads that are already there: starting one takes longer than many a kernel. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "backend/cpu/kernels_table.h"
#include "base/compiler.h"
#include "device/device.h"
#include "device/kernels.h"
#include "support/test.h"

static atomic_int started;

/* Stands before the C library's, for OpenMP's threads too. */
__attribute__((visibility("default"))) int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                                                          void *(*body)(void *), void *argument)
{
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

    *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    atomic_fetch_add(&started, 1);
    return create(thread, attributes, body, argument);
}

enum {
    THREADS = 3,
    SIDE = 256,
    BATCH = 4
};

static float a[BATCH * SIDE * SIDE], b[BATCH * SIDE * SIDE], c[BATCH * SIDE * SIDE], d[BATCH * SIDE * SIDE];
static float lse[BATCH * SIDE];

/* Squares of n rows. */
static void multiply(const fsdp__kernel_function *kernels, fsdp_stream *stream, int64_t n, int64_t batch)
{
    fsdp__matmul_args product = {.a = a,
                                 .b = b,
                                 .c = c,
                                 .m = n,
                                 .n = n,
                                 .k = n,
                                 .a_row = n,
                                 .a_col = 1,
                                 .b_row = 1,
                                 .b_col = n,
                                 .c_row = n,
                                 .batch = batch,
                                 .a_batch = n * n,
                                 .b_batch = n * n,
                                 .c_batch = n * n,
                                 .a_dtype = FSDP_F32,
                                 .b_dtype = FSDP_F32,
                                 .c_dtype = FSDP_F32,
                                 .alpha = 1.0f};

    CHECK_OK(kernels[FSDP__KERNEL_MATMUL](stream, &product));
    product.a_dtype = FSDP_BF16; /* in blocks */
    CHECK_OK(kernels[FSDP__KERNEL_MATMUL](stream, &product));
}

/* Large and small, whole and in batches, for all threads and for fewer: what a step has. */
static void run_kernels(const fsdp__kernel_function *kernels, fsdp_stream *stream)
{
    static const int64_t sides[] = {SIDE, 24};
    fsdp__attention_backward_args attention = {.forward = {.q = a,
                                                           .k = b,
                                                           .v = c,
                                                           .out = d,
                                                           .lse = lse,
                                                           .batch = 1,
                                                           .q_time = SIDE,
                                                           .kv_time = SIDE,
                                                           .heads = 2,
                                                           .kv_heads = 2,
                                                           .head_dim = 64,
                                                           .q_stride_time = 128,
                                                           .k_stride_time = 128,
                                                           .v_stride_time = 128,
                                                           .out_stride_time = 128,
                                                           .q_head = 64,
                                                           .k_head = 64,
                                                           .v_head = 64,
                                                           .out_head = 64,
                                                           .scale = 0.125f,
                                                           .causal = true,
                                                           .dtype = FSDP_F32},
                                               .dout = d,
                                               .dq = a + SIDE * SIDE,
                                               .dk = b + SIDE * SIDE,
                                               .dv = c + SIDE * SIDE};

    for (size_t i = 0; i < FSDP__COUNT_OF(sides); i++)
        for (int64_t batch = 1; batch <= BATCH; batch += BATCH - 1)
            multiply(kernels, stream, sides[i], batch);
    CHECK_OK(kernels[FSDP__KERNEL_ATTENTION_FORWARD](stream, &attention.forward));
    CHECK_OK(kernels[FSDP__KERNEL_ATTENTION_BACKWARD](stream, &attention));
}

TEST(no_kernel_starts_threads_once_they_are_there)
{
    fsdp_context_options options = {.world_size = 1, .threads = THREADS};
    fsdp_context *context;

    CHECK_OK(fsdp_context_create(&options, &context));
    for (fsdp__cpu_isa isa = 0; isa < FSDP__CPU_ISAS; isa++) {
        const fsdp__kernel_function *kernels = fsdp__cpu_isa_kernels(isa);
        int before;

        if (!kernels)
            continue;
        run_kernels(kernels, fsdp_device_stream(fsdp_cpu(context)));
        before = atomic_load(&started);
        run_kernels(kernels, fsdp_device_stream(fsdp_cpu(context)));
        CHECK_EQ(atomic_load(&started), before);
    }
#ifdef _OPENMP
    CHECK_EQ(atomic_load(&started), 2 * (THREADS - 1)); /* once to see whether they start, and once by OpenMP */
#endif
    fsdp_context_free(context);
}

#ifdef _OPENMP
/* A dry run beside a run makes such a context. */
TEST(a_context_keeps_its_threads_beside_another)
{
    fsdp_context_options options = {.world_size = 1, .threads = THREADS};
    fsdp_context *context, *other;
    float value = 0;

    CHECK_OK(fsdp_context_create(&options, &context));
    CHECK_OK(fsdp__launch_fill_run(fsdp_device_stream(fsdp_cpu(context)), &value, FSDP_F32, 1, 1.0));
    options.threads = 1;
    CHECK_OK(fsdp_context_create(&options, &other));
    CHECK_OK(fsdp__launch_fill_run(fsdp_device_stream(fsdp_cpu(other)), &value, FSDP_F32, 1, 2.0));
    CHECK_EQ(omp_get_max_threads(), 1);
    CHECK_OK(fsdp__launch_fill_run(fsdp_device_stream(fsdp_cpu(context)), &value, FSDP_F32, 1, 3.0));
    CHECK_EQ(omp_get_max_threads(), THREADS);
    fsdp_context_free(other);
    fsdp_context_free(context);
}
#endif
