/* activity_calls.c - opens CUPTI, and says what its answers mean. */
#include "backend/cuda/activity_calls.h"

#ifdef FSDP_HAVE_CUPTI
#include <cuda.h>

#include "backend/cuda/libraries.h"
#include "base/compiler.h"

fsdp_status fsdp__cupti_open(fsdp__cupti *out)
{
    static const fsdp__cuda_library library = {.file = CUDA_VERSION >= 13000 ? "libcupti.so.13" : "libcupti.so.12",
                                               .purpose = "traces of what runs",
                                               .package =
                                                   "CUPTI, of CUDA's toolkit or of Python's package nvidia-cuda-cupti"};
#define NAME(name, arguments) "cupti" #name,
    static const char *const names[] = {FSDP__CUPTI_MAP(NAME)};
#undef NAME
    void *handle;

    FSDP_TRY(fsdp__cuda_library_open(&library, &handle));
    return fsdp__cuda_library_functions(&library, handle, names, (void **)out, FSDP__COUNT_OF(names));
}

/* Returns what may be done about an answer. */
static const char *advice(CUptiResult answer)
{
    switch (answer) {
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
        return "the driver lets only administrators record: load its module with "
               "NVreg_RestrictProfilingToAdminUsers=0, or give the container the capability SYS_ADMIN";
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
    case CUPTI_ERROR_HARDWARE_BUSY:
        return "another profiler records this process: run it without that one";
    case CUPTI_ERROR_OUT_OF_MEMORY:
        return "free memory of the host or of the GPU";
    default:
        return "the driver must know this version of CUPTI (nvidia-smi shows the driver and its version of CUDA)";
    }
}

fsdp_status fsdp__cupti_check(const fsdp__cupti *cupti, CUptiResult answer, const char *call, const char *file,
                              int line)
{
    const char *text = NULL;

    if (answer == CUPTI_SUCCESS)
        return FSDP_OK;
    (void)cupti->GetResultString(answer, &text);
    return fsdp_fail(FSDP_UNSUPPORTED, file, line, "%s answers %s (%d): %s", call, text ? text : "with an error",
                     (int)answer, advice(answer));
}

#endif
