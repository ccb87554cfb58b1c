/* title.c - finds the command line of this process where the kernel knows it. */
#include "base/title.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST = 2,      /* fields of /proc/self/stat: the first after the name, which ends with the last ')', is 3 */
    ARG_START = 48, /* the field after it is the end */
};

fsdp__title fsdp__title_find(void)
{
    char text[1024] = "", *at, *end;
    FILE *file = fopen("/proc/self/stat", "re");
    unsigned long start;

    if (!file)
        return (fsdp__title){0};
    at = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    (void)fclose(file);
    for (int field = FIRST; field < ARG_START && at; field++)
        at = strchr(at + 1, ' ');
    if (!at)
        return (fsdp__title){0};
    start = strtoul(at, &end, 10);
    /* A process under a tool such as valgrind has other arguments than the kernel knows of. */
    if (start == 0 || start != (uintptr_t)program_invocation_name)
        return (fsdp__title){0};
    return (fsdp__title){program_invocation_name, strtoul(end, NULL, 10) - start};
}

void fsdp__title_write(fsdp__title title, const char *text)
{
    size_t bytes = strlen(text);

    if (title.bytes == 0)
        return;
    memset(title.start, 0, title.bytes);
    memcpy(title.start, text, bytes < title.bytes ? bytes : title.bytes - 1);
}
