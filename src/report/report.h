/* report.h - shows recorded runs side by side: as a page, and as text. */
#ifndef REPORT_REPORT_H
#define REPORT_REPORT_H

#include <stdio.h>

#include "report/run_file.h"

/* Writes one HTML file that needs no network and no script: what stands out, how the settings differ, and the curves.
 */
fsdp_status fsdp__report_page(const fsdp__recorded_runs *runs, FILE *out);
/* Prints the same without the curves. */
fsdp_status fsdp__report_text(const fsdp__recorded_runs *runs, FILE *out);

#endif
