/* descriptors.h - file descriptors 0 to 2 are taken, so that nothing else ever gets one of these numbers: what is
 * printed would be written into it. */
#ifndef LAUNCH_DESCRIPTORS_H
#define LAUNCH_DESCRIPTORS_H

#include "fsdp/status.h"

/* Opens /dev/null for reading in place of each of 0, 1 and 2 that is closed: reading finds an end, writing fails as it
 * would without. `*taken` has a bit for each that was. */
fsdp_status fsdp__take_standard_descriptors(unsigned *taken);
/* Closes them again. */
void fsdp__give_standard_descriptors(unsigned taken);

#endif
