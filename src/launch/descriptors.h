/* descriptors.h - keeps file descriptors 0 to 2 in use, so that nothing else ever gets one of these numbers: otherwise
 * what is printed could be written into another file. */
#pragma once

#include "fsdp/status.h"

/* Opens /dev/null for reading in place of each of 0, 1 and 2 that is closed: reading gives end of file, and writing
 * fails as it would have. `*taken` has a bit for each that was opened. */
fsdp_status fsdp__take_standard_descriptors(unsigned *taken);
/* Closes these descriptors again. */
void fsdp__give_standard_descriptors(unsigned taken);
