/* fake_device.c - devices, errors, and calls that fail on demand. */
#include <cuda.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/fakecuda/fake.h"

enum {
    SHARED_BYTES = 48 << 10
};

typedef struct counted {
    _Atomic long uses, nth;
    _Atomic int error;
    _Atomic bool lost, failed;
} counted;

static counted calls[FAKE_CALLS];
static _Atomic int lost[FAKE_DEVICES]; /* the error that a device was lost with */
static _Atomic size_t memory;          /* 0: as the environment says */
static _Thread_local int current;
static _Thread_local cudaError_t last;

static const char *const names[] = {
#define NAME(name) #name,
    FAKECUDA_CALLS(NAME)
#undef NAME
        NULL};

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text ? strtol(text, NULL, 10) : otherwise;
}

/* ---- faults ---- */

static counted *call_of(const char *name)
{
    for (int call = 0; call < FAKE_CALLS; call++)
        if (strcmp(names[call], name) == 0)
            return &calls[call];
    fprintf(stderr, "fakecuda: there is no call '%s'\n", name);
    abort();
}

static void fail(const char *name, long nth, int error, bool is_lost)
{
    counted *c = call_of(name);

    c->uses = 0;
    c->error = error;
    c->lost = is_lost;
    c->failed = false;
    c->nth = nth;
}

static long uses(const char *name)
{
    return call_of(name)->uses;
}

static bool failed(const char *name)
{
    return call_of(name)->failed;
}

static void mend(void)
{
    bool was_lost = false;

    for (int call = 0; call < FAKE_CALLS; call++)
        calls[call].nth = 0;
    for (int d = 0; d < FAKE_DEVICES; d++)
        was_lost = atomic_exchange(&lost[d], 0) != 0 || was_lost;
    if (was_lost) {
        fake_forget_streams();
        fake_forget_memory();
    }
}

/* Reads FSDP_FAKECUDA_FAIL. */
__attribute__((constructor)) static void fail_by_environment(void)
{
    const char *text = getenv("FSDP_FAKECUDA_FAIL");
    char name[64], more[8] = "";
    long nth;
    int error;

    if (text && sscanf(text, "%63[^:]:%ld:%d:%7s", name, &nth, &error, more) >= 3)
        fail(name, nth, error, strcmp(more, "lost") == 0);
}

int fake_use(fake_call call)
{
    counted *c = &calls[call];
    long use = atomic_fetch_add(&c->uses, 1) + 1;

    if (use != c->nth)
        return 0;
    if (c->error == FAKECUDA_DIES)
        (void)raise(SIGKILL);
    c->failed = true;
    if (c->lost)
        fake_lose(current, call >= FAKE_cublasLtCreate && call <= FAKE_cublasLtMatmul ? cudaErrorLaunchFailure
                                                                                      : (cudaError_t)c->error);
    if (c->lost && call != FAKE_kernel)
        fake_device_wait(current);
    return c->error;
}

/* Whoever hears that a device is lost may rely on it that nothing runs there any more. */
cudaError_t fake_begin(fake_call call)
{
    int error = fake_use(call);

    if (error == 0 && lost[current] && call != FAKE_kernel)
        fake_device_wait(current);
    return fake_error(error ? (cudaError_t)error : (cudaError_t)lost[current]);
}

void fake_lose(int device, cudaError_t error)
{
    int none = 0;

    atomic_compare_exchange_strong(&lost[device], &none, (int)error);
}

bool fake_is_lost(int device)
{
    return lost[device] != 0;
}

cudaError_t fake_error(cudaError_t error)
{
    if (error != cudaSuccess)
        last = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last;

    last = cudaSuccess;
    return lost[current] ? (cudaError_t)lost[current] : error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return lost[current] ? (cudaError_t)lost[current] : last;
}

/* ---- facts, which a lost device has, too ---- */

/* Table "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide. */
size_t fake_shared_bytes(void)
{
    long capability = setting("FSDP_FAKECUDA_CAPABILITY", 90);

    return (size_t)(capability == 86 || capability == 89 || capability >= 120 ? 99
                    : capability == 80 || capability == 87                    ? 163
                                                                              : 227)
           << 10;
}

