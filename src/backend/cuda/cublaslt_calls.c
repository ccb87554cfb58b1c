/* cublaslt_calls.c - opens cublasLt, and reports its errors. */
#include "backend/cuda/cublaslt_calls.h"

#include "backend/cuda/libraries.h"
#include "base/compiler.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

fsdp_status fsdp__cublaslt_status(const fsdp__cublaslt *lt, cublasStatus_t answer, const char *name, const char *file,
                                  int line)
{
    if (answer == CUBLAS_STATUS_SUCCESS)
        return FSDP_OK;
    return fsdp_fail(answer == CUBLAS_STATUS_ALLOC_FAILED ? FSDP_NO_MEMORY : FSDP_UNSUPPORTED, file, line,
                     "%s failed: %s", name, lt->GetStatusString(answer));
}

fsdp_status fsdp__cublaslt_open(fsdp__cublaslt *out)
{
    static const fsdp__cuda_library library = {
        .file = "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR),
        .purpose = "matrix products",
        .package = "cuBLAS " TEXT(CUBLAS_VER_MAJOR) ", of CUDA's toolkit or of Python's package nvidia-cublas"};
#define NAME(name) "cublasLt" #name,
    static const char *const names[] = {FSDP__CUBLASLT_MAP(NAME)};
#undef NAME
    void *handle;

    out->handle = NULL;
    FSDP_TRY(fsdp__cuda_library_open(&library, &handle));
    FSDP_TRY(fsdp__cuda_library_functions(&library, handle, names, (void **)out, FSDP__COUNT_OF(names)));
    out->version = (int64_t)out->GetVersion();
    return FSDP__CUBLASLT(out, Create, &out->handle);
}

void fsdp__cublaslt_close(fsdp__cublaslt *lt)
{
    if (lt->handle)
        (void)lt->Destroy(lt->handle);
    lt->handle = NULL;
}
