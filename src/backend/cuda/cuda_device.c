/* cuda_device.c - a GPU of NVIDIA as a device: which there are, opening and closing one, and the table. */
#include <stdio.h>

#include "backend/cuda/cuda.h"
#include "backend/cuda/host_functions.h"
#include "backend/cuda/kernels_table.h"
#include "base/alloc.h"
#include "base/text.h"

enum {
    FIRST_CAPABILITY = 80 /* whose tensor cores and copies the kernels use */
};

/* ---- which there are ---- */

/* Says why CUDA has no device. */
static fsdp_status fail_count(cudaError_t error)
{
    int driver = 0, runtime = CUDART_VERSION;

    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    if (driver == 0)
        return FSDP_FAIL(
            FSDP_UNSUPPORTED,
            "there is no CUDA driver here: install NVIDIA's driver (nvidia-smi shows it; in a container its "
            "library libcuda.so.1 must be passed through), or compute on the CPU");
    if (error == cudaErrorInsufficientDriver)
        return FSDP_FAIL(
            FSDP_UNSUPPORTED,
            "the CUDA driver is too old: it knows CUDA %d.%d, and this program was built with %d.%d: install "
            "a newer driver of NVIDIA, or build with an older CUDA",
            driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    if (error == cudaErrorNoDevice)
        return FSDP_FAIL(
            FSDP_UNSUPPORTED,
            "there is no GPU here: nvidia-smi lists those that the driver sees, and CUDA_VISIBLE_DEVICES may "
            "hide them");
    return FSDP_FAIL(FSDP_UNSUPPORTED, "CUDA does not start: %s (%s)", cudaGetErrorString(error),
                     cudaGetErrorName(error));
}

static fsdp_status cuda_count(int *out)
{
    cudaError_t error = cudaGetDeviceCount(out);

    if (error != cudaSuccess || *out < 1)
        return fail_count(error == cudaSuccess ? cudaErrorNoDevice : error);
    return FSDP_OK;
}

/* ---- open and close ---- */

static fsdp_status prepare_thread(fsdp_device *device)
{
    return fsdp__cuda_use(device);
}

/* Fills in what the card is, and refuses one for which no kernel was compiled. */
static fsdp_status look_at(fsdp_device *device)
{
    fsdp__cuda_state *state = device->state;
    struct cudaDeviceProp facts;
    size_t unused;
    int pools = 0;

    FSDP__CUDA_TRY(device, cudaGetDeviceProperties(&facts, device->ordinal));
    snprintf(state->model, sizeof state->model, "%.*s", (int)sizeof state->model - 1, facts.name);
    state->capability = 10 * facts.major + facts.minor;
    if (state->capability < FSDP_CUDA_OLDEST)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "%s is too old: its compute capability is %d.%d, and the kernels of this plug-in are compiled "
                         "for %d.%d and later: use another GPU%s",
                         state->model, facts.major, facts.minor, FSDP_CUDA_OLDEST / 10, FSDP_CUDA_OLDEST % 10,
                         state->capability < FIRST_CAPABILITY ? "" : ", or name its own in -DFSDP_CUDA_ARCHITECTURES");
    FSDP__CUDA_TRY(device, cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device->ordinal));
    state->pools = pools != 0;
    state->multiprocessors = facts.multiProcessorCount;
    FSDP__CUDA_TRY(device, cudaDeviceGetAttribute(&state->clock_khz, cudaDevAttrClockRate, device->ordinal));
    FSDP__CUDA_TRY(device, cudaMemGetInfo(&unused, &state->bytes));
    state->shared_bytes = facts.sharedMemPerBlockOptin;
    fsdp__cuda_mapping_find(device);
    return FSDP_OK;
}

static void cuda_close(fsdp_device *device)
{
    fsdp__cuda_state *state = device->state;

    fsdp__cuda_activities_close(device);
    fsdp__cuda_attention_close(device);
    fsdp__cuda_cliques_close(device);
    if (state->products)
        state->products_free(state->products);
    fsdp__cuda_clock_close(device);
    fsdp__cuda_moments_close(device);
    pthread_mutex_destroy(&state->lost.mutex);
    pthread_mutex_destroy(&state->mutex);
    fsdp__free(state);
    device->state = NULL;
}

static fsdp_status cuda_open(fsdp_device *device)
{
    fsdp__cuda_state *state;
    fsdp_status status;
    int count = 0;

    FSDP_TRY(cuda_count(&count));
    if (device->ordinal >= count)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot open device '%s': there %s %d GPU%s here, from cuda:0 on (nvidia-smi lists "
                         "them; CUDA_VISIBLE_DEVICES may hide some)",
                         device->name, count == 1 ? "is" : "are", count, fsdp__plural(count));
    state = fsdp__calloc(1, sizeof *state);
    if (!state)
        return FSDP_NO_MEMORY;
    pthread_mutex_init(&state->mutex, NULL);
    pthread_mutex_init(&state->lost.mutex, NULL);
    device->state = state;
    status = fsdp__cuda_moments_open(device);
    if (status == FSDP_OK)
        status = fsdp__cuda_use(device);
    if (status == FSDP_OK)
        status = look_at(device);
    if (status != FSDP_OK)
        cuda_close(device);
    return fsdp_fail_prefix(status, "cannot open device '%s'", device->name);
}

