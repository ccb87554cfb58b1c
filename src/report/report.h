/* report.h - shows what runs have left, side by side: as a page, and as text. */
#pragma once

#include <stdio.h>

#include "report/advice.h"

typedef struct fsdp__report {
    fsdp__sources sources;
    fsdp__advices advices; /* of these */
} fsdp__report;

/* Writes one HTML file that needs no network and no script. */
fsdp_status fsdp__report_page(const fsdp__report *report, FILE *out);
/* Prints the same without the pictures. */
fsdp_status fsdp__report_text(const fsdp__report *report, FILE *out);
/* Draws one picture as a file: units and memory of rank 0 in each traced step, one below the other; without a trace the
 * losses of the runs, and how they differ from the first one's. */
fsdp_status fsdp__report_svg(const fsdp__report *report, FILE *out);

/* ---- losses_picture.c ---- */

/* Draws the losses, each the mean of some steps, and below them by how much they differ from the first run's, on a
 * scale of their own. At least one of the runs must have that many steps. */
fsdp_status fsdp__losses_picture(const fsdp__recorded_runs *runs, FILE *out);
