/* cudnn_calls.h - cuDNN's backend API, as far as attention is called by it: functions, numbers, and what answers mean.
 *
 * The numbers are those of cuDNN 9's headers, which the plug-in is built without: they seldom lie beside CUDA's. They
 * have been the same in all of cuDNN 9. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "fsdp/status.h"

/* The first version whose graphs of attention are known to be taken, as cudnnGetVersion() gives it: 9.10.0. */
#define FSDP__CUDNN_OLDEST 91000

typedef void *fsdp__cudnn_descriptor;

/* cudnn<name>; a handle is a pointer, a stream a cudaStream_t, and all other enums of its headers are ints. */
#define FSDP__CUDNN_MAP(X)                                                                      \
    X(int, Create, (void **))                                                                   \
    X(int, Destroy, (void *))                                                                   \
    X(int, SetStream, (void *, void *))                                                         \
    X(size_t, GetVersion, (void))                                                               \
    X(size_t, GetCudartVersion, (void))                                                         \
    X(const char *, GetErrorString, (int))                                                      \
    X(void, GetLastErrorString, (char *, size_t))                                               \
    X(int, BackendCreateDescriptor, (int, fsdp__cudnn_descriptor *))                            \
    X(int, BackendDestroyDescriptor, (fsdp__cudnn_descriptor))                                  \
    X(int, BackendSetAttribute, (fsdp__cudnn_descriptor, int, int, int64_t, const void *))      \
    X(int, BackendGetAttribute, (fsdp__cudnn_descriptor, int, int, int64_t, int64_t *, void *)) \
    X(int, BackendFinalize, (fsdp__cudnn_descriptor))                                           \
    X(int, BackendExecute, (void *, fsdp__cudnn_descriptor, fsdp__cudnn_descriptor))

typedef struct fsdp__cudnn {
#define FSDP__CUDNN_MEMBER(result, name, arguments) result(*name) arguments;
    FSDP__CUDNN_MAP(FSDP__CUDNN_MEMBER)
#undef FSDP__CUDNN_MEMBER
} fsdp__cudnn;

