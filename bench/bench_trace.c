/* bench_trace.c - measures what a trace costs: the processor time of noting an event while work goes on, and that of
 * writing it afterwards.
 *
 *     bench_trace FILE.json */
#include <time.h>

#include "check.h"
#include "device/kernels.h"
#include "fsdp/trace.h"

enum {
    ROUNDS = 8,
    KERNELS = 20000 /* each of which is two events */
};

static double thread_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Returns the time of the smallest kernel. */
static double run_kernels(fsdp_stream *stream)
{
    double began = thread_ns();
    float value;

    for (int i = 0; i < KERNELS; i++)
        CHECK(fsdp__launch_fill_run(stream, &value, FSDP_F32, 1, 0));
    return (thread_ns() - began) / KERNELS;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

int main(int argc, char **argv)
{
    double alone = 1e18, traced = 1e18, writing = 1e18;
    fsdp_context *context = NULL;
    fsdp_stream *stream;

    if (argc != 2) {
        fprintf(stderr, "bench_trace FILE.json\n");
        return 2;
    }
    CHECK(fsdp_context_create(NULL, &context));
    stream = fsdp_device_stream(fsdp_cpu(context));
    for (int i = 0; i < ROUNDS; i++) {
        fsdp_trace *trace = NULL;
        double began;

        alone = least(alone, run_kernels(stream));
        CHECK(fsdp_trace_begin(context, argv[1], NULL, &trace));
        traced = least(traced, run_kernels(stream));
        began = thread_ns();
        CHECK(fsdp_trace_end(trace));
        writing = least(writing, (thread_ns() - began) / (2.0 * KERNELS));
    }
    printf("%.0f ns to note an event, %.0f ns to write it\n", (traced - alone) / 2, writing);
    fsdp_context_free(context);
    return 0;
}
