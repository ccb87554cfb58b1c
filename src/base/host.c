/* host.c - the name of the UTS namespace. */
#include "base/host.h"

#include <stdio.h>
#include <unistd.h>

const char *fsdp__host_name(char name[FSDP__HOST_BYTES])
{
    if (gethostname(name, FSDP__HOST_BYTES) != 0 || name[0] == '\0')
        snprintf(name, FSDP__HOST_BYTES, "?");
    name[FSDP__HOST_BYTES - 1] = '\0';
    return name;
}
