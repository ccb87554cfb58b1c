/* compare_json.h - prints a comparison for programs: every figure as it is. */
#ifndef COMPARE_COMPARE_JSON_H
#define COMPARE_COMPARE_JSON_H

#include "compare/compare_table.h"

/* Prints one object. Sizes are in bytes, times in milliseconds; a number that is not finite is null. */
fsdp_status fsdp__comparison_print_json(const fsdp__comparison *c, FILE *out);

#endif
