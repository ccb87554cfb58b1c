/* fsdp/dtype.h - element types. */
#ifndef FSDP_DTYPE_H
#define FSDP_DTYPE_H

#include "fsdp/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_dtype {
    FSDP_DTYPE_NONE = 0, /* in options: use the default */
    FSDP_F32,
    FSDP_BF16,
    FSDP_F16,
    FSDP_I32,
    FSDP_I64,
    FSDP_U8,
    FSDP_BOOL,
} fsdp_dtype;

FSDP_API size_t fsdp_dtype_size(fsdp_dtype dtype);      /* bytes per element; 0 for NONE */
FSDP_API const char *fsdp_dtype_name(fsdp_dtype dtype); /* PyTorch's name: "float32", "bfloat16", ... */
FSDP_API bool fsdp_dtype_is_floating(fsdp_dtype dtype);
/* Returns the dtype for a name such as "float32", "f32" or "F32" (safetensors); FSDP_DTYPE_NONE if it is unknown. */
FSDP_API fsdp_dtype fsdp_dtype_from_name(const char *name);

#ifdef __cplusplus
}
#endif
#endif
