/* memory_kind.c - the names of the kinds of memory. */
#include "fsdp/device.h"

const char *fsdp_memory_kind_name(fsdp_memory_kind kind)
{
    static const char *const names[] = {
#define KIND_NAME(name, text) text,
        FSDP_MEMORY_MAP(KIND_NAME)
#undef KIND_NAME
    };

    return (unsigned)kind < FSDP_MEMORY_KINDS ? names[kind] : "unknown";
}
