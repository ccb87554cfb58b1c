/* cuda_copy.c - copies between the host and the device.
 *
 * [Note: pageable memory]
 * Memory that the device reaches (host_alloc, host_register) is copied behind the host. CUDA would copy other memory
 * slowly, and would make the host wait. So a stream passes it through pinned pieces of its own, which it has from the
 * first such copy on. On the way to the device the host fills one piece after another, and waits only where all are in
 * use, for the oldest: the copy returns when the bytes have been read. On the way back the device fills the pieces
 * ahead, while the host empties the oldest: the copy returns when it has been done. The order of the stream keeps the
 * device from filling a piece that it still reads. Whoever copies has entered the stream or is its work, so nobody else
 * uses the pieces. */
#include "backend/cuda/cuda.h"

#include <string.h>

#include "base/compiler.h"

enum {
    ALIGNMENT = 64 /* of what lies in a piece */
};

typedef struct transfer {
    char *dst;
    const char *src;
    size_t bytes;
    enum cudaMemcpyKind kind;
    bool taken; /* the host's memory must have been read on return, even if it is pinned */
} transfer;

static fsdp_status issue(const fsdp__cuda_stream *stream, const transfer *t)
{
    const fsdp_device *device = stream->base.device;

    FSDP__CUDA_TRY(device, cudaMemcpyAsync(t->dst, t->src, t->bytes, t->kind, stream->native));
    fsdp__cuda_count_issued(device);
    return FSDP_OK;
}

/* ---- pieces ---- */

void fsdp__cuda_pieces_free(fsdp__cuda_stream *stream)
{
    const fsdp_device *device = stream->base.device;
    fsdp__cuda_pieces *p = &stream->pieces;

    for (int i = 0; i < FSDP__CUDA_PIECES; i++)
        if (p->used[i])
            FSDP__CUDA_GIVE_BACK(device, cudaEventDestroy(p->used[i]));
    if (p->memory)
        FSDP__CUDA_GIVE_BACK(device, cudaFreeHost(p->memory));
    *p = (fsdp__cuda_pieces){.memory = NULL};
}

static fsdp_status make(fsdp__cuda_stream *stream)
{
    const fsdp_device *device = stream->base.device;
    fsdp__cuda_pieces *p = &stream->pieces;
    size_t bytes = (size_t)FSDP__CUDA_PIECES * FSDP__CUDA_PIECE_BYTES;

    FSDP_TRY(FSDP__CUDA_HOST_CALL(device, cudaHostAlloc((void **)&p->memory, bytes, cudaHostAllocPortable)));
    for (int i = 0; i < FSDP__CUDA_PIECES; i++)
        FSDP__CUDA_TRY(device, cudaEventCreateWithFlags(&p->used[i], cudaEventDisableTiming));
    return FSDP_OK;
}

/* Makes the pieces, unless there are some. */
static fsdp_status have_pieces(fsdp__cuda_stream *stream)
{
    fsdp_status status;

    if (stream->pieces.memory)
        return FSDP_OK;
    status = make(stream);
    if (status != FSDP_OK)
        fsdp__cuda_pieces_free(stream);
    return fsdp_fail_prefix(status, "no pinned memory of the host to copy through");
}

static char *piece_at(const fsdp__cuda_stream *stream, size_t number)
{
    return stream->pieces.memory + number % FSDP__CUDA_PIECES * FSDP__CUDA_PIECE_BYTES;
}

/* Ends the piece that is being filled, and waits until the device has read the next one. */
static fsdp_status turn(fsdp__cuda_stream *stream)
{
    const fsdp_device *device = stream->base.device;
    fsdp__cuda_pieces *p = &stream->pieces;

    FSDP__CUDA_TRY(device, cudaEventRecord(p->used[p->now], stream->native));
    p->now = (p->now + 1) % FSDP__CUDA_PIECES;
    p->filled = 0;
    FSDP__CUDA_TRY(device, cudaEventSynchronize(p->used[p->now])); /* at once, if it was never recorded */
    return FSDP_OK;
}

