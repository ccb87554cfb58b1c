/* sort.c - compares numbers and names. */
#include "base/sort.h"

#include <stdint.h>
#include <string.h>

int fsdp__by_integer(const void *a, const void *b)
{
    return FSDP__COMPARE(*(const int64_t *)a, *(const int64_t *)b);
}

int fsdp__by_value(const void *a, const void *b)
{
    return FSDP__COMPARE(*(const double *)a, *(const double *)b);
}

int fsdp__by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}
