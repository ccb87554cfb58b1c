/* mfu.c - finds the peak of the run's devices: in a table of cards, or by a product that it measures. */
#include "train/mfu.h"

#include <stdio.h>

#include "base/clock.h"
#include "device/device.h"
#include "device/known_cards.h"
#include "fsdp/ops.h"
#include "models/models.h"
#include "train/run.h"

enum {
    FIRST_SIZE = 256,
    LAST_SIZE = 8192,
    ENOUGH_NS = 20000000, /* a product that takes this long is large enough */
    TIMES = 3             /* it is measured as often; the fastest counts */
};

bool fsdp__mfu_is_asked(const fsdp_train_run *run)
{
    int mfu = run->config->metrics.mfu;

    return mfu == FSDP_TRAIN_MFU_MEASURED ||
           (mfu == FSDP_TRAIN_MFU_AUTO &&
            (run->config->metrics.peak_tflops > 0 || fsdp__device_look(run->device).card[0] != '\0'));
}

static fsdp_dtype compute_dtype(const fsdp_train_run *run)
{
    return (fsdp_dtype)run->config->training.mixed_precision_param;
}

/* ---- measuring ---- */

/* Makes a matrix of different numbers: a card that multiplies equal ones takes less power, and runs faster. */
static fsdp_tensor *make_matrix(fsdp_device *device, fsdp_dtype dtype, int64_t n)
{
    fsdp_tensor *row = fsdp_scale(fsdp_arange(device, dtype, 1, n + 1, 1), 1 / (double)n);

    return fsdp_mul(fsdp_reshape(row, FSDP_SHAPE(n, 1)), fsdp_reshape(row, FSDP_SHAPE(1, n)));
}

static fsdp_status time_product(fsdp_tensor *matrix, int64_t *out_ns)
{
    fsdp_stream *stream = fsdp_device_stream(fsdp_tensor_device(matrix));
    int64_t began_ns;

    FSDP_TRY(fsdp_stream_synchronize(stream));
    began_ns = fsdp__clock_ns();
    if (!fsdp_matmul(matrix, matrix))
        return fsdp_last_status();
    FSDP_TRY(fsdp_stream_synchronize(stream));
    *out_ns = fsdp__clock_ns() - began_ns;
    return FSDP_OK;
}

/* Measures products of square matrices of one size; the first one, which also warms up, does not count. */
static fsdp_status measure_size(fsdp_train_run *run, int64_t n, int times, int64_t *best_ns)
{
    fsdp_tensor *matrix;
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(run->context));
    matrix = make_matrix(run->device, compute_dtype(run), n);
    status = matrix ? FSDP_OK : fsdp_last_status();
    for (int i = 0; status == FSDP_OK && i < times; i++) {
        int64_t ns = 0;

        status = time_product(matrix, &ns);
        if (status == FSDP_OK && (i < 2 || ns < *best_ns))
            *best_ns = ns;
    }
    fsdp_scope_end(run->context, NULL);
    return status;
}

static fsdp_status measure(fsdp_train_run *run, double *flops)
{
    int64_t n = FIRST_SIZE, ns = 0;

    FSDP_TRY(measure_size(run, n, 2, &ns));
    while (ns < ENOUGH_NS && n < LAST_SIZE) {
        n *= 2;
        FSDP_TRY(measure_size(run, n, 2, &ns));
    }
    FSDP_TRY(measure_size(run, n, 1 + TIMES, &ns));
    *flops = 2 * (double)n * (double)n * (double)n / ((double)(ns > 0 ? ns : 1) * 1e-9);
    return FSDP_OK;
}

/* ---- all ranks ---- */

