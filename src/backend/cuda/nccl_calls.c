/* nccl_calls.c - opens NCCL, and says what its answers mean. */
#include "backend/cuda/nccl_calls.h"

#include "backend/cuda/libraries.h"
#include "base/compiler.h"

#define PACKAGE "NCCL 2.20 or later, which comes with PyTorch and Python's package nvidia-nccl-cu13"

static const fsdp__cuda_library library = {
    .file = "libnccl.so.2", .purpose = "collectives by NCCL (comm.carrier: nccl)", .package = PACKAGE};

fsdp_status fsdp__nccl_open(fsdp__nccl *out)
{
#define NAME(result, name, arguments) "nccl" #name,
    static const char *const names[] = {FSDP__NCCL_MAP(NAME)};
    static const char *const windows[] = {FSDP__NCCL_WINDOWS_MAP(NAME)};
    static const char *const all_to_all[] = {FSDP__NCCL_ALL_TO_ALL_MAP(NAME)};
#undef NAME
    void *handle;

    FSDP_TRY(fsdp__cuda_library_open(&library, &handle));
    FSDP_TRY(fsdp__cuda_library_functions(&library, handle, names, (void **)out, FSDP__COUNT_OF(names)));
    FSDP_TRY(FSDP__NCCL_CALL(out, NULL, GetVersion, &out->version));
    if (out->version < FSDP__NCCL_OLDEST)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "%s is version %d.%d.%d: collectives by it need " PACKAGE, library.file,
                         out->version / 10000, out->version / 100 % 100, out->version % 100);
    out->CommWindowRegister = NULL;
    out->CommWindowDeregister = NULL;
    out->AlltoAll = NULL;
    if (out->version >= FSDP__NCCL_WINDOWS)
        FSDP_TRY(fsdp__cuda_library_functions(&library, handle, windows, (void **)&out->CommWindowRegister,
                                              FSDP__COUNT_OF(windows)));
    if (out->version >= FSDP__NCCL_ALL_TO_ALL)
        FSDP_TRY(fsdp__cuda_library_functions(&library, handle, all_to_all, (void **)&out->AlltoAll,
                                              FSDP__COUNT_OF(all_to_all)));
    return FSDP_OK;
}

/* Returns what may be done about an answer. */
static const char *advice(int answer)
{
    switch (answer) {
    case FSDP__NCCL_SystemError:
        return "; it could not use the network or the memory of the host: NCCL_DEBUG=INFO makes it say more";
    case FSDP__NCCL_InvalidUsage:
        return "; ranks that share a GPU need their own, or NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1; "
               "NCCL_DEBUG=WARN makes it say more";
    case FSDP__NCCL_RemoteError:
        return "; another rank is gone, or its network is";
    default:
        return "; NCCL_DEBUG=INFO makes it say more";
    }
}

fsdp_status fsdp__nccl_check(const fsdp__nccl *nccl, fsdp__nccl_comm *comm, int answer, const char *call,
                             const char *file, int line)
{
    const char *why = NULL;

    if (answer == FSDP__NCCL_Success || answer == FSDP__NCCL_InProgress)
        return FSDP_OK;
    why = nccl->GetLastError(comm);
    return fsdp_fail(FSDP_COMM, file, line, "%s answers '%s' (%d)%s%s%s", call, nccl->GetErrorString(answer), answer,
                     why && why[0] ? ": " : "", why ? why : "", advice(answer));
}