/* CUDNN_<name> is FSDP__CUDNN_<name> here. */
#define FSDP__CUDNN_NUMBERS(X)                            \
    X(STATUS_SUCCESS, 0)                                  \
    X(STATUS_NOT_SUPPORTED, 3000)                         \
    X(STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, 4003) \
    X(DATA_FLOAT, 0)                                      \
    X(DATA_HALF, 2)                                       \
    X(DATA_INT32, 4)                                      \
    X(DATA_BFLOAT16, 9)                                   \
    X(DATA_BOOLEAN, 11)                                   \
    X(TYPE_HANDLE, 0)                                     \
    X(TYPE_DATA_TYPE, 1)                                  \
    X(TYPE_BOOLEAN, 2)                                    \
    X(TYPE_INT64, 3)                                      \
    X(TYPE_VOID_PTR, 6)                                   \
    X(TYPE_HEUR_MODE, 8)                                  \
    X(TYPE_NUMERICAL_NOTE, 11)                            \
    X(TYPE_POINTWISE_MODE, 14)                            \
    X(TYPE_BACKEND_DESCRIPTOR, 15)                        \
    X(TYPE_REDUCTION_OPERATOR_TYPE, 18)                   \
    X(TYPE_CHAR, 24)                                      \
    X(BACKEND_POINTWISE_DESCRIPTOR, 0)                    \
    X(BACKEND_ENGINE_DESCRIPTOR, 2)                       \
    X(BACKEND_ENGINECFG_DESCRIPTOR, 3)                    \
    X(BACKEND_ENGINEHEUR_DESCRIPTOR, 4)                   \
    X(BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)               \
    X(BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)         \
    X(BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)              \
    X(BACKEND_VARIANT_PACK_DESCRIPTOR, 16)                \
    X(BACKEND_TENSOR_DESCRIPTOR, 17)                      \
    X(BACKEND_MATMUL_DESCRIPTOR, 18)                      \
    X(BACKEND_OPERATION_MATMUL_DESCRIPTOR, 19)            \
    X(BACKEND_REDUCTION_DESCRIPTOR, 21)                   \
    X(BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22)         \
    X(BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 31)           \
    X(BACKEND_DEVICEPROP_DESCRIPTOR, 38)                  \
    X(ATTR_POINTWISE_MODE, 0)                             \
    X(ATTR_POINTWISE_MATH_PREC, 1)                        \
    X(ATTR_POINTWISE_AXIS, 9)                             \
    X(ATTR_ENGINEHEUR_MODE, 200)                          \
    X(ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)               \
    X(ATTR_ENGINEHEUR_RESULTS, 202)                       \
    X(ATTR_ENGINEHEUR_DEVICEPROP, 204)                    \
    X(ATTR_ENGINECFG_ENGINE, 300)                         \
    X(ATTR_EXECUTION_PLAN_HANDLE, 400)                    \
    X(ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)             \
    X(ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)            \
    X(ATTR_EXECUTION_PLAN_DEVICEPROP, 407)                \
    X(ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750)        \
    X(ATTR_OPERATION_POINTWISE_XDESC, 751)                \
    X(ATTR_OPERATION_POINTWISE_BDESC, 752)                \
    X(ATTR_OPERATION_POINTWISE_YDESC, 753)                \
    X(ATTR_OPERATION_POINTWISE_TDESC, 758)                \
    X(ATTR_OPERATIONGRAPH_HANDLE, 800)                    \
    X(ATTR_OPERATIONGRAPH_OPS, 801)                       \
    X(ATTR_TENSOR_BYTE_ALIGNMENT, 900)                    \
    X(ATTR_TENSOR_DATA_TYPE, 901)                         \
    X(ATTR_TENSOR_DIMENSIONS, 902)                        \
    X(ATTR_TENSOR_STRIDES, 903)                           \
    X(ATTR_TENSOR_UNIQUE_ID, 906)                         \
    X(ATTR_TENSOR_IS_VIRTUAL, 907)                        \
    X(ATTR_TENSOR_IS_BY_VALUE, 908)                       \
    X(ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)                 \
    X(ATTR_VARIANT_PACK_DATA_POINTERS, 1001)              \
    X(ATTR_VARIANT_PACK_WORKSPACE, 1003)                  \
    X(ATTR_ENGINE_NUMERICAL_NOTE, 1303)                   \
    X(ATTR_MATMUL_COMP_TYPE, 1500)                        \
    X(ATTR_OPERATION_MATMUL_ADESC, 1520)                  \
    X(ATTR_OPERATION_MATMUL_BDESC, 1521)                  \
    X(ATTR_OPERATION_MATMUL_CDESC, 1522)                  \
    X(ATTR_OPERATION_MATMUL_DESC, 1523)                   \
    X(ATTR_REDUCTION_OPERATOR, 1600)                      \
    X(ATTR_REDUCTION_COMP_TYPE, 1601)                     \
    X(ATTR_OPERATION_REDUCTION_XDESC, 1610)               \
    X(ATTR_OPERATION_REDUCTION_YDESC, 1611)               \
    X(ATTR_OPERATION_REDUCTION_DESC, 1612)                \
    X(ATTR_OPERATION_RESHAPE_XDESC, 2200)                 \
    X(ATTR_OPERATION_RESHAPE_YDESC, 2201)                 \
    X(ATTR_DEVICEPROP_JSON_REPRESENTATION, 2702)          \
    X(POINTWISE_ADD, 0)                                   \
    X(POINTWISE_MUL, 1)                                   \
    X(POINTWISE_DIV, 6)                                   \
    X(POINTWISE_SUB, 9)                                   \
    X(POINTWISE_EXP, 13)                                  \
    X(POINTWISE_LOG, 15)                                  \
    X(POINTWISE_IDENTITY, 21)                             \
    X(POINTWISE_CMP_GT, 302)                              \
    X(POINTWISE_CMP_GE, 303)                              \
    X(POINTWISE_GEN_INDEX, 501)                           \
    X(POINTWISE_BINARY_SELECT, 601)                       \
    X(REDUCE_TENSOR_ADD, 0)                               \
    X(REDUCE_TENSOR_MAX, 3)                               \
    X(HEUR_MODE_A, 3)                                     \
    X(NUMERICAL_NOTE_NONDETERMINISTIC, 4)                 \
    X(NUMERICAL_NOTE_TYPE_COUNT, 10)

enum {
#define FSDP__CUDNN_NUMBER(name, value) FSDP__CUDNN_##name = (value),
    FSDP__CUDNN_NUMBERS(FSDP__CUDNN_NUMBER)
#undef FSDP__CUDNN_NUMBER
};

/* Opens the library, finds its functions and refuses one that is too old. */
fsdp_status fsdp__cudnn_open(fsdp__cudnn *out);
/* Turns the answer of a call into a status. */
fsdp_status fsdp__cudnn_check(const fsdp__cudnn *cudnn, int answer, const char *call, const char *file, int line);

/* Calls a function of cuDNN that answers with a status; a status of ours. */
#define FSDP__CUDNN_CALL(cudnn, name, ...) \
    fsdp__cudnn_check((cudnn), (cudnn)->name(__VA_ARGS__), "cudnn" #name, __FILE__, __LINE__)
