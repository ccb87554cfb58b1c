/* activity_calls.h - CUPTI, NVIDIA's library that records what a GPU runs: its functions, and what its answers mean.
 *
 * The plug-in is built without it where its headers are missing, and runs without it where the library is. */
#pragma once

#ifdef FSDP_HAVE_CUPTI
#include <cupti_activity.h>
#include <cupti_version.h>

#include "fsdp/status.h"

/* cupti<name> */
#define FSDP__CUPTI_MAP(X)                                                                              \
    X(ActivityRegisterTimestampCallback, (CUpti_TimestampCallbackFunc))                                 \
    X(ActivityRegisterCallbacks, (CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc)) \
    X(ActivityEnable, (CUpti_ActivityKind))                                                             \
    X(ActivityDisable, (CUpti_ActivityKind))                                                            \
    X(ActivityPushExternalCorrelationId, (CUpti_ExternalCorrelationKind, uint64_t))                     \
    X(ActivityPopExternalCorrelationId, (CUpti_ExternalCorrelationKind, uint64_t *))                    \
    X(ActivityFlushAll, (uint32_t))                                                                     \
    X(ActivityGetNextRecord, (uint8_t *, size_t, CUpti_Activity **))                                    \
    X(ActivityGetNumDroppedRecords, (CUcontext, uint32_t, size_t *))                                    \
    X(Finalize, (void))                                                                                 \
    X(GetResultString, (CUptiResult, const char **))

typedef struct fsdp__cupti {
#define FSDP__CUPTI_MEMBER(name, arguments) CUptiResult(CUPTIAPI *name) arguments;
    FSDP__CUPTI_MAP(FSDP__CUPTI_MEMBER)
#undef FSDP__CUPTI_MEMBER
} fsdp__cupti;

/* Opens the library and finds its functions. */
fsdp_status fsdp__cupti_open(fsdp__cupti *out);
/* Turns the answer of a call into a status, and says what to do. */
fsdp_status fsdp__cupti_check(const fsdp__cupti *cupti, CUptiResult answer, const char *call, const char *file,
                              int line);

/* Calls a function of CUPTI; a status. */
#define FSDP__CUPTI_CALL(cupti, name, ...) \
    fsdp__cupti_check(cupti, (cupti)->name(__VA_ARGS__), "cupti" #name, __FILE__, __LINE__)

#endif
