/* control.h - what a test may ask of the fake CUDA runtime.
 *
 * tests/backend/fakecuda is the part of NVIDIA's runtime that the plug-in calls, compiled against the real headers: its
 * devices are threads and memory of this machine. It is a library beside the tests (libfakecudart.so), and with the
 * plug-in's own files it makes a second libfsdp-cuda.so there. Products (fake_blas.c), attention (fake_cudnn.c),
 * the record of what runs (fake_cupti.c) and collectives (fake_nccl.c) are libraries of their own, as NVIDIA's are.
 * What a device is, it takes from the environment:
 *
 *   FSDP_FAKECUDA_DEVICES=2                  how many there are
 *   FSDP_FAKECUDA_DRIVER=13000               the driver's version; 0: there is none
 *   FSDP_FAKECUDA_CAPABILITY=90              the compute capability, ten times
 *   FSDP_FAKECUDA_NAME="NVIDIA H200"         its name
 *   FSDP_FAKECUDA_MEMORY=N                   bytes of each device
 *   FSDP_FAKECUDA_MAPPING=0                  the driver cannot map memory
 *   FSDP_FAKECUDA_IPC=0                      there are no handles of memory for other processes
 *   FSDP_FAKECUDA_WORDS=0                    streams do not wait for words
 *   FSDP_FAKECUDA_QUEUES=1                   how many queues of the hardware the streams of a device share; a queue
 *                                            does one thing after the other; 0: each stream has its own
 *   FSDP_FAKECUDA_ROOM=1024                  how much work a stream takes that it has not done; a call that gives it
 * more waits until there is room, as a driver's does FSDP_FAKECUDA_FAIL=call:n:error[:lost]   fail_call below, for
 * programs FSDP_FAKECUDA_PEERS=0                    no device reaches the memory of another one
 *   FSDP_FAKECUDA_PEERS=0-1,0-2              these pairs do not
 *   FSDP_FAKENVML_LINKS=18                   how many links of NVLink each has, by NVML; not set: there is no NVML
 *   FSDP_FAKENVML_WITHOUT=0-1,0-2            and which pairs have none
 *   FSDP_FAKENCCL_VERSION=23007              the version of NCCL
 *   FSDP_FAKENCCL_OTHER=1=22809              and of rank 1 (RANK), which has another
 *   FSDP_FAKENCCL_DIES=1                     rank 1 (RANK) is killed when it makes a window
 *   FSDP_FAKENCCL_TAKES=32                   it registers, and makes windows, only of memory of so many MiB
 *   FSDP_FAKENCCL_TELL=1                     says on stderr which calls hang because they differ
 *   FSDP_SIM_SEED=1                          decides where streams pause */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* The functions that can fail; `kernel` is a kernel when it runs. Those of cublasLt fail with a cublasStatus_t, those
 * of cuDNN with a cudnnStatus_t, those of CUPTI with a CUptiResult, those of NCCL with an ncclResult_t, which
 * ncclCommGetAsyncError gives as the communicator's; `ncclCopies` is a collective that copy engines do, and does not
 * fail. A `record` of something that ran is dropped by error 1, which is counted, and lost by error 2, which nobody is
 * told. */
