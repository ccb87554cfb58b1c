/* table.c - the kernels as a table. */
#include "oracle/oracle.h"

#define ORACLE_ENTRY(NAME, name, class)                                  \
    static fsdp_status run_##name(fsdp_stream *stream, const void *args) \
    {                                                                    \
        (void)stream;                                                    \
        oracle_##name(args);                                             \
        return FSDP_OK;                                                  \
    }
FSDP__KERNEL_MAP(ORACLE_ENTRY)
#undef ORACLE_ENTRY

#define ORACLE_ENTRY(NAME, name, class) [FSDP__KERNEL_##NAME] = run_##name,
const fsdp__kernel_function oracle_kernels[FSDP__KERNELS] = {FSDP__KERNEL_MAP(ORACLE_ENTRY)};
#undef ORACLE_ENTRY
