/* cudnn_calls.c - opens cuDNN, and says what its answers mean. */
#include "backend/cuda/cudnn_calls.h"

#include "backend/cuda/libraries.h"
#include "base/compiler.h"

/* cuDNN opens the compiler of its kernels by name. Here it is opened before, from where our libraries are looked for:
 * the loader then knows it. */
static fsdp_status open_compiler(const fsdp__cudnn *cudnn)
{
    static const fsdp__cuda_library libraries[] = {{.file = "libnvrtc.so.12",
                                                    .purpose = "the kernels of cuDNN",
                                                    .package = "CUDA 12's NVRTC (nvidia-cuda-nvrtc-cu12)"},
                                                   {.file = "libnvrtc.so.13",
                                                    .purpose = "the kernels of cuDNN",
                                                    .package = "CUDA 13's NVRTC (nvidia-cuda-nvrtc)"}};
    void *handle;

    return fsdp__cuda_library_open(&libraries[cudnn->GetCudartVersion() >= 13000], &handle);
}

fsdp_status fsdp__cudnn_open(fsdp__cudnn *out)
{
    static const fsdp__cuda_library library = {
        .file = "libcudnn.so.9",
        .purpose = "fast attention (kernels.attention: fast)",
        .package = "cuDNN 9.10 or later, which comes with PyTorch and Python's package nvidia-cudnn-cu13"};
#define NAME(result, name, arguments) "cudnn" #name,
    static const char *const names[] = {FSDP__CUDNN_MAP(NAME)};
#undef NAME
    size_t version;
    void *handle;

    FSDP_TRY(fsdp__cuda_library_open(&library, &handle));
    FSDP_TRY(fsdp__cuda_library_functions(&library, handle, names, (void **)out, FSDP__COUNT_OF(names)));
    version = out->GetVersion();
    if (version < FSDP__CUDNN_OLDEST || version / 10000 != FSDP__CUDNN_OLDEST / 10000)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s is version %zu.%zu.%zu: fast attention needs %s", library.file,
                         version / 10000, version / 100 % 100, version % 100, library.package);
    return open_compiler(out);
}

fsdp_status fsdp__cudnn_check(const fsdp__cudnn *cudnn, int answer, const char *call, const char *file, int line)
{
    char why[256] = "";

    if (answer == FSDP__CUDNN_STATUS_SUCCESS)
        return FSDP_OK;
    cudnn->GetLastErrorString(why, sizeof why);
    return fsdp_fail(
        answer == FSDP__CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ? FSDP_NO_MEMORY : FSDP_UNSUPPORTED, file,
        line, "%s answers %s (%d)%s%s", call, cudnn->GetErrorString(answer), answer, why[0] ? ": " : "", why);
}