static fsdp_status pass_to_device(fsdp__cuda_stream *stream, char *dst, const char *src, size_t bytes)
{
    fsdp__cuda_pieces *p = &stream->pieces;

    for (size_t at = 0, run; at < bytes; at += run) {
        char *piece;

        if (p->filled == FSDP__CUDA_PIECE_BYTES)
            FSDP_TRY(turn(stream));
        piece = piece_at(stream, (size_t)p->now) + p->filled;
        run = FSDP__MIN(bytes - at, FSDP__CUDA_PIECE_BYTES - p->filled);
        memcpy(piece, src + at, run);
        FSDP_TRY(issue(stream, &(transfer){dst + at, piece, run, cudaMemcpyHostToDevice, false}));
        p->filled += FSDP__ROUND_UP(run, ALIGNMENT);
    }
    return FSDP_OK;
}

/* Lets the device fill a piece with the bytes from `src` on, at most `bytes`. */
static fsdp_status fetch(fsdp__cuda_stream *stream, size_t number, const char *src, size_t bytes)
{
    const fsdp_device *device = stream->base.device;

    FSDP_TRY(issue(stream, &(transfer){piece_at(stream, number), src, FSDP__MIN(bytes, FSDP__CUDA_PIECE_BYTES),
                                       cudaMemcpyDeviceToHost, false}));
    FSDP__CUDA_TRY(device, cudaEventRecord(stream->pieces.used[number % FSDP__CUDA_PIECES], stream->native));
    return FSDP_OK;
}

static fsdp_status pass_to_host(fsdp__cuda_stream *stream, char *dst, const char *src, size_t bytes)
{
    const size_t piece = FSDP__CUDA_PIECE_BYTES;
    size_t fetched = 0, pieces = (bytes + piece - 1) / piece;

    for (size_t n = 0; n < pieces; n++) {
        for (; fetched < FSDP__MIN(pieces, n + FSDP__CUDA_PIECES); fetched++)
            FSDP_TRY(fetch(stream, fetched, src + fetched * piece, bytes - fetched * piece));
        FSDP__CUDA_TRY(stream->base.device, cudaEventSynchronize(stream->pieces.used[n % FSDP__CUDA_PIECES]));
        FSDP_TRY(fsdp__cuda_alive(stream->base.device)); /* it may have been condemned meanwhile */
        memcpy(dst + n * piece, piece_at(stream, n), FSDP__MIN(bytes - n * piece, piece));
    }
    stream->pieces.filled = 0; /* all that was issued before is done, too */
    return FSDP_OK;
}

static fsdp_status pass(fsdp__cuda_stream *stream, const transfer *t)
{
    fsdp_status status = have_pieces(stream);

    if (status == FSDP_OK)
        status = t->kind == cudaMemcpyHostToDevice ? pass_to_device(stream, t->dst, t->src, t->bytes)
                                                   : pass_to_host(stream, t->dst, t->src, t->bytes);
    if (status != FSDP_OK && stream->pieces.memory) /* the next copy must not find the device at work in a piece */
        FSDP__CUDA_GIVE_BACK(stream->base.device, cudaStreamSynchronize(stream->native));
    return status;
}

/* ---- copies ---- */

static fsdp_status is_pinned(const fsdp_device *device, const void *host, bool *out)
{
    struct cudaPointerAttributes facts;

    FSDP__CUDA_TRY(device, cudaPointerGetAttributes(&facts, host));
    *out = facts.type != cudaMemoryTypeUnregistered;
    return FSDP_OK;
}

static fsdp_status copy(fsdp_stream *stream, const transfer *t)
{
    const fsdp_device *device = stream->device;

    FSDP_TRY(fsdp__cuda_use(device));
    for (size_t at = 0, run; at < t->bytes; at += run) {
        const char *host = (t->kind == cudaMemcpyHostToDevice ? t->src : t->dst) + at;
        transfer part = {t->dst + at, t->src + at, 0, t->kind, t->taken};
        bool pinned = false;

        run = part.bytes = fsdp__cuda_host_run(host, t->bytes - at);
        if (!t->taken)
            FSDP_TRY(is_pinned(device, host, &pinned));
        if (pinned)
            FSDP_TRY(issue((fsdp__cuda_stream *)stream, &part));
        else
            FSDP_TRY(pass((fsdp__cuda_stream *)stream, &part));
    }
    return FSDP_OK;
}

fsdp_status fsdp__cuda_copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    return copy(stream, &(transfer){device, host, bytes, cudaMemcpyHostToDevice, false});
}

fsdp_status fsdp__cuda_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    return copy(stream, &(transfer){host, device, bytes, cudaMemcpyDeviceToHost, false});
}

fsdp_status fsdp__cuda_hand_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    return copy(stream, &(transfer){device, host, bytes, cudaMemcpyHostToDevice, true});
}
