/* losses_picture.h - draws the losses of runs as a picture of its own. */
#ifndef REPORT_LOSSES_PICTURE_H
#define REPORT_LOSSES_PICTURE_H

#include <stdio.h>

#include "report/run_file.h"

/* Draws the losses, each the mean of some steps, and below them by how much they differ from the first run's, on a
 * scale of their own. Of the runs at least one has so many steps. */
fsdp_status fsdp__losses_picture(const fsdp__recorded_runs *runs, FILE *out);

#endif
