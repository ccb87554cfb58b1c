/* dtype_option.c - parses --dtype. */
#include "cli/cli.h"

fsdp_status fsdp__dtype_option(const char *text, fsdp_dtype *out)
{
    *out = fsdp_dtype_from_name(text);
    return fsdp_dtype_is_floating(*out)
               ? FSDP_OK
               : FSDP_FAIL(FSDP_INVALID, "--dtype is '%s': expected float32, bfloat16 or float16", text);
}
