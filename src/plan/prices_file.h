/* prices_file.h - prices as a JSON file (docs/plan.md). */
#ifndef PLAN_PRICES_FILE_H
#define PLAN_PRICES_FILE_H

#include <stdio.h>

#include "plan/prices.h"

/* Reads such a file, which may come from anybody. */
fsdp_status fsdp__prices_read(const char *path, fsdp__prices *out);
fsdp_status fsdp__prices_print(const fsdp__prices *prices, FILE *out);

#endif
