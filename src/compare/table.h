/* table.h - the table: figures as rows, variants as columns. */
#ifndef COMPARE_TABLE_H
#define COMPARE_TABLE_H

#include <stdio.h>

#include "compare/figures.h"
#include "compare/variants.h"
#include "compare/worlds.h"

typedef struct fsdp__comparison {
    const fsdp_train_config *config; /* the user's */
    int ranks, steps, rounds;        /* each variant is started `rounds` times for so many steps */
    fsdp__variants variants;
    fsdp__figures *figures; /* of each variant */
    fsdp__worlds worlds;
} fsdp__comparison;

/* The first variant that has figures, with which the others' losses are compared; -1: none has. */
int fsdp__comparison_first(const fsdp__comparison *c);

typedef enum fsdp__row_format {
    FSDP__ROW_LOSS,  /* and so on: how the double at `offset` is written */
    FSDP__ROW_AGREE, /* of the losses; no field */
    FSDP__ROW_MS,
    FSDP__ROW_RATE,
    FSDP__ROW_COUNT, /* int64_t */
    FSDP__ROW_BYTES, /* int64_t or size_t */
    FSDP__ROW_WORLD, /* the same, of fsdp__comparison.worlds; -1: there is none */
} fsdp__row_format;

typedef struct fsdp__row {
    const char *section; /* what stands above; the same pointer in all rows of one */
    const char *label;
    fsdp__row_format format;
    size_t offset; /* in fsdp__figures, or in the variant's fsdp__elsewhere */
} fsdp__row;

enum {
    FSDP__ROWS = 64
};

/* The rows in which any variant has something; how many there are. */
int fsdp__comparison_rows(const fsdp__comparison *c, fsdp__row *rows);
const char *fsdp__comparison_cell(const fsdp__comparison *c, const fsdp__row *row, int variant, char *text,
                                  size_t bytes);

/* As text of at most 100 columns, variants side by side as they fit; as Markdown. Below it why variants have no
 * figures, and what the figures are. */
void fsdp__comparison_print(const fsdp__comparison *c, FILE *out);
void fsdp__comparison_print_markdown(const fsdp__comparison *c, FILE *out);

#endif