static void look(fsdp_device *device, fsdp__device_facts *out)
{
    const fsdp__cuda_state *state = fsdp__cuda_state_of(device);

    snprintf(out->card, sizeof out->card, "%s", state->model);
    out->capability = state->capability;
    out->multiprocessors = state->multiprocessors;
    out->clock_mhz = state->clock_khz / 1000;
    out->memory_bytes = state->bytes;
    (void)cudaDriverGetVersion(&out->driver);
    if (fsdp__cuda_use(device) == FSDP_OK)
        (void)FSDP__CUDA_CALL(device, cudaMemGetInfo(&out->free_bytes, &out->memory_bytes));
}

/* ---- the table ---- */

static const fsdp__backend backend = {
    .name = "cuda",
    .most = FSDP__MOST_GPUS,
    .has_bytes = true,
    .host_access = false,
    .shared_memory = false,
    .joins_products = true,
    .head_rows = 2048,
    .narrow_logits = true,
    .wide_gradients = true,
    .gelu_products = true,
    .makes_again = true,
    .sums_operands = true,
    .carries = true,
    .count = cuda_count,
    .open = cuda_open,
    .close = cuda_close,
    .prepare_thread = prepare_thread,
    .look = look,
    .links = fsdp__cuda_links,
    .open_attention = fsdp__cuda_attention_open,
    .alive = fsdp__cuda_alive,
    .condemn = fsdp__cuda_condemn,
    .judge = fsdp__cuda_judge,
    .segment_alloc = fsdp__cuda_segment_alloc,
    .segment_free = fsdp__cuda_segment_free,
    .segment_grow = fsdp__cuda_segment_grow,
    .segment_fit = fsdp__cuda_segment_fit,
    .segment_cut = fsdp__cuda_segment_cut,
    .issued = fsdp__cuda_issued,
    .scratch_alloc = fsdp__cuda_scratch_alloc,
    .scratch_free = fsdp__cuda_scratch_free,
    .scratch_owed = fsdp__cuda_scratch_owed,
    .scratch_settle = fsdp__cuda_scratch_settle,
    .host_alloc = fsdp__cuda_host_alloc,
    .host_free = fsdp__cuda_host_free,
    .host_register = fsdp__cuda_host_register,
    .host_unregister = fsdp__cuda_host_unregister,
    .export_alloc = fsdp__cuda_export_alloc,
    .export_free = fsdp__cuda_export_free,
    .import_open = fsdp__cuda_import_open,
    .import_close = fsdp__cuda_import_close,
    .mark_all = fsdp__cuda_mark_all,
    .has_ended = fsdp__cuda_has_ended,
    .try_words = fsdp__cuda_try_words,
    .write_word = fsdp__cuda_write_word,
    .await_word = fsdp__cuda_await_word,
    .copy_to_device = fsdp__cuda_copy_to_device,
    .copy_to_host = fsdp__cuda_copy_to_host,
    .hand_to_device = fsdp__cuda_hand_to_device,
    .stream_settle = fsdp__cuda_stream_settle,
    .stream_create = fsdp__cuda_stream_create,
    .stream_free = fsdp__cuda_stream_free,
    .stream_enqueue = fsdp__cuda_stream_enqueue,
    .stream_synchronize = fsdp__cuda_stream_synchronize,
    .stream_check = fsdp__cuda_stream_check,
    .stream_mark = fsdp__cuda_stream_mark,
    .stream_await = fsdp__cuda_stream_await,
    .stream_stamp = fsdp__cuda_stream_stamp,
    .activities_start = fsdp__cuda_activities_start,
    .activities_stop = fsdp__cuda_activities_stop,
    .activity_enter = fsdp__cuda_activity_enter,
    .activity_leave = fsdp__cuda_activity_leave,
    .stream_enter = fsdp__cuda_stream_enter,
    .stream_leave = fsdp__cuda_stream_leave,
    .stream_native = fsdp__cuda_stream_native,
    .cliques = &fsdp__cuda_cliques,
    .kernels = fsdp__cuda_kernels,
};

__attribute__((visibility("default"))) const fsdp__device_plugin *fsdp_device_plugin(void);
const fsdp__device_plugin *fsdp_device_plugin(void)
{
    static const fsdp__device_plugin plugin = {
        .version = FSDP__DEVICE_PLUGIN_VERSION,
        .shape = FSDP__PLUGIN_SHAPE,
        .backend = &backend,
        .join = fsdp__cuda_join,
    };

    return &plugin;
}
