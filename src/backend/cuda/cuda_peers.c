/* cuda_peers.c - memory that the GPUs of other ranks read, and words by which streams wait for each other.
 *
 * What is exported is cudaMalloc's, in one piece, because CUDA hands out handles of whole allocations alone. A rank of
 * the same process reads the memory where it is, and one of another process opens the handle. What the driver refuses
 * here loses no device: then collectives go another way. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "backend/cuda/cuda.h"
#include "base/compiler.h"

enum {
    STEP = 2 << 20, /* what is exported is whole pages of the GPU: a handle is of them */
    WORDS_VERSION = 12000
};

/* Holds the name of an export. */
typedef struct exported {
    int64_t pid;
    int32_t ordinal; /* in that process */
    bool opens;      /* there is a handle for other processes */
    char why[64];    /* there is none */
    cudaIpcMemHandle_t handle;
} exported;

_Static_assert(sizeof(exported) <= FSDP__EXPORT_NAME, "it has room there");

/* Turns what a call has returned into a status that loses no device. */
static fsdp_status refuse(const fsdp_device *device, cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return FSDP_OK;
    (void)cudaGetLastError();
    return FSDP_FAIL(error == cudaErrorMemoryAllocation ? FSDP_NO_MEMORY : FSDP_UNSUPPORTED, "%s: %s fails: %s (%s)",
                     device->name, call, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* ---- exports ---- */

static exported name_of(const fsdp__export *memory)
{
    exported name;

    memcpy(&name, memory->name, sizeof name);
    return name;
}

fsdp_status fsdp__cuda_export_alloc(fsdp_device *device, size_t bytes, fsdp__export *out)
{
    exported name = {.pid = getpid(), .ordinal = device->ordinal};
    cudaError_t error;

    *out = (fsdp__export){.bytes = FSDP__ROUND_UP(bytes, STEP)};
    FSDP_TRY(fsdp__cuda_use(device));
    FSDP_TRY(
        refuse(device, cudaDeviceGetPCIBusId(out->card, FSDP__EXPORT_CARD, device->ordinal), "cudaDeviceGetPCIBusId"));
    FSDP_TRY(refuse(device, cudaMalloc(&out->memory, out->bytes), "cudaMalloc"));
    error = cudaIpcGetMemHandle(&name.handle, out->memory);
    name.opens = error == cudaSuccess;
    if (!name.opens) {
        snprintf(name.why, sizeof name.why, "%s", cudaGetErrorName(error));
        (void)cudaGetLastError();
    }
    memcpy(out->name, &name, sizeof name);
    return FSDP_OK;
}

/* Of a lost device nobody knows what it still does; its streams wait for no other rank any more. */
static void await_if_lost(const fsdp_device *device)
{
    (void)fsdp__cuda_use(device);
    if (atomic_load(&fsdp__cuda_state_of(device)->lost.is))
        fsdp__cuda_await_streams(device);
}

void fsdp__cuda_export_free(fsdp_device *device, const fsdp__export *memory)
{
    await_if_lost(device);
    fsdp__cuda_give_back_memory(device, memory->memory);
}

/* ---- imports ---- */

/* Finds out whether the device reaches the memory of another one that this process sees. */
static fsdp_status check_reach(const fsdp_device *device, int ordinal, const char *card)
{
    int reaches = 0;

    if (ordinal == device->ordinal)
        return FSDP_OK;
    FSDP_TRY(refuse(device, cudaDeviceCanAccessPeer(&reaches, device->ordinal, ordinal), "cudaDeviceCanAccessPeer"));
    if (!reaches)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "%s cannot read the memory of the GPU %s: 'nvidia-smi topo -p2p r' shows "
                         "which can",
                         device->name, card);
    return FSDP_OK;
}

/* Reads the memory of another device of this process, or of this one, where it is. */
static fsdp_status reach(const fsdp_device *device, int ordinal)
{
    cudaError_t error;

    if (ordinal == device->ordinal)
        return FSDP_OK;
    error = cudaDeviceEnablePeerAccess(ordinal, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        return FSDP_OK;
    }
    return refuse(device, error, "cudaDeviceEnablePeerAccess");
}

static fsdp_status open_handle(const fsdp_device *device, const exported *name, const char *card, void **out)
{
    int ordinal = -1;

    if (!name->opens)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "the system gives no handle of a GPU's memory to other processes "
                         "(cudaIpcGetMemHandle: %s)",
                         name->why);
    if (cudaDeviceGetByPCIBusId(&ordinal, card) != cudaSuccess) {
        (void)cudaGetLastError();
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "this process does not see the GPU %s of another rank: CUDA_VISIBLE_DEVICES must name the "
                         "GPUs of all ranks of the machine",
                         card);
    }
    FSDP_TRY(check_reach(device, ordinal, card));
    FSDP_TRY(refuse(device, cudaIpcOpenMemHandle(out, name->handle, cudaIpcMemLazyEnablePeerAccess),
                    "cudaIpcOpenMemHandle"));
    return FSDP_OK;
}

