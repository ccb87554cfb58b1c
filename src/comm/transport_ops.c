/* transport_ops.c - the names of calls in messages. */
#include "comm/transport_ops.h"

const char *fsdp__call_text(fsdp__call_name name)
{
    static const char *const texts[] = {
#define CALL_TEXT(NAME, text) text,
        FSDP__CALL_MAP(CALL_TEXT)
#undef CALL_TEXT
    };

    return (unsigned)name < FSDP__CALLS ? texts[name] : "unknown call";
}
