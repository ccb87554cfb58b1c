/* bars.h - draws a comparison as a picture. */
#ifndef COMPARE_BARS_H
#define COMPARE_BARS_H

#include "compare/compare_table.h"

/* Prints an SVG. It has three bars for each variant: the time of a step, the bytes it sends, and the memory at its
 * peak, each divided into its parts. */
void fsdp__comparison_print_svg(const fsdp__comparison *c, FILE *out);

#endif
