/* compare_table.h - prints the table: figures as rows, variants as columns. */
#pragma once

#include <stdio.h>

#include "compare/figures.h"
#include "compare/variants.h"
#include "compare/worlds.h"

typedef struct fsdp__comparison {
    const fsdp_train_config *config; /* the user's */
    int ranks, steps, rounds;        /* each variant is started `rounds` times, for this many steps */
    fsdp__variants variants;
    fsdp__figures *figures; /* one for each variant */
    fsdp__worlds worlds;
} fsdp__comparison;

/* Returns the first variant that has figures; the losses of the others are compared with its losses. -1: none has. */
int fsdp__comparison_first(const fsdp__comparison *c);

/* Print the table as text of at most 100 columns, with as many variants side by side as fit, or as Markdown. Below it
 * they say why variants have no figures, and what the figures are. */
void fsdp__comparison_print(const fsdp__comparison *c, FILE *out);
void fsdp__comparison_print_markdown(const fsdp__comparison *c, FILE *out);

/* ---- compare_json.c ---- */

/* Prints one object. Sizes are in bytes, times in milliseconds; a number that is not finite is null. */
fsdp_status fsdp__comparison_print_json(const fsdp__comparison *c, FILE *out);

/* ---- bars.c ---- */

/* Prints an SVG. It has three bars for each variant: the time of a step, the bytes it sends, and the memory at its
 * peak, each divided into its parts. */
void fsdp__comparison_print_svg(const fsdp__comparison *c, FILE *out);
