/* meta_device.c - devices that only have shapes: everything is accounted for, and nothing has bytes.
 *
 * Segments are reserved addresses without memory behind them. So blocks are told apart as on a real device, the ledger
 * makes the same decisions, and a pointer that is followed by mistake stops the program there and then.
 *
 * Three devices are made of this. On `meta` modules are built, and wait for memory elsewhere. On `dry` they have it, as
 * far as anybody can tell: they are materialized, run, and are trained there, in place of the CPU. What is written is
 * forgotten, and what is read is zero. `dry-gpu` is the same in place of a GPU: its memory is its own, and its streams
 * run behind the host. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/limits.h"
#include "device/dry.h"
#include "device/impl.h"

static void *reserve(size_t bytes)
{
    return mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

static fsdp_status meta_segment_alloc(fsdp_device *device, size_t bytes, void **out)
{
    void *segment = reserve(bytes);

    (void)device;
    if (segment == MAP_FAILED)
        return FSDP_FAIL(FSDP_NO_MEMORY, "no address range of %zu bytes: %s%s", bytes, strerrordesc_np(errno),
                         fsdp__limit_behind(errno));
    *out = segment;
    return FSDP_OK;
}

static void meta_segment_free(fsdp_device *device, void *segment, size_t bytes)
{
    (void)device;
    (void)munmap(segment, bytes);
}

/* Makes a stream on which nothing takes time: work is done when it is queued, on workers too. A worker keeps its mode,
 * so that code that asks for the mode goes the same way as with real workers. */
static fsdp_status meta_stream_create(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out)
{
    fsdp_stream *stream = fsdp__calloc(1, sizeof *stream);

    FSDP__TRY_NEW(stream);
    stream->device = device;
    stream->mode = mode;
    *out = stream;
    return FSDP_OK;
}

static void meta_stream_free(fsdp_stream *stream)
{
    fsdp__stream_drop_workspace(stream);
    fsdp__free(stream);
}

static fsdp_status meta_stream_enqueue(fsdp_stream *stream, fsdp_status (*work)(fsdp_stream *, const void *),
                                       const void *argument, size_t bytes)
{
    (void)bytes;
    return work(stream, argument);
}

static fsdp_status meta_stream_synchronize(fsdp_stream *stream)
{
    (void)stream;
    return FSDP_OK;
}

/* Lists the slots that all of them have. There are no .kernels: a launch counts its flops, and nothing else happens. */
#define WITHOUT_BYTES                                                                                      \
    .most = 1, .has_bytes = false, .stream_free = meta_stream_free, .stream_enqueue = meta_stream_enqueue, \
    .stream_synchronize = meta_stream_synchronize, .stream_check = meta_stream_synchronize

const fsdp__backend fsdp__backend_meta = {.name = "meta",
                                          .is_meta = true,
                                          .segment_alloc = meta_segment_alloc,
                                          .segment_free = meta_segment_free,
                                          .stream_create = meta_stream_create,
                                          WITHOUT_BYTES};

/* ---- dry ---- */

static fsdp_status behind_stream_create(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out)
{
    (void)mode;
    return meta_stream_create(device, FSDP_STREAM_WORKER, out);
}

static fsdp_status dry_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    (void)stream, (void)device;
    memset(host, 0, bytes);
    return FSDP_OK;
}

const fsdp__backend fsdp__backend_dry = {
    .name = "dry",
    .host_access = true,   /* as on the CPU: shards that are offloaded are there already */
    .shared_memory = true, /* if a fake world, of several machines, has it */
    .copy_to_host = dry_copy_to_host,
    .segment_alloc = meta_segment_alloc,
    .segment_free = meta_segment_free,
    .stream_create = meta_stream_create,
    WITHOUT_BYTES,
};

/* Its segments grow as a GPU's do, without bytes: so it reserves what a GPU would. */
#define MOST_RANGE ((size_t)160 << 30) /* addresses of a segment, */
#define LEAST_RANGE ((size_t)1 << 30)  /* where a process has not as many (ulimit -v, valgrind) */
#define GRANULE ((size_t)2 << 20)      /* what a GPU maps, and the allocator asks for, are multiples of it */

static bool are_there(size_t addresses)
{
    void *range = reserve(addresses);

    return range != MAP_FAILED && munmap(range, addresses) == 0;
}

/* Finds how many addresses a segment can have: there is one for each pool, and others come and go. */
static fsdp_status dry_gpu_open(fsdp_device *device)
{
    size_t *range = fsdp__malloc(sizeof *range);

    FSDP__TRY_NEW(range);
    *range = MOST_RANGE;
    while (*range > LEAST_RANGE && !are_there(4 * *range))
        *range /= 2;
    device->state = range;
    device->grows = true;
    return FSDP_OK;
}

static void dry_gpu_close(fsdp_device *device)
{
    fsdp__free(device->state);
}

static size_t range_of(const fsdp_device *device)
{
    return *(const size_t *)device->state;
}

static fsdp_status dry_gpu_segment_alloc(fsdp_device *device, size_t bytes, void **out)
{
    return meta_segment_alloc(device, FSDP__MAX(bytes, range_of(device)), out);
}

static void dry_gpu_segment_free(fsdp_device *device, void *segment, size_t bytes)
{
    meta_segment_free(device, segment, FSDP__MAX(bytes, range_of(device)));
}

static fsdp_status dry_gpu_segment_grow(fsdp_device *device, void *segment, size_t bytes, size_t more)
{
    size_t range = range_of(device);

    (void)segment;
    return more <= range && bytes <= range - more ? FSDP_OK : FSDP_NOT_FOUND;
}

static void dry_gpu_segment_fit(fsdp_device *device, void *segment, size_t *from, size_t *end)
{
    (void)device, (void)segment;
    *from = FSDP__ROUND_UP(*from, GRANULE);
    *end = *end / GRANULE * GRANULE;
}

static void dry_gpu_segment_cut(fsdp_device *device, void *segment, size_t from, size_t end)
{
    (void)device, (void)segment, (void)from, (void)end;
}

/* What is offloaded goes to the dry device, which has no bytes either. */
static fsdp_status dry_gpu_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    const fsdp_device *dry = fsdp__device_find(stream->device->context, fsdp__backend_dry.name, 0);

    return dry && fsdp__allocator_covers(dry->allocator, host, bytes) ? FSDP_OK
                                                                      : dry_copy_to_host(stream, host, device, bytes);
}

const fsdp__backend fsdp__backend_dry_gpu = {
    .name = "dry-gpu",
    .joins_products = true,
    .head_rows = 2048,
    .narrow_logits = true,
    .wide_gradients = true,
    .gelu_products = true,
    .makes_again = true,
    .sums_operands = true,
    .copy_to_host = dry_gpu_copy_to_host,
    .open = dry_gpu_open,
    .close = dry_gpu_close,
    .segment_alloc = dry_gpu_segment_alloc,
    .segment_free = dry_gpu_segment_free,
    .segment_grow = dry_gpu_segment_grow,
    .segment_fit = dry_gpu_segment_fit,
    .segment_cut = dry_gpu_segment_cut,
    .stream_create = behind_stream_create,
    WITHOUT_BYTES,
};
