/* bars.h - a comparison as a picture. */
#ifndef COMPARE_BARS_H
#define COMPARE_BARS_H

#include "compare/table.h"

/* SVG: for each variant a bar of the time of a step, of the bytes it sends, and of the memory at its peak, in parts. */
void fsdp__comparison_print_svg(const fsdp__comparison *c, FILE *out);

#endif
