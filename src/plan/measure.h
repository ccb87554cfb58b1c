/* measure.h - measures the prices of a device that is here. */
#ifndef PLAN_MEASURE_H
#define PLAN_MEASURE_H

#include "plan/prices.h"

/* Measures the device that `name` names ("cpu", "cuda"): trains small models on it, on all of its cores, for about
 * `seconds`, and notes what each kernel takes. Little time leaves out some sizes and the
 * dtypes of 16 bits; none (0) is a step of one tiny model. The network is not measured. [blocks] */
fsdp_status fsdp__prices_measure(const char *name, double seconds, fsdp__prices *out);

#endif
