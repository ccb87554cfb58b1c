/* check.h - ends a benchmark if a call fails. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "fsdp/status.h"

#define CHECK(call)                                                \
    do {                                                           \
        if ((call) != FSDP_OK) {                                   \
            fprintf(stderr, "%s: %s\n", #call, fsdp_last_error()); \
            exit(1);                                               \
        }                                                          \
    } while (0)
