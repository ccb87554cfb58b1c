/* fake_driver.c - a CUDA driver that takes whatever kernels it is given: driver/libcuda.so.1 beside the tests. With it
 * the real cuDNN makes plans where there is no GPU (test_cuda_attention_fast.c), for a card that it is told of. It
 * compiles their kernels, and asks the driver to load them: so that succeeds here, and nothing can be launched. */
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    NOT_HERE = 34, /* CUDA_ERROR_STUB_LIBRARY */
    VERSION = 13000,
    SOMETHING = 0x10 /* for pointers that nobody follows */
};

#define SUCCEEDS(X) X(cuInit) X(cuKernelSetAttribute) X(cuFuncSetAttribute) X(cuLibraryUnload) X(cuModuleUnload)
#define FAILS(X)                          \
    X(cuCtxGetCurrent)                    \
    X(cuCtxGetDevice)                     \
    X(cuCtxGetLimit)                      \
    X(cuCtxPopCurrent)                    \
    X(cuCtxPushCurrent)                   \
    X(cuDeviceGet)                        \
    X(cuDeviceGetAttribute)               \
    X(cuDeviceGetCount)                   \
    X(cuDevicePrimaryCtxRelease)          \
    X(cuDevicePrimaryCtxReset)            \
    X(cuDevicePrimaryCtxRetain)           \
    X(cuGetExportTable)                   \
    X(cuLaunchCooperativeKernel)          \
    X(cuLaunchKernel)                     \
    X(cuLaunchKernelEx)                   \
    X(cuLibraryLoadFromFile)              \
    X(cuLinkAddData)                      \
    X(cuLinkAddData_v2)                   \
    X(cuLinkAddFile_v2)                   \
    X(cuLinkComplete)                     \
    X(cuLinkCreate)                       \
    X(cuLinkCreate_v2)                    \
    X(cuLinkDestroy)                      \
    X(cuMemcpyDtoH_v2)                    \
    X(cuModuleLoadDataEx)                 \
    X(cuModuleLoadFatBinary)              \
    X(cuOccupancyMaxPotentialClusterSize) \
    X(cuStreamGetCtx)                     \
    X(cuStreamSynchronize)                \
    X(cuTensorMapEncodeTiled)

#define YES(name)          \
    EXPORT int name(void); \
    int name(void)         \
    {                      \
        return 0;          \
    }
SUCCEEDS(YES)
#define NO(name)           \
    EXPORT int name(void); \
    int name(void)         \
    {                      \
        return NOT_HERE;   \
    }
FAILS(NO)

/* ---- what is answered by a pointer or a number ---- */

#define GIVES(name)                         \
    EXPORT int name(void **out);            \
    int name(void **out)                    \
    {                                       \
        *out = (void *)(intptr_t)SOMETHING; \
        return 0;                           \
    }
GIVES(cuLibraryLoadData)
GIVES(cuLibraryGetKernel)
GIVES(cuModuleLoadData)
GIVES(cuModuleGetFunction)

#define COUNTS(name, value)    \
    EXPORT int name(int *out); \
    int name(int *out)         \
    {                          \
        *out = (value);        \
        return 0;              \
    }
COUNTS(cuDriverGetVersion, VERSION)
COUNTS(cuKernelGetAttribute, 0)
COUNTS(cuFuncGetAttribute, 0)
COUNTS(cuOccupancyMaxActiveBlocksPerMultiprocessor, 1)

EXPORT int cuModuleGetGlobal_v2(uint64_t *address, uint64_t *bytes);
int cuModuleGetGlobal_v2(uint64_t *address, uint64_t *bytes)
{
    *address = SOMETHING;
    *bytes = SOMETHING;
    return 0;
}

#define TEXT(name)                                \
    EXPORT int name(int error, const char **out); \
    int name(int error, const char **out)         \
    {                                             \
        (void)error;                              \
        *out = "a driver for tests";              \
        return 0;                                 \
    }
TEXT(cuGetErrorString)
TEXT(cuGetErrorName)