#define FACT_BEGIN(call)                           \
    do {                                           \
        int begun = fake_use(FAKE_##call);         \
                                                   \
        if (begun)                                 \
            return fake_error((cudaError_t)begun); \
    } while (0)

static int count(void)
{
    long devices = setting("FSDP_FAKECUDA_DEVICES", 2);

    return devices < FAKE_DEVICES ? (int)devices : FAKE_DEVICES;
}

int fake_current(void)
{
    return current;
}

void fake_set_current(int device)
{
    current = device;
}

size_t fake_capacity(int device)
{
    (void)device;
    return memory ? memory : (size_t)setting("FSDP_FAKECUDA_MEMORY", 4L << 30);
}

static void set_memory(size_t bytes)
{
    memory = bytes;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    FACT_BEGIN(cudaDriverGetVersion);
    *version = (int)setting("FSDP_FAKECUDA_DRIVER", CUDART_VERSION);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    FACT_BEGIN(cudaRuntimeGetVersion);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* A driver of the runtime's major version, or a later one, will do. */
cudaError_t cudaGetDeviceCount(int *out)
{
    FACT_BEGIN(cudaGetDeviceCount);
    if (setting("FSDP_FAKECUDA_DRIVER", CUDART_VERSION) < CUDART_VERSION / 1000 * 1000)
        return fake_error(cudaErrorInsufficientDriver);
    if (count() == 0)
        return fake_error(cudaErrorNoDevice);
    *out = count();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    long capability = setting("FSDP_FAKECUDA_CAPABILITY", 90);
    const char *name = getenv("FSDP_FAKECUDA_NAME");

    FACT_BEGIN(cudaGetDeviceProperties);
    if (device < 0 || device >= count())
        return fake_error(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "%s", name ? name : "fake GPU");
    prop->totalGlobalMem = fake_capacity(device);
    prop->major = (int)capability / 10;
    prop->minor = (int)capability % 10;
    prop->multiProcessorCount = 132;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->sharedMemPerBlock = SHARED_BYTES;
    prop->sharedMemPerBlockOptin = fake_shared_bytes();
    prop->unifiedAddressing = 1;
    prop->memoryPoolsSupported = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    long capability = setting("FSDP_FAKECUDA_CAPABILITY", 90);

    FACT_BEGIN(cudaDeviceGetAttribute);
    if (device < 0 || device >= count())
        return fake_error(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMemoryPoolsSupported:
        *value = 1;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = (int)capability / 10;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = (int)capability % 10;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = 132;
        return cudaSuccess;
    case cudaDevAttrClockRate:
        *value = 1980000;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)fake_shared_bytes();
        return cudaSuccess;
    default:
        return fake_error(cudaErrorInvalidValue);
    }
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= count())
        return fake_error(cudaErrorInvalidDevice);
    current = device;
    FAKE_BEGIN(cudaSetDevice);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    size_t capacity = fake_capacity(current), used = fake_used(current);

    FAKE_BEGIN(cudaMemGetInfo);
    *total = capacity;
    *free_bytes = used < capacity ? capacity - used : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    fake_device_wait(current);
    return fake_begin(FAKE_cudaDeviceSynchronize);
}

/* ---- the driver's functions ---- */

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
#define ENTRY(name)                    \
    {                                  \
#name, (void *)(uintptr_t)name \
    }
    const struct {
        const char *name;
        void *function;
    } entries[] = {ENTRY(cuMemGetAllocationGranularity),
                   ENTRY(cuMemAddressReserve),
                   ENTRY(cuMemAddressFree),
                   ENTRY(cuMemCreate),
                   ENTRY(cuMemRelease),
                   ENTRY(cuMemMap),
                   ENTRY(cuMemUnmap),
                   ENTRY(cuMemSetAccess),
                   {"cuStreamWriteValue32", fake_words() ? (void *)(uintptr_t)cuStreamWriteValue32 : NULL},
                   {"cuStreamWaitValue32", fake_words() ? (void *)(uintptr_t)cuStreamWaitValue32 : NULL}};

    FAKE_BEGIN(cudaGetDriverEntryPointByVersion);
    (void)version, (void)flags;
    *out = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (strcmp(entries[i].name, symbol) == 0)
            *out = entries[i].function;
    *result = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/* ---- texts ---- */

#define ERRORS(X)                                                                                          \
    X(cudaSuccess, "no error")                                                                             \
    X(cudaErrorInvalidValue, "invalid argument")                                                           \
    X(cudaErrorMemoryAllocation, "out of memory")                                                          \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                     \
    X(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version")         \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                             \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                                    \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                           \
    X(cudaErrorNotReady, "device not ready")                                                               \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                 \
    X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped") \
    X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")       \
    X(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")                                 \
    X(cudaErrorDeviceUninitialized, "invalid device context")                                              \
    X(cudaErrorNotSupported, "operation not supported")                                                    \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                                \
    X(cudaErrorECCUncorrectable, "uncorrectable ECC error encountered")                                    \
    X(cudaErrorUnknown, "unknown error")

const char *cudaGetErrorName(cudaError_t error)
{
    switch ((int)error) {
#define CASE(name, text) \
    case name:           \
        return #name;
        ERRORS(CASE)
#undef CASE
    default:
        return "unrecognized error code";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch ((int)error) {
#define CASE(name, text) \
    case name:           \
        return text;
        ERRORS(CASE)
#undef CASE
    default:
        return "unrecognized error code";
    }
}

/* ---- what tests ask ---- */

static void lose_now(int device)
{
    fake_lose(device, cudaErrorIllegalAddress);
}

static long live(char *text, size_t bytes)
{
    long ranges = fake_ranges(), others = fake_streams_and_events();

    snprintf(text, bytes, "%ld pieces of memory, %ld streams and events", ranges, others);
    return ranges + others;
}

const fakecuda_control fakecuda = {
    .calls = names,
    .fail_call = fail,
    .uses = uses,
    .failed = failed,
    .mend = mend,
    .set_memory = set_memory,
    .live = live,
    .peak = fake_peak,
    .copies = fake_copies,
    .set_clock_rate = fake_set_clock_rate,
    .skip_time = fake_skip_time,
    .waits = fake_stream_waits,
    .hold = fake_stream_hold,
    .lose = lose_now,
    .slow_words = fake_slow_words,
};
