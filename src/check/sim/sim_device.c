/* sim_device.c - a device for tests: host memory that the host can never touch.
 *
 * [Note: two mappings]
 * A segment is a memory file mapped twice. The addresses that the device hands out are never readable or writable, not
 * even for a moment, so whoever follows one stops there and then. Kernels use the second mapping, at addresses that
 * nobody outside this folder learns; sim_kernels.c moves their arguments there. All streams run behind the host, on
 * threads of their own, with small random pauses between their items (FSDP_SIM_SEED chooses which), so that nothing is
 * in time by luck. Memory that ranks share is not the device's: parameters are copied (shard/group/residence.h), and
 * collectives go through host memory that was registered. */
#include "check/sim/sim_device.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "backend/cpu/cpu_device.h"
#include "base/alloc.h"
#include "base/rng.h"

enum {
    DEVICES = 8,
    PAUSE_MOST_NS = 20000
};

static fsdp_status sim_open(fsdp_device *device)
{
    const char *seed = getenv("FSDP_SIM_SEED");
    fsdp__sim_state *state = fsdp__calloc(1, sizeof *state);

    FSDP__TRY_NEW(state);
    pthread_mutex_init(&state->mutex, NULL);
    state->seed = seed ? strtoull(seed, NULL, 10) : 1;
    device->state = state;
    return FSDP_OK;
}

static void sim_close(fsdp_device *device)
{
    fsdp__sim_state *state = device->state;

    while (state->ranges) {
        fsdp__sim_range *r = state->ranges;

        state->ranges = r->next;
        fsdp__free(r);
    }
    pthread_mutex_destroy(&state->mutex);
    fsdp__free(state);
}

/* ---- memory: see [Note: two mappings] ---- */

static fsdp_status sim_segment_alloc(fsdp_device *device, size_t bytes, void **out)
{
    void *address = MAP_FAILED, *mapped = MAP_FAILED;
    int file = memfd_create("fsdp-sim", MFD_CLOEXEC);
    fsdp_status status = FSDP_OK;

    if (file >= 0 && ftruncate(file, (off_t)bytes) == 0) {
        address = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
        mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    }
    if (address == MAP_FAILED || mapped == MAP_FAILED)
        status = FSDP_FAIL(FSDP_NO_MEMORY, "the system has no segment of %zu bytes: %s", bytes, strerror(errno));
    else
        status = fsdp__sim_range_add(device, address, mapped, bytes);
    if (file >= 0)
        (void)close(file); /* the mappings keep the file */
    if (status == FSDP_OK) {
        *out = address;
        return FSDP_OK;
    }
    if (address != MAP_FAILED)
        (void)munmap(address, bytes);
    if (mapped != MAP_FAILED)
        (void)munmap(mapped, bytes);
    return status;
}

static void sim_segment_free(fsdp_device *device, void *segment, size_t bytes)
{
    /* Remove the range before its addresses are given back: another segment may get them at once. */
    void *mapped = fsdp__sim_range_remove(device, segment);

    (void)munmap(segment, bytes);
    (void)munmap(mapped, bytes);
}

static fsdp_status sim_scratch_alloc(fsdp_stream *stream, size_t bytes, void **out)
{
    (void)stream;
    return fsdp__cpu_memory_alloc(bytes, out);
}

static void sim_scratch_free(fsdp_stream *stream, void *scratch, size_t bytes)
{
    (void)stream;
    fsdp__cpu_memory_free(scratch, bytes);
}

static fsdp_status sim_host_register(fsdp_device *device, void *memory, size_t bytes)
{
    return fsdp__sim_range_add(device, memory, memory, bytes);
}

static void sim_host_unregister(fsdp_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    (void)fsdp__sim_range_remove(device, memory);
}

static fsdp_status sim_host_alloc(fsdp_device *device, size_t bytes, void **out)
{
    void *memory = fsdp__malloc(bytes);
    fsdp_status status = memory ? fsdp__sim_range_add(device, memory, memory, bytes) : FSDP_NO_MEMORY;

    if (status != FSDP_OK) {
        fsdp__free(memory);
        return status;
    }
    *out = memory;
    return FSDP_OK;
}

static void sim_host_free(fsdp_device *device, void *memory, size_t bytes)
{
    sim_host_unregister(device, memory, bytes);
    fsdp__free(memory);
}

