/* cuda_error.c - what a failure of CUDA says, and what it does to the device. */
#include "backend/cuda/cuda_error.h"

#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda.h"
#include "base/text.h"

/* Keeps the first text. */
static void lose(fsdp__cuda_lost *lost, fsdp_status status, const char *text)
{
    pthread_mutex_lock(&lost->mutex);
    if (!atomic_load_explicit(&lost->is, memory_order_relaxed)) {
        lost->status = status;
        snprintf(lost->text, sizeof lost->text, "%s", text);
        atomic_store_explicit(&lost->is, true, memory_order_release);
    }
    pthread_mutex_unlock(&lost->mutex);
}

static void condemn(const fsdp_device *device, fsdp_status status, const char *text)
{
    char whole[FSDP__CUDA_TEXT];

    snprintf(whole, sizeof whole, "what device '%s' waited for does not come: %s", device->name, text);
    lose(&fsdp__cuda_state_of(device)->lost, status, whole);
}

void fsdp__cuda_condemn(fsdp_device *device, fsdp_status status, const char *text)
{
    condemn(device, status, text);
}

void fsdp__cuda_judge(fsdp_device *device, fsdp_status (*judge)(void *world), void *world)
{
    fsdp__cuda_lost *lost = &fsdp__cuda_state_of(device)->lost;

    pthread_mutex_lock(&lost->mutex);
    if (!atomic_load_explicit(&lost->judge, memory_order_relaxed)) {
        lost->world = world;
        atomic_store_explicit(&lost->judge, judge, memory_order_release);
    }
    pthread_mutex_unlock(&lost->mutex);
}

fsdp_status fsdp__cuda_alive(const fsdp_device *device)
{
    const fsdp__cuda_lost *lost = &fsdp__cuda_state_of(device)->lost;
    fsdp_status (*judge)(void *) = atomic_load_explicit(&lost->judge, memory_order_acquire);
    fsdp_status status;

    if (!atomic_load_explicit(&lost->is, memory_order_acquire)) {
        status = judge ? judge(lost->world) : FSDP_OK;
        if (status == FSDP_OK)
            return FSDP_OK;
        condemn(device, status, fsdp_last_error());
    }
    return FSDP_FAIL(lost->status, "%s", lost->text);
}

/* Says what is free on the card, where CUDA tells. */
static fsdp_status fail_memory(const fsdp_device *device, const char *call, const char *file, int line)
{
    int name = (int)strcspn(call, "(");
    size_t free_bytes = 0, bytes = 0;

    if (cudaMemGetInfo(&free_bytes, &bytes) == cudaSuccess)
        return fsdp_fail(FSDP_NO_MEMORY, file, line,
                         "%s has no memory left (%.*s: %s): %s of the card's %s are free, and other processes may hold "
                         "some (nvidia-smi lists them): end those, or take smaller batches or more ranks",
                         device->name, name, call, cudaGetErrorString(cudaErrorMemoryAllocation),
                         FSDP__SIZE(free_bytes), FSDP__SIZE(bytes));
    (void)cudaGetLastError();
    return fsdp_fail(FSDP_NO_MEMORY, file, line, "%s has no memory left (%.*s: %s)", device->name, name, call,
                     cudaGetErrorString(cudaErrorMemoryAllocation));
}

fsdp_status fsdp__cuda_check(const fsdp_device *device, cudaError_t error, const char *call, const char *file, int line)
{
    char text[FSDP__CUDA_TEXT];
    int name = (int)strcspn(call, "(");

    if (error == cudaSuccess)
        return FSDP_OK;
    (void)cudaGetLastError(); /* else the next call that asks for it takes this failure for its own */
    if (error == cudaErrorMemoryAllocation)
        return fail_memory(device, call, file, line);
    snprintf(
        text, sizeof text,
        "device '%s' has failed and cannot be used any more: %.*s: %s (%s, found at %s:%d; what failed may have been "
        "issued before: CUDA_LAUNCH_BLOCKING=1 in the environment makes the place exact); start the program again",
        device->name, name, call, cudaGetErrorString(error), cudaGetErrorName(error), file, line);
    lose(&fsdp__cuda_state_of(device)->lost, FSDP_STATE, text);
    return fsdp_fail(fsdp__cuda_state_of(device)->lost.status, file, line, "%s",
                     fsdp__cuda_state_of(device)->lost.text);
}

fsdp_status fsdp__cuda_check_host(const fsdp_device *device, cudaError_t error, const char *call, const char *file,
                                  int line)
{
    int name = (int)strcspn(call, "(");

    switch (error) {
    case cudaErrorMemoryAllocation:
        (void)cudaGetLastError();
        return fsdp_fail(FSDP_NO_MEMORY, file, line,
                         "the host, and not the card, has no memory left to pin for %s (%.*s: %s): free memory of this "
                         "machine, or raise the limit of its container",
                         device->name, name, call, cudaGetErrorString(error));
    case cudaErrorInvalidValue:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorNotPermitted:
    case cudaErrorNotSupported:
    case cudaErrorOperatingSystem:
        (void)cudaGetLastError();
        return fsdp_fail(FSDP_UNSUPPORTED, file, line, "this memory of the host cannot be pinned for %s (%.*s: %s)",
                         device->name, name, call, cudaGetErrorString(error));
    default:
        return fsdp__cuda_check(device, error, call, file, line);
    }
}

/* The program may have chosen another device in this thread, so nothing is remembered. */
fsdp_status fsdp__cuda_use(const fsdp_device *device)
{
    return fsdp__cuda_check(device, cudaSetDevice(device->ordinal), "cudaSetDevice", __FILE__, __LINE__);
}

void fsdp__cuda_given_back(const fsdp_device *device, cudaError_t error, const char *call, const char *file, int line)
{
    bool held = fsdp_hold_error(true);

    (void)fsdp__cuda_check(device, error, call, file, line);
    fsdp_release_error(held);
}
