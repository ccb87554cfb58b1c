/* chart.h - draws curves as SVG, whose colours and fonts the page around it sets. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "report/run_file.h"

/* Says how numbers are written. */
typedef enum fsdp__unit {
    FSDP__UNIT_NONE,    /* 3.21, 1e-05 */
    FSDP__UNIT_COUNT,   /* 1.2k, 3.4M */
    FSDP__UNIT_BYTES,   /* 1.5MiB */
    FSDP__UNIT_MS,      /* 12 ms, 1.2 s */
    FSDP__UNIT_FRACTION /* 41 % */
} fsdp__unit;

enum {
    FSDP__VALUE_TEXT = 40
};
/* Writes a number of this unit. Returns `text`. */
const char *fsdp__value_text(fsdp__unit unit, double value, char text[FSDP__VALUE_TEXT]);
/* Does it in room that lasts until the end of the block that it stands in. */
#define FSDP__VALUE(unit, value) fsdp__value_text((unit), (value), (char[FSDP__VALUE_TEXT]){0})

typedef struct fsdp__curve {
    const fsdp__series *series;
    const char *name;
    int color;   /* the class c<color % 8> of its shapes, with dashes from 8 on */
    bool dotted; /* few points, each of which is shown: validations */
} fsdp__curve;

typedef struct fsdp__chart {
    const char *title;
    fsdp__unit unit;
    bool from_zero;
    bool log_x;
    const fsdp__curve *curves; /* at least one has a finite value */
    int count;
    int width, height;        /* 0: as in a page */
    double top;               /* where it begins in a file */
    const fsdp__curve *apart; /* the one that stands out, and all others are pale; NULL: all do */
} fsdp__chart;

/* Draws a chart. Where a curve has more points than the picture has columns, its line is the mean of each column, and
 * a band behind it spans their least and largest: no extreme is lost. */
void fsdp__chart_draw(const fsdp__chart *chart, FILE *out);