/* ---- copies ---- */

/* Checks a copy when it is issued, more strictly than when it runs: by then the host may have given the block to
 * somebody else. */
static fsdp_status check_copy(void *arg, fsdp__probe_event *e)
{
    fsdp_device *device = fsdp__stream_device(e->stream);
    const void *pointer = e->kind == FSDP__WRITES ? e->memory : e->from;

    (void)arg;
    if (device->backend != &fsdp__backend_sim || (fsdp__allocator_covers(device->allocator, pointer, e->bytes) &&
                                                  fsdp__sim_translate(device, pointer, e->bytes)))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "cannot copy %zu bytes %s device '%s': no block of its memory at %p holds them",
                     e->bytes, e->kind == FSDP__WRITES ? "to" : "from", fsdp_device_name(device), pointer);
}

/* Finds the device's side of a copy that runs. */
static fsdp_status device_side(const fsdp_stream *stream, const void *pointer, size_t bytes, const char *what,
                               void **out)
{
    *out = fsdp__sim_reach(stream, pointer, bytes);
    if (!*out)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot copy %zu bytes %s device '%s' inside its work: %p is neither memory of the device nor "
                         "host memory registered with it",
                         bytes, what, fsdp_device_name(stream->device), pointer);
    return FSDP_OK;
}

static fsdp_status sim_copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    void *mapped;

    FSDP_TRY(device_side(stream, device, bytes, "to", &mapped));
    memcpy(mapped, host, bytes);
    return FSDP_OK;
}

static fsdp_status sim_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    void *mapped;

    FSDP_TRY(device_side(stream, device, bytes, "from", &mapped));
    memcpy(host, mapped, bytes);
    return FSDP_OK;
}

/* ---- streams ---- */

/* Pauses rarely before an item, so that a step of many small kernels does not take much longer. */
static fsdp_status pause_at_random(void *arg, fsdp__probe_event *e)
{
    const fsdp_device *device = fsdp__stream_device(e->stream);
    fsdp__sim_state *state = device->state;
    uint32_t draw[4];

    (void)arg;
    if (device->backend != &fsdp__backend_sim)
        return FSDP_OK;
    fsdp__philox(state->seed, atomic_fetch_add_explicit(&state->pauses, 1, memory_order_relaxed), draw);
    if (draw[0] % 32 == 0)
        (void)sched_yield();
    if (draw[1] % 64 == 0) {
        struct timespec ns = {0, draw[2] % PAUSE_MOST_NS};

        (void)nanosleep(&ns, NULL);
    }
    return FSDP_OK;
}

static fsdp_status sim_stream_create(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out)
{
    (void)mode;
    return fsdp__cpu_stream_create(device, FSDP_STREAM_WORKER, out);
}

const fsdp__backend fsdp__backend_sim = {
    .name = "sim",
    .most = DEVICES,
    .has_bytes = true,
    .host_access = false,
    .shared_memory = false,
    .open = sim_open,
    .close = sim_close,
    .segment_alloc = sim_segment_alloc,
    .segment_free = sim_segment_free,
    .scratch_alloc = sim_scratch_alloc,
    .scratch_free = sim_scratch_free,
    .host_alloc = sim_host_alloc,
    .host_free = sim_host_free,
    .host_register = sim_host_register,
    .host_unregister = sim_host_unregister,
    .copy_to_device = sim_copy_to_device,
    .copy_to_host = sim_copy_to_host,
    .stream_create = sim_stream_create,
    FSDP__CPU_STREAM_SLOTS,
    .kernels = fsdp__sim_kernels,
    .check_launch = fsdp__sim_check_launch,
};

__attribute__((constructor)) static void join(void)
{
    static fsdp__registered_backend sim = {.backend = &fsdp__backend_sim};
    static fsdp__subscriber pauses = {.points = FSDP__POINT_BIT(FSDP__POINT_ITEM_BEGUN), .see = pause_at_random},
                            copies = {.points = FSDP__POINT_BIT(FSDP__POINT_COPY_ISSUED), .see = check_copy};

    fsdp__backend_register(&sim);
    fsdp__subscribe(&pauses);
    fsdp__subscribe(&copies);
}
