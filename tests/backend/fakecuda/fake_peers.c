/* fake_peers.c - memory that other devices and processes reach, and words by which streams wait.
 *
 * A handle names the file of the memory in its process, so ranks that are processes share it. A stream that waits for a
 * word looks at it now and then, as long as its device is not lost. */
#include <cuda.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/fakecuda/fake.h"

enum {
    LOOK_NS = 20000
};

static bool is_off(const char *name)
{
    const char *text = getenv(name);

    return text && strcmp(text, "0") == 0;
}

static int devices(void)
{
    int count = 0;

    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

/* ---- other devices ---- */

static atomic_bool enabled[FAKE_DEVICES][FAKE_DEVICES];

bool fake_reaches(int device, int other)
{
    return device == other || enabled[device][other];
}

/* Returns whether the variable names two devices: "0-1,0-2". */
static bool names_pair(const char *variable, int one, int other)
{
    const char *text = getenv(variable);
    char pair[32];

    snprintf(pair, sizeof pair, "%d-%d", one < other ? one : other, one < other ? other : one);
    return text && strstr(text, pair);
}

cudaError_t cudaDeviceCanAccessPeer(int *out, int device, int other)
{
    FAKE_BEGIN(cudaDeviceCanAccessPeer);
    if (device < 0 || other < 0 || device >= devices() || other >= devices())
        return fake_error(cudaErrorInvalidDevice);
    *out = device != other && !is_off("FSDP_FAKECUDA_PEERS") && !names_pair("FSDP_FAKECUDA_PEERS", device, other);
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags)
{
    FAKE_BEGIN(cudaDeviceEnablePeerAccess);
    if (flags != 0 || other < 0 || other >= devices() || other == fake_current() || is_off("FSDP_FAKECUDA_PEERS"))
        return fake_error(cudaErrorInvalidDevice);
    return atomic_exchange(&enabled[fake_current()][other], true) ? fake_error(cudaErrorPeerAccessAlreadyEnabled)
                                                                  : cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device)
{
    FAKE_BEGIN(cudaDeviceGetPCIBusId);
    if (device < 0 || device >= devices() || snprintf(out, (size_t)bytes, "0000:%02x:00.0", device + 1) >= bytes)
        return fake_error(cudaErrorInvalidValue);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *out, const char *text)
{
    unsigned bus;

    FAKE_BEGIN(cudaDeviceGetByPCIBusId);
    if (sscanf(text, "0000:%2x:00.0", &bus) != 1 || bus < 1 || (int)bus > devices())
        return fake_error(cudaErrorInvalidDevice);
    *out = (int)bus - 1;
    return cudaSuccess;
}

/* ---- other processes ---- */

typedef struct handle {
    pid_t pid;
    int file;
    size_t bytes;
} handle;

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *pointer)
{
    handle h = {.pid = getpid()};

    FAKE_BEGIN(cudaIpcGetMemHandle);
    if (is_off("FSDP_FAKECUDA_IPC"))
        return fake_error(cudaErrorNotSupported);
    h.file = fake_file_of(pointer, &h.bytes);
    if (h.file < 0)
        return fake_error(cudaErrorInvalidValue);
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t name, unsigned flags)
{
    char path[64];
    handle h;
    int file;

    FAKE_BEGIN(cudaIpcOpenMemHandle);
    memcpy(&h, &name, sizeof h);
    if (flags != cudaIpcMemLazyEnablePeerAccess)
        return fake_error(cudaErrorInvalidValue);
    if (h.pid == getpid())
        return fake_error(cudaErrorDeviceUninitialized);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)h.pid, h.file);
    file = open(path, O_RDWR | O_CLOEXEC);
    return file < 0 ? fake_error(cudaErrorInvalidResourceHandle) : fake_import(file, h.bytes, out);
}

/* Waits for the device first, which may still read there. */
cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    cudaError_t begun = fake_begin(FAKE_cudaIpcCloseMemHandle);

    fake_device_wait(fake_current());
    return fake_give_up_import(pointer) ? begun : fake_error(cudaErrorInvalidValue);
}

/* ---- words ---- */

typedef struct use_of_word {
    uint32_t *word, value;
    int device;
} use_of_word;

static struct {
    void *_Atomic stream;
    _Atomic long ns;
} slow;

void fake_slow_words(void *stream, long ns)
{
    slow.ns = ns;
    slow.stream = stream;
}

bool fake_words(void)
{
    return !is_off("FSDP_FAKECUDA_WORDS");
}

static void write_word(const void *argument)
{
    const use_of_word *use = argument;

    __atomic_store_n(use->word, use->value, __ATOMIC_RELEASE);
}

static void await_word(const void *argument)
{
    const use_of_word *use = argument;

    fake_tell_wait(true);
    while ((int32_t)(__atomic_load_n(use->word, __ATOMIC_ACQUIRE) - use->value) < 0 && !fake_is_lost(use->device))
        (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    fake_tell_wait(false);
}

/* Only memory that is registered, or was allocated to be reached, has words. */
static CUresult queue(CUstream stream, CUdeviceptr address, uint32_t value, fake_work work)
{
    cudaStream_t native = (cudaStream_t)stream;
    fake_place place = fake_find((const void *)(uintptr_t)address, sizeof(uint32_t));
    use_of_word use = {place.mapped, value, 0};

    if (!fake_is_stream(native) || !place.found || !place.whole || address % sizeof(uint32_t) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    use.device = fake_stream_device(native);
    return (CUresult)fake_enqueue(native, work, &use, sizeof use, false);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    cudaError_t begun = fake_begin(FAKE_cuStreamWriteValue32);

    if (begun != cudaSuccess)
        return (CUresult)begun;
    if ((void *)stream == slow.stream)
        (void)nanosleep(&(struct timespec){.tv_nsec = slow.ns}, NULL);
    return flags == 0 ? queue(stream, address, value, write_word) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    cudaError_t begun = fake_begin(FAKE_cuStreamWaitValue32);

    if (begun != cudaSuccess)
        return (CUresult)begun;
    return flags == CU_STREAM_WAIT_VALUE_GEQ ? queue(stream, address, value, await_word) : CUDA_ERROR_INVALID_VALUE;
}
