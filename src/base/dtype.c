/* dtype.c - sizes and names of element types. */
#include <string.h>

#include "base/compiler.h"
#include "fsdp/dtype.h"

typedef struct dtype_info {
    const char *name;
    size_t bytes;
    bool floating;
    const char *aliases[3];
} dtype_info;

static const dtype_info infos[] = {
    [FSDP_DTYPE_NONE] = {"none", 0, false, {NULL}},        [FSDP_F32] = {"float32", 4, true, {"f32", "F32"}},
    [FSDP_BF16] = {"bfloat16", 2, true, {"bf16", "BF16"}}, [FSDP_F16] = {"float16", 2, true, {"f16", "F16", "half"}},
    [FSDP_I32] = {"int32", 4, false, {"i32", "I32"}},      [FSDP_I64] = {"int64", 8, false, {"i64", "I64"}},
    [FSDP_U8] = {"uint8", 1, false, {"u8", "U8"}},         [FSDP_BOOL] = {"bool", 1, false, {"BOOL"}},
};

static const dtype_info *info_of(fsdp_dtype dtype)
{
    return (size_t)dtype < FSDP__COUNT_OF(infos) ? &infos[dtype] : &infos[FSDP_DTYPE_NONE];
}

size_t fsdp_dtype_size(fsdp_dtype dtype)
{
    return info_of(dtype)->bytes;
}

const char *fsdp_dtype_name(fsdp_dtype dtype)
{
    return info_of(dtype)->name;
}

bool fsdp_dtype_is_floating(fsdp_dtype dtype)
{
    return info_of(dtype)->floating;
}

fsdp_dtype fsdp_dtype_from_name(const char *name)
{
    if (!name)
        return FSDP_DTYPE_NONE;
    for (size_t i = FSDP_DTYPE_NONE + 1; i < FSDP__COUNT_OF(infos); i++) {
        if (strcmp(name, infos[i].name) == 0)
            return (fsdp_dtype)i;
        for (size_t a = 0; a < FSDP__COUNT_OF(infos[i].aliases) && infos[i].aliases[a]; a++)
            if (strcmp(name, infos[i].aliases[a]) == 0)
                return (fsdp_dtype)i;
    }
    return FSDP_DTYPE_NONE;
}