#define FAKECUDA_CALLS(X)                     \
    X(cudaDriverGetVersion)                   \
    X(cudaRuntimeGetVersion)                  \
    X(cudaGetDeviceCount)                     \
    X(cudaGetDeviceProperties)                \
    X(cudaDeviceGetAttribute)                 \
    X(cudaSetDevice)                          \
    X(cudaMemGetInfo)                         \
    X(cudaDeviceSynchronize)                  \
    X(cudaMalloc)                             \
    X(cudaFree)                               \
    X(cudaGetDriverEntryPointByVersion)       \
    X(cuMemGetAllocationGranularity)          \
    X(cuMemAddressReserve)                    \
    X(cuMemAddressFree)                       \
    X(cuMemCreate)                            \
    X(cuMemRelease)                           \
    X(cuMemMap)                               \
    X(cuMemUnmap)                             \
    X(cuMemSetAccess)                         \
    X(cudaIpcGetMemHandle)                    \
    X(cudaIpcOpenMemHandle)                   \
    X(cudaIpcCloseMemHandle)                  \
    X(cudaDeviceCanAccessPeer)                \
    X(cudaDeviceEnablePeerAccess)             \
    X(cudaDeviceGetPCIBusId)                  \
    X(cudaDeviceGetByPCIBusId)                \
    X(cuStreamWriteValue32)                   \
    X(cuStreamWaitValue32)                    \
    X(cudaMallocAsync)                        \
    X(cudaFreeAsync)                          \
    X(cudaHostAlloc)                          \
    X(cudaFreeHost)                           \
    X(cudaHostRegister)                       \
    X(cudaHostUnregister)                     \
    X(cudaPointerGetAttributes)               \
    X(cudaMemcpyAsync)                        \
    X(cudaMemsetAsync)                        \
    X(cudaStreamCreateWithPriority)           \
    X(cudaDeviceGetStreamPriorityRange)       \
    X(cudaStreamDestroy)                      \
    X(cudaStreamSynchronize)                  \
    X(cudaStreamQuery)                        \
    X(cudaStreamWaitEvent)                    \
    X(cudaEventCreateWithFlags)               \
    X(cudaEventDestroy)                       \
    X(cudaEventRecord)                        \
    X(cudaEventSynchronize)                   \
    X(cudaEventQuery)                         \
    X(cudaEventElapsedTime)                   \
    X(cudaLaunchKernel)                       \
    X(cudaFuncSetAttribute)                   \
    X(cublasLtCreate)                         \
    X(cublasLtDestroy)                        \
    X(cublasLtMatmulDescCreate)               \
    X(cublasLtMatmulDescDestroy)              \
    X(cublasLtMatmulDescSetAttribute)         \
    X(cublasLtMatrixLayoutCreate)             \
    X(cublasLtMatrixLayoutDestroy)            \
    X(cublasLtMatrixLayoutSetAttribute)       \
    X(cublasLtMatmulPreferenceCreate)         \
    X(cublasLtMatmulPreferenceDestroy)        \
    X(cublasLtMatmulPreferenceSetAttribute)   \
    X(cublasLtMatmulAlgoGetHeuristic)         \
    X(cublasLtMatmulAlgoInit)                 \
    X(cublasLtMatmulAlgoConfigSetAttribute)   \
    X(cublasLtMatmulAlgoConfigGetAttribute)   \
    X(cublasLtMatmulAlgoCheck)                \
    X(cublasLtMatmul)                         \
    X(cudnnCreate)                            \
    X(cudnnBackendCreateDescriptor)           \
    X(cudnnBackendSetAttribute)               \
    X(cudnnBackendGetAttribute)               \
    X(cudnnBackendFinalize)                   \
    X(cudnnBackendExecute)                    \
    X(cuptiActivityRegisterTimestampCallback) \
    X(cuptiActivityRegisterCallbacks)         \
    X(cuptiActivityEnable)                    \
    X(cuptiActivityFlushAll)                  \
    X(cuptiFinalize)                          \
    X(ncclGetVersion)                         \
    X(ncclGetUniqueId)                        \
    X(ncclCommInitRankConfig)                 \
    X(ncclCommGetAsyncError)                  \
    X(ncclCommFinalize)                       \
    X(ncclCommDestroy)                        \
    X(ncclCommAbort)                          \
    X(ncclGroupStart)                         \
    X(ncclGroupEnd)                           \
    X(ncclAllGather)                          \
    X(ncclReduceScatter)                      \
    X(ncclAllReduce)                          \
    X(ncclBroadcast)                          \
    X(ncclAlltoAll)                           \
    X(ncclCommRegister)                       \
    X(ncclCommDeregister)                     \
    X(ncclCommWindowRegister)                 \
    X(ncclCommWindowDeregister)               \
    X(ncclMemAlloc)                           \
    X(ncclMemFree)                            \
    X(ncclCopies)                             \
    X(ncclSend)                               \
    X(ncclRecv)                               \
    X(record)                                 \
    X(kernel)

/* For fail_call: the process is killed in the call. */
enum {
    FAKECUDA_DIES = -1
};

typedef struct fakecuda_copies {
    long to_device, to_host;
} fakecuda_copies;

typedef struct fakecuda_control {
    const char *const *calls; /* their names; ends with NULL */
    /* Makes the n-th use (from 1, counted from now on) of a call fail with this error (a cudaError_t); 0: none does.
     * `lost`: what comes after it on the same device fails in the same way, until it is mended. */
    void (*fail_call)(const char *call, long nth, int error, bool lost);
    long (*uses)(const char *call); /* since `fail_call` was called for it */
    bool (*failed)(const char *call);
    /* Lets all calls succeed again. If a device was lost, it is whole again, and all memory, streams and events are
     * gone, as in a new process: nobody may use them any more. */
    void (*mend)(void);
    /* Sets the memory of each device; 0: what the environment says. */
    void (*set_memory)(size_t bytes);
    /* Returns how many allocations, registrations, streams and events there are, and says so in `text`. */
    long (*live)(char *text, size_t bytes);
    /* Returns the most bytes that a device has given out since this was last called. */
    size_t (*peak)(int device);
    /* Returns how many copies have gone to the device and to the host since this was last called for the same kind of
     * the host's memory. */
    fakecuda_copies (*copies)(bool pinned);
    /* Lets the devices' clocks run so many millionths faster than the host's. */
    void (*set_clock_rate)(long millionths);
    /* Puts the devices' clocks forward. */
    void (*skip_time)(long long ns);
    /* Returns whether a stream waits for another one's event, or another device's word or collective, now. */
    bool (*waits)(void *stream);
    /* Makes a stream (a cudaStream_t) wait until `*open` is not 0. */
    void (*hold)(void *stream, const atomic_int *open);
    /* Loses a device now: what it was given and has not done, it does not do any more. `mend` makes it whole. */
    void (*lose)(int device);
    /* Lets a call that writes a word by the stream take so much longer, before it gives anything to the device. */
    void (*slow_words)(void *stream, long ns);
} fakecuda_control;

extern const fakecuda_control fakecuda;
