/* planned_advice.h - plans a recorded run with other settings, so that what a report advises has a price. */
#ifndef CLI_PLANNED_ADVICE_H
#define CLI_PLANNED_ADVICE_H

#include "cli/on_device.h"
#include "report/advice_list.h"

/* Where runs are planned. */
typedef struct fsdp__planned_advice {
    fsdp__on_device device; /* that the user names; without a name each run is planned on its own device */
    char opened[160];       /* whose prices the device has; "": none yet */
} fsdp__planned_advice;

/* Returns a planner for fsdp__advices_of. `where` stays with the caller. */
fsdp__advice_planner fsdp__planned_advice_of(fsdp__planned_advice *where);

#endif
