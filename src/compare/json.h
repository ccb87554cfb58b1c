/* json.h - a comparison for programs: every figure as it is. */
#ifndef COMPARE_JSON_H
#define COMPARE_JSON_H

#include "compare/table.h"

/* One object. Bytes are bytes, times milliseconds; a number that is not finite is null. */
fsdp_status fsdp__comparison_print_json(const fsdp__comparison *c, FILE *out);

#endif