/* Estimates the peak of a card that is in no table by what it is made of. */
static void estimate(fsdp_train_run *run, const fsdp__device_facts *gpu)
{
    int flops = fsdp__flops_a_clock(gpu, compute_dtype(run));
    double ghz = gpu->clock_mhz * 1e-3;

    run->peak_flops = (double)gpu->multiprocessors * flops * ghz * 1e9;
    if (run->peak_flops > 0)
        snprintf(run->peak_source, sizeof run->peak_source,
                 "an estimate: '%.40s' is in no table, and has %d multiprocessors x %d FLOP a clock x %.3f GHz",
                 gpu->card, gpu->multiprocessors, flops, ghz);
    else
        snprintf(run->peak_source, sizeof run->peak_source,
                 "'%.40s' is in no table: set metrics.peak_tflops, or metrics.mfu=measured", gpu->card);
}

fsdp_status fsdp__mfu_look(fsdp_train_run *run)
{
    const fsdp__device_facts facts = fsdp__device_look(run->device);
    const fsdp__known_card *card = fsdp__known_card_find(facts.card);
    const char *dtype = fsdp_dtype_name(compute_dtype(run));

    if (run->config->metrics.mfu == FSDP_TRAIN_MFU_MEASURED) {
        snprintf(run->peak_source, sizeof run->peak_source, "measured by products of %s", dtype);
        return measure(run, &run->peak_flops);
    }
    if (run->config->metrics.peak_tflops > 0) {
        run->peak_flops = run->config->metrics.peak_tflops * 1e12;
        snprintf(run->peak_source, sizeof run->peak_source, "metrics.peak_tflops %g", run->config->metrics.peak_tflops);
    } else if (card) {
        run->peak_flops = fsdp__known_card_flops(card, compute_dtype(run));
        snprintf(run->peak_source, sizeof run->peak_source, "%s: dense products of %s, by its data sheet", card->name,
                 dtype);
    } else {
        estimate(run, &facts);
    }
    return FSDP_OK;
}

/* Describes a rank's device: ranks that share a card share its peak. */
typedef struct device_peak {
    double flops;
    int machine, ordinal;
} device_peak;

/* Returns whether an earlier rank has the same card. */
static bool is_shared(void *const *all, int rank)
{
    const device_peak *own = all[rank];

    for (int other = 0; other < rank; other++) {
        const device_peak *its = all[other];

        if (its->machine == own->machine && its->ordinal == own->ordinal)
            return true;
    }
    return false;
}

fsdp_status fsdp__mfu_add_up(fsdp_train_run *run)
{
    const device_peak mine = {run->peak_flops, fsdp_context_machine(run->context), fsdp_device_ordinal(run->device)};
    bool measured = run->config->metrics.mfu == FSDP_TRAIN_MFU_MEASURED, known = true;
    fsdp_process_group *world;
    size_t *bytes = NULL;
    void **all = NULL;

    if (fsdp_context_world_size(run->context) == 1)
        return FSDP_OK;
    FSDP__TRY_MADE(world = fsdp_world(run->context));
    FSDP_TRY(fsdp_gather_objects(world, &mine, sizeof mine, &all, &bytes));
    run->peak_flops = 0;
    for (int rank = 0; rank < fsdp_context_world_size(run->context); rank++) {
        const device_peak *its = all[rank];

        known = known && its->flops > 0;
        /* ranks that share what they measure have measured at the same time */
        if (measured || !is_shared(all, rank))
            run->peak_flops += its->flops;
    }
    fsdp_objects_free(world, all, bytes);
    if (known)
        return FSDP_OK;
    run->peak_flops = 0;
    if (mine.flops > 0)
        snprintf(run->peak_source, sizeof run->peak_source,
                 "another rank's card is in no table: set metrics.peak_tflops, or metrics.mfu=measured");
    return FSDP_OK;
}

/* ---- what is counted ---- */

double fsdp__mfu_of_trained(const fsdp_train_run *run, double flops_per_token)
{
    double frozen = (double)(fsdp__mfu_parameters(&run->model_config) - run->trained_products);
    bool all = run->config->model.frozen_count == 0 && !run->adapter;

    return all ? flops_per_token : flops_per_token - 2 * frozen + 6 * (double)run->adapter_products;
}
