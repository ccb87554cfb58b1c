/* size.c - reads and writes numbers of bytes as people write them. */
#include "config/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/compiler.h"

static const struct {
    const char *name;
    int64_t bytes;
} units[] = {
    {"TiB", (int64_t)1 << 40}, {"TB", 1000000000000}, {"GiB", 1 << 30}, {"GB", 1000000000}, {"MiB", 1 << 20},
    {"MB", 1000000},           {"KiB", 1 << 10},      {"KB", 1000},     {"B", 1},           {"", 1},
};

bool fsdp__size_parse(const char *text, int64_t *out_bytes)
{
    size_t digits = strspn(text, "0123456789.");
    const char *unit = text + digits;
    char *end;
    double value = strtod(text, &end);

    if (digits == 0 || end != unit)
        return false;
    unit += *unit == ' ' && unit[1];
    for (size_t i = 0; i < FSDP__COUNT_OF(units); i++) {
        if (strcasecmp(unit, units[i].name) != 0)
            continue;
        if (value * (double)units[i].bytes > 9e18)
            return false;
        *out_bytes = (int64_t)(value * (double)units[i].bytes);
        if (!memchr(text, '.', digits)) /* as a whole number, which a double need not hold */
            *out_bytes = strtoll(text, NULL, 10) * units[i].bytes;
        return *out_bytes <= 9000000000000000000;
    }
    return false;
}

const char *fsdp__size_write(int64_t bytes, char text[FSDP__SIZE_TEXT])
{
    size_t i = 0;

    while (bytes % units[i].bytes != 0 || units[i].bytes > bytes)
        if (units[++i].bytes == 1)
            break;
    snprintf(text, FSDP__SIZE_TEXT, "%lld%s", (long long)(bytes / units[i].bytes),
             units[i].bytes == 1 ? "" : units[i].name);
    return text;
}
