/* nccl_calls.h - NCCL, NVIDIA's library of collectives: its functions, its numbers, and what its answers mean.
 *
 * They are those of its header, which the plug-in is built without: it comes with no toolkit. They have been the same
 * since 2.20. */
#pragma once

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stddef.h>

#include "fsdp/status.h"

/* Versions as ncclGetVersion gives them: the oldest that will do, and the first with windows, with ncclAlltoAll, and
 * with collectives by copy engines. */
#define FSDP__NCCL_OLDEST 22000
#define FSDP__NCCL_WINDOWS 22700
#define FSDP__NCCL_ALL_TO_ALL 22800
#define FSDP__NCCL_COPIES 22800

typedef struct ncclComm fsdp__nccl_comm;
typedef struct ncclWindow_vidmem fsdp__nccl_window;

typedef struct fsdp__nccl_id {
    char bytes[128];
} fsdp__nccl_id;

/* Declares the beginning of ncclConfig_t. NCCL takes as many bytes of it as `size` says, of these what a library of
 * `version` has, and its own defaults for the rest. */
typedef struct fsdp__nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
    int traffic_class; /* what follows is since FSDP__NCCL_WINDOWS */
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share, nvls_ctas;
} fsdp__nccl_config;

#define FSDP__NCCL_CONFIG_MAGIC 0xcafebeefu
#define FSDP__NCCL_UNDEFINED INT_MIN

/* nccl<name>; enums are ints, and a communicator is called comm. */
#define FSDP__NCCL_MAP(X)                                                                                           \
    X(int, GetVersion, (int *version))                                                                              \
    X(int, GetUniqueId, (fsdp__nccl_id * id))                                                                       \
    X(int, CommInitRankConfig,                                                                                      \
      (fsdp__nccl_comm * *comm, int ranks, fsdp__nccl_id id, int rank, fsdp__nccl_config *config))                  \
    X(int, CommGetAsyncError, (fsdp__nccl_comm * comm, int *error))                                                 \
    X(int, CommFinalize, (fsdp__nccl_comm * comm))                                                                  \
    X(int, CommDestroy, (fsdp__nccl_comm * comm))                                                                   \
    X(int, CommAbort, (fsdp__nccl_comm * comm))                                                                     \
    X(int, MemAlloc, (void **memory, size_t bytes))                                                                 \
    X(int, MemFree, (void *memory))                                                                                 \
    X(int, CommRegister, (fsdp__nccl_comm * comm, void *memory, size_t bytes, void **handle))                       \
    X(int, CommDeregister, (fsdp__nccl_comm * comm, void *handle))                                                  \
    X(const char *, GetErrorString, (int error))                                                                    \
    X(const char *, GetLastError, (fsdp__nccl_comm * comm))                                                         \
    X(int, GroupStart, (void))                                                                                      \
    X(int, GroupEnd, (void))                                                                                        \
    X(int, AllGather,                                                                                               \
      (const void *send, void *recv, size_t count, int type, fsdp__nccl_comm *comm, cudaStream_t stream))           \
    X(int, ReduceScatter,                                                                                           \
      (const void *send, void *recv, size_t count, int type, int op, fsdp__nccl_comm *comm, cudaStream_t stream))   \
    X(int, AllReduce,                                                                                               \
      (const void *send, void *recv, size_t count, int type, int op, fsdp__nccl_comm *comm, cudaStream_t stream))   \
    X(int, Broadcast,                                                                                               \
      (const void *send, void *recv, size_t count, int type, int root, fsdp__nccl_comm *comm, cudaStream_t stream)) \
    X(int, Send, (const void *send, size_t count, int type, int peer, fsdp__nccl_comm *comm, cudaStream_t stream))  \
    X(int, Recv, (void *recv, size_t count, int type, int peer, fsdp__nccl_comm *comm, cudaStream_t stream))
/* Lists the functions since FSDP__NCCL_WINDOWS, and those since FSDP__NCCL_ALL_TO_ALL. */
#define FSDP__NCCL_WINDOWS_MAP(X)                                                                  \
    X(int, CommWindowRegister,                                                                     \
      (fsdp__nccl_comm * comm, void *memory, size_t bytes, fsdp__nccl_window **window, int flags)) \
    X(int, CommWindowDeregister, (fsdp__nccl_comm * comm, fsdp__nccl_window * window))
#define FSDP__NCCL_ALL_TO_ALL_MAP(X) \
    X(int, AlltoAll, (const void *send, void *recv, size_t count, int type, fsdp__nccl_comm *comm, cudaStream_t stream))

typedef struct fsdp__nccl {
#define FSDP__NCCL_MEMBER(result, name, arguments) result(*name) arguments;
    FSDP__NCCL_MAP(FSDP__NCCL_MEMBER)
    FSDP__NCCL_WINDOWS_MAP(FSDP__NCCL_MEMBER) /* NULL where the library is older, as the next */
    FSDP__NCCL_ALL_TO_ALL_MAP(FSDP__NCCL_MEMBER)
#undef FSDP__NCCL_MEMBER
    int version;
} fsdp__nccl;

/* nccl<name> is FSDP__NCCL_<name> here. */
#define FSDP__NCCL_NUMBERS(X) \
    X(Success, 0)             \
    X(UnhandledCudaError, 1)  \
    X(SystemError, 2)         \
    X(InternalError, 3)       \
    X(InvalidArgument, 4)     \
    X(InvalidUsage, 5)        \
    X(RemoteError, 6)         \
    X(InProgress, 7)          \
    X(Sum, 0)                 \
    X(Max, 2)                 \
    X(Min, 3)                 \
    X(Uint8, 1)               \
    X(Int32, 2)               \
    X(Int64, 4)               \
    X(Float16, 6)             \
    X(Float32, 7)             \
    X(Bfloat16, 9)

/* Repeats NCCL_WIN_COLL_SYMMETRIC and NCCL_CTA_POLICY_ZERO, which are macros there. */
enum {
    FSDP__NCCL_SYMMETRIC = 1,
    FSDP__NCCL_ZERO_CTAS = 2
};

enum {
#define FSDP__NCCL_NUMBER(name, value) FSDP__NCCL_##name = (value),
    FSDP__NCCL_NUMBERS(FSDP__NCCL_NUMBER)
#undef FSDP__NCCL_NUMBER
};

/* Opens the library, finds its functions and refuses one that is too old. */
fsdp_status fsdp__nccl_open(fsdp__nccl *out);
/* Turns an answer into a status: that of work in progress is FSDP_OK. `comm`: NULL where there is none. */
fsdp_status fsdp__nccl_check(const fsdp__nccl *nccl, fsdp__nccl_comm *comm, int answer, const char *call,
                             const char *file, int line);

/* Calls a function of NCCL that answers with a result; a status of ours. */
#define FSDP__NCCL_CALL(nccl, comm, name, ...) \
    fsdp__nccl_check((nccl), (comm), (nccl)->name(__VA_ARGS__), "nccl" #name, __FILE__, __LINE__)