fsdp_status fsdp__cuda_import_open(fsdp_device *device, const fsdp__export *theirs, void **out)
{
    exported name = name_of(theirs);
    char card[FSDP__EXPORT_CARD + 1] = "";

    *out = NULL;
    memcpy(card, theirs->card, FSDP__EXPORT_CARD);
    name.why[sizeof name.why - 1] = '\0';
    FSDP_TRY(fsdp__cuda_use(device));
    if (name.pid != getpid())
        return open_handle(device, &name, card, out);
    FSDP_TRY(check_reach(device, name.ordinal, card));
    FSDP_TRY(reach(device, name.ordinal));
    *out = theirs->memory;
    return FSDP_OK;
}

void fsdp__cuda_import_close(fsdp_device *device, const fsdp__export *theirs, void *memory)
{
    await_if_lost(device);
    if (name_of(theirs).pid == getpid())
        return;
    FSDP__CUDA_GIVE_BACK(device, cudaIpcCloseMemHandle(memory));
}

/* ---- words ---- */

static bool find(const char *name, void **place)
{
    enum cudaDriverEntryPointQueryResult found;

    return cudaGetDriverEntryPointByVersion(name, place, WORDS_VERSION, cudaEnableDefault, &found) == cudaSuccess &&
           found == cudaDriverEntryPointSuccess;
}

/* Gives the device's address of a word. */
static fsdp_status address_of(const fsdp_device *device, const uint32_t *word, CUdeviceptr *out)
{
    struct cudaPointerAttributes facts;

    FSDP__CUDA_TRY(device, cudaPointerGetAttributes(&facts, word));
    *out = (CUdeviceptr)(uintptr_t)facts.devicePointer;
    return FSDP_OK;
}

/* Writes a word and waits for it, on a stream of its own. */
static fsdp_status write_and_wait(const fsdp_device *device, cudaStream_t stream, CUdeviceptr word, uint32_t value)
{
    const fsdp__cuda_words *words = &fsdp__cuda_state_of(device)->words;

    FSDP_TRY(refuse(device, (cudaError_t)words->write((CUstream)stream, word, value, 0), "cuStreamWriteValue32"));
    FSDP_TRY(refuse(device, (cudaError_t)words->await((CUstream)stream, word, value, CU_STREAM_WAIT_VALUE_GEQ),
                    "cuStreamWaitValue32"));
    FSDP_TRY(refuse(device, cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
    return FSDP_OK;
}

fsdp_status fsdp__cuda_try_words(fsdp_device *device, uint32_t *word)
{
    fsdp__cuda_words *words = &fsdp__cuda_state_of(device)->words;
    cudaStream_t stream;
    CUdeviceptr address;
    fsdp_status status;

    FSDP_TRY(fsdp__cuda_use(device));
    if (!words->await && /* otherwise streams of another group may be calling them */
        (!find("cuStreamWriteValue32", (void **)&words->write) ||
         !find("cuStreamWaitValue32", (void **)&words->await))) {
        (void)cudaGetLastError();
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s: the driver's streams do not wait for words", device->name);
    }
    FSDP_TRY(address_of(device, word, &address));
    FSDP__CUDA_TRY(device, cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
    status = write_and_wait(device, stream, address, *word + 1);
    FSDP__CUDA_GIVE_BACK(device, cudaStreamDestroy(stream));
    return status;
}

/* Checks calls of the driver as FSDP__CUDA_TRY does those of CUDA: the numbers of their errors are the same. */
#define WORD_TRY(device, error, call) \
    FSDP_TRY(fsdp__cuda_check((device), (cudaError_t)(error), call, __FILE__, __LINE__))

fsdp_status fsdp__cuda_write_word(fsdp_stream *stream, uint32_t *word, uint32_t value)
{
    const fsdp_device *device = stream->device;
    const fsdp__cuda_words *words = &fsdp__cuda_state_of(device)->words;
    CUdeviceptr address = 0;

    FSDP_TRY(fsdp__cuda_use(device));
    FSDP_TRY(address_of(device, word, &address));
    WORD_TRY(device, words->write((CUstream)fsdp__cuda_native(stream), address, value, 0), "cuStreamWriteValue32");
    return FSDP_OK;
}

fsdp_status fsdp__cuda_await_word(fsdp_stream *stream, uint32_t *word, uint32_t value)
{
    const fsdp_device *device = stream->device;
    const fsdp__cuda_words *words = &fsdp__cuda_state_of(device)->words;
    CUdeviceptr address = 0;

    FSDP_TRY(fsdp__cuda_use(device));
    FSDP_TRY(address_of(device, word, &address));
    WORD_TRY(device, words->await((CUstream)fsdp__cuda_native(stream), address, value, CU_STREAM_WAIT_VALUE_GEQ),
             "cuStreamWaitValue32");
    return FSDP_OK;
}
