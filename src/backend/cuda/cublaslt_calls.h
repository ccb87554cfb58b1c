/* cublaslt_calls.h - the functions of cublasLt that are used, opened when the first product runs. */
#pragma once

#include <cublasLt.h>
#include <stdint.h>

#include "fsdp/status.h"

#define FSDP__CUBLASLT_MAP(X)       \
    X(Create)                       \
    X(Destroy)                      \
    X(GetStatusString)              \
    X(GetVersion)                   \
    X(MatmulDescCreate)             \
    X(MatmulDescDestroy)            \
    X(MatmulDescSetAttribute)       \
    X(MatrixLayoutCreate)           \
    X(MatrixLayoutDestroy)          \
    X(MatrixLayoutSetAttribute)     \
    X(MatmulPreferenceCreate)       \
    X(MatmulPreferenceDestroy)      \
    X(MatmulPreferenceSetAttribute) \
    X(MatmulAlgoGetHeuristic)       \
    X(MatmulAlgoInit)               \
    X(MatmulAlgoConfigSetAttribute) \
    X(MatmulAlgoConfigGetAttribute) \
    X(MatmulAlgoCheck)              \
    X(Matmul)

typedef struct fsdp__cublaslt {
#define FSDP__CUBLASLT_MEMBER(name) __typeof__(&cublasLt##name) name;
    FSDP__CUBLASLT_MAP(FSDP__CUBLASLT_MEMBER)
#undef FSDP__CUBLASLT_MEMBER
    cublasLtHandle_t handle; /* for the device that was current when it was opened; NULL: it is not open */
    int64_t version;         /* 130100: 13.1.0 */
} fsdp__cublaslt;

/* Calls a function of cublasLt by its short name; what it answers is recorded as an error, if it is one. */
#define FSDP__CUBLASLT(lt, name, ...) \
    fsdp__cublaslt_status((lt), (lt)->name(__VA_ARGS__), "cublasLt" #name, __FILE__, __LINE__)
fsdp_status fsdp__cublaslt_status(const fsdp__cublaslt *lt, cublasStatus_t answer, const char *name, const char *file,
                                  int line);

/* Opens the library for the current device. If it fails, nothing is open. */
fsdp_status fsdp__cublaslt_open(fsdp__cublaslt *out);
void fsdp__cublaslt_close(fsdp__cublaslt *lt);
